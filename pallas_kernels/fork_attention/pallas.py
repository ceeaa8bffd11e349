"""Fork attention for Hopper in Pallas Mosaic GPU: wgmma on bfloat16, float32 softmax and sums.

One block of three warpgroups works on one tile: 128 rows of the matrix unit, that is some query rows times the heads
of a key head's group, so that a key is loaded once a group. Two warpgroups compute, in turns: while one exponentiates,
the other has the tensor cores. The third streams keys and values. The list of key blocks of a tile (`tiles`) is first
the blocks that every row sees whole, then the masked ones of the state, then the masked ones of the branches.
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
from jaxtyping import Array, Float, Int32

from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.fork_attention.tiles import ALIGNMENT, tile_table
from pallas_kernels.mosaic import MULTIPROCESSORS, SWIZZLED, interpreted

COMPUTE_WARPGROUPS = 2
WARPGROUP_ROWS = 64  # rows of one wgmma
TILE_ROWS = COMPUTE_WARPGROUPS * WARPGROUP_ROWS
KEY_BLOCK = {64: 128, 128: 128, 256: 64}  # keys of a block by head size: what registers and shared memory hold
STAGES = 2  # key blocks in flight
HIDDEN = -1e30  # a masked score; finite, so that the difference of two of them is a number
MOST_SPLITS = 8

_PER_ROW = plgpu.Layout.WGMMA.reduce(1)


class _Softmax(NamedTuple):
    """What a row carries from key block to key block; maxima are scaled by log2 e."""

    summed: Array  # float32 [64, D]
    maximum: Array  # float32 [64]
    total: Array  # float32 [64]


@functools.partial(jax.jit, static_argnames=("scale", "splits", "interpret"))  # lowered once for all layers
def fork_attention(
    query: Float[Array, "N H D"],
    key: Float[Array, "T KV D"],
    value: Float[Array, "T KV D"],
    spans: KeySpans,
    *,
    scale: float,
    splits: int | None = None,
    interpret: bool = False,
) -> Float[Array, "N H D"]:
    """See `api.fork_attention`.

    Args:
        splits: over how many programs the key blocks of a tile are divided, None for a number that fills the card when
            there are few rows. It depends on shapes alone.
        interpret: run on the host, to check the kernel without a GPU.

    Raises:
        NotImplementedError: not bfloat16, or a head size without tuned blocks.
    """
    rows, heads, head_dim = query.shape
    key_heads = key.shape[1]
    if not query.dtype == key.dtype == value.dtype == jnp.bfloat16:
        raise NotImplementedError(f"fork_attention by pallas is for bfloat16, not {query.dtype}")
    if head_dim not in KEY_BLOCK:
        raise NotImplementedError(
            f"fork_attention by pallas has head sizes {', '.join(map(str, KEY_BLOCK))}, not {head_dim}"
        )
    block = KEY_BLOCK[head_dim]
    # Heads of one tile: a power of two that divides the group, so that tiles are whole.
    tile_heads = math.gcd(heads // key_heads, 16)
    tile_rows = TILE_ROWS // tile_heads

    key, value = _without_broken_values(key, value)
    keys = max(block, -(-key.shape[0] // ALIGNMENT) * ALIGNMENT)
    key, value, query = _padded(key, keys), _padded(value, keys), _padded(query, -(-rows // tile_rows) * tile_rows)
    tiles = query.shape[0] // tile_rows
    programs = tiles * heads // tile_heads
    if splits is None:
        splits = max(1, min(MOST_SPLITS, MULTIPROCESSORS // programs, key.shape[0] // (4 * block)))
    blocking = _Blocking(
        query_shape=query.shape,
        key_shape=key.shape,
        key_block=block,
        tile_heads=tile_heads,
        splits=splits,
        scale=scale,
        interpret=interpret,
    )
    table = tile_table(spans, rows=tile_rows, block=block).packed()
    with interpreted(interpret):
        out = _call(blocking)(table, _row_spans(spans, blocking), query, key, value)
    return (out if splits == 1 else _combined(blocking, *out).astype(query.dtype))[:rows]


@dataclasses.dataclass(frozen=True)
class _Blocking:
    """How the rows and keys of one call are divided; all static."""

    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    key_block: int
    tile_heads: int  # query heads of a tile
    splits: int
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


def _without_broken_values(
    key: Float[Array, "T KV D"], value: Float[Array, "T KV D"]
) -> tuple[Float[Array, "T KV D"], Float[Array, "T KV D"]]:
    """A value that is not finite moves to its key, where a mask can hide it; a zero weight could not: 0 * NaN is NaN.

    XLA fuses this into whatever made keys and values.
    """
    finite = jnp.isfinite(value)
    key = jnp.where(jnp.all(finite, axis=-1, keepdims=True), key, jnp.nan)
    return key, jnp.where(finite, value, 0)


def _padded(x: Float[Array, "N heads D"], rows: int) -> Float[Array, "rows heads D"]:
    """No copy for the rows of a stream at the released sizes; of read rows there may be one."""
    return jnp.pad(x, ((0, rows - x.shape[0]), (0, 0), (0, 0)))


def _row_spans(spans: KeySpans, blocking: _Blocking) -> Int32[Array, "tiles 4 128"]:
    """state_begin, state_end, own_begin, own_end of each row of the matrix unit: head by head, the tile's rows."""
    columns = jnp.stack([jnp.asarray(span) for span in jax.tree.leaves(spans)])
    tiles, heads, rows = blocking.tiles, blocking.tile_heads, blocking.tile_rows
    columns = jnp.pad(columns, ((0, 0), (0, tiles * rows - columns.shape[1]))).reshape(4, tiles, 1, rows)
    return jnp.broadcast_to(columns, (4, tiles, heads, rows)).transpose(1, 0, 2, 3).reshape(tiles, 4, TILE_ROWS)


