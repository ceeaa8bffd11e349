"""Rounds: which requests share one stream."""

import functools
import operator
from collections.abc import Sequence

from flide_jax.layout.capacity import Capacity, Demand, Ladder


def form_rounds(demands: Sequence[Demand], largest: Capacity) -> list[list[int]]:
    """Cut a queue into rounds at request boundaries, in order.

    A round takes requests as long as the largest capacity fits their sum; a request that does not fit alone is a
    round of its own. Returns the indices of each round.
    """
    rounds: list[list[int]] = []
    total: Demand | None = None
    for i, demand in enumerate(demands):
        grown = demand if total is None else total + demand
        if total is not None and largest.fits(grown):
            rounds[-1].append(i)
            total = grown
        else:
            rounds.append([i])
            total = demand
    return rounds


def capacities_of_rounds(demands: Sequence[Demand], ladder: Ladder) -> list[Capacity]:
    """The capacity in which each round of a queue runs, in order."""
    rounds = form_rounds(demands, ladder.largest)
    sums = (functools.reduce(operator.add, (demands[i] for i in members)) for members in rounds)
    return [ladder.smallest_for(total) for total in sums]
