"""The product of XLA, which is a library's on a GPU."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.precision import accumulation_dtype


def matmul(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    *,
    residual: Float[Array, "M N"] | None = None,
    swiglu: bool = False,
) -> Float[Array, "M columns"]:
    """See `api.matmul`. The order over K is the library's, and may differ from one M to another."""
    dtype = accumulation_dtype(x.dtype)
    precision = None if x.dtype == jnp.bfloat16 else jax.lax.Precision.HIGHEST  # float32 is not cut to TF32
    sums = jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), precision=precision, preferred_element_type=dtype)
    if swiglu:
        gate, up = jnp.split(sums, 2, axis=-1)
        sums = jax.nn.silu(gate) * up
    if residual is not None:
        sums = residual.astype(dtype) + sums
    return sums.astype(x.dtype)
