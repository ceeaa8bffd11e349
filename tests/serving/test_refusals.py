import json

import pytest

from flide_jax.request import RequestError, TooLongError
from flide_jax.serving import refusals


@pytest.mark.parametrize(
    ("location", "public"),
    [
        ((), []),
        (("state",), ["state"]),
        (("state", "SECRET", 3), ["state"]),
        (("questions",), ["questions"]),
        (("questions", "an id"), ["questions", "an id"]),
        (("questions", "an id", "type"), ["questions", "an id", "type"]),
        (("questions", "an id", "criterea"), ["questions", "an id", "criterea"]),
        (("questions", "an id", "some SECRET"), ["questions", "an id"]),
        (("questions", "an id", "instructions", "SECRET", 0), ["questions", "an id", "instructions"]),
        (("questions", "an id", "criteria", "SECRET"), ["questions", "an id", "criteria"]),
        (("questions", "an id", "criteria", "true", "SECRET"), ["questions", "an id", "criteria", "true"]),
        (("questions", "an id", "criteria", 2, "SECRET"), ["questions", "an id", "criteria", 2]),
        (("requests", 4, "state", "SECRET"), ["requests", 4, "state"]),
        (("model",), ["model"]),
        (("questions", "an id", "患者の名前は山田太郎です"), ["questions", "an id"]),
        (("患者の名前は山田太郎です",), []),
        (("some SECRET",), []),
    ],
)
def test_a_location_holds_no_text_of_the_user(location, public):
    assert refusals.public_location(location) == public
    assert refusals.invalid(RequestError(location, "rule")).detail == [
        {"loc": ["body", *public], "msg": "rule", "type": "value"}
    ]


def test_what_is_missing_and_what_cannot_be_done_have_types_of_their_own():
    missing = refusals.invalid(RequestError(("state",), "is required"))
    assert (missing.status, missing.detail) == (
        422,
        [{"loc": ["body", "state"], "msg": "is required", "type": "missing"}],
    )
    unsupported = refusals.invalid(NotImplementedError("the chat template rewrites it"))
    assert (unsupported.status, unsupported.detail[0]["type"]) == (422, "unsupported")


def test_too_many_tokens_have_an_error_type_of_their_own():
    refused = refusals.invalid(TooLongError((), "the request has 9 tokens"))
    assert refused.status == 400
    assert refused.detail == {"error_type": "max_tokens_exceeded", "message": "the request has 9 tokens"}


def test_a_body_is_ascii_whatever_an_id_holds():
    refused = refusals.invalid(RequestError(("questions", "\ud800 é", "type"), "is required"))
    assert json.loads(refused.body().decode("ascii"))["detail"][0]["loc"][2] == "\ud800 é"


def test_an_unknown_model_is_named_in_part():
    assert refusals.unknown_model("gpt\n").detail["message"] == "Unknown model: gpt\\n"
    assert len(refusals.unknown_model("x" * 10_000).detail["message"]) < 100
