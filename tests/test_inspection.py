"""A round from the inside is the round that the engine runs."""

import numpy as np
import pytest

from flide_jax.checkpoints import Checkpoint
from flide_jax.engine import Engine, EngineConfig
from flide_jax.inspection import Inspector, differences_by_depth, growth_between, text_rows
from flide_jax.layout import Capacity, lay_out
from flide_jax.request import Choice, Request, YesNo
from flide_jax.verification import differences
from flide_jax.wrong_forks import WRONG_FORKS, differences_by_fork
from tests.tolerances import EXACT

REQUEST = Request(
    "The screen is cracked.", {"u": YesNo("Urgent?"), "a": Choice("What next?", {"refund": None, "replace": None})}
)


@pytest.fixture(scope="module")
def inspector(tiny_model) -> Inspector:
    return Inspector(Engine.load(tiny_model, EngineConfig(dtype="float64", capacities=(128,))), Capacity.of_tokens(128))


def test_its_answers_are_the_engines(inspector):
    plan = inspector.engine.plan(REQUEST)
    answers = inspector.answers(REQUEST, inspector.metadata(lay_out([plan])))
    assert differences(answers, inspector.engine.answer(REQUEST)).max() <= EXACT


def test_a_fork_is_exact_at_every_depth_and_a_wrong_one_is_not(inspector):
    plan = inspector.engine.plan(REQUEST)
    found = differences_by_depth(inspector, plan)
    assert found.shape == (2, len(inspector.engine.program.architecture.layers) + 1)
    assert (found[:, 0] == 0).all() and found.max() <= EXACT
    right = inspector.metadata
    answers = inspector.answers(REQUEST, right(lay_out([plan])))
    for wrong in WRONG_FORKS:
        changed = inspector.answers(REQUEST, wrong(right(lay_out([plan]))))
        assert differences(changed, answers).max() > 100 * EXACT, wrong.__name__
        inspector.metadata = lambda stream, wrong=wrong: wrong(right(stream))
        try:
            assert differences_by_depth(inspector, plan).max() > 100 * EXACT, wrong.__name__
        finally:
            del inspector.metadata


def test_poison_stays_in_its_rows(inspector):
    plan = inspector.engine.plan(REQUEST)
    stream = lay_out([plan])
    metadata = inspector.metadata(stream)
    poisoned = np.zeros(128, bool)
    poisoned[text_rows(stream, 1)[plan.state.size :]] = True
    hidden, clean = inspector.hidden_states(metadata, poisoned=poisoned), inspector.hidden_states(metadata)
    assert np.isnan(hidden[:, poisoned]).any(axis=2).all()
    np.testing.assert_array_equal(hidden[:, ~poisoned], clean[:, ~poisoned])


def test_the_rows_of_a_text_hold_its_tokens(inspector):
    plan = inspector.engine.plan(REQUEST)
    stream = lay_out([plan, plan])
    for branch in range(4):
        expected = [*plan.state.tolist(), *plan.branch(branch % 2).tolist()]
        assert stream.tokens[text_rows(stream, branch)].tolist() == expected


def test_each_wrong_fork_is_told_from_the_right_one(inspector):
    found = differences_by_fork(inspector, REQUEST)
    assert list(found) == ["the fork", *(wrong.__name__.replace("_", " ") for wrong in WRONG_FORKS)]
    assert found["the fork"].shape == (2,) and found.pop("the fork").max() <= EXACT
    assert all(one.max() > 100 * EXACT for one in found.values())


def test_a_round_is_told_from_its_checkpoints():
    tokens = np.arange(150, dtype=np.int32)
    parent = Checkpoint("", tokens[:100], np.array([7, 2], np.int32), 4, tokens[:100])
    kept = Checkpoint("", tokens, np.array([7, 2, 5], np.int32), 1, tokens)
    growth = growth_between([kept, parent], resumed=100, saved=150)
    assert (growth.resumed, growth.initial_slot, growth.saved, growth.final_slot) == (100, 4, 50, 1)
    assert growth.cached_pages.tolist() == [7, 2] and growth.written_pages.tolist() == [2, 5]
    with pytest.raises(KeyError):
        growth_between([kept, parent], resumed=64, saved=150)
