"""One row at a time, each reading its predecessors through the index; then each row to its place in the chunks."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.precision import accumulation_dtype
from pallas_kernels.segmented_conv.metadata import L2_NORM_EPSILON, ConvOutput, ConvWeights
from pallas_kernels.segmented_gdn.metadata import Segments


def segmented_conv(
    mixed: Float[Array, "T width"],
    write_logit: Float[Array, "T nv"],
    decay_input: Float[Array, "T nv"],
    weights: ConvWeights,
    predecessors: Int32[Array, "T earlier"],
    segments: Segments,
    *,
    windows: Float[Array, "slots earlier channels"] | None = None,
    key_heads: int,
    key_dim: int,
) -> ConvOutput:
    """See `api.segmented_conv`."""
    dtype = accumulation_dtype(mixed.dtype)
    m = mixed[:, : weights.taps.shape[1]].astype(dtype)
    earlier_rows = m if windows is None else jnp.concatenate([m, windows.reshape(-1, m.shape[1]).astype(dtype)])
    taps = weights.taps.astype(dtype)
    value_heads = write_logit.shape[1]

    def one_row(row: Array, before: Array, b: Array, a: Array) -> tuple[Array, ...]:
        y = taps[-1] * row
        for i in range(taps.shape[0] - 1):
            y = y + taps[i] * jnp.where(before[i] < 0, 0, earlier_rows[before[i]])
        y = y / (1 + jnp.exp(-y))
        q, k, v = jnp.split(y, [key_heads * key_dim, 2 * key_heads * key_dim])
        q, k = q.reshape(key_heads, key_dim), k.reshape(key_heads, key_dim)
        q = q / jnp.sqrt(jnp.sum(q * q, axis=-1, keepdims=True) + L2_NORM_EPSILON)
        k = k / jnp.sqrt(jnp.sum(k * k, axis=-1, keepdims=True) + L2_NORM_EPSILON)
        log_decay = -jnp.exp(weights.log_decay_rate.astype(dtype)) * jnp.logaddexp(
            a + weights.decay_bias.astype(dtype), jnp.zeros_like(a)
        )
        return (*(x.astype(mixed.dtype) for x in (q, k, v.reshape(value_heads, -1))), log_decay, 1 / (1 + jnp.exp(-b)))

    operands = jax.vmap(one_row)(m, predecessors, write_logit.astype(dtype), decay_input.astype(dtype))
    stream_rows = segments.stream_rows()

    def in_chunk_rows(x: Array) -> Array:
        padding = (stream_rows < 0).reshape(-1, *(1,) * (x.ndim - 1))
        return jnp.where(padding, 0, x[stream_rows])

    return ConvOutput(*map(in_chunk_rows, operands))
