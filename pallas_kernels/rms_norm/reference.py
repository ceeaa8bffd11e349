"""One row at a time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.precision import accumulation_dtype


def rms_norm(
    x: Float[Array, "N width"], weight: Float[Array, " width"], *, epsilon: float, batch_invariant: bool = False
) -> Float[Array, "N width"]:
    """See `api.rms_norm`."""
    dtype = accumulation_dtype(x.dtype)

    def one_row(row: Array) -> Array:
        row = row.astype(dtype)
        normed = row / jnp.sqrt(jnp.mean(row * row) + epsilon) * (1 + weight.astype(dtype))
        return normed.astype(x.dtype)

    return jax.lax.map(one_row, x)
