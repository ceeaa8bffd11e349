"""One executable for each capacity: a different mix of requests never traces or compiles again."""

import dataclasses
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.layout import Capacity, Demand, MetadataLayout, lay_out
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


class TestOversize:
    """Single requests over the largest capacity."""

    @pytest.fixture
    def small(self, tiny_model) -> Engine:
        return Engine.load(tiny_model, EngineConfig(dtype="float32", capacities=(64,)))

    def test_it_is_said_once(self, small, caplog):
        for count in (70, 140):
            small.answer(Request("s", {f"q{i}": URGENT for i in range(count)}))
        (said,) = caplog.records
        assert said.levelname == "WARNING" and said.name.startswith("flide_jax.engine")
        assert "does not fit into the largest capacity (64 tokens)" in said.getMessage()

    def test_the_two_that_were_used_last_are_kept(self, small, monkeypatch):
        monkeypatch.setattr(small.executables, "_build", lambda layout: lambda params, buffer: layout.capacity.tokens)

        def use(tokens: int) -> None:
            small.executables._executable(MetadataLayout(Capacity.of_tokens(tokens), 4))

        def kept() -> list[int]:
            return [capacity.tokens for capacity in small.executables.compiled]

        for tokens in (64, 2_048, 4_096, 2_048, 6_144):
            use(tokens)
        assert kept() == [64, 2_048, 6_144]
        use(2_048)
        use(8_192)
        assert kept() == [64, 2_048, 8_192]


def test_threads_share_an_engine(counted):
    """Every capacity is compiled once, and every thread gets the answers of its own requests."""
    engine, traces = counted
    larger = [Request("A longer state, word by word. " * 80, {"q": URGENT})]
    mixes = [*MIXES, larger] * 2
    together = threading.Barrier(len(mixes))

    def ask(mix):
        together.wait()
        return engine.answer_all(mix)

    with ThreadPoolExecutor(len(mixes)) as pool:
        found = list(pool.map(ask, mixes))
    assert traces == {512: 1, 1_024: 1}
    for mix, answers in zip(mixes, found, strict=True):
        assert answers == engine.answer_all(mix)


def test_a_compiled_capacity_runs_while_another_is_compiled(counted, monkeypatch):
    engine, _ = counted
    engine.answer_all(MIXES[0])
    build, begun, may_end = engine.executables._build, threading.Event(), threading.Event()

    def slow(layout):
        begun.set()
        assert may_end.wait(60)
        return build(layout)

    monkeypatch.setattr(engine.executables, "_build", slow)
    with ThreadPoolExecutor(1) as pool:
        larger = pool.submit(engine.answer_all, [Request("A longer state, word by word. " * 80, {"q": URGENT})])
        assert begun.wait(60)
        engine.answer_all(MIXES[0])
        assert not larger.done()
        may_end.set()
        assert larger.result(60)
