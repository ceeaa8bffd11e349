"""One executable for each capacity: a different mix of requests never traces or compiles again."""

import dataclasses
from collections import Counter

import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.layout import Demand, lay_out
from flide_jax.models import families
from flide_jax.request import Request, YesNo
from tests.engine.requests import ACTION, ANGER, REQUESTS, URGENT

MIXES = [
    REQUESTS,
    REQUESTS[::-1],
    [REQUESTS[1]] * 4,
    [Request("Only a state of some length, with a question. " * 8, {"q": URGENT})],
    [Request("x", {f"q{i}": YesNo() for i in range(9)})],
    [Request(f"State {i}", {"a": ACTION, "b": ANGER}) for i in range(3)],
]


@pytest.fixture
def counted(tiny_model, monkeypatch):
    """An engine with capacities of 512 and 1,024 tokens, and how often its forward was traced."""
    traces: Counter[int] = Counter()

    def forward(params, metadata, **options):
        traces[metadata.tokens.shape[0]] += 1
        return families.QWEN3_5.forward(params, metadata, **options)

    monkeypatch.setitem(families.FAMILIES, "qwen3_5_text", dataclasses.replace(families.QWEN3_5, forward=forward))
    return Engine.load(tiny_model, EngineConfig(dtype="float32", capacities=(512, 1_024))), traces


def test_every_mix_in_a_capacity_runs_one_executable(counted):
    engine, traces = counted
    assert not engine.executables.compiled and not traces  # nothing before it is needed
    for mix in MIXES:
        plans = [engine.plan(request) for request in mix]
        smallest = engine.executables.ladder.capacities[0]
        assert smallest.fits(Demand.of_stream(lay_out(plans))), "this mix is of another capacity"
        engine.answer_all(mix)
    assert [capacity.tokens for capacity in engine.executables.compiled] == [512]
    assert traces == {512: 1}
    larger = [Request("A longer state, word by word. " * 80, {"q": URGENT})]
    for _ in range(2):
        engine.answer_all(larger)
        engine.answer_all(MIXES[0])
    assert [capacity.tokens for capacity in engine.executables.compiled] == [512, 1_024]
    assert traces == {512: 1, 1_024: 1}
