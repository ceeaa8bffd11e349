"""What each row of a stream may look at: key spans (paper Eq. 3) and convolution predecessors."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from flide_jax.array_types import Predecessors
from flide_jax.layout.pieces import Pieces, Places
from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.segmented_gdn.metadata import Segments


def key_spans(pieces: Pieces, rows: Places) -> KeySpans:
    """A state row sees its state up to itself; a branch row its whole state, and its branch up to itself.

    Padding rows see nothing.
    """
    parent, begin, length = jnp.asarray(pieces.parent), pieces.begin, jnp.asarray(pieces.length)
    own = begin[rows.piece]
    state = jnp.maximum(parent[rows.piece], 0)
    is_branch = parent[rows.piece] >= 0
    after = own + rows.offset + 1
    none = jnp.zeros_like(own)

    def column(of_branch: Array, of_state: Array) -> Array:
        return jnp.where(rows.used, jnp.where(is_branch, of_branch, of_state), 0)

    return KeySpans(
        state_begin=column(begin[state], own),
        state_end=column(begin[state] + length[state], after),
        own_begin=column(own, none),
        own_end=column(after, none),
    )


def in_chunk_rows(spans: KeySpans, segments: Segments) -> KeySpans:
    """The spans of every chunk row, in chunk rows: those of the stream row that it holds; of padding, none.

    A piece is one run of rows in both, so a span begins where its first row is, and is as long.
    """
    stream_rows, chunk_row = segments.stream_rows(), jnp.asarray(segments.chunk_row)
    padding, here = stream_rows < 0, jnp.maximum(stream_rows, 0)

    def moved(begin: Array | np.ndarray, end: Array | np.ndarray) -> tuple[Array, Array]:
        begin, length = jnp.asarray(begin)[here], (jnp.asarray(end) - begin)[here]
        begin = jnp.where(padding | (length == 0), 0, chunk_row[begin])
        return begin, begin + jnp.where(padding, 0, length)

    return KeySpans(*moved(spans.state_begin, spans.state_end), *moved(spans.own_begin, spans.own_end))


def predecessors(
    pieces: Pieces, rows: Places, *, taps: int, window_end: Int32[Array, " R"] | None = None
) -> Predecessors:
    """int32 [T, taps - 1]: the rows that stand taps - 1, .., 1 tokens before each row in its own text, or -1.

    Before the first row of a branch come the last rows of its state; before that of a state those of its window, whose
    last row is row `window_end` - 1 (0: there is none, and -1 stands there).
    """
    begin = pieces.begin
    parent, parent_length = jnp.asarray(pieces.parent)[rows.piece], pieces.parent_length[rows.piece]
    before = rows.offset[:, None] - jnp.arange(taps - 1, 0, -1, dtype=jnp.int32)[None]
    in_state = parent_length[:, None] + before
    outside = jnp.where(in_state >= 0, begin[jnp.maximum(parent, 0)][:, None] + in_state, -1)
    if window_end is not None:
        behind = window_end[jnp.minimum(pieces.request[rows.piece], window_end.shape[0] - 1)][:, None]
        outside = jnp.where((in_state < 0) & (behind > 0), behind + in_state, outside)
    inside = begin[rows.piece][:, None] + before
    return jnp.where(rows.used[:, None], jnp.where(before >= 0, inside, outside), -1)
