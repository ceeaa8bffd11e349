"""The convolution tap by tap, over all stream rows at once; the results are gathered to chunk rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.precision import accumulation_dtype
from pallas_kernels.segmented_conv.gates import gates
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
    rows, value_heads = write_logit.shape
    dtype = accumulation_dtype(mixed.dtype)
    taps = weights.taps.astype(dtype)
    m = mixed[:, : taps.shape[1]].astype(dtype)  # before the gather: its transpose adds up rows, in this dtype
    earlier_rows = m if windows is None else jnp.concatenate([m, windows.reshape(-1, m.shape[1]).astype(dtype)])
    convolved = m * taps[-1][None]
    for i in range(taps.shape[0] - 1):  # a sum, not a product of matrices: that might be cut to TF32
        before = predecessors[:, i]
        convolved = convolved + jnp.where(before[:, None] < 0, 0, earlier_rows[before]) * taps[i][None]
    activated = jax.nn.silu(convolved)

    key_channels = key_heads * key_dim
    query, key, value = jnp.split(activated, [key_channels, 2 * key_channels], axis=1)
    log_decay, write_strength = gates(write_logit, decay_input, weights, segments)

    in_chunk_rows = segments.in_chunk_rows  # last, since there are more chunk rows than stream rows
    return ConvOutput(
        query=in_chunk_rows(_l2_normalise(query.reshape(rows, key_heads, key_dim)).astype(mixed.dtype)),
        key=in_chunk_rows(_l2_normalise(key.reshape(rows, key_heads, key_dim)).astype(mixed.dtype)),
        value=in_chunk_rows(value.reshape(rows, value_heads, -1).astype(mixed.dtype)),
        log_decay=log_decay,
        write_strength=write_strength,
    )


def _l2_normalise(x: Float[Array, "T nk dk"]) -> Float[Array, "T nk dk"]:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + L2_NORM_EPSILON)
