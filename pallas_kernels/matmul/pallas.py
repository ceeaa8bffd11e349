"""The product for Hopper in Pallas Mosaic GPU: wgmma on bfloat16, float32 sums, one order over K for all shapes.

A program makes one tile of the result after another. One warpgroup copies blocks of 64 of K into a ring in shared
memory and runs ahead into the next tile; the others multiply. An element is the sum of its blocks in their order, and
within a block of what the matrix unit makes of 16 products at a time: the tile's size does not enter, so each M may
have the tile that suits it. Edges need no mask: the copy engine reads zeros outside of an operand, and writes nothing
there.
"""

import dataclasses
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

from pallas_kernels.mosaic import MULTIPROCESSORS, SWIZZLED, interpreted

BLOCK = 64  # of K, a row of 128 bytes in shared memory
UNIT = 64  # rows of one wgmma, and the side of the pieces in which a tile is written
ALIGNMENT = 8  # rows in which the copy engine moves blocks
LEAST_COLUMNS = 32  # of what it writes
SHARED_BYTES = 227 * 1024 - 1024  # of a multiprocessor; some are for barriers
GROUP = 12  # rows of tiles that are made together, so that programs share operands in the second-level cache

# What a multiprocessor does in a cycle, to compare tiles by.
_OPERATIONS, _BYTES = 4096, 40


@dataclasses.dataclass(frozen=True)
class Tile:
    """What a program makes at a time.

    Attributes:
        rows: 64 or 128, of x; of 128, each of two warpgroups has 64.
        columns: up to 256 rows of the weight: columns of the product, or half as many of gate and of up.
        cluster: programs, 1 or 2, that take tiles one below the other and share what is read of the weight.
    """

    rows: int
    columns: int
    cluster: int = 1


TILES = tuple(Tile(rows, columns) for rows, columns in ((128, 256), (128, 128), (64, 256), (64, 128), (64, 64)))


@functools.partial(jax.jit, static_argnames=("swiglu", "tile", "interpret"))  # lowered once for all layers
def matmul(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    *,
    residual: Float[Array, "M N"] | None = None,
    swiglu: bool = False,
    tile: Tile | None = None,
    interpret: bool = False,
) -> Float[Array, "M columns"]:
    """See `api.matmul`.

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
    shape = _Shape(operands[0].shape[0], columns, depth, swiglu, residual is not None)
    plan = _Plan(shape, suitable_tile(shape) if tile is None else tile)
    with interpreted(interpret):
        return _kernel(plan, interpret)(*operands)[:rows]


def _padded(x: Float[Array, "M width"]) -> Float[Array, "rows width"]:
    """No copy for the shapes of an engine, but of its read rows."""
    return jnp.pad(x, ((0, -x.shape[0] % ALIGNMENT), (0, 0)))


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Of the result, and what it is."""

    rows: int
    columns: int
    depth: int
    swiglu: bool
    residual: bool


