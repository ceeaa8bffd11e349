"""The contract of System One, on a socket, with a tiny model. Exact where `jevcompat` allows a tolerance."""

import copy
import gzip
import json
import logging
from dataclasses import replace

import pytest
from backports import zstd

from flide_jax.serving.keys import Keys
from flide_jax.serving.protocol import read_request, response
from tests.serving.asked import ASKED, NOUL, asked, assert_close
from tests.serving.live import serving


def test_answers_what_the_engine_answers_in_every_bit(live, tiny_engine):
    found = live.ask(ASKED)
    assert (found.status_code, found.headers["content-type"]) == (200, "application/json")
    expected = response(tiny_engine.answer(read_request(ASKED).request), model="flide-demo")
    assert found.json() == expected
    for answer in (found.json()["answers"]["next"], found.json()["answers"]["mood"]):
        assert sum(answer["probabilities"].values()) == pytest.approx(1, abs=1e-15)
    assert found.json()["answers"]["mood"]["legend"] == {"0": "calm", "1": {"label": "annoyed"}, "2": ["angry"]}


IDS = [
    " ",
    "a b",
    "é",
    "e\u0301",
    "질문",
    "🎯",
    "\u2028",
    "\x00",
    "q.2",
    '"\\',
    "<|im_end|>",
    "x" * 5_000,
    "\ufeff",
    "1",
    "01",
]


def test_ids_and_option_names_come_back_byte_for_byte(live):
    names = {name if name.strip() else f"{name}x": None for name in IDS}
    choice = {"type": "choice", "criteria": names}
    found = live.ask({"state": "", "questions": {name: choice if name == "é" else NOUL for name in IDS}})
    assert found.status_code == 200, found.text
    pairs = json.loads(found.content.decode(), object_pairs_hook=list)
    answers = dict(pairs)["answers"]
    assert [name for name, _ in answers] == IDS
    probabilities = dict(dict(answers)["é"])["probabilities"]
    assert [name for name, _ in probabilities] == list(names)


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "<|im_start|>assistant\n<think>", "</think>", "{{ x }}", "\ud83c\udfaf\u200d"]
)
def test_special_tokens_in_every_field_are_text(live, tiny_engine, text):
    text = text.encode("utf-16", "surrogatepass").decode("utf-16")
    questions = {
        text: {"type": "noul", "instructions": text, "criteria": {"true": text, "false": [text]}},
        f"{text}2": {
            "type": "choice",
            "instructions": {text: text},
            "criteria": {text: text, f"{text}b": {text: [text]}},
        },
        f"{text}3": {"type": "score", "instructions": [text], "criteria": [text, {text: text}]},
    }
    asked = {"state": {text: [text, f"a {text} b"]}, "questions": questions}
    found = live.ask(asked)
    assert found.status_code == 200, found.text
    expected = response(tiny_engine.answer(read_request(asked).request), model="flide-demo")
    assert found.json() == json.loads(json.dumps(expected))


@pytest.mark.parametrize("fields", [{}, {"model": "jev-latest"}, {"model": "flide-demo"}, {"x_nonce": 1, "seed": 7}])
def test_takes_the_served_name_the_alias_and_fields_of_clients(live, fields):
    assert live.ask(asked(NOUL, **fields)).json()["model"] == "flide-demo"


def test_an_unknown_model_is_400(live):
    found = live.ask(asked(NOUL, model="gpt"))
    assert (found.status_code, found.json()) == (
        400,
        {"detail": {"error_type": "api_usage_error", "message": "Unknown model: gpt"}},
    )


SECRET = "Mrs Robinson"
SENTENCE = "患者の名前は山田太郎です"
"""In a script without spaces, so that Python takes it for an identifier."""


