"""Segments of the stream that carry a recurrent state, and the chunks they are cut into."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Int32

# Rows of one chunk. Entries of the chunk list never span two segments; only a segment's last may be shorter.
CHUNK_ROWS = 64


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Segments:
    """Runs of stream rows, each scanned once from the state it names, with their chunk list.

    Segment s covers rows `begin[s]` to `begin[s] + length[s]`. It starts from the state in slot `initial_slot[s]`
    (-1: zero) and leaves its last state in slot `final_slot[s]` (-1: nowhere). This index is the whole fork of a
    recurrence (Eq. 4): many branches name the slot of one state and nothing is copied. Segments form levels: one
    that reads a slot stands after the one that writes it, in this list and in the stream. A slot is written at most
    once; the writer may start from it too, and then stands before every other reader.

    Chunk c holds `chunk_length[c]` (at most CHUNK_ROWS) rows from `chunk_begin[c]` on and belongs to segment
    `chunk_segment[c]`. The chunks of a segment are neighbours in the list, and all but its last are full. Unused
    entries have length 0. `slots` is the number of state slots. A state of 70 rows and two branches of 5 and 66 rows:

        begin   length   initial_slot   final_slot      chunk_segment   chunk_begin   chunk_length
            0       70             -1            0                  0             0             64
           70        5              0           -1                  0            64              6
           75       66              0           -1                  1            70              5
                                                                    2            75             64
                                                                    2           139              2
    """

    begin: Int32[jax.Array | np.ndarray, " G"]
    length: Int32[jax.Array | np.ndarray, " G"]
    initial_slot: Int32[jax.Array | np.ndarray, " G"]
    final_slot: Int32[jax.Array | np.ndarray, " G"]
    chunk_segment: Int32[jax.Array | np.ndarray, " C"]
    chunk_begin: Int32[jax.Array | np.ndarray, " C"]
    chunk_length: Int32[jax.Array | np.ndarray, " C"]
    slots: int = dataclasses.field(metadata={"static": True})
