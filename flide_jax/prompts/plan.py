"""The tokens of one request, split where its questions fork: what a prompt format asks the engine to run.

(`no_type_check` leaves the refusing of wrong arrays to the constructor where annotations are checked at run time.)
"""

from dataclasses import dataclass, fields, replace
from typing import no_type_check

import numpy as np
from jaxtyping import Int32


@no_type_check
@dataclass(frozen=True, eq=False)
class Plan:
    """One request in tokens: a state s, branches q_1..q_n that continue it, and the rows to read (paper, before Eq. 2).

    s + q_i is, token for token, what branch i is when it is asked alone. All arrays are int32 and read-only.

    Two branches of 3 and 2 tokens after a state of 4, each read at its last token:

        state          [9 8 7 6]
        branches       [1 2 3 4 5]
        branch_lengths [3 2]
        read_branches  [0 1]
        read_offsets   [2 1]

    Attributes:
        state: token ids of s, at least one.
        branches: token ids of all branches, one branch after another.
        branch_lengths: tokens of each branch, at least one each.
        read_branches: the branch of each read, -1 for the state itself.
        read_offsets: the position of each read, counted from the start of its branch (or of the state).
        salt: whose checkpoints the request may resume, and who may resume its own: requests of the same salt. None: it
            neither looks for any nor leaves any.

    Raises:
        ValueError: the arrays do not describe such a tree.
    """

    state: Int32[np.ndarray, " P"]
    branches: Int32[np.ndarray, " branch_tokens"]
    branch_lengths: Int32[np.ndarray, " branches"]
    read_branches: Int32[np.ndarray, " reads"]
    read_offsets: Int32[np.ndarray, " reads"]
    salt: str | None = ""

    def __post_init__(self) -> None:
        for item in fields(Plan):
            if item.name == "salt":
                continue
            array = np.array(getattr(self, item.name))
            if array.ndim != 1 or array.dtype != np.int32:
                raise ValueError(f"{item.name} must be int32 with one axis, got {array.dtype} {array.shape}")
            array.flags.writeable = False
            object.__setattr__(self, item.name, array)
        if not self.state.size:
            raise ValueError("state must hold at least one token")
        if self.branch_lengths.size and self.branch_lengths.min() < 1:
            raise ValueError(f"branch_lengths must be 1 or more, got {self.branch_lengths.min()}")
        if self.branch_lengths.sum() != self.branches.size:
            raise ValueError(f"branch_lengths add up to {self.branch_lengths.sum()}, got {self.branches.size} tokens")
        if self.read_branches.shape != self.read_offsets.shape:
            raise ValueError(f"{self.read_branches.size} read_branches but {self.read_offsets.size} read_offsets")
        if self.read_branches.size:
            self._check_reads()

    def _check_reads(self) -> None:
        if self.read_branches.min() < -1 or self.read_branches.max() >= self.branch_lengths.size:
            raise ValueError(f"read_branches must lie in [-1, {self.branch_lengths.size}), got {self.read_branches}")
        # Index -1 picks the last entry, so the state's length stands behind those of the branches.
        lengths = np.append(self.branch_lengths, self.state.size)[self.read_branches]
        if self.read_offsets.min() < 0 or (self.read_offsets >= lengths).any():
            raise ValueError(f"read_offsets must lie within their branch or state, got {self.read_offsets}")

    @property
    def tokens(self) -> int:
        """Tokens of the forked request: P + sum |q_i|."""
        return self.state.size + self.branches.size

    @property
    def tokens_alone(self) -> int:
        """Tokens of its questions as texts of their own: n P + sum |q_i|."""
        return self.branch_lengths.size * self.state.size + self.branches.size

    def branch(self, index: int) -> Int32[np.ndarray, " q"]:
        """The token ids of one branch."""
        if not 0 <= index < self.branch_lengths.size:
            raise ValueError(f"there are {self.branch_lengths.size} branches, got index {index}")
        end = int(self.branch_lengths[: index + 1].sum())
        return self.branches[end - int(self.branch_lengths[index]) : end]

    def only(self, index: int) -> "Plan":
        """The state and branch `index` behind it, with that branch's reads: its question asked alone, but forked."""
        branch, reads = self.branch(index), self.read_branches == index
        return replace(
            self,
            branches=branch,
            branch_lengths=np.array([branch.size], np.int32),
            read_branches=np.zeros(int(reads.sum()), np.int32),
            read_offsets=self.read_offsets[reads],
        )

    def alone(self, index: int) -> "Plan":
        """Branch `index` as one text s + q_i without forks, with that branch's reads: the oracle for forking, and for
        checkpoints, which it does without."""
        none = np.empty(0, np.int32)
        reads = self.read_branches == index
        return Plan(
            state=np.concatenate([self.state, self.branch(index)]),
            branches=none,
            branch_lengths=none,
            read_branches=np.full(int(reads.sum()), -1, np.int32),
            read_offsets=self.read_offsets[reads] + np.int32(self.state.size),
            salt=None,
        )
