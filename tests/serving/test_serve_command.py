"""`flide-jax serve` as a process: it says what it does, ends when it is told to, and how."""

import copy
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

import flide_jax
from flide_jax.cli import main
from flide_jax.engine import Engine
from flide_jax.models.checkpoint_files import CheckpointError
from flide_jax.prompts.plan import Plan
from flide_jax.prompts.planner import Planner
from flide_jax.request import Request
from flide_jax.serving.server import listen
from tests.serving.asked import NOUL, asked

LONG = "word " * 5_000
EXAMPLE = Path(flide_jax.__file__).parent / "demo" / "examples" / "support.json"
COMMAND = [sys.executable, "-m", "flide_jax", "serve", "--demo", "--port", "0", "--capacities", "256"]


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """serve(*arguments) -> the command, with its standard error as lines"""
    keys = tmp_path / "keys"
    keys.write_text("alice k1\n")
    started: list[subprocess.Popen] = []

    def start(*arguments: str) -> subprocess.Popen:
        command = [*COMMAND, "--keys", str(keys), "--name", "support-1", *arguments]
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def line_with(process: subprocess.Popen, text: str) -> str:
    """The next line of standard error that holds this text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"no line with {text!r}")


def url_in(line: str) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found
    return found[0]


def test_serves_until_it_is_told_to_end_and_answers_what_it_has(serve):
    process = serve()
    url = url_in(line_with(process, "loads support-1"))
    loading = httpx.get(f"{url}/health")
    assert (loading.status_code, loading.json()["status"]) == (503, "loading")
    line_with(process, "1 of 1 capacities ready")
    line_with(process, "serves support-1, float32")
    assert httpx.get(f"{url}/health").json()["model"] == "support-1"

    end_with_a_batch_in_work(process, url)


def test_killed_it_leaves_no_process_and_its_successor_gets_the_port(serve):
    process = serve("--workers", "2")
    url = url_in(line_with(process, "serves support-1, float32"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.kill()
    until(lambda: not any(is_running(child) for child in children))

    successor = serve("--workers", "2", "--port", url.rpartition(":")[2])
    line_with(successor, "serves support-1, float32")
    children = Path(f"/proc/{successor.pid}/task/{successor.pid}/children").read_text().split()
    end_with_a_batch_in_work(successor, url)
    assert not any(is_running(child) for child in children)


def is_running(pid: str) -> bool:
    """Whether there is such a process, other than one that waits to be asked for its exit status."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def end_with_a_batch_in_work(process: subprocess.Popen, url: str) -> None:
    """A batch keeps it busy for long enough to be told to end meanwhile."""
    requests = {"requests": [json.loads(EXAMPLE.read_bytes())] * 8}
    headers = {"authorization": "Bearer k1", "x-request-timeout-ms": "60000"}
    with ThreadPoolExecutor(1) as other:
        running = other.submit(httpx.post, f"{url}/v1/systemone/batch", json=requests, headers=headers, timeout=60)
        until(lambda: "flide_open_requests 8.0" in httpx.get(f"{url}/metrics").text)
        process.send_signal(signal.SIGTERM)
        found = running.result()
    assert found.status_code == 200
    assert [len(one["answers"]) for one in found.json()["responses"]] == [4] * 8
    assert process.wait(30) == 0
    assert process.stderr is not None and "Traceback" not in process.stderr.read()


@pytest.fixture
def served(monkeypatch, capsys):
    """served(load, client) -> (exit status, standard error): the command in this process, and what meets it.

    `load` stands for the loading of the engine. `client` is called with the URL, on another thread, when it is there.
    """

    def end(status: int) -> NoReturn:
        raise SystemExit(status)

    monkeypatch.setattr("flide_jax.serving.server.end_at_once", end)

    def run(load: Callable[[], Engine], client: Callable[[str], None] | None) -> tuple[int, str]:
        monkeypatch.setattr("flide_jax.cli.serve.load_engine", lambda arguments: load())
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"

        def meet() -> None:
            if client is None:
                return
            until(lambda: is_up(url))
            client(url)

        with ThreadPoolExecutor(1) as other:
            meeting = other.submit(meet)
            try:
                status = main(["serve", "--demo", "--port", str(port)])
            except SystemExit as ended:
                status = int(str(ended.code))
            meeting.result(30)
        return status, capsys.readouterr().err

    return run