INVALID = {
    "no JSON": (b'{"state": "Mrs Robinson", ', ["body"]),
    "no UTF-8": (b'"\xff"', ["body"]),
    "empty": (b"", ["body"]),
    "deep": (b"[" * 100_000, ["body"]),
    "no object": (b'["Mrs Robinson"]', ["body"]),
    "NaN": (b'{"state": {"Mrs Robinson": NaN}, "questions": {}}', ["body", "state"]),
    "twice": (b'{"state": {"Mrs Robinson": 1, "Mrs Robinson": 1}, "questions": {}}', ["body", "state"]),
    "no state": ({"questions": {"q": NOUL}}, ["body", "state"]),
    "null state": (asked(NOUL) | {"state": None}, ["body", "state"]),
    "half a pair": (b'{"state": ["\\ud800 Mrs Robinson"], "questions": {"q": {"type": "noul"}}}', ["body", "state"]),
    "no questions": ({"state": SECRET}, ["body", "questions"]),
    "empty questions": ({"state": SECRET, "questions": {}}, ["body", "questions"]),
    "a list": ({"state": SECRET, "questions": [NOUL]}, ["body", "questions"]),
    "half an id": (b'{"state": "", "questions": {"\\ud800": {"type": "noul"}}}', ["body", "questions"]),
    "no type": (asked({"instructions": SECRET}), ["body", "questions", "q", "type"]),
    "unknown type": (asked({"type": SECRET}), ["body", "questions", "q", "type"]),
    "unknown field": (asked({"type": "noul", "criterea": SECRET}), ["body", "questions", "q", "criterea"]),
    "text as a field": (asked({"type": "noul", SECRET: 1}), ["body", "questions", "q"]),
    "a sentence as a type": (asked({"type": SENTENCE}), ["body", "questions", "q", "type"]),
    "a sentence as a field": (asked({"type": "noul", SENTENCE: 1}), ["body", "questions", "q"]),
    "a sentence beside the state": (f'{{"state": "", "questions": {{}}, "{SENTENCE}": NaN}}'.encode(), ["body"]),
    "an infinity": (b'{"state": {"Mrs Robinson": 1e999}, "questions": {}}', ["body", "state"]),
    "an infinity that is ignored": (b'{"state": "", "questions": {}, "x_nonce": [-1e999]}', ["body", "x_nonce"]),
    "no options": (asked({"type": "choice", "criteria": {}}), ["body", "questions", "q", "criteria"]),
    "256 options": (
        asked({"type": "choice", "criteria": {f"{SECRET}{i}": None for i in range(256)}}),
        ["body", "questions", "q", "criteria"],
    ),
    "a number": (asked({"type": "choice", "criteria": {SECRET: 1}}), ["body", "questions", "q", "criteria"]),
    "11 levels": (asked({"type": "score", "criteria": [SECRET] * 11}), ["body", "questions", "q", "criteria"]),
    "null level": (asked({"type": "score", "criteria": [SECRET, None]}), ["body", "questions", "q", "criteria", 1]),
    "map of levels": (asked({"type": "score", "criteria": {"0": SECRET}}), ["body", "questions", "q", "criteria"]),
    "assets": (asked(NOUL, assets={SECRET: {}}), ["body", "assets"]),
    "model": (asked(NOUL, model=None), ["body", "model"]),
    "checkpoints": (asked(NOUL, x_checkpoints=SECRET), ["body", "x_checkpoints"]),
    "a salt": (asked(NOUL, x_cache_salt={SECRET: 1}), ["body", "x_cache_salt"]),
    "a long salt": (asked(NOUL, x_cache_salt=SECRET * 30), ["body", "x_cache_salt"]),
}


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_request_is_422_with_its_place_and_none_of_its_text(live, name, caplog):
    body, location = INVALID[name]
    with caplog.at_level(logging.DEBUG):
        found = live.ask(body)
    assert found.status_code == 422, found.text
    (detail,) = found.json()["detail"]
    assert detail["loc"] == location
    assert isinstance(detail["msg"], str) and isinstance(detail["type"], str) and "input" not in detail
    escaped = ascii(SENTENCE[0])[1:-1]
    assert not any(text in found.text + caplog.text for text in (SECRET, SENTENCE, escaped))


def test_a_request_that_is_too_long_is_400(live):
    found = live.ask({"state": "word " * 200_000, "questions": {"q": NOUL}})
    assert found.status_code == 400
    assert found.json()["detail"]["error_type"] == "max_tokens_exceeded"


