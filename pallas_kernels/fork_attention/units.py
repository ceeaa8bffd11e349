"""The work of one call divided into units, and the units among the programs of a grid.

A unit is a tile of query rows, for the heads of one tile, against a share of the tile's key blocks. A program that has
another unit to follow loads its first operands while the one before is finished, but it cannot take one from a program
that is late. So few units are given out beforehand, evenly by their length; many are one program each, which the card
starts in this order, longest first, wherever there is room.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int32

from pallas_kernels.fork_attention.runs import TileRuns

MOST_ROUNDS = 4  # units of a program
START_BLOCKS = 1  # what a unit costs beside its blocks, in blocks

# Columns of a unit; those of its runs follow.
TILE, HEAD_TILE, SPLIT, FIRST, LAST, CORES = range(6)
RUNS = 6


def runs_columns(sources: int) -> tuple[range, range, range, range]:
    """Columns of core_shift, core_end, masked_shift and masked_end."""
    begins = [RUNS + n * sources for n in (0, 1, 2, 4, 6)]
    return tuple(range(begin, end) for begin, end in zip(begins, begins[1:], strict=False))  # type: ignore[return-value]


def unit_table(
    runs: TileRuns, *, block: int, head_tiles: int, splits: int, multiprocessors: int
) -> Int32[Array, "rounds programs columns"]:
    """The unit of each program in each round; its TILE is -1 where there is none, which can be so in the last round."""
    blocks = runs.blocks(block)
    tiles, shares = blocks.shape[0], head_tiles * splits
    order = jnp.arange(tiles, dtype=jnp.int32)
    number = jnp.arange(tiles * shares, dtype=jnp.int32)[None]
    if number.size > multiprocessors:  # not all of them start at once: the longest have to be first
        order = jnp.argsort(-blocks).astype(jnp.int32)
    if multiprocessors < number.size <= MOST_ROUNDS * multiprocessors:
        number = _evenly(blocks[order] // splits + START_BLOCKS, shares, multiprocessors)

    tile = order[jnp.minimum(number // shares, tiles - 1)]
    split, is_unit = number % splits, number < tiles * shares
    columns = {
        TILE: jnp.where(is_unit, tile, -1),
        HEAD_TILE: number // splits % head_tiles,
        SPLIT: split,
        FIRST: jnp.where(is_unit, blocks[tile] * split // splits, 0),
        LAST: jnp.where(is_unit, blocks[tile] * (split + 1) // splits, 0),
        CORES: runs.cores(block)[tile],
    }
    lists = (runs.core_shift, runs.core_end, runs.masked_shift, runs.masked_end)
    return jnp.stack(
        [*(columns[n] for n in range(RUNS)), *(column[tile] for rows in lists for column in rows)], axis=-1
    )


def _evenly(lengths: Int32[Array, " tiles"], shares: int, programs: int) -> Int32[Array, "rounds programs"]:
    """Units, longest first, by round: those with the least to do so far get the longest of the next ones."""
    units = lengths.size * shares
    number = jnp.arange(programs, dtype=jnp.int32)
    given = [number]
    busy = lengths[number // shares]
    for following in range(programs, units, programs):
        earlier = (busy[None] < busy[:, None]) | ((busy[None] == busy[:, None]) & (number[None] > number[:, None]))
        given.append(following + jnp.sum(earlier, axis=1, dtype=jnp.int32))
        busy = busy + lengths[jnp.minimum(given[-1] // shares, lengths.size - 1)]
    return jnp.stack(given)
