"""The stream of a round (paper Eq. 2): all states, then all branches, request by request."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int32

from flide_jax.array_types import IntVector
from flide_jax.layout.growth import Growth, Growths
from flide_jax.prompts.plan import Plan


@dataclasses.dataclass(frozen=True)
class Stream:
    """One round laid out as `[ s1 | s2 | .. | q11 | .. | q1n | q21 | .. ]`, without padding.

    A *piece* is a state or a branch: pieces 0 to R - 1 are the states, pieces R to G - 1 the branches. All arrays are
    int32. Two requests, (state of 3, branches of 2 and 1) and (state of 2, branch of 2):

        row             0  1  2  3  4  5  6  7  8  9
        token_piece     0  0  0  1  1  2  2  3  4  4
        token_index     0  1  2  0  1  3  4  3  2  3

        piece_parent   -1 -1  0  0  1          piece_request   0  1  0  0  1
        piece_length    3  2  2  1  2          piece_begin     0  3  5  7  8

    Attributes:
        tokens: token ids, row by row.
        piece_parent: the state piece that a branch continues, -1 for a state.
        piece_length: rows of each piece.
        read_piece, read_offset: the rows whose logits are wanted, request by request: each a row of a piece.
        reads_per_request: how many of them belong to each request.
        growth: what states go on from and leave behind, None in a round where none does either. The rows of a state are
            those that it goes on with: token_index counts from there.
    """

    tokens: Int32[np.ndarray, " T"]
    piece_parent: Int32[np.ndarray, " G"]
    piece_length: Int32[np.ndarray, " G"]
    read_piece: Int32[np.ndarray, " reads"]
    read_offset: Int32[np.ndarray, " reads"]
    reads_per_request: Int32[np.ndarray, " R"]
    growth: Growths | None = None

    @property
    def requests(self) -> int:
        """R, the number of requests and of state pieces."""
        return self.reads_per_request.size

    @property
    def piece_request(self) -> IntVector:
        """The request of each piece."""
        return np.where(self.piece_parent < 0, np.arange(self.piece_parent.size, dtype=np.int32), self.piece_parent)

    @property
    def piece_begin(self) -> IntVector:
        """First row of each piece."""
        return (np.cumsum(self.piece_length) - self.piece_length).astype(np.int32)

    @property
    def token_piece(self) -> IntVector:
        """The piece of each row."""
        return np.repeat(np.arange(self.piece_length.size, dtype=np.int32), self.piece_length)

    @property
    def token_offset(self) -> IntVector:
        """Position of each row inside its piece."""
        return np.arange(self.tokens.size, dtype=np.int32) - self.piece_begin[self.token_piece]

    @property
    def token_index(self) -> IntVector:
        """Position of each row in its question's own text; a branch goes on where its state ends."""
        return self.token_offset + self.parent_length[self.token_piece]

    @property
    def parent_length(self) -> IntVector:
        """Rows of the state that each piece continues; 0 for a state."""
        return np.where(self.piece_parent < 0, 0, self.piece_length[self.piece_parent]).astype(np.int32)

    @property
    def read_rows(self) -> IntVector:
        """The rows whose logits are wanted."""
        return self.piece_begin[self.read_piece] + self.read_offset


def lay_out(plans: Sequence[Plan], growths: Sequence[Growth] | None = None) -> Stream:
    """Lay the plans of one round out as a stream, states without the tokens that they resume. The loops run over
    requests only.

    Raises ValueError: a read of a state stands where it is resumed.
    """
    resumed = [0] * len(plans) if growths is None else [growth.resumed for growth in growths]
    states = [plan.state[begin:] for plan, begin in zip(plans, resumed, strict=True)]
    requests = len(plans)
    branches = [plan.branch_lengths.size for plan in plans]
    first_branch = itertools.accumulate(branches, initial=requests)
    parent = np.full(requests + sum(branches), -1, np.int32)
    parent[requests:] = np.repeat(np.arange(requests, dtype=np.int32), branches)
    return Stream(
        tokens=np.concatenate([*states, *(plan.branches for plan in plans)]),
        piece_parent=parent,
        piece_length=np.concatenate([_counts(state.size for state in states), *(p.branch_lengths for p in plans)]),
        # A read names a branch of its own request, or -1 for the state.
        read_piece=np.concatenate(
            [
                np.where(plan.read_branches < 0, np.int32(request), plan.read_branches + np.int32(first))
                for request, (plan, first) in enumerate(zip(plans, first_branch, strict=False))
            ]
        ),
        read_offset=np.concatenate([_offsets(plan, begin) for plan, begin in zip(plans, resumed, strict=True)]),
        reads_per_request=_counts(plan.read_branches.size for plan in plans),
        growth=None if growths is None else Growths.of(growths),
    )


def _offsets(plan: Plan, resumed: int) -> IntVector:
    """Position of each read in its piece."""
    if not resumed or plan.read_branches.min(initial=0) >= 0:
        return plan.read_offsets
    offsets = np.where(plan.read_branches < 0, plan.read_offsets - np.int32(resumed), plan.read_offsets)
    if offsets.min() < 0:
        raise ValueError(f"token {offsets.min() + resumed} of a state is read, it resumes at {resumed}")
    return offsets


def _counts(sizes: Iterable[int]) -> IntVector:
    return np.fromiter(sizes, np.int32)
