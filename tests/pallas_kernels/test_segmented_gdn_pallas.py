"""The Hopper kernels of the gated delta rule, simulated on a CPU, against a float64 recurrence over chunk rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.mosaic import interpreted
from pallas_kernels.segmented_gdn import pallas
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments
from pallas_kernels.segmented_gdn.pallas_solve import solve
from pallas_kernels.trees import Segment, cut

KEY_HEADS, VALUE_HEADS, DIM = 1, 2, 128
SCALE = DIM**-0.5
# Relative root mean square. All of it is the rounding of operands and outputs to bfloat16.
TOLERANCE = 5e-3


def segments_of(lengths, initial, final, *, unused_chunks=2, slots=3) -> Segments:
    chunks = [-(-length // CHUNK_ROWS) for length in lengths]
    first = np.cumsum([0, *chunks[:-1]])
    chunk_segment = np.repeat(np.arange(len(lengths)), chunks)
    offset = np.concatenate([np.arange(n) for n in chunks]) * CHUNK_ROWS
    begin = np.cumsum([0, *lengths[:-1]])[chunk_segment] + offset
    rows = np.concatenate([CHUNK_ROWS * f + np.arange(n) for f, n in zip(first, lengths, strict=True)])

    def padded(values, length, padding=0):
        return jnp.asarray(np.concatenate([values, np.full(length - len(values), padding)]).astype(np.int32))

    def column(values, padding=0):
        return padded(values, len(lengths) + 1, padding)

    def chunk_column(values):
        return padded(values, len(chunk_segment) + unused_chunks)

    return Segments(
        first_chunk=column(first),
        length=column(lengths),
        initial_slot=column(initial, -1),
        final_slot=column(final, -1),
        chunk_segment=chunk_column(chunk_segment),
        chunk_begin=chunk_column(begin),
        chunk_length=chunk_column(np.minimum(np.array(lengths)[chunk_segment] - offset, CHUNK_ROWS)),
        chunk_row=padded(rows, len(rows) + 3),
        slots=slots,
    )


def operands(segments: Segments, seed: int = 0):
    """Chunk rows: zero in the padding of used chunks, NaN in unused chunks."""
    rng = np.random.default_rng(seed)
    used = np.repeat(np.asarray(segments.chunk_length) > 0, CHUNK_ROWS)
    live = np.asarray(segments.stream_rows()) >= 0
    count = len(live)

    def fill(x, dtype):
        x = np.where(live.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)
        return jnp.asarray(np.where(used.reshape(-1, *(1,) * (x.ndim - 1)), x, np.nan)).astype(dtype)

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    query, key = (rng.standard_normal((count, KEY_HEADS, DIM)) for _ in range(2))
    key += 0.5 * rng.standard_normal((1, KEY_HEADS, DIM))
    value = rng.standard_normal((count, VALUE_HEADS, DIM))
    log_decay = -np.exp(rng.standard_normal((count, VALUE_HEADS)) - 2)
    write_strength = 1 / (1 + np.exp(-rng.standard_normal((count, VALUE_HEADS)) - 1))
    return (
        *(fill(x, jnp.bfloat16) for x in (unit(query), unit(key), value)),
        *(fill(x, jnp.float32) for x in (log_decay, write_strength)),
    )


def recurrence(arguments, states, segments: Segments):
    """Token by token, segment after segment, float64; and the chunk rows that hold a token."""
    query, key, value, log_decay, write_strength = (np.asarray(x, np.float64) for x in arguments)
    out, slots = np.zeros(value.shape), np.array(states, np.float64)
    live = np.zeros(len(out), bool)
    columns = (segments.first_chunk, segments.length, segments.initial_slot, segments.final_slot)
    for first, length, initial, final in zip(*map(np.asarray, columns), strict=True):
        rows = CHUNK_ROWS * first + np.arange(length)
        live[rows] = True
        for head in range(VALUE_HEADS):
            state = slots[initial, head].copy() if initial >= 0 else np.zeros((DIM, DIM))
            for t in rows:
                k, e = key[t, head * KEY_HEADS // VALUE_HEADS], write_strength[t, head]
                kept = state - e * np.outer(state @ k, k)
                state = np.exp(log_decay[t, head]) * kept + e * np.outer(value[t, head], k)
                out[t, head] = SCALE * state @ query[t, head * KEY_HEADS // VALUE_HEADS]
            if final >= 0 and length:
                slots[final, head] = state
    return out, slots, live


def run(arguments, states, segments):
    call = jax.jit(pallas.segmented_gdn, static_argnames=("scale", "interpret"))
    out, slots = call(*arguments, states, segments, scale=SCALE, interpret=True)
    return np.asarray(out, np.float64), np.asarray(slots, np.float64)


def error(found, expected) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def given_states(seed: int = 5, slots: int = 3):
    return jnp.asarray(0.1 * np.random.default_rng(seed).standard_normal((slots, VALUE_HEADS, DIM, DIM)), jnp.float32)


def check(segments, states):
    arguments = operands(segments)
    out, slots = run(arguments, states, segments)
    expected, expected_slots, live = recurrence(arguments, states, segments)
    for head in range(VALUE_HEADS):
        assert error(out[live, head], expected[live, head]) < TOLERANCE
    written = np.isin(np.arange(len(slots)), np.asarray(segments.final_slot))
    for slot in np.flatnonzero(written):
        assert error(slots[slot], expected_slots[slot]) < TOLERANCE
    np.testing.assert_array_equal(slots[~written], np.asarray(states, np.float64)[~written])


def test_two_requests_of_short_and_long_questions():
    """States of 130 and 64 rows; questions of 1, 63, 65 rows and of 1. Slot 2 is named by nobody."""
    segments = segments_of([130, 64, 1, 63, 65, 1], initial=[-1, -1, 0, 0, 0, 1], final=[0, 1, -1, -1, -1, -1], slots=3)
    check(segments, jnp.full((3, VALUE_HEADS, DIM, DIM), 7.0, jnp.float32))


def test_resumes_given_slots_in_place_and_starts_questions_from_zero():
    """Slot 0 is resumed in place and read, slot 2 read as given, a segment starts from zero and is kept nowhere."""
    segments = segments_of([70, 3, 64, 1, 128], initial=[0, -1, 2, 0, 2], final=[0, -1, -1, -1, -1])
    check(segments, given_states())


@pytest.mark.parametrize("first, second", [(65, 64), (0, 70), (3, 0)])
def test_goes_on_from_a_pool_and_leaves_a_state_there(first, second):
    """A state in two parts, either of which may have no rows, and two branches; pool slots are counted behind one."""
    saved = 1 + 2 if first else 1 + 0
    last = 0 if second else saved
    segments = cut(
        [
            Segment(first, 1 + 0, saved if first else -1),
            Segment(second, saved, 0 if second else -1),
            Segment(1, last, -1),
            Segment(65, last, -1),
            Segment(0, -1, -1),
        ],
        300,
        slots=1,
        levels=3,
        parts=2,
        chunks=8,
    )
    arguments, states, pool = operands(segments), given_states(slots=1), given_states(seed=6, slots=4)
    both = jnp.concatenate([states, pool])
    expected, expected_slots, live = recurrence(arguments, both, segments)
    call = jax.jit(pallas.segmented_gdn, static_argnames=("scale", "interpret"))
    found = call(*arguments, states, segments, pool=pool, scale=SCALE, interpret=True)
    out, slots = np.asarray(found[0], np.float64), np.concatenate(found[1:]).astype(np.float64)
    for head in range(VALUE_HEADS):
        assert error(out[live, head], expected[live, head]) < TOLERANCE
    written = np.isin(np.arange(5), segments.final_slot)
    assert written.sum() == (first > 0) + (second > 0)
    for slot in np.flatnonzero(written):
        assert error(slots[slot], expected_slots[slot]) < TOLERANCE
    np.testing.assert_array_equal(slots[~written], np.asarray(both, np.float64)[~written])
    if first and second:
        apart = dataclasses.replace(segments, parts=1)
        one_by_one = call(*arguments, states, apart, pool=pool, scale=SCALE, interpret=True)
        np.testing.assert_array_equal(out[live], np.asarray(one_by_one[0], np.float64)[live])
        np.testing.assert_array_equal(slots, np.concatenate(one_by_one[1:]).astype(np.float64))


def test_further_parts_of_several_states_share_a_launch():
    """States of 130 + 65, 3 + 1 and 64 rows, as many blocks as three: a cut falls on no border between two parts."""
    pool = given_states(seed=6, slots=4)
    segments = cut(
        [
            Segment(130, 2 + 1, 2 + 3),
            Segment(65, 2 + 3, 0),
            Segment(3, -1, 2 + 2),
            Segment(1, 2 + 2, 1),
            Segment(64, -1, -1),
            Segment(5, 0, -1),
            Segment(66, 1, -1),
        ],
        400,
        slots=2,
        levels=3,
        parts=2,
        chunks=14,
    )
    assert segments.further_parts().tolist() == [False, True, False, True, False, False, False]
    assert segments.level(parts_apart=False).tolist() == [0, 0, 0, 0, 0, 1, 1]
    arguments, states = operands(segments), given_states(slots=2)
    expected, expected_slots, live = recurrence(arguments, jnp.concatenate([states, pool]), segments)
    call = jax.jit(pallas.segmented_gdn, static_argnames=("scale", "interpret"))
    out, *slots = call(*arguments, states, segments, pool=pool, scale=SCALE, interpret=True)
    for head in range(VALUE_HEADS):
        assert error(np.asarray(out, np.float64)[live, head], expected[live, head]) < TOLERANCE
    for found, right in zip(np.concatenate(slots).astype(np.float64), expected_slots, strict=True):
        assert error(found, right) < TOLERANCE


def test_no_segment_at_all():
    segments = jax.tree.map(lambda x: x * 0, segments_of([1], [-1], [-1]))
    segments = jax.tree.map(jnp.asarray, segments)
    states = given_states()
    _, slots = run(operands(segments), states, segments)
    np.testing.assert_array_equal(slots, np.asarray(states, np.float64))


def test_rows_of_others_have_no_influence():
    """A NaN in one request stays there: the other one's rows and slot are bit for bit what they are without it."""
    segments = segments_of([65, 65, 2, 2, 2], initial=[-1, -1, 0, 1, -1], final=[0, 1, -1, -1, -1])
    states = given_states()
    arguments = operands(segments)
    clean, clean_slots = run(arguments, states, segments)
    chunk_segment = np.asarray(segments.chunk_segment)
    for poisoned_segments in ([0, 2], [1, 3], [4]):
        hit = np.repeat(np.isin(chunk_segment, poisoned_segments) & (np.asarray(segments.chunk_length) > 0), CHUNK_ROWS)
        poisoned = tuple(jnp.where(hit.reshape(-1, *(1,) * (x.ndim - 1)), jnp.nan, x) for x in arguments)
        out, slots = run(poisoned, states, segments)
        mine = ~hit & (np.asarray(segments.stream_rows()) >= 0)
        np.testing.assert_array_equal(out[mine], clean[mine])
        kept = [slot for slot in range(3) if slot not in poisoned_segments]
        np.testing.assert_array_equal(slots[kept], clean_slots[kept])


