import json

import numpy as np
import pytest

from flide_jax.request import (
    Answers,
    Choice,
    ChoiceAnswer,
    Request,
    RequestError,
    Score,
    ScoreAnswer,
    TooLongError,
    Usage,
    YesNo,
    YesNoAnswer,
)
from flide_jax.serving.protocol import in_words_of_the_wire, parse_request, read_request, response

STATE = {"state": "s"}


def asking(question: object, **fields: object) -> dict:
    return {"state": "s", "questions": {"a b.ç": question}, **fields}


@pytest.mark.parametrize(
    ("wire", "question"),
    [
        ({"type": "noul"}, YesNo()),
        ({"type": "noul", "instructions": None, "criteria": None}, YesNo()),
        ({"type": "noul", "instructions": "i", "criteria": {}}, YesNo("i")),
        ({"type": "noul", "instructions": {"k": [1]}, "criteria": {"false": "n"}}, YesNo({"k": [1]}, no="n")),
        ({"type": "noul", "criteria": {"true": ["y"], "false": None}}, YesNo(yes=["y"])),
        ({"type": "choice", "criteria": {"b": None, "a": {"k": 1}}}, Choice(None, {"b": None, "a": {"k": 1}})),
        ({"type": "score", "instructions": "i", "criteria": ["low", {"k": 1}]}, Score("i", ["low", {"k": 1}])),
    ],
)
def test_reads_every_question(wire, question):
    read = read_request(asking(wire))
    assert read.request == Request("s", {"a b.ç": question})
    assert read.model is None


def test_reads_the_model_and_ignores_unknown_fields_of_the_request():
    assert read_request(asking({"type": "noul"}, model="jev-latest", x_nonce=1)).model == "jev-latest"


def test_keeps_the_order_of_questions_and_options():
    text = (
        '{"questions":{"z":{"type":"choice","criteria":{"9":null,"10":null,"1":"x"}},"a":{"type":"noul"}},"state":[]}'
    )
    questions = parse_request(text.encode()).request.questions
    assert list(questions) == ["z", "a"]
    assert list(questions["z"].options) == ["9", "10", "1"]


@pytest.mark.parametrize(
    ("wire", "location", "rule"),
    [
        ([], (), "must be an object, got an array"),
        (STATE, ("questions",), "is required"),
        ({"questions": {}}, ("state",), "is required"),
        (STATE | {"questions": {}}, ("questions",), "at least one"),
        (STATE | {"questions": []}, ("questions",), "must be an object, got an array"),
        ({"state": None, "questions": {"q": {"type": "noul"}}}, ("state",), "got null"),
        ({"state": float("inf"), "questions": {"q": {"type": "noul"}}}, ("state",), "got a number"),
        (STATE | {"questions": {"": {"type": "noul"}}}, ("questions", ""), "not be empty"),
        (asking({"type": "noul"}, model=None), ("model",), "must be a string, got null"),
        (asking({"type": "noul"}, assets={}), ("assets",), "images"),
        (asking({"type": "noul"}, x_checkpoints=0), ("x_checkpoints",), "must be a boolean, got a number"),
        (asking({"type": "noul"}, x_cache_salt=None), ("x_cache_salt",), "must be a string, got null"),
        (asking({"type": "noul"}, x_cache_salt="s" * 257), ("x_cache_salt",), "256 characters are allowed, got 257"),
        (asking("noul"), ("questions", "a b.ç"), "must be an object, got a string"),
        (asking({}), ("questions", "a b.ç", "type"), "is required"),
        (asking({"type": "boolean"}), ("questions", "a b.ç", "type"), "noul, choice or score, got 'boolean'"),
        (asking({"type": "some text"}), ("questions", "a b.ç", "type"), "noul, choice or score, got a string"),
        (asking({"type": ["noul"]}), ("questions", "a b.ç", "type"), "got an array"),
        (asking({"type": "noul", "criterea": {}}), ("questions", "a b.ç", "criterea"), "unknown field"),
        (
            asking({"type": "noul", "criteria": {"yes": "y"}}),
            ("questions", "a b.ç", "criteria", "yes"),
            "unknown field",
        ),
        (asking({"type": "noul", "criteria": ["y"]}), ("questions", "a b.ç", "criteria"), "must be an object"),
        (asking({"type": "noul", "instructions": 3}), ("questions", "a b.ç", "instructions"), "got a number"),
        (asking({"type": "choice"}), ("questions", "a b.ç", "criteria"), "is required"),
        (asking({"type": "choice", "criteria": {}}), ("questions", "a b.ç", "criteria"), "1 to 255 options"),
        (asking({"type": "choice", "criteria": None}), ("questions", "a b.ç", "criteria"), "must be an object"),
        (asking({"type": "score", "criteria": {"0": "x"}}), ("questions", "a b.ç", "criteria"), "must be an array"),
        (asking({"type": "score", "criteria": ["x", None]}), ("questions", "a b.ç", "criteria", 1), "got null"),
        (asking({"type": "score", "criteria": ["x"] * 11}), ("questions", "a b.ç", "criteria"), "1 to 10 levels"),
    ],
)
def test_names_the_field_and_the_rule(wire, location, rule):
    with pytest.raises(RequestError, match=rule) as refused:
        read_request(wire)
    assert refused.value.location == location


