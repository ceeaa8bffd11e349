"""A state that goes on from a checkpoint gets exactly what it gets when all of it is computed, in float64."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exactness.growing import Growing, executables, growing_plan, text_of
from tests.tolerances import EXACT

EDGES = [0, 1, 63, 64, 65]  # distances from the edge of a chunk and of a page


@pytest.mark.parametrize(("config", "saved"), [*(("untied", 64 + edge) for edge in EDGES), ("two_periods", 65)])
def test_around_the_edges_of_chunk_and_page(config, saved):
    """Saved at every distance from an edge, then at every distance from there; and each of these goes on again."""
    growing = Growing(config)
    text = text_of(saved + 3 * 65, seed=saved)
    assert growing.ask(growing_plan(text[: saved + 3], saved), resumed=[0]) <= EXACT
    for more in EDGES:
        longer = saved + more
        plan = growing_plan(text[: longer + 1], longer, seed=more)
        assert growing.ask(plan, resumed=[max([saved, *(saved + less for less in EDGES if less < more)])]) <= EXACT
    for tail in EDGES:
        plan = growing_plan(text[: saved + 65 + tail], saved + 65, seed=tail)
        assert growing.ask(plan, resumed=[saved + 65]) <= EXACT


@pytest.mark.parametrize("saved", [1, 2, 3])
@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_shorter_than_the_convolution(saved, more):
    growing = Growing()
    text = text_of(saved + more + 1, seed=saved)
    assert growing.ask(growing_plan(text[:saved], saved, [1, 2]), resumed=[0]) <= EXACT
    assert growing.ask(growing_plan(text[: saved + more], saved + more, [1, 4]), resumed=[saved]) <= EXACT
    assert growing.ask(growing_plan(text, saved + more, [1, 4], seed=1), resumed=[saved + more]) <= EXACT


def test_a_tail_of_one_token():
    growing = Growing()
    for saved in (63, 64, 65, 66):
        assert growing.ask(growing_plan(text_of(saved + 1, seed=2), saved)) <= EXACT
    assert len(growing.store) == 4


def test_a_chain_of_thirty_steps():
    growing = Growing(pages=12, slots=3)
    rng = np.random.default_rng(3)
    text, before = text_of(700, seed=3), 0
    length = 20
    for step in range(30):
        length += int(rng.choice([1, 2, 3, 7, 22, 40]))
        saved = length - int(rng.integers(0, 4))
        error = growing.ask(growing_plan(text[:length], saved, [3], seed=step), resumed=[before])
        assert error <= EXACT, f"step {step}"
        before = max(saved, before)
    assert growing.store.counters.evictions >= 20


def test_a_state_that_is_stored_as_a_whole():
    """Nothing of it is computed any more; and a shorter one finds nothing."""
    growing = Growing()
    text = text_of(130, seed=4)
    assert growing.ask(growing_plan(text, 130), resumed=[0]) <= EXACT
    for seed in (1, 2):
        assert growing.ask(growing_plan(text, 130, [7, 64], seed=seed), resumed=[130]) <= EXACT
    assert growing.ask(growing_plan(text[:129], 129), resumed=[0]) <= EXACT


def test_branches_that_diverge_share_what_they_have_in_common():
    """Both go on in one page, one after the other; each is resumed again, and the parent too."""
    growing = Growing()
    common, tails = text_of(100, seed=5), [text_of(90, seed) for seed in (6, 7, 8)]
    assert growing.ask(growing_plan(common, 100)) <= EXACT
    for tail in tails:
        for more in (10, 40, 90):
            text = np.concatenate([common, tail[:more]])
            resumed = {10: 100, 40: 110, 90: 140}[more]
            assert growing.ask(growing_plan(text, text.size, seed=more), resumed=[resumed]) <= EXACT
    for tail in tails:
        text = np.concatenate([common, tail, tail])
        assert growing.ask(growing_plan(text, 190), resumed=[190]) <= EXACT
    other = np.concatenate([common, text_of(30, seed=9)])
    assert growing.ask(growing_plan(other, 130), resumed=[100]) <= EXACT


def test_a_parent_that_was_evicted():
    """Its child keeps the pages that they share."""
    growing = Growing(slots=2)
    text = text_of(300, seed=10)
    assert growing.ask(growing_plan(text[:101], 100)) <= EXACT
    assert growing.ask(growing_plan(text[:171], 170), resumed=[100]) <= EXACT
    assert growing.ask(growing_plan(text_of(200, seed=11), 200), resumed=[0]) <= EXACT
    assert [one.tokens.size for one in growing.store] == [170, 200]
    assert growing.ask(growing_plan(text, 300), resumed=[170]) <= EXACT
    assert growing.ask(growing_plan(text[:120], None), resumed=[0]) <= EXACT


def test_agents_in_one_round():
    """Two that go on from one checkpoint in the same page, one from another, one that is new, and two alike."""
    growing = Growing()
    common, other = text_of(90, seed=12), text_of(60, seed=13)
    assert growing.ask(growing_plan(common, 90), growing_plan(other, 60)) <= EXACT
    agents = [np.concatenate([common, text_of(20, seed)]) for seed in (14, 15)]
    states = [*agents, np.concatenate([other, text_of(3, seed=16)]), text_of(40, seed=17)]
    plans = [growing_plan(state, state.size - 1, seed=seed) for seed, state in enumerate(states)]
    assert growing.ask(*plans, plans[0], resumed=[90, 90, 60, 0, 90]) <= EXACT
    assert len(growing.store) == 6, "what two agents save alike is saved once"
    longer = [np.concatenate([state, text_of(30, seed=18)]) for state in states]
    plans = [growing_plan(state, state.size, seed=seed) for seed, state in enumerate(longer)]
    assert growing.ask(*plans, resumed=[109, 109, 62, 39]) <= EXACT


def test_sixty_four_questions():
    growing = Growing()
    text, lengths = text_of(180, seed=19), np.random.default_rng(19).integers(1, 5, 64)
    assert growing.ask(growing_plan(text[:130], 127, lengths)) <= EXACT
    assert growing.ask(growing_plan(text, 170, lengths, seed=1), resumed=[127]) <= EXACT
    assert growing.ask(growing_plan(text, 170, lengths, seed=2), resumed=[170]) <= EXACT


def test_rows_of_the_state_are_read():
    """They have to be in the stream: a state resumes before the first that is read."""
    growing = Growing()
    text = text_of(150, seed=20)
    for saved in (80, 120):
        assert growing.ask(growing_plan(text[: saved + 1], saved)) <= EXACT
    reads = {"read_branches": np.full(3, -1, np.int32), "read_offsets": np.array([149, 119, 130], np.int32)}
    plan = dataclasses.replace(growing_plan(text, 150, [2]), **reads)
    assert growing.ask(plan, resumed=[80]) <= EXACT
    reads["read_offsets"] = np.array([149, 120, 130], np.int32)
    assert growing.ask(dataclasses.replace(plan, **reads), resumed=[120]) <= EXACT


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1))
def test_agents_that_grow_and_diverge_at_random(seed):
    """More than there is room for: rounds of one to three agents, whose texts often share their beginnings."""
    rng = np.random.default_rng(seed)
    growing = Growing(pages=16, slots=5)
    texts = [text_of(30, seed=21)] * 3
    for step in range(8):
        plans = []
        for number in range(int(rng.integers(1, 4))):
            kept = texts[number].size if rng.random() < 0.7 else int(rng.choice([30, 64, texts[number].size // 2]))
            new = int(rng.choice([1, 2, 20, 63, 64]))
            texts[number] = np.concatenate([texts[number][:kept], text_of(new, int(rng.integers(3)))])[:150]
            saved = max(1, texts[number].size - int(rng.choice([0, 1, 3, 30])))
            plans.append(growing_plan(texts[number], saved, [2, 1], seed=step))
        if rng.random() < 0.3:
            texts[0] = texts[int(rng.integers(3))]
        assert growing.ask(*plans) <= EXACT
    assert growing.store.counters.hits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_narrower_dtypes_differ_by_rounding(dtype):
    growing = Growing(dtype=dtype)
    text = text_of(260, seed=22)
    for length, resumed in ((100, 0), (170, 97), (260, 167)):
        error = growing.ask(growing_plan(text[:length], length - 3), resumed=[resumed])
        assert error <= {"float32": 1e-4, "bfloat16": 2e-1}[dtype]


class TestNotFinite:
    """The embedding of token 0 is NaN."""

    @pytest.fixture
    def growing(self, monkeypatch):
        growing = Growing()
        for used in (growing.kept, growing.fresh):
            with jax.enable_x64(True):
                broken = used.params.embedding.at[0].set(np.nan)
            monkeypatch.setattr(used, "params", used.params.replace(embedding=broken))
        return growing

    def run(self, growing, *plans):
        with jax.enable_x64(True):
            started = growing.kept.start(plans)
            return started(), started.resumed

    def text(self, tokens: int, seed: int, *, zero_at: int | None = None) -> np.ndarray:
        """Finite, but for one token."""
        text = np.maximum(text_of(tokens, seed), 1)
        if zero_at is not None:
            text[zero_at] = 0
        return text

    def plan(self, state, saved, **options):
        plan = growing_plan(state, saved, **options)
        return dataclasses.replace(plan, branches=np.maximum(plan.branches, 1))

    @pytest.mark.parametrize("place", [10, 95, 112, 118])
    def test_a_state_with_one_is_not_stored(self, growing, place):
        """Wherever it stands: in what would be kept, or behind it. Pages and slots that it wrote serve others then."""
        good = self.text(120, seed=23)
        (found,), _ = self.run(growing, self.plan(self.text(120, seed=23, zero_at=place), 110))
        assert np.isnan(found).any() and len(growing.store) == 0
        assert growing.store.bytes == 0
        for number in range(10):  # every slot, and so the one that was written
            text = np.concatenate([good[:100], self.text(30, seed=number)])
            assert growing.ask(self.plan(text, 120)) <= EXACT
        assert len(growing.store) == 8
        assert growing.ask(self.plan(np.concatenate([text, good]), 200), resumed=[120]) <= EXACT

    def test_in_a_branch(self, growing):
        plan = self.plan(self.text(120, seed=24), 110, branches=(2, 2))
        plan = dataclasses.replace(plan, branches=np.array([0, 1, 1, 1], np.int32))
        (found,), _ = self.run(growing, plan)
        assert np.isnan(found[:2]).all() and np.isfinite(found[2:]).all()
        assert len(growing.store) == 0, "the request is not finite, so nothing of it is trusted"

    def test_one_that_goes_on_from_a_good_state_leaves_it_good(self, growing):
        """It writes into the last page of its parent, and is not stored; the parent's next child writes there again."""
        text = self.text(200, seed=25)
        self.run(growing, self.plan(text[:100], 100))
        for _ in range(2):
            (found,), resumed = self.run(growing, self.plan(self.text(200, seed=25, zero_at=105)[:130], 120))
            assert np.isnan(found).any() and resumed == [100]
        assert growing.ask(self.plan(text[:130], 120), resumed=[100]) <= EXACT
        assert growing.ask(self.plan(text, 200), resumed=[120]) <= EXACT

    def test_neighbours_keep_every_bit(self, growing):
        text = self.text(200, seed=26)
        self.run(growing, self.plan(text[:100], 100))
        good, other = self.plan(text[:150], 140), text[:150].copy()
        other[105] = 1 + text[105] % 96
        (expected, _), _ = self.run(growing, good, self.plan(other, 140))
        growing.kept.growing.clear()
        self.run(growing, self.plan(text[:100], 100))
        bad = self.plan(self.text(200, seed=26, zero_at=105)[:150], 140)
        (found, broken), resumed = self.run(growing, good, bad)
        assert resumed == [100, 100] and np.isnan(broken).any()
        np.testing.assert_array_equal(found, expected)
        assert sorted(one.tokens.size for one in growing.store) == [100, 140]


def test_the_pool_is_given_back_in_place():
    """The arrays are donated: those of before are gone."""
    growing = Growing()
    before = growing.kept.growing._arrays
    growing.ask(growing_plan(text_of(80, seed=27), 70))
    assert all(array.is_deleted() for array in before)
    assert executables("untied", "float64", pages=40, slots=8) is growing.kept
