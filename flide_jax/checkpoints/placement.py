"""Where in a growing state a checkpoint is worth its memory (paper, section 3.4)."""

import dataclasses

import numpy as np
from jaxtyping import Int32


@dataclasses.dataclass(frozen=True)
class Placement:
    """Which position of a state is saved: the last one that the next step is likely to leave as it is.

    The end of a state is not: what closes it now (the bracket behind a list of turns, white space, a token that joins
    what comes next) stands elsewhere at the next step. So a margin is left out, and more where turns end earlier, or
    where a state before this one turned out to have changed nearer to its beginning. All counts are tokens.

    Attributes:
        shortest: no state that is shorter is saved, or looked up.
        margin: the end of a state that is left out at least, unless a turn ends in it.
        step: no position is saved that stands fewer tokens behind the one where the state was resumed.
        reach: how much of the end may be left out: it is computed again at every step.
    """

    shortest: int = 512
    margin: int = 32
    step: int = 64
    reach: int = 1_024

    def __post_init__(self) -> None:
        if self.shortest < 1 or self.margin < 0 or self.step < 1 or self.reach < 0:
            raise ValueError(f"shortest and step must be 1 or more, margin and reach 0 or more, got {self}")

    def position(
        self,
        length: int,
        *,
        resumed: int = 0,
        turn_ends: Int32[np.ndarray, " turns"] | None = None,
        changing: int = 0,
    ) -> int | None:
        """How many tokens of a state of `length` are to be saved; None: none.

        Args:
            length: P.
            resumed: tokens that came from a checkpoint.
            turn_ends: how many tokens stand before the end of each turn in the state, ascending; a turn that ends with
                the state is complete too.
            changing: how many tokens before the margin change with every step (`CheckpointStore.changing`).
        """
        if length < self.shortest:
            return None
        position = length - self.margin
        if turn_ends is not None and turn_ends.size and length - turn_ends[-1] <= self.reach:
            position = int(turn_ends[-1])
        if changing and self.margin + changing <= self.reach and length - self.margin - changing - resumed >= self.step:
            position = min(position, length - self.margin - changing)
        return position if position - resumed >= self.step else None
