"""Where in a growing state a checkpoint is worth its memory (paper, section 3.4).

**Why a margin, and what was learnt, and not the ends of turns.** A state is what a user says in one turn of the chat
template, so the template's own turns end before it and behind it, never in it, and what a user writes is no turn even
if it looks like one. Where the turns of an agent's history end is a matter of its text, which every client writes in a
form of its own. So the end is left out by a fixed margin, for tokens that join what comes next, and what stands behind
a list of turns (a task, the rest of a document) is found out by looking: a state that is asked after another is
compared with it, and is saved before the place where the two part (`CheckpointStore.changing`).

**Why one position a state.** Every step leaves one, so a state that goes back to a former step, or branches off there,
finds that step's. More within a step could help only where it parts from all former ones in their midst. On 209 steps
of 19 agents of SWE-agent's demonstrations, tokens of Qwen3.5, 154,501 of 1,079,296 state tokens are computed; with
checkpoints at every token of every state these would be 143,831: 6,080 fewer for the margins, and the rest for how the
first states of different agents begin alike. Against this one per cent, each further position takes a slot, which is
as large as the keys of 1,600 tokens (0.8B and 4B), and cuts the recurrence of the pass that saves it once more.

(`no_type_check` leaves the refusing of what is no number to the constructor where annotations are checked at run time.)
"""

import dataclasses
from typing import no_type_check


@no_type_check
@dataclasses.dataclass(frozen=True)
class Placement:
    """Which position of a state is saved: the last one that the next step is likely to leave as it is.

    The end of a state is not: what closes it now (the bracket behind a list of turns, white space, a token that joins
    what comes next) stands elsewhere at the next step. So a margin is left out, and more where a state before this one
    turned out to have changed nearer to its beginning. All counts are tokens.

    Attributes:
        shortest: no state that is shorter is saved, or looked up.
        margin: the end of a state that is left out at least.
        step: no position is saved that stands fewer tokens behind the one where the state was resumed.
        reach: how much of the end may be left out: it is computed again at every step.

    Raises:
        ValueError: they are no whole numbers, or too small.
    """

    shortest: int = 512
    margin: int = 32
    step: int = 64
    reach: int = 1_024

    def __post_init__(self) -> None:
        if not all(isinstance(count, int) for count in dataclasses.astuple(self)):
            raise ValueError(f"a placement is whole numbers of tokens, got {self}")
        if self.shortest < 1 or self.margin < 0 or self.step < 1 or self.reach < 0:
            raise ValueError(f"shortest and step must be 1 or more, margin and reach 0 or more, got {self}")

    def position(self, length: int, *, resumed: int = 0, changing: int = 0) -> int | None:
        """How many tokens of a state of `length` are to be saved; None: none.

        Args:
            length: P.
            resumed: tokens that came from a checkpoint.
            changing: how many tokens before the margin change with every step (`CheckpointStore.changing`).
        """
        if length < self.shortest:
            return None
        position = length - self.margin
        if changing and self.margin + changing <= self.reach and position - changing - resumed >= self.step:
            position -= changing
        return position if position - resumed >= self.step else None