def until(reached: Callable[[], bool], *, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code in (200, 503)
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_while_it_loads(served, number):
    ended = threading.Event()

    def load() -> NoReturn:
        ended.wait(30)
        raise AssertionError("it did not end")

    status, err = served(load, lambda url: os.kill(os.getpid(), number))
    assert status == 0 and " loads flide-demo" in err
    assert not logging.getLogger("flide_jax.access").handlers, "its standard error is not that of what comes after it"
    ended.set()


def test_a_second_interrupt_ends_it_at_once(served, held, monkeypatch):
    engine, device = held
    ends: list[int] = []

    def end(status: int) -> None:
        ends.append(status)
        device.release()  # The process goes on, so the request has to end.
        if status == 0:
            raise SystemExit(0)

    monkeypatch.setattr("flide_jax.serving.server.end_at_once", end)

    def client(url: str) -> None:
        until(lambda: httpx.get(f"{url}/health").status_code == 200)
        with ThreadPoolExecutor(1) as other:
            asked = other.submit(httpx.post, f"{url}/v1/systemone", content=EXAMPLE.read_bytes(), timeout=60)
            device.round(0)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            assert not ends and not asked.done()
            os.kill(os.getpid(), signal.SIGINT)
            asked.result(30)

    served(lambda: engine, client)
    assert ends == [130, 0]


def test_it_does_not_wait_for_work_that_nobody_waits_for(served, tiny_engine, monkeypatch):
    """When it is told to end, the compiler and a planner's thread are busy for clients that have given up."""
    ends: list[int] = []
    begun, done = {"compile", "plan"}, []
    leave = threading.Event()

    def end(status: int) -> NoReturn:
        ends.append(status)
        raise SystemExit(status)

    def work(name: str) -> None:
        begun.discard(name)
        leave.wait(20)
        done.append(name)

    class Busy(Planner):
        def plan(self, request: Request) -> Plan:
            if request.state == LONG:
                work("plan")
            return super().plan(request)

    engine, known = copy.copy(tiny_engine), tiny_engine.planner
    engine.planner = Busy(known.prompt_format, known.max_tokens, known.max_request_tokens)
    engine.prepare = lambda plan: work("compile")
    monkeypatch.setattr("flide_jax.serving.server.end_at_once", end)

    def client(url: str) -> None:
        until(lambda: httpx.get(f"{url}/health").status_code == 200)
        many = {f"q{number}": NOUL for number in range(100)}
        for body in ({"state": "", "questions": many}, asked(NOUL) | {"state": LONG}):
            found = httpx.post(f"{url}/v1/systemone", json=body, headers={"x-request-timeout-ms": "300"})
            assert found.status_code == 504
        until(lambda: not begun)
        os.kill(os.getpid(), signal.SIGTERM)

    status, _ = served(lambda: engine, client)
    assert (status, ends, done) == (0, [0], [])
    leave.set()


def test_a_model_that_cannot_be_used_ends_it_with_a_message(served):
    def load() -> NoReturn:
        raise CheckpointError("model.safetensors: damaged")

    status, err = served(load, None)
    assert status == 2 and err.endswith("flide-jax: error: model.safetensors: damaged\n")


def test_a_lost_device_ends_it_with_a_message(served, tiny_engine):
    broken = copy.copy(tiny_engine)

    def start(plans):
        raise RuntimeError("CUDA_ERROR_ECC")

    broken.start = start

    def client(url: str) -> None:
        until(lambda: httpx.get(f"{url}/health").status_code == 200)
        found = httpx.post(f"{url}/v1/systemone", content=EXAMPLE.read_bytes(), timeout=60)
        assert (found.status_code, found.json()["detail"]["message"]) == (503, "the device is lost")
        until(lambda: httpx.get(f"{url}/health").json()["status"] == "failed")

    status, err = served(lambda: broken, client)
    assert status == 2
    assert err.endswith("error: the device is lost: the device fails known work: RuntimeError: CUDA_ERROR_ECC\n")


def test_connections_send_at_once():
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def fails_with(capsys, *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err.removeprefix("flide-jax: error: ").strip()


def test_says_what_cannot_be_done(capsys, tmp_path):
    assert fails_with(capsys).startswith("which model?")
    assert "no such directory" in fails_with(capsys, "--model", "./nothing")
    assert fails_with(capsys, "--demo", "--keys", str(tmp_path / "none")).endswith("none: No such file or directory")
    (tmp_path / "keys").write_text("a b c")
    assert "line 1: must be KEY or NAME KEY" in fails_with(capsys, "--demo", "--keys", str(tmp_path / "keys"))
    (tmp_path / "keys").write_bytes(b"\xff")
    assert fails_with(capsys, "--demo", "--keys", str(tmp_path / "keys")) == f"{tmp_path / 'keys'}: not UTF-8"
    assert fails_with(capsys, "--demo", "--host", "a..b") == "cannot listen on a..b:8000: this is no name of a host"
    assert "--port: must be a number from 0 to 65535, got '65536'" in fails_with(capsys, "--demo", "--port", "65536")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = fails_with(capsys, "--demo", "--port", str(port))
        assert found == f"cannot listen on 127.0.0.1:{port}: Address already in use"
