"""Fork attention: masks (paper Eq. 3), and the key lists that the kernel's tiles meet."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int8
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch
from numpy.typing import ArrayLike

from flide_jax.drawing.figures.style import GREY, OWN, STATE, Picture, panels, styled
from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.fork_attention.runs import TileRuns


def draw_masks(masks: Mapping[str, KeySpans | np.ndarray], key_rows: int) -> Picture:
    """Masks side by side: query rows down, key rows across.

    Args:
        masks: by what stands above each: spans, whose two key sources get a colour each, or bool [N, key_rows].
        key_rows: T.
    """
    with styled():
        figure, axes = panels(3.5 * len(masks), 3.7, columns=len(masks))
        for one, (name, mask) in zip(axes, masks.items(), strict=True):
            sources = _sources(mask, key_rows) if isinstance(mask, KeySpans) else 3 * np.asarray(mask, np.int8)
            colours = ListedColormap(["white", STATE, OWN, "#444444"])
            one.imshow(sources, cmap=colours, vmin=0, vmax=3, interpolation="nearest", aspect="equal")
            _grid(one, *sources.shape)
            one.set_title(name)
            one.set_xlabel("key row")
            one.set_ylabel("query row")
        keys = [
            Patch(facecolor=STATE, label="a key of its state"),
            Patch(facecolor=OWN, label="a key of its own branch"),
        ]
        figure.legend(handles=keys, loc="outside lower center", ncols=2)
    return Picture(figure)


def draw_tiles(runs: TileRuns, spans: KeySpans, *, key_rows: int, block: int) -> Picture:
    """The key blocks that each tile of query rows meets, over the mask.

    Args:
        runs: the key lists of all tiles.
        spans: those they were made of.
        key_rows: T.
        block: keys of a block.
    """
    rows, tiles = runs.visible_begin.shape[-1], runs.core_end.shape[-1]
    seen = _sources(spans, key_rows) > 0
    met = np.zeros((tiles * rows, key_rows), np.int8)
    for tile in range(tiles):
        here = slice(tile * rows, (tile + 1) * rows)
        for begin, end in _keys(runs.masked_shift, runs.masked_end, tile):
            met[here, begin:end] = 3
        for begin, end in _keys(runs.core_shift, runs.core_end, tile):
            met[here, begin:end] = 1
    met[: seen.shape[0]][seen & (met[: seen.shape[0]] == 3)] = 2
    colours = ["white", STATE, OWN, "#F7DFAE"]
    with styled():
        figure, (axes,) = panels(6.6, 5.2)
        axes.imshow(met, cmap=ListedColormap(colours), vmin=0, vmax=3, interpolation="nearest", aspect="auto")
        for tile in range(tiles):
            axes.axhline(tile * rows - 0.5, color="white", linewidth=0.5)
            for begin, end in _keys(runs.core_shift, runs.core_end, tile):
                ends = np.arange(begin, end + 1, block) - 0.5
                axes.vlines(ends, tile * rows - 0.5, (tile + 1) * rows - 0.5, color="white", linewidth=0.5)
        axes.set_xlabel("key row")
        axes.set_ylabel(f"query row, in tiles of {rows}")
        names = [f"blocks of {block} keys that all rows of the tile see", "seen through the mask", "met and hidden"]
        keys = [Patch(facecolor=colour, label=name) for colour, name in zip(colours[1:], names, strict=True)]
        figure.legend(handles=keys, loc="outside upper center", ncols=3)
    return Picture(figure)


def _keys(shifts: ArrayLike, ends: ArrayLike, tile: int) -> list[tuple[int, int]]:
    """The key rows of each run of a tile that has any."""
    found, before = [], 0
    for shift, end in zip(np.asarray(shifts)[:, tile].tolist(), np.asarray(ends)[:, tile].tolist(), strict=True):
        if end > before:
            found.append((before + shift, end + shift))
        before = end
    return found


def _sources(spans: KeySpans, key_rows: int) -> Int8[np.ndarray, "N T"]:
    """0 where a key is not seen, 1 in the state's span of a branch's row, 2 in a piece's own keys.

    A state has one span, whose keys are both: they count as the state's.
    """
    key = np.arange(key_rows)[None]
    columns = {name: np.asarray(column)[:, None] for name, column in vars(spans).items()}
    state = (columns["state_begin"] <= key) & (key < columns["state_end"])
    own = (columns["own_begin"] <= key) & (key < columns["own_end"])
    return (state + 2 * own).astype(np.int8)


def _grid(axes: Axes, rows: int, columns: int) -> None:
    """Lines between cells where these are large enough."""
    if max(rows, columns) > 48:
        return
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(which="minor", color=GREY, linewidth=0.25)
    axes.tick_params(which="minor", length=0)
