"""Segments and chunks of a stream: which rows carry a recurrent state, and from where (paper Eq. 4)."""

import numpy as np

from flide_jax.layout.stream import Stream, exclusive_sum
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments


def segments(stream: Stream) -> Segments:
    """One segment for each piece, states first. Request r leaves its state in slot r, where its branches start."""
    length, begin = stream.piece_length, stream.piece_begin
    is_state = stream.piece_parent < 0
    initial_slot = np.where(is_state, -1, stream.piece_request)
    final_slot = np.where(is_state, stream.piece_request, -1)

    chunks = -(-length // CHUNK_ROWS)
    chunk_segment = np.repeat(np.arange(length.size, dtype=np.int32), chunks)
    number = np.arange(chunk_segment.size, dtype=np.int32) - exclusive_sum(chunks)[chunk_segment]
    skipped = CHUNK_ROWS * number
    return Segments(
        begin=begin,
        length=length,
        initial_slot=initial_slot.astype(np.int32),
        final_slot=final_slot.astype(np.int32),
        chunk_segment=chunk_segment,
        chunk_begin=(begin[chunk_segment] + skipped).astype(np.int32),
        chunk_length=np.minimum(CHUNK_ROWS, length[chunk_segment] - skipped).astype(np.int32),
        slots=stream.requests,
    )
