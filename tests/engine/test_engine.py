"""Requests in, answers out: whatever shares a round, and whatever capacity it runs in, the answers are the same."""

import jax
import numpy as np
import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.layout import Demand, form_rounds
from flide_jax.request import Choice, Request, RequestError, Score, YesNo
from tests.engine.requests import (
    ACTION,
    ORDER,
    PARCEL,
    REQUESTS,
    THANKS,
    URGENT,
    largest_difference,
    probabilities,
    probabilities_of,
)
from tests.tolerances import EXACT, FORKED_ROUNDED

GROUPINGS = [[[0, 1, 2]], [[2, 1], [0]], [[1], [0, 2]], [[0, 0, 1, 1, 2]]]


def test_every_kind_of_question_has_its_answer(engine):
    answers = engine.answer(ORDER)
    assert list(answers) == ["urgent", "action", "anger"]
    urgent, action, anger = answers.values()
    assert 0 < urgent.probability < 1
    assert list(action.probabilities) == ["refund", "escalate", "wait"]
    assert action.choice == max(action.probabilities, key=action.probabilities.__getitem__)
    for shares in (list(action.probabilities.values()), anger.probabilities):
        assert len(shares) == 3 and min(shares) > 0 and abs(sum(shares) - 1) < 1e-12
        assert max(shares) - min(shares) > 1e-6  # the labels are told apart
    assert anger.score == pytest.approx(sum(i * share for i, share in enumerate(anger.probabilities)))


def test_the_most_options_and_the_fewest(engine):
    options = {f"option {i}": None for i in range(engine.prompt_format.max_options)}
    questions = {
        "many": Choice("Which?", options),
        "one": Choice("Which?", {"only": None}),
        "level": Score(None, ["x"]),
    }
    answers = engine.answer(Request("", questions))
    assert len(answers["many"].probabilities) == len(options) > 26
    assert sum(answers["many"].probabilities.values()) == pytest.approx(1)
    assert answers["one"].probabilities == {"only": 1.0}
    assert answers["level"].probabilities == (1.0,)


def test_questions_are_answered_from_their_own_text(engine):
    """Another state, other words or another order of options gives other probabilities."""
    base = probabilities(engine.answer(Request("The lamp is broken.", {"q": ACTION})))
    for other in (
        Request("The lamp is lovely.", {"q": ACTION}),
        Request("The lamp is broken.", {"q": Choice("What now?", ACTION.options)}),
        Request("The lamp is broken.", {"q": Choice(ACTION.instructions, dict(reversed(ACTION.options.items())))}),
    ):
        assert np.abs(probabilities(engine.answer(other)) - base).max() > 1e-4


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_answers_do_not_depend_on_the_grouping(engine, exact_engine, dtype, grouping):
    used, tolerance = (engine, FORKED_ROUNDED["float32"]) if dtype == "float32" else (exact_engine, EXACT)
    alone = [used.answer(request) for request in REQUESTS]
    for group in grouping:
        found = used.answer_all([REQUESTS[i] for i in group])
        assert largest_difference(found, [alone[i] for i in group]) <= tolerance


def test_a_question_is_answered_as_if_it_were_alone(exact_engine):
    together = exact_engine.answer(ORDER)
    for name, question in ORDER.questions.items():
        alone = exact_engine.answer(Request(ORDER.state, {name: question}))
        assert np.abs(probabilities_of(alone[name]) - probabilities_of(together[name])).max() <= EXACT


def test_no_requests_have_no_answers(engine):
    assert engine.answer_all([]) == []
    assert engine.logits([]) == []


def test_usage_counts_the_state_once_and_every_question_once(engine):
    plan = engine.plan(ORDER)
    usage = engine.answer(ORDER).usage
    texts = [engine.prompt_format.text(ORDER, name) for name in ORDER.questions]
    tokens = [engine.prompt_format.tokenizer.template_text(text)[0].size for text in texts]
    state = plan.state.size
    assert usage.input_tokens == state + sum(size - state for size in tokens) < sum(tokens)
    assert usage.output_tokens == 3


