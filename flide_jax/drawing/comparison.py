"""Forked against alone, as a verdict over all questions and as a table of each; and what each of many changes made."""

from collections.abc import Sequence

from rich.table import Table

from flide_jax.drawing.text import one_line, plain_table
from flide_jax.invariances import Change
from flide_jax.same_bits import BitsComparison
from flide_jax.verification import QuestionComparison

type Found = tuple[str, QuestionComparison]
"""A question with what its request is called."""
type Kept = tuple[str, BitsComparison]
"""One more way of asking, with the place of the first answer that differs."""


def draw_verdict(found: Sequence[Found], *, dtype: str, tolerance: float) -> Table:
    """The worst of all questions, and where it is.

    Args:
        found: all comparisons, at least one.
        dtype: what the engine computes in.
        tolerance: the largest difference that rounding explains.
    """
    worst_place, worst = max(found, key=lambda one: one[1].largest_difference)
    spread_place, spread = max(found, key=lambda one: one[1].total_variation)
    same = sum(one.same_bits for _, one in found)
    table = plain_table("what", "found", names=("found",))
    table.show_header = False
    table.add_row("questions", f"{len(found)}, each forked and alone, {dtype}")
    table.add_row("largest |dp|", f"{worst.largest_difference:.3g}  {_place(worst_place, worst)}")
    table.add_row("largest total variation", f"{spread.total_variation:.3g}  {_place(spread_place, spread)}")
    table.add_row("same bits as alone, as one text", "all" if same == len(found) else f"{same} of {len(found)}")
    verdict = "within" if worst.largest_difference <= tolerance else "EXCEEDED"
    table.add_row("tolerance of |dp|", f"{tolerance:g} for {dtype}: {verdict}")
    return table


def draw_bits(kept: Sequence[Kept], *, promised: bool) -> Table:
    """How many answers keep the bits that they have alone, in each way of asking; of all groups of rows together.

    Args:
        kept: at least one; those of one way are added up.
        promised: whether all of them have to.
    """
    table = plain_table("asked", "same bits as alone", "first that differs", names=("first that differs",))
    for way in dict.fromkeys(one.way for _, one in kept):
        of_way = [(place, one) for place, one in kept if one.way == way]
        questions, same = (sum(getattr(one, name) for _, one in of_way) for name in ("questions", "same"))
        place = next((place for place, one in of_way if one.first is not None), "")
        shown = f"{same} of {questions}" if questions else "not tried"
        table.add_row(way, shown, one_line(place, limit=60))
    broken = any(one.first is not None for _, one in kept)
    verdict = ("BROKEN" if broken else "kept") if promised else "not given by this engine"
    table.add_row("promise of the same bits", verdict, "")
    return table


def draw_questions(found: Sequence[Found]) -> Table:
    """Every question in a row of its own."""
    table = plain_table(
        "request", "question", "|dp|", "total variation", "same bits",
        right=("|dp|", "total variation"), names=("request", "question"),
    )  # fmt: skip
    for place, one in found:
        table.add_row(
            place,
            one_line(one.question, limit=40),
            f"{one.largest_difference:.3g}",
            f"{one.total_variation:.3g}",
            "yes" if one.same_bits else "no",
        )
    return table


def draw_changes(changes: Sequence[Change], *, dtype: str, tolerance: float) -> Table:
    """Every change in a row of its own, and a verdict.

    Args:
        changes: at least one.
        dtype: what the engine computes in.
        tolerance: the largest difference that rounding explains.
    """
    table = plain_table("changed", "how", "questions", "|dp|", "", right=("questions", "|dp|"))
    for change in changes:
        verdict = "" if change.largest <= tolerance else "EXCEEDED"
        table.add_row(change.name, change.says, str(change.questions), f"{change.largest:.3g}", verdict)
    held = all(change.largest <= tolerance for change in changes)
    table.add_row("tolerance", f"{dtype}: {'within' if held else 'EXCEEDED'}", "", f"{tolerance:g}")
    return table


def _place(place: str, one: QuestionComparison) -> str:
    return f"({place}, {one_line(one.question, limit=40)})"
