"""The gates of the delta rule in chunk rows, by XLA: they are small."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.precision import accumulation_dtype
from pallas_kernels.segmented_conv.metadata import ConvWeights
from pallas_kernels.segmented_gdn.metadata import Segments


def gates(
    write_logit: Float[Array, "T nv"], decay_input: Float[Array, "T nv"], weights: ConvWeights, segments: Segments
) -> tuple[Float[Array, "N nv"], Float[Array, "N nv"]]:
    """log a and e of every chunk row, zero in padding; float32 at least."""
    dtype = accumulation_dtype(write_logit.dtype)
    stream_rows = segments.stream_rows()
    padding, here = (stream_rows < 0)[:, None], jnp.maximum(stream_rows, 0)
    rate, bias = (x.astype(dtype)[None] for x in (weights.log_decay_rate, weights.decay_bias))
    log_decay = -jnp.exp(rate) * jax.nn.softplus(decay_input[here].astype(dtype) + bias)
    write_strength = jax.nn.sigmoid(write_logit[here].astype(dtype))
    return jnp.where(padding, 0, log_decay), jnp.where(padding, 0, write_strength)
