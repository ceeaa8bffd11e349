"""What each row of a stream may look at: key spans (paper Eq. 3) and convolution predecessors."""

import numpy as np

from flide_jax.array_types import Predecessors
from flide_jax.layout.stream import Stream
from pallas_kernels.fork_attention.metadata import KeySpans


def key_spans(stream: Stream) -> KeySpans:
    """A state row sees its state up to itself; a branch row its whole state, and its branch up to itself."""
    piece, parent = stream.token_piece, stream.piece_parent[stream.token_piece]
    is_state = parent < 0
    begin = stream.piece_begin[piece]
    after = np.arange(piece.size, dtype=np.int32) + 1
    state_end = stream.piece_begin[parent] + stream.piece_length[parent]
    return KeySpans(
        state_begin=np.where(is_state, begin, stream.piece_begin[parent]).astype(np.int32),
        state_end=np.where(is_state, after, state_end).astype(np.int32),
        own_begin=np.where(is_state, 0, begin).astype(np.int32),
        own_end=np.where(is_state, 0, after).astype(np.int32),
    )


def predecessors(stream: Stream, *, taps: int) -> Predecessors:
    """int32 [T, taps - 1]: the rows that stand taps - 1, .., 1 tokens before each row in its own text, or -1.

    Before the first row of a branch come the last rows of its state.
    """
    distance = np.arange(taps - 1, 0, -1, dtype=np.int32)
    rows = np.arange(stream.tokens.size, dtype=np.int32)[:, None] - distance
    # Only the first rows of a piece have predecessors outside it: they are few, the rows are many.
    piece, offset = np.nonzero(np.arange(taps - 1) < stream.piece_length[:, None])
    heads, before = stream.piece_begin[piece] + offset, offset[:, None] - distance
    in_parent = stream.parent_length[piece, None] + before
    outside = np.where(in_parent >= 0, stream.piece_begin[stream.piece_parent[piece], None] + in_parent, -1)
    rows[heads] = np.where(before >= 0, rows[heads], outside)
    return rows
