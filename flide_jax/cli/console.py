"""Standard output as a place for drawings."""

import io
import os
import sys
from typing import Any

from rich.console import Console

from flide_jax.cli.terminal import writing

_WIDTH_OF_FILES = 120


class _Console(Console):
    def print(self, *objects: Any, **options: Any) -> None:
        """Raises OutputError."""
        with writing():
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Leaves a reader that has gone away to the program; rich would end the process here."""
        raise BrokenPipeError


def open_console() -> Console:
    """Standard output: the width and colours of a terminal, a fixed width and no colours elsewhere."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with writing():
            sys.stdout.reconfigure(errors="replace")  # A bar that the encoding lacks is no reason to fail.
    fixed = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_FILES
    return _Console(file=sys.stdout, width=fixed, highlight=False, markup=False, emoji=False)
