import numpy as np
import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.request import Choice, Request, Score, YesNo
from flide_jax.verification import TOLERANCES, compare

REQUESTS = [
    Request(
        "The screen is cracked.", {"u": YesNo("Urgent?"), "a": Choice("What next?", {"refund": None, "replace": None})}
    ),
    Request("All is well.", {"u": Score("How angry?", ["calm", "angry", "furious"])}),
]


@pytest.fixture(scope="module")
def engine(tiny_model) -> Engine:
    return Engine.load(tiny_model, EngineConfig(dtype="float32", capacities=(128, 256)))


def test_every_question_is_compared_within_the_tolerance(engine):
    found = compare_all(engine)
    assert [one.question for one in found] == ["u", "a", "u"]
    assert [one.forked.size for one in found] == [2, 2, 3]
    for one in found:
        assert one.forked.sum() == pytest.approx(1)
        assert one.largest_difference <= TOLERANCES["float32"]


def test_the_forked_side_is_what_the_engine_answers(engine):
    first, second, third = compare_all(engine)
    answers = engine.answer_all(REQUESTS)
    assert first.forked[0] == answers[0]["u"].probability
    assert second.forked.tolist() == list(answers[0]["a"].probabilities.values())
    assert third.forked.tolist() == list(answers[1]["u"].probabilities)


def test_each_question_alone_is_one_text_in_a_round_of_its_own(engine, monkeypatch):
    seen = []
    monkeypatch.setattr(
        engine.executables, "dispatch", spy(engine.executables.dispatch, lambda stream, *_: seen.append(stream))
    )
    compare_all(engine)
    forked, *alone = seen
    assert forked.requests == 2 and len(alone) == 3
    assert all(stream.piece_begin.size == 1 for stream in alone)
    assert [stream.tokens.size for stream in alone] == [
        plan.state.size + int(length) for plan in map(engine.plan, REQUESTS) for length in plan.branch_lengths
    ]


def test_a_difference_is_found_where_it_is(engine, monkeypatch):
    """Shifts every logit of one branch: no probability changes. Then that of one option alone: they do."""
    column = engine.prompt_format.label_columns(REQUESTS[0].questions["a"])[1]
    runs = engine.executables.dispatch
    for shifted, same in ((slice(None), True), (column, False)):

        def shift(stream, capacity, *_, shifted=shifted):
            logits = np.array(runs(stream, capacity))
            if stream.requests == 2:
                logits[1, shifted] += np.float32(0.5)
            return logits

        monkeypatch.setattr(engine.executables, "dispatch", shift)
        first, second, third = compare_all(engine)
        assert max(first.largest_difference, third.largest_difference) < 1e-5
        assert (second.largest_difference < 1e-5) == same
        assert not second.same_bits
        # Two options: what one gains the other loses.
        assert second.total_variation == pytest.approx(second.largest_difference, abs=1e-12)


def test_the_bits_agree_where_nothing_is_forked_or_shared(engine, monkeypatch):
    plan = engine.plan(REQUESTS[1]).alone(0)
    monkeypatch.setattr("flide_jax.verification._logits_alone", lambda engine, plan: engine.logits([plan])[0])
    (one,) = compare(engine, REQUESTS[1], plan, *engine.logits([plan]))
    assert one.same_bits and one.largest_difference == one.total_variation == 0.0


def test_a_logit_that_is_not_finite_is_refused_on_either_side(engine, monkeypatch):
    plan = engine.plan(REQUESTS[0])
    (forked,) = engine.logits([plan])
    broken = forked.copy()
    broken[1] = np.nan
    with pytest.raises(FloatingPointError, match="questions.a"):
        compare(engine, REQUESTS[0], plan, broken)
    runs = engine.executables.dispatch
    monkeypatch.setattr(engine.executables, "dispatch", lambda *args: np.full_like(runs(*args), np.nan))
    with pytest.raises(FloatingPointError, match="questions.u"):
        compare(engine, REQUESTS[0], plan, forked)


def compare_all(engine):
    """The comparisons of all requests, which share rounds."""
    plans = [engine.plan(request) for request in REQUESTS]
    items = zip(REQUESTS, plans, engine.logits(plans), strict=True)
    return [one for item in items for one in compare(engine, *item)]


def spy(function, look):
    def call(*args):
        look(*args)
        return function(*args)

    return call
