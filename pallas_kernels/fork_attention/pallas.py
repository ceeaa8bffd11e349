"""Fork attention for Hopper in Pallas Mosaic GPU: wgmma on bfloat16, float32 softmax and sums.

A tile is 128 rows of the matrix unit, that is some query rows times the heads of a key head's group, so that a key is
loaded once a group. What stands around the kernel (`pallas_kernel`): the division of rows, the key lists of tiles
(`runs`) and the units of work (`units`), and the sum of what several units found for a tile.
"""

import functools
import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.fork_attention import units
from pallas_kernels.fork_attention.metadata import PAGE_ROWS, CachedKeys, KeySpans
from pallas_kernels.fork_attention.pallas_kernel import HIDDEN, TILE_ROWS, Blocking, kernel
from pallas_kernels.fork_attention.runs import STRIP, TileRuns, tile_runs
from pallas_kernels.mosaic import MULTIPROCESSORS, interpreted
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS

KEY_BLOCK = {64: 128, 128: 128, 256: 64}  # keys of a block by head size: what registers and shared memory hold
MOST_SPLITS = 32
USUAL_CACHED_ROWS = 16_384  # what a tile is taken to meet of a page table that has room for more


@functools.partial(
    jax.jit, static_argnames=("scale", "finite", "batch_invariant", "splits", "interpret")
)  # lowered once for all layers
def fork_attention(
    query: Float[Array, "N H D"],
    key: Float[Array, "T KV D"],
    value: Float[Array, "T KV D"],
    spans: KeySpans,
    *,
    cached: CachedKeys | None = None,
    scale: float,
    finite: bool = False,
    batch_invariant: bool = False,
    splits: int | None = None,
    interpret: bool = False,
) -> Float[Array, "N H D"]:
    """See `api.fork_attention`.

    What else than the order of a row's keys may change its bits is how its tile's keys are divided into blocks. The
    blocks of a tile are found from the spans of its rows: inside one chunk of one piece they are the same wherever the
    piece stands. Over how many units they are divided is not, so batch-invariant they are one unit's.

    Args:
        splits: over how many units the key blocks of a tile are divided, None for a number that fills the card when
            there are few rows. It depends on shapes alone.
        interpret: run on the host, to check the kernel without a GPU.

    Raises:
        NotImplementedError: not bfloat16, a head size without tuned blocks, or batch-invariant with so few heads for a
            key head that a tile has rows of two chunks.
    """
    rows, heads, head_dim = query.shape
    key_heads = key.shape[1]
    if not query.dtype == key.dtype == value.dtype == jnp.bfloat16:
        raise NotImplementedError(f"fork_attention by pallas is for bfloat16, not {query.dtype}")
    if head_dim not in KEY_BLOCK:
        raise NotImplementedError(
            f"fork_attention by pallas has head sizes {', '.join(map(str, KEY_BLOCK))}, not {head_dim}"
        )
    block = KEY_BLOCK[head_dim]
    tile_heads = heads_of_a_tile(heads, key_heads)
    tile_rows = TILE_ROWS // tile_heads
    if batch_invariant:
        if CHUNK_ROWS % tile_rows:
            raise NotImplementedError(
                f"fork_attention by pallas is batch-invariant where a tile has at most {CHUNK_ROWS} rows, "
                f"not with {tile_rows} of {tile_heads} heads"
            )
        splits = 1

    if not finite:
        key, value = without_broken_values(key, value)
    keys = max(block, -(-key.shape[0] // STRIP) * STRIP)
    key, value, query = _padded(key, keys), _padded(value, keys), _padded(query, -(-rows // tile_rows) * tile_rows)
    if splits is None:
        tiles = query.shape[0] // tile_rows * heads // tile_heads
        splits = _splits(tiles, keys, 0 if cached is None else cached.rows, block)
    blocking = Blocking(
        query_shape=query.shape,
        key_heads=key_heads,
        key_block=block,
        tile_heads=tile_heads,
        splits=splits,
        cached=cached is not None,
        scale=scale,
        interpret=interpret,
    )
    runs = tile_runs(spans, cached, rows=tile_rows, block=block)
    table = units.unit_table(
        runs,
        block=block,
        head_tiles=blocking.head_tiles,
        splits=splits,
        multiprocessors=3 if interpret else MULTIPROCESSORS,
    )
    operands = [table, _visible(runs, blocking), query, key, value]
    if cached is not None:
        page_rows = (cached.key.shape[0] * PAGE_ROWS, *key.shape[1:])
        operands += [jnp.asarray(cached.table), *(jnp.reshape(x, page_rows) for x in (cached.key, cached.value))]
    with interpreted(interpret):
        out = kernel(blocking, table.shape)(*operands)
    return (out if splits == 1 else _combined(blocking, *out).astype(query.dtype))[:rows]


def heads_of_a_tile(heads: int, key_heads: int) -> int:
    """Query heads in one tile: a power of two that divides the group, so that tiles are whole."""
    return math.gcd(heads // key_heads, 16)


def _splits(tiles: int, stream_rows: int, cached_rows: int, block: int) -> int:
    """How many units the keys of each of `tiles` tiles are best divided over, counted in the time of one key block.

    It follows from shapes alone, so from the capacity and not from a segment: the grid and the size of the partial sums
    are static in an executable, and one executable runs all rounds of a capacity. A row's last bits may so differ from
    capacity to capacity; where they must not, batch-invariant, nobody asks here and there is one split.

    All tiles of a request meet its cached keys, so their lists are about equally long, and a round of units that fills
    a third of the card takes as long as a full one. Of the stream a tile meets half on the average, at most all of it.
    """
    cached, stream = min(cached_rows, USUAL_CACHED_ROWS) / block, stream_rows / block

    def cost(splits: int) -> float:
        rounds = -(-tiles * splits // MULTIPROCESSORS)
        shared = max(stream / splits, stream / 2 * tiles / MULTIPROCESSORS)
        # Each unit writes its sums, and two more launches read them all.
        partial = 1.5 * rounds + 4.0 + 0.025 * tiles * splits if splits > 1 else 0.0
        return rounds * (cached / splits + 1.5) + shared + partial

    return min(range(1, MOST_SPLITS + 1), key=cost)


def without_broken_values(
    key: Float[Array, "T KV D"], value: Float[Array, "T KV D"]
) -> tuple[Float[Array, "T KV D"], Float[Array, "T KV D"]]:
    """A value that is not finite moves to its key, where a mask can hide it; a zero weight could not: 0 * NaN is NaN.

    Channel by channel, so that XLA can do it where keys and values are made.
    """
    finite = jnp.isfinite(value)
    return jnp.where(finite, key, jnp.nan), jnp.where(finite, value, 0)


def _padded(x: Float[Array, "N heads D"], rows: int) -> Float[Array, "rows heads D"]:
    """No copy for the rows of a stream at the released sizes; of read rows there may be one."""
    return jnp.pad(x, ((0, rows - x.shape[0]), (0, 0), (0, 0)))


def _visible(runs: TileRuns, blocking: Blocking) -> Int32[Array, "tiles columns 128"]:
    """Begin and length of what each row of the matrix unit sees of each source: head by head, the tile's rows."""
    columns = []
    for begin, end in zip(runs.visible_begin, runs.visible_end, strict=True):
        columns += [begin, end - begin]
    tiles, rows = columns[0].shape
    wide = [jnp.broadcast_to(x[:, None, :], (tiles, blocking.tile_heads, rows)) for x in columns]
    return jnp.stack(wide, axis=1).reshape(tiles, len(columns), TILE_ROWS)


def _combined(
    blocking: Blocking,
    summed: Float[Array, "splits tiles head_tiles 128 D"],
    maximum: Float[Array, "splits tiles head_tiles 128"],
    total: Float[Array, "splits tiles head_tiles 128"],
) -> Float[Array, "N H D"]:
    """Softmax over all splits from the sums of each."""
    weight = jnp.exp2(maximum - jnp.max(maximum, axis=0, keepdims=True))
    weight = jnp.where(maximum <= HIDDEN, 0, weight)
    total = jnp.sum(weight * total, axis=0)
    mean = jnp.sum(weight[..., None] * summed, axis=0) / jnp.where(total == 0, 1, total)[..., None]
    tiles, head_tiles, rows = blocking.tiles, blocking.head_tiles, blocking.tile_rows
    mean = mean.reshape(tiles, head_tiles, blocking.tile_heads, rows, blocking.head_dim)
    return mean.transpose(0, 3, 1, 2, 4).reshape(blocking.query_shape)
