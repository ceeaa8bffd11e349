"""Arguments and results of the segmented convolution that travel together."""

import dataclasses

import jax
from jaxtyping import Array, Float

# Added to the sum of squares inside the root, as the released models were trained with.
L2_NORM_EPSILON = 1e-6


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ConvWeights:
    """Per-channel taps (the last one weighs the row itself) and the parameters of the decay gate."""

    taps: Float[Array, "taps channels"]
    log_decay_rate: Float[Array, " nv"]
    decay_bias: Float[Array, " nv"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ConvOutput:
    """Operands of the gated delta rule, in the chunk rows of `Segments`.

    q, k and v are in the dtype of the rows; log a (<= 0) and e in float32 at least.
    """

    query: Float[Array, "chunk_rows nk dk"]
    key: Float[Array, "chunk_rows nk dk"]
    value: Float[Array, "chunk_rows nv dv"]
    log_decay: Float[Array, "chunk_rows nv"]
    write_strength: Float[Array, "chunk_rows nv"]
