"""`flide-jax convert`: a model with its weights fused beforehand."""

from argparse import Namespace
from pathlib import Path

from flide_jax.cli.console import open_console
from flide_jax.cli.model import find_directory
from flide_jax.cli.terminal import note
from flide_jax.engine import EngineConfig
from flide_jax.engine.model_directory import describe
from flide_jax.engine.program import Program


def convert(arguments: Namespace) -> int:
    """Writes the converted model."""
    directory, out = find_directory(arguments, weights=True), Path(arguments.out)
    # The dtype of this program is not that of what is written, which is the checkpoint's own.
    program = Program.of(describe(directory), EngineConfig())
    note(f"converting {directory}")
    program.convert(directory, out)
    open_console().print(f"{out}: converted; give it as --model")
    return 0
