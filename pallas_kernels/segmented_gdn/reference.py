"""Eq. 4 as it is written: one token after another."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import dispatch
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments


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
) -> tuple[Float[Array, "chunk_rows nv dv"], *tuple[Float[Array, "_ nv dv dk"], ...]]:
    """See `api.segmented_gdn`. Reads where segments begin and end, not how they are cut.

    Raises NotImplementedError: batch-invariant.
    """
    if batch_invariant:
        dispatch.check_batch_invariant("segmented_gdn", "reference")
    dtype = states.dtype
    slots = states if pool is None else jnp.concatenate([states, pool])
    rows, group = value.shape[0], value.shape[1] // key.shape[1]
    q = scale * jnp.repeat(query.astype(dtype), group, axis=1)
    k = jnp.repeat(key.astype(dtype), group, axis=1)
    v = value.astype(dtype)

    # For each row: does a segment begin or end here, and which?
    used = segments.length > 0
    begin = CHUNK_ROWS * segments.first_chunk
    first = jnp.where(used, begin, rows)
    last = jnp.where(used, begin + segments.length - 1, rows)
    number = jnp.arange(used.shape[0], dtype=jnp.int32)
    begins = jnp.full(rows, -1, jnp.int32).at[first].set(number, mode="drop")
    ends = jnp.full(rows, -1, jnp.int32).at[last].set(number, mode="drop")

    def one_row(carry: tuple[Array, Array], row: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        slots, state = carry
        q_t, k_t, v_t, g_t, e_t, begins_t, ends_t = row
        initial = segments.initial_slot[begins_t]
        fresh = jnp.where(initial < 0, 0, slots[initial])
        state = jnp.where(begins_t < 0, state, fresh)

        a, e = jnp.exp(g_t)[:, None, None], e_t[:, None, None]
        erased = state - e * jnp.einsum("hvk,hk,hj->hvj", state, k_t, k_t, precision="highest")
        state = a * erased + e * v_t[:, :, None] * k_t[:, None, :]

        final = jnp.where(ends_t < 0, -1, segments.final_slot[ends_t])
        slots = slots.at[jnp.where(final < 0, slots.shape[0], final)].set(state, mode="drop")
        return (slots, state), jnp.einsum("hvk,hk->hv", state, q_t, precision="highest")

    carry = (slots, jnp.zeros(states.shape[1:], dtype))
    per_row = (q, k, v, log_decay.astype(dtype), write_strength.astype(dtype), begins, ends)
    (slots, _), out = jax.lax.scan(one_row, carry, per_row)
    in_call = states.shape[0]
    return out.astype(value.dtype), *((slots,) if pool is None else (slots[:in_call], slots[in_call:]))