def suitable_tile(shape: _Shape) -> Tile:
    """The tile with the least estimated time: the larger of multiplying and of reading, times the rounds of tiles."""

    def cycles(tile: Tile) -> float:
        plan = _Plan(shape, tile)
        operations = 2 * tile.rows * tile.columns * BLOCK
        return -(-plan.items // plan.programs) * max(operations / _OPERATIONS, plan.stage_bytes / _BYTES)

    return min((tile for tile in TILES if not shape.swiglu or tile.columns >= 2 * UNIT), key=cycles)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How one call is divided; all static."""

    shape: _Shape
    tile: Tile

    @property
    def result_columns(self) -> int:
        """Of a tile of the result."""
        return self.tile.columns // (1 + self.shape.swiglu)

    @property
    def across(self) -> int:
        """Warpgroups beside each other, each with a part of the columns."""
        return 2 if self.tile.rows == UNIT and self.result_columns > UNIT else 1

    @property
    def warpgroups(self) -> int:
        """That multiply."""
        return self.tile.rows // UNIT * self.across

    @property
    def width(self) -> int:
        """Rows of the weight of one warpgroup."""
        return self.tile.columns // self.across

    @property
    def pieces(self) -> int:
        """Of UNIT columns that one warpgroup writes."""
        return self.result_columns // self.across // UNIT

    @property
    def buffers(self) -> int:
        """For pieces on their way out."""
        return min(2, self.pieces)

    @property
    def stage_bytes(self) -> int:
        return 2 * BLOCK * (self.tile.rows + self.tile.columns)

    @property
    def stages(self) -> int:
        """Of the ring: what shared memory holds beside the pieces.

        Not more than a tile's steps, or the residual of the next tile could arrive before that of this one is seen.
        """
        pieces = 2 * self.warpgroups * self.buffers * UNIT * UNIT
        return min((SHARED_BYTES - pieces) // self.stage_bytes, self.steps)

    @property
    def blocks(self) -> int:
        """Of K."""
        return self.shape.depth // BLOCK

    @property
    def residual_slots(self) -> int:
        """Of the ring, after a tile's blocks: UNIT rows of the residual fill the weight's part of a slot."""
        return self.tile.rows // UNIT if self.shape.residual else 0

    @property
    def steps(self) -> int:
        """Of the ring for one tile."""
        return self.blocks + self.residual_slots

    @property
    def tiles(self) -> tuple[int, int]:
        """Down (a cluster's count as one) and across."""
        down = -(-self.shape.rows // (self.tile.rows * self.tile.cluster))
        return down, -(-self.shape.columns // self.result_columns)

    @property
    def items(self) -> int:
        return self.tiles[0] * self.tiles[1]

    @property
    def programs(self) -> int:
        """A cluster counts as one."""
        return min(self.items, MULTIPROCESSORS // self.tile.cluster)

    def place(self, item: Array) -> tuple[Array, Array]:
        """Row and column of a tile among the tiles: bands of GROUP rows, back and forth, each from column to column."""
        down, across = self.tiles
        band = lax.div(item, jnp.int32(GROUP * across))
        height = jnp.minimum(GROUP, down - band * GROUP)
        within = item - band * (GROUP * across)
        row, column = band * GROUP + lax.rem(within, height), lax.div(within, height)
        return row, jnp.where(lax.rem(band, jnp.int32(2)) == 0, column, across - 1 - column)


def _kernel(plan: _Plan, interpret: bool) -> Callable[..., Array]:
    """(x, weight, [residual]) -> the result."""
    shape, tile = plan.shape, plan.tile
    # The interpreter cannot copy into several programs at once; there, each copies all that it needs.
    shared = None if interpret or tile.cluster == 1 else "cluster"

    def body(x: Any, weight: Any, *refs: Any) -> None:
        *residuals, result, x_ring, weight_ring, pieces, ready, free, residual_ready = refs
        warpgroup, program = lax.axis_index("warpgroup"), lax.axis_index("program")
        items = lax.div(plan.items - program + plan.programs - 1, jnp.int32(plan.programs))

        def corner(index: Array) -> tuple[Array, Array]:
            """The first row and column of the program's tile `index`."""
            row, column = plan.place(program + index * plan.programs)
            if tile.cluster > 1:
                row = row * tile.cluster + lax.axis_index("cluster")
            return row * tile.rows, column * plan.result_columns

        def slot_of(step: Array) -> Array:
            return lax.rem(step, jnp.int32(plan.stages))

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
                        by_depth = weight_ring.at[slot, my_weights].transpose((1, 0))
                        plgpu.wgmma(sums, x_ring.at[slot, my_rows], by_depth)
                        plgpu.wgmma_wait(1)  # the block before has been multiplied
                        pl.when(step > first)(lambda: plgpu.barrier_arrive(free.at[slot_of(step - 1)]))

                    lax.fori_loop(first, first + plan.blocks, one_block, None)
                    return sums[...]

                sums = pl.run_scoped(sum_up, plgpu.ACC((UNIT, plan.width), jnp.float32))
                plgpu.barrier_arrive(free.at[slot_of(first + plan.blocks - 1)])

                residual_slot = slot_of(first + plan.blocks + down)
                if residuals:
                    plgpu.barrier_wait(residual_ready.at[down])
                for piece in range(plan.pieces):
                    part = sums[:, piece * UNIT : (piece + 1) * UNIT]
                    if shape.swiglu:
                        begin = plan.width // 2 + piece * UNIT
                        part = part / (1.0 + jnp.exp(-part)) * sums[:, begin : begin + UNIT]
                    if residuals:
                        in_slot = pl.ds((across * plan.pieces + piece) * UNIT, UNIT)
                        part = weight_ring[residual_slot, in_slot].astype(jnp.float32) + part
                    buffer = pieces.at[warpgroup, piece % plan.buffers]
                    plgpu.wait_smem_to_gmem(plan.buffers - 1, wait_read_only=True)
                    buffer[...] = part.astype(jnp.bfloat16)
                    plgpu.commit_smem()
                    rows = pl.ds(row + down * UNIT, UNIT)
                    columns = pl.ds(column + (across * plan.pieces + piece) * UNIT, UNIT)
                    plgpu.copy_smem_to_gmem(buffer, result.at[rows, columns])
                for number in range(plan.residual_slots):
                    plgpu.barrier_arrive(free.at[slot_of(first + plan.blocks + number)])

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
                    depth = pl.ds(block * BLOCK, BLOCK)
                    plgpu.copy_gmem_to_smem(x.at[pl.ds(row, tile.rows), depth], x_ring.at[slot], ready.at[slot])
                    for begin, source, count in _weight_rows(plan, column):
                        rows = pl.ds(pl.multiple_of(source, ALIGNMENT), count)
                        target = weight_ring.at[slot, pl.ds(begin, count)]
                        plgpu.copy_gmem_to_smem(weight.at[rows, depth], target, ready.at[slot], collective_axes=shared)

                lax.fori_loop(0, plan.blocks, one_block, None)
                for number in range(plan.residual_slots):
                    slot = wait_for(first + plan.blocks + number)
                    for begin in range(0, tile.columns, UNIT):
                        source = residuals[0].at[pl.ds(row + number * UNIT, UNIT), pl.ds(column + begin, UNIT)]
                        target = weight_ring.at[slot, pl.ds(begin, UNIT)]
                        plgpu.copy_gmem_to_smem(source, target, residual_ready.at[number])

            lax.fori_loop(0, items, one_tile, None)

            def drain(step: Array, _: None) -> None:
                """No program ends before the others of its cluster are done with it."""
                plgpu.barrier_wait(free.at[slot_of(step)])

            steps = items * plan.steps
            lax.fori_loop(jnp.maximum(steps - plan.stages, 0), steps, drain, None)

    copies = 1 + len(_weight_rows(plan, jnp.int32(0)))
    piece_width = math.gcd(shape.columns, UNIT)  # rows of a result are whole in these
    if tile.cluster == 1:
        free: Any = plgpu.Barrier(num_arrivals=plan.warpgroups, num_barriers=plan.stages)
    else:
        free = plgpu.ClusterBarrier(
            collective_axes=("cluster",), num_arrivals=plan.warpgroups, num_barriers=plan.stages
        )
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((shape.rows, shape.columns), jnp.bfloat16),
        grid=(plan.programs,),
        grid_names=("program",),
        cluster=(tile.cluster,) if tile.cluster > 1 else (),
        cluster_names=("cluster",) if tile.cluster > 1 else (),
        num_threads=plan.warpgroups + 1,
        thread_name="warpgroup",
        kernel_name="matmul",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        scratch_types=[
            plgpu.SMEM((plan.stages, tile.rows, BLOCK), jnp.bfloat16, transforms=SWIZZLED),
            plgpu.SMEM((plan.stages, tile.columns, BLOCK), jnp.bfloat16, transforms=SWIZZLED),
            plgpu.SMEM((plan.warpgroups, plan.buffers, UNIT, UNIT), jnp.bfloat16, transforms=_swizzled(piece_width)),
            plgpu.Barrier(num_arrivals=copies, num_barriers=plan.stages),
            free,
            plgpu.Barrier(num_arrivals=tile.columns // UNIT, num_barriers=max(plan.residual_slots, 1)),
        ],
    )


def _swizzled(columns: int) -> tuple[Any, ...]:
    return plgpu.TilingTransform((8, columns)), plgpu.SwizzleTransform(2 * columns)  # type: ignore[abstract]


def _weight_rows(plan: _Plan, column: Array) -> list[tuple[int, Array, int]]:
    """Where rows of the weight stand in a slot, where they come from, and how many: each warpgroup's side by side."""
    if not plan.shape.swiglu:
        return [(0, column, plan.tile.columns)]
    count = plan.width // 2
    return [
        (warpgroup * plan.width + half * count, column + half * plan.shape.columns + warpgroup * count, count)
        for warpgroup, half in itertools.product(range(plan.across), range(2))
    ]
