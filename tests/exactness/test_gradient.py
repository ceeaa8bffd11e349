"""The pass that answers also trains: the gradient of a forked stream is the sum of those of its questions alone."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flide_jax.layout import MetadataLayout, lay_out
from flide_jax.models import qwen3_5
from flide_jax.models.params import named_leaves
from tests.models.support import LABEL_IDS, TinyModel, tiny_model
from tests.tolerances import GRADIENT, relative_error
from tests.trees import capacity_of, plan_of

CONFIGS = ["untied"]


@functools.cache
def loss_of(config: qwen3_5.Qwen35Config, capacity, implementation: str | None):
    """(params, buffer, targets [reads]) -> summed cross-entropy of the read rows; a negative target counts nothing."""
    layout = MetadataLayout(capacity, config.gated_delta_net.conv_taps)

    def loss(params, buffer, targets):
        logits = qwen3_5.forward(params, layout.unpack(buffer), config, implementation=implementation)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(targets, 0)[:, None], axis=1)[:, 0]
        return -jnp.sum(jnp.where(targets < 0, 0, chosen))

    return jax.jit(loss), jax.jit(jax.grad(loss))


def functions(model: TinyModel, plans, targets: list[int]):
    """loss(params) and gradient(params) of a round; a question's target is the column of the right label."""
    stream = lay_out(plans)
    capacity = capacity_of(stream)
    buffer = MetadataLayout(capacity, model.config.gated_delta_net.conv_taps).pack(stream)
    padded = np.full(capacity.reads, -1, np.int32)
    padded[: len(targets)] = targets
    loss, gradient = loss_of(model.config, capacity, model.implementation)
    return lambda params: loss(params, buffer, padded), lambda params: gradient(params, buffer, padded)


def example():
    """Two requests, three questions, and the right label of each."""
    rng = np.random.default_rng(0)
    return [plan_of(70, [5, 66], rng), plan_of(3, [9], rng)], [2, 0, 3]


@pytest.mark.parametrize("config", CONFIGS)
def test_forked_gradient_is_the_sum_of_gradients_alone(config):
    plans, targets = example()
    questions = [plan.alone(i) for plan in plans for i in range(plan.branch_lengths.size)]
    with jax.enable_x64(True):
        model = tiny_model(config, "float64")
        forked = named_leaves(functions(model, plans, targets)[1](model.params))
        alone = [functions(model, [q], [t])[1](model.params) for q, t in zip(questions, targets, strict=True)]
        expected = named_leaves(jax.tree.map(lambda *each: sum(map(np.asarray, each)), *alone))
    assert forked.keys() == named_leaves(model.params).keys()
    for name, found in forked.items():
        error = relative_error(found, expected[name])
        assert error <= GRADIENT, f"{name}: {error:.1e}"


@pytest.mark.parametrize("config", CONFIGS)
def test_every_parameter_learns(config):
    """Every element has a gradient, but for the embeddings of tokens that do not occur."""
    plans, targets = example()
    with jax.enable_x64(True):
        model = tiny_model(config, "float64")
        gradient = named_leaves(functions(model, plans, targets)[1](model.params))
    used = np.unique(np.concatenate([part for plan in plans for part in (plan.state, plan.branches)]))
    unused = np.setdiff1d(np.arange(model.config.vocabulary), used)
    embedding = np.asarray(gradient.pop("embedding"))
    assert not embedding[unused].any() and unused.size
    assert gradient["head"].shape == (LABEL_IDS.size, model.config.width)
    for name, found in {**gradient, "embedding": embedding[used]}.items():
        assert np.isfinite(found).all(), name
        assert np.count_nonzero(found) == found.size, f"{name}: {np.sum(found == 0)} of {found.size} are zero"


@pytest.mark.parametrize("config", CONFIGS)
def test_the_gradient_is_the_slope_of_the_loss(config):
    """Against a central difference: forked and alone cannot err together. Every parameter moves along its gradient."""
    plans, targets = example()
    step = 1e-5
    with jax.enable_x64(True):
        model = tiny_model(config, "float64")
        loss, gradient = functions(model, plans, targets)
        slopes = gradient(model.params)
        directions = jax.tree.map(lambda slope: slope / jnp.linalg.norm(slope), slopes)
        ahead, behind = (
            float(loss(jax.tree.map(lambda leaf, way, by=by: leaf + by * way, model.params, directions)))
            for by in (step, -step)
        )
        share = jax.tree.leaves(jax.tree.map(lambda slope: float(jnp.linalg.norm(slope)), slopes))
    # A hundredth of any one parameter's gradient is seen.
    assert min(share) > 1e-4 * sum(share)
    assert abs((ahead - behind) / (2 * step) - sum(share)) <= 1e-6 * sum(share)
