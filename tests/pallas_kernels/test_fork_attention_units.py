"""Key lists of tiles, and the units they are divided into: numbers alone, no attention."""

from collections import Counter

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels.fork_attention import pallas, units
from pallas_kernels.fork_attention.cases import AWKWARD, CASES, Case
from pallas_kernels.fork_attention.metadata import PAGE_ROWS, CachedKeys, KeySpans
from pallas_kernels.fork_attention.runs import STRIP, TileRuns, tile_runs
from pallas_kernels.trees import Request


def listed(shifts, ends) -> list[tuple[int, int]]:
    """Run and key row of each position of a list."""
    found, begin = [], 0
    for run, (shift, end) in enumerate(zip(shifts, ends, strict=True)):
        found += [(run, position + int(shift)) for position in range(begin, int(end))]
        begin = int(end)
    return found


def check(spans: KeySpans, cached: CachedKeys | None, key_rows: int, *, rows: int, block: int) -> TileRuns:
    """Every row meets each key that it sees once, and others under the mask only; copies stay within the keys."""
    columns = [(spans.state_begin, spans.state_end), (spans.own_begin, spans.own_end)]
    if cached is not None:
        columns.insert(0, (cached.begin, cached.end))
    runs = jax.tree.map(np.asarray, tile_runs(spans, cached, rows=rows, block=block))
    for tile in range(runs.core_end.shape[1]):
        cores = listed(runs.core_shift[:, tile], runs.core_end[:, tile])
        masked = [(run // 2, key) for run, key in listed(runs.masked_shift[:, tile], runs.masked_end[:, tile])]
        assert len(cores) % block == 0 and len(masked) % STRIP == 0
        for keys, size in ((cores, block), (masked, STRIP)):
            for source, first in keys[::size]:
                is_page = cached is not None and source == 0
                assert first % (PAGE_ROWS if is_page and size == block else STRIP) == 0
                assert 0 <= first and first + size <= (cached.rows if is_page else key_rows)
        for lane in range(rows):
            row = tile * rows + lane
            sees = [] if row >= spans.own_end.size else [(int(begin[row]), int(end[row])) for begin, end in columns]
            expected = {(source, key) for source, span in enumerate(sees) for key in range(*span)}
            shown = list(zip(runs.visible_begin[:, tile, lane], runs.visible_end[:, tile, lane], strict=True))
            if not expected:
                assert shown == [(-1, 0), *[(0, 0)] * (len(shown) - 1)]
                continue
            under_mask = [masked[position] for begin, end in shown for position in range(begin, end)]
            assert Counter(cores + under_mask) == Counter(expected)
    return runs


@st.composite
def any_columns(draw, count: int, most: int) -> list[np.ndarray]:
    """Begins and ends of `count` rows: runs of rows with like spans, causal ones, windows, single keys, none."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    begin, end = np.zeros((2, count), np.int32)
    row = 0
    while row < count:
        here = slice(row, row + int(rng.integers(1, count)))
        length = begin[here].size
        first, last = np.sort(rng.integers(0, most + 1, 2))
        kind = rng.integers(0, 5)
        begin[here], end[here] = first, last
        if kind == 1:  # causal
            end[here] = np.minimum(first + 1 + np.arange(length), most)
        elif kind == 2:  # a window
            end[here] = np.minimum(first + 1 + np.arange(length), most)
            begin[here] = np.maximum(first, end[here] - 5)
        elif kind == 3:
            begin[here] = end[here] = draw(st.sampled_from([0, int(first)]))
        row = here.stop
    return [begin, end]


@settings(max_examples=60)
@given(st.data())
def test_any_spans_are_met_once(data):
    count, most, entries = 40, 512, 8
    state, own, cached = (data.draw(any_columns(count, n)) for n in (most, most, entries * PAGE_ROWS))
    pages = 2 * [np.zeros((1, PAGE_ROWS, 1, 1), np.float32)]
    table = np.zeros(entries, np.int32)
    of_pages = CachedKeys(*pages, table, *cached) if data.draw(st.booleans()) else None
    rows, block = data.draw(st.sampled_from([(8, 64), (32, 64), (32, 128)]))
    check(KeySpans(*state, *own), of_pages, most, rows=rows, block=block)


@pytest.mark.parametrize("name", AWKWARD)
def test_rounds_are_met_once(name):
    case = AWKWARD[name]
    pages = 2 * [np.zeros((1, PAGE_ROWS, 1, 1), np.float32)]
    cached = CachedKeys(*pages, case.table(), *case.cached_spans()) if case.cached else None
    check(case.spans(), cached, case.rows, rows=32, block=64)


def test_a_long_state_is_met_without_a_mask_and_its_end_with_the_branch():
    """What a fork saves, and that a short question does not pay for a block of the state's last keys alone."""
    case = Case([Request(327, [49, 49])])
    runs = check(case.spans(), None, case.rows, rows=32, block=64)
    branches = slice(-(-327 // 32), 425 // 32)  # tiles of branch rows alone
    np.testing.assert_array_equal(runs.cores(64)[branches], 5)
    np.testing.assert_array_equal(runs.blocks(64)[branches], [7, 6])


def test_rows_of_two_requests_in_a_tile_do_not_meet_what_lies_between_their_states():
    case = Case([Request(70, [16]), Request(2000, []), Request(58, [16])])
    runs = check(case.spans(), None, case.rows, rows=32, block=64)
    assert runs.masked_end[-1][2128 // 32] <= 70 + 58 + 2 * 16 + 6 * STRIP


def test_padding_rows_do_not_take_a_tile_its_core():
    case = Case([Request(640, [20])])
    runs = check(case.spans(), None, case.rows, rows=32, block=64)
    assert runs.cores(64)[20] == 10


@pytest.mark.parametrize("name", ["race-one", "multirc", "quality-one", "quality-all", "resumed"])
@pytest.mark.parametrize("splits", [1, 3])
def test_units_are_each_given_out_once(name, splits):
    case, block, head_tiles, programs = CASES[name], 64, 4, 132
    pages = 2 * [np.zeros((1, PAGE_ROWS, 1, 1), np.float32)]
    cached = CachedKeys(*pages, case.table(), *case.cached_spans()) if case.cached else None
    runs = tile_runs(case.spans(), cached, rows=32, block=block)
    options = {"block": block, "head_tiles": head_tiles, "splits": splits, "multiprocessors": programs}
    table = np.asarray(units.unit_table(runs, **options))
    blocks, tiles = np.asarray(runs.blocks(block)), case.rows // 32
    assert table.shape[0] <= units.MOST_ROUNDS
    assert (table[:-1, :, units.TILE] >= 0).all(), "only the last round may leave programs idle"
    used = table[table[..., units.TILE] >= 0]
    assert len(np.unique(used[:, : units.SPLIT + 1], axis=0)) == len(used) == tiles * head_tiles * splits
    for tile in range(tiles):
        shares = used[(used[:, units.TILE] == tile) & (used[:, units.HEAD_TILE] == 0)]
        shares = shares[np.argsort(shares[:, units.SPLIT])]
        np.testing.assert_array_equal(shares[1:, units.FIRST], shares[:-1, units.LAST])
        assert shares[0, units.FIRST] == 0 and shares[-1, units.LAST] == blocks[tile]
    lengths = table[..., units.LAST] - table[..., units.FIRST]
    if len(table) > 1:
        busy = np.where(table[..., units.TILE] >= 0, lengths + units.START_BLOCKS, 0).sum(axis=0)
        assert busy.max() <= max(1.4 * busy.mean(), lengths.max() + 2 * units.START_BLOCKS)
    else:
        assert table.shape[1] <= programs or (np.diff(lengths[0]) <= 1).all(), "the longest have to start first"


@pytest.mark.parametrize(
    ("name", "splits"), [("race-one", 1), ("race-all", 1), ("multirc", 1), ("quality-all", 1), ("resumed", 3)]
)
def test_keys_are_split_where_tiles_are_few_and_keys_are_many(name, splits):
    case = CASES[name]
    assert pallas._splits(case.rows // 32 * 4, case.rows, sum(case.cached), 64) == splits
