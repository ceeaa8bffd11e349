"""Plans of a length, and a device whose rounds end when a test says so."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from flide_jax.engine.ablation import Logits
from flide_jax.engine.executables import Started
from flide_jax.engine.waiting import Ran
from flide_jax.prompts.plan import Plan


def plan(tokens: int, mark: int = 0) -> Plan:
    """A request of so many tokens with one question; the mark is its first token."""
    state = np.zeros(tokens - 1, np.int32)
    state[0] = mark
    return Plan(
        state=state,
        branches=np.zeros(1, np.int32),
        branch_lengths=np.ones(1, np.int32),
        read_branches=np.zeros(1, np.int32),
        read_offsets=np.zeros(1, np.int32),
    )


def mark_of(ran: Ran) -> int:
    """The mark of the plan that this came of."""
    return int(ran.logits[0, 0])


@dataclass
class HeldRound:
    """A round that was dispatched: its plans' marks, and what lets it end."""

    marks: list[int]
    ended: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None


class HeldDevice:
    """`start` for a scheduler.

    Attributes:
        rounds: that were dispatched so far.
        running: while it is set, rounds end at once.
        refuse: the error of a round with these marks, if it cannot be dispatched.
        fail: the error of a round with these marks, if it cannot be run.
    """

    def __init__(self, *, running: bool = False) -> None:
        self.rounds: list[HeldRound] = []
        self.running = running
        self.refuse: Callable[[list[int]], Exception | None] = lambda marks: None
        self.fail: Callable[[list[int]], Exception | None] = lambda marks: None
        self._arrived = threading.Condition()

    def start(self, plans: Sequence[Plan]) -> Started:
        held = HeldRound([int(plan.state[0]) for plan in plans])
        if (error := self.refuse(held.marks)) is not None:
            raise error
        with self._arrived:
            self.rounds.append(held)
            self._arrived.notify_all()

        def finish() -> list[Logits]:
            if not self.running:
                assert held.ended.wait(20), "nobody ended this round"
            if (error := self.fail(held.marks)) is not None:
                raise error
            return [np.full((1, 1), mark, np.float32) for mark in held.marks]

        return Started([0] * len(plans), finish)

    def round(self, number: int, *, seconds: float = 10) -> HeldRound:
        """The round of this number, when it is dispatched."""
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.rounds) > number, seconds), "no such round was dispatched"
        return self.rounds[number]

    def marks(self) -> list[list[int]]:
        """The marks of all rounds so far."""
        return [held.marks for held in self.rounds]

    def release(self) -> None:
        """End all rounds, these and those to come."""
        self.running = True
        for held in self.rounds:
            held.ended.set()
