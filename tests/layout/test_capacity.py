"""Capacities and rounds: what fits, what is smallest, what is split."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flide_jax.layout import Capacity, Demand, Ladder, MetadataLayout, capacities_of_rounds, form_rounds, lay_out
from flide_jax.layout.capacity import RUNGS
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from tests.trees import plan_of, trees

# Any round of `trees` fits.
LAYOUT = MetadataLayout(Capacity(tokens=1_100, requests=5, branches=260, reads=300, chunks=290), conv_taps=4)
unpack = jax.jit(LAYOUT.unpack)
COUNTS = st.integers(0, 20_000)


def test_fine_rungs_end_where_promised():
    rungs = RUNGS["fine"]
    assert rungs[0] == 64 and rungs[-1] == 16_384 and list(rungs) == sorted(set(rungs))
    steps = {1_024: 64, 4_096: 128, 8_192: 256, 16_384: 512}
    for low, high in zip(rungs, rungs[1:], strict=False):
        assert high - low == next(step for end, step in steps.items() if high <= end)


@given(st.builds(Demand, tokens=COUNTS, requests=st.integers(1, 100), branches=COUNTS, reads=COUNTS, chunks=COUNTS))
def test_smallest_that_fits(demand):
    ladder = Ladder(RUNGS["fine"])
    capacity = ladder.smallest_for(demand)
    assert capacity.fits(demand)
    smaller = [other for other in ladder.capacities if other.tokens < capacity.tokens]
    assert not any(other.fits(demand) for other in smaller)


def test_a_demand_over_the_ladder_gets_a_capacity_of_its_own_that_neighbours_share():
    ladder = Ladder((128, 256))
    demands = [Demand(tokens, 1, 3, 3, chunks) for tokens in range(2_049, 4_097, 64) for chunks in (36, 68)]
    sizes = {ladder.smallest_for(demand) for demand in demands}
    assert len(sizes) == 1 and sizes.pop().tokens == 4_096


def test_many_tiny_branches_fit_a_capacity_of_more_tokens():
    capacity = Ladder((128, 256)).smallest_for(Demand(tokens=100, requests=1, branches=100, reads=100, chunks=102))
    assert capacity.branches >= 100 and capacity.chunks >= 102


def test_the_largest_is_for_what_it_fits():
    ladder = Ladder((128, 2_048))
    assert ladder.largest_for(Demand(tokens=1, requests=1, branches=1, reads=1, chunks=2)) is ladder.largest
    many = Demand(tokens=2_000, requests=1, branches=100, reads=100, chunks=101)  # as many tokens, more branches
    assert ladder.largest_for(many).fits(many) and ladder.largest_for(many).tokens == ladder.largest.tokens


@given(trees())
def test_demands_of_requests_add_up_to_that_of_their_round(plans):
    total = Demand.of(plans[0])
    for plan in plans[1:]:
        total = total + Demand.of(plan)
    assert total == Demand.of_stream(lay_out(plans))
    assert total.chunks == sum(-(-int(n) // CHUNK_ROWS) for p in plans for n in [p.state.size, *p.branch_lengths])


@given(trees())
def test_chunks_bound_what_fits(plans):
    """One chunk fewer than a round needs does not hold it; left out, they are enough for any cut."""
    stream = lay_out(plans)
    demand = Demand.of_stream(stream)
    sizes = dataclasses.asdict(demand)
    layout = MetadataLayout(Capacity(**sizes), conv_taps=4)
    assert layout.capacity.fits(demand) and layout.pack(stream).size == layout.size
    short = Capacity(**sizes | {"chunks": demand.chunks - 1})  # a state and a branch have a chunk each
    assert not short.fits(demand)
    with pytest.raises(ValueError, match=r"a round of .* does not fit into Capacity\("):
        MetadataLayout(short, conv_taps=4).pack(stream)
    del sizes["chunks"]
    assert Capacity(**sizes).fits(demand)


def test_ladders_ascend():
    for rungs in [(), (128, 128), (256, 128), (0, 64)]:
        with pytest.raises(ValueError, match="ascending positive token counts"):
            Ladder(rungs)
    with pytest.raises(ValueError, match="capacities may have 16,777,216 tokens at most, got 16,777,217"):
        Ladder((128, 2**24 + 1))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40))
def test_rounds_keep_the_order_and_the_limit(tokens):
    largest = Capacity.of_tokens(256)
    demands = [Demand(n, 1, 1, 1, -(-n // CHUNK_ROWS) + 1) for n in tokens]
    rounds = form_rounds(demands, largest)
    assert [i for members in rounds for i in members] == list(range(len(tokens)))
    for members in rounds:
        total = sum(tokens[i] for i in members)
        assert total <= 256 or len(members) == 1
    for members, following in zip(rounds, rounds[1:], strict=False):
        total = sum(tokens[i] for i in members)
        full = len(members) == largest.requests or len(members) == largest.branches
        chunks = sum(demands[i].chunks for i in (*members, following[0]))
        full = full or chunks > largest.chunks
        assert full or total + tokens[following[0]] > 256, "the next request would have fitted"


def test_each_round_of_a_queue_runs_in_the_smallest_capacity_for_its_sum():
    ladder = Ladder((128, 256, 512))
    demands = [Demand(n, 1, 1, 1, -(-n // CHUNK_ROWS) + 1) for n in (200, 300, 90, 30, 400)]
    assert form_rounds(demands, ladder.largest) == [[0, 1], [2, 3], [4]]
    assert [capacity.tokens for capacity in capacities_of_rounds(demands, ladder)] == [512, 128, 512]
    assert capacities_of_rounds([], ladder) == []


@given(trees())
def test_metadata_survives_the_buffer(plans):
    stream = lay_out(plans)
    buffer = LAYOUT.pack(stream)
    assert buffer.dtype == np.int32 and buffer.size == LAYOUT.size
    metadata, rows = jax.tree.map(np.asarray, unpack(buffer)), stream.tokens.size
    np.testing.assert_array_equal(metadata.tokens[:rows], stream.tokens)
    np.testing.assert_array_equal(metadata.rotary_positions[:, :rows], np.tile(stream.token_index, (3, 1)))
    np.testing.assert_array_equal(metadata.read_rows[: stream.read_rows.size], stream.read_rows)
    assert (metadata.spans.state_end[rows:] == metadata.spans.state_begin[rows:]).all()
    assert (metadata.spans.own_end[rows:] == metadata.spans.own_begin[rows:]).all()
    assert (metadata.predecessors[rows:] == -1).all()
    assert metadata.segments.length.sum() == rows and metadata.segments.chunk_length.sum() == rows


def test_a_round_over_the_capacity_is_refused():
    stream = lay_out([plan_of(100, [40], np.random.default_rng(0))])
    with pytest.raises(ValueError, match=r"a round of Demand\(tokens=140, .* does not fit into Capacity\(tokens=128"):
        MetadataLayout(Capacity.of_tokens(128), 4).pack(stream)
