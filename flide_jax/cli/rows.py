"""Requests from a file or standard input: one JSON document, or one a line."""

import importlib.resources
import itertools
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.terminal import report, warn
from flide_jax.prompts.plan import Plan
from flide_jax.request import Request, RequestError
from flide_jax.serving.protocol import in_words_of_the_wire, parse_request

EXAMPLE = importlib.resources.files("flide_jax") / "demo" / "examples" / "support.json"
ROWS_PER_GROUP = 64
"""Rows that are read, answered and printed together: enough to fill rounds, few enough to hold in memory."""


@dataclass(frozen=True)
class Row:
    """One request of the input.

    Attributes:
        line: where it stands, counted from 1 and with blank lines; None for a document of its own.
        place: what errors call it, `FILE` or `FILE:LINE`.
        text: its JSON.
    """

    line: int | None
    place: str
    text: bytes

    @property
    def label(self) -> str:
        """What drawings call it: its place without directories, which are the same for all rows and may be long."""
        return Path(self.place).name

    def read(self) -> Request:
        """The request; what it asks for in vain is said. Raises RequestError."""
        found = parse_request(self.text)
        for name in found.misnamed:
            warn(f"{self.place}: {name} is ignored, as no field of System One; the one of this package is x_{name}")
        return found.request


class AnswerError(Exception):
    """There is no answer, and it is not for the request."""


@dataclass(frozen=True)
class Failure:
    """A row that has no answer, and why."""

    row: Row
    error: RequestError | NotImplementedError | FloatingPointError | AnswerError

    @property
    def message(self) -> str:
        """The error with its place."""
        return f"{self.row.place}: {self.error}"

    def to_json(self) -> str:
        """The line that stands where the row's answer would. ASCII, since a location may hold what UTF-8 cannot."""
        location = self.error.location if isinstance(self.error, RequestError) else ()
        return json.dumps({"error": {"row": self.row.line, "location": list(location), "message": str(self.error)}})


type Group = list[tuple[Row, Request | Failure]]
type Planned = tuple[Row, Request, Plan]


def attempt[T](row: Row, step: Callable[[], T]) -> T | Failure:
    """The result of one step with one row. What a row can be refused for fails that row alone."""
    try:
        return step()
    except (RequestError, NotImplementedError, FloatingPointError, AnswerError) as error:
        return Failure(row, error)


def plan_row(plan: Callable[[Request], Plan], row: Row, request: Request | Failure) -> Plan | Failure:
    """The plan of a row that could be read."""
    if isinstance(request, Failure):
        return request

    def in_words() -> Plan:
        with in_words_of_the_wire():
            return plan(request)

    return attempt(row, in_words)


def plan_group(plan: Callable[[Request], Plan], group: Group) -> Iterator[Planned]:
    """The rows of a group that can be planned; the others are reported and left out."""
    for row, request in group:
        planned = plan_row(plan, row, request)
        if isinstance(planned, Failure):
            report(planned.message)
        elif isinstance(request, Request):
            yield row, request, planned


def read_groups(arguments: Namespace) -> Iterator[Group]:
    """The requests that the arguments name, in groups; the first one is read at once.

    Raises CommandError: nothing is named, the file cannot be read or holds no request, or it is one that is wrong.
    """
    if arguments.file is None and not arguments.demo:
        raise CommandError("which requests? Give a FILE, or - for standard input; --demo brings an example of its own")
    if arguments.file is None:
        rows: Iterator[Row] = iter([Row(None, EXAMPLE.name, EXAMPLE.read_bytes())])
    else:
        rows = _rows(arguments.file)
    groups = _groups(rows)
    first = next(groups, None)
    if first is None:
        raise CommandError(f"{_name(arguments.file)}: no request in it")
    (row, request), *_ = first
    if row.line is None and isinstance(request, Failure):
        raise CommandError(request.message)
    return itertools.chain([first], groups)


def _groups(rows: Iterator[Row]) -> Iterator[Group]:
    for group in itertools.batched(rows, ROWS_PER_GROUP):
        yield [(row, attempt(row, row.read)) for row in group]


def _name(file: str) -> str:
    return "stdin" if file == "-" else file


def _rows(file: str) -> Iterator[Row]:
    try:
        if file == "-":
            if sys.stdin is None:
                raise CommandError("stdin: closed")
            yield from _document_or_lines("stdin", sys.stdin.buffer)
            return
        with open(file, "rb") as opened:
            match Path(file).suffix.lower():
                case ".jsonl":
                    yield from _lines(file, enumerate(opened, 1))
                case ".json":
                    yield Row(None, file, opened.read())
                case _:
                    yield from _document_or_lines(file, opened)
    except OSError as error:
        raise CommandError(f"{_name(file)}: {error.strerror}") from None


def _lines(name: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[Row]:
    """Rows of JSON lines. Binary files break lines at the byte 0x0A only, as JSON lines do."""
    for number, line in lines:
        if line.strip():
            yield Row(number, f"{name}:{number}", line.strip())  # so that errors count within the row


def _document_or_lines(name: str, opened: Iterable[bytes]) -> Iterator[Row]:
    """Rows of a stream that may hold either.

    Where the first line is JSON by itself these are lines, and nothing is read ahead. Otherwise the whole is one
    document if it is JSON; if not, lines if one of them is a JSON object by itself; else one broken document.
    """
    numbered = enumerate(opened, 1)
    first = next(((number, line) for number, line in numbered if line.strip()), None)
    if first is None:
        return
    if _is_json(first[1]):
        yield from _lines(name, itertools.chain([first], numbered))
        return
    lines = [first, *numbered]
    whole = b"".join(line for _, line in lines)
    if not _is_json(whole) and any(line.startswith(b"{") and _is_json(line) for _, line in lines):
        yield from _lines(name, lines)
    else:
        yield Row(None, name, whole)


def _is_json(text: bytes) -> bool:
    """Whether this is JSON to the end; errors within it are for the reader of the request."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
