"""The kernel of fork attention for Hopper: a unit of rows against its key blocks, one after the other.

One block of three warpgroups works on one unit at a time: a tile of 128 rows of the matrix unit against a list of key
blocks (`runs`). Two warpgroups compute, in turns: while one exponentiates, the other has the tensor cores. The third
loads queries, keys and values, and goes on to the next unit (`units`) while the others finish the last one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array

from pallas_kernels.fork_attention import units
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from pallas_kernels.fork_attention.runs import STRIP
from pallas_kernels.mosaic import SWIZZLED

COMPUTE_WARPGROUPS = 2
WARPGROUP_ROWS = 64  # rows of one wgmma
TILE_ROWS = COMPUTE_WARPGROUPS * WARPGROUP_ROWS
STAGES = 2  # key blocks in flight
STAGED_COLUMNS = 128  # of the output, on their way from registers: whole rows of 256 would not fit beside the queries
HIDDEN = -1e30  # a masked score; finite, so that the difference of two of them is a number

_PER_ROW = plgpu.Layout.WGMMA.reduce(1)


class _Softmax(NamedTuple):
    """What a row carries from key block to key block; maxima are scaled by log2 e."""

    summed: Array  # float32 [64, D]
    maximum: Array  # float32 [64]
    total: Array  # float32 [64]


@dataclasses.dataclass(frozen=True)
class Blocking:
    """How the rows and keys of one call are divided; all static."""

    query_shape: tuple[int, ...]
    key_heads: int
    key_block: int
    tile_heads: int  # query heads of a tile
    splits: int
    cached: bool
    scale: float
    interpret: bool

    @property
    def tile_rows(self) -> int:
        """Query rows of a tile."""
        return TILE_ROWS // self.tile_heads

    @property
    def tiles(self) -> int:
        return self.query_shape[0] // self.tile_rows

    @property
    def head_tiles(self) -> int:
        return self.query_shape[1] // self.tile_heads

    @property
    def head_dim(self) -> int:
        return self.query_shape[2]

    @property
    def piece(self) -> int:
        """Rows of one head among a warpgroup's rows."""
        return min(self.tile_rows, WARPGROUP_ROWS)

    @property
    def pieces(self) -> int:
        return WARPGROUP_ROWS // self.piece

    @property
    def core_piece(self) -> int:
        """Keys of an unmasked block that one copy moves: those of a page stand together."""
        return min(self.key_block, PAGE_ROWS) if self.cached else self.key_block

    @property
    def sources(self) -> int:
        """Cached keys, the state's, the own ones."""
        return 3 if self.cached else 2


class _Unit:
    """What the table says of a unit. Its runs are read where they are needed, to spare registers."""

    def __init__(self, table: Any, step: Array, program: Array) -> None:
        self._column = lambda column: table[step, program, column]
        self.tile, self.head_tile, self.split, self.first, self.last, self.cores = map(self._column, range(units.RUNS))
        self.unmasked_last = jnp.clip(self.cores, self.first, self.last)

    def runs(self, shifts: range, ends: range) -> list[tuple[Array, Array]]:
        """Shift and end of each run of a list."""
        return [(self._column(shift), self._column(end)) for shift, end in zip(shifts, ends, strict=True)]


