"""The convolution and its gates: every implementation against a numpy loop over each question's whole text."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.segmented_conv.api import IMPLEMENTATIONS, ConvWeights, segmented_conv
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
        draw(CHANNELS, TAPS, dtype=small), draw(VALUE_HEADS, dtype=small), draw(VALUE_HEADS, dtype=small)
    )
    return draw(rows, CHANNELS), draw(rows, VALUE_HEADS), draw(rows, VALUE_HEADS), weights


def round_of_two():
    rng = np.random.default_rng(0)
    return laid_out([plan_of(2, [5, 1], rng), plan_of(70, [3], rng)])


def run(metadata, arguments, implementation):
    return segmented_conv(
        *arguments,
        jnp.asarray(metadata.predecessors),
        key_heads=KEY_HEADS,
        key_dim=KEY_DIM,
        implementation=implementation,
    )


def convolved_alone(stream, mixed, taps) -> np.ndarray:
    """Each piece behind its whole state, convolved as one text behind zeros; then SiLU. float64 [T, channels]."""
    mixed, taps = np.asarray(mixed, np.float64), np.asarray(taps, np.float64)
    out = np.zeros((stream.tokens.size, mixed.shape[1]))
    for piece, parent in enumerate(stream.piece_parent):
        rows = np.flatnonzero(stream.token_piece == piece)
        before = np.flatnonzero(stream.token_piece == parent)
        text = np.concatenate([np.zeros((TAPS - 1, mixed.shape[1])), mixed[before], mixed[rows]])
        whole = sum(text[i : len(text) - TAPS + 1 + i] * taps[:, i] for i in range(TAPS))
        out[rows] = whole[len(before) :]
    return out / (1 + np.exp(-out))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", OPERATOR)
def test_equals_the_convolution_of_each_whole_text(implementation, dtype):
    with jax.enable_x64(dtype == "float64"):
        stream, metadata = round_of_two()
        arguments = operands(metadata.tokens.size, dtype)
        mixed, write_logit, decay_input, weights = arguments
        out = run(metadata, arguments, implementation)
        rows, key_channels = stream.tokens.size, KEY_HEADS * KEY_DIM
        y = convolved_alone(stream, mixed, weights.taps)
        query, key = (y[:, i * key_channels : (i + 1) * key_channels].reshape(rows, KEY_HEADS, KEY_DIM) for i in (0, 1))
        tolerance = OPERATOR[dtype]
        for found, expected in ((out.query, query), (out.key, key)):
            expected = expected / np.sqrt((expected**2).sum(-1, keepdims=True) + 1e-6)
            assert_close(found[:rows], expected, tolerance)
        assert_close(out.value[:rows], y[:, 2 * key_channels :].reshape(rows, VALUE_HEADS, VALUE_DIM), tolerance)
        a, b = np.asarray(decay_input, np.float64), np.asarray(write_logit, np.float64)
        rate, bias = np.exp(np.asarray(weights.log_decay_rate, np.float64)), np.asarray(weights.decay_bias, np.float64)
        gates = OPERATOR["float64" if dtype == "float64" else "float32"]  # never rounded to bfloat16
        assert_close(out.log_decay, -rate * np.log1p(np.exp(a + bias)), gates)
        assert_close(out.write_strength, 1 / (1 + np.exp(-b)), gates)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_rows_of_others_have_no_influence(implementation):
    stream, metadata = round_of_two()
    arguments = operands(metadata.tokens.size, "float32")
    clean = run(metadata, arguments, implementation)
    mine = np.zeros(metadata.tokens.size, bool)
    mine[: stream.tokens.size] = stream.piece_request[stream.token_piece] == 0
    poisoned = tuple(jnp.where(mine[:, None], x, jnp.nan) for x in arguments[:3])
    for found, expected in zip(
        jax.tree.leaves(run(metadata, (*poisoned, arguments[3]), implementation)), jax.tree.leaves(clean), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(found)[mine], np.asarray(expected)[mine])


def test_gradient_is_that_of_the_reference():
    with jax.enable_x64(True):
        _, metadata = round_of_two()
        arguments = operands(metadata.tokens.size, "float64")

        def loss(implementation):
            def of(arguments):
                return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(run(metadata, arguments, implementation)))

            return of

        found, expected = jax.grad(loss("xla"))(arguments), jax.grad(loss("reference"))(arguments)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert_close(a, b, 1e-12)


def test_refuses_channels_that_do_not_divide():
    _, metadata = round_of_two()
    mixed, *others = operands(metadata.tokens.size, "float32")
    with pytest.raises(ValueError, match="do not hold 2 query and key heads of 8"):
        run(metadata, (mixed[:, :-1], *others), "xla")
