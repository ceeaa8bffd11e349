"""The gated delta rule on Hopper (Pallas, Mosaic GPU): one solve of all chunks, then one scan for each level.

What no state enters is computed for all chunks side by side (`pallas_solve`). Then the states are carried along the
segments (`pallas_scan`): in a first launch along those that need no other segment of this call, in the next along those
that start from a slot the first has written, and so on. Grids are as large as the device, not as the capacity; a
schedule computed from the segments tells each block its share, so unused entries cost nothing and no other structure
compiles anew.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

from pallas_kernels.mosaic import MULTIPROCESSORS, interpreted
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments
from pallas_kernels.segmented_gdn.pallas_scan import GOES_ON, LAST, RELEASE, RELOAD, SLICE, scan
from pallas_kernels.segmented_gdn.pallas_solve import BLOCKS_PER_MULTIPROCESSOR, solve

# Warpgroups of a block that scan. Few long states: one, it has the block's memory and tensor core alone. Many short
# questions, which are the last level: two that share what the block loads.
STATE_SLICES, BRANCH_SLICES = 1, 2


@functools.partial(jax.jit, static_argnames=("scale", "batch_invariant", "interpret"))  # lowered once for all layers
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
    interpret: bool = False,
) -> tuple[Float[Array, "chunk_rows nv dv"], *tuple[Float[Array, "_ nv dv dk"], ...]]:
    """See `api.segmented_gdn`. Rows of padding in used chunks have to be zero; unused chunks are never read.

    Which block carries a segment, and after which others, depends on the round; how a chunk is computed does not, so
    that batch-invariant or not it is the same.

    `interpret` simulates the kernels on a CPU. The slots are updated in place where XLA can give `states` and `pool`
    away, else XLA copies them once: a caller that reads no slot which it does not write may pass uninitialised ones
    (`lax.empty`).

    Each of `segments.levels` is a launch of the scan, but for one less where further parts of a segment share its
    launch, as many as `segments.parts` allows; a segment of a level beyond them does not run at all.

    Raises NotImplementedError: operands other than bfloat16, gates or states other than float32, head dimensions other
    than 128.
    """
    _check(query, key, value, log_decay, write_strength, states)
    slot_arrays = (states,) if pool is None else (states, pool)
    chunks, value_heads = segments.chunk_length.shape[0], value.shape[1]
    blocks = 3 if interpret else MULTIPROCESSORS

    def by_head(x: Array) -> Array:
        return jnp.transpose(x.reshape(chunks, CHUNK_ROWS, value_heads), (2, 0, 1))

    schedule, runs = _schedule(segments, value_heads, value.shape[2], blocks)
    with interpreted(interpret):
        solved = solve(
            query,
            key,
            by_head(log_decay),
            by_head(write_strength),
            segments.used_chunks(),
            scale=scale,
            blocks=blocks * BLOCKS_PER_MULTIPROCESSOR,
            interpret=interpret,
        )
        # Every level writes its own rows and slots of the same arrays.
        out, slots = jax.new_ref(lax.empty(value.shape, value.dtype)), [jax.new_ref(array) for array in slot_arrays]
        for level, slices in enumerate(_slices(segments)):
            operands = (query, key, value, *solved)
            scan(schedule, runs[level], operands, out, slots, scale=scale, slices=slices, interpret=interpret)
        return jax.freeze(out), *map(jax.freeze, slots)


def _slices(segments: Segments) -> tuple[int, ...]:
    """Scanning warpgroups of each level; further parts are no level of their own."""
    return (*(segments.levels - segments.parts) * (STATE_SLICES,), BRANCH_SLICES)


def _check(query: Array, key: Array, value: Array, log_decay: Array, write_strength: Array, states: Array) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dtype != jnp.bfloat16 or x.shape[2] != 128:
            found = f"{x.dtype} with {x.shape[2]}"
            raise NotImplementedError(
                f"segmented_gdn, pallas: {name} has to be bfloat16 with 128 dimensions a head, it is {found}"
            )
    for name, x in (("log_decay", log_decay), ("write_strength", write_strength), ("states", states)):
        if x.dtype != jnp.float32:
            raise NotImplementedError(f"segmented_gdn, pallas: {name} has to be float32, it is {x.dtype}")


def _schedule(
    segments: Segments, value_heads: int, dv: int, blocks: int
) -> tuple[Int32[Array, "C 4"], Int32[Array, "levels run"]]:
    """The used chunks by level, and the share of each block; see `scan`. XLA merges these of all layers into one.

    A level has the same entries for each (head, slice) pair. All its steps in a row, pair by pair, are cut into equal
    shares, and each cut moves forward to the next border of a segment and its further parts, since a state stays in one
    block.
    """
    count, segment = segments.chunk_segment.shape[0], segments.chunk_segment
    number = jnp.arange(count, dtype=jnp.int32)
    used = segments.chunk_length > 0
    chunks = (segments.length + CHUNK_ROWS - 1) // CHUNK_ROWS
    offset = number - segments.first_chunk[segment]
    further = segments.further_parts()
    begins, ends = (offset == 0) & ~further[segment], offset == chunks[segment] - 1
    # A further part finds its state in the registers of the block that carried the part before.
    initial, final = jnp.where(further, -1, segments.initial_slot)[segment], segments.final_slot[segment]

    levels = len(_slices(segments))
    level = jnp.where(used, segments.level(parts_apart=False)[segment], levels)
    entries = jnp.sum(level[None] == jnp.arange(levels, dtype=jnp.int32)[:, None], axis=1, dtype=jnp.int32)
    first_entry = jnp.cumsum(entries) - entries
    order = jnp.argsort(level, stable=True)
    initial, level = initial[order], level[order]
    same_as_before = jnp.concatenate([jnp.zeros(1, bool), (initial[1:] == initial[:-1]) & (level[1:] == level[:-1])])
    same_as_after = jnp.concatenate([same_as_before[1:], jnp.zeros(1, bool)])
    begins, ends, final, offset = begins[order], ends[order], final[order], offset[order]
    reload = begins & (initial >= 0) & ~same_as_before
    release = ends & (initial >= 0) & ~same_as_after
    last = jnp.concatenate([level[1:] != level[:-1], jnp.ones(1, bool)])
    bits = sum(bit * x.astype(jnp.int32) for bit, x in ((RELOAD, reload), (RELEASE, release), (LAST, last)))
    columns = (
        order.astype(jnp.int32),
        jnp.where(begins, initial, GOES_ON),
        jnp.where(ends, final, GOES_ON),
        bits,
    )

    behind = jnp.zeros_like(chunks)  # chunks of the further parts behind each segment
    for _ in range(segments.parts - 1):
        behind = jnp.roll(jnp.where(further, chunks + behind, 0), -1)
    remaining = jnp.where(begins, 0, (chunks + behind)[segment[order]] - offset)  # entries to the next border
    runs = []
    for this_level, slices in enumerate(_slices(segments)):
        steps = entries[this_level] * (value_heads * dv // (slices * SLICE))
        cuts = jnp.arange(blocks + 1, dtype=jnp.int32) * steps // blocks
        entry = cuts % jnp.maximum(entries[this_level], 1)
        border = cuts + remaining[jnp.minimum(first_entry[this_level] + entry, count - 1)]
        cuts = jnp.where(cuts < steps, border, steps)
        runs.append(jnp.concatenate([cuts, entries[this_level][None], first_entry[this_level][None]]))
    return jnp.stack(columns, axis=1), jnp.stack(runs)
