"""The scan that carries states from chunk to chunk, one launch for each level of segments.

A block walks one run of the schedule: chunk after chunk, across borders of segments and heads. Its last warpgroup
only copies operands into a ring of shared memory; each other warpgroup carries the state S of 64 value dimensions,
[64, dk], in registers, where it is both the float32 accumulator and, cast, the left operand of every product:

U = (V^T - exp(c) S K^T) system^T,   O = scale exp(c) S Q^T + U mix^T,   S <- exp(c_last) S + (exp(c_last - c) U) K

all transposed, [64, rows]: no product waits for another warp. Outputs leave through a transposed store.

In float32 are the state that is carried and kept in slots, its decays and gates, and every sum of products. In bfloat16
are operands: S for each chunk, V - exp(c) K S^T, U with and without its gates, and what `pallas_solve` leaves. Against
float64 on the same inputs in bfloat16 all of this together, and rounding the outputs, is an error of 3.35e-3 in the
outputs and of 2.3e-3 in the final states (root mean square over that of the value; case "multirc"), where
flash-linear-attention's kernels have 3.57e-3 and 2.9e-3: `experiments/results/kernel_peers.jsonl`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Int32

from pallas_kernels.mosaic import SWIZZLED
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from pallas_kernels.segmented_gdn.pallas_solve import products, zeros

SLICE = 64  # value dimensions of one warpgroup
STAGES = 2  # chunks in the ring
# Registers of a thread. Two scanning warpgroups and the copying one share 504 for three threads.
SCAN_REGISTERS, COPY_REGISTERS = 240, 24

# Columns of the schedule; the values of START and FINISH beside slot numbers; the bits of BITS.
CHUNK, START, FINISH, BITS = range(4)
NO_SLOT, GOES_ON = -1, -2
RELOAD, RELEASE, LAST = 1, 2, 4

_MATRIX = plgpu.Layout.WGMMA
_BY_COLUMN = _MATRIX.reduce(0)
_TILE_FLOAT32 = (plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]


def scan(
    schedule: Int32[Array, "C 4"],
    runs: Int32[Array, " run"],
    operands: tuple[Array, ...],
    out_ref: Any,
    slots_refs: Sequence[Any],
    *,
    scale: float,
    slices: int,
    interpret: bool,
) -> None:
    """Scan the segments of one level; writes their rows of `out_ref` and their final slots of `slots_refs`.

    Args:
        schedule: entries of all levels, one a chunk: its number; the slot that its segment starts from here (-1: zero),
            or -2 in the middle of a segment; the slot that keeps the state after it (-1: none), or -2 where the
            segment goes on; bits: load the slot into the shared buffer, the buffer is free from this chunk on, the
            level ends here.
        runs: block x has the steps `runs[x]` to `runs[x + 1]`; then the number of entries of this level and the first.
            Step s is entry s % entries of the (head, slice of dv) pair s // entries.
        operands: query, key [chunk rows, nk, dk], value [chunk rows, nv, dv], system, mix and gates (see `solve`).
        out_ref, slots_refs: [chunk rows, nv, dv] bfloat16, and one or two arrays of slots [slots, nv, dv, dk] float32
            that are counted through; updated in place.
        slices: warpgroups that share a block's operands, each with SLICE dimensions of dv.
    """
    query, key, value = operands[:3]
    blocks, rows, dk = runs.shape[0] - 3, CHUNK_ROWS, key.shape[2]
    value_heads, dv = value.shape[1:]
    group, parts = value_heads // key.shape[1], dv // (slices * SLICE)
    slot_arrays = len(slots_refs)  # the slots of this call, and the pool where there is one

    def kernel(
        schedule_ref: Any,
        runs_ref: Any,
        query_ref: Any,
        key_ref: Any,
        value_ref: Any,
        system_ref: Any,
        mix_ref: Any,
        gates_ref: Any,
        out_ref: Any,
        *refs: Any,
    ) -> None:
        slots_refs, scratch = refs[:slot_arrays], refs[slot_arrays:]
        queries, keys, values, systems, mixes, gates, notes, buffer, outs, *barriers = scratch
        full, empty, buffer_full, buffer_free = barriers
        block, warpgroup = lax.axis_index("block"), lax.axis_index("warpgroup")
        begin, end = runs_ref[block], runs_ref[block + 1]
        entries, first_entry = runs_ref[blocks + 1], runs_ref[blocks + 2]
        first_pair = lax.div(begin, jnp.maximum(entries, 1))

        def head_and_slice(pair: Array, part: Array | int) -> tuple[Array, Any]:
            number = lax.rem(pair, jnp.int32(parts)) * slices + part
            return lax.div(pair, jnp.int32(parts)), pl.ds(pl.multiple_of(number * SLICE, SLICE), SLICE)

        def rows_of(chunk: Array) -> Any:
            return pl.ds(pl.multiple_of(chunk * rows, rows), rows)

        def in_slot(slot: Array, action: Callable[[Any, Array], None]) -> None:
            """Calls `action` with the array that holds a slot, and the slot's number there."""
            states_ref, *pool = slots_refs
            slot, first = jnp.maximum(slot, 0), states_ref.shape[0]
            if not pool:
                action(states_ref, slot)
                return
            pl.when(slot < first)(lambda: action(states_ref, slot))
            pl.when(slot >= first)(lambda: action(pool[0], slot - first))

        def reloads(step: Array, start: Array, bits: Array) -> Array:
            return (start >= 0) & (((bits & RELOAD) != 0) | (step == begin))

        @pl.when(warpgroup < slices)
        def carry_states() -> None:
            plgpu.set_max_registers(SCAN_REGISTERS, action="increase")
            out = outs.at[warpgroup]

            def column_vector(vector: Array) -> Array:
                return lax.broadcast_in_dim(vector, (SLICE, rows), [1])

            def one_chunk(step: Array, carry: tuple[Any, ...]) -> tuple[Any, ...]:
                state, pair = carry
                slot = lax.rem(step - begin, jnp.int32(STAGES))
                head, value_slice = head_and_slice(pair, warpgroup)
                plgpu.barrier_wait(full.at[slot])
                chunk, start, finish, bits = (notes[slot, column] for column in (CHUNK, START, FINISH, BITS))

                @pl.when(reloads(step, start, bits))
                def wait_for_buffer() -> None:
                    plgpu.barrier_wait(buffer_full)

                # Branches rather than a product with zero, which would keep the NaN of the segment before.
                state = lax.cond(
                    start == GOES_ON,
                    lambda: state,
                    lambda: lax.cond(
                        start >= 0,
                        lambda: plgpu.load(buffer.at[warpgroup], layout=_MATRIX),
                        lambda: zeros(SLICE, dk),
                    ),
                )

                @pl.when((bits & RELEASE) != 0)
                def release_buffer() -> None:
                    plgpu.barrier_arrive(buffer_free)

                system, chunk_keys = systems.at[slot].transpose((1, 0)), keys.at[slot]
                decay = plgpu.load(gates.at[slot, 0], layout=_BY_COLUMN)
                operand = state.astype(jnp.bfloat16)  # of products alone; for its error see the top of this file
                read, written = products(
                    interpret,
                    (zeros(SLICE, rows), [(operand, chunk_keys.transpose((1, 0)))]),
                    (zeros(SLICE, rows), [(values.at[slot, warpgroup].transpose((1, 0)), system)]),
                )
                erased = (read * column_vector(-decay)).astype(jnp.bfloat16)
                written, answer = products(
                    interpret,
                    (written, [(erased, system)]),
                    (zeros(SLICE, rows), [(operand, queries.at[slot].transpose((1, 0)))]),
                )
                answer = answer * column_vector(decay * scale)
                mixed = [(written.astype(jnp.bfloat16), mixes.at[slot].transpose((1, 0)))]

                def with_state() -> tuple[Array, Array]:
                    left = plgpu.load(gates.at[slot, 1], layout=_BY_COLUMN)
                    update = (written * column_vector(left)).astype(jnp.bfloat16)
                    kept = state * gates[slot, 0, rows - 1]
                    after, total = products(interpret, (kept, [(update, chunk_keys)]), (answer, mixed))
                    return after, total

                def without_state() -> tuple[Array, Array]:
                    (total,) = products(interpret, (answer, mixed))
                    return state, total

                state, answer = lax.cond(finish == NO_SLOT, without_state, with_state)
                plgpu.barrier_arrive(empty.at[slot])

                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                out.transpose((1, 0))[...] = plgpu.layout_cast(answer.astype(jnp.bfloat16), _MATRIX)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(out, out_ref.at[rows_of(chunk), head, value_slice])

                def store(slots_ref: Any, number: Array) -> None:
                    slots_ref.at[number, head, value_slice][...] = state

                @pl.when(finish >= 0)
                def keep_state() -> None:
                    in_slot(finish, store)

                return state, pair + (bits & LAST) // LAST

            lax.fori_loop(begin, end, one_chunk, (zeros(SLICE, dk), first_pair))
            plgpu.wait_smem_to_gmem(0)

        @pl.when(warpgroup == slices)
        def copy_operands() -> None:
            plgpu.set_max_registers(COPY_REGISTERS, action="decrease")

            def one_chunk(step: Array, carry: tuple[Array, ...]) -> tuple[Array, ...]:
                pair, entry, loads, releases = carry
                chunk, start, bits = (schedule_ref[entry, column] for column in (CHUNK, START, BITS))
                slot = lax.rem(step - begin, jnp.int32(STAGES))
                head, _ = head_and_slice(pair, 0)
                key_head = lax.div(head, jnp.int32(group))
                arrived = full.at[slot]

                @pl.when(step - begin >= STAGES)
                def wait_for_slot() -> None:
                    plgpu.barrier_wait(empty.at[slot])

                plgpu.copy_gmem_to_smem(schedule_ref.at[entry], notes.at[slot, pl.ds(0, 4)], arrived)
                plgpu.copy_gmem_to_smem(key_ref.at[rows_of(chunk), key_head], keys.at[slot], arrived)
                plgpu.copy_gmem_to_smem(system_ref.at[head, chunk], systems.at[slot], arrived)
                plgpu.copy_gmem_to_smem(gates_ref.at[head, chunk], gates.at[slot], arrived)
                for part in range(slices):
                    source = value_ref.at[rows_of(chunk), head, head_and_slice(pair, part)[1]]
                    plgpu.copy_gmem_to_smem(source, values.at[slot, part], arrived)
                plgpu.copy_gmem_to_smem(query_ref.at[rows_of(chunk), key_head], queries.at[slot], arrived)
                plgpu.copy_gmem_to_smem(mix_ref.at[head, chunk], mixes.at[slot], arrived)

                reload = reloads(step, start, bits)

                @pl.when(reload)
                def load_buffer() -> None:
                    @pl.when(loads > 0)
                    def wait_for_buffer() -> None:
                        plgpu.barrier_wait(buffer_free)

                    def load(slots_ref: Any, number: Array) -> None:
                        for part in range(slices):
                            source = slots_ref.at[number, head, head_and_slice(pair, part)[1]]
                            plgpu.copy_gmem_to_smem(source, buffer.at[part], buffer_full)

                    in_slot(start, load)

                loads = loads + reload.astype(jnp.int32)
                releases = releases + ((bits & RELEASE) != 0).astype(jnp.int32)
                wraps = (bits & LAST) // LAST
                return pair + wraps, entry + 1 - wraps * entries, loads, releases

            zero, entry = jnp.int32(0), first_entry + begin - first_pair * entries
            *_, loads, releases = lax.fori_loop(begin, end, one_chunk, (first_pair, entry, zero, zero))

            # Observe the last arrivals, which nothing waits for: interpret mode insists, and a device does not mind.
            @pl.when((releases > 0) & (releases == loads))
            def last_release() -> None:
                plgpu.barrier_wait(buffer_free)

            def last_slots(step: Array, _: None) -> None:
                plgpu.barrier_wait(empty.at[lax.rem(step - begin, jnp.int32(STAGES))])

            lax.fori_loop(jnp.maximum(end - STAGES, begin), end, last_slots, None)

    def tile(*shape: int) -> Any:
        return plgpu.SMEM(shape, jnp.bfloat16, transforms=SWIZZLED)

    plgpu.kernel(
        kernel,
        grid=(blocks,),
        grid_names=("block",),
        num_threads=slices + 1,
        thread_name="warpgroup",
        kernel_name="segmented_gdn_scan",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        scratch_types=[
            tile(STAGES, rows, dk),
            tile(STAGES, rows, dk),
            tile(STAGES, slices, rows, SLICE),
            tile(STAGES, rows, rows),
            tile(STAGES, rows, rows),
            plgpu.SMEM((STAGES, 2, rows), jnp.float32),
            plgpu.SMEM((STAGES, 32), jnp.int32),  # an entry of the schedule, at the 128 bytes that TMA asks for
            plgpu.SMEM((slices, SLICE, dk), jnp.float32, transforms=_TILE_FLOAT32),
            tile(slices, rows, SLICE),
            plgpu.Barrier(num_arrivals=6 + slices, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=slices, num_barriers=STAGES),
            plgpu.Barrier(num_arrivals=slices),
            plgpu.Barrier(num_arrivals=slices),
        ],
    )(schedule, runs, *operands, out_ref, *slots_refs)
