"""The convolution tap by tap, over all rows at once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.precision import accumulation_dtype
from pallas_kernels.segmented_conv.metadata import L2_NORM_EPSILON, ConvOutput, ConvWeights


def segmented_conv(
    mixed: Float[Array, "T channels"],
    write_logit: Float[Array, "T nv"],
    decay_input: Float[Array, "T nv"],
    weights: ConvWeights,
    predecessors: Int32[Array, "T earlier"],
    *,
    key_heads: int,
    key_dim: int,
) -> ConvOutput:
    """See `api.segmented_conv`."""
    rows, value_heads = write_logit.shape
    dtype = accumulation_dtype(mixed.dtype)
    taps = weights.taps.astype(dtype)
    m = mixed.astype(dtype)  # before the gather: its transpose adds up rows, in this dtype
    convolved = m * taps[None, :, -1]
    for i in range(taps.shape[1] - 1):  # a sum, not a product of matrices: that might be cut to TF32
        before = predecessors[:, i]
        convolved = convolved + jnp.where(before[:, None] < 0, 0, m[before]) * taps[None, :, i]
    activated = jax.nn.silu(convolved)

    key_channels = key_heads * key_dim
    query, key, value = jnp.split(activated, [key_channels, 2 * key_channels], axis=1)
    decay_rate = jnp.exp(weights.log_decay_rate.astype(dtype))[None]
    decay_bias = weights.decay_bias.astype(dtype)[None]
    return ConvOutput(
        query=_l2_normalise(query.reshape(rows, key_heads, key_dim)).astype(mixed.dtype),
        key=_l2_normalise(key.reshape(rows, key_heads, key_dim)).astype(mixed.dtype),
        value=value.reshape(rows, value_heads, -1).astype(mixed.dtype),
        log_decay=-decay_rate * jax.nn.softplus(decay_input.astype(dtype) + decay_bias),
        write_strength=jax.nn.sigmoid(write_logit.astype(dtype)),
    )


def _l2_normalise(x: Float[Array, "T nk dk"]) -> Float[Array, "T nk dk"]:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + L2_NORM_EPSILON)
