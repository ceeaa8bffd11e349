"""The norm for Hopper in Pallas Mosaic GPU: a warp has one row in registers, and sums it in one order."""

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.mosaic import interpreted, normed_rows

ROWS = 4  # of a block, one for each warp
PIECE = 256  # columns that a warp's 32 lanes hold, 8 each, for loads and stores of 16 bytes
# Pieces whose weights are loaded before one of them is stored: a load behind a store waits for it, for the two might
# overlap, and the weights of all pieces are too many registers.
TOGETHER = 4
MOST_COLUMNS = 20 * PIECE  # what the registers hold
LAYOUT = plgpu.Layout.TILED(
    plgpu.Tiling(((ROWS, PIECE), (8,))),
    warp_dims=(-3,),
    lane_dims=(-2,),
    vector_dim=-1,
)


@functools.partial(jax.jit, static_argnames=("epsilon", "batch_invariant", "interpret"))  # lowered once for all layers
def rms_norm(
    x: Float[Array, "N width"],
    weight: Float[Array, " width"],
    *,
    epsilon: float,
    batch_invariant: bool = False,
    interpret: bool = False,
) -> Float[Array, "N width"]:
    """See `api.rms_norm`.

    Raises:
        NotImplementedError: not batch-invariant, where XLA's form is one launch, too; not bfloat16; rows that are no
            multiple of 256 columns or have more than 5,120; fewer than four rows.
    """
    rows, width = x.shape
    if not batch_invariant:
        raise NotImplementedError("rms_norm by pallas is for what has to be batch-invariant")
    if x.dtype != jnp.bfloat16:
        raise NotImplementedError(f"rms_norm by pallas is for bfloat16, not {x.dtype}")
    if rows < ROWS or width % PIECE or width > MOST_COLUMNS:
        raise NotImplementedError(
            f"rms_norm by pallas has {ROWS} rows or more of a multiple of {PIECE} columns, up to {MOST_COLUMNS}, "
            f"not {rows} of {width}"
        )
    with interpreted(interpret):
        return _kernel(rows, width, epsilon)(x, weight.astype(jnp.float32))


def _kernel(rows: int, width: int, epsilon: float) -> Any:
    def body(x: Any, weight: Any, result: Any) -> None:
        # The last block begins earlier where rows are no multiple of four: some rows are written twice, and alike.
        block = pl.ds(jnp.minimum(lax.axis_index("block") * ROWS, rows - ROWS), ROWS)
        columns = [pl.ds(begin, PIECE) for begin in range(0, width, PIECE)]
        pieces = [plgpu.load(x.at[block, some], layout=LAYOUT, optimized=False) for some in columns]
        normed = normed_rows(pieces, weight, epsilon=epsilon, layout=LAYOUT)
        for together in itertools.batched(zip(columns, normed, strict=True), TOGETHER):
            for some, piece in together:
                result.at[block, some][...] = piece.astype(jnp.bfloat16)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((rows, width), jnp.bfloat16),
        grid=(-(-rows // ROWS),),
        kernel_name="rms_norm",
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(
            approx_math=True,
            lowering_semantics=plgpu.LoweringSemantics.Lane,
            unsafe_no_auto_barriers=True,  # nothing is both read and written
        ),
    )
