"""Growing states: what each step computes, and whose pages of keys stand where."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Patch

from flide_jax.checkpoints import Checkpoint
from flide_jax.drawing.figures.style import GREY, INK, ORANGE, PALE, SKY, STATE, Picture, panels, styled
from pallas_kernels.fork_attention.metadata import PAGE_ROWS


@dataclass(frozen=True)
class Step:
    """One request about a growing state, in tokens.

    Attributes:
        state: of its state, P.
        resumed: of these, how many came from a checkpoint.
        saved: how many the checkpoint holds that it left; None: it left none.
        questions: of all its questions.
    """

    state: int
    resumed: int
    saved: int | None
    questions: int


def draw_steps(steps: Sequence[Step]) -> Picture:
    """Each step as a line: what it resumed, what it computed of its state, its questions, and where it was saved."""
    with styled():
        figure, (axes,) = panels(7.4, 1.3 + 0.36 * len(steps))
        for number, step in enumerate(steps):
            axes.barh(number, step.resumed, facecolor=PALE, edgecolor=GREY, hatch="////", linewidth=0.6, height=0.62)
            axes.barh(number, step.state - step.resumed, left=step.resumed, facecolor=STATE, height=0.62)
            axes.barh(number, step.questions, left=step.state, facecolor=ORANGE, height=0.62)
            if step.saved is not None:
                axes.plot(step.saved, number - 0.42, "v", color=INK, markersize=5)
        longest = max(step.state + step.questions for step in steps)
        pages = range(0, max(step.state for step in steps) + PAGE_ROWS, PAGE_ROWS)
        axes.vlines(pages, -0.6, len(steps) - 0.5, color=GREY, linewidth=0.4, zorder=0)
        axes.set_xlim(0, 1.02 * longest)
        axes.set_ylim(len(steps) - 0.4, -0.8)
        axes.set_yticks(range(len(steps)), [f"step {number}" for number in range(len(steps))])
        axes.set_xlabel(f"tokens; lines are {PAGE_ROWS} apart, as pages of keys are")
        legend = [
            Patch(facecolor=PALE, edgecolor=GREY, hatch="////", label="resumed"),
            Patch(facecolor=STATE, label="computed of the state"),
            Patch(facecolor=ORANGE, label="questions"),
        ]
        (saved,) = axes.plot([], [], "v", color=INK, markersize=5, label="saved")
        figure.legend(handles=[*legend, saved], loc="outside upper center", ncols=4)
    return Picture(figure)


def draw_pages(checkpoints: Sequence[Checkpoint]) -> Picture:
    """The pages that each checkpoint holds, in the order of its tokens; one colour where another held it before."""
    longest = max(checkpoint.pages.size for checkpoint in checkpoints)
    held: set[int] = set()
    with styled():
        figure, (axes,) = panels(1.6 + 0.62 * longest, 0.9 + 0.36 * len(checkpoints))
        for line, checkpoint in enumerate(checkpoints):
            for place, page in enumerate(checkpoint.pages.tolist()):
                rows = min(PAGE_ROWS, checkpoint.tokens.size - place * PAGE_ROWS) / PAGE_ROWS
                is_shared = page in held
                axes.broken_barh([(place, 0.94)], (line - 0.4, 0.8), facecolor="white", edgecolor=GREY, linewidth=0.6)
                axes.broken_barh([(place, 0.94 * rows)], (line - 0.4, 0.8), facecolor=SKY if is_shared else STATE)
                colour = INK if is_shared else "white"
                axes.text(place + 0.07, line, str(page), color=colour, ha="left", va="center", fontsize=8)
            held |= set(checkpoint.pages.tolist())
        axes.set_xlim(-0.1, longest)
        axes.set_ylim(len(checkpoints) - 0.5, -0.5)
        names = [f"{checkpoint.tokens.size} tokens" for checkpoint in checkpoints]
        axes.set_yticks(range(len(checkpoints)), names)
        axes.set_xticks(np.arange(longest), [str(PAGE_ROWS * place) for place in range(longest)])
        axes.set_xlabel("token; each cell is a page, with its number")
        axes.spines[["left", "bottom"]].set_visible(False)
        legend = [
            Patch(facecolor=STATE, label="a page of its own"),
            Patch(facecolor=SKY, label="shared with the one before"),
        ]
        figure.legend(handles=legend, loc="outside upper center", ncols=2)
    return Picture(figure)
