"""The pieces of a round, and what stands in each row: two small columns, from which all else follows.

The host sends these columns; everything with an entry for each row or chunk is computed inside the executable, by
functions of `jax.numpy` that run on the host as well. A launch there takes less time than a call of numpy here.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pieces:
    """The states and branches of a round in the order of the stream, states first (paper Eq. 2).

    A branch without rows is unused; such stand at the end. A state has none where all of it was read before
    (`growth`). Two requests, (state of 3, branches of 2 and 1) and (state of
    2, branch of 2):

        parent       -1 -1  0  0  1        begin         0  3  5  7  8
        length        3  2  2  1  2        first_chunk   0  1  2  3  4

    Attributes:
        parent: the state piece that a branch continues, -1 for a state; it is the number of the branch's request.
        length: rows of each piece.
    """

    parent: Int32[jax.Array | np.ndarray, " G"]
    length: Int32[jax.Array | np.ndarray, " G"]

    @property
    def begin(self) -> Int32[Array, " G"]:
        """First stream row of each piece."""
        return exclusive_sum(self.length)

    @property
    def request(self) -> Int32[Array, " G"]:
        """The request of each piece."""
        parent = jnp.asarray(self.parent)
        return jnp.where(parent < 0, jnp.arange(parent.shape[0], dtype=jnp.int32), parent)

    @property
    def chunks(self) -> Int32[Array, " G"]:
        """How many chunks each piece is cut into."""
        return chunks_of(jnp.asarray(self.length))

    @property
    def first_chunk(self) -> Int32[Array, " G"]:
        """First chunk of each piece."""
        return exclusive_sum(self.chunks)

    @property
    def parent_length(self) -> Int32[Array, " G"]:
        """Rows of the state that each piece continues; 0 for a state."""
        length = jnp.asarray(self.length)
        return jnp.where(self.parent < 0, 0, length[jnp.maximum(self.parent, 0)])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Places:
    """In which piece each row of the stream stands, or each chunk of the chunk list.

    Attributes:
        piece: the piece; any for an unused place.
        offset: how many places of the same piece stand before.
        used: false for padding.
    """

    piece: Int32[Array, " N"]
    offset: Int32[Array, " N"]
    used: Bool[Array, " N"]


def row_places(pieces: Pieces, rows: int) -> Places:
    """Of the rows of a stream that is padded to `rows`."""
    return _places(pieces.begin, jnp.asarray(pieces.length), rows)


def chunk_places(pieces: Pieces, chunks: int) -> Places:
    """Of the entries of a chunk list that is padded to `chunks`."""
    return _places(pieces.first_chunk, pieces.chunks, chunks)


def chunks_of[Length: (int, np.ndarray, jax.Array)](length: Length) -> Length:
    """How many chunks a piece of this length is cut into, or each of these."""
    return (length + (CHUNK_ROWS - 1)) // CHUNK_ROWS


def _places(begin: Int32[Array, " G"], length: Int32[Array, " G"], count: int) -> Places:
    place = jnp.arange(count, dtype=jnp.int32)
    # Comparing all with all is one launch on a GPU; a search or a scan would be one for each of its steps.
    ended = jnp.sum(place[:, None] >= (begin + length)[None], axis=1, dtype=jnp.int32)
    piece = jnp.minimum(ended, length.shape[0] - 1)
    return Places(piece=piece, offset=place - begin[piece], used=place < begin[-1] + length[-1])


def exclusive_sum(counts: Int32[Array | np.ndarray, " G"]) -> Int32[Array, " G"]:
    """[a, b, c] -> [0, a, a + b]."""
    counts = jnp.asarray(counts)
    number = jnp.arange(counts.shape[0], dtype=jnp.int32)
    return jnp.sum(jnp.where(number[None] < number[:, None], counts[None], 0), axis=1, dtype=jnp.int32)
