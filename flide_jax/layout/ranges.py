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
    piece = stream.token_piece[:, None]
    offset = stream.token_offset[:, None] - np.arange(taps - 1, 0, -1, dtype=np.int32)
    in_piece = stream.piece_begin[piece] + offset
    in_parent = stream.piece_begin[stream.piece_parent[piece]] + stream.parent_length[piece] + offset
    has_parent_row = stream.parent_length[piece] + offset >= 0
    return np.where(offset >= 0, in_piece, np.where(has_parent_row, in_parent, -1)).astype(np.int32)
