"""All rows at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.precision import accumulation_dtype


def rms_norm(
    x: Float[Array, "N width"], weight: Float[Array, " width"], *, epsilon: float, batch_invariant: bool = False
) -> Float[Array, "N width"]:
    """See `api.rms_norm`."""
    return normed(x, weight, epsilon=epsilon).astype(x.dtype)


def normed(
    x: Float[Array, "*axes width"], weight: Float[Array, " width"], *, epsilon: float
) -> Float[Array, "*axes width"]:
    """The same over the last axis of any array, not rounded yet: in float32, or float64 where `x` is."""
    x = x.astype(accumulation_dtype(x.dtype))
    scale = (1 + weight.astype(x.dtype)).reshape((1,) * (x.ndim - 1) + weight.shape)
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale
