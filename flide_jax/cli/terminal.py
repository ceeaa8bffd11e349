"""Where the commands write: results to standard output, everything else to standard error."""

import contextlib
import io
import sys
from collections.abc import Iterable, Iterator

_LONGEST_MESSAGE = 1_000


class OutputError(Exception):
    """Standard output cannot be written to; `cause` says why."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause)
        self.cause = cause


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Sets a failure to write results apart from all other errors of the system, by raising it as OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(error) from error


def report(message: str) -> None:
    """One line about an error, on standard error, however long or many-lined the message is."""
    line = " ".join(message.splitlines())
    _say(f"error: {line if len(line) <= _LONGEST_MESSAGE else f'{line[:_LONGEST_MESSAGE]}…'}")


def warn(message: str) -> None:
    """One line about something that is not as it may be thought to be."""
    _say(message)


def say(message: str) -> None:
    """One line about what a command that goes on is doing."""
    _say(message)


def note(message: str) -> None:
    """One line for a person who waits at a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        _say(message)


def write_lines(lines: Iterable[str]) -> None:
    """Lines of JSON, which is UTF-8 whatever the terminal's encoding is; they are there at once. Raises OutputError."""
    text = "".join(f"{line}\n" for line in lines)
    with writing():
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")
        sys.stdout.write(text)
        sys.stdout.flush()


def _say(line: str) -> None:
    if sys.stderr is None:  # `print` would turn to standard output.
        return
    with contextlib.suppress(OSError):  # There is nowhere left to say that this cannot be written.
        print(f"flide-jax: {line}", file=sys.stderr, flush=True)
