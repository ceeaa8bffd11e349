"""Rounds of requests as rows of a stream, for tests and benchmarks of the ops alone.

The engine lays out its rounds itself (`flide_jax.layout`); this is the same structure from a list of lengths.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments


class Request(NamedTuple):
    """Rows of a state and of each of its branches."""

    state: int
    branches: Sequence[int]


class Piece(NamedTuple):
    """A state (parent None) or a branch: rows `begin` to `begin + length` of the stream, of request `slot`."""

    begin: int
    length: int
    slot: int
    parent: "Piece | None"


def pieces(requests: Sequence[Request]) -> list[Piece]:
    """All states, then all branches, request by request (paper Eq. 2)."""
    found: list[Piece] = []

    def add(length: int, slot: int, parent: Piece | None) -> None:
        found.append(Piece(found[-1].begin + found[-1].length if found else 0, length, slot, parent))

    for slot, request in enumerate(requests):
        add(request.state, slot, None)
    for slot, request in enumerate(requests):
        for length in request.branches:
            add(length, slot, found[slot])
    return found


def texts(requests: Sequence[Request]) -> list[np.ndarray]:
    """The stream rows of every question's whole text, its state's and its own, in the order of the text."""

    def rows(piece: Piece) -> np.ndarray:
        return np.arange(piece.begin, piece.begin + piece.length, dtype=np.int32)

    return [np.concatenate([rows(piece.parent), rows(piece)]) for piece in pieces(requests) if piece.parent is not None]


def stream_rows(requests: Sequence[Request], *, multiple: int = CHUNK_ROWS) -> int:
    """T: rows of the stream, padded to a multiple."""
    last = pieces(requests)[-1]
    return -(-(last.begin + last.length) // multiple) * multiple


def key_spans(requests: Sequence[Request], rows: int) -> KeySpans:
    """Eq. 3 for a stream padded to `rows`."""
    columns = np.zeros((4, rows), np.int32)
    for begin, length, _, parent in pieces(requests):
        here = slice(begin, begin + length)
        after = np.arange(begin, begin + length) + 1
        if parent is None:
            columns[0, here], columns[1, here] = begin, after
        else:
            columns[0, here], columns[1, here] = parent.begin, parent.begin + parent.length
            columns[2, here], columns[3, here] = begin, after
    return KeySpans(*columns)


def predecessors(requests: Sequence[Request], rows: int, *, taps: int = 4) -> np.ndarray:
    """int32 [rows, taps - 1]: the rows 3, 2, 1 tokens before each row in its own text, or -1."""
    before = np.full((rows, taps - 1), -1, np.int32)
    for begin, length, _, parent in pieces(requests):
        own = np.arange(begin, begin + length)
        text = own if parent is None else np.concatenate([np.arange(parent.begin, parent.begin + parent.length), own])
        padded = np.concatenate([np.full(taps - 1, -1), text])
        for column in range(taps - 1):
            before[own, column] = padded[len(text) - length + column : len(text) + column]
    return before


def resumed_predecessors(requests: Sequence[Request], rows: int, *, taps: int = 4) -> np.ndarray:
    """As `predecessors`, but every state goes on behind the window of its number: index `rows` + row of all windows."""
    before = predecessors(requests, rows, taps=taps)
    for begin, length, slot, parent in pieces(requests):
        # A branch whose state is shorter than the taps looks through it.
        behind = 0 if parent is None else parent.length
        for row, column in np.ndindex(min(length, taps - 1), taps - 1):
            if (place := behind + row + column) < taps - 1:
                before[begin + row, column] = rows + (taps - 1) * slot + place
    return before


class Segment(NamedTuple):
    """Rows of one segment, and its slots."""

    length: int
    initial_slot: int
    final_slot: int


def segments(requests: Sequence[Request], rows: int, *, chunks: int | None = None, spare: int = 0) -> Segments:
    """The segments of Eq. 4 with a chunk list padded to `chunks`, and `spare` unused segments."""
    found = [Segment(request.state, -1, slot) for slot, request in enumerate(requests)]
    return cut([*found, *_branches(requests)], rows, slots=len(requests), chunks=chunks, spare=spare)


def growing_segments(
    requests: Sequence[Request], rows: int, *, tail: int, chunks: int | None = None, spare: int = 0
) -> Segments:
    """As `segments`, but states are cut `tail` rows before their end: three levels, and a pool of 2 R slots.

    The first part of state r goes on from slot r of the pool and leaves its state in slot R + r of it, where the second
    part starts.
    """
    count = len(requests)
    found = []
    for slot, request in enumerate(requests):
        saved = 2 * count + slot
        found += [Segment(request.state - tail, count + slot, saved), Segment(tail, saved, slot)]
    return cut([*found, *_branches(requests)], rows, slots=count, levels=3, parts=2, chunks=chunks, spare=spare)


def cut(
    found: Sequence[Segment],
    rows: int,
    *,
    slots: int,
    levels: int = 2,
    parts: int = 1,
    chunks: int | None = None,
    spare: int = 0,
) -> Segments:
    """Segments that follow each other in a stream of `rows` rows, cut into chunks."""
    found = [*found, *spare * [Segment(0, -1, -1)]]
    counts = np.array([-(-segment.length // CHUNK_ROWS) for segment in found])
    first_chunk = np.cumsum(counts) - counts
    used, total = int(counts.sum()), chunks or int(counts.sum())
    owner, begin, length = (np.zeros(total, np.int32) for _ in range(3))
    chunk_row = np.zeros(rows, np.int32)
    owner[:used] = np.repeat(np.arange(counts.size), counts)
    first_row = 0
    for number, segment in enumerate(found):
        for index in range(counts[number]):
            chunk, skipped = first_chunk[number] + index, index * CHUNK_ROWS
            begin[chunk], length[chunk] = first_row + skipped, min(CHUNK_ROWS, segment.length - skipped)
        after = first_row + segment.length
        chunk_row[first_row:after] = first_chunk[number] * CHUNK_ROWS + np.arange(segment.length)
        first_row = after
    return Segments(
        first_chunk=first_chunk.astype(np.int32),
        length=np.array([segment.length for segment in found], np.int32),
        initial_slot=np.array([segment.initial_slot for segment in found], np.int32),
        final_slot=np.array([segment.final_slot for segment in found], np.int32),
        chunk_segment=owner,
        chunk_begin=begin,
        chunk_length=length,
        chunk_row=chunk_row,
        slots=slots,
        levels=levels,
        parts=parts,
    )


def _branches(requests: Sequence[Request]) -> list[Segment]:
    return [Segment(length, slot, -1) for slot, request in enumerate(requests) for length in request.branches]


def segments_of_capacity(requests: Sequence[Request], *, tail: int | None = None) -> Segments:
    """With a quarter more chunks and some segments that are not used, as in a capacity; growing if there is a tail."""
    used = sum(-(-piece.length // CHUNK_ROWS) for piece in pieces(requests)) + (0 if tail is None else len(requests))
    rows, chunks = stream_rows(requests), used + used // 4 + 1
    if tail is None:
        return segments(requests, rows, chunks=chunks, spare=3)
    return growing_segments(requests, rows, tail=tail, chunks=chunks, spare=3)


# The shapes of the paper's workloads: one request each, its state and its questions in tokens.
WORKLOADS = {
    "race-one": [Request(250, [75])],
    "race-all": [Request(255, 4 * [73])],
    "decision-index": [Request(323, 5 * [190])],
    "multirc": [Request(327, 48 * [49])],
    "quality-one": [Request(3355, [88])],
    "quality-all": [Request(5835, 18 * [90])],
}
# One step of a growing state: what is new in it, and its questions.
GROWING_STEP = [Request(432, 5 * [60])]
