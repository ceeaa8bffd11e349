"""Differences: of forked and alone by dtype and depth, and of wrong forks."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64
from matplotlib.axes import Axes

from flide_jax.drawing.figures.style import BLUE, GREEN, GREY, INK, ORANGE, RED, Picture, panels, styled

_LINES = {"float64": (BLUE, "o", "-"), "float32": (GREEN, "s", "--"), "bfloat16": (ORANGE, "^", "-.")}
# Where a difference of nothing at all is drawn.
_LEAST = 1e-18


def draw_depths(found: Mapping[str, Float64[np.ndarray, " depths"]], epsilons: Mapping[str, float]) -> Picture:
    """The largest relative difference of a hidden state after each layer, by dtype.

    Args:
        found: by dtype, from the embedding (depth 0) on.
        epsilons: by dtype, the distance from 1 to the next number.
    """
    with styled():
        figure, (axes,) = panels(6.4, 3.4)
        for dtype, differences in found.items():
            colour, marker, line = _LINES[dtype]
            axes.axhline(epsilons[dtype], color=colour, linewidth=0.8, linestyle=(0, (1, 2)))
            axes.plot(
                np.maximum(differences, _LEAST), color=colour, marker=marker, linestyle=line, markersize=5, label=dtype
            )
            axes.text(
                len(differences) - 0.7, epsilons[dtype], f"spacing of {dtype}", fontsize=8, color=colour, va="center"
            )
        _decades(axes, "y")
        depths = max(map(len, found.values()))
        axes.set_xticks(range(depths))
        axes.set_xlim(-0.3, depths - 0.75)
        axes.set_xlabel("depth: 0 is the embedding, n the residual stream after layer n")
        axes.set_ylabel("largest relative difference")
        axes.legend(loc="center", bbox_to_anchor=(0.6, 0.42), ncols=len(found))
    return Picture(figure)


def draw_wrong_forks(found: Mapping[str, Float64[np.ndarray, " branches"]], *, tolerance: float) -> Picture:
    """|dp| of every question, for the right fork and for wrong ones: a line for each, a dot for each question.

    Args:
        found: by what was done, the largest difference of a probability in each branch.
        tolerance: what rounding explains.
    """
    with styled():
        figure, (axes,) = panels(6.4, 0.9 + 0.34 * len(found))
        for line, differences in enumerate(found.values()):
            wrong = differences.max() > tolerance
            shown = np.maximum(differences, _LEAST)
            axes.plot(
                shown, np.full(shown.size, line), "D" if wrong else "o", color=RED if wrong else BLUE, alpha=0.7,
                markersize=5, markeredgewidth=0,
            )  # fmt: skip
        axes.axvline(tolerance, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.text(tolerance, -0.9, f" tolerance {tolerance:g}", fontsize=8, color=INK, va="bottom")
        axes.set_yticks(range(len(found)), list(found))
        axes.set_ylim(len(found) - 0.5, -0.9)
        _decades(axes, "x")
        axes.set_xlabel("largest |dp| of a question, against the question alone")
    return Picture(figure)


def draw_orders(sums: Mapping[int, np.float32], exact: float) -> Picture:
    """One sum in several orders: how far each result is from the exact one.

    Args:
        sums: by the number of terms of a block, float32.
        exact: the sum without rounding.
    """
    step = float(np.spacing(np.float32(exact)))
    errors = [(float(value) - exact) / step for value in sums.values()]
    with styled():
        figure, (axes,) = panels(6.4, 2.6)
        axes.axhline(0, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.vlines(range(len(errors)), 0, errors, color=BLUE, linewidth=1)
        axes.plot(errors, "o", color=BLUE, markersize=6)
        axes.set_xticks(range(len(errors)), [f"{block:,}" for block in sums])
        axes.set_xlabel("terms of a block")
        axes.set_ylabel("error, in steps of float32")
    return Picture(figure)


def _decades(axes: Axes, which: str) -> None:
    """A logarithmic axis with a place for nothing at all."""
    powers = range(-16, 1, 4)
    ticks, labels = [_LEAST, *(10.0**n for n in powers)], ["0", *(f"$10^{{{n}}}$" for n in powers)]
    if which == "y":
        axes.set_yscale("log")
        axes.set_ylim(_LEAST / 3, 3)
        axes.set_yticks(ticks, labels)
        axes.set_yticks([], minor=True)
    else:
        axes.set_xscale("log")
        axes.set_xlim(_LEAST / 3, 3)
        axes.set_xticks(ticks, labels)
        axes.set_xticks([], minor=True)
