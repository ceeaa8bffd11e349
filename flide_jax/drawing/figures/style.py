"""What all figures share: colours that colour-blind readers and printers keep apart, fonts, and how one is shown."""

import io
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Of Okabe and Ito's palette; their order by lightness is kept in grey.
BLUE, ORANGE, GREEN, RED, SKY, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7"
INK, GREY, PALE = "#222222", "#8C8C8C", "#E6E6E6"
STATE, OWN = BLUE, ORANGE
BRANCHES = (ORANGE, GREEN, PURPLE, SKY, RED)
"""Of branches in turn."""

_RC: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "hatch.linewidth": 0.6,
    # The ids of an SVG are random but for this, and a figure would differ from run to run.
    "svg.hashsalt": "flide",
}


@dataclass(frozen=True, eq=False)
class Picture:
    """A finished figure. A notebook shows it as SVG, and nothing of matplotlib's global state is used."""

    figure: Figure

    def svg(self) -> str:
        """As SVG, letters as outlines; the same for the same figure."""
        written = io.StringIO()
        with styled():
            self.figure.savefig(written, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        return written.getvalue()

    def save(self, path: str | Path) -> None:
        """Write a file, in the format that its name ends with."""
        with styled():
            self.figure.savefig(path, dpi=160, bbox_inches="tight")

    def _repr_svg_(self) -> str:
        return self.svg()


def styled() -> AbstractContextManager[None]:
    """matplotlib's settings for these figures, for as long as the context lasts."""
    return matplotlib.rc_context(_RC)


def panels(
    width: float, height: float, *, columns: int = 1, rows: int = 1, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches, and its panels row by row. `options` are those of `Figure.subplots`."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, list(figure.subplots(rows, columns, squeeze=False, **options).ravel())


def of_branch(number: int) -> str:
    """The colour of a branch by its number in its request."""
    return BRANCHES[number % len(BRANCHES)]


def printable(text: str) -> str:
    """The text with a box for every character that the figures' font has not; matplotlib would warn of each."""
    known = font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap()
    return "".join(character if ord(character) in known else "\u25a1" for character in text)
