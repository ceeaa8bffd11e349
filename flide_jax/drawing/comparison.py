"""Forked against alone, as a verdict over all questions and as a table of each."""

from collections.abc import Sequence

from rich.table import Table

from flide_jax.drawing.text import one_line, plain_table
from flide_jax.verification import QuestionComparison


def draw_verdict(found: Sequence[QuestionComparison], *, dtype: str, tolerance: float, places: Sequence[str]) -> Table:
    """The worst of all questions, and where it is.

    Args:
        found: all comparisons, at least one.
        dtype: what the engine computes in.
        tolerance: the largest difference that rounding explains.
        places: what each request is called.
    """
    worst = max(found, key=lambda one: one.largest_difference)
    spread = max(found, key=lambda one: one.total_variation)
    same = sum(one.same_bits for one in found)
    table = plain_table("", "")
    table.show_header = False
    table.add_row("questions", f"{len(found)}, each forked and alone, {dtype}")
    table.add_row("largest |dp|", f"{worst.largest_difference:.3g}  {_place(worst, places)}")
    table.add_row("largest total variation", f"{spread.total_variation:.3g}  {_place(spread, places)}")
    table.add_row("same bits", "all" if same == len(found) else f"{same} of {len(found)}")
    verdict = "within" if worst.largest_difference <= tolerance else "EXCEEDED"
    table.add_row("tolerance of |dp|", f"{tolerance:g} for {dtype}: {verdict}")
    return table


def draw_questions(found: Sequence[QuestionComparison], *, places: Sequence[str]) -> Table:
    """One line for each question."""
    table = plain_table(
        "request", "question", "|dp|", "total variation", "same bits", right=("|dp|", "total variation")
    )
    for one in found:
        table.add_row(
            places[one.request],
            one_line(one.question, limit=40),
            f"{one.largest_difference:.3g}",
            f"{one.total_variation:.3g}",
            "yes" if one.same_bits else "no",
        )
    return table


def _place(one: QuestionComparison, places: Sequence[str]) -> str:
    return f"({places[one.request]}, {one_line(one.question, limit=40)})"