def test_solve_of_nearly_repeated_keys():
    """The worst system there is: every entry below the diagonal is nearly 1. Decays run from none to e^-500 a row."""
    rng, chunks, rows = np.random.default_rng(2), 2, CHUNK_ROWS
    key = rng.standard_normal((1, KEY_HEADS, DIM)) + 0.01 * rng.standard_normal((chunks * rows, KEY_HEADS, DIM))
    key = jnp.asarray(key / np.linalg.norm(key, axis=-1, keepdims=True), jnp.bfloat16)
    query = key[::-1]
    log_decay = -(10 ** rng.uniform(-6, 2.7, (VALUE_HEADS, chunks, rows)))
    log_decay[0] *= 1e-3
    strength = 1 - rng.uniform(0, 0.01, log_decay.shape)
    strength[0, 0, :2] = 0, 1
    log_decay, strength = jnp.asarray(log_decay, jnp.float32), jnp.asarray(strength, jnp.float32)
    used = jnp.full(1, chunks, jnp.int32)
    with interpreted(True):
        found = solve(query, key, log_decay, strength, used, scale=SCALE, blocks=2, interpret=True)
    for head, chunk in np.ndindex(VALUE_HEADS, chunks):
        k, q = (np.asarray(x[rows * chunk : rows * (chunk + 1), 0], np.float64) for x in (key, query))
        total, e = np.cumsum(np.asarray(log_decay[head, chunk], np.float64)), np.asarray(strength[head, chunk])
        decay = np.tril(np.exp(np.minimum(total[:, None] - total, 0)))
        expected = (
            decay * np.linalg.inv(np.eye(rows) + np.tril(e[:, None] * (k @ k.T), -1)) * e,
            SCALE * decay * (q @ k.T),
            np.exp([total, total[-1] - total]),
        )
        for x, y in zip(found, expected, strict=True):
            assert error(np.asarray(x[head, chunk], np.float64), y) < TOLERANCE


def test_refuses_what_it_cannot_compute():
    segments = segments_of([1], [-1], [-1])
    states = given_states()
    query, key, value, log_decay, write_strength = operands(segments)
    with pytest.raises(NotImplementedError, match="query has to be bfloat16"):
        pallas.segmented_gdn(
            query.astype(jnp.float32), key, value, log_decay, write_strength, states, segments, scale=SCALE
        )
    with pytest.raises(NotImplementedError, match="value has to be bfloat16 with 128"):
        half = value[..., :64], log_decay, write_strength, states[:, :, :64]
        pallas.segmented_gdn(query, key, *half, segments, scale=SCALE)
    with pytest.raises(NotImplementedError, match="log_decay has to be float32"):
        gates = log_decay.astype(jnp.bfloat16), write_strength
        pallas.segmented_gdn(query, key, value, *gates, states, segments, scale=SCALE)
