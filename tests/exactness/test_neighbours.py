"""What stands beside a text in its round changes no bit of it, NaN and huge values included.

The poison is a vocabulary row of the embedding, so that it passes through every operator of the model, and the honest
round is the same round without it. Bits are compared at the same rows of the same capacity: the `xla` forms promise no
more, since the order in which they sum over the stream's keys moves with a text's place in it. For a change of place
there is the last test, in float64 up to rounding.
"""

import dataclasses

import jax
import numpy as np
import pytest

from flide_jax.layout import Stream, lay_out
from flide_jax.prompts.plan import Plan
from tests.layout.test_stream import rows_of_texts
from tests.models.support import TinyModel, tiny_model
from tests.tolerances import EXACT, relative_error
from tests.trees import padded, plan_of

CONFIGS = ["two_periods"]
POISONS = [np.nan, np.inf, -1e30, 1e30]
PADDING, POISONED = 0, 96  # token ids: of padding rows, and of the neighbour


def honest_plan(state: int, branches: list[int], seed: int) -> Plan:
    """A plan whose texts hold neither the token of padding rows nor the one that is poisoned."""
    plan = plan_of(state, branches, np.random.default_rng(seed), vocabulary=POISONED - 1)
    return dataclasses.replace(plan, state=plan.state + np.int32(1), branches=plan.branches + np.int32(1))


def poisoned_plan(plan: Plan, *, branch: int | None = None) -> Plan:
    """The same tree with the poisoned token everywhere, or everywhere in one branch."""
    if branch is None:
        return dataclasses.replace(
            plan, state=np.full_like(plan.state, POISONED), branches=np.full_like(plan.branches, POISONED)
        )
    owner = np.repeat(np.arange(plan.branch_lengths.size), plan.branch_lengths)
    return dataclasses.replace(plan, branches=np.where(owner == branch, np.int32(POISONED), plan.branches))


def with_row(model: TinyModel, token: int, value: float):
    """The model's parameters with one row of the embedding replaced."""
    return model.params.replace(embedding=model.params.embedding.at[token].set(value))


def computed(model: TinyModel, stream: Stream, params) -> tuple[np.ndarray, np.ndarray]:
    """Hidden states [depths, T, d] and logits [reads, L]."""
    return model.hidden_states(stream, params=params), model.logits(stream, params=params)


def assert_only_these_rows_differ(model: TinyModel, stream: Stream, rows: list[int], value: float) -> None:
    """Poison changes `rows`, all of them, and neither a hidden state nor a logit of any other."""
    expected_hidden, expected = computed(model, stream, model.params)
    hidden, logits = computed(model, stream, with_row(model, POISONED, value))
    others = np.setdiff1d(np.arange(stream.tokens.size), rows)
    assert np.isfinite(expected_hidden).all()
    np.testing.assert_array_equal(hidden[:, others], expected_hidden[:, others])
    assert (hidden[:, rows] != expected_hidden[:, rows]).any(axis=(0, 2)).all(), "the poison did not reach its own rows"
    spared = ~np.isin(stream.read_rows, rows)
    np.testing.assert_array_equal(logits[spared], expected[spared])
    assert (logits[~spared] != expected[~spared]).any(axis=1).all()


@pytest.mark.parametrize("value", POISONS)
@pytest.mark.parametrize("config", CONFIGS)
def test_a_poisoned_request_changes_no_other(config, value):
    """The poisoned request stands between two others, with its last rows of state and branch beside their first."""
    plans = [honest_plan(70, [5, 66], 0), poisoned_plan(honest_plan(65, [64, 3], 1)), honest_plan(2, [1, 9], 2)]
    texts = rows_of_texts(plans)[1]
    stream = lay_out(plans)
    assert_only_these_rows_differ(tiny_model(config, "float32"), stream, sorted({*texts[0], *texts[1]}), value)


@pytest.mark.parametrize("value", POISONS)
@pytest.mark.parametrize("config", CONFIGS)
def test_a_poisoned_branch_changes_neither_its_siblings_nor_its_state(config, value):
    plans = [poisoned_plan(honest_plan(67, [5, 66, 2], 3), branch=1), honest_plan(3, [4], 4)]
    state_and_branch = rows_of_texts(plans)[0][1]
    assert_only_these_rows_differ(tiny_model(config, "float32"), lay_out(plans), state_and_branch[67:], value)


@pytest.mark.parametrize("value", POISONS)
@pytest.mark.parametrize("config", CONFIGS)
def test_poisoned_padding_changes_nothing(config, value):
    model = tiny_model(config, "float32")
    stream = lay_out([honest_plan(70, [5, 66], 5), honest_plan(1, [1], 6)])
    capacity, metadata = padded(stream)
    unused = slice(stream.tokens.size, capacity.tokens)
    assert capacity.tokens > stream.tokens.size and (metadata.tokens[unused] == PADDING).all()
    assert not (stream.tokens == PADDING).any()
    expected_hidden, expected = computed(model, stream, model.params)
    hidden, logits = computed(model, stream, with_row(model, PADDING, value))
    np.testing.assert_array_equal(hidden, expected_hidden)
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize("value", [np.nan, 1e30])
def test_the_place_of_a_poisoned_request_does_not_matter(value):
    plans = [honest_plan(70, [5, 66], 7), poisoned_plan(honest_plan(64, [3, 64], 8)), honest_plan(65, [2], 9)]
    with jax.enable_x64(True):
        model = tiny_model("untied", "float64")
        params = with_row(model, POISONED, value)
        expected = {i: model.logits(lay_out([plans[i]])) for i in (0, 2)}
        for order in ([0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]):
            stream = lay_out([plans[i] for i in order])
            logits = np.split(model.logits(stream, params=params), np.cumsum(stream.reads_per_request)[:-1])
            for i, found in zip(order, logits, strict=True):
                assert i == 1 or relative_error(found, expected[i]) <= EXACT
