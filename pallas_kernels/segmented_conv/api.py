"""What stands before the delta rule: short convolution by predecessor index, SiLU, l2 norm and gates."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from pallas_kernels import dispatch, operands
from pallas_kernels.dispatch import Implementation
from pallas_kernels.segmented_conv import pallas, reference, xla
from pallas_kernels.segmented_conv.metadata import ConvOutput, ConvWeights
from pallas_kernels.segmented_gdn.metadata import Segments

__all__ = ["IMPLEMENTATIONS", "ConvOutput", "ConvWeights", "segmented_conv"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.segmented_conv,
    "xla": xla.segmented_conv,
    "pallas": pallas.segmented_conv,
}


@operands.checked(alike=("mixed", "windows"))
def segmented_conv(
    mixed: Float[Array, "T width"],
    write_logit: Float[Array, "T nv"],
    decay_input: Float[Array, "T nv"],
    weights: ConvWeights,
    predecessors: Int32[jax.Array | np.ndarray, "T earlier"],
    segments: Segments,
    *,
    windows: Float[Array, "slots earlier channels"] | None = None,
    key_heads: int,
    key_dim: int,
    implementation: Implementation = None,
) -> ConvOutput:
    """Queries, keys, values and gates of the delta rule: stream rows in, chunk rows out.

    y_t = silu(sum_i w[:, i] m[row i of t]), split into q | k | v; q and k divided by sqrt(sum of squares + 1e-6);
    e = sigmoid(write_logit); log a = -exp(log_decay_rate) softplus(decay_input + decay_bias).

    Args:
        mixed: projected rows m before the convolution, channels q (nk * dk) | k (nk * dk) | v (nv * dv). Columns beyond
            the channels of the taps are not read, so that a projection's output need not be cut.
        write_logit: input of the write strength e.
        decay_input: input of the log decay log a.
        weights: convolution taps and gate parameters.
        predecessors: stream rows that stand taps-1, .., 2, 1 tokens before each row in its own text, oldest first;
            -1 stands for zeros before the first token. A branch's first rows point at the last rows of its state:
            that is the whole fork of a convolution. State of three rows 0 1 2, then a branch of two, taps = 4:

                row            0           1            2           3          4
                predecessors   -1 -1 -1    -1 -1 0      -1 0 1      0 1 2      1 2 3

            An index of T or more is row index - T of `windows`, whose slots are counted through: the first row of a
            state that goes on from slot 1 has predecessors T + 3, T + 4, T + 5.
        segments: the chunk rows (`Segments`) in which the recurrence reads its operands.
        windows: the last projected rows of states that were read in earlier calls, oldest first, in the dtype of
            `mixed`.
        key_heads, key_dim: nk and dk.
        implementation: "reference", "xla", "pallas", or None for the best that can run.

    Returns:
        The operands in chunk rows. Padding rows of used chunks are zero, which to the recurrence is no row at all; rows
        of unused chunks are zero too, or unspecified in an accelerator's kernel.

    Raises:
        ValueError: shapes or dtypes other than these, fewer columns than channels, channels that do not divide into q,
            k and v, `predecessors` of other taps; or, in arrays on the host, segments that do not fit together or
            predecessors that there are not.
    """
    channels, value_heads = weights.taps.shape[1], write_logit.shape[1]
    value_channels = channels - 2 * key_heads * key_dim
    none = value_channels <= 0 or min(key_heads, key_dim, value_heads) < 1
    if none or value_channels % value_heads or value_heads % key_heads:
        raise ValueError(
            f"segmented_conv: {channels} channels do not hold {key_heads} query and key heads of {key_dim} "
            f"and {value_heads} value heads"
        )
    if mixed.shape[1] < channels:
        raise ValueError(f"segmented_conv: rows of {mixed.shape[1]} columns, taps of {channels} channels")
    taps, (rows, earlier) = weights.taps.shape[0], predecessors.shape
    if earlier != taps - 1:
        raise ValueError(f"segmented_conv: {earlier} predecessors of a row for {taps} taps")
    segments.check("segmented_conv")
    kept = 0 if windows is None else windows.shape[0] * earlier
    operands.check_values("segmented_conv", {"predecessors": (predecessors, -1, rows + kept - 1)})
    return dispatch.run(
        "segmented_conv",
        IMPLEMENTATIONS,
        implementation,
        mixed,
        write_logit,
        decay_input,
        weights,
        jnp.asarray(predecessors),
        segments,
        windows=windows,
        key_heads=key_heads,
        key_dim=key_dim,
    )
