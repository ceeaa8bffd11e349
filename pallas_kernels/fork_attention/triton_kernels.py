"""The kernel of fork attention in Triton's language. It imports triton, so only `triton.py` imports this."""

from typing import no_type_check

import triton
import triton.language as tl

HIDDEN = tl.constexpr(-1e30)  # the maximum of a row that saw nothing; finite, so that a difference of two is a number


@triton.jit
@no_type_check
def attend(
    core_shift,  # int32 [S, tiles], as the next one: see `runs.TileRuns`
    core_end,
    masked_shift,  # int32 [2S, tiles], as the next one
    masked_end,
    visible_begin,  # int32 [S, tiles, tile rows], as the next one
    visible_end,
    query,  # [N, H, D]
    key,  # [T, KV, D]
    value,
    page_table,  # int32 [entries], or None as the next two
    key_pages,  # [pages, page rows, KV, D]
    value_pages,
    out,  # [splits, N, H, D]
    log_sums,  # float32 [splits, N, H]
    query_rows,  # N
    key_rows,  # T
    sources: tl.constexpr,  # S: cached keys where there are any, the state's, the own ones
    page_rows: tl.constexpr,
    heads: tl.constexpr,
    key_heads: tl.constexpr,
    head_dim: tl.constexpr,
    tile_rows: tl.constexpr,  # query rows of a tile
    tile_heads: tl.constexpr,  # heads of a tile: they share a key head
    block: tl.constexpr,  # keys of a block
    splits: tl.constexpr,
    scale: tl.constexpr,  # of the scores, times log2 e
    precision: tl.constexpr,
):
    """One program takes one tile and one of `splits` shares of the tile's key blocks.

    The softmax over that share goes to `out`, and log2 of the sum of its exponentials to `log_sums`, HIDDEN for a row
    that sees nothing there.
    """
    # The last rows of a stream, those of branches, see the most: they begin first.
    tiles = tl.num_programs(0)
    tile = tiles - 1 - tl.program_id(0)
    head_tile, split = tl.program_id(1), tl.program_id(2)
    lane = tl.arange(0, tile_rows * tile_heads)
    row = tile * tile_rows + lane // tile_heads
    there = row < query_rows
    place = row * heads + head_tile * tile_heads + lane % tile_heads
    channel = tl.arange(0, head_dim)[None, :]
    q = tl.load(query + place[:, None] * head_dim + channel, mask=there[:, None], other=0.0)
    channel += head_tile * tile_heads // (heads // key_heads) * head_dim
    key_row_size = key_heads * head_dim

    core_shifts, core_ends = _column(core_shift + tile, tiles, sources), _column(core_end + tile, tiles, sources)
    shifts, ends = _column(masked_shift + tile, tiles, 2 * sources), _column(masked_end + tile, tiles, 2 * sources)
    whole = core_ends[sources - 1] // block  # blocks that every row sees whole
    keys = ends[2 * sources - 1]  # that some rows see, and those between them
    share = tl.cdiv(whole + tl.cdiv(keys, block), splits)
    first, last = split * share, split * share + share

    summed = tl.zeros([tile_rows * tile_heads, head_dim], tl.float32)
    maximum = tl.full([tile_rows * tile_heads], HIDDEN, tl.float32)
    total = tl.zeros([tile_rows * tile_heads], tl.float32)
    for index in range(first, tl.minimum(last, whole)):
        position = index * block
        y = position + _shift(core_shifts, core_ends, position, sources)
        key_from, value_from = key, value
        if sources == 3:  # a block of cached keys lies in one page
            cached = position < core_ends[0]
            y = tl.where(cached, _cached_row(page_table, y, cached, page_rows), y)
            key_from, value_from = tl.where(cached, key_pages, key), tl.where(cached, value_pages, value)
        offset = (y + tl.arange(0, block))[:, None] * key_row_size + channel
        summed, maximum, total = _meet(
            summed, maximum, total, q, key_from + offset, value_from + offset, None, None, scale, precision
        )
    for index in range(tl.maximum(first - whole, 0), tl.minimum(last - whole, tl.cdiv(keys, block))):
        position = index * block + tl.arange(0, block)
        y = position + _shift(shifts, ends, position, 2 * sources)
        exists = (position < keys) & (y < key_rows)
        key_from, value_from = key, value
        if sources == 3:
            cached = position < ends[1]
            exists |= cached
            y = tl.where(cached, _cached_row(page_table, y, cached, page_rows), y)
            key_from = tl.where(cached, key_pages, key)[:, None]
            value_from = tl.where(cached, value_pages, value)[:, None]
        seen = tl.zeros([tile_rows * tile_heads, block], tl.int1)
        for source in tl.static_range(sources):
            begin = tl.load(visible_begin + source * tiles * tile_rows + row)
            end = tl.load(visible_end + source * tiles * tile_rows + row)
            seen |= (begin[:, None] <= position[None, :]) & (position[None, :] < end[:, None])
        offset = y[:, None] * key_row_size + channel
        summed, maximum, total = _meet(
            summed, maximum, total, q, key_from + offset, value_from + offset, exists[:, None], seen, scale, precision
        )

    # A row that sees nothing at all has been shown the cores, too. A NaN is not equal to zero, and stays.
    saw = (total != 0.0) & (tl.load(visible_begin + row) >= 0)
    result = tl.where(saw[:, None], summed / total[:, None], 0.0)
    place += split * query_rows * heads
    offset = place[:, None] * head_dim + tl.arange(0, head_dim)[None, :]
    tl.store(out + offset, result.to(out.dtype.element_ty), mask=there[:, None])
    tl.store(log_sums + place, tl.where(saw, maximum + tl.log2(total), HIDDEN), mask=there)


@triton.jit
@no_type_check
def _column(first, stride, count: tl.constexpr):
    """`count` numbers that stand `stride` apart."""
    column = ()
    for index in tl.static_range(count):
        column += (tl.load(first + index * stride),)
    return column


@triton.jit
@no_type_check
def _shift(shifts, ends, position, runs: tl.constexpr):
    """What leads from a position to its key row: the shift of the first run that ends behind it."""
    shift = shifts[runs - 1]
    for run in tl.static_range(runs - 2, -1, -1):
        shift = tl.where(position < ends[run], shifts[run], shift)
    return shift


@triton.jit
@no_type_check
def _cached_row(page_table, y, cached, page_rows: tl.constexpr):
    """The row among those of all pages that holds cached row y; times a row's size it may need 64 bits."""
    page = tl.load(page_table + y // page_rows, mask=cached, other=0)
    return page.to(tl.int64) * page_rows + y % page_rows


@triton.jit
@no_type_check
def _meet(summed, maximum, total, q, keys, values, exists, seen, scale: tl.constexpr, precision: tl.constexpr):
    """What a row carries, after a block of keys; `exists` and `seen` are None where every row sees all of it."""
    k = tl.load(keys, mask=exists)
    # Scaled before masking: a multiply-add of a masked score would overflow.
    scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale
    if seen is not None:
        scores = tl.where(seen, scores, HIDDEN)
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    fade = tl.exp2(maximum - new_maximum)
    weights = tl.exp2(scores - new_maximum[:, None])
    v = tl.load(values, mask=exists, other=None if exists is None else 0.0)
    if seen is not None:  # a row that has seen nothing yet would give weight 1 to what it does not see
        weights = tl.where(seen, weights, 0.0)
    total = total * fade + tl.sum(weights, axis=1)
    summed = tl.dot(weights.to(v.dtype), v, summed * fade[:, None], input_precision=precision)
    return summed, new_maximum, total
