"""Where the commands write: results to standard output, everything else to standard error."""

import io
import sys
from collections.abc import Iterable

_LONGEST_MESSAGE = 1_000


def report(message: str) -> None:
    """One line about an error, on standard error, however long or many-lined the message is."""
    if sys.stderr is None:  # `print` would turn to standard output.
        return
    line = " ".join(message.splitlines())
    shown = line if len(line) <= _LONGEST_MESSAGE else f"{line[:_LONGEST_MESSAGE]}…"
    print(f"flide-jax: error: {shown}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """One line for a person who waits at a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"flide-jax: {message}", file=sys.stderr, flush=True)


def write_lines(lines: Iterable[str]) -> None:
    """Lines of JSON, which is UTF-8 whatever the terminal's encoding is; they are there at once."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()
