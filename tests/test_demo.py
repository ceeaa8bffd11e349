"""The model that ships answers the examples that ship, and forking changes none of its answers."""

from pathlib import Path

import pytest

import flide_jax
from flide_jax.engine import Engine
from flide_jax.request import Answer, ChoiceAnswer, Request, YesNoAnswer
from flide_jax.serving.protocol import parse_request
from flide_jax.verification import TOLERANCES, compare

EXAMPLES = Path(flide_jax.__file__).parent / "demo" / "examples"

# The likeliest option of each question: yes or no, an option, a level; where two are as good, both. Whether Mary is in
# the kitchen the story leaves open.
EXPECTED: dict[str, dict[str, set]] = {
    "support": {"urgent": {"yes"}, "contacted_before": {"yes"}, "action": {"refund"}, "mood": {2}},
    "story": {
        "where_is_the_apple": {"cellar"},
        "who_has_the_apple": {"nobody"},
        "where_is_mary": {"kitchen", "garden"},
        "mary_in_kitchen": {"yes", "no"},
        "coins": {3},
    },
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.demo()


def example(name: str) -> Request:
    return parse_request((EXAMPLES / f"{name}.json").read_bytes()).request


def likeliest(answer: Answer) -> str | int:
    match answer:
        case YesNoAnswer():
            return "yes" if answer.probability > 0.5 else "no"
        case ChoiceAnswer():
            return answer.choice
        case _:
            return max(range(len(answer.levels)), key=answer.probabilities.__getitem__)


@pytest.mark.parametrize("name", EXPECTED)
def test_the_examples_are_answered_rightly(engine, name):
    found = {question: likeliest(answer) for question, answer in engine.answer(example(name)).items()}
    assert list(found) == list(EXPECTED[name])
    wrong = {question: answer for question, answer in found.items() if answer not in EXPECTED[name][question]}
    assert not wrong


def test_every_shipped_example_is_tested():
    assert {path.stem for path in EXAMPLES.iterdir()} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_forking_changes_no_answer(engine, name):
    request = example(name)
    plan = engine.plan(request)
    (forked,) = engine.logits([plan])
    found = compare(engine, request, plan, forked)
    assert [one.question for one in found] == list(request.questions)
    for one in found:
        assert one.largest_difference <= TOLERANCES[engine.dtype.name], one.question