def test_a_queue_is_cut_into_rounds_at_request_boundaries(exact_engine, small_exact_engine):
    queue = [THANKS, ORDER, THANKS, PARCEL, THANKS]
    plans = [small_exact_engine.plan(request) for request in queue]
    rounds = form_rounds([Demand.of(plan) for plan in plans], small_exact_engine.executables.ladder.largest)
    assert len(rounds) > 1
    assert largest_difference(small_exact_engine.answer_all(queue), exact_engine.answer_all(queue)) <= EXACT


def test_a_request_over_the_largest_capacity_runs_in_its_own(exact_engine, small_exact_engine):
    request = Request("The screen is cracked. " * 40, {f"q{i}": URGENT for i in range(4)})
    tokens = small_exact_engine.plan(request).tokens
    small, large = (engine.executables.ladder.largest.tokens for engine in (small_exact_engine, exact_engine))
    assert small < tokens <= large
    found = small_exact_engine.answer_all([THANKS, request, THANKS])
    assert max(capacity.tokens for capacity in small_exact_engine.executables.compiled) >= tokens
    assert largest_difference(found, exact_engine.answer_all([THANKS, request, THANKS])) <= EXACT


class TestTooLong:
    def test_for_the_model(self, engine):
        request = Request("word " * 9_000, {"q": URGENT})
        longest = engine.prompt_format.plan(request).tokens
        assert longest > engine.max_tokens == 8_192
        with pytest.raises(RequestError, match=f"have {longest} tokens, the model reads 8192"):
            engine.answer(request)

    def test_the_model_reads_one_question_at_a_time(self, engine):
        """Its limit is on a state and one question, not on the stream."""
        plan = engine.plan(Request("word " * 2_000, {f"q{i}": YesNo("word " * 1_000) for i in range(8)}))
        assert plan.tokens > engine.max_tokens

    def test_for_the_engine(self, tiny_model):
        tokens = Engine.load(tiny_model, EngineConfig(dtype="float32")).plan(ORDER).tokens
        strict = Engine.load(tiny_model, EngineConfig(dtype="float32", max_request_tokens=tokens - 1))
        with pytest.raises(RequestError, match=f"has {tokens} tokens, the engine takes {tokens - 1}"):
            strict.answer(ORDER)
        assert strict.plan(THANKS).tokens < tokens


class TestNotFinite:
    """The embedding of a token that one request alone holds becomes NaN after loading."""

    @pytest.fixture
    def poisoned(self, engine, monkeypatch):
        plans = [engine.plan(request) for request in REQUESTS]
        tokens = [set(np.concatenate([plan.state, plan.branches]).tolist()) for plan in plans]
        token = min(tokens[1] - tokens[0] - tokens[2])
        expected = engine.logits(plans)
        packed = engine.executables.params
        embedding = engine.program.packing.unpack(packed).embedding
        broken = embedding.at[token].set(np.nan)
        monkeypatch.setattr(engine.executables, "params", tuple(broken if x is embedding else x for x in packed))
        return engine, plans, expected

    def test_the_request_is_refused(self, poisoned):
        engine, _, _ = poisoned
        with pytest.raises(FloatingPointError, match="questions.urgent: the model's logits are not finite"):
            engine.answer(THANKS)
        with pytest.raises(FloatingPointError):
            engine.answer_all(REQUESTS)

    def test_the_others_keep_every_bit(self, poisoned):
        engine, plans, expected = poisoned
        found = engine.logits(plans)
        assert np.isnan(found[1]).all()
        for i in (0, 2):
            np.testing.assert_array_equal(found[i], expected[i])
            assert probabilities(engine.answers(REQUESTS[i], plans[i], found[i])).size


def test_float64_is_the_engines_alone(exact_engine):
    """It needs no global switch and leaves none behind."""
    assert not jax.config.jax_enable_x64
    (logits,) = exact_engine.logits([exact_engine.plan(THANKS)])
    assert logits.dtype == np.float64
    assert {leaf.dtype for leaf in jax.tree.leaves(exact_engine.executables.params)} == {np.dtype(np.float64)}
    assert not jax.config.jax_enable_x64
    assert jax.numpy.ones(1).dtype == np.float32
