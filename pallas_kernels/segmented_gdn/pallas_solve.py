"""What a chunk needs that no state enters: the inverse of its triangular system and its products of queries and keys.

One warpgroup takes one (chunk, value head) at a time. With c the cumulative log decay of the chunk, G_ij =
exp(c_i - c_j) for i >= j (zero above) and A_ij = e_i (k_i . k_j) G_ij for i > j, the chunk's writes U solve
(I + A) U = e (V - exp(c) K S^T). Taking G out of the inverse, T = (I + A / G)^-1 holds keys and strengths alone, and

system = G T e (columns scaled by e):  U = system (V - exp(c) K S^T)
mix = scale G (Q K^T):  O = scale exp(c) Q S^T + mix U

Running sums, gates, G, squares and scores are float32, and the inverse is as accurate (`pallas_inverse`). system and mix
are rounded to bfloat16 at the end, as operands of the scan, which says how large the error of all roundings is
(`pallas_scan`).
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm, nvvm
from jaxtyping import Array, Float, Int32

from pallas_kernels.mosaic import SWIZZLED
from pallas_kernels.segmented_gdn.pallas_inverse import inverse, inverse_buffers

# Each warpgroup takes its own items. Two blocks of one warpgroup fit a multiprocessor without a spill. On an H200 one
# block of three warpgroups is as fast (55 and 56 us for 4,096 items), one of two is slower (63 us).
WARPGROUPS = 1
BLOCKS_PER_MULTIPROCESSOR = 2

_MATRIX = plgpu.Layout.WGMMA
_BY_ROW, _BY_COLUMN = _MATRIX.reduce(1), _MATRIX.reduce(0)


def products(
    interpret: bool, *sums: tuple[Float[Array, "_ _"], Sequence[tuple[Any, Any]]]
) -> tuple[Float[Array, "_ _"], ...]:
    """For each (start, pairs of operands): start + the sum of the pairs' products, all in flight together, float32.

    A left operand is an array in registers or a ref to shared memory, a right operand is such a ref. Interpret mode
    has neither started accumulators nor operands in registers (jax 0.11.2), so it multiplies with jnp.dot.
    """
    if interpret:

        def value(operand: Any) -> Array:
            return operand if isinstance(operand, jax.Array) else operand[...]

        return tuple(
            start + sum(jnp.dot(value(left), value(right), preferred_element_type=jnp.float32) for left, right in pairs)
            for start, pairs in sums
        )

    def issue(accumulators: tuple[Any, ...]) -> None:
        for accumulator, (_, pairs) in zip(accumulators, sums, strict=True):
            for left, right in pairs:
                plgpu.wgmma(accumulator, left, right)

    return pl.run_state(issue)(tuple(plgpu.ACC.init(start) for start, _ in sums))


def zeros(*shape: int) -> Float[Array, "..."]:
    return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), _MATRIX)


def running_sums(decays: Any, sums: Any, interpret: bool) -> None:
    """The sums of the first 1, 2, .. 64 log decays, times log2 e. Every warp writes all of them, and waits for none."""
    if interpret:
        sums[...] = jnp.cumsum(decays[...]) * math.log2(math.e)
    else:
        _scan_by_lanes(decays, sums)


@plgpu.inline_mgpu(arg_types=(plgpu.RefType(), plgpu.RefType()))
def _scan_by_lanes(_: Any, decays: ir.Value, sums: ir.Value) -> None:
    """A lane has two neighbours; it adds the sums of the 1, 2, 4, .. lanes before it."""
    i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
    pair = ir.VectorType.get((2,), f32)

    def integer(x: int) -> ir.Value:
        return utils.c(x, i32)

    def place(ref: ir.Value) -> ir.Value:
        return utils.getelementptr(utils.memref_ptr(ref), [lane], pair)

    lane = arith.remui(utils.thread_idx(), integer(32))
    values = llvm.load(pair, place(decays))
    first, second = (llvm.extractelement(values, integer(i)) for i in (0, 1))
    total = arith.addf(first, second)

    def from_before(x: ir.Value, distance: int) -> ir.Value:
        other = nvvm.shfl_sync(integer(-1), x, integer(distance), integer(0), nvvm.ShflKind.up)
        there = arith.cmpi(arith.CmpIPredicate.uge, lane, integer(distance))
        return arith.select(there, other, utils.c(0.0, f32))

    for distance in (1, 2, 4, 8, 16):
        total = arith.addf(total, from_before(total, distance))
    result = llvm.mlir_undef(pair)
    for i, x in enumerate((arith.addf(from_before(total, 1), first), total)):
        result = llvm.insertelement(result, arith.mulf(x, utils.c(math.log2(math.e), f32)), integer(i))
    llvm.store(result, place(sums))
    utils.warp_barrier()


def solve(
    query: Float[Array, "chunk_rows nk dk"],
    key: Float[Array, "chunk_rows nk dk"],
    log_decay: Float[Array, "nv C rows"],
    write_strength: Float[Array, "nv C rows"],
    used_chunks: Int32[Array, "1"],
    *,
    scale: float,
    blocks: int,
    interpret: bool,
) -> tuple[Float[Array, "nv C rows rows"], Float[Array, "nv C rows rows"], Float[Array, "nv C 2 rows"]]:
    """`system` and `mix` (bfloat16) of the first `used_chunks` chunks, and their gates (float32).

    The gates of a chunk are exp(c) and exp(c_last - c). Entries of unused chunks are left as they are.
    """
    value_heads, chunks, rows = log_decay.shape
    group, dk = value_heads // key.shape[1], key.shape[2]

    def kernel(
        query_ref: Any,
        key_ref: Any,
        decay_ref: Any,
        strength_ref: Any,
        used_ref: Any,
        system_ref: Any,
        mix_ref: Any,
        gates_ref: Any,
        *scratch: Any,
    ) -> None:
        warpgroup = lax.axis_index("warpgroup")
        queries, keys, out, decays, strengths, sums, arrived, *inverse_scratch = (x.at[warpgroup] for x in scratch)
        items = used_ref[0] * value_heads
        # Few items go to as many multiprocessors as there are.
        first, step = warpgroup * blocks + lax.axis_index("block"), jnp.int32(blocks * WARPGROUPS)

        def place(item: Array) -> tuple[Array, Array]:
            return lax.div(item, jnp.int32(value_heads)), lax.rem(item, jnp.int32(value_heads))

        def fetch(item: Array, parity: Array | int) -> None:
            @pl.when(item < items)
            def copy_operands() -> None:
                chunk, head = place(item)
                chunk_rows = pl.ds(pl.multiple_of(chunk * rows, rows), rows)
                key_head = lax.div(head, jnp.int32(group))
                plgpu.copy_gmem_to_smem(key_ref.at[chunk_rows, key_head], keys, arrived)
                plgpu.copy_gmem_to_smem(query_ref.at[chunk_rows, key_head], queries, arrived)
                plgpu.copy_gmem_to_smem(decay_ref.at[head, chunk], decays.at[parity], arrived)
                plgpu.copy_gmem_to_smem(strength_ref.at[head, chunk], strengths.at[parity], arrived)

        def one_item(number: Array, _: None) -> None:
            item = first + number * step
            chunk, head = place(item)
            parity = lax.rem(number, jnp.int32(2))
            i, j = (plgpu.broadcasted_iota(jnp.int32, (rows, rows), axis, layout=_MATRIX) for axis in (0, 1))

            def row_vector(ref: Any) -> Array:
                vector = plgpu.load(ref, layout=_BY_ROW)
                return plgpu.layout_cast(lax.broadcast_in_dim(vector, (rows, rows), [0]), _MATRIX)

            def column_vector(ref: Any) -> Array:
                vector = plgpu.load(ref, layout=_BY_COLUMN)
                return plgpu.layout_cast(lax.broadcast_in_dim(vector, (rows, rows), [1]), _MATRIX)

            def where(condition: Array, x: Array) -> Array:
                return plgpu.layout_cast(jnp.where(condition, x, jnp.zeros_like(x)), _MATRIX)

            def decay(factor: float = 1.0) -> Array:  # factor G, but factor above the diagonal
                log = jnp.float32(math.log2(factor))
                return jnp.exp2(jnp.minimum(row_vector(sums) + log - column_vector(sums), log))

            plgpu.barrier_wait(arrived)
            running_sums(decays.at[parity], sums, interpret)
            keys_t = keys.transpose((1, 0))
            squares, scores = products(
                interpret, (zeros(rows, rows), [(keys, keys_t)]), (zeros(rows, rows), [(queries, keys_t)])
            )
            mix = where(i >= j, plgpu.layout_cast(scores, _MATRIX) * decay(scale)).astype(jnp.bfloat16)
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            out[0] = mix
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out.at[0], mix_ref.at[head, chunk])
            fetch(item + step, 1 - parity)  # its copies run while this item is inverted

            minus_a = plgpu.layout_cast(squares, _MATRIX) * -row_vector(strengths.at[parity])
            columns = inverse(minus_a, *inverse_scratch, interpret=interpret)
            system = jnp.concatenate(columns, axis=1) * decay() * column_vector(strengths.at[parity])
            out[1] = system.astype(jnp.bfloat16)
            cumulative = plgpu.load(sums, layout=_BY_ROW)
            gates = jnp.exp2(cumulative), jnp.exp2(sums[rows - 1] - cumulative)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out.at[1], system_ref.at[head, chunk])
            for which, gate in enumerate(gates):
                gates_ref.at[head, chunk, which][...] = gate

        fetch(first, 0)
        lax.fori_loop(0, lax.div(jnp.maximum(items - first + step - 1, 0), step), one_item, None)
        plgpu.wait_smem_to_gmem(0)

    def tile(*shape: int) -> Any:
        return plgpu.SMEM((WARPGROUPS, *shape), jnp.bfloat16, transforms=SWIZZLED)

    matrix = jax.ShapeDtypeStruct((value_heads, chunks, rows, rows), jnp.bfloat16)
    return plgpu.kernel(
        kernel,
        out_type=(matrix, matrix, jax.ShapeDtypeStruct((value_heads, chunks, 2, rows), jnp.float32)),
        grid=(blocks,),
        grid_names=("block",),
        num_threads=WARPGROUPS,
        thread_name="warpgroup",
        kernel_name="segmented_gdn_solve",
        # Lane semantics takes the column layouts that warpgroup semantics cannot infer (jax 0.11.2). A barrier stands
        # where warps exchange something (here, in `commit_smem` and in `wait_smem_to_gmem`) and not around every store:
        # those are about twenty an item.
        compiler_params=plgpu.CompilerParams(
            approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane, unsafe_no_auto_barriers=True
        ),
        scratch_types=[
            tile(rows, dk),
            tile(rows, dk),
            tile(2, rows, rows),
            plgpu.SMEM((WARPGROUPS, 2, rows), jnp.float32),
            plgpu.SMEM((WARPGROUPS, 2, rows), jnp.float32),
            plgpu.SMEM((WARPGROUPS, rows), jnp.float32),
            plgpu.Barrier(num_arrivals=4, num_barriers=WARPGROUPS),
            *inverse_buffers(WARPGROUPS),
        ],
    )(query, key, log_decay, write_strength, used_chunks)
