"""Growing states in a round: what each goes on from, and what it leaves behind (paper, section 3.4).

A state that resumes at token r has only its tokens from r on in the stream; the others are keys in pages, and a
recurrent state and a convolution window in a slot of a pool. A state that is saved at token m has two *parts*, [r, m)
and [m, P): the recurrence runs one after the other, and leaves what it has at m in another slot. Either part may have
no rows. To attention, and to a branch, the two are one state.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from flide_jax.layout.pieces import Pieces, Places, chunk_places, exclusive_sum
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments

# The page of a row that is not kept: beyond any, so that it is not written; and rows stay different from each other.
NOT_KEPT = 2**30


@dataclasses.dataclass(frozen=True, eq=False)
class Growth:
    """What one state of a round takes from the pool and what it leaves there; by default nothing.

    Attributes:
        resumed: r, how many of the state's tokens come from the pool.
        initial_slot: of their recurrent states and windows; of no meaning where r is 0.
        cached_pages: of their keys.
        saved: m - r, how many of the state's rows the first part has; 0: nothing is saved.
        final_slot: where it leaves recurrent states and windows; of no meaning where nothing is saved.
        written_pages: where the keys of the first part go, from that of token r on.
    """

    resumed: int = 0
    initial_slot: int = 0
    cached_pages: Int32[np.ndarray, " cached"] = dataclasses.field(default_factory=lambda: np.empty(0, np.int32))
    saved: int = 0
    final_slot: int = 0
    written_pages: Int32[np.ndarray, " written"] = dataclasses.field(default_factory=lambda: np.empty(0, np.int32))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Growths:
    """The growth of every request of a round as columns; the page lists stand one behind the other, request by request.

    Two requests. The first resumes at token 100 (its keys are in pages 7 and 2) and is saved 60 rows later, at token
    160 (written to pages 2 and 5); the second is saved after 70 rows and resumed nothing:

        resumed   100   0     initial_slot   4  0     cached_pages    7  2
        saved      60  70     final_slot     1  3     written_pages   2  5  0  8
    """

    resumed: Int32[jax.Array | np.ndarray, " R"]
    initial_slot: Int32[jax.Array | np.ndarray, " R"]
    saved: Int32[jax.Array | np.ndarray, " R"]
    final_slot: Int32[jax.Array | np.ndarray, " R"]
    cached_pages: Int32[jax.Array | np.ndarray, " cached"]
    written_pages: Int32[jax.Array | np.ndarray, " written"]

    @classmethod
    def of(cls, growths: Sequence[Growth]) -> "Growths":
        """The columns of a round's requests."""
        numbers = [[one.resumed, one.initial_slot, one.saved, one.final_slot] for one in growths]
        resumed, initial_slot, saved, final_slot = np.array(numbers, np.int32).T
        cached, written = (
            np.concatenate(pages)
            for pages in ([one.cached_pages for one in growths], [one.written_pages for one in growths])
        )
        return cls(resumed, initial_slot, saved, final_slot, cached, written)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GrowthMetadata:
    """What the layers of a growing round read beside the rest of its metadata.

    Attributes:
        page_table: pages of cached keys, each request's run after another's; unused entries are 0.
        cached_begin, cached_end: the cached rows that each row sees, counted through the table (`CachedKeys`).
        kept_page, kept_row: where the key of each row goes; a page from `NOT_KEPT` on: nowhere.
        window_rows: the rows that stand before each request's saved position, oldest first, as predecessors are.
        window_slot: the pool's slot that they go to; from `NOT_KEPT` on: none.
    """

    page_table: Int32[jax.Array | np.ndarray, " entries"]
    cached_begin: Int32[jax.Array | np.ndarray, " T"]
    cached_end: Int32[jax.Array | np.ndarray, " T"]
    kept_page: Int32[jax.Array | np.ndarray, " T"]
    kept_row: Int32[jax.Array | np.ndarray, " T"]
    window_rows: Int32[jax.Array | np.ndarray, "R earlier"]
    window_slot: Int32[jax.Array | np.ndarray, " R"]


def window_end(growths: Growths, *, rows: int, earlier: int) -> Int32[Array, " R"]:
    """Index behind the last row of each request's window, counted behind the stream's rows; 0 where it has none."""
    behind = rows + earlier * (jnp.asarray(growths.initial_slot) + 1)
    return jnp.where(jnp.asarray(growths.resumed) > 0, behind, 0)


