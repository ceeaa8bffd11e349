"""The Triton kernels of the gated delta rule, interpreted on a CPU, against a float64 recurrence over chunk rows."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.segmented_gdn import reference, triton
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from pallas_kernels.trees import Segment, cut
from tests.pallas_kernels.test_segmented_gdn_pallas import (
    SCALE,
    VALUE_HEADS,
    error,
    given_states,
    operands,
    recurrence,
    segments_of,
)

if sys.platform == "linux":
    from tests.pallas_kernels.triton_interpreter import interpreted  # noqa: F401
else:
    pytest.skip("Triton is there for Linux only", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("interpreted")

# Relative root mean square. That of bfloat16 is the rounding of operands and outputs.
TOLERANCE = {"bfloat16": 5e-3, "float32": 2e-6}


def of_dtype(arguments, dtype: str):
    return (*(x.astype(dtype) for x in arguments[:3]), *arguments[3:])


def check(segments, states, dtype, pool=None):
    """Outputs of every segment, slots that are written and slots that are not; returns how many slots are."""
    arguments = of_dtype(operands(segments), dtype)
    out, *slots = triton.segmented_gdn(*arguments, states, segments, pool=pool, scale=SCALE)
    assert out.dtype == dtype and len(slots) == (1 if pool is None else 2)
    before = np.asarray(states if pool is None else jnp.concatenate([states, pool]), np.float64)
    slots, out = np.concatenate(slots).astype(np.float64), np.asarray(out, np.float64)
    expected, expected_slots, live = recurrence(arguments, before, segments)
    for head in range(VALUE_HEADS):
        assert error(out[live, head], expected[live, head]) < TOLERANCE[dtype]
    used = np.asarray(segments.length) > 0
    written = np.isin(np.arange(len(slots)), np.asarray(segments.final_slot)[used])
    for slot in np.flatnonzero(written):
        assert error(slots[slot], expected_slots[slot]) < TOLERANCE[dtype]
    np.testing.assert_array_equal(slots[~written], before[~written])
    return written.sum()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_two_requests_of_short_and_long_questions(dtype):
    """States of 130 and 64 rows; questions of 1, 63, 65 rows and of 1. Slot 2 is named by nobody."""
    segments = segments_of([130, 64, 1, 63, 65, 1], initial=[-1, -1, 0, 0, 0, 1], final=[0, 1, -1, -1, -1, -1], slots=3)
    assert check(segments, jnp.full((3, VALUE_HEADS, 128, 128), 7.0, jnp.float32), dtype) == 2


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_resumes_given_slots_in_place_and_starts_questions_from_zero(dtype):
    """Slot 0 is resumed in place and read, slot 2 read as given, a segment starts from zero and is kept nowhere."""
    segments = segments_of([70, 3, 64, 1, 128], initial=[0, -1, 2, 0, 2], final=[0, -1, -1, -1, -1])
    assert check(segments, given_states(), dtype) == 1


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("first, second", [(65, 64), (0, 70), (3, 0)])
def test_goes_on_from_a_pool_and_leaves_a_state_there(first, second, dtype):
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
        chunks=8,
    )
    states, pool = given_states(slots=1), given_states(seed=6, slots=4)
    assert check(segments, states, dtype, pool) == (first > 0) + (second > 0)


def test_other_head_dimensions():
    rng = np.random.default_rng(1)
    segments = segments_of([70, 65, 2], initial=[-1, 0, 0], final=[0, -1, 1])
    *_, log_decay, write_strength = operands(segments)
    live = np.asarray(segments.stream_rows()) >= 0

    def rows(heads, channels):
        x = rng.standard_normal((len(live), heads, channels)) / channels**0.5
        return jnp.asarray(np.where(live[:, None, None], x, 0), jnp.float32)

    arguments = (rows(1, 16), rows(1, 16), rows(VALUE_HEADS, 64), log_decay, write_strength)
    states = jnp.asarray(rng.standard_normal((3, VALUE_HEADS, 64, 16)), jnp.float32)
    out, slots = triton.segmented_gdn(*arguments, states, segments, scale=SCALE)
    expected, expected_slots = reference.segmented_gdn(*arguments, states, segments, scale=SCALE)
    assert error(np.asarray(out)[live], np.asarray(expected)[live]) < TOLERANCE["float32"]
    assert error(np.asarray(slots), np.asarray(expected_slots)) < TOLERANCE["float32"]


def test_no_segment_at_all():
    segments = jax.tree.map(lambda x: x * 0, segments_of([1], [-1], [-1]))
    states = given_states()
    _, slots = triton.segmented_gdn(*operands(segments), states, segments, scale=SCALE)
    np.testing.assert_array_equal(slots, np.asarray(states))


def test_rows_of_others_have_no_influence():
    """A NaN in one request stays there: the other one's rows and slot are bit for bit what they are without it."""
    segments = segments_of([65, 65, 2, 2, 2], initial=[-1, -1, 0, 1, -1], final=[0, 1, -1, -1, -1])
    states = given_states()
    arguments = operands(segments)
    clean, clean_slots = triton.segmented_gdn(*arguments, states, segments, scale=SCALE)
    chunk_segment = np.asarray(segments.chunk_segment)
    for poisoned_segments in ([0, 2], [1, 3], [4]):
        hit = np.repeat(np.isin(chunk_segment, poisoned_segments) & (np.asarray(segments.chunk_length) > 0), CHUNK_ROWS)
        poisoned = tuple(jnp.where(hit.reshape(-1, *(1,) * (x.ndim - 1)), jnp.nan, x) for x in arguments)
        out, slots = triton.segmented_gdn(*poisoned, states, segments, scale=SCALE)
        mine = ~hit & (np.asarray(segments.stream_rows()) >= 0)
        np.testing.assert_array_equal(np.asarray(out, np.float32)[mine], np.asarray(clean, np.float32)[mine])
        kept = [slot for slot in range(3) if slot not in poisoned_segments]
        np.testing.assert_array_equal(np.asarray(slots)[kept], np.asarray(clean_slots)[kept])


