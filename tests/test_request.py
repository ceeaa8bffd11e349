"""Requests: what is accepted, what is refused and where, and the answers' formulas."""

import copy
import enum
import pickle

import numpy as np
import pytest

from flide_jax.request import (
    MAX_DEPTH,
    Answers,
    Choice,
    ChoiceAnswer,
    Request,
    RequestError,
    Score,
    ScoreAnswer,
    Usage,
    YesNo,
    YesNoAnswer,
    choice_confidence,
    score_confidence,
)

QUESTION = {"q": YesNo("Is it?")}


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def request(state: object, questions: object = QUESTION) -> Request:
    return Request(state, questions)


def test_the_documented_forms() -> None:
    choice = Choice("What next?", {"refund": "refund the order", "escalate": None})
    assert list(choice.options.items()) == [("refund", "refund the order"), ("escalate", None)]
    assert Score("How angry?", ["calm", "angry"]).levels == ("calm", "angry")
    one_sided = YesNo("Urgent?", yes={"within": "an hour"})
    assert (one_sided.yes, one_sided.no) == ({"within": "an hour"}, None)
    assert YesNo().instructions is None
    assert list(Request("s", {"b": choice, "a": YesNo()}).questions) == ["b", "a"]


@pytest.mark.parametrize("state", ["", " \n", {}, [], {"a": [1, 2.5, None, True, "é"]}, "\u2028", nested(MAX_DEPTH)])
def test_states_that_are_accepted(state: object) -> None:
    assert request(state).state == state


@pytest.mark.parametrize("name", [" ", ".", "\n", "질문", "👩\u200d🚀", "a.b c", "\x00"])
def test_question_ids_are_any_text(name: str) -> None:
    assert list(request("", {name: YesNo()}).questions) == [name]


def test_option_names_differ_byte_for_byte() -> None:
    names = ["a", "A", " a", "a ", "a\nb", "\u00e9", "e\u0301", "\x07"]
    assert list(Choice("?", dict.fromkeys(names)).options) == names


@pytest.mark.parametrize("count", [1, 2, 26, 27, 255])
def test_option_counts(count: int) -> None:
    assert len(Choice("?", {str(i): None for i in range(count)}).options) == count


