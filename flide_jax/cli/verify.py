"""`flide-jax verify`: every question forked and alone."""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace

from flide_jax.cli.model import load_engine
from flide_jax.cli.rows import Failure, Group, plan_row
from flide_jax.cli.terminal import note, report
from flide_jax.drawing.comparison import draw_questions, draw_verdict
from flide_jax.drawing.console import open_console
from flide_jax.request import Request
from flide_jax.verification import TOLERANCES, QuestionComparison, compare


def verify(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Compares all rows. Returns 1 past the tolerance of the dtype, else 2 if a row could not be compared."""
    engine = load_engine(arguments)
    found: list[QuestionComparison] = []
    places: list[str] = []
    status = 0
    for group in groups:
        requests: list[Request] = []
        for row, request in group:
            plan = plan_row(engine.plan, row, request)
            if isinstance(plan, Failure):
                report(plan.message)
                status = 2
            elif isinstance(request, Request):
                requests.append(request)
                places.append(row.place)
        before = len(places) - len(requests)
        found += [replace(one, request=before + one.request) for one in compare(engine, requests)]
        note(f"{len(found)} questions compared")
    if not found:
        return status
    tolerance = TOLERANCES[engine.dtype.name]
    console = open_console()
    if arguments.per_question:
        console.print(draw_questions(found, places=places))
        console.print()
    console.print(draw_verdict(found, dtype=engine.dtype.name, tolerance=tolerance, places=places))
    return 1 if max(one.largest_difference for one in found) > tolerance else status
