"""Norm and rotation for Hopper in Pallas Mosaic GPU: a block has some rows of one head in registers.

Columns are in pieces as wide as there are frequencies, so that the two dims of a pair are the same place of two pieces.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.mosaic import interpreted, normed_rows

ROWS = 32  # of a block
PIECE = 32  # columns, and frequencies
ALIGNMENT = 8  # columns that are loaded and stored at a time
MOST_DIMS = 256  # of a head: what the registers hold
# Eight rows a warp; four lanes have a row's columns, 8 each, for loads and stores of 16 bytes.
LAYOUT = plgpu.Layout.TILED(
    plgpu.Tiling(((ROWS, PIECE), (8, PIECE), (8,))),
    warp_dims=(-5,),
    lane_dims=(-3, -2),
    vector_dim=-1,
)


@functools.partial(
    jax.jit, static_argnames=("heads", "begin", "value_begin", "epsilon", "interpret")
)  # lowered once for all layers
def rotary_norm(
    projected: Float[Array, "N width"],
    weight: Float[Array, " D"],
    cos: Float[Array, "N frequencies"],
    sin: Float[Array, "N frequencies"],
    *,
    heads: int,
    begin: int,
    value_begin: int | None = None,
    epsilon: float,
    interpret: bool = False,
) -> tuple[Float[Array, "N heads D"], ...]:
    """See `api.rotary_norm`.

    Raises:
        NotImplementedError: not bfloat16, other than 32 frequencies, heads that are no multiple of 32 dims or have more
            than 256, columns that no 16 bytes begin at, or fewer than 32 rows.
    """
    (rows, width), dims = projected.shape, weight.shape[0]
    if projected.dtype != jnp.bfloat16:
        raise NotImplementedError(f"rotary_norm by pallas is for bfloat16, not {projected.dtype}")
    if rows < ROWS or cos.shape[1] != PIECE or dims % PIECE or dims > MOST_DIMS:
        raise NotImplementedError(
            f"rotary_norm by pallas has {ROWS} rows or more, {PIECE} frequencies and heads of a multiple of {PIECE} "
            f"dims up to {MOST_DIMS}, not {rows}, {cos.shape[1]} and {dims}"
        )
    if any(column % ALIGNMENT for column in (width, begin, value_begin or 0)):
        raise NotImplementedError(f"rotary_norm by pallas has rows and heads that begin at multiples of {ALIGNMENT}")
    begins = (begin,) if value_begin is None else (begin, value_begin)
    call = _kernel(rows, heads, dims, begins, epsilon)
    with interpreted(interpret):
        return tuple(call(projected, *(x.astype(jnp.float32) for x in (weight, cos, sin))))


def _kernel(rows: int, heads: int, dims: int, begins: tuple[int, ...], epsilon: float) -> Any:
    def body(projected: Any, weight: Any, cos: Any, sin: Any, *results: Any) -> None:
        # The last block begins earlier where rows are no multiple of 32: some rows are written twice, and alike.
        block = pl.ds(jnp.minimum(lax.axis_index("block") * ROWS, rows - ROWS), ROWS)
        head = lax.axis_index("head")
        pieces = range(0, dims, PIECE)

        def load(begin: int) -> list[Array]:
            columns = [pl.ds(pl.multiple_of(begin + head * dims + piece, ALIGNMENT), PIECE) for piece in pieces]
            return [plgpu.load(projected.at[block, its], layout=LAYOUT, optimized=False) for its in columns]

        def store(result: Any, found: list[Array]) -> None:
            for piece, x in zip(pieces, found, strict=True):
                result.at[block, head, pl.ds(piece, PIECE)][...] = x.astype(jnp.bfloat16)

        x = list(normed_rows(load(begins[0]), weight, epsilon=epsilon, layout=LAYOUT))
        turns = [plgpu.load(table.at[block, pl.ds(0, PIECE)], layout=LAYOUT, optimized=False) for table in (cos, sin)]
        x[:2] = x[0] * turns[0] - x[1] * turns[1], x[1] * turns[0] + x[0] * turns[1]
        if len(begins) > 1:
            values = [value.astype(jnp.float32) for value in load(begins[1])]
            finite = [jnp.abs(value) < jnp.inf for value in values]
            x = [jnp.where(its, piece, jnp.nan) for its, piece in zip(finite, x, strict=True)]
            store(results[1], [jnp.where(its, value, 0.0) for its, value in zip(finite, values, strict=True)])
        store(results[0], x)

    return plgpu.kernel(
        body,
        out_type=tuple(jax.ShapeDtypeStruct((rows, heads, dims), jnp.bfloat16) for _ in begins),
        grid=(-(-rows // ROWS), heads),
        kernel_name="rotary_norm",
        grid_names=("block", "head"),
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            lowering_semantics=plgpu.LoweringSemantics.Lane,
            unsafe_no_auto_barriers=True,  # nothing is both read and written
        ),
    )
