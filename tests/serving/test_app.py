"""The contract of System One, on a socket, with the demo model. Exact where `jevcompat` allows a tolerance."""

import copy
import gzip
import json
import logging
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from backports import zstd

from flide_jax.request import Choice, Request, Score, YesNo
from flide_jax.serving.admission import Limits
from flide_jax.serving.keys import Keys
from flide_jax.serving.protocol import read_request, response
from flide_jax.verification import TOLERANCES
from tests.serving.live import Live, serving

NOUL = {"type": "noul", "instructions": "Does this need a reply within the hour?"}
CHOICE = {"type": "choice", "instructions": "What next?", "criteria": {"refund": "refund it", "wait": None}}
SCORE = {"type": "score", "instructions": "How angry?", "criteria": ["calm", {"label": "annoyed"}, ["angry"]]}
ASKED = {
    "model": "jev-latest",
    "state": {"order": 1182, "text": "The screen is cracked."},
    "questions": {"urgent": NOUL, "next": CHOICE, "mood": SCORE},
}


def asked(question: object, **fields: object) -> dict:
    return {"state": "s", "questions": {"q": question}, **fields}


def until(reached: Callable[[], bool], *, seconds: float = 10) -> None:
    """Waits for something that another thread does."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_answers_what_the_engine_answers_in_every_bit(live, demo_engine):
    found = live.ask(ASKED)
    assert (found.status_code, found.headers["content-type"]) == (200, "application/json")
    expected = response(demo_engine.answer(read_request(ASKED).request), model="flide-demo")
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
def test_special_tokens_in_every_field_are_text(live, demo_engine, text):
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
    expected = response(demo_engine.answer(read_request(asked).request), model="flide-demo")
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
    assert SECRET not in found.text + caplog.text


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
        {"status": "ok", "model": "flide-demo", "dtype": "float32", "version": "1.2.3"},
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
    ):
        assert line in metrics.text
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/v1/systemone", 405), ("POST", "/health", 405)):
        found = live.client.request(method, path)
        assert found.status_code == status and isinstance(found.json()["detail"], str)


def test_a_batch_is_answered_in_order_each_on_its_own(live):
    long = {"state": "word " * 200_000, "questions": {"q": NOUL}}
    found = live.batch(ASKED, asked({"type": "nothing"}), asked(NOUL, model="gpt"), long, [], ASKED)
    assert found[0] == found[5] == live.ask(ASKED).json()
    assert [one["error"]["status"] for one in found[1:5]] == [422, 400, 400, 422]
    assert found[1]["error"]["detail"][0]["loc"] == ["body", "questions", "q", "type"]
    assert found[4]["error"]["detail"][0]["loc"] == ["body"]


@pytest.mark.parametrize(
    ("body", "location"),
    [
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


def test_a_key_is_asked_for_where_there_are_keys(demo_engine):
    with serving(demo_engine, keys=Keys({"right": "alice"})) as live:
        for headers in ({}, {"authorization": "Bearer wrong"}):
            for found in (live.ask(ASKED, **headers), live.client.get("/v1/models", headers=headers)):
                assert found.status_code == 401
                assert found.json()["detail"]["error_type"] == "authentication_error"
        assert live.ask(ASKED, authorization="Bearer right").status_code == 200
        assert live.client.get("/health").status_code == live.client.get("/metrics").status_code == 200


def test_says_that_it_loads():
    with serving(None) as live:
        health, asked = live.client.get("/health"), live.ask(ASKED)
        assert (health.status_code, health.json()["status"], health.json()["dtype"]) == (503, "loading", None)
        assert (asked.status_code, asked.headers["retry-after"]) == (503, "1")
        assert live.client.get("/v1/models").status_code == live.client.get("/metrics").status_code == 200


def test_64_clients_get_their_own_answers(live, demo_engine):
    def request(number: int) -> Request:
        questions: dict = {
            f"noul {number}": YesNo(f"Is {number} the number?"),
            f"choice {number}": Choice(
                "Which?", {f"{number}": None, f"{number + 1}": f"or {number + 1}", "none": None}
            ),
            f"score {number}": Score(None, [f"{level} of {number}" for level in range(2 + number % 5)]),
        }
        chosen = {name: question for i, (name, question) in enumerate(questions.items()) if i <= number % 3}
        return Request(f"The number is {number}. " * (1 + number % 7), chosen)

    def body(number: int) -> dict:
        wire: dict = {}
        for name, question in request(number).questions.items():
            match question:
                case YesNo():
                    wire[name] = {"type": "noul", "instructions": question.instructions}
                case Choice():
                    wire[name] = {"type": "choice", "instructions": "Which?", "criteria": dict(question.options)}
                case _:
                    wire[name] = {"type": "score", "criteria": list(question.levels)}
        return {"state": request(number).state, "questions": wire}

    with ThreadPoolExecutor(64) as clients:
        found = list(clients.map(lambda number: live.ask(body(number)), range(64)))
    expected = [
        response(answers, model="flide-demo") for answers in demo_engine.answer_all([request(n) for n in range(64)])
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.status_code == 200
        assert one.json()["usage"] == other["usage"]
        assert_close(one.json()["answers"], other["answers"])


def assert_close(found: dict, expected: dict) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_close(found[name], value)
        elif isinstance(value, float):
            # A confidence or score is a sum over probabilities, with weights of at most 10.
            assert abs(found[name] - value) <= 10 * TOLERANCES["float32"]
        elif name != "choice":
            assert found[name] == value


def test_no_answer_in_time_is_504_and_leaves_the_queue(held):
    engine, device = held
    with serving(engine) as live, ThreadPoolExecutor(1) as other:
        running = other.submit(live.ask, ASKED)
        device.round(0)
        found = live.ask(ASKED, x_request_timeout_ms="100")
        assert (found.status_code, found.json()["detail"]) == (
            504,
            {"error_type": "timeout_error", "message": "no answer within 0.1 s"},
        )
        batch = live.client.post(
            "/v1/systemone/batch", json={"requests": [ASKED]}, headers={"x-request-timeout-ms": "50"}
        )
        assert batch.json()["responses"][0]["error"]["status"] == 504
        until(lambda: "flide_waiting_requests 0.0" in live.client.get("/metrics").text)
        device.release()
        assert running.result(30).status_code == 200
        assert len(device.rounds) == 1


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_time_that_is_none_is_400(live, value):
    found = live.ask(ASKED, x_request_timeout_ms=value)
    assert (found.status_code, found.json()["detail"]["error_type"]) == (400, "api_usage_error")


def test_a_full_queue_is_429_with_a_time_to_come_back(held):
    engine, device = held
    with serving(engine, limits=Limits(open_requests=2)) as live, ThreadPoolExecutor(2) as others:
        running = [others.submit(live.ask, ASKED) for _ in range(2)]
        until(lambda: live.service.room.requests == 2)
        found = live.ask(ASKED)
        assert (found.status_code, found.headers["retry-after"]) == (429, "1")
        assert live.client.get("/health").status_code == 200
        device.release()
        assert [one.result(30).status_code for one in running] == [200, 200]
        found = live.batch(*[ASKED] * 3)
        assert [one.get("error", {}).get("status") for one in found] == [None, None, 429]


def head(body: bytes, **headers: str) -> bytes:
    lines = {"host": "x", "content-length": str(len(body)), **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST /v1/systemone HTTP/1.1\r\n{text}\r\n".encode()


def test_a_client_that_leaves_takes_its_request_with_it(held):
    engine, device = held
    body = json.dumps(ASKED).encode()
    with serving(engine) as live, ThreadPoolExecutor(1) as other:
        running = other.submit(live.ask, ASKED)
        device.round(0)
        with socket.create_connection(live.host_and_port) as connection:
            connection.sendall(head(body) + body)
            until(lambda: "flide_waiting_requests 1.0" in live.client.get("/metrics").text)
        until(lambda: live.service.room.requests == 1)
        assert "flide_waiting_requests 0.0" in live.client.get("/metrics").text
        device.release()
        assert running.result(30).status_code == 200
        assert len(device.rounds) == 1
        assert 'flide_responses_total{route="/v1/systemone",status="499"} 1.0' in live.client.get("/metrics").text


def test_a_body_that_does_not_come_is_408(demo_engine):
    with serving(demo_engine, limits=Limits(body_seconds=0.2)) as live:
        with socket.create_connection(live.host_and_port) as connection:
            connection.sendall(head(bytes(100)) + b"{")
            connection.settimeout(10)
            found = b""
            while part := connection.recv(4_096):
                found += part
        assert found.startswith(b"HTTP/1.1 408 ")
        assert live.service.room.requests == 0
        assert live.ask(ASKED).status_code == 200


def test_a_client_that_leaves_within_its_body_leaves_nothing(live):
    with socket.create_connection(live.host_and_port) as connection:
        connection.sendall(head(bytes(100)) + b"{")
        until(lambda: live.service.room.requests == 1)
    until(lambda: live.service.room.requests == 0 and live.service.room.size == 0)


def test_bytes_that_are_no_http_harm_nobody(live):
    with socket.create_connection(live.host_and_port) as connection:
        connection.sendall(b"\x16\x03\x01\x00nonsense\r\n\r\n")
        connection.settimeout(10)
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    assert live.ask(ASKED).status_code == 200


def test_a_request_with_logits_that_are_not_finite_fails_alone(demo_engine, caplog):
    broken = copy.copy(demo_engine)

    def start(plans):
        found = demo_engine.logits(plans)
        sick = demo_engine.plan(Request("sick", {"q": YesNo()})).state
        return lambda: [
            np.full_like(logits, np.nan) if np.array_equal(plan.state, sick) else logits
            for plan, logits in zip(plans, found, strict=True)
        ]

    broken.start = start
    with serving(broken) as live, caplog.at_level(logging.DEBUG):
        sick, well = live.batch({"state": "sick", "questions": {"q": {"type": "noul"}}}, ASKED)
        assert (sick["error"]["status"], sick["error"]["detail"]["error_type"]) == (500, "internal_error")
        assert "answers" in well


def test_a_request_that_the_device_fails_with_fails_alone(demo_engine):
    broken = copy.copy(demo_engine)
    poison = demo_engine.plan(Request("poison", {"q": YesNo()})).state

    def start(plans):
        if any(np.array_equal(plan.state, poison) for plan in plans):
            raise MemoryError("RESOURCE_EXHAUSTED")
        return demo_engine.start(plans)

    broken.start = start
    with serving(broken) as live:
        poisoned = {"state": "poison", "questions": {"q": {"type": "noul"}}}
        found = live.batch(*[ASKED] * 3, poisoned, *[ASKED] * 3)
        assert [one.get("error", {}).get("status") for one in found] == [None] * 3 + [500] + [None] * 3
        assert live.client.get("/health").status_code == 200


def test_a_lost_device_ends_the_server(demo_engine):
    broken = copy.copy(demo_engine)

    def start(plans):
        raise RuntimeError("CUDA_ERROR_ECC_UNCORRECTABLE")

    broken.start = start
    with serving(broken) as live:
        assert live.ask(ASKED).status_code == 503
        until(lambda: live.service.status == "failed")
        health = live.client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "failed")
        assert live.service.check() == "the device fails known work: RuntimeError: CUDA_ERROR_ECC_UNCORRECTABLE"
        until(lambda: is_closed(live))


def is_closed(live: Live) -> bool:
    try:
        socket.create_connection(live.host_and_port, timeout=1).close()
    except OSError:
        return True
    return False


def test_a_server_that_is_stopped_answers_what_it_has(held):
    engine, device = held
    with serving(engine) as live, ThreadPoolExecutor(3) as others:
        running = [others.submit(live.ask, ASKED) for _ in range(3)]
        until(lambda: live.service.room.requests == 3)
        live.server.stop()
        assert live.service.status == "draining"
        until(lambda: is_closed(live))
        device.release()
        assert [one.result(30).status_code for one in running] == [200] * 3


def test_a_defect_says_nothing_of_the_request(demo_engine, caplog):
    broken = copy.copy(demo_engine)

    def plan(request):
        raise KeyError(request.state)

    with serving(broken) as live, caplog.at_level(logging.DEBUG):
        broken.plan = plan
        found = live.ask(asked(NOUL) | {"state": SECRET})
    assert (found.status_code, found.json()["detail"]["error_type"]) == (500, "internal_error")
    assert "defect: KeyError in request" in caplog.text and "test_app.py" in caplog.text
    assert SECRET not in found.text + caplog.text
