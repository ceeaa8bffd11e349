"""`flide-jax ask`: requests in, answers out."""

import json
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial

from rich.text import Text

from flide_jax.cli.console import open_console
from flide_jax.cli.model import load_engine
from flide_jax.cli.rows import Failure, Group, Row, attempt, plan_row
from flide_jax.cli.terminal import report, write_lines
from flide_jax.drawing.answers import draw_answers
from flide_jax.engine import Engine
from flide_jax.prompts.plan import Plan
from flide_jax.request import Answers, Request
from flide_jax.serving.protocol import response

type Outcome = tuple[Row, Answers | Failure]


def ask(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Answers every row, and returns 2 if one of them has no answer.

    With `--json`, a row of JSON lines that fails has a line of its own among the answers, so that the n-th line of the
    output is that of the n-th request: `{"error": {"row": LINE, "location": [...], "message": "..."}}`.
    """
    engine = load_engine(arguments)
    status = 0
    for group in groups:
        outcomes = list(_answer(engine, group))
        if arguments.json:
            write_lines(_json_lines(engine, outcomes))
        else:
            _draw(engine, outcomes)
        for _, outcome in outcomes:
            if isinstance(outcome, Failure):
                report(outcome.message)
                status = 2
    return status


def _answer(engine: Engine, group: Group) -> Iterator[Outcome]:
    """The answers of a group, whose requests share rounds."""
    planned = [(row, request, plan_row(engine.plan, row, request)) for row, request in group]
    started = engine.start([plan for *_, plan in planned if isinstance(plan, Plan)])
    ran = zip(started(), started.resumed, strict=True)
    for row, request, plan in planned:
        if isinstance(request, Request) and isinstance(plan, Plan):
            logits, resumed = next(ran)
            yield row, attempt(row, partial(engine.planner.answers, request, plan, logits, resumed=resumed))
        elif isinstance(plan, Failure):
            yield row, plan


def _json_lines(engine: Engine, outcomes: Iterable[Outcome]) -> Iterator[str]:
    for row, outcome in outcomes:
        if isinstance(outcome, Answers):
            yield json.dumps(response(outcome, model=engine.name), ensure_ascii=False, allow_nan=False)
        elif row.line is not None:
            yield outcome.to_json()


def _draw(engine: Engine, outcomes: Iterable[Outcome]) -> None:
    console = open_console()
    for row, outcome in outcomes:
        if isinstance(outcome, Answers):
            tokens = f"{outcome.usage.input_tokens:,} tokens, {engine.name}, {engine.dtype}"
            console.print(Text(row.label, style="bold"), Text(tokens))
            console.print(draw_answers(outcome))
            console.print()
