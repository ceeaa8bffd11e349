"""Fork attention for NVIDIA cards without wgmma, as a Triton kernel called through jax-triton.

One program takes one tile of query rows, times heads of one key head's group, and meets the key blocks of that tile
(`runs`): those that every row sees whole need no mask. There is one configuration for each head size and dtype, chosen
from what compilers say (registers, shared memory) and never by timing at run time: a round's bits are then the same in
every process, and compiling takes seconds. Over how many programs keys are split follows from the shapes of a capacity,
whose executable has one grid for all rounds.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from pallas_kernels import dispatch, triton
from pallas_kernels.fork_attention.metadata import PAGE_ROWS, CachedKeys, KeySpans
from pallas_kernels.fork_attention.pallas import without_broken_values
from pallas_kernels.fork_attention.runs import tile_runs

MULTIPROCESSORS = 108  # of an A100, the least of the cards that this is for and that have many
MOST_SPLITS = 8
STAGES = 2  # key blocks in flight


class _Tile(NamedTuple):
    rows: int  # query rows times heads
    block: int  # keys
    warps: int


# By dtype and head size: the largest tiles whose sums stay in registers (no spills in bfloat16) and whose shared memory
# is at most the 99 KB of the smaller cards (RTX 30 to 50). float32 is multiplied in three passes and is here for
# accuracy, not for speed.
TILES = {
    ("bfloat16", 64): _Tile(128, 64, 8),
    ("bfloat16", 128): _Tile(128, 64, 8),
    ("bfloat16", 256): _Tile(64, 32, 8),
    ("float32", 64): _Tile(64, 32, 8),
    ("float32", 128): _Tile(32, 32, 4),
    ("float32", 256): _Tile(16, 16, 8),
}


@functools.partial(
    jax.jit, static_argnames=("scale", "finite", "batch_invariant", "splits")
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
) -> Float[Array, "N H D"]:
    """See `api.fork_attention`.

    Args:
        splits: over how many programs the key blocks of a tile are divided, None for a number that fills the card when
            there are few rows. It depends on shapes alone.

    Raises:
        NotImplementedError: a dtype or head size without tiles, or a package is missing, or batch-invariant.
    """
    if batch_invariant:
        dispatch.check_batch_invariant("fork_attention", "triton")
    triton.check()
    from pallas_kernels.fork_attention.triton_kernels import attend

    rows, heads, head_dim = query.shape
    key_rows, key_heads, _ = key.shape
    tile = TILES.get((query.dtype.name, head_dim))
    if tile is None or not query.dtype == key.dtype == value.dtype:
        found = f"{query.dtype}, {key.dtype} and {value.dtype} of head size {head_dim}"
        raise NotImplementedError(f"fork_attention by triton has no tiles for {found}")
    # Heads of one tile: a power of two that divides the group, so that tiles are whole.
    tile_heads = math.gcd(heads // key_heads, 16)
    tile_rows = tile.rows // tile_heads
    tiles, head_tiles = -(-rows // tile_rows), heads // tile_heads
    cached_rows = 0 if cached is None else cached.rows
    if splits is None:
        most = (key_rows + cached_rows) // (4 * tile.block)
        splits = max(1, min(MOST_SPLITS, MULTIPROCESSORS // (tiles * head_tiles), most))

    runs = tile_runs(spans, cached, rows=tile_rows, block=tile.block)
    if not finite:
        key, value = without_broken_values(key, value)
    out, log_sums = triton.call(
        attend,
        *jax.tree.leaves(runs),
        query,
        key,
        value,
        *((None, None, None) if cached is None else map(jnp.asarray, (cached.table, cached.key, cached.value))),
        out_type=(
            jax.ShapeDtypeStruct((splits, *query.shape), query.dtype if splits == 1 else np.float32),
            jax.ShapeDtypeStruct((splits, rows, heads), np.float32),
        ),
        grid=(tiles, head_tiles, splits),
        warps=tile.warps,
        stages=STAGES,
        query_rows=rows,
        key_rows=key_rows,
        sources=runs.core_end.shape[0],
        page_rows=PAGE_ROWS,
        heads=heads,
        key_heads=key_heads,
        head_dim=head_dim,
        tile_rows=tile_rows,
        tile_heads=tile_heads,
        block=tile.block,
        splits=splits,
        scale=scale * math.log2(math.e),
        precision="tf32x3",
    )
    if splits == 1:
        return out[0]
    weights = jnp.exp2(log_sums - jnp.max(log_sums, axis=0, keepdims=True))
    summed = jnp.sum(weights[..., None] * out, axis=0) / jnp.sum(weights, axis=0)[..., None]
    return summed.astype(query.dtype)
