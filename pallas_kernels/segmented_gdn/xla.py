"""The gated delta rule chunk by chunk: runs anywhere and is differentiable.

Chunks are brought into a form without a state all at once; a scan carries the states from chunk to chunk, over those
chunks alone whose state something reads; with the states known, all outputs are computed at once.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int32

from pallas_kernels import dispatch
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments

type _Pair = tuple[Array, Array]
type _Slots = tuple[Float[Array, "_ nv dv dk"], ...]
"""The arrays whose slots are counted through: `states`, and the pool where there is one."""


class _Chunk(NamedTuple):
    """Chunks in the WY form, heads first. With the state S before a chunk,

    V' = U - W S^T,   O = Q~ S^T + M V',   S <- a S + V'^T K~
    """

    u: Float[Array, "*C nv rows dv"]
    w: Float[Array, "*C nv rows dk"]
    query: Float[Array, "*C nv rows dk"]
    mix: Float[Array, "*C nv rows rows"]
    key: Float[Array, "*C nv rows dk"]
    decay: Float[Array, "*C nv"]


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
    """See `api.segmented_gdn`. Products and solves are of one chunk's shape, however many there are.

    Raises NotImplementedError: batch-invariant elsewhere than on a CPU, whose library takes them one by one.
    """
    if batch_invariant:
        dispatch.check_batch_invariant("segmented_gdn", "xla", on_cpu=True)
    count, group = segments.chunk_length.shape[0], value.shape[1] // key.shape[1]
    segment, used = jnp.asarray(segments.chunk_segment), jnp.asarray(segments.chunk_length) > 0

    def by_chunk(x: Array) -> Array:
        chunks = jnp.moveaxis(x.astype(states.dtype).reshape(count, CHUNK_ROWS, *x.shape[1:]), 1, 2)
        # Unused chunks may hold NaN. No output needs this, but in a gradient zero times NaN would reach the states.
        return jnp.where(used.reshape(count, *(1,) * x.ndim), chunks, 0)

    chunks = _wy_form(
        scale * jnp.repeat(by_chunk(query), group, axis=1),
        jnp.repeat(by_chunk(key), group, axis=1),
        by_chunk(value),
        by_chunk(log_decay),
        by_chunk(write_strength),
    )
    number = jnp.arange(count, dtype=jnp.int32)
    begins = number == segments.first_chunk[segment]
    ends = number == segments.first_chunk[segment] + (segments.length[segment] - 1) // CHUNK_ROWS
    initial = segments.initial_slot[segment]
    final = jnp.where(ends & used, segments.final_slot[segment], -1)
    # Read later: the state after a chunk that others follow (a full one), or that a slot keeps.
    read_later = used & (~ends | (final >= 0))

    full_chunks = segments.chunk_row.shape[0] // CHUNK_ROWS
    slots: tuple[Array, ...] = (states,) if pool is None else (states, pool)
    before, slots = _scan_states(chunks, slots, begins, initial, final, read_later, full_chunks)
    corrected = chunks.u - _product("chik,chvk->chiv", chunks.w, before)
    out = _product("chik,chvk->chiv", chunks.query, before) + _product("chij,chjv->chiv", chunks.mix, corrected)
    return jnp.moveaxis(out, 2, 1).astype(value.dtype).reshape(value.shape), *slots


def _scan_states(
    chunks: _Chunk,
    slots: _Slots,
    begins: Bool[Array, " C"],
    initial: Int32[Array, " C"],
    final: Int32[Array, " C"],
    read_later: Bool[Array, " C"],
    full_chunks: int,
) -> tuple[Float[Array, "C nv dv dk"], _Slots]:
    """The state before every chunk, and the slots after all of them. `full_chunks` bounds those without padding."""
    count, slot_count = read_later.shape[0], sum(array.shape[0] for array in slots)
    # At most one chunk for each slot is kept at the end of a segment.
    scanned = jnp.nonzero(read_later, size=min(count, full_chunks + slot_count), fill_value=count)[0]
    begins_there, initial_there, final_there = (
        x.at[scanned].get(mode="fill", fill_value=fill) for x, fill in ((begins, False), (initial, -1), (final, -1))
    )

    def one_chunk(carry: tuple[_Slots, Array], item: tuple[_Chunk, Array, Array, Array]) -> tuple[Any, _Pair]:
        slots, state = carry
        chunk, begins, initial, final = item
        state = jnp.where(begins, _start(slots, initial), state)
        corrected = chunk.u - _product("hik,hvk->hiv", chunk.w, state)
        after = chunk.decay[:, None, None] * state + _product("hiv,hik->hvk", corrected, chunk.key)
        return (_keep(slots, final, after), after), (state, after)

    items = (
        jax.tree.map(lambda x: x.at[scanned].get(mode="fill", fill_value=0), chunks),
        begins_there,
        initial_there,
        final_there,
    )
    (slots, _), (before, after) = jax.lax.scan(one_chunk, (slots, jnp.zeros_like(slots[0][0])), items)
    # The others are last chunks of segments that keep no state. They follow a scanned chunk, or read a slot whose
    # value is final by then.
    kept = read_later.astype(jnp.int32)
    rank = jnp.cumsum(kept) - kept
    unscanned = jnp.where(begins[:, None, None, None], _start(slots, initial), after[jnp.maximum(rank - 1, 0)])
    before = jnp.where(read_later[:, None, None, None], before[jnp.minimum(rank, before.shape[0] - 1)], unscanned)
    return before, slots


def _start(slots: _Slots, slot: Int32[Array, "*C"]) -> Float[Array, "*C nv dv dk"]:
    """The state in a slot; zero for -1."""
    state, first = jnp.zeros((), slots[0].dtype), 0
    for array in slots:
        here = (slot >= first) & (slot < first + array.shape[0])
        state = jnp.where(here.reshape(*slot.shape, 1, 1, 1), array[jnp.where(here, slot - first, 0)], state)
        first += array.shape[0]
    return state


def _keep(slots: _Slots, slot: Int32[Array, ""], state: Float[Array, "nv dv dk"]) -> _Slots:
    """The slots with a state written to one of them; -1 stands for none."""
    written, first = [], 0
    for array in slots:
        here = (slot >= first) & (slot < first + array.shape[0])
        written.append(array.at[jnp.where(here, slot - first, array.shape[0])].set(state, mode="drop"))
        first += array.shape[0]
    return tuple(written)


def _wy_form(
    q: Float[Array, "C nv rows dk"],
    k: Float[Array, "C nv rows dk"],
    v: Float[Array, "C nv rows dv"],
    g: Float[Array, "C nv rows"],
    e: Float[Array, "C nv rows"],
) -> _Chunk:
    """With c the cumulative log decay of a chunk and L_ij = exp(c_i - c_j) for i >= j, zero above:

    A_ij = e_i (k_i . k_j) L_ij for i > j,   (I + A) U = e V,   (I + A) W = e exp(c) K
    Q~ = exp(c) Q,   M = Q K^T * L,   K~ = exp(c_last - c) K,   a = exp(c_last)
    """
    rows = k.shape[2]
    c = jnp.cumsum(g, axis=2)
    lower = jnp.tril(jnp.ones((rows, rows), bool))[None, None]
    # The mask comes before exp: above the diagonal the difference is positive and may overflow.
    decay = jnp.exp(jnp.where(lower, c[..., :, None] - c[..., None, :], -jnp.inf))
    system = jnp.tril(e[..., None] * _product("chik,chjk->chij", k, k) * decay, -1)
    right = jnp.concatenate([e[..., None] * v, (e * jnp.exp(c))[..., None] * k], axis=-1)
    # unit_diagonal: the ones of I + A are implied
    solved = jax.scipy.linalg.solve_triangular(system, right, lower=True, unit_diagonal=True)
    return _Chunk(
        u=solved[..., : v.shape[-1]],
        w=solved[..., v.shape[-1] :],
        query=jnp.exp(c)[..., None] * q,
        mix=_product("chik,chjk->chij", q, k) * decay,
        key=jnp.exp(c[..., -1:] - c)[..., None] * k,
        decay=jnp.exp(c[..., -1]),
    )


def _product(subscripts: str, left: Array, right: Array) -> Array:
    return jnp.einsum(subscripts, left, right, precision="highest")
