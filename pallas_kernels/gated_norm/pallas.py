"""The gated norm for Hopper in Pallas Mosaic GPU: one pass over memory from chunk rows to rows of the stream.

A work item is one head of half a chunk. Where a chunk ends in it, its rows go out in copies of 16, 8, .. rows: what
follows them in the stream belongs to others.
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
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments

PROGRAMS = 4 * MULTIPROCESSORS  # what the registers allow
PIECES = CHUNK_ROWS // PIECE_ROWS  # of a chunk
STAGES = 2  # work items in flight


@functools.partial(jax.jit, static_argnames=("gate_begin", "epsilon", "interpret"))  # lowered once for all layers
def gated_norm(
    out: Float[Array, "chunk_rows nv dv"],
    projected: Float[Array, "T width"],
    weight: Float[Array, " dv"],
    segments: Segments,
    *,
    gate_begin: int,
    rows: Int32[Array, " N"] | None = None,
    epsilon: float,
    interpret: bool = False,
) -> Float[Array, "N nv*dv"]:
    """See `api.gated_norm`. Rows of no segment are not written.

    Raises:
        NotImplementedError: not bfloat16, heads that are not 128 wide, gates that begin inside a head, fewer rows than
            a chunk, or some rows only.
    """
    if not out.dtype == projected.dtype == jnp.bfloat16:
        raise NotImplementedError(f"gated_norm by pallas is for bfloat16, not {out.dtype} and {projected.dtype}")
    if out.shape[2] != HEAD_DIM or gate_begin % HEAD_DIM or projected.shape[0] < CHUNK_ROWS or rows is not None:
        raise NotImplementedError(
            f"gated_norm by pallas is for all rows, {CHUNK_ROWS} or more, and heads of {HEAD_DIM}, the gates' too"
        )
    begin, length = jnp.asarray(segments.chunk_begin), jnp.asarray(segments.chunk_length)
    call = _kernel(projected.shape[0], out.shape[1], gate_begin // HEAD_DIM, epsilon)
    with interpreted(interpret):
        return call(
            segments.used_chunks(), jnp.stack([begin, length], axis=1), out, projected, weight.astype(jnp.float32)
        )


def _kernel(rows: int, heads: int, gate_head: int, epsilon: float) -> Any:
    def body(
        used: Any, table: Any, out: Any, projected: Any, weight: Any, result: Any,
        out_smem: Any, gate_smem: Any, result_smem: Any, full: Any,
    ) -> None:  # fmt: skip
        program = lax.axis_index("program")
        items = used[0] * PIECES * heads

        def columns(head: Array) -> Any:
            return pl.ds(pl.multiple_of(head * HEAD_DIM, HEAD_DIM), HEAD_DIM)

        def place(index: Array) -> tuple[Array, Array, Array]:
            """Piece, head and slot of the program's item `index`."""
            item = program + index * PROGRAMS
            return lax.div(item, jnp.int32(heads)), lax.rem(item, jnp.int32(heads)), lax.rem(index, jnp.int32(STAGES))

        def stream_rows(piece: Array) -> tuple[Array, Array]:
            """Begin and length of a piece in the stream; a length of 0 or less where its chunk ends before."""
            chunk, first = lax.div(piece, jnp.int32(PIECES)), lax.rem(piece, jnp.int32(PIECES)) * PIECE_ROWS
            return table[chunk, 0] + first, jnp.minimum(table[chunk, 1] - first, PIECE_ROWS)

        def fetch(index: Array) -> None:
            piece, head, slot = place(index)

            @pl.when(program + index * PROGRAMS < items)
            def _copy() -> None:
                in_chunks = pl.ds(pl.multiple_of(piece * PIECE_ROWS, PIECE_ROWS), PIECE_ROWS)
                in_stream = pl.ds(stream_rows(piece)[0], PIECE_ROWS)
                plgpu.copy_gmem_to_smem(out.at[in_chunks, head], out_smem.at[slot], full.at[slot])
                gates = projected.at[in_stream, columns(gate_head + head)]
                plgpu.copy_gmem_to_smem(gates, gate_smem.at[slot], full.at[slot])

        def norm(index: Array, carry: Any) -> None:
            piece, head, slot = place(index)
            plgpu.barrier_wait(full.at[slot])
            block = plgpu.load(out_smem.at[slot], layout=HEAD_ROWS).astype(jnp.float32)
            gate = plgpu.load(gate_smem.at[slot], layout=HEAD_ROWS).astype(jnp.float32)
            scale = plgpu.load(weight, layout=HEAD_ROWS.reduce(0), optimized=False)
            mean = jnp.sum(block * block, axis=1) / HEAD_DIM
            normed = block * repeated(lax.rsqrt(mean + epsilon), along=0) * repeated(scale, along=1)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            result_smem[...] = (normed * gate * sigmoid(gate)).astype(jnp.bfloat16)
            plgpu.commit_smem()  # written, and the operands read, by all warps
            fetch(index + STAGES)
            begin, length = stream_rows(piece)
            _store(result_smem, result, begin, length, columns(head))

        for index in range(STAGES):
            fetch(jnp.int32(index))
        lax.fori_loop(0, lax.div(items - program + PROGRAMS - 1, jnp.int32(PROGRAMS)), norm, None)
        plgpu.wait_smem_to_gmem(0)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((rows, heads * HEAD_DIM), jnp.bfloat16),
        grid=(PROGRAMS,),
        kernel_name="gated_norm",
        grid_names=("program",),
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane),
        scratch_types=[
            plgpu.SMEM((STAGES, PIECE_ROWS, HEAD_DIM), jnp.bfloat16),
            plgpu.SMEM((STAGES, PIECE_ROWS, HEAD_DIM), jnp.bfloat16),
            plgpu.SMEM((PIECE_ROWS, HEAD_DIM), jnp.bfloat16),
            plgpu.Barrier(num_arrivals=2, num_barriers=STAGES),
        ],
    )


def _store(source: Any, target: Any, begin: Array, length: Array, columns: Any) -> None:
    """The first `length` rows of a block to rows `begin` on: one copy for each bit of the length."""
    length, size = jnp.maximum(length, 0), PIECE_ROWS
    while size:
        offset = length // (2 * size) * (2 * size)  # rows in copies that are longer than this one

        @pl.when((length & size) != 0)
        def _copy(size: int = size, offset: Array = offset) -> None:
            plgpu.copy_smem_to_gmem(source.at[pl.ds(offset, size)], target.at[pl.ds(begin + offset, size), columns])

        size //= 2
