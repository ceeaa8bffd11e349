"""The inverse T of a unit lower triangular matrix I + A of 64 rows in one warpgroup, at float32 accuracy.

Each of the four warps has 16 rows. First it inverts its block of the diagonal by substitution in float32, a row of the
inverse in each lane. Then T (I + A) = I is solved by column blocks from the right: with D_j the inverse of block j,

T_j = (I_j - sum over k > j of T_k A_kj) D_j

A warp computes its own rows of T from everybody's A and D, so the warps wait for one another once. T stays in
registers, where it is result and left operand. Operands are pairs of float16 numbers, whose sum is as good as float32:
for keys of unit length and strengths up to 1 no entry of T or of the sums is larger than 2 in size.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, llvm
from jaxtyping import Array, Float

ROWS, BLOCK = 64, 16
WARPS = ROWS // BLOCK
# Floats from row to row of the diagonal blocks: rows of lanes that work together begin in different banks.
PITCH = 24

_MATRIX, _LEFT, _RIGHT = plgpu.Layout.WGMMA, plgpu.Layout.MMA_LHS(jnp.float16), plgpu.Layout.MMA_RHS(jnp.float16)
_TILE = (plgpu.TilingTransform((8, BLOCK)), plgpu.SwizzleTransform(32))  # type: ignore[abstract]


def inverse_buffers(warpgroups: int) -> tuple[Any, ...]:
    """Shared memory of `inverse`, for each warpgroup."""
    return (
        plgpu.SMEM((warpgroups, 2, ROWS, ROWS - BLOCK), jnp.float16, transforms=_TILE),
        plgpu.SMEM((warpgroups, 2, ROWS, BLOCK), jnp.float16, transforms=_TILE),
        plgpu.SMEM((warpgroups, ROWS, PITCH), jnp.float32),
    )


def inverse(
    minus_a: Float[Array, "64 64"], others: Any, inverses: Any, diagonal: Any, *, interpret: bool
) -> list[Float[Array, "64 16"]]:
    """(I + A)^-1 by columns of 16; on and above the diagonal `minus_a` may hold anything finite."""
    warp = lax.shift_right_logical(plgpu.broadcasted_iota(jnp.int32, (ROWS, BLOCK), 0, layout=_MATRIX), 4)

    def columns(x: Array, block: int) -> Array:
        return x[:, BLOCK * block : BLOCK * (block + 1)]

    def of_warp(number: int, x: Array, otherwise: Array) -> Array:
        return plgpu.layout_cast(jnp.where(warp == number, x, otherwise), _MATRIX)

    own = columns(minus_a, 0)
    for block in range(1, WARPS):
        own = of_warp(block, columns(minus_a, block), own)
    diagonal[:, pl.ds(0, BLOCK)] = own
    others[0], others[1] = _halves(minus_a[:, : ROWS - BLOCK])
    _invert_blocks(diagonal, interpret)
    own = plgpu.load(diagonal.at[:, pl.ds(0, BLOCK)], layout=_MATRIX)
    inverses[0], inverses[1] = _halves(own)
    wait_for_warps(interpret)

    nothing = plgpu.layout_cast(jnp.zeros((ROWS, BLOCK), jnp.float32), _MATRIX)
    solved: list[Array] = []
    for block in reversed(range(WARPS)):
        result = of_warp(block, own, nothing)
        if solved:
            product = nothing
            for below, left in zip(reversed(range(block + 1, WARPS)), map(_halves, solved), strict=True):
                place = pl.ds(BLOCK * below, BLOCK), pl.ds(BLOCK * block, BLOCK)
                product = _multiply(product, left, others.at[:, *place], interpret)
            place = pl.ds(BLOCK * block, BLOCK), pl.ds(0, BLOCK)
            result = _multiply(result, _halves(product), inverses.at[:, *place], interpret)
        solved.append(result)
    return solved[::-1]


def _halves(x: Float[Array, "_ _"]) -> tuple[Float[Array, "_ _"], Float[Array, "_ _"]]:
    """Two float16 numbers for each float32 one, of which they are the sum but for about 2^-22."""
    # The 13 last bits cleared: what is left fits into float16, so that nothing has to be converted back.
    bits = lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-(2**13))
    high = lax.bitcast_convert_type(bits, jnp.float32)
    return high.astype(jnp.float16), (x - high).astype(jnp.float16)


def _multiply(start: Float[Array, "64 16"], left: tuple[Array, Array], right: Any, interpret: bool) -> Array:
    """start + left @ right, both operands as halves; the product of two low halves is too small to count."""
    if interpret:
        right = right[0].astype(jnp.float32) + right[1].astype(jnp.float32)
        return start + (left[0].astype(jnp.float32) + left[1].astype(jnp.float32)) @ right
    rights = [plgpu.load(right.at[half], layout=_RIGHT) for half in (0, 1)]
    for i, j in ((0, 0), (0, 1), (1, 0)):
        start = plgpu.mma(start, _as_left(left[i]), rights[j])
    return start


@plgpu.inline_mgpu(arg_types=(_MATRIX,), return_type=plgpu.ShapeDtypeStruct((ROWS, BLOCK), jnp.float16, layout=_LEFT))
def _as_left(_: Any, x: mgpu.FragmentedArray) -> mgpu.FragmentedArray:
    """The same registers, under the name that `mma` asks for."""
    layout = _LEFT.to_mgpu()
    registers = x.registers.reshape(layout.registers_shape(x.shape))
    return mgpu.FragmentedArray(_registers=registers, _layout=layout, _is_signed=None)


def _invert_blocks(diagonal: Any, interpret: bool) -> None:
    """Replaces the four blocks -A by (I + A)^-1, each by its own warp; reads below the diagonal only."""
    if not interpret:
        return _substitute(diagonal)
    minus_a = diagonal[:, :BLOCK].reshape(WARPS, BLOCK, BLOCK)
    rows = jnp.broadcast_to(jnp.eye(BLOCK), minus_a.shape)
    for k in reversed(range(1, BLOCK)):
        rows = rows.at[:, :, :k].add(rows[:, :, k : k + 1] * minus_a[:, k : k + 1, :k])
    diagonal[:, pl.ds(0, BLOCK)] = rows.reshape(ROWS, BLOCK)


@plgpu.inline_mgpu(arg_types=(plgpu.RefType(),))
def _substitute(_: Any, diagonal: ir.Value) -> None:
    """Lane i has row i of the inverse: r = e_i, then r_j -= r_k A_kj for all j < k, from the last k to the first."""
    i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
    four = ir.VectorType.get((4,), f32)

    def integer(x: int) -> ir.Value:
        return utils.c(x, i32)

    thread = arith.remui(utils.thread_idx(), integer(utils.WARPGROUP_SIZE))
    lane = arith.remui(thread, integer(BLOCK))  # the upper half of the warp does the same again
    first_row = arith.muli(arith.divui(thread, integer(32)), integer(BLOCK * PITCH))
    block = utils.getelementptr(utils.memref_ptr(diagonal), [first_row], f32)

    utils.warp_barrier()
    one, zero = utils.c(1.0, f32), utils.c(0.0, f32)
    row = [arith.select(arith.cmpi(arith.CmpIPredicate.eq, lane, integer(j)), one, zero) for j in range(BLOCK)]
    for k in reversed(range(1, BLOCK)):
        for j in range(k):
            if j % 4 == 0:
                minus_a = llvm.load(four, utils.getelementptr(block, [k * PITCH + j], f32))
            row[j] = llvm.intr_fma(row[k], llvm.extractelement(minus_a, integer(j % 4)), row[j])
    utils.warp_barrier()
    for j in range(0, BLOCK, 4):
        part = llvm.mlir_undef(four)
        for i in range(4):
            part = llvm.insertelement(part, row[j + i], integer(i))
        place = arith.addi(arith.muli(lane, integer(PITCH)), integer(j))
        llvm.store(part, utils.getelementptr(block, [place], f32))
    utils.warp_barrier()


def wait_for_warps(interpret: bool) -> None:
    if not interpret:
        plgpu.inline_mgpu()(lambda _: utils.warpgroup_barrier())()
