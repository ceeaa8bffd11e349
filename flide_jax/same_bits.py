"""Whether an answer keeps its bits whatever it is answered with: alone, in rounds, in another order or capacity.

A batch-invariant engine promises that (`EngineConfig.batch_invariant`). Any other promises the same up to rounding, and
the same comparison says how often the bits agree all the same.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from flide_jax.engine.executables import Executables
from flide_jax.layout import Capacity, Demand
from flide_jax.prompts.plan import Plan

Logits = Float[np.ndarray, "_ L"]  # a plan's reads; those of several plans are compared side by side


@dataclass(frozen=True)
class BitsComparison:
    """Questions asked in one more way.

    Attributes:
        way: what differs from each request alone in the smallest capacity that holds it.
        questions: how many answers were compared, as their label logits.
        same: how many of them agree in every bit.
        first: number of the request, and of its read, of the first that does not.
    """

    way: str
    questions: int
    same: int
    first: tuple[int, int] | None

    @property
    def place(self) -> str:
        """Where the first that differs is, in words; nothing where there is none."""
        return "" if self.first is None else "request {}, question {}".format(*self.first)

    @classmethod
    def of(cls, way: str, pairs: Iterable[tuple[int, Logits, Logits]]) -> "BitsComparison":
        """From the number, and the expected and the found logits, of requests."""
        agree = [
            (number, read, bool(same))
            for number, expected, found in pairs
            for read, same in enumerate(same_rows(expected, found))
        ]
        differing = [(number, read) for number, read, same in agree if not same]
        return cls(way, len(agree), len(agree) - len(differing), differing[0] if differing else None)


def same_rows(expected: Logits, found: Logits) -> np.ndarray:
    """bool [reads]: which rows agree in every bit."""
    expected, found = (np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in (expected, found))
    return (expected == found).all(axis=1)


def compare_bits(run: Executables, plans: Sequence[Plan]) -> list[BitsComparison]:
    """Asks requests alone, and then in other ways: question by question, together, in other orders and capacities.

    Compiles what the requests alone and together need, and the next larger capacity of each. Logits are only compared
    with each other: what they are is not looked at, NaN included.
    """
    numbered = list(enumerate(plans))
    alone = [run.logits_in(run.ladder.smallest_for(Demand.of(plan)), [plan])[0] for plan in plans]

    def in_order(order: Sequence[int]) -> Iterable[tuple[int, Logits, Logits]]:
        found = run.logits([plans[number] for number in order])
        return sorted(((number, alone[number], one) for number, one in zip(order, found, strict=True)), key=_number)

    def by_question() -> Iterable[tuple[int, Logits, Logits]]:
        for number, plan in numbered:
            for branch in range(plan.branch_lengths.size):
                (found,) = run.logits([plan.only(branch)])
                yield number, alone[number][plan.read_branches == branch], found

    def in_larger() -> Iterable[tuple[int, Logits, Logits]]:
        for number, plan in numbered:
            for capacity in _larger(run, Demand.of(plan)):
                yield number, alone[number], run.logits_in(capacity, [plan])[0]

    forward = range(len(plans))
    shuffled = np.random.default_rng(0).permutation(len(plans)).tolist()
    return [
        BitsComparison.of("each question alone", by_question()),
        BitsComparison.of("all in rounds", in_order(forward)),
        BitsComparison.of("in reverse order", in_order(forward[::-1])),
        BitsComparison.of("in random order", in_order(shuffled)),
        BitsComparison.of("in larger capacities", in_larger()),
    ]


def _number(item: tuple[int, Logits, Logits]) -> int:
    return item[0]


def _larger(run: Executables, demand: Demand) -> list[Capacity]:
    """The next larger capacity than is needed, and the largest that is compiled."""
    needed = run.ladder.smallest_for(demand)
    following = [capacity for capacity in run.ladder.capacities if capacity.tokens > needed.tokens]
    compiled = [capacity for capacity in run.compiled if capacity.tokens > needed.tokens and capacity.fits(demand)]
    largest = max(compiled, key=lambda capacity: capacity.tokens, default=None)
    return list(dict.fromkeys([*following[:1], *([] if largest is None else [largest])]))
