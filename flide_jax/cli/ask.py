"""`flide-jax ask`: requests in, answers out."""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from flide_jax.cli.model import load_engine
from flide_jax.cli.outcomes import Answered, Outcome, show
from flide_jax.cli.rows import Failure, Group, Row, attempt, plan_row
from flide_jax.engine import Engine
from flide_jax.engine.ablation import Logits
from flide_jax.prompts.plan import Plan
from flide_jax.request import Request
from flide_jax.serving.protocol import response

type RowPlan = tuple[Row, Request | Failure, Plan | Failure]


def ask(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Answers every row, and returns 2 if one of them has no answer; see `show`."""
    engine = load_engine(arguments)
    parts = (part for group in groups for part in _parts(engine, group))
    return show((list(_answer(engine, part)) for part in parts), as_json=arguments.json)


def _parts(engine: Engine, group: Group) -> Iterator[list[RowPlan]]:
    """A group, cut where a state goes on from one before it in the group. The parts before one have been answered."""
    part: list[RowPlan] = []
    growing = engine.executables.growing
    for row, request in group:
        plan = plan_row(engine.plan, row, request)
        if growing is not None and isinstance(plan, Plan):
            if growing.awaits(plan, [other for *_, other in part if isinstance(other, Plan)]):
                yield part
                part = []
        part.append((row, request, plan))
    yield part


def _answer(engine: Engine, planned: Sequence[RowPlan]) -> Iterator[Outcome]:
    """The answers of rows whose requests share rounds."""
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
