"""How long rounds take, learned from those that ran: it bounds the next one in time."""

import math

from flide_jax.layout import Capacity, Ladder


class RoundTimes:
    """The fastest run of each capacity so far. The fastest, because a slow one says more about the moment than about
    the capacity, and a capacity that is thought slow would not be used, and so never be seen to be fast.

    Attributes:
        ladder: the capacities.
        budget: seconds that a bounded round may take.
    """

    def __init__(self, ladder: Ladder, *, budget: float) -> None:
        self.ladder = ladder
        self.budget = budget
        self._fastest: dict[int, float] = {}
        self._bound = ladder.largest

    def learn(self, tokens: int, seconds: float) -> None:
        """A round in a capacity of this many tokens ran for this long."""
        if seconds < self._fastest.get(tokens, math.inf):
            self._fastest[tokens] = seconds
            self._bound = self._find_bound()

    def estimate(self, tokens: int) -> float | None:
        """Seconds of a round in a capacity of this many tokens: what was seen, or in proportion to the nearest that
        was; None before the first round."""
        if not self._fastest:
            return None
        nearest = min(self._fastest, key=lambda seen: abs(seen - tokens))
        return self._fastest[nearest] * max(1.0, tokens / nearest)

    def bound(self) -> Capacity:
        """The largest capacity that a round of several requests may have: that of the ladder before the first round."""
        return self._bound

    def _find_bound(self) -> Capacity:
        smallest, *larger = self.ladder.capacities
        best = smallest
        for capacity in larger:
            seconds = self.estimate(capacity.tokens)
            if seconds is not None and seconds > self.budget:
                break
            best = capacity
        return best