class Text(str):
    """Text with an equality of its own, as a mapping may hold twice."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


REFUSALS = [
    (lambda: Choice("?", {str(i): None for i in range(256)}), "options: 1 to 255 options are allowed, got 256"),
    (lambda: Choice("?"), "options: 1 to 255 options are allowed, got 0"),
    (lambda: Choice("?", ["a"]), "options: must be an object of option names, got an array"),
    (lambda: Choice("?", {1: None}), "options: an option name must be a string, got a number"),
    (lambda: Choice("?", {" \u2003": None}), r"options: an option name must not be blank, got ' \u2003'"),
    (lambda: Choice("?", {Text("a"): None, Text("a"): None}), "options.a: option names must be distinct"),
    (lambda: Choice("?", {"a": 3}), "options.a: must be a string, an object or an array, got a number"),
    (lambda: Score("?", []), "levels: 1 to 10 levels are allowed, got 0"),
    (lambda: Score("?", ["x"] * 11), "levels: 1 to 10 levels are allowed, got 11"),
    (lambda: Score("?", {"0": "x"}), "levels: must be an array of levels, lowest first, got an object"),
    (lambda: Score("?", "calm"), "levels: must be an array of levels, lowest first, got a string"),
    (lambda: Score("?", ["x", None]), "levels.1: must be a string, an object or an array, got null"),
    (lambda: YesNo(True), "instructions: must be a string, an object or an array, got a boolean"),
    (lambda: YesNo(yes=1.5), "yes: must be a string, an object or an array, got a number"),
    (lambda: YesNo(no=("x",)), "no: must be a string, an object or an array, got tuple"),
    (lambda: Score(b"x", ["x"]), "instructions: must be a string, an object or an array, got bytes"),
    (lambda: request(None), "state: must be a string, an object or an array, got null"),
    (lambda: request(7), "state: must be a string, an object or an array, got a number"),
    (lambda: request({"a": [0, float("nan")]}), "state.a.1: NaN and infinities are not JSON, got nan"),
    (lambda: request([float("-inf")]), "state.0: NaN and infinities are not JSON, got -inf"),
    (lambda: request({"a": {1: 2}}), "state.a: a key must be a string, got a number"),
    (lambda: request([{1, 2}]), "state.0: must be JSON, got set"),
    (lambda: request([10**5000]), "state.0: an integer of more than 4,200 digits is not allowed"),
    (lambda: request("x\ud83d"), "state: text holds U+D83D at 1, half a surrogate pair"),
    (lambda: request([{"\udc00": 1}]), "state.0: a key holds U+DC00 at 0, half a surrogate pair"),
    (lambda: Choice("?", {"\ud800": None}), "options: an option name holds U+D800 at 0, half a surrogate pair"),
    (lambda: request("", {"\ud800": YesNo()}), "questions: a question id holds U+D800 at 0, half a surrogate pair"),
    (lambda: request("", {}), "questions: at least one question is required"),
    (lambda: request("", [YesNo()]), "questions: must be an object of questions, got an array"),
    (lambda: request("", {"": YesNo()}), "questions.: a question id must not be empty"),
    (lambda: request("", {"a\nb": "Is it?"}), r"questions.'a\nb': must be YesNo, Choice or Score, got a string"),
]


@pytest.mark.parametrize(("build", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_refusals_name_field_and_rule(build, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        build()
    assert str(caught.value) == message
    assert isinstance(caught.value, ValueError)
    assert pickle.loads(pickle.dumps(caught.value)).location == caught.value.location


def test_nesting_is_bounded() -> None:
    with pytest.raises(RequestError, match=r"nested 100 deep at most$") as caught:
        request(nested(MAX_DEPTH + 1))
    assert caught.value.location == ("state", *[0] * MAX_DEPTH)
    cycle: list = []
    cycle.append(cycle)
    with pytest.raises(RequestError, match="nested"):
        request(cycle)


def test_an_error_is_placed_within_its_question() -> None:
    error = RequestError(("levels", 1), "must be text").within("questions", "a b")
    assert (error.location, error.rule) == (("questions", "a b", "levels", 1), "must be text")
    assert str(error) == "questions.a b.levels.1: must be text"


def test_a_request_is_a_copy_and_its_fields_are_fixed() -> None:
    state = {"a": [1]}
    options = {"x": None}
    choice = Choice("?", options)
    made = request(state, {"q": choice})
    state["a"].append(2)
    options["y"] = None
    assert made.state == {"a": [1]} and list(choice.options) == ["x"]
    with pytest.raises(TypeError):
        choice.options["y"] = None
    with pytest.raises(AttributeError):
        made.state = ""
    assert pickle.loads(pickle.dumps(made)) == made == copy.deepcopy(made)


@pytest.mark.parametrize(
    "value",
    [
        YesNo(),
        Choice(None, {"x": None}),
        Score(None, ["x"]),
        Request("", QUESTION),
        ChoiceAnswer("x", 1.0, {"x": 1.0}),
        ScoreAnswer(0.0, 1.0, (1.0,), ("x",)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_hold_content_cannot_be_hashed(value: object) -> None:
    with pytest.raises(TypeError, match="unhashable type"):
        hash(value)


def test_text_is_plain_text() -> None:
    class Color(enum.StrEnum):
        RED = "red"

    made = request([Color.RED, {Color.RED: True}])
    assert type(made.state[0]) is str and [type(key) for key in made.state[1]] == [str]
    assert made.state[1]["red"] is True


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [
        ([0, 0.14, 0.86, 0, 0], 1 - 0.14 / 1.2),
        ([0, 0, 0.48, 0.52], 0.52),
        ([0.5, 0, 0, 0, 0.5], 0.0),
        ([0, 0, 0.01, 0.3, 0.69], 1 - 0.32 / 1.2),
        ([1.0], 1.0),
        ([0.3, 0.7], 0.4),
    ],
)
def test_score_confidence(probabilities: list[float], confidence: float) -> None:
    assert score_confidence(np.array(probabilities, np.float64)) == pytest.approx(confidence, abs=1e-15)


def test_score_confidence_as_documented() -> None:
    assert round(score_confidence(np.array([0, 0.14, 0.86, 0, 0])), 5) == 0.88333
    assert round(score_confidence(np.array([0, 0, 0.01, 0.3, 0.69])), 4) == 0.7333


@pytest.mark.parametrize(
    ("probabilities", "confidence"),
    [
        ([0.1, 0.9], 0.8),
        ([0.25] * 4, 0.0),
        ([0.2, 0.2, 0.09, 0.2, 0.02, 0.08, 0.07, 0.07, 0.07], 0.1),
        ([1.0], 1.0),
        ([1 / 3 - 1e-17] * 3, 0.0),
    ],
)
def test_choice_confidence(probabilities: list[float], confidence: float) -> None:
    assert choice_confidence(np.array(probabilities, np.float64)) == pytest.approx(confidence, abs=1e-15)


def test_confidences_stay_within_bounds() -> None:
    assert choice_confidence(np.array([1 + 1e-12, 0.0])) == 1.0
    assert choice_confidence(np.array([0.49, 0.49])) == 0.0


def test_answers_from_probabilities() -> None:
    assert YesNoAnswer.of(YesNo(), np.array([0.7, 0.3])) == YesNoAnswer(0.7)
    choice = ChoiceAnswer.of(Choice("?", dict.fromkeys("abc")), np.array([0.2, 0.4, 0.4]))
    assert choice.choice == "b" and choice.probabilities == {"a": 0.2, "b": 0.4, "c": 0.4}
    assert choice.confidence == pytest.approx(0.1)
    score = ScoreAnswer.of(Score("?", ["20", {"x": 1}, "22"]), np.array([0.5, 0.25, 0.25]))
    assert score.score == 0.75 and score.levels == ("20", {"x": 1}, "22") and score.probabilities == (0.5, 0.25, 0.25)
    assert score.confidence == 0.0


def test_answers_are_a_mapping_with_usage() -> None:
    answers = Answers({"b": YesNoAnswer(0.1), "a": YesNoAnswer(0.2)}, usage=Usage(input_tokens=9, output_tokens=2))
    assert list(answers) == ["b", "a"] and len(answers) == 2
    assert answers["a"] == YesNoAnswer(0.2) and answers.usage == Usage(9, 2)
    assert "c" not in answers
