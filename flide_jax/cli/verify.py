"""`flide-jax verify`: every question forked and alone, and whether answers keep their bits."""

from argparse import Namespace
from collections.abc import Iterable, Sequence
from functools import partial

from flide_jax.cli.console import open_console
from flide_jax.cli.model import load_engine
from flide_jax.cli.rows import Failure, Group, Planned, attempt, plan_group
from flide_jax.cli.terminal import note, report
from flide_jax.drawing.comparison import Found, Kept, draw_bits, draw_questions, draw_verdict
from flide_jax.engine import Engine
from flide_jax.engine.program import precision
from flide_jax.same_bits import compare_bits
from flide_jax.verification import TOLERANCES, compare


def verify(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Compares all rows. Returns 1 past the tolerance of the dtype or where promised bits differ, else 2 if a row could
    not be compared."""
    engine = load_engine(arguments)
    promised = engine.config.batch_invariant
    found: list[Found] = []
    kept: list[Kept] = []
    status = 0
    for group in groups:
        planned = list(plan_group(engine.plan, group))
        compared, complete = _compare(engine, planned)
        found += compared
        if promised or arguments.same_bits:
            kept += _compare_bits(engine, planned)
        status = status if complete and len(planned) == len(group) else 2
        note(f"{len(found)} questions compared")
    if not found:
        return status
    tolerance = TOLERANCES[engine.dtype.name]
    console = open_console()
    if arguments.per_question:
        console.print(draw_questions(found))
        console.print()
    console.print(draw_verdict(found, dtype=engine.dtype.name, tolerance=tolerance))
    if kept:
        console.print()
        console.print(draw_bits(kept, promised=promised))
    broken = promised and any(one.first is not None for _, one in kept)
    return 1 if broken or max(one.largest_difference for _, one in found) > tolerance else status


def _compare(engine: Engine, planned: Sequence[Planned]) -> tuple[list[Found], bool]:
    """The comparisons of rows, which share rounds, and whether they are those of all of them."""
    complete = True
    found: list[Found] = []
    for (row, request, plan), forked in zip(planned, engine.logits([plan for *_, plan in planned]), strict=True):
        compared = attempt(row, partial(compare, engine, request, plan, forked))
        if isinstance(compared, Failure):
            report(compared.message)
            complete = False
        else:
            found += [(row.label, one) for one in compared]
    return found, complete


def _compare_bits(engine: Engine, planned: Sequence[Planned]) -> list[Kept]:
    """The rows asked in other ways; each way with the row and question of the first answer that differs."""
    with precision(engine.dtype):
        compared = compare_bits(engine.executables, [plan for *_, plan in planned])
    return [(_place(one.first, planned), one) for one in compared]


def _place(first: tuple[int, int] | None, planned: Sequence[Planned]) -> str:
    if first is None:
        return ""
    row, request, _ = planned[first[0]]
    return f"{row.label}, {list(request.questions)[first[1]]}"
