"""The convolution and its gates: every implementation against a numpy loop over each question's whole text."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.segmented_conv.api import ConvWeights, segmented_conv
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from pallas_kernels.trees import Request, Segment, predecessors, resumed_predecessors
from pallas_kernels.trees import cut as cut_segments
from tests.pallas_kernels import ANYWHERE
from tests.tolerances import OPERATOR, assert_close
from tests.trees import laid_out, plan_of

KEY_HEADS, KEY_DIM, VALUE_HEADS, VALUE_DIM, TAPS = 2, 8, 6, 12, 4
CHANNELS = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM


def operands(rows: int, dtype: str):
    rng = np.random.default_rng(1)
    small = "float64" if dtype == "float64" else "float32"

    def draw(*shape, dtype=dtype):
        return jnp.asarray(rng.standard_normal(shape)).astype(dtype)

    weights = ConvWeights(
        draw(TAPS, CHANNELS, dtype=small), draw(VALUE_HEADS, dtype=small), draw(VALUE_HEADS, dtype=small)
    )
    return draw(rows, CHANNELS), draw(rows, VALUE_HEADS), draw(rows, VALUE_HEADS), weights


def round_of_two():
    rng = np.random.default_rng(0)
    return laid_out([plan_of(2, [5, 1], rng), plan_of(70, [3], rng)])


def run(metadata, arguments, implementation):
    """The operands in chunk rows."""
    return segmented_conv(
        *arguments,
        jnp.asarray(metadata.predecessors),
        jax.tree.map(jnp.asarray, metadata.segments),
        key_heads=KEY_HEADS,
        key_dim=KEY_DIM,
        implementation=implementation,
    )


def in_stream_rows(stream, metadata, out):
    """Each result at the rows of the stream, padding left out."""
    rows = jnp.asarray(metadata.segments.chunk_row[: stream.tokens.size])
    return jax.tree.map(lambda x: x[rows], out)


def convolved_alone(stream, mixed, taps) -> np.ndarray:
    """Each piece behind its whole state, convolved as one text behind zeros; then SiLU. float64 [T, channels]."""
    mixed, taps = np.asarray(mixed, np.float64), np.asarray(taps, np.float64)
    out = np.zeros((stream.tokens.size, mixed.shape[1]))
    for piece, parent in enumerate(stream.piece_parent):
        rows = np.flatnonzero(stream.token_piece == piece)
        before = np.flatnonzero(stream.token_piece == parent)
        text = np.concatenate([np.zeros((TAPS - 1, mixed.shape[1])), mixed[before], mixed[rows]])
        whole = sum(text[i : len(text) - TAPS + 1 + i] * taps[i] for i in range(TAPS))
        out[rows] = whole[len(before) :]
    return out / (1 + np.exp(-out))


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("dtype", OPERATOR)
def test_equals_the_convolution_of_each_whole_text(implementation, dtype):
    with jax.enable_x64(dtype == "float64"):
        stream, metadata = round_of_two()
        arguments = operands(metadata.tokens.size, dtype)
        mixed, write_logit, decay_input, weights = arguments
        out = in_stream_rows(stream, metadata, run(metadata, arguments, implementation))
        rows, key_channels = stream.tokens.size, KEY_HEADS * KEY_DIM
        y = convolved_alone(stream, mixed, weights.taps)
        query, key = (y[:, i * key_channels : (i + 1) * key_channels].reshape(rows, KEY_HEADS, KEY_DIM) for i in (0, 1))
        tolerance = OPERATOR[dtype]
        for found, expected in ((out.query, query), (out.key, key)):
            expected = expected / np.sqrt((expected**2).sum(-1, keepdims=True) + 1e-6)
            assert_close(found, expected, tolerance)
        assert_close(out.value, y[:, 2 * key_channels :].reshape(rows, VALUE_HEADS, VALUE_DIM), tolerance)
        a, b = np.asarray(decay_input[:rows], np.float64), np.asarray(write_logit[:rows], np.float64)
        rate, bias = np.exp(np.asarray(weights.log_decay_rate, np.float64)), np.asarray(weights.decay_bias, np.float64)
        gates = OPERATOR["float64" if dtype == "float64" else "float32"]  # never rounded to bfloat16
        assert_close(out.log_decay, -rate * np.log1p(np.exp(a + bias)), gates)
        assert_close(out.write_strength, 1 / (1 + np.exp(-b)), gates)


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_padding_of_chunks_is_zero(implementation):
    """Whatever the padding rows of the stream hold."""
    stream, metadata = round_of_two()
    arguments = operands(metadata.tokens.size, "float32")
    unused = (np.arange(metadata.tokens.size) >= stream.tokens.size)[:, None]
    poisoned = tuple(jnp.where(unused, jnp.nan, x) for x in arguments[:3])
    segments = metadata.segments
    padding = np.asarray(segments.stream_rows()) < 0
    in_used_chunk = np.repeat(segments.chunk_length > 0, CHUNK_ROWS)
    assert (padding & in_used_chunk).any() and (~in_used_chunk).any()
    if implementation not in ("reference", "xla"):  # others may leave unused chunks as they are
        padding &= in_used_chunk
    for found in jax.tree.leaves(run(metadata, (*poisoned, arguments[3]), implementation)):
        assert found.shape[0] == padding.size
        assert (np.asarray(found)[padding] == 0).all()


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_rows_of_others_have_no_influence(implementation):
    stream, metadata = round_of_two()
    arguments = operands(metadata.tokens.size, "float32")
    clean = run(metadata, arguments, implementation)
    mine = np.zeros(metadata.tokens.size, bool)
    mine[: stream.tokens.size] = stream.piece_request[stream.token_piece] == 0
    poisoned = tuple(jnp.where(mine[:, None], x, jnp.nan) for x in arguments[:3])
    poisoned_out = run(metadata, (*poisoned, arguments[3]), implementation)
    for found, expected in zip(
        *(jax.tree.leaves(in_stream_rows(stream, metadata, out)) for out in (poisoned_out, clean)), strict=True
    ):
        mine_in_stream = mine[: stream.tokens.size]
        np.testing.assert_array_equal(np.asarray(found)[mine_in_stream], np.asarray(expected)[mine_in_stream])


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("cut", [1, 2, 3, 64, 70])
def test_goes_on_from_a_window(implementation, cut):
    """A text of 71 rows whose first rows were read before: what is left of it comes out as it does in the whole.

    The window holds the last rows before the cut, and zeros where the text began within it. Others hold NaN.
    """
    with jax.enable_x64(True):
        rows, left = 71, 71 - cut
        mixed, write_logit, decay_input, weights = operands(rows, "float64")

        def convolved(first, before, windows):
            return segmented_conv(
                mixed[first:],
                write_logit[first:],
                decay_input[first:],
                weights,
                jnp.asarray(before),
                cut_segments([Segment(rows - first, -1, -1)], rows - first, slots=1),
                windows=windows,
                key_heads=KEY_HEADS,
                key_dim=KEY_DIM,
                implementation=implementation,
            )

        whole = convolved(0, predecessors([Request(rows, [])], rows), None)
        window = np.concatenate([np.zeros((TAPS - 1, CHANNELS)), mixed[:cut]])[-(TAPS - 1) :]
        windows = np.full((3, TAPS - 1, CHANNELS), np.nan)
        windows[1] = window
        before = resumed_predecessors([Request(left, [])], left)
        before = np.where(before >= left, before + TAPS - 1, before)  # slot 1
        resumed = convolved(cut, before, jnp.asarray(windows))
        for found, expected in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
            assert_close(found[:left], expected[cut : cut + left], OPERATOR["float64"])


def test_gradient_is_that_of_the_reference():
    with jax.enable_x64(True):
        _, metadata = round_of_two()
        arguments = operands(metadata.tokens.size, "float64")

        def loss(implementation):
            def of(arguments):
                return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(run(metadata, arguments, implementation)))

            return of

        found, expected = (jax.jit(jax.grad(loss(name)))(arguments) for name in ("xla", "reference"))
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert_close(a, b, 1e-12)


def test_refuses_channels_that_do_not_divide():
    _, metadata = round_of_two()
    mixed, *others = operands(metadata.tokens.size, "float32")
    with pytest.raises(ValueError, match="rows of 103 columns, taps of 104 channels"):
        run(metadata, (mixed[:, :-1], *others), "xla")
    *others, weights = others
    fewer = dataclasses.replace(weights, taps=weights.taps[:, :-1])
    with pytest.raises(ValueError, match="103 channels do not hold 2 query and key heads of 8"):
        run(metadata, (mixed, *others, fewer), "xla")
