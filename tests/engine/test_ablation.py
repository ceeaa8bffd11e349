"""Whatever an engine goes without, its answers stay the same."""

import dataclasses

import jax
import numpy as np
import pytest

from flide_jax.engine import Ablation, Engine, EngineConfig
from flide_jax.engine.ablation import logits_without_forks
from flide_jax.engine.program import GPU_COMPILER_OPTIONS, compiler_options
from flide_jax.layout import Demand, lay_out
from flide_jax.prompts.plan import Plan
from flide_jax.verification import compare
from tests.engine.requests import ORDER, REQUESTS, largest_difference
from tests.tolerances import EXACT

CONFIG = EngineConfig(dtype="float64", capacities=(1_024,))
ABLATIONS = {
    "forks": Ablation(forks=False),
    "command buffers": Ablation(command_buffers=False),
    "op by op": Ablation(op_by_op=True),
    "one request a round": Ablation(one_request_a_round=True),
    "selective readout": Ablation(selective_readout=False),
    "everything": Ablation(
        forks=False, command_buffers=False, op_by_op=True, one_request_a_round=True, selective_readout=False
    ),
}


def ablated(model, ablation: Ablation) -> Engine:
    return Engine.load(model, dataclasses.replace(CONFIG, ablation=ablation))


@pytest.fixture
def streams(monkeypatch):
    """streams(engine) -> a list to which the streams of its rounds are added."""

    def watch(engine: Engine) -> list:
        seen, dispatch = [], engine.executables.dispatch

        def look(stream, capacity, *_):
            seen.append(stream)
            return dispatch(stream, capacity)

        monkeypatch.setattr(engine.executables, "dispatch", look)
        return seen

    return watch


def test_nothing_is_taken_away_by_default():
    assert EngineConfig().ablation == Ablation()
    assert compiler_options(Ablation(), 64) == {}


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_answers_are_the_same(exact_engine, tiny_model, name):
    engine = ablated(tiny_model, ABLATIONS[name])
    assert largest_difference(engine.answer_all(REQUESTS), exact_engine.answer_all(REQUESTS)) <= EXACT
    assert engine.answer_all([]) == []


def test_without_forks_every_question_is_a_text(tiny_model, streams):
    engine = ablated(tiny_model, Ablation(forks=False))
    seen = streams(engine)
    engine.answer_all(REQUESTS)
    plans = [engine.plan(request) for request in REQUESTS]
    texts = [plan.alone(branch) for plan in plans for branch in range(plan.branch_lengths.size)]
    (stream,) = seen
    assert stream.requests == stream.piece_begin.size == len(texts) == 6
    np.testing.assert_array_equal(stream.tokens, np.concatenate([text.state for text in texts]))


def test_without_forks_reads_keep_their_order(exact_engine):
    """Reads of several branches in any order, of one branch twice, and of the state."""
    plan = Plan(
        state=np.arange(9, 14, dtype=np.int32),
        branches=np.arange(20, 27, dtype=np.int32),
        branch_lengths=np.array([3, 4], np.int32),
        read_branches=np.array([1, -1, 0, 1, -1, 0], np.int32),
        read_offsets=np.array([3, 2, 2, 0, 4, 1], np.int32),
    )
    usual = exact_engine.plan(ORDER)
    backwards = dataclasses.replace(
        usual, read_branches=usual.read_branches[::-1].copy(), read_offsets=usual.read_offsets[::-1].copy()
    )
    plans = [plan, usual, backwards]
    expected = exact_engine.logits(plans)
    for found, logits in zip(logits_without_forks(plans, exact_engine.logits), expected, strict=True):
        np.testing.assert_allclose(found, logits, rtol=0, atol=1e-11)


def test_without_forks_a_comparison_still_runs(tiny_model):
    engine = ablated(tiny_model, Ablation(forks=False))
    plan = engine.plan(ORDER)
    assert max(one.largest_difference for one in compare(engine, ORDER, plan, *engine.logits([plan]))) <= EXACT


def test_one_request_a_round(tiny_model, streams):
    engine = ablated(tiny_model, Ablation(one_request_a_round=True))
    seen = streams(engine)
    engine.answer_all(REQUESTS)
    assert [stream.requests for stream in seen] == [1, 1, 1]


def test_op_by_op_compiles_no_forward(tiny_model):
    engine = ablated(tiny_model, Ablation(op_by_op=True))
    engine.answer_all(REQUESTS)
    (run,) = engine.executables.compiled.values()
    assert not isinstance(run, jax.stages.Compiled)


def test_without_selective_readout_the_last_layer_runs_everywhere(exact_engine, tiny_model):
    engine = ablated(tiny_model, Ablation(selective_readout=False))
    for one in (exact_engine, engine):
        one.answer_all(REQUESTS)
    selective, everywhere = (
        one.executables.compiled[one.executables.ladder.largest].parts[0].cost_analysis()["flops"]
        for one in (exact_engine, engine)
    )
    layers = 2
    # At least the feed-forward of the last layer at the rows that are not read.
    assert everywhere > selective * (1 + 0.3 / layers)


def test_command_buffers_are_an_option_of_the_gpu_alone(monkeypatch):
    assert compiler_options(Ablation(command_buffers=False), 64) == {}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler_options(Ablation(), 4_096) == GPU_COMPILER_OPTIONS
    assert compiler_options(Ablation(command_buffers=False), 4_096) == GPU_COMPILER_OPTIONS | {
        "xla_gpu_enable_command_buffer": ""
    }


def test_rounds_of_texts_are_cut_as_those_of_requests(small_exact_engine, tiny_model, streams):
    """A capacity that holds one text, not all of a request."""
    config = dataclasses.replace(CONFIG, capacities=(128,), ablation=Ablation(forks=False))
    engine = Engine.load(tiny_model, config)
    seen = streams(engine)
    found = engine.answer_all(REQUESTS)
    assert len(seen) > 1 and all(engine.executables.ladder.largest.fits(Demand.of_stream(stream)) for stream in seen)
    assert largest_difference(found, small_exact_engine.answer_all(REQUESTS)) <= EXACT
    assert lay_out([engine.plan(ORDER)]).tokens.size > 128
