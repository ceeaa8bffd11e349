"""One row at a time, one product after the other."""

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
    batch_invariant: bool = False,
) -> Float[Array, "M columns"]:
    """See `api.matmul`. K is met in its order, in each of M times K steps: batch-invariant or not, it is the same."""
    dtype = accumulation_dtype(x.dtype)
    by_depth = weight.T.astype(dtype)

    def add(sums: Array, term: tuple[Array, Array]) -> tuple[Array, None]:
        factor, weights = term
        return sums + factor * weights, None

    def one_row(operands: tuple[Array, Array | None]) -> Array:
        row, addend = operands
        sums, _ = jax.lax.scan(add, jnp.zeros(weight.shape[0], dtype), (row.astype(dtype), by_depth))
        if swiglu:
            gate, up = jnp.split(sums, 2)
            sums = gate / (1 + jnp.exp(-gate)) * up
        if addend is not None:
            sums = addend.astype(dtype) + sums
        return sums.astype(x.dtype)

    return jax.lax.map(one_row, (x, residual))
