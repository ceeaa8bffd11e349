"""The structure of a round as data: one int32 buffer from the host, a pytree of what it means in the executable."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32

from flide_jax.array_types import IntVector, Predecessors, ReadRows, RotaryPositions, Tokens
from flide_jax.layout.capacity import Capacity, Demand
from flide_jax.layout.growth import GrowthMetadata, Growths, growing_segments, growth_metadata, window_end
from flide_jax.layout.pieces import Pieces, chunk_places, row_places
from flide_jax.layout.ranges import key_spans, predecessors
from flide_jax.layout.segments import segments
from flide_jax.layout.stream import Stream
from pallas_kernels.fork_attention.metadata import PAGE_ROWS, KeySpans
from pallas_kernels.segmented_gdn.metadata import Segments

# The columns of a growing round beside the others.
GROWTH = tuple(field.name for field in dataclasses.fields(Growths))

COLUMN_WORDS = 64  # at whose multiples columns begin


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RoundMetadata:
    """Everything the forward of a round reads beside the weights, padded to a capacity.

    A padding row holds token 0, sees no key, stands in no segment and follows no row. A padding read row is row 0.
    """

    tokens: Tokens
    rotary_positions: RotaryPositions
    spans: KeySpans
    predecessors: Predecessors
    segments: Segments
    read_rows: ReadRows
    growth: GrowthMetadata | None = None


@dataclasses.dataclass(frozen=True)
class MetadataLayout:
    """Where each column of a round stands in the int32 buffer of a capacity, and what follows from the columns.

    Attributes:
        capacity: sizes of the executable.
        conv_taps: taps of the model's short convolution.
    """

    capacity: Capacity
    conv_taps: int

    @functools.cached_property
    def columns(self) -> dict[str, slice]:
        """The part of the buffer of each array of a `Stream`, and of its growth in a capacity for that.

        Each begins at a multiple of 256 bytes: a kernel that reads one is given its address in the buffer.
        """
        pieces, reads, requests = self.capacity.segments, self.capacity.reads, self.capacity.requests
        sizes = {
            "tokens": self.capacity.tokens,
            "piece_parent": pieces,
            "piece_length": pieces,
            "read_piece": reads,
            "read_offset": reads,
        }
        if self.capacity.is_growing:
            sizes |= dict.fromkeys(("resumed", "initial_slot", "saved", "final_slot"), requests)
            sizes["cached_pages"] = self.capacity.entries
            # What is written of a state may begin and end within pages.
            sizes["written_pages"] = self.capacity.tokens // PAGE_ROWS + 2 * requests
        steps = (size + -size % COLUMN_WORDS for size in sizes.values())
        begins = itertools.accumulate(steps, initial=0)
        return {name: slice(begin, begin + size) for (name, size), begin in zip(sizes.items(), begins, strict=False)}

    @property
    def size(self) -> int:
        """int32 words of the buffer."""
        return max(column.stop for column in self.columns.values())

    def pack(self, stream: Stream) -> IntVector:
        """Write a round into a new buffer. Raises ValueError when it exceeds the capacity."""
        self._check(stream)
        buffer = np.zeros(self.size, np.int32)
        for name, column in self.columns.items():
            value = getattr(stream.growth if name in GROWTH else stream, name)
            buffer[column.start : column.start + value.size] = value
        return buffer

    def unpack(self, buffer: Int32[jax.Array | np.ndarray, " words"]) -> RoundMetadata:
        """What a buffer says of every row, segment and chunk of the capacity."""
        capacity, earlier = self.capacity, self.conv_taps - 1
        column = {name: jnp.asarray(buffer[where]) for name, where in self.columns.items()}
        pieces = Pieces(parent=column["piece_parent"], length=column["piece_length"])
        rows = row_places(pieces, capacity.tokens)
        before = pieces.parent_length[rows.piece]
        if capacity.is_growing:
            growths = Growths(**{name: column[name] for name in GROWTH})
            before += jnp.asarray(growths.resumed)[jnp.minimum(pieces.request[rows.piece], capacity.requests - 1)]
            windows = window_end(growths, rows=capacity.tokens, earlier=earlier)
            parts = growing_segments(growths, pieces, rows, chunks=capacity.chunks, slots=capacity.requests)
            growth = growth_metadata(growths, pieces, rows, earlier=earlier)
        else:
            windows, growth = None, None
            parts = segments(pieces, rows, chunk_places(pieces, capacity.chunks), slots=capacity.requests)
        index = jnp.where(rows.used, rows.offset + before, 0)
        return RoundMetadata(
            tokens=column["tokens"],
            # Text has three equal rotary positions; they part from the token index where images stand.
            rotary_positions=jnp.broadcast_to(index, (3, index.size)),
            spans=key_spans(pieces, rows),
            predecessors=predecessors(pieces, rows, taps=self.conv_taps, window_end=windows),
            segments=parts,
            read_rows=pieces.begin[column["read_piece"]] + column["read_offset"],
            growth=growth,
        )

    def _check(self, stream: Stream) -> None:
        # What the executable would compute from too many chunks or requests is wrong, and nothing would say so.
        if (stream.growth is not None) != self.capacity.is_growing:
            raise ValueError(f"a round with growth {stream.growth is not None} does not fit into {self.capacity}")
        if not self.capacity.fits(demand := Demand.of_stream(stream)):
            raise ValueError(f"a round of {demand} does not fit into {self.capacity}")
