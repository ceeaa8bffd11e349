"""One head of one row at a time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.precision import accumulation_dtype


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

    def one_head(x: Array, cos: Array, sin: Array) -> Array:
        normed = x / jnp.sqrt(jnp.mean(x * x) + epsilon) * (1 + weight.astype(dtype))
        first, second = normed[:half], normed[half : 2 * half]
        turned = normed.at[:half].set(first * cos - second * sin)
        return turned.at[half : 2 * half].set(second * cos + first * sin)

    def one_row(operands: tuple[Array, Array, Array]) -> tuple[Array, ...]:
        row, cos, sin = operands
        x = row[begin : begin + heads * dims].reshape(heads, dims).astype(dtype)
        turned = jax.vmap(one_head, in_axes=(0, None, None))(x, cos.astype(dtype), sin.astype(dtype))
        if value_begin is None:
            return (turned.astype(row.dtype),)
        value = row[value_begin : value_begin + heads * dims].reshape(heads, dims)
        finite = jnp.isfinite(value)
        return jnp.where(finite, turned, jnp.nan).astype(row.dtype), jnp.where(finite, value, 0)

    return jax.lax.map(one_row, (projected, cos, sin))
