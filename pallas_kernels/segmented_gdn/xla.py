"""The gated delta rule chunk by chunk: runs anywhere and is differentiable."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments

# State slots, the state of the segment that is being scanned, outputs so far.
type _Carry = tuple[Array, Array, Array]


class _Chunk(NamedTuple):
    """The rows of one chunk, heads first; rows past its length are zero."""

    query: Float[Array, "nv rows dk"]
    key: Float[Array, "nv rows dk"]
    value: Float[Array, "nv rows dv"]
    log_decay: Float[Array, "nv rows"]
    write_strength: Float[Array, "nv rows"]


def segmented_gdn(
    query: Float[Array, "T nk dk"],
    key: Float[Array, "T nk dk"],
    value: Float[Array, "T nv dv"],
    log_decay: Float[Array, "T nv"],
    write_strength: Float[Array, "T nv"],
    states: Float[Array, "slots nv dv dk"],
    segments: Segments,
    *,
    scale: float,
) -> tuple[Float[Array, "T nv dv"], Float[Array, "slots nv dv dk"]]:
    """See `api.segmented_gdn`. Scans the chunk list; an unused entry costs nothing."""
    rows, value_heads, value_dim = value.shape
    slot_count = states.shape[0]
    group = value_heads // key.shape[1]
    offsets = jnp.arange(CHUNK_ROWS, dtype=jnp.int32)

    def one_chunk(carry: _Carry, chunk: tuple[Array, ...]) -> tuple[_Carry, None]:
        slots, state, out = carry
        segment, begin, length = chunk
        segment_begin = segments.begin[segment]
        inside = offsets < length
        chunk_rows = jnp.where(inside, begin + offsets, rows)  # `rows`: gathers a zero, drops on scatter

        def take(x: Array) -> Array:
            taken = x.at[chunk_rows].get(mode="fill", fill_value=0)
            return jnp.moveaxis(taken, 0, 1).astype(states.dtype)

        initial = segments.initial_slot[segment]
        fresh = jnp.where(initial < 0, 0, slots[initial])
        state = jnp.where(begin == segment_begin, fresh, state)

        def compute(state: Array) -> tuple[Array, Array]:
            return _chunk_step(
                state,
                _Chunk(
                    query=scale * jnp.repeat(take(query), group, axis=0),
                    key=jnp.repeat(take(key), group, axis=0),
                    value=take(value),
                    log_decay=take(log_decay),
                    write_strength=take(write_strength),
                ),
            )

        def skip(state: Array) -> tuple[Array, Array]:
            return state, jnp.zeros((value_heads, CHUNK_ROWS, value_dim), states.dtype)

        state, chunk_out = jax.lax.cond(length > 0, compute, skip, state)
        out = out.at[chunk_rows].set(jnp.moveaxis(chunk_out, 1, 0).astype(out.dtype), mode="drop")
        ends = (length > 0) & (begin + length == segment_begin + segments.length[segment])
        final = jnp.where(ends, segments.final_slot[segment], -1)
        slots = slots.at[jnp.where(final < 0, slot_count, final)].set(state, mode="drop")
        return (slots, state, out), None

    carry = (states, jnp.zeros(states.shape[1:], states.dtype), jnp.zeros_like(value))
    chunks = tuple(map(jnp.asarray, (segments.chunk_segment, segments.chunk_begin, segments.chunk_length)))
    (states, _, out), _ = jax.lax.scan(one_chunk, carry, chunks)
    return out, states


def _chunk_step(
    state: Float[Array, "nv dv dk"], chunk: _Chunk
) -> tuple[Float[Array, "nv dv dk"], Float[Array, "nv rows dv"]]:
    """All rows of a chunk at once (the WY form): with c the cumulative log decay and L_ij = exp(c_i - c_j), i >= j,

    A_ij = e_i (k_i . k_j) L_ij for i > j,   (I + A) U = e V,   (I + A) W = e exp(c) K
    V' = U - W S^T,   O = exp(c) Q S^T + (Q K^T * L) V',   S <- exp(c_last) S + V'^T (exp(c_last - c) K)
    """
    q, k, v, g, e = chunk
    rows = k.shape[1]
    c = jnp.cumsum(g, axis=1)
    lower = jnp.tril(jnp.ones((rows, rows), bool))[None]
    # The mask comes before exp: above the diagonal the difference is positive and may overflow.
    decay = jnp.exp(jnp.where(lower, c[:, :, None] - c[:, None, :], -jnp.inf))
    system = jnp.tril(e[:, :, None] * _product("hik,hjk->hij", k, k) * decay, -1)
    right = jnp.concatenate([e[:, :, None] * v, (e * jnp.exp(c))[:, :, None] * k], axis=-1)
    # unit_diagonal: the ones of I + A are implied
    solved = jax.scipy.linalg.solve_triangular(system, right, lower=True, unit_diagonal=True)
    u, w = jnp.split(solved, [v.shape[-1]], axis=-1)

    corrected = u - _product("hik,hvk->hiv", w, state)
    from_state = jnp.exp(c)[:, :, None] * _product("hik,hvk->hiv", q, state)
    out = from_state + _product("hij,hjv->hiv", _product("hik,hjk->hij", q, k) * decay, corrected)
    remaining = jnp.exp(c[:, -1:] - c)[:, :, None] * k
    state = jnp.exp(c[:, -1])[:, None, None] * state + _product("hiv,hik->hvk", corrected, remaining)
    return state, out


def _product(subscripts: str, left: Array, right: Array) -> Array:
    return jnp.einsum(subscripts, left, right, precision="highest")
