"""Compiled forwards, one for each capacity: a round's structure is data, so a different mix never compiles again."""

import functools
import logging
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from flide_jax.engine.ablation import Ablation, Logits
from flide_jax.engine.program import Forward, Run, compile_round, compiler_options, op_by_op
from flide_jax.layout import Capacity, Demand, Ladder, MetadataLayout, Stream, form_rounds, lay_out
from flide_jax.prompts.plan import Plan

# Executables of single requests over the largest capacity that are kept: each is of no use to most other requests.
OVERSIZE_KEPT = 2

_log = logging.getLogger(__name__)


class Executables:
    """Compiles `forward(params, metadata)` when a capacity is first used, and keeps it. Threads may share it.

    Attributes:
        params: the parameter tree, on the device.
        ladder: the capacities that are compiled for.
        compiled: the executables so far: all those of the ladder, and of larger ones the two that were used last.
    """

    def __init__(
        self,
        forward: Forward,
        params: Any,
        ladder: Ladder,
        *,
        conv_taps: int,
        ablation: Ablation = Ablation(),  # noqa: B008  frozen
        compiled: Mapping[Capacity, Run] = MappingProxyType({}),
    ) -> None:
        """`compiled` are executables that need not be compiled any more."""
        self.params = params
        self.ladder = ladder
        self.compiled: dict[Capacity, Run] = dict(compiled)
        self._forward = forward
        self._conv_taps = conv_taps
        self._ablation = ablation
        self._in_ladder = frozenset(ladder.capacities)
        self._said_oversize = False
        # One thread compiles at a time; meanwhile others run what is compiled.
        self._compiling = threading.Lock()
        self._looking = threading.Lock()

    def logits(self, plans: Sequence[Plan]) -> list[Logits]:
        """Label logits of each plan. Plans share rounds."""
        return self.start(plans)()

    def start(self, plans: Sequence[Plan]) -> Callable[[], list[Logits]]:
        """Dispatch plans, which share rounds. What it returns waits for them, and gives the label logits of each plan.

        All rounds are dispatched before the first is awaited: the next is laid out while one runs.
        """
        demands = [Demand.of(plan) for plan in plans]
        running = []
        for members in self._rounds(demands):
            stream = lay_out([plans[i] for i in members])
            capacity = self.ladder.smallest_for(functools.reduce(operator.add, (demands[i] for i in members)))
            running.append((stream, self.dispatch(stream, capacity)))

        def finish() -> list[Logits]:
            results: list[Logits] = []
            for stream, logits in running:
                found = np.asarray(logits)[: stream.read_piece.size]
                results += np.split(found, np.cumsum(stream.reads_per_request)[:-1])
            return results

        return finish

    def prepare(self, capacity: Capacity) -> None:
        """Compile for a capacity, if that is not done yet."""
        self._executable(MetadataLayout(capacity, self._conv_taps))

    def dispatch(self, stream: Stream, capacity: Capacity) -> Float[jax.Array, "reads L"]:
        """Label logits of the capacity's read rows, those of `stream.read_rows` first. Does not wait for the device."""
        layout = MetadataLayout(capacity, self._conv_taps)
        return self._executable(layout)(self.params, layout.pack(stream))

    def _rounds(self, demands: Sequence[Demand]) -> list[list[int]]:
        if self._ablation.one_request_a_round:
            return [[i] for i in range(len(demands))]
        return form_rounds(demands, self.ladder.largest)

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
        if self._ablation.op_by_op:
            return op_by_op(self._forward, layout)
        options = compiler_options(self._ablation, layout.capacity.tokens)
        return compile_round(self._forward, self.params, layout, options)

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