def growth_metadata(growths: Growths, pieces: Pieces, rows: Places, *, earlier: int) -> GrowthMetadata:
    """Where cached keys stand, and where new keys and windows go."""
    resumed, saved = jnp.asarray(growths.resumed), jnp.asarray(growths.saved)
    cached = (resumed + PAGE_ROWS - 1) // PAGE_ROWS
    written = jnp.where(saved > 0, (resumed + saved - 1) // PAGE_ROWS - resumed // PAGE_ROWS + 1, 0)
    first_cached, first_written = PAGE_ROWS * exclusive_sum(cached), exclusive_sum(written)
    request = jnp.minimum(pieces.request[rows.piece], resumed.shape[0] - 1)
    begin = jnp.where(rows.used, first_cached[request], 0)

    position = resumed[request] + rows.offset
    is_kept = rows.used & (jnp.asarray(pieces.parent)[rows.piece] < 0) & (rows.offset < saved[request])
    entry = first_written[request] + position // PAGE_ROWS - resumed[request] // PAGE_ROWS
    number = jnp.arange(position.shape[0], dtype=jnp.int32)
    pages = jnp.asarray(growths.written_pages)

    in_state = saved[:, None] - jnp.arange(earlier, 0, -1, dtype=jnp.int32)[None]
    behind = window_end(growths, rows=position.shape[0], earlier=earlier)[:, None]
    before = jnp.where(behind > 0, behind + in_state, -1)
    requests = jnp.arange(resumed.shape[0], dtype=jnp.int32)
    return GrowthMetadata(
        page_table=jnp.asarray(growths.cached_pages),
        cached_begin=begin,
        cached_end=jnp.where(rows.used, begin + resumed[request], 0),
        kept_page=jnp.where(is_kept, pages[jnp.minimum(entry, pages.shape[0] - 1)], NOT_KEPT + number),
        kept_row=position % PAGE_ROWS,
        window_rows=jnp.where(in_state >= 0, pieces.begin[: resumed.shape[0], None] + in_state, before),
        window_slot=jnp.where(saved > 0, jnp.asarray(growths.final_slot), NOT_KEPT + requests),
    )


def growing_segments(growths: Growths, pieces: Pieces, rows: Places, *, chunks: int, slots: int) -> Segments:
    """Two segments for each piece, in three levels: the parts of a state; a branch, and one that is not used.

    A scan may go on from the first part of a state through the second. Slots of the pool are counted behind the `slots`
    of the round. The last part of state r leaves its state in slot r and branches start there, unless it has no rows:
    then they start where it would.
    """
    length, parent, request = jnp.asarray(pieces.length), jnp.asarray(pieces.parent), pieces.request
    here = jnp.minimum(request, slots - 1)
    resumed, saved = jnp.asarray(growths.resumed)[here], jnp.asarray(growths.saved)[here]
    is_state = parent < 0
    first = jnp.where(is_state, saved, length)
    parts = Pieces(parent=_in_turn(parent, parent), length=_in_turn(first, length - first))

    resumed_slot = jnp.where(resumed > 0, slots + jnp.asarray(growths.initial_slot)[here], -1)
    saved_slot = slots + jnp.asarray(growths.final_slot)[here]
    after_first = jnp.where(saved > 0, saved_slot, resumed_slot)
    state_length = jnp.where(is_state, length, length[jnp.maximum(parent, 0)])
    after_state = jnp.where(state_length > saved, here, after_first)
    none = jnp.full_like(length, -1)
    initial = _in_turn(jnp.where(is_state, resumed_slot, after_state), after_first)
    final = _in_turn(jnp.where(is_state, saved_slot, none), jnp.where(is_state, here, none))
    unused = parts.length == 0

    of_chunks = chunk_places(parts, chunks)
    skipped = CHUNK_ROWS * of_chunks.offset
    is_second = rows.offset >= first[rows.piece]
    part = 2 * rows.piece + is_second.astype(jnp.int32)
    offset = rows.offset - jnp.where(is_second, first[rows.piece], 0)
    left = jnp.asarray(parts.length)[of_chunks.piece] - skipped
    return Segments(
        first_chunk=parts.first_chunk,
        length=parts.length,
        initial_slot=jnp.where(unused, -1, initial),
        final_slot=jnp.where(unused, -1, final),
        chunk_segment=jnp.where(of_chunks.used, of_chunks.piece, 0),
        chunk_begin=jnp.where(of_chunks.used, parts.begin[of_chunks.piece] + skipped, 0),
        chunk_length=jnp.where(of_chunks.used, jnp.minimum(CHUNK_ROWS, left), 0),
        chunk_row=jnp.where(rows.used, CHUNK_ROWS * parts.first_chunk[part] + offset, 0),
        slots=slots,
        levels=3,
        parts=2,
    )


def _in_turn(first: Array, second: Array) -> Array:
    """[a, b], [c, d] -> [a, c, b, d]."""
    return jnp.stack([first, second], axis=1).reshape(-1)
