"""The product for Hopper in Pallas Mosaic GPU: wgmma on bfloat16, float32 sums, one order over K for all shapes.

A program makes one tile of the result after another. One warpgroup copies blocks of K into a ring in shared memory and
runs ahead into the next tile; the others multiply. An element is the sum of what the matrix unit makes of 16 products
at a time, in their order: the tile does not enter, so each M may have the one that suits it. Edges need no mask: the
copy engine reads zeros outside of an operand, and writes nothing there.
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float

from pallas_kernels.matmul.pallas_plan import ALIGNMENT, BLOCK, LEAST_COLUMNS, UNIT, Plan, Shape, Tile, suitable_tile
from pallas_kernels.mosaic import SWIZZLED, interpreted, sigmoid


@functools.partial(
    jax.jit, static_argnames=("swiglu", "batch_invariant", "tile", "interpret")
)  # lowered once for all layers
def matmul(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    *,
    residual: Float[Array, "M N"] | None = None,
    swiglu: bool = False,
    batch_invariant: bool = False,
    tile: Tile | None = None,
    interpret: bool = False,
) -> Float[Array, "M columns"]:
    """See `api.matmul`. Batch-invariant or not, it is the same.

    Args:
        tile: None for one that suits the shapes. No tile changes any bit.
        interpret: run on the host, to check the kernel without a GPU.

    Raises:
        NotImplementedError: not bfloat16, nothing to sum, K that is not a multiple of 64, or columns of the result
            that are not one of 32, with a residual of 64.
    """
    (rows, depth), columns = x.shape, weight.shape[0] // (1 + swiglu)
    if not x.dtype == weight.dtype == jnp.bfloat16:
        raise NotImplementedError(f"matmul by pallas is for bfloat16, not {x.dtype} and {weight.dtype}")
    least_columns = LEAST_COLUMNS if residual is None else UNIT
    if not x.size or depth % BLOCK or columns % least_columns:
        raise NotImplementedError(
            f"matmul by pallas is for K in {BLOCK}s and columns in {least_columns}s, not {depth} and {columns}"
        )
    operands = [_padded(x), weight, *([] if residual is None else [_padded(residual)])]
    shape = Shape(operands[0].shape[0], columns, depth, swiglu, residual is not None)
    plan = Plan(shape, suitable_tile(shape) if tile is None else tile)
    with interpreted(interpret):
        return _kernel(plan)(*operands)[:rows]


def _padded(x: Float[Array, "M width"]) -> Float[Array, "rows width"]:
    """No copy for the shapes of an engine, but of its read rows."""
    return jnp.pad(x, ((0, -x.shape[0] % ALIGNMENT), (0, 0)))


def _kernel(plan: Plan) -> Callable[..., Array]:
    """(x, weight, [residual]) -> the result."""
    shape, tile = plan.shape, plan.tile
    halves = [pl.ds(begin, BLOCK) for begin in range(0, plan.block, BLOCK)]

    def body(x: Any, weight: Any, *refs: Any) -> None:
        residuals, refs = refs[: shape.residual], refs[shape.residual :]
        result, x_ring, weight_ring, pieces, ready, free, residual_ready, *apart = refs
        warpgroup, program = lax.axis_index("warpgroup"), lax.axis_index("program")
        items = lax.div(plan.items - program + plan.programs - 1, jnp.int32(plan.programs))

        def corner(index: Array) -> tuple[Array, Array]:
            """The first row and column of the program's tile `index`."""
            row, column = plan.place(program + index * plan.programs)
            return row * tile.rows, column * plan.result_columns

        def slot_of(step: Array) -> Array:
            return lax.rem(step, jnp.int32(plan.stages))

        def residual_of(number: Array | int, slot: Array) -> Any:
            """In the place of x's block if it is like one; else it has a place of its own, and the slot is its turn."""
            return apart[0].at[number] if apart else x_ring.at[slot]

        @pl.when(warpgroup < plan.warpgroups)
        def _multiply() -> None:
            if plan.warpgroups > 1:
                plgpu.set_max_registers(232, action="increase")
            down, across = (0, warpgroup) if plan.across > 1 else (warpgroup, 0)
            my_rows, my_weights = pl.ds(down * UNIT, UNIT), pl.ds(across * plan.width, plan.width)

            def one_tile(index: Array, _: None) -> None:
                first = index * plan.steps
                row, column = corner(index)

                def sum_up(sums: Any) -> Array:
                    def one_block(step: Array, _: None) -> None:
                        slot = slot_of(step)
                        plgpu.barrier_wait(ready.at[slot])
                        for half in halves:
                            by_depth = weight_ring.at[slot, my_weights, half].transpose((1, 0))
                            plgpu.wgmma(sums, x_ring.at[slot, my_rows, half], by_depth)
                        plgpu.wgmma_wait(len(halves))  # the block before has been multiplied
                        pl.when(step > first)(lambda: plgpu.barrier_arrive(free.at[slot_of(step - 1)]))

                    lax.fori_loop(first, first + plan.blocks, one_block, None)
                    # Mosaic waits for the last product, but nothing says that the sums depend on it: where the loop is
                    # short enough to be unrolled, they were rounded before the wait, and wrong.
                    return lax.optimization_barrier(sums[...])

                sums = pl.run_scoped(sum_up, plgpu.ACC((UNIT, plan.width), jnp.float32))
                plgpu.barrier_arrive(free.at[slot_of(first + plan.blocks - 1)])

                for piece in range(plan.pieces):
                    begin = piece * plan.piece
                    part = sums[:, begin : begin + plan.piece]
                    if shape.swiglu:
                        begin += plan.width // 2
                        part = part * sigmoid(part) * sums[:, begin : begin + plan.piece]
                    number = across * plan.pieces + piece
                    if residuals:
                        # For the part of a warpgroup beside, too: its slot is given back below, and may not be before
                        # that warpgroup is done with what was there.
                        for beside in range(plan.across):
                            plgpu.barrier_wait(residual_ready.at[beside * plan.pieces + piece])
                        addend = residual_of(number, slot_of(first + plan.blocks + number))[my_rows]
                        part = addend.astype(jnp.float32) + part
                    buffer = pieces.at[warpgroup, piece % plan.buffers]
                    # The first piece may follow, in the tile before, on one that left from the same buffer.
                    plgpu.wait_smem_to_gmem(plan.buffers - 1 if piece else 0, wait_read_only=True)
                    buffer[...] = part.astype(jnp.bfloat16)
                    plgpu.commit_smem()
                    rows = pl.ds(row + down * UNIT, UNIT)
                    columns = pl.ds(column + number * plan.piece, plan.piece)
                    plgpu.copy_smem_to_gmem(buffer, result.at[rows, columns])
                    if residuals:  # all threads have read this part; the part of a warpgroup beside is not theirs
                        for beside in range(plan.across):
                            step = first + plan.blocks + beside * plan.pieces + piece
                            plgpu.barrier_arrive(free.at[slot_of(step)])

            lax.fori_loop(0, items, one_tile, None)
            plgpu.wait_smem_to_gmem(0)

        @pl.when(warpgroup == plan.warpgroups)
        def _copy() -> None:
            if plan.warpgroups > 1:
                plgpu.set_max_registers(40, action="decrease")

            def wait_for(step: Array) -> Array:
                slot = slot_of(step)
                pl.when(step >= plan.stages)(lambda: plgpu.barrier_wait(free.at[slot]))
                return slot

            def one_tile(index: Array, _: None) -> None:
                first = index * plan.steps
                row, column = corner(index)

                def one_block(block: Array, _: None) -> None:
                    slot = wait_for(first + block)
                    depth = pl.ds(block * plan.block, plan.block)
                    rows = pl.ds(row, tile.rows)
                    plgpu.copy_gmem_to_smem(x.at[rows, depth], x_ring.at[slot], ready.at[slot])
                    for begin, source, count in _weight_rows(plan, column):
                        rows = pl.ds(pl.multiple_of(source, ALIGNMENT), count)
                        target = weight_ring.at[slot, pl.ds(begin, count)]
                        plgpu.copy_gmem_to_smem(weight.at[rows, depth], target, ready.at[slot])

                lax.fori_loop(0, plan.blocks, one_block, None)
                for number in range(plan.residual_slots):
                    slot = wait_for(first + plan.blocks + number)
                    source = residuals[0].at[pl.ds(row, tile.rows), pl.ds(column + number * plan.piece, plan.piece)]
                    plgpu.copy_gmem_to_smem(source, residual_of(number, slot), residual_ready.at[number])

            lax.fori_loop(0, items, one_tile, None)

            def drain(step: Array, _: None) -> None:
                """A barrier may not end before what arrived there has been waited for."""
                plgpu.barrier_wait(free.at[slot_of(step)])

            steps = items * plan.steps
            lax.fori_loop(jnp.maximum(steps - plan.stages, 0), steps, drain, None)

    copies = 1 + len(_weight_rows(plan, jnp.int32(0)))
    piece_width = math.gcd(shape.columns, plan.piece)  # rows of a result are whole in these
    apart = plgpu.SMEM((plan.residual_slots, tile.rows, plan.piece), jnp.bfloat16, transforms=_swizzled(plan.piece))
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((shape.rows, shape.columns), jnp.bfloat16),
        grid=(plan.programs,),
        grid_names=("program",),
        num_threads=plan.warpgroups + 1,
        thread_name="warpgroup",
        kernel_name="matmul",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        scratch_types=[
            plgpu.SMEM((plan.stages, tile.rows, plan.block), jnp.bfloat16, transforms=SWIZZLED),
            plgpu.SMEM((plan.stages, tile.columns, plan.block), jnp.bfloat16, transforms=SWIZZLED),
            plgpu.SMEM(
                (plan.warpgroups, plan.buffers, UNIT, plan.piece), jnp.bfloat16, transforms=_swizzled(piece_width)
            ),
            plgpu.Barrier(num_arrivals=copies, num_barriers=plan.stages),
            plgpu.Barrier(num_arrivals=plan.warpgroups, num_barriers=plan.stages),
            plgpu.Barrier(num_barriers=max(plan.residual_slots, 1)),
            *([apart] if plan.apart else []),
        ],
    )


def _swizzled(columns: int) -> tuple[Any, ...]:
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)  # type: ignore[abstract]


def _weight_rows(plan: Plan, column: Array) -> list[tuple[int, Array, int]]:
    """Where rows of the weight stand in a slot, where they come from, and how many: each warpgroup's side by side."""
    if not plan.shape.swiglu:
        return [(0, column, plan.tile.columns)]
    count = plan.width // 2
    return [
        (warpgroup * plan.width + half * count, column + half * plan.shape.columns + warpgroup * count, count)
        for warpgroup, half in itertools.product(range(plan.across), range(2))
    ]
