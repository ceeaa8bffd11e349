"""The float64 reference against transformers in true float64, and proof that the comparison would notice an error."""

import ast
from pathlib import Path

import numpy as np
import pytest

import flide_jax.reference.gated_delta_net as gated_delta_net
from flide_jax.reference import hidden_states, label_logits, probabilities, read_checkpoint, read_config
from tests.oracle.configs import CONFIGS
from tests.oracle.twins import record

TOLERANCE = 1e-12  # of the largest value


def error(actual: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over largest value."""
    assert actual.shape == expected.shape
    return float(np.abs(actual - expected).max() / np.abs(expected).max())


def tokens(length: int) -> np.ndarray:
    return np.random.default_rng(length).integers(0, 97, length)


@pytest.fixture
def model(twin):
    """model(name) -> (twin, weights, config); the arrays of `weights` share the twin's memory."""

    def load(name: str):
        built = twin(name)
        weights = {key: value.numpy() for key, value in built.state_dict().items()}
        return built, weights, read_config(built.config.to_dict())

    return load


@pytest.mark.parametrize("length", [1, 3, 64, 65, 150])
@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers_layer_by_layer(model, name, length):
    twin, weights, config = model(name)
    truth = record(twin, tokens(length))
    stream = hidden_states(weights, config, tokens(length))
    for layer, (mine, theirs) in enumerate(zip(stream, truth.residual, strict=True)):
        assert error(mine, theirs) < TOLERANCE, f"after {layer} layers"
    labels = [5, 0, 96, 17]
    assert error(label_logits(weights, config, tokens(length), labels), truth.logits[-1, labels]) < TOLERANCE


@pytest.mark.parametrize("name", CONFIGS)
def test_equals_transformers_with_positions_on_three_axes(model, name):
    twin, weights, config = model(name)
    positions = np.cumsum(np.random.default_rng(0).integers(0, 4, (3, 40)), axis=1)
    truth = record(twin, tokens(40), positions=positions)
    assert error(hidden_states(weights, config, tokens(40), positions=positions), truth.residual) < TOLERANCE
    swapped = hidden_states(weights, config, tokens(40), positions=positions[::-1])
    assert error(swapped, truth.residual) > 1e-6


def test_probabilities_of_a_released_checkpoint(checkpoint):
    directory, twin = checkpoint("two_periods", "released")
    config, weights = read_checkpoint(directory)
    labels = np.array([3, 30, 60])
    shares = np.exp(record(twin, tokens(20)).logits[-1, labels])
    actual = probabilities(weights, config, tokens(20), labels)
    np.testing.assert_allclose(actual, shares / shares.sum(), rtol=TOLERANCE)
    assert actual.max() < 0.999  # far enough from certain to tell models apart


@pytest.mark.parametrize(
    "forget",
    [
        dict(alpha=np.ones_like),
        dict(eta=np.ones_like),
        dict(k=lambda k: np.roll(k, 1, axis=0)),
        dict(state=lambda state: state.round(3)),
    ],
    ids=["no decay", "no write strength", "another key head", "a rounded state"],
)
def test_an_error_in_the_delta_rule_is_noticed(model, monkeypatch, forget):
    twin, weights, config = model("untied")
    right, names = gated_delta_net.delta_rule, ("state", "q", "k", "v", "alpha", "eta")

    def wrong(*arrays):
        given = dict(zip(names, arrays, strict=True))
        return right(**given | {name: change(given[name]) for name, change in forget.items()})

    monkeypatch.setattr(gated_delta_net, "delta_rule", wrong)
    assert error(hidden_states(weights, config, tokens(40)), record(twin, tokens(40)).residual) > 1e-6


@pytest.mark.parametrize("name", ["untied", "equal_heads"])
def test_every_element_of_the_model_counts(model, name):
    """Each tensor, moved by a millionth, moves the logits by far more than the tolerance."""
    _, weights, config = model(name)
    labels, noise = np.arange(97), np.random.default_rng(0)
    logits = label_logits(weights, config, tokens(6), labels)
    unnoticed = []
    for key, value in weights.items():
        if key == "lm_head.weight" and config.tied:
            continue
        moved = weights | {key: value + 1e-6 * noise.standard_normal(value.shape)}
        if error(label_logits(moved, config, tokens(6), labels), logits) < 1000 * TOLERANCE:
            unnoticed.append(key)
    assert not unnoticed


def test_delta_rule_is_equation_4():
    """Against the equation as printed, matrix by matrix."""
    draw = np.random.default_rng(0)
    state, q, k, v = (draw.standard_normal(shape) for shape in [(3, 5, 4), (3, 4), (3, 4), (3, 5)])
    alpha, eta = draw.uniform(size=3), draw.uniform(size=3)
    after, out = gated_delta_net.delta_rule(state, q, k, v, alpha, eta)
    for i in range(3):
        kept = alpha[i] * state[i] @ (np.eye(4) - eta[i] * np.outer(k[i], k[i]))
        np.testing.assert_allclose(after[i], kept + eta[i] * np.outer(v[i], k[i]), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(out[i], after[i] @ q[i], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("wrong", [[], [97], [-1]])
def test_tokens_outside_the_vocabulary_are_refused(model, wrong):
    _, weights, config = model("untied")
    with pytest.raises(ValueError, match=r"0\.\.96"):
        hidden_states(weights, config, wrong)


def test_reference_stands_alone():
    """It shares nothing with what it judges: no other part of the package, no jax, no torch."""
    allowed = {
        "collections",
        "dataclasses",
        "json",
        "pathlib",
        "typing",
        "numpy",
        "jaxtyping",
        "ml_dtypes",
        "safetensors",
    }
    files = sorted(Path(gated_delta_net.__file__).parent.glob("*.py"))
    assert len(files) > 4
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.startswith("flide_jax.reference") or name.split(".")[0] in allowed, f"{file.name}: {name}"
