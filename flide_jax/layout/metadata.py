"""The structure of a round as data: one int32 buffer on the host, a pytree of its parts in the executable."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Int32

from flide_jax.array_types import IntVector, Predecessors, ReadRows, RotaryPositions, Tokens
from flide_jax.layout.capacity import Capacity
from flide_jax.layout.ranges import key_spans, predecessors
from flide_jax.layout.segments import segments
from flide_jax.layout.stream import Stream
from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.segmented_gdn.metadata import Segments

# Value of the unused entries of a part, where it is not 0: no row, no slot.
_PADDING = {"predecessors": -1, "initial_slot": -1, "final_slot": -1}


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


@dataclasses.dataclass(frozen=True)
class MetadataLayout:
    """Where each part of the metadata stands in the int32 buffer of a capacity.

    Attributes:
        capacity: sizes of the executable.
        conv_taps: taps of the model's short convolution.
    """

    capacity: Capacity
    conv_taps: int

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each part, in the order of the buffer."""
        rows, segment, chunk = (self.capacity.tokens,), (self.capacity.segments,), (self.capacity.chunks,)
        return {
            "tokens": rows,
            "rotary_positions": (3, *rows),
            "state_begin": rows,
            "state_end": rows,
            "own_begin": rows,
            "own_end": rows,
            "predecessors": (*rows, self.conv_taps - 1),
            "first_chunk": segment,
            "length": segment,
            "initial_slot": segment,
            "final_slot": segment,
            "chunk_segment": chunk,
            "chunk_begin": chunk,
            "chunk_length": chunk,
            "chunk_row": rows,
            "read_rows": (self.capacity.reads,),
        }

    @property
    def size(self) -> int:
        """int32 words of the buffer."""
        return sum(map(math.prod, self.shapes().values()))

    def pack(self, stream: Stream) -> IntVector:
        """Write a round into a new buffer. Raises ValueError when a part exceeds the capacity."""
        buffer = np.empty(self.size, np.int32)
        parts = self._parts(buffer)
        # Text has three equal rotary positions; they part from the token index where images stand.
        values = {
            "tokens": stream.tokens,
            "rotary_positions": np.broadcast_to(stream.token_index, (3, stream.tokens.size)),
            **vars(key_spans(stream)),
            "predecessors": predecessors(stream, taps=self.conv_taps),
            **vars(segments(stream)),
            "read_rows": stream.read_rows,
        }
        for name, part in parts.items():
            value = values[name]
            if any(have > room for have, room in zip(value.shape, part.shape, strict=True)):
                raise ValueError(f"{name} of shape {value.shape} does not fit into {self.capacity}")
            part[...] = _PADDING.get(name, 0)
            part[tuple(slice(n) for n in value.shape)] = value
        return buffer

    def unpack(self, buffer: Int32[jax.Array | np.ndarray, " words"]) -> RoundMetadata:
        """The parts of a buffer: views of a numpy one, static slices of a traced one."""
        parts = self._parts(buffer)

        def group(kind: type[KeySpans] | type[Segments]) -> dict[str, Any]:
            return {field.name: parts.pop(field.name) for field in dataclasses.fields(kind) if field.name in parts}

        return RoundMetadata(
            spans=KeySpans(**group(KeySpans)),
            segments=Segments(**group(Segments), slots=self.capacity.requests),
            **parts,
        )

    def _parts(self, buffer: jax.Array | np.ndarray) -> dict[str, Any]:
        parts, begin = {}, 0
        for name, shape in self.shapes().items():
            end = begin + math.prod(shape)
            parts[name] = buffer[begin:end].reshape(shape)
            begin = end
        return parts