def _combined(
    blocking: _Blocking,
    summed: Float[Array, "splits tiles head_tiles 128 D"],
    maximum: Float[Array, "splits tiles head_tiles 128"],
    total: Float[Array, "splits tiles head_tiles 128"],
) -> Float[Array, "N H D"]:
    """Softmax over all splits from the sums of each."""
    weight = jnp.exp2(maximum - jnp.max(maximum, axis=0, keepdims=True))
    weight = jnp.where(maximum <= HIDDEN, 0, weight)
    total = jnp.sum(weight * total, axis=0)
    mean = jnp.sum(weight[..., None] * summed, axis=0) / jnp.where(total == 0, 1, total)[..., None]
    tiles, head_tiles, rows = blocking.tiles, blocking.head_tiles, blocking.tile_rows
    mean = mean.reshape(tiles, head_tiles, blocking.tile_heads, rows, blocking.head_dim)
    return mean.transpose(0, 3, 1, 2, 4).reshape(blocking.query_shape)


class _BlockList:
    """The key blocks of one tile as they are met: the cores, then the masked ones of the state and of the branches."""

    def __init__(self, table: Any, tile: Array, blocking: _Blocking) -> None:
        self._hulls, self._core_begins, core_ends, blocks = (
            [table[tile, 2 * column + source] for source in range(2)] for column in range(4)
        )
        self._block, self._keys = blocking.key_block, blocking.key_shape[0]
        self._cores = [end - begin for begin, end in zip(self._core_begins, core_ends, strict=True)]
        masked = [count - cores for count, cores in zip(blocks, self._cores, strict=True)]
        self.cores = self._cores[0] + self._cores[1]
        self.masked_of_state = self.cores + masked[0]
        self.count = self.masked_of_state + masked[1]

    def begin(self, entry: Array) -> Array:
        """The first key of an entry."""
        in_core = self._core_begins[0] + entry, self._core_begins[1] + entry - self._cores[0]
        # Masked blocks stand before and after the core of their hull.
        masked = entry - self.cores, entry - self.masked_of_state
        around = [
            index + jnp.where(index < begin, 0, cores)
            for index, begin, cores in zip(masked, self._core_begins, self._cores, strict=True)
        ]
        return jnp.where(
            entry < self.cores,
            jnp.where(entry < self._cores[0], self._at(0, in_core[0]), self._at(1, in_core[1])),
            jnp.where(entry < self.masked_of_state, self._at(0, around[0]), self._at(1, around[1])),
        )

    def loaded_from(self, entry: Array) -> Array:
        """Where its copy begins: the last block of the stream is moved back to lie inside it."""
        return jnp.minimum(self.begin(entry), self._keys - self._block)

    def _at(self, source: int, index: Array) -> Array:
        return self._hulls[source] + index * self._block


