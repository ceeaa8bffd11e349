"""`flide-jax inspect --png`: the first round as pictures."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.terminal import note
from flide_jax.layout import Capacity, MetadataLayout, Stream
from flide_jax.models.attention import AttentionConfig
from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.fork_attention.pallas import KEY_BLOCK, heads_of_a_tile
from pallas_kernels.fork_attention.pallas_kernel import TILE_ROWS
from pallas_kernels.fork_attention.runs import tile_runs

try:
    from flide_jax.drawing.figures.attention import draw_masks, draw_tiles
    from flide_jax.drawing.figures.stream import draw_positions
    from flide_jax.drawing.figures.tree import Tree, draw_trees
except ModuleNotFoundError as error:
    raise CommandError(f"--png needs the extra `plot` ({error.name} is missing): uv run --extra plot ...") from None

_MOST_ROWS = 4_096  # a mask has as many cells as the square of this


def save_pictures(
    directory: Path, trees: Sequence[Tree], stream: Stream, capacity: Capacity, attention: AttentionConfig
) -> None:
    """Writes tree.png, stream.png, mask.png and, as the kernel has them, tiles.png.

    Raises CommandError where they cannot be written.
    """
    names = [name for _, request, _ in trees for name in request.questions]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        draw_trees(trees).save(directory / "tree.png")
        draw_positions(stream, capacity, names).save(directory / "stream.png")
        if capacity.tokens > _MOST_ROWS:
            note(f"{directory}: tree.png, stream.png; masks and tiles are drawn up to {_MOST_ROWS:,} rows")
            return
        spans = _spans(stream, capacity)
        draw_masks({"which keys a row sees": spans}, capacity.tokens).save(directory / "mask.png")
        block = KEY_BLOCK.get(attention.head_dim, max(KEY_BLOCK.values()))
        rows = TILE_ROWS // heads_of_a_tile(attention.query_heads, attention.key_heads)
        runs = tile_runs(spans, None, rows=rows, block=block)
        draw_tiles(runs, spans, key_rows=capacity.tokens, block=block).save(directory / "tiles.png")
    except OSError as error:
        raise CommandError(f"{error.filename or directory}: {error.strerror}") from None
    note(f"{directory}: tree.png, stream.png, mask.png, tiles.png")


def _spans(stream: Stream, capacity: Capacity) -> KeySpans:
    layout = MetadataLayout(capacity, conv_taps=1)
    spans = layout.unpack(layout.pack(stream)).spans
    return KeySpans(**{name: np.asarray(column) for name, column in vars(spans).items()})
