"""What came of each row of a group, here or on a server: printed, and what failed reported."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from flide_jax.cli.console import open_console
from flide_jax.cli.rows import Failure, Row
from flide_jax.cli.terminal import report, write_lines
from flide_jax.drawing.answers import draw_answers
from flide_jax.request import Answers


@dataclass(frozen=True)
class Answered:
    """A row that has an answer.

    Attributes:
        answers: to its questions.
        response: the same in System One form.
        by: what answered.
    """

    answers: Answers
    response: dict[str, Any]
    by: str


type Outcome = tuple[Row, Answered | Failure]


def show(groups: Iterable[Sequence[Outcome]], *, as_json: bool) -> int:
    """Prints all outcomes, group by group, as they come. Returns 2 if a row has no answer, else 0.

    As JSON, a row of JSON lines that fails has a line of its own among the answers, so that the n-th line of the output
    is that of the n-th request: `{"error": {"row": LINE, "location": [...], "message": "..."}}`.
    """
    status = 0
    for outcomes in groups:
        if as_json:
            write_lines(_json_lines(outcomes))
        else:
            _draw(outcomes)
        for _, outcome in outcomes:
            if isinstance(outcome, Failure):
                report(outcome.message)
                status = 2
    return status


def _json_lines(outcomes: Iterable[Outcome]) -> Iterator[str]:
    for row, outcome in outcomes:
        if isinstance(outcome, Answered):
            yield json.dumps(outcome.response, ensure_ascii=False, allow_nan=False)
        elif row.line is not None:
            yield outcome.to_json()


def _draw(outcomes: Iterable[Outcome]) -> None:
    console = open_console()
    for row, outcome in outcomes:
        if isinstance(outcome, Answered):
            tokens = f"{outcome.answers.usage.input_tokens:,} tokens, {outcome.by}"
            console.print(Text(row.label, style="bold"), Text(tokens))
            console.print(draw_answers(outcome.answers))
            console.print()
