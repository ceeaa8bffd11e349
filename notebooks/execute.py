"""Execute the notebooks top to bottom and keep their outputs: `python -m notebooks.execute`, or with names of some.

A notebook is a pair: `NAME.md` is what is written by hand, `NAME.ipynb` the same cells with outputs, for readers. This
command makes the second from the first. What cells print has to be the same every time, and a test compares it, but for
cells with the tag `varies`: what these print depends on the machine.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

FOLDER = Path(__file__).parent
VARIES = "varies"
_METADATA = {
    "jupytext": {"formats": "ipynb,md"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# Which transformers would import in two seconds, and no notebook uses.
_WITHOUT_TORCH = "--IPKernelApp.exec_lines=import sys; sys.modules['torch'] = None"


def written() -> list[Path]:
    """The notebooks as they are written, in order."""
    return sorted(FOLDER.glob("[0-9]*.md"))


def read(path: Path) -> nbformat.NotebookNode:
    """The cells of a written notebook, without outputs; the same file gives the same notebook."""
    notebook = jupytext.read(path)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return notebook


def execute(path: Path) -> nbformat.NotebookNode:
    """A written notebook with its outputs, on a CPU, in the folder of the notebooks.

    Raises CellExecutionError: a cell failed.
    """
    notebook = read(path)
    root, commands = FOLDER.parent, Path(sys.executable).parent
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(root / ".jax_cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
        "PYTHONWARNINGS": "ignore:IProgress not found",  # tqdm asks for widgets that show progress
        "PATH": os.pathsep.join([str(commands), os.environ.get("PATH", "")]),
    }
    with tempfile.TemporaryDirectory() as sockets:
        # Sockets in a folder that only this user reads: ports would be open to all of the machine.
        options = Config(KernelManager={"transport": "ipc", "ip": f"{sockets}/kernel"})
        folder = {"metadata": {"path": str(FOLDER)}}
        client = NotebookClient(
            notebook,
            config=options,
            extra_arguments=[_WITHOUT_TORCH],
            timeout=300,
            record_timing=False,
            coalesce_streams=True,
            resources=folder,
        )
        client.execute(env=environment)
    notebook.metadata = nbformat.from_dict(_METADATA)
    return notebook


def main(arguments: list[str] | None = None) -> None:
    """Executes and writes; prints the names."""
    parser = argparse.ArgumentParser(description="Execute the notebooks and keep their outputs.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the first letters of some; default: all")
    names = tuple(parser.parse_args(arguments).names)
    for path in written():
        if path.name.startswith(names or ""):
            nbformat.write(execute(path), path.with_suffix(".ipynb"))
            print(path.with_suffix(".ipynb").name, flush=True)


if __name__ == "__main__":
    main()
