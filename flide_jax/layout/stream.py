"""The stream of a round (paper Eq. 2): all states, then all branches, request by request."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32

from flide_jax.array_types import IntVector
from flide_jax.prompts.plan import Plan


@dataclasses.dataclass(frozen=True)
class Stream:
    """One round laid out as `[ s1 | s2 | .. | q11 | .. | q1n | q21 | .. ]`, without padding.

    A *piece* is a state or a branch: pieces 0 to R - 1 are the states, pieces R to G - 1 the branches. All arrays are
    int32. Two requests, (state of 3, branches of 2 and 1) and (state of 2, branch of 2):

        row             0  1  2  3  4  5  6  7  8  9
        token_piece     0  0  0  1  1  2  2  3  4  4
        token_index     0  1  2  0  1  3  4  3  2  3

        piece_request   0  1  0  0  1          piece_parent   -1 -1  0  0  1
        piece_begin     0  3  5  7  8          piece_length    3  2  2  1  2

    Attributes:
        tokens: token ids, row by row.
        token_piece: the piece of each row.
        piece_request: request of each piece.
        piece_parent: the state piece that a branch continues, -1 for a state.
        piece_begin, piece_length: rows of each piece.
        read_rows: rows whose logits are wanted, request by request.
        reads_per_request: how many of them belong to each request.
    """

    tokens: Int32[np.ndarray, " T"]
    token_piece: Int32[np.ndarray, " T"]
    piece_request: Int32[np.ndarray, " G"]
    piece_parent: Int32[np.ndarray, " G"]
    piece_begin: Int32[np.ndarray, " G"]
    piece_length: Int32[np.ndarray, " G"]
    read_rows: Int32[np.ndarray, " reads"]
    reads_per_request: Int32[np.ndarray, " R"]

    @property
    def requests(self) -> int:
        """R, the number of requests and of state pieces."""
        return self.reads_per_request.size

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


def lay_out(plans: Sequence[Plan]) -> Stream:
    """Lay the plans of one round out as a stream. The loops run over requests only."""
    requests = len(plans)
    state_length = _counts([plan.state.size for plan in plans])
    branch_count = _counts([plan.branch_lengths.size for plan in plans])
    branch_request = np.repeat(np.arange(requests, dtype=np.int32), branch_count)

    piece_request = np.concatenate([np.arange(requests, dtype=np.int32), branch_request])
    piece_parent = np.concatenate([np.full(requests, -1, np.int32), branch_request])
    piece_length = np.concatenate([state_length, *(plan.branch_lengths for plan in plans)])
    piece_begin = exclusive_sum(piece_length)
    token_piece = np.repeat(np.arange(piece_length.size, dtype=np.int32), piece_length)

    # A read names a branch of its own request, or -1 for the state.
    reads_per_request = _counts([plan.read_branches.size for plan in plans])
    read_request = np.repeat(np.arange(requests, dtype=np.int32), reads_per_request)
    read_branch = np.concatenate([plan.read_branches for plan in plans])
    first_branch = requests + exclusive_sum(branch_count)
    read_piece = np.where(read_branch < 0, read_request, first_branch[read_request] + read_branch)
    read_offset = np.concatenate([plan.read_offsets for plan in plans])

    return Stream(
        tokens=np.concatenate([*(plan.state for plan in plans), *(plan.branches for plan in plans)]),
        token_piece=token_piece,
        piece_request=piece_request,
        piece_parent=piece_parent,
        piece_begin=piece_begin,
        piece_length=piece_length,
        read_rows=(piece_begin[read_piece] + read_offset).astype(np.int32),
        reads_per_request=reads_per_request,
    )


def exclusive_sum(counts: IntVector) -> IntVector:
    """[a, b, c] -> [0, a, a + b]."""
    return (np.cumsum(counts) - counts).astype(np.int32)


def _counts(sizes: list[int]) -> IntVector:
    return np.array(sizes, dtype=np.int32)