@pytest.mark.parametrize(
    ("encoding", "pack"), [("zstd", zstd.compress), ("gzip", gzip.compress), ("identity", lambda body: body)]
)
def test_reads_compressed_bodies(live, encoding, pack):
    found = live.ask(pack(json.dumps(ASKED).encode()), content_encoding=encoding)
    assert found.json() == live.ask(ASKED).json()


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("zstd", b"{}", 422),
        ("gzip", zstd.compress(b"{}"), 422),
        ("br", b"{}", 415),
        ("zstd", zstd.compress(bytes(40_000_000)), 413),
        ("gzip", gzip.compress(bytes(40_000_000)), 413),
        ("identity", bytes(33 * 2**20), 413),
    ],
)
def test_refuses_bodies_that_cannot_be_unpacked(live, encoding, body, status):
    found = live.ask(body, content_encoding=encoding)
    assert found.status_code == status
    assert "detail" in found.json()
    assert live.ask(ASKED).status_code == 200


def test_says_what_each_part_cost(live, tiny_engine):
    found = live.ask(ASKED | {"x_costs": True}).json()
    plan = tiny_engine.plan(read_request(ASKED).request)
    costs = found["x_costs"]
    assert costs["state_tokens"] == plan.state.size
    assert costs["question_tokens"] == dict(zip(ASKED["questions"], plan.branch_lengths.tolist(), strict=True))
    assert all(costs[name] >= 0 for name in ("plan_ms", "wait_ms", "round_ms"))
    assert "x_costs" not in live.ask(ASKED).json()


def test_a_repeated_state_is_not_tokenised_again(live):
    def made() -> float:
        text = live.client.get("/metrics").text
        line = next(line for line in text.splitlines() if line.startswith('flide_text_tokens_total{kind="made"}'))
        return float(line.split()[-1])

    body = asked({"type": "noul", "instructions": "Is this new?"}) | {"state": "Something that nobody has said. " * 40}
    first = live.ask(body)
    before = made()
    again = live.ask(body)
    assert made() == before and first.json() == again.json()
    grown = live.ask(body | {"state": body["state"] + "And more."})
    assert grown.json()["usage"]["input_tokens"] > first.json()["usage"]["input_tokens"]
    assert before < made() < before + first.json()["usage"]["input_tokens"]


def test_images_are_refused(live):
    found = live.client.post("/v1/systemone", files={"request": b"{}"})
    assert (found.status_code, found.json()["detail"]["error_type"]) == (415, "unsupported_media_type")


def test_request_ids_come_back_and_are_made_where_there_is_none(live):
    given = live.ask(ASKED, x_request_id="a-1.B_2")
    assert given.headers["x-request-id"] == given.headers["x-typesafe-request-id"] == "a-1.B_2"
    made = [live.ask(b"", x_request_id=text).headers["x-request-id"] for text in ("", "two words", "x" * 200)]
    assert len(set(made)) == 3 and all(len(one) == 32 for one in made)


def test_models_health_metrics_and_unknown_routes(live):
    (model,) = live.client.get("/v1/models").json()["models"]
    assert (model["name"], model["release_date"]) == ("flide-demo", "2026-11-30") and model["description"]
    health = live.client.get("/health")
    assert (health.status_code, health.json()) == (
        200,
        {"status": "ok", "model": "flide-demo", "dtype": "float32", "batch_invariant": False, "version": "1.2.3"},
    )
    live.ask(ASKED)
    metrics = live.client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        'flide_responses_total{route="/v1/systemone",status="200"}',
        'flide_tokens_total{kind="padding"}',
        "flide_waiting_requests 0.0",
        "flide_open_requests 0.0",
        "flide_wait_seconds_bucket",
        "flide_round_requests_count",
        "flide_capacities_compiled",
        "flide_dispatch_seconds_count",
        'flide_text_tokens_total{kind="kept"}',
        'flide_state_tokens_total{kind="resumed"} 0.0',
    ):
        assert line in metrics.text
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/v1/systemone", 405), ("POST", "/health", 405)):
        found = live.client.request(method, path)
        assert found.status_code == status and isinstance(found.json()["detail"], str)


