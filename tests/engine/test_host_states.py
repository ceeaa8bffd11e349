"""Checkpoints that make room on the device and come back from the host: the same bits, and what is shared stays so."""

import dataclasses

import jax
import numpy as np
import pytest

from flide_jax.checkpoints import Checkpoint, Counters, Placement, StoreSize
from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.growing import GrowingStates
from flide_jax.models.pool import KeyPages, StateSlots
from flide_jax.prompts.plan import Plan
from flide_jax.request import Request
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from tests.engine.requests import ACTION, URGENT, largest_difference, probabilities
from tests.engine.test_growing import story

QUESTIONS = {"urgent": URGENT, "action": ACTION}
ABOUT = ("lamp", "vase", "chair", "mirror", "carpet")
CONFIG = EngineConfig(
    dtype="float32",
    capacities=(512,),
    checkpoint_bytes=60_000_000,
    checkpoint_host_bytes=400_000_000,
    placement=Placement(shortest=40, margin=8, step=8, reach=64),
)


@pytest.fixture(scope="module")
def small(tiny_model) -> Engine:
    """Two checkpoints fit on the device, and many on the host."""
    size = Engine.load(tiny_model, CONFIG).program.store
    each = size.slot_bytes + size.pages // size.slots * size.page_bytes
    engine = Engine.load(tiny_model, dataclasses.replace(CONFIG, checkpoint_bytes=2 * each))
    list(engine.prepare_all())
    return engine


@pytest.fixture
def engine(small) -> Engine:
    """Nothing is stored yet."""
    small.clear_checkpoints()
    small.executables.growing.store.counters = Counters()
    return small


def asked(steps: int, about: str, **options) -> Request:
    return Request(story(steps, about=about)[0], QUESTIONS, **options)


def test_resumed_from_the_host_is_resumed_from_the_device_in_every_bit(engine):
    first, second = asked(8, "lamp"), asked(9, "lamp")
    engine.answer(first)
    expected = engine.answer(second)
    engine.clear_checkpoints()
    engine.answer(first)
    for about in ABOUT[1:]:
        engine.answer(asked(8, about))
    counters = engine.checkpoint_counters()
    assert (counters.evictions, counters.spilled, counters.restored) == (3, 3, 0)
    found = engine.answer(second)
    assert found.usage == expected.usage and found.usage.resumed_state_tokens > 0
    assert np.array_equal(probabilities(found), probabilities(expected))
    assert engine.checkpoint_counters().restored == 1


def test_agents_that_do_not_fit_take_turns(engine):
    for steps in range(6, 10):
        for about in ABOUT:
            request = asked(steps, about)
            found = engine.answer(request)
            assert (found.usage.resumed_state_tokens > 0) == (steps > 6)
            fresh = engine.answer(dataclasses.replace(request, checkpoints=False))
            assert largest_difference([found], [fresh]) <= 1e-5
    counters = engine.checkpoint_counters()
    assert counters.restored == 3 * len(ABOUT) and counters.hits == 3 * len(ABOUT)


def test_a_round_brings_back_several(engine):
    requests = [asked(6, about) for about in ABOUT]
    for request in requests:
        engine.answer(request)
    found = engine.answer_all([asked(7, about) for about in ABOUT[:2]])
    assert all(one.usage.resumed_state_tokens for one in found)
    # Both places are pinned by the first two, so the third has none to come back to.
    found = engine.answer_all([asked(8, about) for about in ABOUT[2:]])
    assert [one.usage.resumed_state_tokens > 0 for one in found] == [True, True, False]


def test_salts_keep_states_apart_on_the_host_too(engine):
    engine.answer(asked(6, "lamp", cache_salt="one"))
    for about in ABOUT[1:4]:
        engine.answer(asked(6, about))
    assert engine.answer(asked(7, "lamp", cache_salt="two")).usage.resumed_state_tokens == 0
    assert engine.answer(asked(7, "lamp")).usage.resumed_state_tokens == 0
    assert engine.answer(asked(7, "lamp", cache_salt="one")).usage.resumed_state_tokens > 0


def test_clearing_forgets_the_host_too(engine):
    for about in ABOUT:
        engine.answer(asked(6, about))
    assert len(engine.executables.growing.host.store) == 3
    engine.clear_checkpoints()
    assert engine.answer(asked(7, "lamp")).usage.resumed_state_tokens == 0
    assert engine.checkpoint_counters().restored == 0


def test_a_lost_device_takes_copies_that_are_under_way_with_it(engine):
    for about in ABOUT:
        engine.answer(asked(6, about))
    engine.executables.growing.lose()
    assert len(engine.executables.growing.host.store) == 0
    assert engine.answer(asked(7, "lamp")).usage.resumed_state_tokens == 0


