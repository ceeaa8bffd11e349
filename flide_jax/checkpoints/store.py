"""Which checkpoints there are, and where their parts stand on the device. Numbers only, no array of the device.

A checkpoint of a state at position m is the keys and values of its first m tokens, in pages, and the recurrent states
and convolution windows behind them, in a slot. Checkpoints whose states begin alike share pages: one that continues
another adds pages for its own tokens alone. The row behind another's last one stands in the same page; whoever goes on
there first writes into it, and anyone else who does gets a copy of that page.

A store is for one thread at a time, and knows no time: what was used longest ago makes room first.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flide_jax.checkpoints.pages import PageList, Pages, pages_for
from flide_jax.checkpoints.prefixes import Hashes, PrefixIndex, Text, Tokens, common_tokens
from pallas_kernels.fork_attention.metadata import PAGE_ROWS

# A slot for so many pages (4,096 tokens). Steps of a few hundred tokens add few pages each, but a state's first
# checkpoint has all of them.
PAGES_PER_SLOT = 64
# How many of the last checkpoints a state is compared with, to see where it changed.
COMPARED = 8
_NO_PAGES: PageList = np.empty(0, np.int32)


class BudgetError(ValueError):
    """A budget that holds no store of this model, or that is not there; the message says why, in one line."""


@dataclasses.dataclass(frozen=True)
class StoreSize:
    """What a store may hold on the device.

    Attributes:
        pages: of keys and values, PAGE_ROWS tokens each.
        slots: of recurrent states and windows, one for each checkpoint.
        page_bytes, slot_bytes: of one, all layers together.
    """

    pages: int
    slots: int
    page_bytes: int
    slot_bytes: int

    @classmethod
    def within(cls, budget: int, *, page_bytes: int, slot_bytes: int) -> "StoreSize":
        """The largest store of at most `budget` bytes. Raises BudgetError: it has no room for two checkpoints."""
        each = slot_bytes + PAGES_PER_SLOT * page_bytes
        if budget < 2 * each:
            raise BudgetError(f"checkpoints of this model take {2 * each:,} bytes at least, got {budget:,}")
        slots = budget // each
        return cls(slots * PAGES_PER_SLOT, slots, page_bytes, slot_bytes)

    @property
    def bytes(self) -> int:
        """Of all of it."""
        return self.pages * self.page_bytes + self.slots * self.slot_bytes


@dataclasses.dataclass(eq=False)
class Checkpoint:
    """A state that is stored, or about to be.

    Attributes:
        namespace: whose it is; nobody else finds it.
        tokens: those it holds, m of them.
        pages: of their keys and values, in order. Rows of the last one behind token m may be those of another.
        slot: of the recurrent states and windows behind token m.
        text: the tokens of its whole state up to the margin; they begin with `tokens`.
    """

    namespace: str
    tokens: Tokens
    pages: PageList
    slot: int
    text: Text


@dataclasses.dataclass(eq=False)
class Reservation:
    """Room for a checkpoint that a round writes.

    Attributes:
        checkpoint: what it will be; nobody finds it before it is committed.
        begin: the first token whose keys are to be written; those before it stand in its pages already.
        copied: a page and another that it has to be copied to before anything is written there, or None.
    """

    checkpoint: Checkpoint
    begin: int
    copied: tuple[int, int] | None


@dataclasses.dataclass
class Counters:
    """What a store has done so far.

    Attributes:
        hits, misses: states that were looked up and found, or not.
        tokens_saved: tokens that were found, and so were not computed.
        saved: checkpoints that were committed.
        evictions: checkpoints that made room for others.
        spilled, restored: checkpoints that were copied to the host as they made room, and that came back from there.
    """

    hits: int = 0
    misses: int = 0
    tokens_saved: int = 0
    saved: int = 0
    evictions: int = 0
    spilled: int = 0
    restored: int = 0


class CheckpointStore:
    """See the module.

    Attributes:
        size: what there is room for.
        counters: what was done so far.
        pages: who holds which.
    """

    def __init__(
        self,
        size: StoreSize,
        *,
        hashes: Callable[[Tokens], Hashes] | None = None,
        evicting: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ) -> None:
        """`hashes`: see `PrefixIndex`. `evicting` is told of what is about to make room, and still is in its place."""
        self.size = size
        self.counters = Counters()
        self.pages = Pages(size.pages)
        self._evicting = evicting
        self._free_slots = list(range(size.slots - 1, -1, -1))
        self._index = PrefixIndex[Checkpoint](hashes)
        self._stored: dict[Checkpoint, None] = {}  # that which was used longest ago first
        self._pins: dict[Checkpoint, int] = {}
        self._reserved: dict[Checkpoint, None] = {}

    def __len__(self) -> int:
        return len(self._stored)

    def __iter__(self) -> Iterator[Checkpoint]:
        """All checkpoints that can be found, that which was used longest ago first."""
        return iter(self._stored)

    @property
    def bytes(self) -> int:
        """Of the pages and slots in use."""
        pages, slots = self.pages.total - self.pages.free, self.size.slots - len(self._free_slots)
        return pages * self.size.page_bytes + slots * self.size.slot_bytes

    def longest(self, tokens: Tokens, *, namespace: str, most: int) -> int:
        """How many of the first `most` tokens a checkpoint holds; nothing is pinned or counted."""
        found = self._index.longest(namespace, tokens, most)
        return 0 if found is None else found.tokens.size

    def changing(self, tokens: Tokens, *, namespace: str) -> int:
        """How many tokens before its margin a state like these changes with every step, as far as is known.

        Of the state that is most alike, of those stored last: the end of its text that these tokens do not share. 0
        where they have nothing in common with any.
        """
        most, left = 0, 0
        recent = (one for one in reversed(self._stored) if one.namespace == namespace)
        for checkpoint in itertools.islice(recent, COMPARED):
            common = common_tokens(tokens, checkpoint.text)
            if common > most:
                most, left = common, checkpoint.text.size - common
        return left

    def find(self, tokens: Tokens, *, namespace: str, most: int) -> Checkpoint | None:
        """The longest checkpoint that the first `most` of these tokens begin with; None: there is none.

        It is pinned: it stays where it is on the device until it is released as often as it was found.
        """
        found = self._index.longest(namespace, tokens, most)
        if found is None:
            self.counters.misses += 1
            return None
        self.counters.hits += 1
        self.counters.tokens_saved += found.tokens.size
        self._stored[found] = self._stored.pop(found)
        self._pins[found] = self._pins.get(found, 0) + 1
        return found

    def release(self, checkpoint: Checkpoint) -> None:
        """Take a pin away."""
        self._pins[checkpoint] -= 1
        if not self._pins[checkpoint]:
            del self._pins[checkpoint]
            if checkpoint not in self._stored:  # the store was cleared meanwhile
                self._free(checkpoint)

    def reserve(
        self, tokens: Tokens, *, namespace: str, parent: Checkpoint | None, text: Text | None = None
    ) -> Reservation | None:
        """Room for a checkpoint of these tokens. They continue those of `parent`, which is pinned, or of nothing.

        `text`: see `Checkpoint`; the tokens themselves if None.
        None: there is no room beside what is pinned and reserved, or the same is stored or reserved already.
        """
        if self._is_known(tokens, namespace):
            return None
        begin = 0 if parent is None else parent.tokens.size
        full, written = divmod(begin, PAGE_ROWS)
        shared = np.empty(0, np.int32) if parent is None else parent.pages[:full]
        last = int(parent.pages[full]) if parent is not None and written else None
        wanted = pages_for(tokens.size) - full
        in_place = last is not None and self.pages.claim(last, written, min(tokens.size - full * PAGE_ROWS, PAGE_ROWS))
        if last is not None and in_place:
            shared, wanted = np.append(shared, np.int32(last)), wanted - 1
        if not self._make_room(wanted):
            if last is not None and in_place:
                self.pages.take_back(last, written)
            return None
        self.pages.hold(shared)
        own = self.pages.take(wanted)
        for number, page in enumerate(own.tolist(), start=shared.size):
            self.pages.claim(page, 0, min(tokens.size - number * PAGE_ROWS, PAGE_ROWS))
        pages = np.concatenate([shared, own])
        text = (tokens if text is None else text).copy()
        checkpoint = Checkpoint(namespace, text[: tokens.size], pages, self._free_slots.pop(), text)
        self._reserved[checkpoint] = None
        return Reservation(checkpoint, begin, None if last is None or in_place else (last, int(own[0])))

    def commit(self, reservation: Reservation) -> None:
        """Let it be found: all of it has been written, and is finite. Nothing happens if the store was cleared."""
        checkpoint = reservation.checkpoint
        if checkpoint in self._reserved:
            del self._reserved[checkpoint]
            self._stored[checkpoint] = None
            self._index.add(checkpoint.namespace, checkpoint.tokens, checkpoint)
            self.counters.saved += 1

    def abandon(self, reservation: Reservation) -> None:
        """Give the room back: what was written is of no use. Nothing happens if the store was cleared."""
        checkpoint, (full, written) = reservation.checkpoint, divmod(reservation.begin, PAGE_ROWS)
        if checkpoint in self._reserved:
            del self._reserved[checkpoint]
            if written and reservation.copied is None:
                self.pages.take_back(int(checkpoint.pages[full]), written)
            self._free(checkpoint)

    def adopt(self, checkpoints: Sequence[Checkpoint]) -> list[tuple[Checkpoint, Checkpoint]]:
        """Give checkpoints of another store a place in this one: pairs of what was there and what is here.

        Those first that stand last, which were used last there, as far as there is free room; pages that they shared
        they share here. Those whose tokens are known already are left out.
        """
        chosen: list[Checkpoint] = []
        pages: set[int] = set()
        for checkpoint in reversed(checkpoints):
            grown = pages.union(checkpoint.pages.tolist())
            if len(chosen) < len(self._free_slots) and len(grown) <= self.pages.free:
                if not self._is_known(checkpoint.tokens, checkpoint.namespace):
                    chosen, pages = [*chosen, checkpoint], grown
        taken = self.pages.take(len(pages))
        for page in taken.tolist():
            self.pages.claim(page, 0, PAGE_ROWS)  # how far each was written is not known any more
        places = dict(zip(sorted(pages), taken.tolist(), strict=True))
        pairs = []
        for old in reversed(chosen):
            own = np.array([places[page] for page in old.pages.tolist()], np.int32)
            self.pages.hold(own)
            new = dataclasses.replace(old, pages=own, slot=self._free_slots.pop())
            self._stored[new] = None
            self._index.add(new.namespace, new.tokens, new)
            pairs.append((old, new))
        self.pages.drop(taken)
        return pairs

    def admit(self, given: Checkpoint, twins: PageList) -> Checkpoint | None:
        """Give a checkpoint of another store a place in this one; it can be found at once.

        `twins`: pages of this store that hold the same rows as its own, -1 for those that are to be copied to new ones.
        None: there is no room beside what is pinned and reserved, or the same is stored or reserved already.
        """
        if self._is_known(given.tokens, given.namespace):
            return None
        own, missing = twins.copy(), twins < 0
        shared, wanted = twins[~missing], int(missing.sum())
        self.pages.hold(shared)  # while room is made
        try:
            if not self._make_room(wanted, beside=shared):
                return None
            # Nobody claims rows of these, so nobody goes on in them without a copy.
            own[missing] = self.pages.take(wanted)
            self.pages.hold(shared)
        finally:
            self.pages.drop(shared)
        admitted = dataclasses.replace(given, pages=own, slot=self._free_slots.pop())
        self._stored[admitted] = None
        self._index.add(admitted.namespace, admitted.tokens, admitted)
        return admitted

    def renew(self, tokens: Tokens, *, namespace: str) -> bool:
        """Whether a checkpoint of just these tokens is stored, which counts as used then."""
        found = self._index.exact(namespace, tokens)
        if found is not None:
            self._stored[found] = self._stored.pop(found)
        return found is not None

    def clear(self) -> None:
        """Forget everything stored and reserved. What is pinned keeps its place until it is released."""
        stored = list(self._stored)
        for checkpoint in stored:
            self._drop(checkpoint)
        for checkpoint in list(self._reserved):
            del self._reserved[checkpoint]
            self._free(checkpoint)

    def _is_known(self, tokens: Tokens, namespace: str) -> bool:
        """Whether just these tokens are stored, or reserved."""
        if self._index.exact(namespace, tokens) is not None:
            return True
        return any(one.namespace == namespace and np.array_equal(one.tokens, tokens) for one in self._reserved)

    def _make_room(self, pages: int, *, beside: PageList = _NO_PAGES) -> bool:
        """Evict until there are so many free pages, beside some that are held, and a free slot.

        False: not even all evictions would do.
        """
        if self.pages.free >= pages and self._free_slots:
            return True
        unmovable = {*self._pins, *self._reserved}
        held = np.unique(np.concatenate([beside, *(one.pages for one in unmovable)])).size
        if self.pages.total - held < pages or len(unmovable) >= self.size.slots:
            return False
        for checkpoint in [one for one in self._stored if one not in unmovable]:
            if self.pages.free >= pages and self._free_slots:
                break
            self._evicting(checkpoint)
            self._drop(checkpoint)
            self.counters.evictions += 1
        return True

    def _drop(self, checkpoint: Checkpoint) -> None:
        """Let it not be found any more. What it holds is free now, or when its last pin goes."""
        del self._stored[checkpoint]
        self._index.remove(checkpoint.namespace, checkpoint.tokens)
        if checkpoint not in self._pins:
            self._free(checkpoint)

    def _free(self, checkpoint: Checkpoint) -> None:
        self.pages.drop(checkpoint.pages)
        self._free_slots.append(checkpoint.slot)
