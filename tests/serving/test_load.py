"""Many clients at once, and those that cannot wait."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from flide_jax.request import Choice, Request, Score, YesNo
from flide_jax.serving.admission import Limits
from flide_jax.serving.protocol import response
from tests.serving.asked import ASKED, assert_close, head, until
from tests.serving.live import fronting, serving


def request_of(number: int) -> Request:
    """What the client of this number asks: its own state, questions and options."""
    options = {f"{number}": None, f"{number + 1}": f"or {number + 1}", "none": None}
    questions: dict = {
        f"noul {number}": YesNo(f"Is {number} the number?"),
        f"choice {number}": Choice("Which?", options),
        f"score {number}": Score(None, [f"{level} of {number}" for level in range(2 + number % 5)]),
    }
    chosen = {name: question for i, (name, question) in enumerate(questions.items()) if i <= number % 3}
    return Request(f"The number is {number}. " * (1 + number % 7), chosen)


def body_of(number: int) -> dict:
    """The same for the wire."""
    wire: dict = {}
    for name, question in request_of(number).questions.items():
        match question:
            case YesNo():
                wire[name] = {"type": "noul", "instructions": question.instructions}
            case Choice():
                wire[name] = {"type": "choice", "instructions": "Which?", "criteria": dict(question.options)}
            case _:
                wire[name] = {"type": "score", "criteria": list(question.levels)}
    return {"state": request_of(number).state, "questions": wire}


@pytest.fixture(scope="module")
def expected(demo_engine) -> list[dict]:
    """What each of 64 clients is to be told."""
    answers = demo_engine.answer_all([request_of(number) for number in range(64)])
    return [response(one, model="flide-demo") for one in answers]


@pytest.fixture(params=["here", "in processes", "ahead"])
def loaded(demo_engine, request) -> Iterator[tuple[str, Callable[[], int]]]:
    """The URL of a server of the model that ships, and how to ask for the requests and bytes that it has in work."""
    if request.param == "in processes":
        with fronting(demo_engine, processes=2) as (url, server, _):
            yield url, lambda: int(server._tally.sum())
    else:
        with serving(demo_engine, ahead=request.param == "ahead") as live:
            yield live.url, lambda: live.service.room.requests + live.service.room.size


def test_64_clients_get_their_own_answers_while_others_vanish(loaded, expected):
    url, in_work = loaded
    begin = time.monotonic()

    def stay(number: int, client: httpx.Client) -> list[httpx.Response]:
        found = []
        while not found or time.monotonic() < begin + 1:
            found.append(client.post("/v1/systemone", json=body_of(number)))
        return found

    def vanish(number: int) -> None:
        sent = json.dumps(body_of(number)).encode()
        host, port = url.removeprefix("http://").split(":")
        while time.monotonic() < begin + 1:
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(head(sent) + sent[: number * 40])
                time.sleep(0.05)

    headers = {"x-request-timeout-ms": "60000"}
    with httpx.Client(base_url=url, timeout=60, headers=headers) as client, ThreadPoolExecutor(72) as clients:
        vanishing = [clients.submit(vanish, number) for number in range(8)]
        staying = list(clients.map(lambda number: stay(number, client), range(64)))
        assert all(one.exception() is None for one in vanishing)
    for found, other in zip(staying, expected, strict=True):
        for one in found:
            assert one.status_code == 200, one.text
            assert one.json()["usage"] == other["usage"]
            assert_close(one.json()["answers"], other["answers"])
    until(lambda: in_work() == 0)
    assert "flide_waiting_requests 0.0" in httpx.get(f"{url}/metrics").text


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
        # One that was refused alone, and one in a batch.
        assert 'flide_failures_total{status="429"} 2.0' in live.client.get("/metrics").text