class Walk:
    """Agents of a store whose arrays hold numbers: a row that of its text up to there, and a slot that of its text."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        size = StoreSize(14, 6, page_bytes=1, slot_bytes=1)
        rows = jax.ShapeDtypeStruct((14, PAGE_ROWS), np.int32)
        slots = jax.ShapeDtypeStruct((6, 1), np.int32)
        shapes = (KeyPages(key=rows, value=rows), StateSlots(states=slots, windows=slots))
        placement = Placement(shortest=1, margin=0, step=1, reach=0)
        host = dataclasses.replace(size, pages=40, slots=12)
        self.growing = GrowingStates(size, shapes, placement, dtype=np.dtype("float32"), host_size=host)
        settle = self.growing.host.settle
        # Copies take their time.
        self.growing.host.settle = lambda *, wait: settle(wait=wait) if wait or self.rng.random() < 0.2 else None
        self.texts = [("ab"[number % 2], np.full(40, number, np.int32)) for number in range(5)]

    def numbers(self, namespace: str, tokens: np.ndarray) -> np.ndarray:
        so_far, found = hash(namespace), []
        for token in tokens.tolist():
            so_far = hash((so_far, token))
            found.append(so_far % 2**31)
        return np.array(found, np.int64).astype(np.int32)

    def check(self, checkpoint: Checkpoint) -> None:
        """What is about to be resumed is what was saved."""
        numbers, rows = self.numbers(checkpoint.namespace, checkpoint.tokens), np.arange(checkpoint.tokens.size)
        keys, slots = self.growing._pool
        np.testing.assert_array_equal(np.asarray(keys.key)[checkpoint.pages[rows // PAGE_ROWS], rows % 64], numbers)
        assert np.asarray(slots.states)[checkpoint.slot, 0] == numbers[-1]

    def step(self) -> None:
        plans = []
        for number in self.rng.choice(5, size=self.rng.integers(1, 3), replace=False):
            namespace, tokens = self.texts[number]
            kept = tokens.size if self.rng.random() < 0.8 else self.rng.integers(30, tokens.size + 1)
            more = self.rng.integers(0, 3, self.rng.choice([1, 30, 63, 64, 65]), dtype=np.int32)
            tokens = np.concatenate([tokens[:kept], more])
            self.texts[number] = namespace, tokens if tokens.size < 400 else tokens[:40]
            one, none = np.ones(1, np.int32), np.zeros(1, np.int32)
            plans.append(Plan(tokens, one, one, none, none, salt=namespace))
        visits = self.growing.enter(plans)
        for visit in visits:
            if visit.parent is not None:
                self.check(visit.parent)
        self.growing.reserve(visits)

        def write(arrays):
            key, value, states, windows = (np.array(array) for array in arrays)
            for visit in visits:
                if visit.reservation is None:
                    continue
                one = visit.reservation.checkpoint
                numbers = self.numbers(one.namespace, one.tokens)
                rows = np.arange(visit.reservation.begin, one.tokens.size)
                key[one.pages[rows // PAGE_ROWS], rows % PAGE_ROWS] = numbers[rows]
                states[one.slot] = numbers[-1]
            return jax.numpy.zeros(1), tuple(map(jax.numpy.asarray, (key, value, states, windows)))

        self.growing.run(write)
        bad = self.rng.random() < 0.2
        self.growing.leave(visits, [np.full(1, np.nan if bad else 0.0) for _ in visits])


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_back_is_what_was_saved(seed):
    walk = Walk(seed)
    shared = {store: 0 for store in (walk.growing.store, walk.growing.host.store)}
    for _ in range(60):
        walk.step()
        for store in shared:
            held = {page for one in store for page in one.pages.tolist()}
            assert store.bytes == len(held) + len(store), "nothing is held that no checkpoint holds"
            shared[store] += sum(one.pages.size for one in store) > len(held)
    assert min(shared.values()) > 10
    counters = walk.growing.counters()
    assert min(counters.spilled, counters.restored, walk.growing.host.store.counters.evictions) > 3, counters


class TestRefusals:
    def test_too_few_bytes(self, tiny_model):
        with pytest.raises(ValueError, match="checkpoints of this model take .* bytes at least, got 1,000"):
            Engine.load(tiny_model, dataclasses.replace(CONFIG, checkpoint_host_bytes=1_000))

    def test_negative(self):
        with pytest.raises(ValueError, match="checkpoint_host_bytes must be 0 or more, got -1"):
            EngineConfig(checkpoint_host_bytes=-1)

    def test_without_any_on_the_device(self):
        with pytest.raises(ValueError, match="where checkpoint_bytes is 0"):
            EngineConfig(checkpoint_host_bytes=10**9)
