"""The Gated DeltaNet layer over a forked stream (paper Eq. 4)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int32

from flide_jax.array_types import Predecessors
from flide_jax.layout.growth import GrowthMetadata
from flide_jax.models.params import Param
from flide_jax.models.pool import StateSlots
from pallas_kernels import ConvWeights, Segments, gated_norm, matmul, segmented_conv, segmented_gdn
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
    conv_taps: Param  # [taps, conv channels]
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
    residual: Float[Array, "N d"],
    rows: Int32[Array, " N"] | None = None,
    slots: StateSlots | None = None,
    growth: GrowthMetadata | None = None,
    epsilon: float,
    batch_invariant: bool = False,
    implementation: Implementation = None,
) -> tuple[Float[Array, "N d"], StateSlots | None]:
    """`residual` + convolution, delta rule, gated norm and output projection.

    The recurrence needs every row of `hidden`; what follows it runs at `rows` only, or everywhere (N = T) when it is
    None. Gates, decay, states and norm are float32 at least. In a growing round, states start from and end in `slots`,
    which are returned with what is kept.
    """
    multiply = functools.partial(matmul, batch_invariant=batch_invariant, implementation=implementation)
    projected = checkpoint_name(multiply(hidden, params.in_proj), "in_proj")
    gate_begin = config.conv_channels
    write_begin = gate_begin + config.value_channels
    write_logit, decay_input = jnp.split(projected[:, write_begin:], 2, axis=1)
    with jax.named_scope("segmented_conv"):
        operands = segmented_conv(
            projected,
            write_logit,
            decay_input,
            ConvWeights(taps=params.conv_taps, log_decay_rate=params.log_decay_rate, decay_bias=params.decay_bias),
            predecessors,
            segments,
            windows=None if slots is None else slots.windows,
            key_heads=config.key_heads,
            key_dim=config.key_dim,
            implementation=implementation,
        )
    if slots is not None and growth is not None:
        # Written when they have been read, so that no version is copied, and beside the recurrence, which waits for
        # none of it.
        operands, slots = lax.optimization_barrier((operands, slots))
        slots = slots.keep_windows(projected, growth)
    operands = checkpoint_name(operands, "convolution")
    with jax.named_scope("segmented_gdn"):
        out, *states = segmented_gdn(
            operands.query,
            operands.key,
            operands.value,
            operands.log_decay,
            operands.write_strength,
            # Not filled: every slot that is read is written before.
            lax.empty((segments.slots, config.value_heads, config.value_dim, config.key_dim), params.norm.dtype),
            segments,
            pool=None if slots is None else slots.states,
            scale=config.key_dim**-0.5,
            batch_invariant=batch_invariant,
            implementation=implementation,
        )
    if slots is not None:
        # And not later, for the projected rows stay where they are until then.
        out, slots = lax.optimization_barrier((out, StateSlots(states=states[-1], windows=slots.windows)))
    out = checkpoint_name(out, "recurrence")
    with jax.named_scope("gated_norm"):
        normed = gated_norm(
            out,
            projected,
            params.norm,
            segments,
            gate_begin=gate_begin,
            rows=rows,
            epsilon=epsilon,
            implementation=implementation,
        )
    normed = checkpoint_name(normed, "gated_norm")
    return checkpoint_name(multiply(normed, params.out_proj, residual=residual), "out_proj"), slots
