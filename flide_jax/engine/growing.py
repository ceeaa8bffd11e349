"""Checkpoints of growing states around the rounds that read and write them: the store, and its arrays on the device.

Before a round its requests are looked up and room is reserved for what they leave; the round then reads and writes the
arrays in place; after it, what came out finite is committed. Rounds follow each other on the device in the order in
which they were dispatched, so a place that is given to another round is read before it is written.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from flide_jax.checkpoints import (
    BudgetError,
    Checkpoint,
    CheckpointStore,
    Counters,
    Placement,
    Reservation,
    StoreSize,
)
from flide_jax.checkpoints.prefixes import common_tokens
from flide_jax.engine.host_states import HostStates
from flide_jax.engine.program import precision
from flide_jax.layout import Demand, Growth
from flide_jax.models.checkpoint_files import in_one_line
from flide_jax.models.pool import KeyPages, LayerPool, Pool
from flide_jax.prompts.plan import Plan
from pallas_kernels.fork_attention.metadata import PAGE_ROWS

type Arrays = tuple[jax.Array, ...]
"""The leaves of a `Pool`."""

# Pages that one call copies; there are seldom any.
_COPIED_AT_ONCE = 8


@dataclasses.dataclass(eq=False)
class Visit:
    """One request on its way past the store.

    Attributes:
        plan: its tokens.
        parent: the checkpoint that it resumes.
        position: how many tokens of its state are to be saved; None: none are.
        reservation: the room for these.
        lost: how often the arrays had been lost when it was looked up.
    """

    plan: Plan
    parent: Checkpoint | None = None
    position: int | None = None
    reservation: Reservation | None = None
    lost: int = 0

    @property
    def resumed(self) -> int:
        """Tokens of the state that come from a checkpoint."""
        return 0 if self.parent is None else self.parent.tokens.size

    @property
    def is_growing(self) -> bool:
        """Whether it reads or writes anything that is kept."""
        return self.parent is not None or self.position is not None

    @property
    def demand(self) -> Demand:
        """What it needs of a capacity."""
        saved = 0 if self.position is None else self.position - self.resumed
        return Demand.of(self.plan, resumed=self.resumed, saved=saved)

    def growth(self) -> Growth:
        """Its part of a round."""
        return growth_of(self.parent, None if self.reservation is None else self.reservation.checkpoint)


def growth_of(parent: Checkpoint | None, kept: Checkpoint | None) -> Growth:
    """What a state takes from the pool that resumes one checkpoint, if any, and leaves another, if any."""
    growth, resumed = Growth(), 0
    if parent is not None:
        resumed = parent.tokens.size
        growth = Growth(resumed=resumed, initial_slot=parent.slot, cached_pages=parent.pages)
    if kept is not None:
        growth = dataclasses.replace(
            growth,
            saved=kept.tokens.size - resumed,
            final_slot=kept.slot,
            written_pages=kept.pages[resumed // PAGE_ROWS :],
        )
    return growth


@dataclasses.dataclass(frozen=True, eq=False)
class States:
    """Checkpoints away from their store.

    Attributes:
        checkpoints: that which was used last stands last; pages and slots are numbers in the arrays of `pool`.
        pool: the pages and slots they hold, and no others; on the host.
    """

    checkpoints: list[Checkpoint]
    pool: Pool


class GrowingStates:
    """A store of checkpoints and its arrays. Threads may share it.

    Attributes:
        store: what is stored, and the counters.
        host: what had to make room and can come back, None where it is gone.
        shapes: of the arrays, with their dtypes.
        placement: which position of a state is saved.
    """

    def __init__(
        self,
        size: StoreSize,
        shapes: Pool,
        placement: Placement,
        *,
        dtype: np.dtype,
        host_size: StoreSize | None = None,
    ) -> None:
        """`shapes`: of the arrays, with their dtypes; `dtype`: of the engine; `host_size`: of what is evicted to.

        Raises BudgetError: the device or the host does not give the memory.
        """
        self.store = CheckpointStore(size, evicting=self._spill)
        self.shapes = shapes
        self.placement = placement
        self._dtype = dtype
        self._lock = threading.Lock()
        self._lost = 0
        try:
            # Flat: a call takes its time with every node of a tree that Python has to open.
            self._arrays = jax.block_until_ready(self._empty())
            self.host = None if host_size is None else HostStates(host_size, shapes, self.store)
        except (jax.errors.JaxRuntimeError, MemoryError) as error:
            raise BudgetError(f"there is no room for checkpoints beside the weights: {in_one_line(error)}") from None

    def prepare(self) -> None:
        """Compile what copies pages, for it is seldom needed and then at once."""
        with self._lock, precision(self._dtype):
            self._copy([])
            if self.host is not None:
                self._pool = self.host.prepare(self._pool)

    def enter(self, plans: Sequence[Plan]) -> list[Visit]:
        """Look requests up. What they resume stays where it is until they `leave`."""
        with self._lock:
            return [self._look_up(plan) for plan in plans]

    def demand(self, plan: Plan) -> Demand:
        """What a request would need of a capacity now. By the time of its round it may be more, or less."""
        if not self.takes(plan):
            return Demand.of(plan)
        with self._lock:
            resumed = self._known(plan)
            position = self._position(plan, resumed)
        return Demand.of(plan, resumed=resumed, saved=0 if position is None else position - resumed)

    def awaits(self, plan: Plan, others: Sequence[Plan]) -> bool:
        """Whether a plan should start when one of these has finished: it may resume more of its state then.

        Its state is another's grown, or begins as that does in most of it, up to an end that may be left out.
        """
        if not self.takes(plan):
            return False
        with self._lock:
            known = self._known(plan)
        for other in others:
            if other.salt == plan.salt and self.takes(other):
                common = common_tokens(plan.state, other.state)
                gained = min(common, other.state.size - self.placement.margin) - known
                left_out = other.state.size - common
                if gained >= self.placement.step and left_out <= min(common, self.placement.reach):
                    return True
        return False

    def reserve(self, visits: Sequence[Visit]) -> list[Growth]:
        """Reserve room for what the requests of one round leave; where there is none, they leave nothing."""
        copies = []
        with self._lock:
            for visit in visits:
                if visit.position is not None and visit.plan.salt is not None:
                    state, margin = visit.plan.state, self.placement.margin
                    visit.reservation = self.store.reserve(
                        state[: visit.position],
                        namespace=visit.plan.salt,
                        parent=visit.parent,
                        text=state[: max(visit.position, state.size - margin)],
                    )
                    if visit.reservation is None:
                        visit.position = None
                    elif visit.reservation.copied is not None:
                        copies.append(visit.reservation.copied)
            for some in range(0, len(copies), _COPIED_AT_ONCE):
                self._copy(copies[some : some + _COPIED_AT_ONCE])
        return [visit.growth() for visit in visits]

    def run(self, call: Callable[[Arrays], tuple[jax.Array, Arrays]], visits: Sequence[Visit] = ()) -> jax.Array:
        """Dispatch a round, which takes the arrays of the pool and gives them back: its logits.

        Raises RuntimeError: what a visit resumes was lost, with another thread's round, since it was looked up.
        """
        with self._lock:
            if any(visit.parent is not None and visit.lost != self._lost for visit in visits):
                raise RuntimeError("the checkpoint that a request resumes was lost with a round that failed; ask again")
            try:
                logits, self._arrays = call(self._arrays)
            except BaseException:
                self._begin_anew()
                raise
        return logits

    def leave(self, visits: Sequence[Visit], logits: Sequence[np.ndarray] | None) -> None:
        """End visits whose rounds have ended. A state is kept if all logits [reads, L] of its request are finite.

        None for logits: there are none, and nothing is kept.
        """
        with self._lock:
            for number, visit in enumerate(visits):
                if visit.reservation is not None:
                    if logits is not None and np.isfinite(logits[number]).all():
                        self.store.commit(visit.reservation)
                    else:
                        self.store.abandon(visit.reservation)
                if visit.parent is not None:
                    self.store.release(visit.parent)
            if self.host is not None and logits is not None:
                self.host.settle(wait=False)

    def lose(self) -> None:
        """A round failed on the device, and took the arrays with it."""
        with self._lock:
            self._begin_anew()

    def states(self) -> States:
        """A copy of all that is stored on the device, on the host."""
        with self._lock:
            stored = list(self.store)
            pages = np.unique(np.concatenate([np.empty(0, np.int32), *(one.pages for one in stored)]))
            slots = np.array([one.slot for one in stored], np.int32)
            pool = []
            for layer in self._pool:
                places = pages if isinstance(layer, KeyPages) else slots
                pool.append(jax.tree.map(lambda leaf, places=places: np.asarray(leaf[places]), layer))
        checkpoints = [
            dataclasses.replace(one, pages=np.searchsorted(pages, one.pages).astype(np.int32), slot=number)
            for number, one in enumerate(stored)
        ]
        return States(checkpoints, tuple(pool))

    def add(self, states: States) -> int:
        """Store states that were copied from another store, as far as there is room; how many."""
        with self._lock, precision(self._dtype):
            pairs = self.store.adopt(states.checkpoints)
            if pairs:
                before, after = zip(*pairs, strict=True)
                pages, first = np.unique(np.concatenate([one.pages for one in before]), return_index=True)
                new_pages = np.concatenate([one.pages for one in after])[first]
                slots, new_slots = (np.array([one.slot for one in side], np.int32) for side in (before, after))
                pool = []
                for layer, given in zip(self._pool, states.pool, strict=True):
                    taken, places = (pages, new_pages) if isinstance(layer, KeyPages) else (slots, new_slots)
                    rows = jax.tree.map(lambda leaf, taken=taken: leaf[taken], given)
                    pool.append(_written(layer, places, rows))
                self._pool = tuple(pool)
        return len(pairs)

    def clear(self) -> None:
        """Forget all checkpoints, and those that rounds in flight are writing."""
        with self._lock:
            self._forget()

    @property
    def bytes(self) -> int:
        """Device memory of what is stored or being written."""
        with self._lock:
            return self.store.bytes

    def takes(self, plan: Plan) -> bool:
        """Whether a plan may resume or leave a checkpoint."""
        return plan.salt is not None and plan.state.size >= self.placement.shortest

    def counters(self) -> Counters:
        """What was done so far."""
        with self._lock:
            return dataclasses.replace(self.store.counters)

    def _look_up(self, plan: Plan) -> Visit:
        if not self.takes(plan):
            return Visit(plan)
        namespace, most = plan.salt or "", _most(plan)
        if self.host is not None:
            try:
                self._pool = self.host.restore(plan.state, self._pool, namespace=namespace, most=most)
            except BaseException:
                self._begin_anew()
                raise
        visit = Visit(plan, self.store.find(plan.state, namespace=namespace, most=most), lost=self._lost)
        visit.position = self._position(plan, visit.resumed)
        return visit

    def _known(self, plan: Plan) -> int:
        """How many tokens of a state could be resumed."""
        stores = [self.store] if self.host is None else [self.store, self.host.store]
        namespace, most = plan.salt or "", _most(plan)
        return max(store.longest(plan.state, namespace=namespace, most=most) for store in stores)

    def _position(self, plan: Plan, resumed: int) -> int | None:
        """Where a state is saved."""
        changing = self.store.changing(plan.state, namespace=plan.salt or "")
        return self.placement.position(plan.state.size, resumed=resumed, changing=changing)

    def _copy(self, copies: Sequence[tuple[int, int]]) -> None:
        unused = [(0, self.store.size.pages)] * (_COPIED_AT_ONCE - len(copies))
        source, target = np.array([*copies, *unused], np.int32).T
        keys = {number: layer for number, layer in enumerate(self._pool) if isinstance(layer, KeyPages)}
        keys = _copy_pages(keys, source, target)
        self._pool = tuple(keys.get(number, layer) for number, layer in enumerate(self._pool))

    def _spill(self, checkpoint: Checkpoint) -> None:
        if self.host is not None:
            self.host.spill(checkpoint, self._pool)

    def _forget(self) -> None:
        self.store.clear()
        if self.host is not None:
            self.host.clear()

    def _begin_anew(self) -> None:
        self._lost += 1
        self._forget()
        self._arrays = self._empty()

    def _empty(self) -> Arrays:
        with precision(self._dtype):
            return tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(self.shapes))

    @property
    def _pool(self) -> Pool:
        pool: Pool = jax.tree.unflatten(jax.tree.structure(self.shapes), self._arrays)
        return pool

    @_pool.setter
    def _pool(self, pool: Pool) -> None:
        self._arrays = tuple(jax.tree.leaves(pool))


def _most(plan: Plan) -> int:
    """How much of a state may be resumed: the rows that are read have to be in the stream."""
    of_state = plan.read_offsets[plan.read_branches < 0]
    return int(of_state.min(initial=plan.state.size))


@functools.partial(jax.jit, donate_argnums=0)
def _written(layer: LayerPool, places: jax.Array, given: LayerPool) -> LayerPool:
    return jax.tree.map(lambda leaf, rows: leaf.at[places].set(rows), layer, given)


@functools.partial(jax.jit, donate_argnums=0)
def _copy_pages(keys: dict[int, KeyPages], source: jax.Array, target: jax.Array) -> dict[int, KeyPages]:
    return jax.tree.map(lambda pages: pages.at[target].set(pages[source], mode="drop"), keys)
