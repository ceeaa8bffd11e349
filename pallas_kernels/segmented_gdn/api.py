"""The gated delta rule over segments of a forked stream, each from an indexed initial state (Eq. 4)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import dispatch, operands
from pallas_kernels.dispatch import Implementation
from pallas_kernels.segmented_gdn import pallas, reference, triton, xla
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments

__all__ = ["CHUNK_ROWS", "IMPLEMENTATIONS", "Segments", "segmented_gdn"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.segmented_gdn,
    "xla": xla.segmented_gdn,
    "pallas": pallas.segmented_gdn,
    "triton": triton.segmented_gdn,
}


@operands.checked(alike=("query", "key", "value"), accumulated=("log_decay", "write_strength", "states", "pool"))
def segmented_gdn(
    query: Float[Array, "chunk_rows nk dk"],
    key: Float[Array, "chunk_rows nk dk"],
    value: Float[Array, "chunk_rows nv dv"],
    log_decay: Float[Array, "chunk_rows nv"],
    write_strength: Float[Array, "chunk_rows nv"],
    states: Float[Array, "slots nv dv dk"],
    segments: Segments,
    *,
    pool: Float[Array, "pool_slots nv dv dk"] | None = None,
    scale: float,
    batch_invariant: bool = False,
    implementation: Implementation = None,
) -> tuple[Float[Array, "chunk_rows nv dv"], *tuple[Float[Array, "_ nv dv dk"], ...]]:
    """S_t = a_t S_{t-1} (I - e_t k_t k_t^T) + e_t v_t k_t^T and o_t = scale S_t q_t, segment by segment.

    Operands and outputs are in the chunk rows of `Segments`, as `segmented_conv` returns them: padding rows of used
    chunks must be zero, for a zero row leaves a state as it is. Rows of unused chunks may hold anything.

    Args:
        query, key: l2-normalised; value head h uses query and key head h // (nv / nk).
        value: values.
        log_decay: log a <= 0, float32 (float64 for float64 operands), as `states` and `write_strength`.
        write_strength: e in 0..1.
        states: the slots that segments name; S is [dv, dk] as in the paper.
        segments: lengths, slots and chunks.
        pool: more slots, which the segments name behind those of `states`. An accelerator's kernel writes them in place
            if the caller donates them.
        scale: factor of the output.
        batch_invariant: the bits of a row depend on its own segment up to the row and on the initial state, and neither
            on where the segment stands nor on what stands beside it.
        implementation: "reference", "xla", "pallas", "triton", or None for the best that can run.

    Returns:
        The outputs in the dtype of `value`, unspecified in padding rows, and `states` with the final states written,
        then `pool` likewise where there is one. A row is influenced by the rows of its own segment and by its initial
        state alone.

    Raises:
        ValueError: shapes other than these, or dtypes: queries, keys and values share theirs; nv is not a multiple of
            nk; the rows are not those of the chunk list, or the slots not those of `segments`; or, in arrays on the
            host, segments that do not fit together or name slots that there are not.
    """
    if not key.shape[1] or value.shape[1] % key.shape[1]:
        raise ValueError(f"segmented_gdn: {value.shape[1]} value heads are not a multiple of {key.shape[1]} key heads")
    if states.shape[0] != segments.slots:
        raise ValueError(f"segmented_gdn: states of {states.shape[0]} slots, segments of {segments.slots}")
    slots = segments.slots + (0 if pool is None else pool.shape[0])
    segments.check("segmented_gdn", chunk_rows=value.shape[0], slots=slots)
    segments = jax.tree.map(jnp.asarray, segments)
    return dispatch.run(
        "segmented_gdn",
        IMPLEMENTATIONS,
        implementation,
        query,
        key,
        value,
        log_decay,
        write_strength,
        states,
        segments,
        pool=pool,
        scale=scale,
        batch_invariant=batch_invariant,
    )
