"""Segments and chunks of a stream: which rows carry a recurrent state, and from where (paper Eq. 4)."""

import numpy as np

from flide_jax.array_types import IntVector
from flide_jax.layout.stream import Stream, exclusive_sum
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments


def segments(stream: Stream) -> Segments:
    """One segment for each piece, states first. Request r leaves its state in slot r, where its branches start."""
    length, begin = stream.piece_length, stream.piece_begin
    is_state = stream.piece_parent < 0
    initial_slot = np.where(is_state, -1, stream.piece_request)
    final_slot = np.where(is_state, stream.piece_request, -1)

    chunks = chunks_of(length)
    first_chunk = exclusive_sum(chunks)
    chunk_segment = np.repeat(np.arange(length.size, dtype=np.int32), chunks)
    skipped = CHUNK_ROWS * (np.arange(chunk_segment.size, dtype=np.int32) - first_chunk[chunk_segment])
    return Segments(
        first_chunk=first_chunk,
        length=length,
        initial_slot=initial_slot.astype(np.int32),
        final_slot=final_slot.astype(np.int32),
        chunk_segment=chunk_segment,
        chunk_begin=(begin[chunk_segment] + skipped).astype(np.int32),
        chunk_length=np.minimum(CHUNK_ROWS, length[chunk_segment] - skipped).astype(np.int32),
        chunk_row=(CHUNK_ROWS * first_chunk[stream.token_piece] + stream.token_offset).astype(np.int32),
        slots=stream.requests,
    )


def chunks_of(length: IntVector) -> IntVector:
    """How many chunks a segment of each length is cut into."""
    return (-(-length // CHUNK_ROWS)).astype(np.int32)