def _call(blocking: _Blocking) -> Callable[..., Any]:
    """The kernel: (tile table, row spans, query, key, value) -> output, or the partial sums of all splits."""
    key_heads = blocking.key_shape[1]
    block, head_dim, splits = blocking.key_block, blocking.head_dim, blocking.splits
    dtype = jnp.bfloat16

    def body(table: Any, row_spans: Any, query: Any, key: Any, value: Any, *refs: Any) -> None:
        *outputs, rows_smem, key_smem, value_smem, rows_ready, key_ready, value_ready, key_free, value_free, turn = refs
        warpgroup = lax.axis_index("warpgroup")
        # The tiles of most blocks stand last in a stream: they start first, so that the short ones fill the end.
        tile = blocking.tiles - 1 - lax.axis_index("tile")
        head_tile, split = lax.axis_index("head"), lax.axis_index("split")
        entries = _BlockList(table, tile, blocking)
        first = lax.div(entries.count * split, jnp.int32(splits))
        last = lax.div(entries.count * (split + 1), jnp.int32(splits))

        def slot_of(entry: Array) -> Array:
            return lax.rem(entry - first, jnp.int32(STAGES))

        def part(index: int) -> tuple[Any, Any, Array]:
            """The rows of one head: in this warpgroup's shared memory, in the stream, and which head."""
            row = warpgroup * WARPGROUP_ROWS + index * blocking.piece
            in_stream = tile * blocking.tile_rows + lax.rem(row, jnp.int32(blocking.tile_rows))
            head = head_tile * blocking.tile_heads + lax.div(row, jnp.int32(blocking.tile_rows))
            return pl.ds(index * blocking.piece, blocking.piece), pl.ds(in_stream, blocking.piece), head

        @pl.when(warpgroup < COMPUTE_WARPGROUPS)
        def _compute() -> None:
            plgpu.set_max_registers(232, action="increase")
            mine = rows_smem.at[warpgroup]
            for index in range(blocking.pieces):
                in_smem, in_stream, head = part(index)
                plgpu.copy_gmem_to_smem(query.at[in_stream, head], mine.at[in_smem], rows_ready.at[warpgroup])
            lanes = pl.ds(warpgroup * WARPGROUP_ROWS, WARPGROUP_ROWS)
            state_begin, state_end, own_begin, own_end = (
                plgpu.load(row_spans.at[tile, column, lanes], layout=_PER_ROW, optimized=False) for column in range(4)
            )
            plgpu.barrier_wait(rows_ready.at[warpgroup])

            def attend(entry: Array, carry: _Softmax, span: tuple[Array, Array] | None) -> _Softmax:
                slot = slot_of(entry)
                plgpu.barrier_wait(key_ready.at[slot])

                def multiply(ref: Any) -> Array:
                    plgpu.wgmma(ref, mine, key_smem.at[slot].transpose((1, 0)))
                    _take_turn(turn)
                    return ref[...]

                scores = pl.run_scoped(multiply, plgpu.ACC((WARPGROUP_ROWS, block), jnp.float32))
                plgpu.barrier_arrive(key_free.at[slot])
                # Scaled before masking: a multiply-add of a masked score would overflow.
                scores = scores * (blocking.scale * math.log2(math.e))
                if span is not None:
                    # A block that was moved back begins with keys of the block before it.
                    begin = jnp.maximum(span[0], entries.begin(entry))
                    index = plgpu.broadcasted_iota(jnp.int32, (WARPGROUP_ROWS, block), 1, layout=plgpu.Layout.WGMMA)
                    index = index + entries.loaded_from(entry)
                    visible = (index >= _wide(begin, block)) & (index < _wide(span[1], block))
                    scores = jnp.where(visible, scores, HIDDEN)
                maximum = jnp.maximum(carry.maximum, scores.max(axis=1))
                fade = jnp.exp2(carry.maximum - maximum)
                weights = jnp.exp2(scores - _wide(maximum, block))
                summed = carry.summed * _wide(fade, head_dim)
                rounded = weights.astype(dtype)
                plgpu.barrier_arrive(turn)
                plgpu.barrier_wait(value_ready.at[slot])
                plgpu.barrier_wait(turn)
                total = carry.total * fade + weights.sum(axis=1)
                summed = _accumulate(summed, rounded, value_smem.at[slot], interpret=blocking.interpret)
                plgpu.barrier_arrive(value_free.at[slot])
                return _Softmax(summed, maximum, total)

            carry = _Softmax(
                plgpu.layout_cast(jnp.zeros((WARPGROUP_ROWS, head_dim), jnp.float32), plgpu.Layout.WGMMA),
                plgpu.layout_cast(jnp.full((WARPGROUP_ROWS,), HIDDEN, jnp.float32), _PER_ROW),
                plgpu.layout_cast(jnp.zeros((WARPGROUP_ROWS,), jnp.float32), _PER_ROW),
            )
            pl.when(warpgroup == 1)(lambda: _take_turn(turn))
            lower = first
            for upper, span in (
                (entries.cores, None),
                (entries.masked_of_state, (state_begin, state_end)),
                (entries.count, (own_begin, own_end)),
            ):
                upper = jnp.clip(upper, first, last)
                carry = lax.fori_loop(lower, upper, functools.partial(attend, span=span), carry)
                lower = upper
            pl.when(warpgroup == 0)(lambda: _take_turn(turn))

            if splits > 1:
                place = (split, tile, head_tile, lanes)
                for output, values in zip(outputs, carry, strict=True):
                    output.at[place][...] = values
                return
            # A row that saw nothing still holds its first maximum. A NaN is not <=, and stays.
            inverse = jnp.where(carry.maximum <= HIDDEN, 0.0, 1.0 / carry.total)
            mine[...] = (carry.summed * _wide(inverse, head_dim)).astype(dtype)
            plgpu.commit_smem()
            for index in range(blocking.pieces):
                in_smem, in_stream, head = part(index)
                plgpu.copy_smem_to_gmem(mine.at[in_smem], outputs[0].at[in_stream, head])
            plgpu.wait_smem_to_gmem(0)

        @pl.when(warpgroup == COMPUTE_WARPGROUPS)
        def _stream_keys() -> None:
            plgpu.set_max_registers(40, action="decrease")
            key_head = lax.div(head_tile, jnp.int32(blocking.head_tiles // key_heads))
            streams = ((key, key_smem, key_ready, key_free), (value, value_smem, value_ready, value_free))

            def load(entry: Array, _: Any) -> None:
                slot = slot_of(entry)
                rows = pl.ds(pl.multiple_of(entries.loaded_from(entry), ALIGNMENT), block)
                for source, smem, ready, free in streams:
                    pl.when(entry - first >= STAGES)(functools.partial(plgpu.barrier_wait, free.at[slot]))
                    plgpu.copy_gmem_to_smem(source.at[rows, key_head], smem.at[slot], ready.at[slot])

            lax.fori_loop(first, last, load, None)

            def drain(entry: Array, _: Any) -> None:  # the interpreter wants every phase of a barrier observed
                for free in (key_free, value_free):
                    plgpu.barrier_wait(free.at[slot_of(entry)])

            lax.fori_loop(jnp.maximum(last - STAGES, first), last, drain, None)

    partial = (splits, blocking.tiles, blocking.head_tiles, TILE_ROWS)
    sums = tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((*partial, head_dim), partial, partial))
    ready, free = (
        plgpu.Barrier(num_barriers=STAGES),
        plgpu.Barrier(num_arrivals=COMPUTE_WARPGROUPS, num_barriers=STAGES),
    )
    blocks = plgpu.SMEM((STAGES, block, head_dim), dtype, transforms=SWIZZLED)
    return plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(blocking.query_shape, dtype) if splits == 1 else sums,
        grid=(blocking.tiles, blocking.head_tiles, splits),
        kernel_name="fork_attention",
        grid_names=("tile", "head", "split"),
        num_threads=COMPUTE_WARPGROUPS + 1,
        thread_name="warpgroup",
        compiler_params=plgpu.CompilerParams(approx_math=True),
        scratch_types=[
            plgpu.SMEM((COMPUTE_WARPGROUPS, WARPGROUP_ROWS, head_dim), dtype, transforms=SWIZZLED),
            blocks,
            blocks,
            plgpu.Barrier(num_arrivals=blocking.pieces, num_barriers=COMPUTE_WARPGROUPS),
            ready,
            ready,
            free,
            free,
            plgpu.Barrier(num_arrivals=COMPUTE_WARPGROUPS),
        ],
    )


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
