"""The flat stream of a round: whose each row is, at which position it stands, and which rows are read."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from flide_jax.drawing.figures.style import GREY, INK, PALE, STATE, Picture, of_branch, panels, printable, styled
from flide_jax.drawing.text import one_line
from flide_jax.layout import Capacity, Stream


def draw_positions(stream: Stream, capacity: Capacity, names: Sequence[str]) -> Picture:
    """The rows of a round as a strip (paper Eq. 2), and below it the position of each row in its question's own text.

    Args:
        stream: the round.
        capacity: what it runs in; its last rows are padding.
        names: of each branch, in the order of the stream.
    """
    with styled():
        figure, (strip, below) = panels(7.6, 3.5, rows=2, sharex=True, height_ratios=[1.35, 2.6])
        _draw_pieces(strip, stream, capacity, names)
        index = stream.token_index
        for piece, (begin, length) in enumerate(zip(stream.piece_begin, stream.piece_length, strict=True)):
            rows = np.arange(begin, begin + length)
            below.plot(rows, index[rows], color=_colour(stream, piece), linewidth=2.4, solid_capstyle="butt")
            if stream.piece_parent[piece] >= 0:
                below.plot([begin, begin], [0, index[begin]], color=PALE, linewidth=0.8, zorder=0)
        for length in np.unique(stream.piece_length[: stream.requests]):
            below.axhline(length, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
            below.text(capacity.tokens, length, f"P = {length}", ha="right", va="bottom", fontsize=8, color=INK)
        below.plot(stream.read_rows, index[stream.read_rows], "o", color=INK, markersize=4, label="row that is read")
        below.set_xlim(0, capacity.tokens)
        below.set_ylim(0, 1.12 * index.max())
        below.set_xlabel("row of the stream")
        below.set_ylabel("position in its own text")
        below.legend(loc="upper right", handletextpad=0.2)
    return Picture(figure)


def _draw_pieces(axes: Axes, stream: Stream, capacity: Capacity, names: Sequence[str]) -> None:
    for piece, (begin, length) in enumerate(zip(stream.piece_begin, stream.piece_length, strict=True)):
        is_state = stream.piece_parent[piece] < 0
        axes.broken_barh([(begin, length)], (0, 1), facecolor=_colour(stream, piece), edgecolor="white")
        label = f"state {piece}" if stream.requests > 1 else "state"
        name = label if is_state else printable(one_line(names[piece - stream.requests], limit=18).plain)
        if length * 45 > capacity.tokens:  # names of shorter ones would stand over each other
            axes.text(begin + 1, 1.12, name, fontsize=8, ha="left", va="bottom", rotation=32, rotation_mode="anchor")
            axes.text(begin + length / 2, 0.5, str(length), color="white", ha="center", va="center", weight="bold")
    used = stream.tokens.size
    if used < capacity.tokens:
        axes.broken_barh([(used, capacity.tokens - used)], (0, 1), facecolor="white", edgecolor=GREY, hatch="////")
        axes.text(used + 1, 1.12, "padding", fontsize=8, ha="left", va="bottom", rotation=32, rotation_mode="anchor")
    axes.set_ylim(0, 3.4)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(bottom=False, labelbottom=False, left=False, labelleft=False)


def _colour(stream: Stream, piece: int) -> str:
    parent = int(stream.piece_parent[piece])
    if parent < 0:
        return STATE
    first = int(np.flatnonzero(stream.piece_parent == parent)[0])
    return of_branch(piece - first)
