"""`flide-jax verify`: every question forked and alone."""

from argparse import Namespace
from collections.abc import Iterable
from functools import partial

from flide_jax.cli.console import open_console
from flide_jax.cli.model import load_engine
from flide_jax.cli.rows import Failure, Group, attempt, plan_group
from flide_jax.cli.terminal import note, report
from flide_jax.drawing.comparison import Found, draw_questions, draw_verdict
from flide_jax.engine import Engine
from flide_jax.verification import TOLERANCES, compare


def verify(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Compares all rows. Returns 1 past the tolerance of the dtype, else 2 if a row could not be compared."""
    engine = load_engine(arguments)
    found: list[Found] = []
    status = 0
    for group in groups:
        compared, complete = _compare_group(engine, group)
        found += compared
        status = status if complete else 2
        note(f"{len(found)} questions compared")
    if not found:
        return status
    tolerance = TOLERANCES[engine.dtype.name]
    console = open_console()
    if arguments.per_question:
        console.print(draw_questions(found))
        console.print()
    console.print(draw_verdict(found, dtype=engine.dtype.name, tolerance=tolerance))
    return 1 if max(one.largest_difference for _, one in found) > tolerance else status


def _compare_group(engine: Engine, group: Group) -> tuple[list[Found], bool]:
    """The comparisons of a group, whose requests share rounds, and whether they are those of all its rows."""
    planned = list(plan_group(engine.plan, group))
    complete = len(planned) == len(group)
    found: list[Found] = []
    for (row, request, plan), forked in zip(planned, engine.logits([plan for *_, plan in planned]), strict=True):
        compared = attempt(row, partial(compare, engine, request, plan, forked))
        if isinstance(compared, Failure):
            report(compared.message)
            complete = False
        else:
            found += [(row.label, one) for one in compared]
    return found, complete
