"""The gated delta rule: every implementation against a numpy recurrence over each question's whole text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.segmented_gdn.api import CHUNK_ROWS, Segments, segmented_gdn
from pallas_kernels.trees import Segment, cut
from tests.pallas_kernels import ANYWHERE
from tests.tolerances import OPERATOR, assert_close
from tests.trees import laid_out, plan_of

KEY_HEADS, KEY_DIM, VALUE_HEADS, VALUE_DIM = 2, 16, 6, 24
SCALE = KEY_DIM**-0.5
# A chunk multiplies out what the recurrence does step by step, so errors of a whole chunk meet in one row.
TOLERANCE = {name: 4 * value for name, value in OPERATOR.items()}


def operands(rows: int, dtype: str, *, decay: float = 0.1):
    rng = np.random.default_rng(2)
    small = "float64" if dtype == "float64" else "float32"
    query, key = (rng.standard_normal((rows, KEY_HEADS, KEY_DIM)) for _ in range(2))
    query, key = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
    value = rng.standard_normal((rows, VALUE_HEADS, VALUE_DIM))
    log_decay = -decay * rng.random((rows, VALUE_HEADS))
    write_strength = rng.random((rows, VALUE_HEADS))
    return (
        *(jnp.asarray(x).astype(dtype) for x in (query, key, value)),
        *(jnp.asarray(x).astype(small) for x in (log_decay, write_strength)),
    )


def round_of_three():
    rng = np.random.default_rng(0)
    return laid_out([plan_of(129, [5, 66], rng), plan_of(1, [1], rng), plan_of(63, [64, 65, 3], rng)])


def slots(metadata, dtype: str):
    small = "float64" if dtype == "float64" else "float32"
    return jnp.zeros((metadata.segments.slots, VALUE_HEADS, VALUE_DIM, KEY_DIM), small)


def run(metadata, arguments, dtype, implementation, *, states=None):
    states = slots(metadata, dtype) if states is None else states
    return over_stream(metadata.segments, arguments, states, implementation)


def over_stream(segments, arguments, states, implementation, *, pool=None, unused=jnp.nan):
    """The op on operands in stream rows: outputs in stream rows (of no meaning where no segment stands), and slots,
    then those of the pool if there is one.

    In chunk rows, padding of used chunks is zero and unused chunks hold `unused`.
    """
    stream_rows = segments.stream_rows()
    padding = jnp.where(jnp.repeat(segments.chunk_length > 0, CHUNK_ROWS), 0.0, unused)

    def in_chunk_rows(x):
        column = (-1, *(1,) * (x.ndim - 1))
        is_padding = (stream_rows < 0).reshape(column)
        return jnp.where(is_padding, padding.reshape(column).astype(x.dtype), x[stream_rows])

    operands = map(in_chunk_rows, arguments)
    out, *slots = segmented_gdn(*operands, states, segments, pool=pool, scale=SCALE, implementation=implementation)
    return out[segments.chunk_row], *slots


def segments_of(begin, length, initial_slot, final_slot, *, slots, rows, chunks):
    """Segments of a stream of `rows` rows, padded to `chunks` chunks, cut by a loop."""
    first_chunk, cut, chunk_row = [], [], np.zeros(rows, np.int32)
    for s, (row, end) in enumerate(zip(begin, np.add(begin, length), strict=True)):
        first_chunk.append(len(cut))
        for chunk_begin in range(row, end, CHUNK_ROWS):
            chunk_rows = min(CHUNK_ROWS, end - chunk_begin)
            chunk_row[chunk_begin : chunk_begin + chunk_rows] = CHUNK_ROWS * len(cut) + np.arange(chunk_rows)
            cut.append((s, chunk_begin, chunk_rows))
    cut += [(0, 0, 0)] * (chunks - len(cut))
    columns = first_chunk, length, initial_slot, final_slot, *zip(*cut, strict=True), chunk_row
    return Segments(*(jnp.array(column, jnp.int32) for column in columns), slots=slots)


def recurrence_alone(stream, arguments) -> tuple[np.ndarray, np.ndarray]:
    """Each piece behind its whole state, token by token from zero, float64: outputs [T, nv, dv] and last states."""
    out = np.zeros((stream.tokens.size, VALUE_HEADS, VALUE_DIM))
    last = np.zeros((stream.piece_length.size, VALUE_HEADS, VALUE_DIM, KEY_DIM))
    for piece, parent in enumerate(stream.piece_parent):
        text = np.concatenate([np.flatnonzero(stream.token_piece == p) for p in (parent, piece)])
        out[text], last[piece] = recurrence(text, arguments, last[piece])
    return out, last


def recurrence(rows, arguments, states) -> tuple[np.ndarray, np.ndarray]:
    """Some rows token by token from states [nv, dv, dk], float64: outputs [rows, nv, dv] and the states after them."""
    query, key, value, log_decay, write_strength = (np.asarray(x, np.float64)[np.asarray(rows)] for x in arguments)
    out, after = np.zeros((len(rows), VALUE_HEADS, VALUE_DIM)), np.zeros(states.shape)
    for head in range(VALUE_HEADS):
        state, key_head = np.asarray(states[head], np.float64), head // (VALUE_HEADS // KEY_HEADS)
        for t in range(len(rows)):
            k, e = key[t, key_head], write_strength[t, head]
            kept = state - e * np.outer(state @ k, k)
            state = np.exp(log_decay[t, head]) * kept + e * np.outer(value[t, head], k)
            out[t, head] = SCALE * state @ query[t, key_head]
        after[head] = state
    return out, after


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("dtype", OPERATOR)
def test_equals_the_recurrence_of_each_whole_text(implementation, dtype):
    with jax.enable_x64(dtype == "float64"):
        stream, metadata = round_of_three()
        arguments = operands(metadata.tokens.size, dtype)
        out, states = run(metadata, arguments, dtype, implementation)
        expected, last = recurrence_alone(stream, arguments)
        rows = stream.tokens.size
        assert out.dtype == arguments[2].dtype
        assert_close(out[:rows], expected, TOLERANCE[dtype])
        assert_close(states[:3], last[:3], TOLERANCE[dtype])
        assert not np.asarray(states[3:]).any(), "no segment names these slots"


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_fast_decay_does_not_overflow(implementation):
    with jax.enable_x64(True):
        stream, metadata = round_of_three()
        arguments = operands(metadata.tokens.size, "float64", decay=60.0)  # e^(64 * 60) is far beyond float64
        out, _ = run(metadata, arguments, "float64", implementation)
        assert_close(out[: stream.tokens.size], recurrence_alone(stream, arguments)[0], 1e-11)


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_starts_from_the_slot_that_a_segment_names(implementation):
    with jax.enable_x64(True):
        rng = np.random.default_rng(3)
        stream, metadata = laid_out([plan_of(100, [7], rng)])
        arguments = operands(metadata.tokens.size, "float64")
        whole, whole_states = run(metadata, arguments, "float64", implementation)

        # The same rows again, the first 70 left out: the state after them is given in slot 1.
        rows = metadata.tokens.size
        middle = segments_of([0], [70], [-1], [1], slots=2, rows=rows, chunks=2)
        states = jnp.zeros((2, VALUE_HEADS, VALUE_DIM, KEY_DIM))
        _, states = over_stream(middle, arguments, states, implementation)
        rest = segments_of([70, 100], [30, 7], [1, 0], [0, -1], slots=2, rows=rows, chunks=2)
        out, states = over_stream(rest, arguments, states, implementation)
        assert_close(out[70:107], whole[70:107], 1e-13)
        assert_close(states[0], whole_states[0], 1e-13)


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_a_slot_is_resumed_in_place(implementation):
    """Segments that start from a slot and leave their last state in it: of one chunk and of two, and one branch each.

    Slot 1 is read and not written, slot 3 neither.
    """
    rows = {0: range(70), 1: range(70, 75), 2: range(75, 139)}, {0: range(139, 144), 2: range(144, 210)}
    segments = segments_of(
        [0, 70, 75, 139, 144], [70, 5, 64, 5, 66], [0, 1, 2, 0, 2], [0, -1, 2, -1, -1], slots=4, rows=216, chunks=8
    )
    with jax.enable_x64(True):
        arguments = operands(216, "float64")
        before = np.random.default_rng(4).standard_normal((4, VALUE_HEADS, VALUE_DIM, KEY_DIM))
        out, states = over_stream(segments, arguments, jnp.asarray(before), implementation)
        after = before.copy()
        resumed, branches = rows
        for slot, its_rows in resumed.items():
            expected, last = recurrence(its_rows, arguments, before[slot])
            assert_close(out[np.array(its_rows)], expected, TOLERANCE["float64"])
            after[slot] = before[slot] if slot == 1 else last
        for slot, its_rows in branches.items():
            assert_close(out[np.array(its_rows)], recurrence(its_rows, arguments, after[slot])[0], TOLERANCE["float64"])
        assert_close(states, after, TOLERANCE["float64"])
        np.testing.assert_array_equal(states[np.array([1, 3])], before[[1, 3]])


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("first, second", [(130, 64), (1, 1), (0, 70), (65, 0), (0, 0), (63, 65)])
def test_goes_on_from_a_pool_and_leaves_a_state_there(implementation, first, second):
    """A state in two parts, either of which may have no rows, and its branches; and another one that does not grow.

    Pool slots are counted behind two others. Slot 1 of the pool is where the state starts, slot 3 is what it leaves
    behind its first part; what is in the others is NaN and stays it.
    """
    saved = 2 + 3 if first else 2 + 1  # without rows nothing is saved, and the next part starts where this one does
    last = 0 if second else saved
    rows = first + second + 5 + 66 + 67 + 3
    segments = cut(
        [
            Segment(first, 2 + 1, saved if first else -1),
            Segment(second, saved, 0 if second else -1),
            Segment(67, -1, 1),
            Segment(5, last, -1),
            Segment(66, last, -1),
            Segment(3, 1, -1),
        ],
        rows + 7,
        slots=2,
        levels=3,
        chunks=11,
    )
    with jax.enable_x64(True):
        arguments = operands(rows + 7, "float64")
        given = np.random.default_rng(5).standard_normal((VALUE_HEADS, VALUE_DIM, KEY_DIM))
        pool = np.full((4, *given.shape), np.nan)
        pool[1] = given
        states = jnp.full((2, *given.shape), jnp.nan)
        out, states, after = over_stream(segments, arguments, states, implementation, pool=jnp.asarray(pool))
        begin = np.cumsum([0, *segments.length])
        own = [np.arange(*ends) for ends in zip(begin, begin[1:], strict=False)]
        one, other = [own[0], own[1]], [own[2]]
        for before, start, branches in ((one, given, (3, 4)), (other, np.zeros(given.shape), (5,))):
            for branch in branches:
                text = np.concatenate([*before, own[branch]])
                assert_close(out[text], recurrence(text, arguments, start)[0], TOLERANCE["float64"])
        assert_close(states[1], recurrence(own[2], arguments, np.zeros(given.shape))[1], TOLERANCE["float64"])
        if second:
            found = recurrence(np.concatenate(one), arguments, given)[1]
            assert_close(states[0], found, TOLERANCE["float64"])
        if first:
            assert_close(after[3], recurrence(own[0], arguments, given)[1], TOLERANCE["float64"])
        untouched = [0, 1, 2] if first else [0, 1, 2, 3]
        np.testing.assert_array_equal(np.asarray(after)[untouched], pool[untouched])


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_rows_of_others_have_no_influence(implementation):
    stream, metadata = round_of_three()
    arguments = operands(metadata.tokens.size, "float32")
    clean, clean_states = run(metadata, arguments, "float32", implementation)
    mine = np.zeros(metadata.tokens.size, bool)
    mine[: stream.tokens.size] = stream.piece_request[stream.token_piece] == 2
    poisoned = tuple(jnp.where(mine.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.nan) for x in arguments)
    out, states = run(metadata, poisoned, "float32", implementation)
    np.testing.assert_array_equal(np.asarray(out)[mine], np.asarray(clean)[mine])
    np.testing.assert_array_equal(np.asarray(states)[2], np.asarray(clean_states)[2])


def test_gradient_is_that_of_the_reference():
    """Whatever unused chunks hold."""
    with jax.enable_x64(True):
        stream, metadata = round_of_three()
        arguments, segments = operands(metadata.tokens.size, "float64"), metadata.segments

        def loss(implementation, unused):
            def of(arguments):
                states = slots(metadata, "float64")
                out, states = over_stream(segments, arguments, states, implementation, unused=unused)
                return jnp.sum(jnp.sin(out[: stream.tokens.size])) + jnp.sum(jnp.cos(states))

            return of

        # Each in one program: op by op, the many small ones compile for longer.
        gradients = jax.jit(jax.grad(loss("xla", jnp.nan))), jax.jit(jax.grad(loss("reference", 0.0)))
        found, expected = (gradient(arguments) for gradient in gradients)
        for a, b in zip(found, expected, strict=True):
            assert_close(a, b, 1e-11)


def test_refuses_heads_that_do_not_group():
    _, metadata = round_of_three()
    query, key, value, *gates = operands(metadata.tokens.size, "float32")
    with pytest.raises(ValueError, match="5 value heads are not a multiple of 2 key heads"):
        arguments = (query, key, value[:, :5], *(x[:, :5] for x in gates))
        run(metadata, arguments, "float32", "xla", states=slots(metadata, "float32")[:, :5])
    with pytest.raises(ValueError, match="6 value heads are not a multiple of 0 key heads"):
        arguments = (query[:, :0], key[:, :0], value, *gates)
        run(metadata, arguments, "float32", "xla", states=slots(metadata, "float32"))


def test_refuses_rows_that_are_not_of_the_chunk_list():
    _, metadata = round_of_three()
    arguments = operands(metadata.tokens.size, "float32")
    with pytest.raises(ValueError, match="640 rows are not 64 for each of 94 chunks"):
        segmented_gdn(*arguments, slots(metadata, "float32"), metadata.segments, scale=SCALE)
