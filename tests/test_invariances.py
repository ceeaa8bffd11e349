"""Answers depend on nothing that they must not, in float64, and a wrong thing shows at its change."""

import dataclasses

import jax.numpy as jnp
import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.growing import GrowingStates
from flide_jax.invariances import CHANGES, Baseline
from flide_jax.layout import MetadataLayout
from flide_jax.prompts.planner import Planner
from flide_jax.request import Choice, Request, Score, YesNo
from tests.tolerances import EXACT

REQUESTS = [
    Request("The screen is cracked.", {"u": YesNo("Urgent?"), "a": Choice("Next?", {"refund": None, "replace": None})}),
    Request("All is well.", {"u": Score("How angry?", ["calm", "angry", "furious"])}),
]
CONFIG = EngineConfig(dtype="float64", capacities=(256, 384))


@pytest.fixture
def engine(tiny_model) -> Engine:
    return Engine.load(tiny_model, CONFIG)


def largest(engine: Engine) -> dict[str, float]:
    return {change.name: change.largest for change in Baseline.of(engine, REQUESTS).changes()}


def test_no_change_matters(engine):
    changes = list(Baseline.of(engine, REQUESTS).changes())
    assert [change.name for change in changes] == list(CHANGES)
    assert [change.questions for change in changes] == len(CHANGES) * [3]
    assert max(change.largest for change in changes) <= EXACT


def test_a_wrong_fork_fails_where_questions_stand_alone(engine, monkeypatch):
    unpack = MetadataLayout.unpack

    def forgetful(layout, buffer):
        metadata = unpack(layout, buffer)
        none = jnp.full_like(metadata.segments.initial_slot, -1)
        return dataclasses.replace(metadata, segments=dataclasses.replace(metadata.segments, initial_slot=none))

    monkeypatch.setattr(MetadataLayout, "unpack", forgetful)
    found = largest(engine)
    assert found["forks"] > EXACT
    assert max(found[name] for name in ("tokens", "company", "order", "padding")) <= EXACT


def test_a_question_with_other_tokens_among_others_is_found(engine, monkeypatch):
    plan = Planner.plan

    def joined(planner, request):
        if len(request.questions) == 1:
            return plan(planner, request)
        return plan(planner, Request(f"{request.state} ", request.questions))

    monkeypatch.setattr(Planner, "plan", joined)
    assert largest(engine)["tokens"] == 1


def test_another_state_in_a_checkpoint_is_found(engine, monkeypatch):
    run = GrowingStates.run

    def spoiled(growing, *round_):
        logits = run(growing, *round_)
        growing._arrays = tuple(array + 1 for array in growing._arrays)
        return logits

    monkeypatch.setattr(GrowingStates, "run", spoiled)
    found = largest(engine)
    assert found["checkpoints"] > EXACT >= found["forks"]
