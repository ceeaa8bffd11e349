"""The forked stream against transformers, which runs each question as its own sequence: layer by layer, live.

In float64 to 1e-10; in float32 and bfloat16 within the table of tolerances, from the same checkpoint.
"""

import jax
import numpy as np
import pytest

from flide_jax.layout import lay_out
from tests.layout.test_stream import rows_of_texts
from tests.models.support import LABEL_IDS, loaded_model, probabilities
from tests.oracle.configs import CONFIGS
from tests.oracle.twins import record
from tests.tolerances import MODEL, relative_error, relative_rms
from tests.trees import plan_of


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(
    "dtype, form", [("float64", "text_float64"), ("float32", "released"), ("bfloat16", "released")]
)
def test_every_layer_and_every_probability(config, dtype, form, checkpoint):
    directory, twin = checkpoint(config, form)
    rng = np.random.default_rng(5)
    plans = [plan_of(70, [5, 66], rng), plan_of(2, [1, 9], rng)]
    stream = lay_out(plans)
    tolerance = MODEL[dtype]
    with jax.enable_x64(dtype == "float64"):
        model = loaded_model(directory, dtype)
        hidden, logits = model.hidden_states(stream), iter(model.logits(stream))
    for plan, texts in zip(plans, rows_of_texts(plans), strict=True):
        for i, rows in enumerate(texts):
            truth = record(twin, plan.alone(i).state)
            for depth, (found, expected) in enumerate(zip(hidden[:, rows], truth.residual, strict=True)):
                error = relative_error(found, expected)
                assert error <= tolerance.hidden, f"depth {depth}: {error:.2e}"
                rms = relative_rms(found, expected)
                assert rms <= tolerance.hidden_rms, f"depth {depth}: {rms:.2e}"
            found, expected = next(logits), truth.logits[-1, LABEL_IDS]
            assert relative_error(found, expected) <= tolerance.logits
            if dtype == "float64":
                assert np.abs(probabilities(found) - probabilities(expected)).max() <= 1e-10
