"""Compiled forwards, one for each capacity: a round's structure is data, so a different mix never compiles again."""

import dataclasses
import functools
import logging
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from flide_jax.engine.ablation import Logits
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.growing import GrowingStates, Visit
from flide_jax.engine.program import Program, Run
from flide_jax.layout import Capacity, Demand, Ladder, MetadataLayout, Stream, form_rounds, lay_out
from flide_jax.prompts.plan import Plan

# Executables of single requests over the largest capacity that are kept: each is of no use to most other requests.
OVERSIZE_KEPT = 2
WARMED_ON = ("gpu",)

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, eq=False)
class Started:
    """Plans whose rounds were dispatched. Calling it, once, waits for them and gives the label logits of each plan.

    Attributes:
        resumed: tokens of each plan's state that came from a checkpoint.
    """

    resumed: list[int]
    finish: Callable[[], list[Logits]]

    def __call__(self) -> list[Logits]:
        return self.finish()


class Executables:
    """Compiles or loads for a capacity when it is first used, and keeps what runs it. Threads may share it.

    Attributes:
        params: the parameter tree, on the device.
        ladder: the capacities that are compiled for.
        growing: the checkpoints that rounds resume and leave, None for none.
        growing_ladder: the capacities of rounds that do.
        compiled: the executables so far: all those of the ladder, and of larger ones the two that were used last.
    """

    def __init__(
        self,
        run: Callable[[Capacity], Run],
        params: Any,
        ladder: Ladder,
        *,
        conv_taps: int,
        one_request_a_round: bool = False,
        growing: GrowingStates | None = None,
        growing_ladder: Ladder | None = None,
    ) -> None:
        """`run` compiles or loads what runs a capacity. `growing` needs a ladder of its own."""
        self.params = params
        self.ladder = ladder
        self.growing = growing
        self.growing_ladder = growing_ladder or ladder
        self.compiled: dict[Capacity, Run] = {}
        self._run = run
        self._conv_taps = conv_taps
        self._one_request_a_round = one_request_a_round
        self._in_ladder = frozenset((*ladder.capacities, *self.growing_ladder.capacities))
        self._said_oversize = False
        # One thread compiles at a time; meanwhile others run what is compiled.
        self._compiling = threading.Lock()
        self._looking = threading.Lock()

    @classmethod
    def of(
        cls,
        program: Program,
        params: Any,
        config: EngineConfig,
        *,
        run: Callable[[Capacity], Run] | None = None,
    ) -> "Executables":
        """Those of a program, with the checkpoints that it has room for; `run` gives them, by default compiled."""
        ladder, growing = config.ladder(), None
        if program.store is not None:
            growing = GrowingStates(
                program.store,
                program.pool,
                config.placement,
                dtype=program.dtype,
                host_size=program.host_store(config),
            )
        return cls(
            run or program.run,
            params,
            ladder,
            conv_taps=program.conv_taps,
            one_request_a_round=config.ablation.one_request_a_round,
            growing=growing,
            growing_ladder=program.growing_ladder(ladder),
        )

    def logits(self, plans: Sequence[Plan]) -> list[Logits]:
        """Label logits of each plan. Plans share rounds."""
        return self.start(plans)()

    def start(self, plans: Sequence[Plan]) -> Started:
        """Dispatch plans, which share rounds.

        All rounds are dispatched before the first is awaited: the next is laid out while one runs. States that they
        leave are found by plans that start when these have finished.
        """
        visits = [Visit(plan) for plan in plans] if self.growing is None else self.growing.enter(plans)
        try:
            rounds = self._rounds([visit.demand for visit in visits])
            running = [self._start_round([visits[i] for i in members]) for members in rounds]
        except BaseException:
            self._leave(visits, None)
            raise

        def finish() -> list[Logits]:
            results: list[Logits] = []
            try:
                for stream, logits in running:
                    results += _by_request(stream, logits)
            except BaseException:
                self._leave(visits, None)
                if self.growing is not None and any(stream.growth is not None for stream, _ in running):
                    self.growing.lose()
                raise
            self._leave(visits, results)
            return results

        return Started([visit.resumed for visit in visits], finish)

    def logits_in(self, capacity: Capacity, plans: Sequence[Plan]) -> list[Logits]:
        """Label logits of each plan from one round of this capacity, larger than it need be or not.

        Nothing is resumed or saved. Raises ValueError: the plans do not fit, or the capacity is for growing rounds.
        """
        stream = lay_out(plans)
        return _by_request(stream, self.dispatch(stream, capacity))

    def demand(self, plan: Plan) -> Demand:
        """What a plan would need of a capacity if it started now."""
        return Demand.of(plan) if self.growing is None else self.growing.demand(plan)

    def capacity_for(self, plan: Plan) -> Capacity:
        """What a plan would run in if it started now, alone."""
        grows = self.growing is not None and self.growing.takes(plan)
        return (self.growing_ladder if grows else self.ladder).smallest_for(self.demand(plan))

    def prepare(self, capacity: Capacity) -> None:
        """Compile or load for a capacity, if that is not done yet."""
        self._executable(MetadataLayout(capacity, self._conv_taps))

    def warm(self, capacity: Capacity) -> None:
        """`prepare`; and on a GPU run a round of nothing, for there the first run of an executable takes far longer."""
        self.prepare(capacity)
        if jax.default_backend() in WARMED_ON:
            layout = MetadataLayout(capacity, self._conv_taps)
            jax.block_until_ready(self._run_round(layout, np.zeros(layout.size, np.int32)))

    def add(self, compiled: Mapping[Capacity, Run]) -> None:
        """Keep executables that are there already."""
        for capacity, run in compiled.items():
            self._keep(capacity, run)

    def dispatch(self, stream: Stream, capacity: Capacity, visits: Sequence[Visit] = ()) -> Float[jax.Array, "reads L"]:
        """Label logits of the capacity's read rows, those of `stream.read_rows` first. Does not wait for the device."""
        layout = MetadataLayout(capacity, self._conv_taps)
        return self._run_round(layout, layout.pack(stream), visits)

    def _run_round(self, layout: MetadataLayout, buffer: np.ndarray, visits: Sequence[Visit] = ()) -> jax.Array:
        run = self._executable(layout)
        if self.growing is None or not layout.capacity.is_growing:
            return run(self.params, buffer)
        return self.growing.run(lambda pool: run(self.params, buffer, pool), visits)

    def _start_round(self, visits: Sequence[Visit]) -> tuple[Stream, jax.Array | np.ndarray]:
        growths = None
        if self.growing is not None and any(visit.is_growing for visit in visits):
            growths = self.growing.reserve(visits)
        stream = lay_out([visit.plan for visit in visits], growths)
        ladder = self.ladder if growths is None else self.growing_ladder
        capacity = ladder.smallest_for(functools.reduce(operator.add, (visit.demand for visit in visits)))
        logits = self.dispatch(stream, capacity, visits)
        return stream, logits

    def _leave(self, visits: Sequence[Visit], logits: Sequence[np.ndarray] | None) -> None:
        if self.growing is not None:
            self.growing.leave(visits, logits)

    def _rounds(self, demands: Sequence[Demand]) -> list[list[int]]:
        if self._one_request_a_round:
            return [[i] for i in range(len(demands))]
        return form_rounds(demands, self.growing_ladder.largest)

    def _executable(self, layout: MetadataLayout) -> Run:
        found = self._kept(layout.capacity)
        if found is None:
            with self._compiling:
                found = self._kept(layout.capacity)  # another thread may have been here first
                if found is None:
                    found = self._build(layout)
                    self._keep(layout.capacity, found)
        return found

    def _build(self, layout: MetadataLayout) -> Run:
        if self._is_oversize(layout.capacity) and not self._said_oversize:
            self._said_oversize = True
            _log.warning(
                "a request does not fit into the largest capacity (%d tokens): an executable of its own is compiled, "
                "for %d tokens, and the last %d such are kept; this is said once",
                self.ladder.largest.tokens,
                layout.capacity.tokens,
                OVERSIZE_KEPT,
            )
        return self._run(layout.capacity)

    def _kept(self, capacity: Capacity) -> Run | None:
        with self._looking:
            found = self.compiled.get(capacity)
            if found is not None and self._is_oversize(capacity):
                self.compiled[capacity] = self.compiled.pop(capacity)  # the last to go
            return found

    def _keep(self, capacity: Capacity, built: Run) -> None:
        with self._looking:
            self.compiled[capacity] = built
            oversize = [kept for kept in self.compiled if self._is_oversize(kept)]
            for oldest in oversize[:-OVERSIZE_KEPT]:
                del self.compiled[oldest]

    def _is_oversize(self, capacity: Capacity) -> bool:
        return capacity not in self._in_ladder


def _by_request(stream: Stream, logits: jax.Array | np.ndarray) -> list[Logits]:
    """The read rows of each request of a round; waits for them."""
    found = np.asarray(logits)[: stream.read_piece.size]
    return np.split(found, np.cumsum(stream.reads_per_request)[:-1])
