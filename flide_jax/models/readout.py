"""From the hidden state at a read row to the logits of the labels (paper Eq. 1)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from flide_jax.array_types import Logits, RowHidden
from flide_jax.models.layers import rms_norm


def label_logits(
    hidden: RowHidden,
    norm: Float[Array, " d"],
    head: Float[Array, "L d"],
    *,
    epsilon: float,
    batch_invariant: bool = False,
) -> Logits:
    """w_o . rms(h) for every read row and label, in the dtype of `head` (float32 at least), not rounded in between.

    Batch-invariant, no library chooses an order over d by the number of rows.
    """
    normed = rms_norm(hidden, norm, epsilon=epsilon).astype(head.dtype)
    if batch_invariant:
        # The sum is a launch of its own. Fused with the norm, as it is in some capacities, it would be divided among
        # threads by the dtype of `hidden`, else by that of `head`.
        return jnp.sum(jax.lax.optimization_barrier(normed)[:, None] * head[None], axis=-1)
    return jnp.einsum("nd,ld->nl", normed, head, precision="highest")
