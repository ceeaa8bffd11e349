"""Front ends in processes of their own: the same answers, and one server in what it counts, bounds and gives up."""

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import httpx
import pytest

from flide_jax.engine import Engine
from flide_jax.engine.executables import Started
from flide_jax.prompts.plan import Plan
from flide_jax.serving.admission import Limits
from flide_jax.serving.front_ends import FrontEnds
from flide_jax.serving.keys import Keys
from tests.serving.asked import ASKED, CHOICE, NOUL, SCORE, asked, until
from tests.serving.live import fronting
from tests.serving.test_app import IDS

PROCESSES = 2


@dataclass
class Fronted:
    """A server of two front ends.

    Attributes:
        open: whether the device ends its rounds.
    """

    url: str
    server: FrontEnds
    said: list[str]
    open: threading.Event

    def ask(self, body: object, **headers: str) -> httpx.Response:
        """On a connection of its own, which any of the processes may take."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        content = json.dumps(body, ensure_ascii=False).encode()
        return httpx.post(f"{self.url}/v1/systemone", content=content, headers=named, timeout=60)

    def metrics(self) -> str:
        return httpx.get(f"{self.url}/metrics").text

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.server._workers.values()]


def gated(engine: Engine, gate: threading.Event) -> Engine:
    """The engine, whose rounds end while the gate is open."""
    held = copy.copy(engine)

    def start(plans: Sequence[Plan]):
        def finish():
            assert gate.wait(30)
            return engine.logits(plans)

        return Started([0] * len(plans), finish)

    held.start = start  # type: ignore[method-assign]
    return held


@contextlib.contextmanager
def fronted(engine: Engine, **options) -> Iterator[Fronted]:
    gate = threading.Event()
    gate.set()
    with fronting(gated(engine, gate), processes=PROCESSES, **options) as (url, server, said):
        yield Fronted(url, server, said, gate)
        gate.set()


@pytest.fixture(scope="module")
def fronts(tiny_engine) -> Iterator[Fronted]:
    """A server that takes four requests at a time."""
    with fronted(tiny_engine, limits=Limits(open_requests=4)) as found:
        yield found


def test_answers_every_bit_of_one_process(fronts, live):
    bodies = [
        ASKED,
        asked(NOUL),
        {"state": "", "questions": {name: [NOUL, CHOICE, SCORE][i % 3] for i, name in enumerate(IDS)}},
        {"state": "<|im_end|> " * 300, "questions": {"long": CHOICE}},
        asked({"type": "nothing"}),
        asked(NOUL, model="gpt"),
        {"state": "word " * 200_000, "questions": {"q": NOUL}},
    ]
    for body in bodies:
        expected = live.ask(body)
        for _ in range(4):
            found = fronts.ask(body)
            assert (found.status_code, found.content) == (expected.status_code, expected.content)


def test_a_batch_is_answered_too(fronts, live):
    requests = {"requests": [ASKED, asked({"type": "nothing"}), ASKED]}
    found = httpx.post(f"{fronts.url}/v1/systemone/batch", json=requests, timeout=60)
    expected = live.client.post("/v1/systemone/batch", json=requests)
    assert found.status_code == 200
    assert found.json()["responses"][1] == expected.json()["responses"][1]
    assert [list(one) for one in found.json()["responses"]] == [list(one) for one in expected.json()["responses"]]


def count(metrics: str, line: str) -> float:
    return float(next((row.split()[-1] for row in metrics.splitlines() if row.startswith(line)), 0))


def test_counts_are_of_all_processes(fronts):
    line = 'flide_responses_total{route="/v1/systemone",status="200"}'
    before = count(fronts.metrics(), line)
    with ThreadPoolExecutor(4) as clients:
        assert {one.status_code for one in clients.map(lambda _: fronts.ask(ASKED), range(12))} == {200}
    until(lambda: count(fronts.metrics(), line) == before + 12)
    for name in ("flide_plan_seconds_count", "flide_round_seconds_count", "flide_questions_total", "flide_capacities"):
        assert count(fronts.metrics(), name) > 0
    assert count(fronts.metrics(), "flide_open_requests") == 0


def test_who_gives_up_or_leaves_is_taken_out_of_the_queue(fronts):
    fronts.open.clear()
    with ThreadPoolExecutor(1) as other:
        running = other.submit(fronts.ask, ASKED)
        until(lambda: count(fronts.metrics(), "flide_open_requests") == 1)
        until(lambda: count(fronts.metrics(), "flide_waiting_requests") == 0)
        assert fronts.ask(ASKED, x_request_timeout_ms="200").status_code == 504
        until(lambda: count(fronts.metrics(), "flide_waiting_requests") == 0)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{fronts.url}/v1/systemone", json=ASKED, timeout=0.5)
        until(lambda: count(fronts.metrics(), "flide_open_requests") == 1)
        assert count(fronts.metrics(), "flide_waiting_requests") == 0
        fronts.open.set()
        assert running.result(30).status_code == 200
    until(lambda: count(fronts.metrics(), 'flide_responses_total{route="/v1/systemone",status="499"}') >= 1)
    assert count(fronts.metrics(), 'flide_failures_total{status="504"}') == 1


def test_the_queue_is_bounded_over_all_processes(fronts):
    fronts.open.clear()
    with ThreadPoolExecutor(4) as others:
        running = [others.submit(fronts.ask, ASKED) for _ in range(4)]
        until(lambda: count(fronts.metrics(), "flide_open_requests") == 4)
        refused = [fronts.ask(ASKED) for _ in range(6)]
        assert [one.status_code for one in refused] == [429] * 6
        assert all(int(one.headers["retry-after"]) >= 1 for one in refused)
        fronts.open.set()
        assert [one.result(30).status_code for one in running] == [200] * 4


def test_a_front_end_that_is_killed_is_replaced(fronts):
    fronts.open.clear()
    before = set(fronts.pids())
    victim = fronts.pids()[0]
    with ThreadPoolExecutor(3) as others:
        running = [others.submit(lambda: fronts.ask(ASKED)) for _ in range(3)]
        until(lambda: count(fronts.metrics(), "flide_open_requests") == 3)
        os.kill(victim, signal.SIGKILL)
        until(lambda: victim not in fronts.pids())
        # Connections wait for the new one; none is refused, and what the old one had in work is given up.
        found = [others.submit(lambda: httpx.get(f"{fronts.url}/health", timeout=60)) for _ in range(8)]
        fronts.open.set()
        health = [one.result(60).json() for one in found]
        assert {(one["status"], one["batch_invariant"]) for one in health} == {("ok", False)}
        answered = [one for one in running if one.exception(60) is None]
        assert {one.result().status_code for one in answered} <= {200}
    until(lambda: count(fronts.metrics(), "flide_open_requests") == 0)
    assert len(set(fronts.pids()) - before) == 1
    assert fronts.said == ["a front end has ended with signal 9, another takes its place"]
    assert {fronts.ask(ASKED).status_code for _ in range(4)} == {200}


def test_keys_are_known_in_every_process_and_what_is_in_work_is_answered_at_the_end(tiny_engine):
    with fronted(tiny_engine, keys=Keys({"right": "alice"})) as fronts, ThreadPoolExecutor(4) as others:
        assert [fronts.ask(ASKED, authorization="Bearer wrong").status_code for _ in range(4)] == [401] * 4
        fronts.open.clear()
        running = [others.submit(fronts.ask, ASKED, authorization="Bearer right") for _ in range(4)]
        until(lambda: count(fronts.metrics(), "flide_open_requests") == 4)
        fronts.server.stop()
        until(lambda: is_closed(fronts.url))
        fronts.open.set()
        assert [one.result(30).status_code for one in running] == [200] * 4
        until(lambda: fronts.said == ["None"])


def is_closed(url: str) -> bool:
    try:
        httpx.get(f"{url}/health", timeout=1)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:
        return False
    return False


def test_a_lost_device_ends_all_processes(tiny_engine):
    broken = copy.copy(tiny_engine)

    def start(plans):
        raise RuntimeError("CUDA_ERROR_ECC")

    broken.start = start
    broken.config = replace(broken.config, batch_invariant=True)
    with fronting(broken, processes=1) as (url, _, said):
        assert httpx.get(f"{url}/health").json()["batch_invariant"] is True
        found = httpx.post(f"{url}/v1/systemone", json=ASKED, timeout=60)
        assert (found.status_code, found.json()["detail"]["message"]) == (503, "the device is lost")
        until(lambda: httpx.get(f"{url}/health").json()["status"] == "failed")
        until(lambda: said != [])
    assert said == ["the device is lost: the device fails known work: RuntimeError: CUDA_ERROR_ECC"]


def test_front_ends_that_cannot_start_end_the_server(tiny_engine, monkeypatch, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with fronting(tiny_engine, processes=1) as (_, _, said):
        until(lambda: len(said) == 5)
    assert said[-1].startswith("5 front ends have ended within ") and said[-1].endswith(" s, the last with status 3")


def test_a_front_end_knows_no_accelerator():
    program = "import sys, flide_jax.serving.worker; print('jax' in sys.modules, 'prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False False\n", done.stderr