def test_refuses_an_option_that_stands_twice():
    text = b'{"state":"s","questions":{"q":{"type":"choice","criteria":{"a":null,"a":"again"}}}}'
    with pytest.raises(RequestError, match="questions.q.criteria.a: this key stands twice"):
        parse_request(text)


def test_the_response_has_the_shapes_of_system_one():
    third = 1 / 3
    names = ["z", "a\u2028", "é"]
    score = Score(None, ["low", {"k": None}])
    answers = Answers(
        {
            "b": YesNoAnswer(probability=third),
            "a": ChoiceAnswer.of(Choice(None, dict.fromkeys(names)), np.array([0.2, 0.5, 0.3])),
            "c": ScoreAnswer.of(score, np.array([0.25, 0.75])),
        },
        usage=Usage(input_tokens=12, output_tokens=3),
    )
    found = json.loads(json.dumps(response(answers, model="m"), allow_nan=False))
    assert found == {
        "model": "m",
        "answers": {
            "b": {"type": "noul", "noul": third},
            "a": {
                "type": "choice",
                "choice": "a\u2028",
                "confidence": pytest.approx(0.25),
                "probabilities": {"z": 0.2, "a\u2028": 0.5, "é": 0.3},
            },
            "c": {
                "type": "score",
                "score": 0.75,
                "confidence": pytest.approx(0.5),
                "legend": {"0": "low", "1": {"k": None}},
                "probabilities": {"0": 0.25, "1": 0.75},
            },
        },
        "usage": {"input_tokens": 12, "output_tokens": 3},
    }
    assert list(found["answers"]) == ["b", "a", "c"]
    assert list(found["answers"]["a"]["probabilities"]) == names
    assert type(found["usage"]["input_tokens"]) is int


@pytest.mark.parametrize(
    ("python", "wire"),
    [
        (("questions", "q", "options", "a"), ("questions", "q", "criteria", "a")),
        (("questions", "options", "levels", 1), ("questions", "options", "criteria", 1)),
        (("questions", "q", "yes", "k"), ("questions", "q", "criteria", "true", "k")),
        (("questions", "q", "no"), ("questions", "q", "criteria", "false")),
        (("questions", "q", "instructions", "yes"), ("questions", "q", "instructions", "yes")),
        (("questions", "options"), ("questions", "options")),
        (("state", "options"), ("state", "options")),
    ],
)
def test_errors_name_the_fields_of_the_wire(python, wire):
    with pytest.raises(TooLongError) as raised, in_words_of_the_wire():
        raise TooLongError(python, "rule")
    assert (raised.value.location, raised.value.rule) == (wire, "rule")


def test_says_what_each_part_cost_only_where_it_is_asked_to():
    assert read_request(asking({"type": "noul"}, x_costs=True)).costs
    assert not any(read_request(asking({"type": "noul"}, x_costs=x)).costs for x in (False, None, 1, "true"))


def test_tokens_of_a_checkpoint_are_said():
    usage = Usage(input_tokens=10, output_tokens=1, computed_state_tokens=2, resumed_state_tokens=5)
    found = response(Answers({}, usage=usage), model="m")
    assert found["usage"] == {"input_tokens": 10, "output_tokens": 1, "x_cached_tokens": 5}
