"""The product of XLA, which is a library's on a GPU."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import dispatch
from pallas_kernels.precision import accumulation_dtype

BLOCK_ROWS = 64  # of x, where the number of rows must not change how a row is summed


def matmul(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    *,
    residual: Float[Array, "M N"] | None = None,
    swiglu: bool = False,
    batch_invariant: bool = False,
) -> Float[Array, "M columns"]:
    """See `api.matmul`. The order over K is the library's, and may differ from one M to another.

    Raises NotImplementedError: batch-invariant elsewhere than on a CPU.
    """
    if not batch_invariant:
        return _product(x, weight, residual, swiglu)
    dispatch.check_batch_invariant("matmul", "xla", on_cpu=True)
    rows = x.shape[0]
    blocks = -(-rows // BLOCK_ROWS)

    def in_blocks(operand: Array | None) -> Array | None:
        if operand is None:
            return None
        padded = jnp.pad(operand, ((0, blocks * BLOCK_ROWS - rows), (0, 0)))
        return padded.reshape(blocks, BLOCK_ROWS, operand.shape[1])

    out = jax.lax.map(lambda block: _product(block[0], weight, block[1], swiglu), (in_blocks(x), in_blocks(residual)))
    return out.reshape(blocks * BLOCK_ROWS, out.shape[2])[:rows]


def _product(
    x: Float[Array, "M K"], weight: Float[Array, "N K"], residual: Float[Array, "M N"] | None, swiglu: bool
) -> Float[Array, "M columns"]:
    dtype = accumulation_dtype(x.dtype)
    precision = None if x.dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST  # float32 is not cut to TF32
    sums = jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=dtype)
    if swiglu:
        gate, up = jnp.split(sums, 2, axis=-1)
        sums = jax.nn.silu(gate) * up
    if residual is not None:
        sums = residual.astype(dtype) + sums
    return sums.astype(x.dtype)
