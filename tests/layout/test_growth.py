"""Growing rounds against loops over tokens: what each row sees, follows and starts from, and where it is kept."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flide_jax.layout import Capacity, Demand, Growth, MetadataLayout, lay_out
from flide_jax.layout.growth import NOT_KEPT
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from tests.trees import plan_of, trees

TAPS = 4
LAYOUT = MetadataLayout(Capacity(tokens=1_100, requests=5, branches=260, reads=300, chunks=300, entries=40), TAPS)
unpack = jax.jit(LAYOUT.unpack)


@st.composite
def rounds(draw):
    """Plans whose states may be resumed and saved at any token; every page and slot is used once."""
    plans = draw(trees(most_tokens=700, most_branches=20))
    pages, slots = iter(draw(st.permutations(range(60)))), iter(draw(st.permutations(range(20))))
    growths = []
    for plan in plans:
        resumed = draw(st.one_of(st.just(0), st.integers(0, plan.state.size)))
        saved = draw(st.one_of(st.just(0), st.integers(0, plan.state.size - resumed)))
        cached = [next(pages) for _ in range(-(-resumed // PAGE_ROWS))]
        kept = cached[-1:] if resumed % PAGE_ROWS and draw(st.booleans()) else []
        first, last = resumed // PAGE_ROWS, (resumed + saved - 1) // PAGE_ROWS
        written = [*kept, *(next(pages) for _ in range(last - first + 1 - len(kept)))] if saved else []
        growths.append(
            Growth(resumed, next(slots), np.array(cached, np.int32), saved, next(slots), np.array(written, np.int32))
        )
    return plans, growths


def metadata_of(plans, growths):
    stream = lay_out(plans, growths)
    return stream, jax.tree.map(np.asarray, unpack(LAYOUT.pack(stream)))


def texts_of(plans, growths):
    """(request, branch or None, rows of the text in the stream) of every state and branch; -i stands for a token that
    was resumed, the i-th before the first row."""
    found, row = [], 0
    states = []
    for number, (plan, growth) in enumerate(zip(plans, growths, strict=True)):
        here = plan.state.size - growth.resumed
        states.append([*range(-growth.resumed, 0), *range(row, row + here)])
        found.append((number, states[-1], here))
        row += here
    for number, plan in enumerate(plans):
        for length in plan.branch_lengths.tolist():
            found.append((number, [*states[number], *range(row, row + length)], length))
            row += length
    return found


@given(rounds())
def test_rows_see_what_was_resumed_then_their_own_text(example):
    plans, growths = example
    stream, metadata = metadata_of(plans, growths)
    spans, growth = metadata.spans, metadata.growth
    for number, text, length in texts_of(plans, growths):
        for position, row in list(enumerate(text))[len(text) - length :]:
            seen = [
                *range(spans.state_begin[row], spans.state_end[row]),
                *range(spans.own_begin[row], spans.own_end[row]),
            ]
            resumed = growths[number].resumed
            assert seen == text[resumed : position + 1]
            assert growth.cached_end[row] - growth.cached_begin[row] == resumed
            for token in {0, resumed // 2, resumed - 1} if resumed else ():
                virtual = growth.cached_begin[row] + token
                page = growth.page_table[virtual // PAGE_ROWS]
                assert (page, virtual % PAGE_ROWS) == (
                    growths[number].cached_pages[token // PAGE_ROWS],
                    token % PAGE_ROWS,
                )
            assert metadata.rotary_positions[:, row].tolist() == [position] * 3
            if position < plans[number].state.size:
                assert metadata.tokens[row] == plans[number].state[position]
    used = stream.tokens.size
    assert not (growth.cached_end - growth.cached_begin)[used:].any()


@given(rounds())
def test_predecessors_reach_into_the_window(example):
    plans, growths = example
    _, metadata = metadata_of(plans, growths)
    rows = LAYOUT.capacity.tokens
    for number, text, length in texts_of(plans, growths):
        window = rows + (TAPS - 1) * (growths[number].initial_slot + 1)
        for position, row in list(enumerate(text))[len(text) - length :]:
            before = [-1] * (TAPS - 1) + [found if found >= 0 else window + found for found in text[:position]]
            if growths[number].resumed:  # zeros before a text stand in its window
                window_rows = [window - 3, window - 2, window - 1]
                behind = [found for found in text[:position] if found >= 0]
                before = window_rows + behind
            assert metadata.predecessors[row].tolist() == before[-(TAPS - 1) :]


@given(rounds())
def test_what_is_saved_is_kept_and_nothing_else(example):
    plans, growths = example
    stream, metadata = metadata_of(plans, growths)
    growth, rows = metadata.growth, LAYOUT.capacity.tokens
    kept = {}
    for number, text, _ in texts_of(plans, growths)[: len(plans)]:
        one = growths[number]
        for token in range(one.resumed, one.resumed + one.saved):
            page = one.written_pages[token // PAGE_ROWS - one.resumed // PAGE_ROWS]
            kept[text[token]] = page, token % PAGE_ROWS
        if one.saved:
            assert growth.window_slot[number] == one.final_slot
            window = rows + (TAPS - 1) * (one.initial_slot + 1)
            before = [window - 3, window - 2, window - 1] if one.resumed else [-1] * 3
            before += [row for row in text[: one.resumed + one.saved] if row >= 0]
            assert growth.window_rows[number].tolist() == before[-3:]
        else:
            assert growth.window_slot[number] >= NOT_KEPT
    for row in range(rows):
        if row in kept:
            assert (growth.kept_page[row], growth.kept_row[row]) == kept[row]
        else:
            assert growth.kept_page[row] >= NOT_KEPT
    assert (growth.window_slot[len(plans) :] >= NOT_KEPT).all()
    assert len(set(zip(growth.kept_page.tolist(), growth.kept_row.tolist(), strict=True))) == rows, "indices are unique"
    assert len(set(growth.window_slot.tolist())) == growth.window_slot.size


@given(rounds())
def test_states_run_in_two_parts_and_branches_start_where_they_end(example):
    plans, growths = example
    _, metadata = metadata_of(plans, growths)
    segments, slots = metadata.segments, LAYOUT.capacity.requests
    assert (segments.slots, segments.levels, segments.parts) == (slots, 3, 2)
    first_slots = [slots + one.initial_slot if one.resumed else -1 for one in growths]
    number = 0
    rows_of_segments = []

    def check(rows, initial, final):
        nonlocal number
        assert segments.length[number] == len(rows)
        if rows:
            assert (segments.initial_slot[number], segments.final_slot[number]) == (initial, final)
            chunk_rows = CHUNK_ROWS * segments.first_chunk[number] + np.arange(len(rows))
            np.testing.assert_array_equal(segments.chunk_row[rows], chunk_rows)
            rows_of_segments.append(rows)
        number += 1

    texts = texts_of(plans, growths)
    ends = []
    for request, text, length in texts[: len(plans)]:
        saved, here = growths[request].saved, text[len(text) - length :]
        middle = slots + growths[request].final_slot if saved else first_slots[request]
        check(here[:saved], first_slots[request], middle)
        check(here[saved:], middle, request)
        ends.append(request if length > saved else middle)
    number = 2 * len(plans)
    for request, text, length in texts[len(plans) :]:
        check(text[len(text) - length :], ends[request], -1)
        number += 1
    assert not segments.length[number:].any()
    found = [row for row in segments.stream_rows().tolist() if row >= 0]
    assert found == [row for rows in rows_of_segments for row in rows]
    for chunk in np.flatnonzero(segments.chunk_length):
        owner = segments.chunk_segment[chunk]
        offset = CHUNK_ROWS * (chunk - segments.first_chunk[owner])
        assert segments.chunk_length[chunk] == min(CHUNK_ROWS, segments.length[owner] - offset)


@given(rounds())
def test_demands_add_up_to_that_of_the_stream(example):
    plans, growths = example
    demands = [Demand.of(plan, resumed=one.resumed, saved=one.saved) for plan, one in zip(plans, growths, strict=True)]
    total = demands[0]
    for demand in demands[1:]:
        total += demand
    assert total == Demand.of_stream(lay_out(plans, growths))


def test_a_state_is_not_read_where_it_was_resumed():
    plan = plan_of(8, [2], np.random.default_rng(0))
    reads = {"read_branches": np.array([-1, 0], np.int32), "read_offsets": np.array([5, 1], np.int32)}
    plan = dataclasses.replace(plan, **reads)
    assert lay_out([plan], [Growth(resumed=5, cached_pages=np.zeros(1, np.int32))]).read_rows.tolist() == [0, 4]
    with pytest.raises(ValueError, match="token 5 of a state is read, it resumes at 6"):
        lay_out([plan], [Growth(resumed=6, cached_pages=np.zeros(1, np.int32))])


def test_plain_and_growing_rounds_are_not_mixed_up():
    plan = plan_of(8, [2], np.random.default_rng(0))
    plain = dataclasses.replace(LAYOUT, capacity=dataclasses.replace(LAYOUT.capacity, entries=0))
    with pytest.raises(ValueError, match="a round with growth False does not fit"):
        LAYOUT.pack(lay_out([plan]))
    with pytest.raises(ValueError, match="a round with growth True does not fit"):
        plain.pack(lay_out([plan], [Growth()]))


def test_more_pages_than_a_capacity_has_entries_do_not_fit():
    plan = plan_of(41 * PAGE_ROWS, [2], np.random.default_rng(0))
    growth = Growth(resumed=plan.state.size, cached_pages=np.arange(41, dtype=np.int32))
    with pytest.raises(ValueError, match="does not fit into"):
        LAYOUT.pack(lay_out([plan], [growth]))
