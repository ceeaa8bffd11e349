"""Segments of the stream that carry a recurrent state, the chunks they are cut into, and the rows of the chunks."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, Shaped

from pallas_kernels import operands

# Rows of one chunk. Entries of the chunk list never span two segments; only a segment's last may be shorter.
CHUNK_ROWS = 64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """Runs of stream rows, each scanned once from the state it names, with their chunk list.

    Segment s has `length[s]` rows (0: unused). It starts from the state in slot `initial_slot[s]` (-1: zero) and leaves
    its last state in slot `final_slot[s]` (-1: nowhere). This index is the whole fork of a recurrence (Eq. 4): many
    branches name the slot of one state and nothing is copied. Segments form levels: one that reads a slot stands after
    the one that writes it, in this list and in the chunk list; `levels` bounds how many follow each other so. A slot is
    written at most once; the writer may start from it too, and then stands before every other reader.

    A *further part* starts from the slot that the segment just before it in the list writes, and writes a slot itself:
    a scan may go on through both. `parts` bounds how many segments follow each other so, the first one included.

    Chunk c holds `chunk_length[c]` (at most CHUNK_ROWS) stream rows from `chunk_begin[c]` on and belongs to segment
    `chunk_segment[c]`. The chunks of segment s are neighbours in the list, from `first_chunk[s]` on, and all but its
    last are full; segments come in their order. Unused entries stand at the end, with length 0 and segment 0.

    The operands of the recurrence are in *chunk rows*: chunk c owns rows CHUNK_ROWS * c and up, CHUNK_ROWS of them,
    whose first `chunk_length[c]` are its stream rows and whose others are padding. So a segment begins at a chunk and
    its rows are neighbours. `chunk_row[t]` is the chunk row of stream row t, 0 for a row of no segment; it is the
    inverse of `stream_rows`.

    Slots 0 to `slots` - 1 live as long as the call; slot `slots` + i is slot i of a pool that outlives it. A state of
    70 rows, two branches of 5 and 66 rows:

        first_chunk   length   initial_slot   final_slot      chunk_segment   chunk_begin   chunk_length
                  0       70             -1            0                  0             0             64
                  2        5              0           -1                  0            64              6
                  3       66              0           -1                  1            70              5
                                                                          2            75             64
                                                                          2           139              2

        stream row    0 .. 69     70 .. 74      75 .. 140
        chunk_row     0 .. 69    128 .. 132    192 .. 257

    The same state in three levels, with one slot and a pool: its first 30 rows go on from slot 4 of the pool and leave
    their state in its slot 7, where the other 40 start; the branches start from what these leave.

        first_chunk   length   initial_slot   final_slot
                  0       30              5            8
                  1       40              8            0
                  2        5              0           -1
                  3       66              0           -1
    """

    first_chunk: Int32[jax.Array | np.ndarray, " G"]
    length: Int32[jax.Array | np.ndarray, " G"]
    initial_slot: Int32[jax.Array | np.ndarray, " G"]
    final_slot: Int32[jax.Array | np.ndarray, " G"]
    chunk_segment: Int32[jax.Array | np.ndarray, " C"]
    chunk_begin: Int32[jax.Array | np.ndarray, " C"]
    chunk_length: Int32[jax.Array | np.ndarray, " C"]
    chunk_row: Int32[jax.Array | np.ndarray, " T"]
    slots: int = dataclasses.field(metadata={"static": True})
    levels: int = dataclasses.field(default=2, metadata={"static": True})
    parts: int = dataclasses.field(default=1, metadata={"static": True})

    def check(self, op: str, *, chunk_rows: int | None = None, slots: int | None = None) -> None:
        """For an op whose operands have so many chunk rows and slots.

        Raises ValueError: other chunk rows than those of the chunk list, fewer levels than parts, or no part; in arrays
        on the host, a row, chunk, segment or slot that there is not.
        """
        rows, chunks, segments = self.chunk_row.shape[0], self.chunk_length.shape[0], self.length.shape[0]
        if chunk_rows not in (None, CHUNK_ROWS * chunks):
            raise ValueError(f"{op}: {chunk_rows} rows are not {CHUNK_ROWS} for each of {chunks} chunks")
        if not 1 <= self.parts <= self.levels:
            raise ValueError(f"{op}: segments of {self.levels} levels in up to {self.parts} parts")
        if not operands.on_host(self):
            return  # else the differences below would be computed on the device
        ranges: dict[str, operands.Range] = {
            "length": (self.length, 0, rows),
            "first_chunk": (self.first_chunk, 0, chunks + -self.length // CHUNK_ROWS),
            "chunk_segment": (self.chunk_segment, 0, max(segments - 1, 0)),  # 0 stands for none, be there one or not
            "chunk_length": (self.chunk_length, 0, CHUNK_ROWS),
            "chunk_begin": (self.chunk_begin, 0, rows - self.chunk_length),
            "chunk_row": (self.chunk_row, 0, max(CHUNK_ROWS * chunks - 1, 0)),
        }
        if slots is not None:
            ranges |= {
                "initial_slot": (self.initial_slot, -1, slots - 1),
                "final_slot": (self.final_slot, -1, slots - 1),
            }
        operands.check_values(op, {f"segments.{name}": its_range for name, its_range in ranges.items()})

    def rows_of_chunks(self, segment: int) -> list[int]:
        """How many rows each chunk of a segment holds."""
        owner, length = np.asarray(self.chunk_segment), np.asarray(self.chunk_length)
        rows: list[int] = length[(owner == segment) & (length > 0)].tolist()
        return rows

    def used_chunks(self) -> Int32[Array, "1"]:
        """How many entries of the chunk list are used: the first ones. For kernels, which read it from memory."""
        return jnp.sum(jnp.asarray(self.chunk_length) > 0, dtype=jnp.int32)[None]

    def further_parts(self) -> Bool[Array, " G"]:
        """Which segments are further parts; none where `parts` says so."""
        if self.parts == 1:
            return jnp.zeros(self.length.shape, bool)
        writes = (self.length > 0) & (self.final_slot >= 0)
        goes_on = (self.initial_slot[1:] == self.final_slot[:-1]) & writes[1:] & writes[:-1]
        return jnp.concatenate([jnp.zeros(1, bool), goes_on])

    def level(self, *, parts_apart: bool = True) -> Int32[Array, " G"]:
        """How many segments stand before each one, each starting from the slot that the one before writes; a further
        part counts with the part before it unless parts are apart."""
        writes = (self.length > 0) & (self.final_slot >= 0)
        same_slot = self.initial_slot[:, None] == self.final_slot[None]
        another = ~jnp.eye(self.length.shape[0], dtype=bool)  # a segment may resume a slot in place
        follows = same_slot & writes[None] & another
        step = 1 if parts_apart else 1 - self.further_parts().astype(jnp.int32)[:, None]
        level = jnp.zeros_like(self.length)
        for _ in range(self.levels - 1):
            level = jnp.max(jnp.where(follows, level[None] + step, 0), axis=1)
        return level

    def stream_rows(self) -> Int32[Array, " chunk_rows"]:
        """The stream row that each chunk row holds, -1 for padding; int32 [CHUNK_ROWS * C]."""
        offset = jnp.arange(CHUNK_ROWS, dtype=jnp.int32)[None]
        used = offset < self.chunk_length[:, None]
        return jnp.where(used, self.chunk_begin[:, None] + offset, -1).reshape(-1)

    def in_chunk_rows(self, x: Shaped[Array, "T ..."]) -> Shaped[Array, "chunk_rows ..."]:
        """Rows of the stream in chunk rows, zero in padding."""
        stream_rows = self.stream_rows()
        taken = jnp.where(stream_rows < 0, x.shape[0], stream_rows)  # no row: -1 would wrap around
        return x.at[taken].get(mode="fill", fill_value=0)
