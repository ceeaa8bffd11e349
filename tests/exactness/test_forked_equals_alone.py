"""A forked question gets exactly what it gets alone: every hidden state and every probability, in float64."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flide_jax.layout import lay_out
from tests.layout.test_stream import rows_of_texts
from tests.models.support import tiny_model
from tests.tolerances import EXACT, relative_error
from tests.trees import plan_of, trees

CONFIGS = ["untied", "tied", "two_periods"]


def probabilities(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def largest_differences(model, plans) -> tuple[float, float]:
    """Over all questions of a round: hidden states relative to the largest of their depth, and probabilities."""
    stream = lay_out(plans)
    hidden, forked = model.hidden_states(stream), probabilities(model.logits(stream))
    reads = iter(forked)
    hidden_error = probability_error = 0.0
    for plan, texts in zip(plans, rows_of_texts(plans), strict=True):
        for i, rows in enumerate(texts):
            alone = lay_out([plan.alone(i)])
            for depth, (found, expected) in enumerate(zip(hidden[:, rows], model.hidden_states(alone), strict=True)):
                hidden_error = max(hidden_error, relative_error(found, expected))
                assert np.isfinite(expected).all(), depth
            probability_error = max(
                probability_error, np.abs(next(reads) - probabilities(model.logits(alone))[0]).max()
            )
    return hidden_error, probability_error


def check(config: str, plans, seed: int = 0) -> None:
    with jax.enable_x64(True):
        hidden_error, probability_error = largest_differences(tiny_model(config, "float64", seed=seed), plans)
    assert hidden_error <= EXACT, f"hidden states differ by {hidden_error:.2e}"
    assert probability_error <= EXACT, f"probabilities differ by {probability_error:.2e}"


@settings(max_examples=25)
@given(trees(most_tokens=500, most_branches=20), st.sampled_from(CONFIGS), st.integers(0, 3))
def test_random_trees(plans, config, seed):
    check(config, plans, seed)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("state", [1, 2, 3, 63, 64, 65, 128, 191])
def test_forks_around_the_edges_of_chunk_and_convolution(config, state):
    rng = np.random.default_rng(state)
    check(config, [plan_of(state, [1, 2, 3, 4, 63, 64, 65, 130], rng)])


def test_sixty_four_questions_about_one_state():
    rng = np.random.default_rng(0)
    check("untied", [plan_of(127, rng.integers(1, 14, 64), rng)])


def test_several_requests_in_any_order_share_a_round():
    rng = np.random.default_rng(1)
    plans = [plan_of(70, [5, 66], rng), plan_of(1, [1], rng), plan_of(64, [3, 64], rng), plan_of(65, [2], rng)]
    with jax.enable_x64(True):
        model = tiny_model("untied", "float64")
        answers = {}
        for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
            stream = lay_out([plans[i] for i in order])
            logits = np.split(model.logits(stream), np.cumsum(stream.reads_per_request)[:-1])
            for i, found in zip(order, logits, strict=True):
                assert relative_error(found, answers.setdefault(i, found)) <= EXACT


@pytest.mark.parametrize("config", CONFIGS)
def test_the_operators_references_agree(config):
    rng = np.random.default_rng(2)
    stream = lay_out([plan_of(70, [5, 66], rng), plan_of(3, [1, 9], rng)])
    with jax.enable_x64(True):
        fast, slow = (tiny_model(config, "float64", implementation=name) for name in ("xla", "reference"))
        assert relative_error(fast.hidden_states(stream), slow.hidden_states(stream)) <= EXACT


def mutations():
    """Metadata with one thing wrong: what a fork must not get away with."""
    import dataclasses

    def without_state(metadata):
        slots = np.full_like(metadata.segments.initial_slot, -1)
        return dataclasses.replace(metadata, segments=dataclasses.replace(metadata.segments, initial_slot=slots))

    def without_window(metadata):
        own = np.where(metadata.spans.own_end > 0, metadata.spans.own_begin, 0)[:, None]
        cut = np.where(metadata.predecessors < own, -1, metadata.predecessors)
        return dataclasses.replace(metadata, predecessors=cut)

    def state_one_row_short(metadata):
        forked = metadata.spans.own_end > 0
        ends = metadata.spans.state_end - forked.astype(np.int32)
        return dataclasses.replace(metadata, spans=dataclasses.replace(metadata.spans, state_end=ends))

    def sees_its_sibling(metadata):
        begins = np.where(metadata.spans.own_end > 0, metadata.spans.state_end, 0).astype(np.int32)
        return dataclasses.replace(metadata, spans=dataclasses.replace(metadata.spans, own_begin=begins))

    def positions_restart(metadata):
        positions = metadata.rotary_positions.copy()
        positions[:, 70:] -= 1
        return dataclasses.replace(metadata, rotary_positions=positions)

    return [without_state, without_window, state_one_row_short, sees_its_sibling, positions_restart]


@pytest.mark.parametrize("mutation", mutations(), ids=lambda mutation: mutation.__name__)
def test_a_wrong_fork_is_seen(mutation):
    """The tests above can fail: each way of forking wrongly moves a probability far beyond their tolerance."""
    from flide_jax.models import qwen3_5
    from tests.trees import padded

    rng = np.random.default_rng(3)
    plan = plan_of(70, [5, 66], rng)
    stream = lay_out([plan])
    with jax.enable_x64(True):
        model = tiny_model("untied", "float64")
        _, metadata = padded(stream)
        wrong = qwen3_5.forward(model.params, jax.tree.map(jax.numpy.asarray, mutation(metadata)), model.config)
        error = np.abs(probabilities(np.asarray(wrong)[:2]) - probabilities(model.logits(stream))).max()
    assert error > 1e-5, f"{mutation.__name__} moved probabilities by {error:.1e} only"


def test_the_example_of_a_state_of_one_token():
    check("untied", [plan_of(1, [1], np.random.default_rng(4))])
