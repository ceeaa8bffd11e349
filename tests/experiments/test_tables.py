"""README says what the records say: the newest of them, or the largest."""

import json

import pytest

from experiments import records, tables
from experiments.line_chart import Line, draw


@pytest.fixture
def results(tmp_path, monkeypatch):
    """results(name, *found) writes the records of an experiment, the newest last."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)

    def write(name, *found):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))

    return write


def test_readme_and_figure_are_made_of_the_committed_records(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().out


def lone(ms, **changes):
    cell = {"size": "0.8B", "workload": "race-one", "implementation": None, "device": records.CARD, "queued": {}}
    return cell | {"lone_ms": ms} | changes


def test_a_cell_is_its_newest_record_on_the_card(results):
    queued = lone(4.0, queued={"8": 900.0, "64": 1234.5})
    others = [lone(1.0, device="cpu"), lone(2.0, implementation={"matmul": "xla"}), lone(5.0, workload="race-all")]
    results("latency", lone(9.0), queued, lone(3.5), *others)
    rows = [row for row in tables.speed() if row.startswith("| 0.8B race-")]
    assert rows == [
        "| 0.8B race-one | 2.99 ms | 3.50 ms | 1110 /s | 1234 /s |",
        "| 0.8B race-all | 3.75 ms | 5.00 ms | 617 /s | - |",
    ]


def test_cells_of_a_variant_say_which(results):
    joined, early = ({"version": version} for version in ("joined matrices", "an early start"))
    queued = lone(4.0, queued={"64": 1234.5}) | joined
    results("latency", queued, lone(3.5) | early, lone(5.0, workload="race-all") | joined, lone(9.0, size="4B"))
    header, _, *rows, _, first, _, second, _ = tables.speed()
    assert header.startswith("| |")
    assert rows[:1] + rows[3:4] == [
        "| 0.8B race-one | 2.99 ms | 3.50 ms (1) | 1110 /s | 1234 /s (2) |",
        "| 0.8B race-all | 3.75 ms | 5.00 ms (2) | 617 /s | - |",
    ]
    assert first == "(1) measured with: an early start; see experiments/README.md."
    assert second == "(2) measured with: joined matrices; see experiments/README.md."


def test_exactness_is_the_largest_difference_of_the_newest_of_the_largest_walks(results):
    def walk(step, questions):
        ops = [{"step": step, "chain": 3e-15}, {"step": 1e-16, "chain": 7e-15}]
        return {"family": "qwen3_5", "ops": ops, "conclusion": 2e-15, "questions": questions}

    results("exactness", walk(9e-15, 8), walk(4e-15, 8), walk(5e-15, 7))
    *_, row = tables.exactness()
    assert row == "| qwen3_5 | 4.0e-15 | 7.0e-15 | 2.0e-15 | 8 |"


def test_fidelity_is_the_newest_of_the_largest_runs_of_each_dtype(results):
    def ran(dtype, tv, questions, device="cpu", **more):
        row = {"tv": tv, "p99": 2e-7, "agr": 0.75, "acc": 0.5, "flip": 0.125, "stab": 0.875} | more
        return {"dtype": dtype, "questions": questions, "device": device, "ways": {"forked": row}}

    results("fidelity", ran("float32", 1e-8, 9), ran("float32", 3e-8, 9), ran("float32", 4e-8, 2))
    *_, row = tables.fidelity()
    assert row == ("| float32 on a CPU, forked | 3.0e-08, - | 2.0e-07, - | 75.0%, - | 12.5% | 87.5% | 50.0% |")
    single = {"float32": {"tv": 5e-8, "p99": 6e-7, "agr": 1.0}}
    results("fidelity", ran("bfloat16", 1e-8, 9, device="NVIDIA H200", **single))
    *_, row = tables.fidelity()
    assert row == (
        "| bfloat16 on NVIDIA H200, forked | 1.0e-08, 5.0e-08 | 2.0e-07, 6.0e-07 | 75.0%, 100.0% "
        "| 12.5% | 87.5% | 50.0% |"
    )


def test_the_figure_prefers_the_card(results):
    def ran(device, ms):
        rows = [{"questions": n, "ms": {"forked": n * ms}} for n in (1, 2)]
        return {"device": device, "size": "0.8B", "state": 9, "question": 1, "rows": rows}

    results("questions_per_state", ran(records.CARD, 5.0), ran("cpu", 700.0))
    drawn, shown = tables.figure()
    assert shown["device"] == records.CARD
    assert ">5<" in drawn and ">20<" in drawn and "700" not in drawn


def test_only_what_is_between_the_markers_is_made():
    readme = f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n"
    made = f"{tables.BEGIN}\nnew\n{tables.END}"
    assert tables.replaced(readme, made) == f"before\n{made}\nafter\n"
    with pytest.raises(ValueError, match="two lines"):
        tables.replaced("before\n", made)


def test_a_chart_puts_larger_values_higher_and_escapes_names():
    drawn = draw([Line("a < b", [(1, 2.0), (4, 8.0)])], x_title="x", y_title="y")
    assert "a &lt; b" in drawn
    (first, last) = [float(part.split('"')[1]) for part in drawn.split("cy=")[1:]]
    assert first > last
    assert drawn == draw([Line("a < b", [(1, 2.0), (4, 8.0)])], x_title="x", y_title="y")
