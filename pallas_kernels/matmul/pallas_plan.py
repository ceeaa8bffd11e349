"""How one product is divided among programs, and which division suits it."""

import dataclasses
import math

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.mosaic import MULTIPROCESSORS

BLOCK = 64  # of K, a row of 128 bytes in shared memory
UNIT = 64  # rows of one wgmma, and columns of the pieces in which a tile is written
ALIGNMENT = 8  # rows in which the copy engine moves blocks
LEAST_COLUMNS = 32  # of what it writes
SHARED_BYTES = 227 * 1024 - 1024  # of a multiprocessor; some are for barriers
GROUP = 12  # rows of tiles that are made together, so that programs share operands in the second-level cache


@dataclasses.dataclass(frozen=True)
class Tile:
    """What a program makes at a time.

    Attributes:
        rows: 64 or 128, of x; of 128, each of two warpgroups has 64.
        columns: 32 to 256 rows of the weight: columns of the product, or half as many of gate and of up.
        depth: 64 or 128, of K in a block. Where K has an odd number of 64s, 64.
    """

    rows: int
    columns: int
    depth: int = BLOCK


# Programs do not form clusters that share what they read: on an H200 pairs gained nothing in bursts, and nothing in a
# second of work at the card's limit of power (640 TFLOP/s each way, 582 by XLA), and larger ones lost.
TILES = (
    *(Tile(rows, columns) for rows, columns in ((128, 256), (128, 192), (128, 128), (64, 256), (64, 128))),
    *(Tile(64, columns, 2 * BLOCK) for columns in (64, 32)),
)


@dataclasses.dataclass(frozen=True)
class Shape:
    """Of the result, and what it is."""

    rows: int
    columns: int
    depth: int
    swiglu: bool
    residual: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one call is divided; all static."""

    shape: Shape
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
    def piece(self) -> int:
        """Columns that a warpgroup writes at a time."""
        return math.gcd(self.result_columns // self.across, UNIT)

    @property
    def pieces(self) -> int:
        """Of one warpgroup."""
        return self.result_columns // self.across // self.piece

    @property
    def buffers(self) -> int:
        """For pieces on their way out."""
        return min(2, self.pieces)

    @property
    def block(self) -> int:
        """Of K, in a slot of the ring."""
        return math.gcd(self.shape.depth, self.tile.depth)

    @property
    def stage_bytes(self) -> int:
        return 2 * self.block * (self.tile.rows + self.tile.columns)

    @property
    def stages(self) -> int:
        """Of the ring: what shared memory holds beside the pieces.

        Not more than a tile's steps, or the residual of the next tile could arrive before that of this one is seen.
        Where warpgroups stand beside each other, more than the pieces of one, or one's residual would wait for a slot
        that the other gives back only after it.
        """
        rows = self.warpgroups * self.buffers * UNIT + self.apart * self.residual_slots * self.tile.rows
        return min((SHARED_BYTES - 2 * rows * self.piece) // self.stage_bytes, self.steps)

    @property
    def blocks(self) -> int:
        """Of K."""
        return self.shape.depth // self.block

    @property
    def residual_slots(self) -> int:
        """Of the ring, after a tile's blocks: a piece's columns of the residual are in the place of x's in one."""
        return self.across * self.pieces if self.shape.residual else 0

    @property
    def apart(self) -> bool:
        """The residual has a place of its own: a piece of it is not like a block of x."""
        return self.shape.residual and (self.block, self.piece) != (BLOCK, UNIT)

    @property
    def steps(self) -> int:
        """Of the ring for one tile."""
        return self.blocks + self.residual_slots

    @property
    def tiles(self) -> tuple[int, int]:
        """Down and across."""
        return -(-self.shape.rows // self.tile.rows), -(-self.shape.columns // self.result_columns)

    @property
    def items(self) -> int:
        return self.tiles[0] * self.tiles[1]

    @property
    def programs(self) -> int:
        return min(self.items, MULTIPROCESSORS)

    def place(self, item: Array) -> tuple[Array, Array]:
        """Row and column of a tile among the tiles: bands of some rows, back and forth, each from column to column."""
        down, across = self.tiles
        band = lax.div(item, jnp.int32(GROUP * across))
        height = jnp.minimum(GROUP, down - band * GROUP)
        within = item - band * (GROUP * across)
        row, column = band * GROUP + lax.rem(within, height), lax.div(within, height)
        return row, jnp.where(lax.rem(band, jnp.int32(2)) == 0, column, across - 1 - column)


# What a program does in a cycle, to compare tiles by; fitted to times on an H200.
OPERATIONS = 3800  # of the matrix unit of a multiprocessor,
SET_UP = 16  # which works on each wgmma as long as on so many columns more
BYTES = 70  # read
STEP_CYCLES = 280.0  # to hand over a block, at least
TILE_CYCLES = 2000  # from the last block of a tile to the first of the next


def suitable_tile(shape: Shape) -> Tile:
    """The tile with the least estimated time, and among such the one that reads least."""
    tiles = (tile for tile in TILES if tile.columns > LEAST_COLUMNS * shape.swiglu)
    return min(
        (Plan(shape, tile) for tile in tiles), key=lambda plan: (cycles(plan), plan.items * plan.stage_bytes)
    ).tile


def cycles(plan: Plan) -> float:
    """Of a multiprocessor for the whole product, without those to start it."""
    tile = plan.tile
    multiply = 2 * tile.rows * tile.columns * plan.block * (1 + SET_UP / plan.width) / OPERATIONS
    step = max(multiply, plan.stage_bytes / BYTES, STEP_CYCLES)
    return -(-plan.items // plan.programs) * (plan.blocks * step + TILE_CYCLES)
