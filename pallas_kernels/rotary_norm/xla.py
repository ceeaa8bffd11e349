"""All rows at once."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.precision import accumulation_dtype
from pallas_kernels.rms_norm.xla import normed


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
) -> tuple[Float[Array, "N heads D"], ...]:
    """See `api.rotary_norm`."""
    dtype, dims, half = accumulation_dtype(projected.dtype), weight.shape[0], cos.shape[1]

    def of_heads(begin: int) -> Array:
        return projected[:, begin : begin + heads * dims].reshape(-1, heads, dims)

    turned = normed(of_heads(begin), weight, epsilon=epsilon)
    cos, sin = cos.astype(dtype)[:, None], sin.astype(dtype)[:, None]
    first, second, rest = turned[..., :half], turned[..., half : 2 * half], turned[..., 2 * half :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
    turned = turned.astype(projected.dtype)
    if value_begin is None:
        return (turned,)
    value = of_heads(value_begin)
    finite = jnp.isfinite(value)
    return jnp.where(finite, turned, jnp.nan), jnp.where(finite, value, 0)
