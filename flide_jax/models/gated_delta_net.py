"""The Gated DeltaNet layer over a forked stream (paper Eq. 4)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int32

from flide_jax.array_types import Predecessors
from flide_jax.models.layers import linear
from flide_jax.models.params import Param
from pallas_kernels import ConvWeights, Segments, segmented_conv, segmented_gdn
from pallas_kernels.dispatch import Implementation


@dataclasses.dataclass(frozen=True)
class GatedDeltaNetConfig:
    """Sizes: nk key heads of dk, nv value heads of dv, taps of the short convolution."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_taps: int

    @property
    def conv_channels(self) -> int:
        """Channels that pass the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def value_channels(self) -> int:
        """Channels of the values, of their gate and of the output."""
        return self.value_heads * self.value_dim


@struct.dataclass
class GatedDeltaNetParams:
    """Rows of `in_proj` are [q | k | v | output gate | write strength | decay]."""

    in_proj: Param  # [conv channels + nv dv + 2 nv, d]
    conv_taps: Param  # [conv channels, taps]
    log_decay_rate: Param  # [nv]
    decay_bias: Param  # [nv]
    norm: Param  # [dv]
    out_proj: Param  # [d, nv dv]


def gated_delta_net(
    params: GatedDeltaNetParams,
    hidden: Float[Array, "T d"],
    predecessors: Predecessors,
    segments: Segments,
    config: GatedDeltaNetConfig,
    *,
    rows: Int32[Array, " N"] | None = None,
    epsilon: float,
    implementation: Implementation = None,
) -> Float[Array, "N d"]:
    """Convolution, delta rule, gated norm and output projection.

    The recurrence needs every row of `hidden`; what follows it runs at `rows` only, or everywhere (N = T) when it is
    None. Gates, decay, states and norm are float32 at least.
    """
    projected = linear(hidden, params.in_proj)
    gate, write_logit, decay_input = jnp.split(
        projected[:, config.conv_channels :],
        [config.value_channels, config.value_channels + config.value_heads],
        axis=1,
    )
    with jax.named_scope("segmented_conv"):
        operands = segmented_conv(
            projected,
            write_logit,
            decay_input,
            ConvWeights(taps=params.conv_taps, log_decay_rate=params.log_decay_rate, decay_bias=params.decay_bias),
            jnp.asarray(predecessors),
            segments,
            key_heads=config.key_heads,
            key_dim=config.key_dim,
            implementation=implementation,
        )
    with jax.named_scope("segmented_gdn"):
        out, _ = segmented_gdn(
            operands.query,
            operands.key,
            operands.value,
            operands.log_decay,
            operands.write_strength,
            jnp.zeros((segments.slots, config.value_heads, config.value_dim, config.key_dim), params.norm.dtype),
            segments,
            scale=config.key_dim**-0.5,
            implementation=implementation,
        )
    # Back from chunk rows. A padding row of the stream takes some other row's output, and nothing reads it.
    chunk_row = jnp.asarray(segments.chunk_row)
    if rows is None:
        out = out[chunk_row]
    else:
        out, gate = out[chunk_row[rows]], gate[rows]
    gated = _gated_norm(out, gate.reshape(out.shape), params.norm, epsilon=epsilon)
    return linear(gated.reshape(-1, config.value_channels).astype(hidden.dtype), params.out_proj)


def _gated_norm(
    out: Float[Array, "N nv dv"], gate: Float[Array, "N nv dv"], weight: Float[Array, " dv"], *, epsilon: float
) -> Float[Array, "N nv dv"]:
    """rms(out) * weight * silu(gate): the norm comes before the gate, and its weight is centred at one."""
    out, gate = out.astype(weight.dtype), gate.astype(weight.dtype)
    normed = out * jax.lax.rsqrt(jnp.mean(out * out, axis=-1, keepdims=True) + epsilon)
    return normed * weight[None, None] * jax.nn.silu(gate)
