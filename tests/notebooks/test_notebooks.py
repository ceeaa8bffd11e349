"""Every notebook runs top to bottom, and what is committed is what it would be made of today."""

import re
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

from notebooks import execute

MOST_BYTES = 1_000_000


@pytest.fixture(params=execute.written(), ids=lambda path: path.stem)
def path(request) -> Path:
    return request.param


def committed(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path.with_suffix(".ipynb"), as_version=4)


def sources(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def kinds(notebook: nbformat.NotebookNode) -> list[list[tuple[str, list[str]]]]:
    """What each cell of code gives: the kinds of its outputs, and their formats."""
    return [
        [(output.output_type, sorted(output.get("data", {output.get("name"): None}))) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def texts(notebook: nbformat.NotebookNode) -> list[list[str | None]]:
    """What each cell of code prints and shows as text; nothing of those whose text depends on the machine."""
    return [
        [output.get("text", output.get("data", {}).get("text/plain")) for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code" and execute.VARIES not in cell.metadata.get("tags", [])
    ]


def test_they_are_numbered_and_paired():
    names = [path.stem for path in execute.written()]
    assert [name[:2] for name in names] == [f"{number:02}" for number in range(1, len(names) + 1)]
    assert sorted(path.stem for path in execute.FOLDER.glob("*.ipynb")) == names


def test_it_runs_and_gives_the_outputs_that_are_committed(path):
    executed = execute.execute(path)
    assert kinds(executed) == kinds(committed(path))
    assert texts(executed) == texts(committed(path))


def test_a_cell_that_fails_is_an_error(tmp_path):
    failing = tmp_path / "failing.md"
    failing.write_text("```python\nassert 1 + 1 == 3\n```\n")
    with pytest.raises(Exception, match="AssertionError"):
        execute.execute(failing)


def test_both_files_of_a_pair_hold_the_same_cells(path):
    assert sources(execute.read(path)) == sources(committed(path))
    # And the other way round: what jupytext writes of the second is the first.
    assert sources(jupytext.reads(jupytext.writes(committed(path), "md"), "md")) == sources(committed(path))


def test_outputs_are_of_one_run_from_top_to_bottom(path):
    cells = [cell for cell in committed(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert outputs and not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]


def test_outputs_hold_nothing_of_the_machine(path):
    text = path.with_suffix(".ipynb").read_text("utf-8")
    for local in ("/home/", "/root/", "/tmp/", "/Users/", str(Path.home()), sys.prefix, str(execute.FOLDER.parent)):
        assert local not in text
    assert not re.search(r"object at 0x[0-9a-f]+", text)
    assert len(text.encode()) < MOST_BYTES
