"""What rounding costs: the forked forward in narrower dtypes, and the numpy reference against it in float64."""

import jax
import numpy as np
import pytest

from flide_jax import reference
from flide_jax.layout import lay_out
from tests.layout.test_stream import rows_of_texts
from tests.models.support import LABEL_IDS, loaded_model, probabilities, tiny_model
from tests.oracle.configs import CONFIGS
from tests.tolerances import EXACT, FORKED_ROUNDED, MODEL, relative_error
from tests.trees import plan_of

NARROW = ["float32", "bfloat16"]


def round_of_two():
    rng = np.random.default_rng(6)
    return [plan_of(70, [5, 66], rng), plan_of(2, [1, 9], rng)]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("config", ["untied"])
def test_forked_forward_within_the_table(config, dtype):
    """The weights are those of the float64 model, bit by bit, so that all error is the forward's."""
    stream = lay_out(round_of_two())
    with jax.enable_x64(True):
        exact = tiny_model(config, "float64")
        hidden, logits = exact.hidden_states(stream), exact.logits(stream)
    narrow = tiny_model(config, dtype)
    for found, expected in zip(jax.tree.leaves(narrow.params), jax.tree.leaves(exact.params), strict=True):
        np.testing.assert_array_equal(np.asarray(found, np.float64), expected)
    for depth, (found, expected) in enumerate(zip(narrow.hidden_states(stream), hidden, strict=True)):
        error = relative_error(found, expected)
        assert error <= MODEL[dtype].hidden, f"depth {depth}: {error:.1e}"
    found = narrow.logits(stream)
    assert found.dtype == np.float32
    assert 0 < relative_error(found, logits) <= MODEL[dtype].logits


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("config", ["untied"])
def test_forked_and_alone_differ_by_rounding_only(config, dtype):
    """The two sum in other orders; what that moves is bounded as what the dtype itself costs is."""
    plans = round_of_two()
    stream = lay_out(plans)
    model = tiny_model(config, dtype)
    hidden, forked = model.hidden_states(stream), iter(probabilities(model.logits(stream)))
    for plan, texts in zip(plans, rows_of_texts(plans), strict=True):
        for i, rows in enumerate(texts):
            hidden_alone, logits_alone = model.alone(plan, i)
            for found, expected in zip(hidden[:, rows], hidden_alone, strict=True):
                assert relative_error(found, expected) <= MODEL[dtype].hidden
            difference = np.abs(next(forked) - probabilities(logits_alone)[0]).max()
            assert difference <= FORKED_ROUNDED[dtype], f"{difference:.1e}"


@pytest.mark.parametrize("config", CONFIGS)
def test_reference_and_forked_stream_read_the_same_model(config, checkpoint):
    """Token by token in numpy, one question at a time, against one forked round: from one directory, to rounding."""
    directory, _ = checkpoint(config, "text_float64")
    plans = round_of_two()
    stream = lay_out(plans)
    with jax.enable_x64(True):
        model = loaded_model(directory, "float64")
        hidden, logits = model.hidden_states(stream), iter(model.logits(stream))
    settings, weights = reference.read_checkpoint(directory)
    for plan, texts in zip(plans, rows_of_texts(plans), strict=True):
        for i, rows in enumerate(texts):
            text, found = plan.alone(i).state, next(logits)
            for depth, states in enumerate(reference.hidden_states(weights, settings, text)):
                error = relative_error(hidden[depth, rows], states)
                assert error <= EXACT, f"depth {depth}: {error:.1e}"
            expected = reference.label_logits(weights, settings, text, LABEL_IDS)
            assert relative_error(found, expected) <= EXACT
            assert np.abs(probabilities(found) - probabilities(expected)).max() <= EXACT