def test_nearly_repeated_keys_and_decays_from_none_to_all():
    """The worst system there is: every entry below the diagonal is nearly 1. Decays run from none to e^-500 a row."""
    rng = np.random.default_rng(2)
    segments = segments_of([128], [-1], [0])
    query, _, value, *_ = of_dtype(operands(segments), "float32")
    rows = len(query)
    key = rng.standard_normal((1, 1, 128)) + 0.01 * rng.standard_normal((rows, 1, 128))
    key = jnp.asarray(key / np.linalg.norm(key, axis=-1, keepdims=True), jnp.float32)
    log_decay = -(10 ** rng.uniform(-6, 2.7, (rows, VALUE_HEADS)))
    log_decay[:, 0] *= 1e-3
    strength = 1 - rng.uniform(0, 0.01, log_decay.shape)
    strength[:2, 0] = 0, 1
    arguments = (query, key, value, jnp.asarray(log_decay, jnp.float32), jnp.asarray(strength, jnp.float32))
    states = given_states()
    out, slots = triton.segmented_gdn(*arguments, states, segments, scale=SCALE)
    expected, expected_slots, live = recurrence(arguments, states, segments)
    assert error(np.asarray(out, np.float64)[live], expected[live]) < 1e-5
    assert error(np.asarray(slots, np.float64), expected_slots) < 1e-5


def test_refuses_what_it_cannot_compute():
    segments = segments_of([1], [-1], [-1])
    states = given_states()
    query, key, value, log_decay, write_strength = operands(segments)

    def refused(said, *arguments):
        with pytest.raises(NotImplementedError, match=said):
            triton.segmented_gdn(*arguments, segments, scale=SCALE)

    gates = log_decay, write_strength
    refused("not for float32, bfloat16 and bfloat16", query.astype(jnp.float32), key, value, *gates, states)
    refused(
        "not for float16, float16 and float16", *(x.astype(jnp.float16) for x in (query, key, value)), *gates, states
    )
    refused("not 96", query[..., :96], key[..., :96], value, *gates, states[..., :96])
    refused("log_decay has to be float32", query, key, value, log_decay.astype(jnp.bfloat16), write_strength, states)
