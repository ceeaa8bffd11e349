"""Segments and chunks of a stream: which rows carry a recurrent state, and from where (paper Eq. 4)."""

import jax.numpy as jnp

from flide_jax.layout.pieces import Pieces, Places
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments


def segments(pieces: Pieces, rows: Places, chunks: Places, *, slots: int) -> Segments:
    """One segment for each piece, states first. Request r leaves its state in slot r, where its branches start."""
    parent, length, begin, first_chunk = jnp.asarray(pieces.parent), pieces.length, pieces.begin, pieces.first_chunk
    number = jnp.arange(parent.shape[0], dtype=jnp.int32)
    unused = jnp.asarray(length) == 0
    skipped = CHUNK_ROWS * chunks.offset
    return Segments(
        first_chunk=first_chunk,
        length=length,
        initial_slot=jnp.where(unused, -1, parent),
        final_slot=jnp.where(unused | (parent >= 0), -1, number),
        chunk_segment=jnp.where(chunks.used, chunks.piece, 0),
        chunk_begin=jnp.where(chunks.used, begin[chunks.piece] + skipped, 0),
        chunk_length=jnp.where(chunks.used, jnp.minimum(CHUNK_ROWS, jnp.asarray(length)[chunks.piece] - skipped), 0),
        chunk_row=jnp.where(rows.used, CHUNK_ROWS * first_chunk[rows.piece] + rows.offset, 0),
        slots=slots,
    )
