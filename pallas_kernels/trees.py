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


def segments(requests: Sequence[Request], rows: int, *, chunks: int | None = None, spare: int = 0) -> Segments:
    """The segments of Eq. 4 with a chunk list padded to `chunks`, and `spare` unused segments."""
    found = pieces(requests)
    counts = np.array([-(-piece.length // CHUNK_ROWS) for piece in found] + spare * [0])
    first_chunk = np.cumsum(counts) - counts
    used, total = int(counts.sum()), chunks or int(counts.sum())
    owner, begin, length = (np.zeros(total, np.int32) for _ in range(3))
    chunk_row = np.zeros(rows, np.int32)
    owner[:used] = np.repeat(np.arange(counts.size), counts)
    for number, piece in enumerate(found):
        for index in range(counts[number]):
            chunk, skipped = first_chunk[number] + index, index * CHUNK_ROWS
            begin[chunk], length[chunk] = piece.begin + skipped, min(CHUNK_ROWS, piece.length - skipped)
        chunk_row[piece.begin : piece.begin + piece.length] = first_chunk[number] * CHUNK_ROWS + np.arange(piece.length)
    no_slot = spare * [-1]
    return Segments(
        first_chunk=first_chunk.astype(np.int32),
        length=np.array([piece.length for piece in found] + spare * [0], np.int32),
        initial_slot=np.array([-1 if piece.parent is None else piece.slot for piece in found] + no_slot, np.int32),
        final_slot=np.array([piece.slot if piece.parent is None else -1 for piece in found] + no_slot, np.int32),
        chunk_segment=owner,
        chunk_begin=begin,
        chunk_length=length,
        chunk_row=chunk_row,
        slots=len(requests),
    )


def segments_of_capacity(requests: Sequence[Request]) -> Segments:
    """With a quarter more chunks and some segments that are not used, as in a capacity."""
    used = sum(-(-piece.length // CHUNK_ROWS) for piece in pieces(requests))
    return segments(requests, stream_rows(requests), chunks=used + used // 4 + 1, spare=3)


# The shapes of the paper's workloads: one request each, its state and its questions in tokens.
WORKLOADS = {
    "race-one": [Request(250, [75])],
    "race-all": [Request(255, 4 * [73])],
    "decision-index": [Request(323, 5 * [190])],
    "multirc": [Request(327, 48 * [49])],
    "quality-one": [Request(3355, [88])],
    "quality-all": [Request(5835, 18 * [90])],
}
