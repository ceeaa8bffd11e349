"""Checkpoints that had to make room on the device, in host memory, from where they come back when they are resumed.

Copies to the host begin behind the rounds that were dispatched before and ahead of the one that takes the room, and are
awaited later. A page that several checkpoints share is copied once each way as long as one of them holds it; a page on
the host is never written again.
"""

import functools
from collections import deque
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from flide_jax.checkpoints import Checkpoint, CheckpointStore, StoreSize, Twins
from flide_jax.checkpoints.pages import PageList, rows_in_pages
from flide_jax.checkpoints.prefixes import Tokens
from flide_jax.models.pool import KeyPages, LayerPool, Pool

# Pages that one call copies: one executable for any number of them.
_PAGES_AT_ONCE = 16
# Copies that are not awaited yet hold memory of the device.
_MOST_LEAVING = 16

_NOWHERE = np.iinfo(np.int32).max  # no page or slot: what is given for it is dropped

type Layers = dict[int, LayerPool]
"""Some layers of a pool by their number."""


class HostStates:
    """A store on the host beside one on the device. For one thread at a time.

    Attributes:
        store: what is stored here; its counters are of no meaning, those of the device's store are.
    """

    def __init__(self, size: StoreSize, shapes: Pool, device: CheckpointStore) -> None:
        """`shapes`: of the device's arrays; `device`: their store. Memory is taken as it is written."""
        self.store = CheckpointStore(size)
        self._device = device
        self._pool = tuple(
            jax.tree.map(lambda leaf, count=count: np.empty((count, *leaf.shape[1:]), leaf.dtype), layer)
            for layer in shapes
            for count in [size.pages if isinstance(layer, KeyPages) else size.slots]
        )
        self._here, self._there = Twins(self.store.pages), Twins(device.pages)
        # Copies on their way: arrays on the device, and their places here.
        self._leaving: deque[tuple[Layers, list[int]]] = deque()

    def prepare(self, pool: Pool) -> Pool:
        """Compile what copies. The pool is taken and given back, as by `restore`."""
        keys, slots = _split(pool)
        for layers, at_once in ((keys, _PAGES_AT_ONCE), (slots, 1)):
            jax.block_until_ready(_taken(layers, np.zeros(at_once, np.int32)))
        return _joined(self._written(keys, [], [], _PAGES_AT_ONCE), self._written(slots, [], [], 1))

    def spill(self, checkpoint: Checkpoint, pool: Pool) -> None:
        """Copy one that the device's store still holds, unless it is here already or there is no room."""
        if self.store.renew(checkpoint.tokens, namespace=checkpoint.namespace):
            return
        rows = rows_in_pages(checkpoint.tokens.size)
        names = [self._device.pages.name(page) for page in checkpoint.pages.tolist()]
        twins = self._here.find(names, rows)
        admitted = self.store.admit(checkpoint, twins)
        if admitted is None:
            return
        self._here.add(names, admitted.pages, rows)
        keys, slots = _split(pool)
        try:
            for source, place in _some(checkpoint.pages[twins < 0], admitted.pages[twins < 0]):
                self._leave(keys, source, place, _PAGES_AT_ONCE)
            self._leave(slots, [checkpoint.slot], [admitted.slot], 1)
        except BaseException:
            self.clear()
            raise
        self._device.counters.spilled += 1

    def restore(self, tokens: Tokens, pool: Pool, *, namespace: str, most: int) -> Pool:
        """Give the longest checkpoint that the first `most` tokens begin with a place on the device.

        The pool is taken, and given back with it; the device's store finds it then. Nothing happens where that knows
        one as long, or has no room.
        """
        on_device = self._device.longest(tokens, namespace=namespace, most=most)
        if self.store.longest(tokens, namespace=namespace, most=most) <= on_device:
            return pool
        self.settle(wait=True)
        found = self.store.find(tokens, namespace=namespace, most=most)
        assert found is not None
        rows = rows_in_pages(found.tokens.size)
        names = [self.store.pages.name(page) for page in found.pages.tolist()]
        twins = self._there.find(names, rows)
        # It is pinned meanwhile: what makes room for it on the device takes room here.
        admitted = self._device.admit(found, twins)
        self.store.release(found)
        if admitted is None:
            return pool
        self._there.add(names, admitted.pages, rows)
        self._here.add([self._device.pages.name(page) for page in admitted.pages.tolist()], found.pages, rows)
        keys, slots = _split(pool)
        for source, place in _some(found.pages[twins < 0], admitted.pages[twins < 0]):
            keys = self._written(keys, source, place, _PAGES_AT_ONCE)
        slots = self._written(slots, [found.slot], [admitted.slot], 1)
        self._device.counters.restored += 1
        return _joined(keys, slots)

    def settle(self, *, wait: bool) -> None:
        """End copies to the host: those that have arrived, or all of them. Where one fails, all is forgotten."""
        try:
            self._settle(wait=wait)
        except BaseException:
            self.clear()
            raise

    def clear(self) -> None:
        """Forget everything."""
        self.store.clear()
        self._leaving.clear()
        self._here.clear()
        self._there.clear()

    def _settle(self, *, wait: bool) -> None:
        while self._leaving:
            layers, places = self._leaving[0]
            if not wait and not all(leaf.is_ready() for leaf in jax.tree.leaves(layers)):
                break
            for number, layer in layers.items():
                for kept, leaf in zip(jax.tree.leaves(self._pool[number]), jax.tree.leaves(layer), strict=True):
                    kept[places] = np.asarray(leaf)[: len(places)]
            self._leaving.popleft()

    def _leave(self, layers: Layers, source: Sequence[int], places: Sequence[int], at_once: int) -> None:
        """Begin to copy to the host."""
        taken = _taken(layers, _padded(source, at_once, 0))
        for leaf in jax.tree.leaves(taken):
            leaf.copy_to_host_async()
        self._leaving.append((taken, list(places)))
        self.settle(wait=len(self._leaving) > _MOST_LEAVING)

    def _written(self, layers: Layers, source: Sequence[int], places: Sequence[int], at_once: int) -> Layers:
        """Layers of the device with what stands here."""
        rows_here = _padded(source, at_once, 0)
        given = {number: jax.tree.map(lambda leaf: leaf[rows_here], self._pool[number]) for number in layers}
        return _put(layers, _padded(places, at_once, _NOWHERE), given)


def _some(source: PageList, places: PageList) -> Iterator[tuple[list[int], list[int]]]:
    for begin in range(0, source.size, _PAGES_AT_ONCE):
        end = begin + _PAGES_AT_ONCE
        yield source[begin:end].tolist(), places[begin:end].tolist()


def _padded(places: Sequence[int], count: int, unused: int) -> PageList:
    return np.array([*places, *[unused] * (count - len(places))], np.int32)


def _split(pool: Pool) -> tuple[Layers, Layers]:
    """Those of pages, and those of slots."""
    keys: Layers = {number: layer for number, layer in enumerate(pool) if isinstance(layer, KeyPages)}
    return keys, {number: layer for number, layer in enumerate(pool) if number not in keys}


def _joined(keys: Layers, slots: Layers) -> Pool:
    layers = keys | slots
    return tuple(layers[number] for number in sorted(layers))


@jax.jit
def _taken(layers: Layers, places: jax.Array) -> Layers:
    return jax.tree.map(lambda leaf: leaf[places], layers)


@functools.partial(jax.jit, donate_argnums=0)
def _put(layers: Layers, places: jax.Array, given: Layers) -> Layers:
    return jax.tree.map(lambda leaf, rows: leaf.at[places].set(rows, mode="drop"), layers, given)