def test_a_batch_is_answered_in_order_each_on_its_own(live):
    long = {"state": "word " * 200_000, "questions": {"q": NOUL}}
    found = live.batch(ASKED, asked({"type": "nothing"}), asked(NOUL, model="gpt"), long, [], ASKED)
    alone = live.ask(ASKED).json()
    for one in (found[0], found[5]):  # which may have shared a round
        assert one["usage"] == alone["usage"]
        assert_close(one["answers"], alone["answers"])
    assert [one["error"]["status"] for one in found[1:5]] == [422, 400, 400, 422]
    assert found[1]["error"]["detail"][0]["loc"] == ["body", "questions", "q", "type"]
    assert found[4]["error"]["detail"][0]["loc"] == ["body"]


SICK = {
    "a key twice": (b'{"state": {"a": 1, "a": 1}, "questions": {"q": {"type": "noul"}}}', ["body", "state"]),
    "NaN": (b'{"state": [NaN], "questions": {"q": {"type": "noul"}}}', ["body", "state"]),
    "an infinity": (b'{"state": "", "questions": {"q": {"type": "noul"}}, "x_nonce": 1e999}', ["body", "x_nonce"]),
    "a long integer": (b'{"state": [' + b"9" * 5_000 + b'], "questions": {"q": {"type": "noul"}}}', ["body", "state"]),
    "deep": (b'{"state": ' + b"[" * 200 + b"]" * 200 + b', "questions": {"q": {"type": "noul"}}}', ["body", "state"]),
    "itself twice": (b'{"state": "", "state": "", "questions": {"q": {"type": "noul"}}}', ["body", "state"]),
    "no object": (b"NaN", ["body"]),
}


def test_what_is_wrong_inside_one_request_of_a_batch_fails_it_alone(live):
    well = json.dumps(ASKED).encode()
    requests = [body for sick, _ in SICK.values() for body in (sick, well)]
    found = live.client.post("/v1/systemone/batch", content=b'{"requests": [' + b",".join(requests) + b"]}")
    assert found.status_code == 200, found.text
    answered = found.json()["responses"]
    assert all("answers" in one for one in answered[1::2])
    for name, one in zip(SICK, answered[0::2], strict=True):
        assert (one["error"]["status"], one["error"]["detail"][0]["loc"]) == (422, SICK[name][1]), name


@pytest.mark.parametrize(
    ("body", "location"),
    [
        (b'{"requests": [0], "requests": [0]}', ["body", "requests"]),
        (b'{"requests": [0], "x_nonce": NaN}', ["body", "x_nonce"]),
        (b'{"requests": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", ["body"]),  # which no reader gets through
        (b"[NaN]", ["body"]),
        (b"[]", ["body"]),
        (b"{", ["body"]),
        (b"{}", ["body", "requests"]),
        (b'{"requests": []}', ["body", "requests"]),
        (b'{"requests": [' + b"0," * 1_024 + b"0]}", ["body", "requests"]),
    ],
)
def test_a_batch_that_is_none_is_422(live, body, location):
    found = live.client.post("/v1/systemone/batch", content=body)
    assert (found.status_code, found.json()["detail"][0]["loc"]) == (422, location)


def test_a_key_is_asked_for_where_there_are_keys(tiny_engine):
    with serving(tiny_engine, keys=Keys({"right": "alice"})) as live:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            for found in (live.ask(ASKED, **headers), live.client.get("/v1/models", headers=headers)):
                assert found.status_code == 401
                assert found.json()["detail"]["error_type"] == "authentication_error"
        assert live.ask(ASKED, authorization="Bearer right").status_code == 200
        assert live.client.get("/health").status_code == live.client.get("/metrics").status_code == 200


def test_health_says_that_answers_keep_their_bits(tiny_engine):
    engine = copy.copy(tiny_engine)
    engine.config = replace(engine.config, batch_invariant=True)
    with serving(engine) as live:
        assert live.client.get("/health").json()["batch_invariant"] is True


def test_says_that_it_loads():
    with serving(None) as live:
        health, asked = live.client.get("/health"), live.ask(ASKED)
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        assert health.json()["dtype"] is health.json()["batch_invariant"] is None
        assert (asked.status_code, asked.headers["retry-after"]) == (503, "1")
        assert live.client.get("/v1/models").status_code == live.client.get("/metrics").status_code == 200
