"""All rows at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.precision import accumulation_dtype


def rms_norm(
    x: Float[Array, "N width"], weight: Float[Array, " width"], *, epsilon: float, batch_invariant: bool = False
) -> Float[Array, "N width"]:
    """See `api.rms_norm`."""
    wide = x.astype(accumulation_dtype(x.dtype))
    normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)
    return (normed * (1 + weight.astype(wide.dtype))[None]).astype(x.dtype)
