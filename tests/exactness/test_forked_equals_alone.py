"""A forked question gets exactly what it gets alone: every hidden state and every probability, in float64."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flide_jax.layout import lay_out
from tests.layout.test_stream import rows_of_texts
from tests.models.support import TinyModel, probabilities, tiny_model
from tests.tolerances import EXACT, relative_error
from tests.trees import plan_of, trees

CONFIGS = ["untied", "two_periods"]  # the second is tied


def check(config: str, *rounds, seed: int = 0) -> None:
    """Every hidden state and every probability of each round, which hold the same plans in other orders."""
    with jax.enable_x64(True):
        model = tiny_model(config, "float64", seed=seed)
        alone = {id(plan): [model.alone(plan, i) for i in range(plan.branch_lengths.size)] for plan in rounds[0]}
        for plans in rounds:
            check_round(model, plans, alone)


def check_round(model: TinyModel, plans, alone) -> None:
    """`alone`: of each plan by its id, hidden states and logits of every question."""
    stream = lay_out(plans)
    hidden, forked = model.hidden_states(stream), iter(probabilities(model.logits(stream)))
    for plan, texts in zip(plans, rows_of_texts(plans), strict=True):
        for rows, (hidden_alone, logits_alone) in zip(texts, alone[id(plan)], strict=True):
            for depth, (found, expected) in enumerate(zip(hidden[:, rows], hidden_alone, strict=True)):
                error = relative_error(found, expected)
                assert error <= EXACT, f"hidden states of depth {depth} differ by {error:.2e}"
            error = np.abs(next(forked) - probabilities(logits_alone)[0]).max()
            assert error <= EXACT, f"probabilities differ by {error:.2e}"


@st.composite
def rounds_in_two_orders(draw):
    plans = draw(trees(most_tokens=500, most_branches=20))
    return plans, draw(st.permutations(plans))


@settings(max_examples=6)
@given(rounds_in_two_orders(), st.sampled_from(CONFIGS), st.integers(0, 3))
def test_random_trees_in_any_order(rounds, config, seed):
    check(config, *rounds, seed=seed)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("state", [1, 2, 3, 63, 64, 65, 128, 191])
def test_forks_around_the_edges_of_chunk_and_convolution(config, state):
    rng = np.random.default_rng(state)
    check(config, [plan_of(state, [1, 2, 3, 4, 63, 64, 65, 130], rng)])


def test_sixty_four_questions_about_one_state():
    rng = np.random.default_rng(0)
    check("untied", [plan_of(127, rng.integers(1, 14, 64), rng)])


@pytest.mark.parametrize("config", CONFIGS)
def test_the_operators_references_agree(config):
    rng = np.random.default_rng(2)
    stream = lay_out([plan_of(70, [5, 66], rng), plan_of(3, [1, 9], rng)])
    with jax.enable_x64(True):
        fast, slow = (tiny_model(config, "float64", implementation=name) for name in ("xla", "reference"))
        assert relative_error(fast.hidden_states(stream), slow.hidden_states(stream)) <= EXACT


def test_the_example_of_a_state_of_one_token():
    check("untied", [plan_of(1, [1], np.random.default_rng(4))])
