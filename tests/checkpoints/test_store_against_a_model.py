"""The store against a device that is only simulated, in any order of events: what is found is always what was saved.

A row of a page, and a slot, hold a number that stands for a whole text: one number for each text. So a row that another
text has written over, or that was never written, is seen at once.
"""

import collections
import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flide_jax.checkpoints import Checkpoint, CheckpointStore, Reservation, StoreSize
from pallas_kernels.fork_attention.metadata import PAGE_ROWS

PAGES, SLOTS = 14, 6
NAN = -1
LENGTHS = [1, 2, 30, 63, 64, 65, 128]


def numbers_of(namespace: str, tokens: np.ndarray) -> np.ndarray:
    """A number for each beginning of a text in a namespace."""
    found, so_far = [], hash(namespace)
    for token in tokens.tolist():
        so_far = hash((so_far, token))
        found.append(so_far)
    return np.array(found, np.int64)


@dataclasses.dataclass(eq=False)
class Round:
    """One request on its way."""

    parent: Checkpoint | None
    reservation: Reservation | None


class World:
    """A store, its device, agents whose texts grow, and rounds in flight."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.store = CheckpointStore(StoreSize(PAGES, SLOTS, page_bytes=1, slot_bytes=1))
        self.pages = np.zeros((PAGES, PAGE_ROWS), np.int64)
        self.slots = np.zeros(SLOTS, np.int64)
        self.running: list[Round] = []
        self.texts = [(namespace, np.full(40, 0, np.int32)) for namespace in "aab"]
        self.seen = collections.Counter[str]()

    def pick(self, many):
        return many[self.rng.integers(len(many))]

    def start(self) -> None:
        """An agent goes on, behind its text or behind the beginning of it, and asks; then it may be another agent."""
        number = self.rng.integers(len(self.texts))
        namespace, tokens = self.texts[number]
        if self.rng.random() < 0.8:
            kept = tokens.size if self.rng.random() < 0.6 else self.pick([0, 40, 64, 100, tokens.size // 2])
            tokens = np.concatenate([tokens[:kept], np.full(self.pick(LENGTHS), self.pick(range(3)), np.int32)])[:600]
        self.texts[number if self.rng.random() < 0.7 else self.pick(range(3))] = namespace, tokens
        most = tokens.size if self.rng.random() < 0.8 else int(self.rng.integers(tokens.size + 1))
        parent = self.store.find(tokens, namespace=namespace, most=most)
        stored = [one for one in self.store if one.namespace == namespace and one.tokens.size <= most]
        matching = [one for one in stored if np.array_equal(one.tokens, tokens[: one.tokens.size])]
        longest = max((one.tokens.size for one in matching), default=0)
        assert longest == (0 if parent is None else parent.tokens.size)
        reservation, saved = None, tokens.size - self.pick([0, 0, 1, 30])
        if saved > longest:
            reservation = self.store.reserve(tokens[:saved], namespace=namespace, parent=parent)
            self.seen["no room"] += reservation is None
        if reservation is not None:
            self.write(reservation)
            self.seen["resumed"] += parent is not None
            self.seen["copied"] += reservation.copied is not None
        self.running.append(Round(parent, reservation))

    def write(self, reservation: Reservation) -> None:
        """What a round does on the device. Whether it is of use is known later."""
        checkpoint = reservation.checkpoint
        assert len(set(checkpoint.pages.tolist())) == checkpoint.pages.size
        if reservation.copied is not None:
            source, target = reservation.copied
            self.pages[target] = self.pages[source]
        numbers = numbers_of(checkpoint.namespace, checkpoint.tokens)
        rows = np.arange(reservation.begin, checkpoint.tokens.size)
        finite = self.rng.random() < 0.8
        self.pages[checkpoint.pages[rows // PAGE_ROWS], rows % PAGE_ROWS] = numbers[rows] if finite else NAN
        self.slots[checkpoint.slot] = numbers[-1] if finite else NAN

    def end(self) -> None:
        if not self.running:
            return
        ended = self.running.pop(self.rng.integers(len(self.running)))
        if ended.reservation is not None:
            if self.slots[ended.reservation.checkpoint.slot] == NAN:
                self.store.abandon(ended.reservation)
                self.seen["abandoned"] += 1
            else:
                self.store.commit(ended.reservation)
        if ended.parent is not None:
            self.store.release(ended.parent)

    def clear(self) -> None:
        self.store.clear()
        assert len(self.store) == 0
        # What was reserved before may be written over from now on, and nobody will read it.
        for one in self.running:
            one.reservation = None

    def check(self) -> None:
        pinned = [one.parent for one in self.running if one.parent is not None]
        for checkpoint in {*self.store, *pinned}:
            numbers = numbers_of(checkpoint.namespace, checkpoint.tokens)
            rows = np.arange(checkpoint.tokens.size)
            found = self.pages[checkpoint.pages[rows // PAGE_ROWS], rows % PAGE_ROWS]
            np.testing.assert_array_equal(found, numbers)
            assert self.slots[checkpoint.slot] == numbers[-1]
        reserved = [one.reservation.checkpoint for one in self.running if one.reservation is not None]
        held = {*self.store, *pinned, *reserved}
        assert self.store.bytes == len({page for one in held for page in one.pages.tolist()}) + len(held)
        assert len({one.slot for one in held}) == len(held)


def walk(seed: int) -> World:
    world = World(seed)
    for _ in range(80):
        world.pick([world.start, world.start, world.end, world.end])() if world.rng.random() < 0.99 else world.clear()
        world.check()
    return world


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_what_is_found_is_what_was_saved(seed):
    walk(seed)


def test_the_walks_go_everywhere():
    """All that may happen does: else the test above would say little."""
    worlds = [walk(seed) for seed in range(10)]
    seen = sum((world.seen for world in worlds), collections.Counter[str]())
    assert min(seen[what] for what in ("resumed", "copied", "abandoned", "no room")) >= 10, seen
    assert min(world.store.counters.evictions for world in worlds) > 0