def kernel(blocking: Blocking, table_shape: tuple[int, ...]) -> Callable[..., Any]:
    """The kernel: (units, what rows see, query, key, value, pages) -> output, or the partial sums of all splits."""
    rounds, programs, _ = table_shape
    block, head_dim, splits = blocking.key_block, blocking.head_dim, blocking.splits
    core_shifts, core_ends, masked_shifts, masked_ends = units.runs_columns(blocking.sources)
    group_tiles = blocking.head_tiles // blocking.key_heads  # that share a key head
    staged_columns = min(head_dim, STAGED_COLUMNS)
    dtype = jnp.bfloat16

    def body(table: Any, visible: Any, query: Any, key: Any, value: Any, *refs: Any) -> None:
        page_table, key_pages, value_pages = refs[:3] if blocking.cached else (None, None, None)
        (
            *outputs,
            queries,
            keys,
            values,
            staged,
            query_ready,
            query_free,
            key_ready,
            value_ready,
            key_strips_ready,
            value_strips_ready,
            key_free,
            value_free,
            turn,
        ) = refs[3 * blocking.cached :]
        warpgroup, program = lax.axis_index("warpgroup"), lax.axis_index("program")

        def slot_of(unit: _Unit, done: Array, entry: Array) -> Array:
            return lax.rem(done + entry - unit.first, jnp.int32(STAGES))

        def part(unit: _Unit, of: Array | int, index: int) -> tuple[Any, Any, Array]:
            """The rows of one head: in a warpgroup's shared memory, in the stream, and which head."""
            row = jnp.int32(of * WARPGROUP_ROWS + index * blocking.piece)
            in_stream = jnp.maximum(unit.tile, 0) * blocking.tile_rows + lax.rem(row, jnp.int32(blocking.tile_rows))
            head = unit.head_tile * blocking.tile_heads + lax.div(row, jnp.int32(blocking.tile_rows))
            return pl.ds(index * blocking.piece, blocking.piece), pl.ds(in_stream, blocking.piece), head

        def compute(step: Array, done: Array) -> Array:
            unit = _Unit(table, step, program)
            mine = queries.at[warpgroup]
            lanes = pl.ds(warpgroup * WARPGROUP_ROWS, WARPGROUP_ROWS)

            def attend(entry: Array, carry: _Softmax, *, masked: bool) -> _Softmax:
                slot = slot_of(unit, done, entry)
                # Read for each masked block: held through the unmasked ones, they would cost their registers.
                bounds = [
                    plgpu.load(visible.at[unit.tile, column, lanes], layout=_PER_ROW, optimized=False)
                    for column in range(2 * blocking.sources if masked else 0)
                ]
                bounds[1::2] = [length.astype(jnp.uint32) for length in bounds[1::2]]
                plgpu.barrier_wait((key_strips_ready if masked else key_ready).at[slot])

                def multiply(ref: Any) -> Array:
                    plgpu.wgmma(ref, mine, keys.at[slot].transpose((1, 0)))
                    _take_turn(turn)
                    return ref[...]

                scores = pl.run_scoped(multiply, plgpu.ACC((WARPGROUP_ROWS, block), jnp.float32))
                plgpu.barrier_arrive(key_free.at[slot])
                pl.when(entry == unit.last - 1)(lambda: plgpu.barrier_arrive(query_free.at[warpgroup]))
                # Scaled before masking: a multiply-add of a masked score would overflow.
                scores = scores * (blocking.scale * math.log2(math.e))
                if masked:
                    column = plgpu.broadcasted_iota(jnp.int32, (WARPGROUP_ROWS, block), 1, layout=plgpu.Layout.WGMMA)
                    position = (entry - unit.cores) * block
                    seen = [  # as unsigned numbers, those before the begin are the largest: one comparison does
                        (column + _wide(position - begin, block)).astype(jnp.uint32) < _wide(length, block)
                        for begin, length in zip(bounds[::2], bounds[1::2], strict=True)
                    ]
                    scores = jnp.where(functools.reduce(jnp.logical_or, seen), scores, HIDDEN)
                maximum = jnp.maximum(carry.maximum, scores.max(axis=1))
                fade = jnp.exp2(carry.maximum - maximum)
                weights = jnp.exp2(scores - _wide(maximum, block))
                summed = carry.summed * _wide(fade, head_dim)
                rounded = weights.astype(dtype)
                plgpu.barrier_arrive(turn)
                plgpu.barrier_wait((value_strips_ready if masked else value_ready).at[slot])
                plgpu.barrier_wait(turn)
                total = carry.total * fade + weights.sum(axis=1)
                summed = _accumulate(summed, rounded, values.at[slot], interpret=blocking.interpret)
                plgpu.barrier_arrive(value_free.at[slot])
                return _Softmax(summed, maximum, total)

            carry = _Softmax(
                plgpu.layout_cast(jnp.zeros((WARPGROUP_ROWS, head_dim), jnp.float32), plgpu.Layout.WGMMA),
                plgpu.layout_cast(jnp.full((WARPGROUP_ROWS,), HIDDEN, jnp.float32), _PER_ROW),
                plgpu.layout_cast(jnp.zeros((WARPGROUP_ROWS,), jnp.float32), _PER_ROW),
            )
            plgpu.barrier_wait(query_ready.at[warpgroup])
            pl.when(warpgroup == 1)(lambda: plgpu.barrier_wait(turn))
            carry = lax.fori_loop(unit.first, unit.unmasked_last, functools.partial(attend, masked=False), carry)
            carry = lax.fori_loop(unit.unmasked_last, unit.last, functools.partial(attend, masked=True), carry)
            # Rows of padding may have met unmasked keys. A program that has no unit left reads any tile's.
            tile = jnp.maximum(unit.tile, 0)
            idle = plgpu.load(visible.at[tile, 0, lanes], layout=_PER_ROW, optimized=False) < 0
            carry = _Softmax(
                jnp.where(_wide(idle, head_dim), 0.0, carry.summed),
                jnp.where(idle, HIDDEN, carry.maximum),
                carry.total,
            )
            pl.when(unit.first == unit.last)(lambda: plgpu.barrier_arrive(query_free.at[warpgroup]))
            pl.when(warpgroup == 0)(lambda: _take_turn(turn))
            # Before the output is written: the other one need not wait for that to begin its next unit.
            pl.when((warpgroup == 1) & (step + 1 < rounds))(lambda: plgpu.barrier_arrive(turn))

            pl.when(unit.tile >= 0)(functools.partial(store, unit, carry))
            return done + unit.last - unit.first

        def store(unit: _Unit, carry: _Softmax) -> None:
            if splits > 1:
                lanes = pl.ds(warpgroup * WARPGROUP_ROWS, WARPGROUP_ROWS)
                for output, rows in zip(outputs, carry, strict=True):
                    output.at[unit.split, unit.tile, unit.head_tile, lanes][...] = rows
                return
            # A row that saw nothing still holds its first maximum. A NaN is not <=, and stays.
            inverse = jnp.where(carry.maximum <= HIDDEN, 0.0, 1.0 / carry.total)
            mean = (carry.summed * _wide(inverse, head_dim)).astype(dtype)
            for begin in range(0, head_dim, staged_columns):
                plgpu.wait_smem_to_gmem(0, wait_read_only=True)
                staged.at[warpgroup][...] = mean[:, begin : begin + staged_columns]
                plgpu.commit_smem()
                for index in range(blocking.pieces):
                    in_smem, in_stream, head = part(unit, warpgroup, index)
                    columns = pl.ds(begin, staged_columns)
                    plgpu.copy_smem_to_gmem(staged.at[warpgroup, in_smem], outputs[0].at[in_stream, head, columns])

        def load(step: Array, done: Array) -> Array:
            unit = _Unit(table, step, program)
            core_runs = unit.runs(core_shifts, core_ends)  # read before the queries are asked for: keys wait for them
            for of in range(COMPUTE_WARPGROUPS):
                pl.when(step > 0)(functools.partial(plgpu.barrier_wait, query_free.at[of]))
                for index in range(blocking.pieces):
                    in_smem, in_stream, head = part(unit, of, index)
                    plgpu.copy_gmem_to_smem(query.at[in_stream, head], queries.at[of, in_smem], query_ready.at[of])
            key_head = lax.div(unit.head_tile, jnp.int32(group_tiles))

            def load_block(entry: Array, _: Any, *, runs: list[tuple[Array, Array]], masked: bool) -> None:
                slot = slot_of(unit, done, entry)
                size = STRIP if masked else blocking.core_piece
                cached_end = runs[len(runs) // 3 - 1][1]  # where the runs of cached keys are: they stand first
                first = (entry - unit.cores if masked else entry) * block

                def fill(source: Any, pages: Any, smem: Any, free: Any, ready: Any) -> None:
                    pl.when(done + entry - unit.first >= STAGES)(lambda: plgpu.barrier_wait(free.at[slot]))

                    def copy(index: Array, _: Any) -> None:
                        position = first + index * size
                        row = _key_row(runs, position)
                        place = smem.at[slot, pl.ds(pl.multiple_of(index * size, STRIP), size)]

                        def copy_from(origin: Any, row: Array) -> None:
                            rows = pl.ds(pl.multiple_of(row, STRIP), size)
                            plgpu.copy_gmem_to_smem(origin.at[rows, key_head], place, ready.at[slot])

                        if not blocking.cached:
                            return copy_from(source, row)
                        is_cached = position < cached_end

                        @pl.when(is_cached)
                        def _from_page() -> None:
                            page = page_table[lax.div(row, jnp.int32(PAGE_ROWS))]
                            copy_from(pages, page * PAGE_ROWS + lax.rem(row, jnp.int32(PAGE_ROWS)))

                        pl.when(jnp.logical_not(is_cached))(lambda: copy_from(source, row))

                    lax.fori_loop(0, block // size, copy, None)

                fill(key, key_pages, keys, key_free, key_strips_ready if masked else key_ready)
                fill(value, value_pages, values, value_free, value_strips_ready if masked else value_ready)

            load_core = functools.partial(load_block, runs=core_runs, masked=False)
            lax.fori_loop(unit.first, unit.unmasked_last, load_core, None)
            load_masked = functools.partial(load_block, runs=unit.runs(masked_shifts, masked_ends), masked=True)
            lax.fori_loop(unit.unmasked_last, unit.last, load_masked, None)
            return done + unit.last - unit.first

        @pl.when(warpgroup < COMPUTE_WARPGROUPS)
        def _compute() -> None:
            plgpu.set_max_registers(232, action="increase")
            pl.when(warpgroup == 1)(lambda: plgpu.barrier_arrive(turn))
            lax.fori_loop(0, rounds, compute, jnp.int32(0))
            if splits == 1:
                plgpu.wait_smem_to_gmem(0)

        @pl.when(warpgroup == COMPUTE_WARPGROUPS)
        def _load() -> None:
            plgpu.set_max_registers(40, action="decrease")
            done = lax.fori_loop(0, rounds, load, jnp.int32(0))

            def drain(entry: Array, _: Any) -> None:  # the interpreter wants every phase of a barrier observed
                for free in (key_free, value_free):
                    plgpu.barrier_wait(free.at[lax.rem(entry, jnp.int32(STAGES))])

            lax.fori_loop(jnp.maximum(done - STAGES, 0), done, drain, None)
            for of in range(COMPUTE_WARPGROUPS):
                plgpu.barrier_wait(query_free.at[of])

    partial = (splits, blocking.tiles, blocking.head_tiles, TILE_ROWS)
    sums = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((*partial, head_dim), partial, partial))
    blocks = plgpu.SMEM((STAGES, block, head_dim), dtype, transforms=SWIZZLED)

    def ready(copies: int) -> Any:
        return plgpu.Barrier(num_arrivals=copies, num_barriers=STAGES)

    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(blocking.query_shape, dtype) if splits == 1 else sums,
        grid=(programs,),
        kernel_name="fork_attention",
        grid_names=("program",),
        num_threads=COMPUTE_WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        scratch_types=[
            plgpu.SMEM((COMPUTE_WARPGROUPS, WARPGROUP_ROWS, head_dim), dtype, transforms=SWIZZLED),
            blocks,
            blocks,
            plgpu.SMEM((COMPUTE_WARPGROUPS, WARPGROUP_ROWS, staged_columns), dtype, transforms=SWIZZLED),
            plgpu.Barrier(num_arrivals=blocking.pieces, num_barriers=COMPUTE_WARPGROUPS),
            plgpu.Barrier(num_barriers=COMPUTE_WARPGROUPS),
            ready(block // blocking.core_piece),
            ready(block // blocking.core_piece),
            ready(block // STRIP),
            ready(block // STRIP),
            ready(COMPUTE_WARPGROUPS),
            ready(COMPUTE_WARPGROUPS),
            plgpu.Barrier(num_arrivals=COMPUTE_WARPGROUPS),
        ],
    )


def _key_row(runs: list[tuple[Array, Array]], position: Array) -> Array:
    """The key row at a position of a list; row 0 beyond its end."""
    shift = -position
    for run_shift, run_end in reversed(runs):
        shift = jnp.where(position < run_end, run_shift, shift)
    return position + shift


def _accumulate(summed: Array, weights: Array, values: Any, *, interpret: bool) -> Array:
    """summed + weights @ values, with the sum left in registers."""
    if interpret:  # neither a given accumulator nor operands in registers can be interpreted
        return summed + jnp.dot(weights, values[...], preferred_element_type=jnp.float32)
    return pl.run_state(lambda ref: plgpu.wgmma(ref, weights, values))(plgpu.ACC.init(summed))


def _take_turn(turn: Any) -> None:
    """Wait until the other computing warpgroup gets here too: one multiplies while the other exponentiates."""
    plgpu.barrier_arrive(turn)
    plgpu.barrier_wait(turn)


def _wide(x: Array, columns: int) -> Array:
    """One value a row, repeated along the row."""
    return lax.broadcast_in_dim(x, (WARPGROUP_ROWS, columns), [0])
