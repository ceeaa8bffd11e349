"""Forking a recurrent state: chunks and the slots they start from (paper Eq. 4), and convolution windows."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from flide_jax.array_types import IntVector
from flide_jax.drawing.figures.style import GREY, INK, PALE, STATE, Picture, of_branch, panels, styled
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments

_BAR = 0.5


def draw_chunks(segments: Segments, names: Sequence[str]) -> Picture:
    """The chunks of every segment, level by level, and the slots of recurrent states before and between them.

    Args:
        segments: the runs of a round; unused ones are left out.
        names: of the used ones, in their order.
    """
    used = np.flatnonzero(np.asarray(segments.length) > 0).tolist()
    level = np.asarray(segments.level()).tolist()
    levels = max(level[segment] for segment in used) + 1
    place, width = _places(segments, used, level)
    with styled():
        figure, (axes,) = panels(7.6, 1.0 + 1.15 * levels)
        for segment, name in zip(used, names, strict=True):
            colour = STATE if segments.final_slot[segment] >= 0 else of_branch(segment - len(used))
            y = -2.0 * level[segment]
            _draw_segment(axes, segments, segment, place[segment], y, colour)
            rows = int(segments.length[segment])
            # Where no arrow passes: a slot's line leaves at the bottom, and arrows come from above.
            if segments.final_slot[segment] < 0:
                axes.text(place[segment], y - 0.07, f"{name}: {rows} rows", fontsize=8, va="top")
            elif level[segment] == 0:
                right = place[segment] + (0.25 if segments.initial_slot[segment] >= 0 else 0.0)
                axes.text(right, y + _BAR + 0.07, f"{name}: {rows} rows", fontsize=8, va="bottom")
            else:
                right = place[segment] - (-rows // CHUNK_ROWS) + 0.05
                axes.text(right, y + _BAR / 2, f"{name}: {rows} rows", fontsize=8, va="center")
        writers = {int(segments.final_slot[s]): s for s in used if segments.final_slot[s] >= 0}
        for slot, writer in writers.items():
            end = place[writer] + int(segments.length[writer]) / CHUNK_ROWS
            y = -2.0 * level[writer]
            axes.annotate("", (end, y - 0.75), (end, y), arrowprops={"arrowstyle": "-", "color": STATE})
            _draw_slot(axes, segments, slot, (end, y - 0.75), used, place, level)
        resumed = {int(segments.initial_slot[s]): s for s in used if segments.initial_slot[s] >= 0}
        before = {slot: reader for slot, reader in resumed.items() if slot not in writers}
        for slot, reader in before.items():
            _draw_slot(axes, segments, slot, (place[reader] + 0.05, _BAR + 0.75), used, place, level)
        axes.set_xlim(-0.2, width)
        axes.set_ylim(-2.0 * levels + 1.6, _BAR + (1.1 if before else 0.35))
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.set_yticks([-2.0 * n + _BAR / 2 for n in range(levels)], [f"level {n}" for n in range(levels)])
        axes.tick_params(left=False)
        axes.set_xlabel(f"chunks of {CHUNK_ROWS} rows; what a segment does not fill is padding", loc="left")
    return Picture(figure)


def draw_predecessors(
    predecessors: Int32[np.ndarray, "T earlier"], token_piece: IntVector, *, pieces: Sequence[int]
) -> Picture:
    """The rows that the short convolution reads beside its own, from the first row of some pieces.

    Args:
        predecessors: of every row; -1 stands for zeros.
        token_piece: the piece of each row, int32 [rows]; piece 0 is the state.
        pieces: whose first rows are shown.
    """
    rows = token_piece.size
    with styled():
        figure, (axes,) = panels(7.6, 1.75)
        for row, piece in enumerate(token_piece.tolist()):
            colour = STATE if piece == 0 else of_branch(piece - 1)
            axes.broken_barh([(row + 0.04, 0.92)], (0, 0.8), facecolor=colour)
            axes.text(row + 0.5, 0.4, str(row), color="white", ha="center", va="center", fontsize=8, weight="bold")
        for piece in pieces:
            first = int(np.flatnonzero(token_piece == piece)[0])
            colour = STATE if piece == 0 else of_branch(piece - 1)
            for before in np.asarray(predecessors)[first].tolist():
                if before < 0:
                    continue
                arc = FancyArrowPatch(
                    (before + 0.5, 0.85),
                    (first + 0.5, 0.85),
                    connectionstyle=f"arc3,rad={-0.62 + 0.03 * (first - before)}",
                    arrowstyle="-|>",
                    mutation_scale=8,
                    color=colour,
                    linewidth=1.4,
                )
                axes.add_patch(arc)
        axes.set_xlim(0, rows)
        axes.set_ylim(-0.6, 2.3)
        axes.axis("off")
        axes.text(0, -0.2, "arrows: what the first row of each branch reads beside itself", va="top", fontsize=8)
    return Picture(figure)


def _places(segments: Segments, used: list[int], level: list[int]) -> tuple[dict[int, float], float]:
    """Where each segment begins in its level, and the width of the widest level; in chunks."""
    place: dict[int, float] = {}
    ends = dict.fromkeys(level, 0.0)
    for segment in used:
        chunks = -(-int(segments.length[segment]) // CHUNK_ROWS)
        here = level[segment]
        place[segment] = ends[here]
        ends[here] += max(chunks + 0.3, 1.6)
    return place, max(ends.values())


def _draw_segment(axes: Axes, segments: Segments, segment: int, x: float, y: float, colour: str) -> None:
    rows = int(segments.length[segment])
    for chunk, first in enumerate(range(0, rows, CHUNK_ROWS)):
        filled = min(CHUNK_ROWS, rows - first) / CHUNK_ROWS
        axes.broken_barh([(x + chunk, 0.96)], (y, _BAR), facecolor=PALE)
        axes.broken_barh([(x + chunk, 0.96 * filled)], (y, _BAR), facecolor=colour)


def _draw_slot(
    axes: Axes,
    segments: Segments,
    slot: int,
    middle: tuple[float, float],
    used: list[int],
    place: dict[int, float],
    level: list[int],
) -> None:
    """A slot, with an arrow to each segment that starts from it."""
    label = f"slot {slot}" if slot < segments.slots else f"slot {slot - segments.slots} of the pool"
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": STATE}
    axes.text(*middle, label, ha="center", va="center", fontsize=8, bbox=box, color=INK, zorder=5)
    for reader in used:
        if segments.initial_slot[reader] == slot:
            style = {"arrowstyle": "-|>", "color": GREY, "shrinkA": 9, "shrinkB": 0}
            target = (place[reader] + 0.05, -2.0 * level[reader] + _BAR)
            axes.annotate("", target, middle, arrowprops=style)
