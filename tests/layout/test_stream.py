"""The stream and everything derived from it against loops over tokens, on random trees."""

import dataclasses

import jax
import numpy as np
from hypothesis import given

from flide_jax.layout import Capacity, Demand, MetadataLayout, RoundMetadata, Stream, lay_out
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from tests.trees import plan_of, trees

# Any round of `trees` fits, and no two sizes are equal.
LAYOUT = MetadataLayout(Capacity(tokens=1_100, requests=5, branches=260, reads=300, chunks=290), conv_taps=4)
unpack = jax.jit(LAYOUT.unpack)


def padded_metadata(stream: Stream) -> RoundMetadata:
    """As numpy arrays."""
    return jax.tree.map(np.asarray, unpack(LAYOUT.pack(stream)))


def metadata_of(stream: Stream) -> RoundMetadata:
    """The same without the padding."""
    padded = padded_metadata(stream)
    used = {
        LAYOUT.capacity.tokens: stream.tokens.size,
        LAYOUT.capacity.segments: stream.piece_length.size,
        LAYOUT.capacity.chunks: Demand.of_stream(stream).chunks,
        LAYOUT.capacity.reads: stream.read_piece.size,
    }
    assert len(used) == 4, "lengths tell what an array is of"
    return jax.tree.map(lambda x: x[tuple(slice(used.get(size)) for size in x.shape)], padded)


def rows_of_texts(plans) -> list[list[list[int]]]:
    """For each plan and branch, the stream rows of its whole text s + q_i, by Eq. 2 read literally."""
    states, row = [], 0
    for plan in plans:
        states.append(list(range(row, row + plan.state.size)))
        row += plan.state.size
    texts = []
    for state, plan in zip(states, plans, strict=True):
        texts.append([])
        for length in plan.branch_lengths:
            texts[-1].append(state + list(range(row, row + length)))
            row += length
    return texts


@given(trees())
def test_every_text_stands_in_the_stream(plans):
    stream = lay_out(plans)
    reads = iter(stream.read_rows)
    for plan, texts in zip(plans, rows_of_texts(plans), strict=True):
        for i, rows in enumerate(texts):
            np.testing.assert_array_equal(stream.tokens[rows], plan.alone(i).state)
            np.testing.assert_array_equal(stream.token_index[rows], np.arange(len(rows)))
            assert next(reads) == rows[-1]
    assert stream.tokens.size == sum(plan.tokens for plan in plans)


@given(trees())
def test_spans_show_each_row_its_own_text_so_far(plans):
    stream = lay_out(plans)
    spans = metadata_of(stream).spans
    for texts in rows_of_texts(plans):
        for rows in texts:
            for t, row in enumerate(rows):
                state = range(spans.state_begin[row], spans.state_end[row])
                own = range(spans.own_begin[row], spans.own_end[row])
                assert [*state, *own] == rows[: t + 1]


@given(trees())
def test_predecessors_are_the_rows_before_in_the_text(plans):
    stream = lay_out(plans)
    found = metadata_of(stream).predecessors
    for texts in rows_of_texts(plans):
        for rows in texts:
            behind = [-1, -1, -1, *rows]
            for t, row in enumerate(rows):
                assert list(found[row]) == behind[t : t + 3]


@given(trees())
def test_segments_scan_each_text_once_from_its_state(plans):
    stream = lay_out(plans)
    found = metadata_of(stream).segments
    written: dict[int, list[int]] = {}
    scanned = []
    for s in range(found.length.size):
        begin = found.chunk_begin[found.first_chunk[s]]
        rows = list(range(begin, begin + found.length[s]))
        before = written[int(found.initial_slot[s])] if found.initial_slot[s] >= 0 else []
        if found.final_slot[s] >= 0:
            written[int(found.final_slot[s])] = before + rows
        else:
            scanned.append(before + rows)
        chunks = np.flatnonzero(found.chunk_segment == s)
        covered = [
            row for c in chunks for row in range(found.chunk_begin[c], found.chunk_begin[c] + found.chunk_length[c])
        ]
        assert covered == rows
        assert list(chunks) == list(range(found.first_chunk[s], found.first_chunk[s] + chunks.size))
        assert all(found.chunk_length[chunks[:-1]] == CHUNK_ROWS)
    assert scanned == [rows for texts in rows_of_texts(plans) for rows in texts]


@given(trees())
def test_chunk_rows_and_stream_rows_are_inverse_to_each_other(plans):
    stream = lay_out(plans)
    found, rows = padded_metadata(stream).segments, stream.tokens.size
    stream_rows = np.asarray(found.stream_rows())
    assert stream_rows.shape == (CHUNK_ROWS * LAYOUT.capacity.chunks,) and stream_rows.dtype == np.int32
    np.testing.assert_array_equal(stream_rows[found.chunk_row[:rows]], np.arange(rows))
    held = np.flatnonzero(stream_rows >= 0)
    np.testing.assert_array_equal(found.chunk_row[stream_rows[held]], held)
    assert held.size == rows
    assert (found.chunk_row[rows:] == 0).all()


@given(trees())
def test_unused_chunks_stand_at_the_end(plans):
    stream = lay_out(plans)
    found = padded_metadata(stream).segments
    used = sum(-(-int(length) // CHUNK_ROWS) for length in stream.piece_length)
    assert (found.chunk_length[:used] > 0).all() and 0 < used < found.chunk_length.size
    assert not found.chunk_length[used:].any() and not found.chunk_segment[used:].any()
    assert (np.diff(found.chunk_segment[:used]) >= 0).all()


def test_the_example_of_segments():
    """A state of 70 rows and two branches of 5 and 66."""
    stream = lay_out([plan_of(70, [5, 66], np.random.default_rng(0))])
    found = metadata_of(stream).segments
    assert list(found.first_chunk) == [0, 2, 3] and list(found.length) == [70, 5, 66]
    assert list(found.initial_slot) == [-1, 0, 0] and list(found.final_slot) == [0, -1, -1]
    assert list(found.chunk_segment) == [0, 0, 1, 2, 2]
    assert list(found.chunk_begin) == [0, 64, 70, 75, 139]
    assert list(found.chunk_length) == [64, 6, 5, 64, 2]
    assert list(found.chunk_row) == [*range(70), *range(128, 133), *range(192, 258)]


def test_reads_of_states_and_several_reads_of_a_branch():
    rng = np.random.default_rng(0)
    plan = plan_of(5, [3, 2], rng)
    both = dataclasses.replace(plan, read_branches=np.int32([-1, 0, 0, 1]), read_offsets=np.int32([4, 0, 2, 1]))
    stream = lay_out([plan_of(2, [1], rng), both])
    assert list(stream.read_rows) == [7, 6, 8, 10, 12]
    assert list(stream.reads_per_request) == [1, 4]
