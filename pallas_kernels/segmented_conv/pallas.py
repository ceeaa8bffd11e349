"""The convolution for Hopper in Pallas Mosaic GPU: one pass over memory from projected rows to chunk rows.

A work item is one head (128 channels) of one chunk. Its rows, and before them the predecessors of its first row, are
copied into neighbouring rows of shared memory, so that every tap is the same block of rows, shifted. The small gates
are left to XLA.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

from pallas_kernels.mosaic import (
    HEAD_DIM,
    HEAD_ROWS,
    MULTIPROCESSORS,
    PIECE_ROWS,
    interpreted,
    repeated,
    sigmoid,
)
from pallas_kernels.segmented_conv.gates import gates
from pallas_kernels.segmented_conv.metadata import L2_NORM_EPSILON, ConvOutput, ConvWeights
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments

PROGRAMS = 4 * MULTIPROCESSORS  # what the registers allow
STAGES = 2  # work items in flight
ONE_ROW = plgpu.Layout.WG_STRIDED((HEAD_DIM,), 1)
LEAD = 8  # rows of shared memory before those of the chunk; the predecessors are the last of them


@functools.partial(jax.jit, static_argnames=("key_heads", "key_dim", "interpret"))  # lowered once for all layers
def segmented_conv(
    mixed: Float[Array, "T width"],
    write_logit: Float[Array, "T nv"],
    decay_input: Float[Array, "T nv"],
    weights: ConvWeights,
    predecessors: Int32[Array, "T earlier"],
    segments: Segments,
    *,
    windows: Float[Array, "slots earlier channels"] | None = None,
    key_heads: int,
    key_dim: int,
    interpret: bool = False,
) -> ConvOutput:
    """See `api.segmented_conv`. Rows of unused chunks are not written.

    Raises:
        NotImplementedError: not bfloat16, heads that are not 128 wide, one tap or more than 9, or fewer rows than a
            chunk.
    """
    rows, channels = mixed.shape[0], weights.taps.shape[1]
    value_heads, earlier = write_logit.shape[1], predecessors.shape[1]
    value_dim = (channels - 2 * key_heads * key_dim) // value_heads
    if mixed.dtype != jnp.bfloat16:
        raise NotImplementedError(f"segmented_conv by pallas is for bfloat16, not {mixed.dtype}")
    if not key_dim == value_dim == HEAD_DIM or not 0 < earlier <= LEAD or rows < CHUNK_ROWS:
        raise NotImplementedError(
            f"segmented_conv by pallas has heads of {HEAD_DIM}, 2 to {LEAD + 1} taps, {CHUNK_ROWS} rows or more, "
            f"not heads of {key_dim} and {value_dim}, {earlier + 1} taps and {rows} rows"
        )
    begin, length = jnp.asarray(segments.chunk_begin), jnp.asarray(segments.chunk_length)
    before = predecessors[begin]
    table = jnp.concatenate([begin[:, None], length[:, None], before], axis=1)
    sources = (mixed,) if windows is None else (mixed, windows.reshape(-1, channels))
    call = _kernel(begin.shape[0], key_heads, value_heads, earlier)
    with interpreted(interpret):
        query, key, value = call(segments.used_chunks(), table, *sources, weights.taps.astype(jnp.float32))
    log_decay, write_strength = gates(write_logit, decay_input, weights, segments)
    return ConvOutput(query, key, value, log_decay, write_strength)


def _kernel(chunks: int, key_heads: int, value_heads: int, earlier: int) -> Any:
    heads = 2 * key_heads + value_heads

    def body(used: Any, table: Any, mixed: Any, *refs: Any) -> None:
        *windows, taps, query, key, value, rows, full = refs  # no windows, or all of them as rows of one array
        program = lax.axis_index("program")
        items = used[0] * heads

        def copy_earlier(row: Array, columns: Any, place: Any, arrived: Any) -> None:
            """Copy one row that stands before a chunk, here or in a window."""

            def copy(source: Any, row: Array) -> None:
                plgpu.copy_gmem_to_smem(source.at[pl.ds(row, 1), columns], place, arrived)

            if not windows:
                copy(mixed, row)
                return
            pl.when(row < mixed.shape[0])(lambda: copy(mixed, row))
            pl.when(row >= mixed.shape[0])(lambda: copy(windows[0], row - mixed.shape[0]))

        def fetch(index: Array) -> None:
            """Copy the rows of the program's item `index`, if there is one."""
            item, slot = program + index * PROGRAMS, lax.rem(index, jnp.int32(STAGES))

            @pl.when(item < items)
            def _copy() -> None:
                chunk, head = lax.div(item, jnp.int32(heads)), lax.rem(item, jnp.int32(heads))
                columns = pl.ds(pl.multiple_of(head * HEAD_DIM, HEAD_DIM), HEAD_DIM)
                # All read before the first copy: a copy waits for all warps, and what is read behind it would, too.
                begin, before = table[chunk, 0], [table[chunk, 2 + number] for number in range(earlier)]
                for number, row in enumerate(before):
                    place = rows.at[slot, pl.ds(LEAD - earlier + number, 1)]
                    copy_earlier(jnp.maximum(row, 0), columns, place, full.at[slot])
                plgpu.copy_gmem_to_smem(
                    mixed.at[pl.ds(begin, CHUNK_ROWS), columns],
                    rows.at[slot, pl.ds(LEAD, CHUNK_ROWS)],
                    full.at[slot],
                )

        def convolve(index: Array, carry: Any) -> None:
            item, slot = program + index * PROGRAMS, lax.rem(index, jnp.int32(STAGES))
            chunk, head = lax.div(item, jnp.int32(heads)), lax.rem(item, jnp.int32(heads))
            columns = pl.ds(pl.multiple_of(head * HEAD_DIM, HEAD_DIM), HEAD_DIM)
            plgpu.barrier_wait(full.at[slot])

            # Predecessors that are missing are the oldest ones.
            @pl.when(table[chunk, 2] < 0)
            def _zero() -> None:
                for number in range(earlier):

                    @pl.when(table[chunk, 2 + number] < 0)
                    def _zero_row(number: int = number) -> None:
                        zeros = jnp.zeros((HEAD_DIM,), jnp.bfloat16)
                        rows[slot, LEAD - earlier + number] = plgpu.layout_cast(zeros, ONE_ROW)

                plgpu.commit_smem()

            def convolve_piece(number: Array, carry: Any) -> None:
                first = pl.multiple_of(number * PIECE_ROWS, PIECE_ROWS)
                summed = plgpu.layout_cast(jnp.zeros((PIECE_ROWS, HEAD_DIM), jnp.float32), HEAD_ROWS)
                for tap in range(earlier + 1):
                    shifted = plgpu.load(
                        rows.at[slot, pl.ds(first + LEAD - earlier + tap, PIECE_ROWS)], layout=HEAD_ROWS
                    )
                    weight = plgpu.load(taps.at[tap, columns], layout=HEAD_ROWS.reduce(0), optimized=False)
                    summed += shifted.astype(jnp.float32) * repeated(weight, along=1)
                activated = summed * sigmoid(summed)
                # Padding rows hold rows of other segments.
                row = first + plgpu.broadcasted_iota(jnp.int32, (PIECE_ROWS, HEAD_DIM), 0, layout=HEAD_ROWS)
                activated = jnp.where(row < table[chunk, 1], activated, 0.0)
                out_rows = pl.ds(pl.multiple_of(chunk * CHUNK_ROWS, CHUNK_ROWS) + first, PIECE_ROWS)

                @pl.when(head >= 2 * key_heads)
                def _store_value() -> None:
                    value.at[out_rows, head - 2 * key_heads][...] = activated.astype(jnp.bfloat16)

                @pl.when(head < 2 * key_heads)
                def _store_normed() -> None:
                    square = jnp.sum(activated * activated, axis=1)
                    inverse = lax.rsqrt(square + L2_NORM_EPSILON)
                    normed = activated * repeated(inverse, along=0)

                    @pl.when(head < key_heads)
                    def _store_query() -> None:
                        query.at[out_rows, head][...] = normed.astype(jnp.bfloat16)

                    @pl.when(head >= key_heads)
                    def _store_key() -> None:
                        key.at[out_rows, head - key_heads][...] = normed.astype(jnp.bfloat16)

            lax.fori_loop(0, CHUNK_ROWS // PIECE_ROWS, convolve_piece, None)
            plgpu.commit_smem()  # all warps have read before the copy engine writes here again
            fetch(index + STAGES)

        for index in range(STAGES):
            fetch(jnp.int32(index))
        lax.fori_loop(0, lax.div(items - program + PROGRAMS - 1, jnp.int32(PROGRAMS)), convolve, None)

    def out(heads: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((chunks * CHUNK_ROWS, heads, HEAD_DIM), jnp.bfloat16)

    return plgpu.kernel(
        body,
        out_type=(out(key_heads), out(key_heads), out(value_heads)),
        grid=(PROGRAMS,),
        kernel_name="segmented_conv",
        grid_names=("program",),
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane),
        scratch_types=[
            plgpu.SMEM((STAGES, LEAD + CHUNK_ROWS, HEAD_DIM), jnp.bfloat16),
            plgpu.Barrier(num_arrivals=earlier + 1, num_barriers=STAGES),
        ],
    )
