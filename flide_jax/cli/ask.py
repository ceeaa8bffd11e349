"""`flide-jax ask`: requests in, answers out."""

from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial

from flide_jax.cli.model import load_engine
from flide_jax.cli.outcomes import Answered, Outcome, show
from flide_jax.cli.rows import Failure, Group, attempt, plan_row
from flide_jax.engine import Engine
from flide_jax.engine.ablation import Logits
from flide_jax.prompts.plan import Plan
from flide_jax.request import Request
from flide_jax.serving.protocol import response


def ask(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Answers every row, and returns 2 if one of them has no answer; see `show`."""
    engine = load_engine(arguments)
    return show((list(_answer(engine, group)) for group in groups), as_json=arguments.json)


def _answer(engine: Engine, group: Group) -> Iterator[Outcome]:
    """The answers of a group, whose requests share rounds."""
    planned = [(row, request, plan_row(engine.plan, row, request)) for row, request in group]
    started = engine.start([plan for *_, plan in planned if isinstance(plan, Plan)])
    ran = zip(started(), started.resumed, strict=True)
    for row, request, plan in planned:
        if isinstance(request, Request) and isinstance(plan, Plan):
            yield row, attempt(row, partial(_answered, engine, request, plan, *next(ran)))
        elif isinstance(plan, Failure):
            yield row, plan


def _answered(engine: Engine, request: Request, plan: Plan, logits: Logits, resumed: int) -> Answered:
    answers = engine.planner.answers(request, plan, logits, resumed=resumed)
    return Answered(answers, response(answers, model=engine.name), f"{engine.name}, {engine.dtype}")
