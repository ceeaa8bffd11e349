"""`flide-jax ask --url`: what the command prints is what it prints with the model here."""

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from flide_jax.cli import main
from flide_jax.prompts.plan import Plan
from flide_jax.request import Choice, Request, RequestError, Score, YesNo
from flide_jax.serving.device import Outcome
from flide_jax.serving.keys import Keys
from flide_jax.serving.local_device import LocalDevice
from flide_jax.serving.protocol import parse_request, read_response, response
from tests.serving.asked import ASKED, NOUL, asked
from tests.serving.live import serving


@pytest.fixture
def rows(tmp_path) -> Path:
    """Requests, and some that are none."""
    long = {"state": "word " * 200_000, "questions": {"q": NOUL}}
    broken = asked({"type": "score", "criteria": ["x"] * 11})
    values = [json.dumps(value).encode() for value in (ASKED, broken, asked(NOUL, model="gpt"), long)]
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join([*values, b"{", *values[:1] * 20]))
    return file


def test_lines_are_those_of_the_model_and_failures_stand_in_their_place(live, rows, tiny_engine, capsys):
    assert main(["ask", str(rows), "--url", live.url, "--json"]) == 2
    out, err = capsys.readouterr()
    first, broken, unknown, long, no_json, *rest = [json.loads(line) for line in out.splitlines()]
    request = parse_request(json.dumps(ASKED).encode()).request
    expected = response(tiny_engine.answer(request), model="flide-demo")
    assert first["answers"]["urgent"] == pytest.approx(expected["answers"]["urgent"], abs=1e-4)
    assert [list(one["answers"]) for one in (first, *rest)] == [list(ASKED["questions"])] * 21
    assert broken["error"] | {"message": ""} == {"row": 2, "location": ["questions", "q", "criteria"], "message": ""}
    assert unknown["error"]["message"] == "the server says 400: Unknown model: gpt"
    assert long["error"]["message"].startswith("the server says 400: the state and its longest question have ")
    assert (no_json["error"]["row"], no_json["error"]["location"]) == (5, [])
    assert [line.split(": ")[2] for line in err.splitlines()] == [f"{rows}:{number}" for number in (2, 3, 4, 5)]


def test_the_table_is_that_of_the_model(live, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    file = tmp_path / "one.json"
    file.write_text(json.dumps(ASKED))
    assert main(["ask", str(file), "--url", live.url]) == 0
    out, err = capsys.readouterr()
    assert err == "" and out.startswith("one.json") and ", flide-demo" in out.splitlines()[0]
    assert all(word in out for word in ("urgent", "refund", "wait", "0: calm", "confidence"))


def test_what_is_said_of_checkpoints_reaches_the_server(live, tmp_path, capsys, monkeypatch):
    told: list[tuple[str, Plan]] = []
    run = LocalDevice.run

    async def tell(device: LocalDevice, plan: Plan, namespace: str) -> Outcome:
        told.append((namespace, plan))
        return await run(device, plan, namespace)

    monkeypatch.setattr(LocalDevice, "run", tell)
    file = tmp_path / "rows.jsonl"
    options = [{}, {"x_cache_salt": "one"}, {"x_checkpoints": False}, {"x_checkpoints": 0}]
    file.write_text("\n".join(json.dumps(ASKED | {"state": str(i)} | one) for i, one in enumerate(options)))
    assert main(["ask", str(file), "--url", live.url, "--json"]) == 2
    assert sorted((plan.salt is None, plan.salt) for _, plan in told) == [(False, ""), (False, "one"), (True, None)]
    assert f"{file}:4: x_checkpoints: must be a boolean, got a number" in capsys.readouterr().err


def test_the_key_comes_from_the_environment(tiny_engine, tmp_path, capsys, monkeypatch):
    file = tmp_path / "one.json"
    file.write_text(json.dumps(ASKED))
    with serving(tiny_engine, keys=Keys({"right": "alice"})) as live:
        assert main(["ask", str(file), "--url", live.url]) == 2
        assert "the server says 401: a key is needed" in capsys.readouterr().err
        monkeypatch.setenv("FLIDE_JAX_KEY", "right")
        assert main(["ask", str(file), "--url", live.url]) == 0


def test_comes_back_when_the_server_is_busy(tmp_path, capsys):
    answer = json.dumps(
        {
            "model": "m",
            "answers": {"q": {"type": "noul", "noul": 0.5}},
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
    ).encode()
    asked_times: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked_times.append(self.path)
            self.send_response(429 if len(asked_times) < 3 else 200)
            self.send_header("retry-after", "0")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            pass

    file = tmp_path / "one.json"
    file.write_text(json.dumps(asked(NOUL)))
    with HTTPServer(("127.0.0.1", 0), Busy) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever)
        assert main(["ask", str(file), "--url", f"http://127.0.0.1:{server.server_port}/prefix", "--json"]) == 0
        server.shutdown()
    assert asked_times == ["/prefix/v1/systemone"] * 3
    assert json.loads(capsys.readouterr().out)["answers"]["q"]["noul"] == 0.5


def fails_with(capsys, *arguments: object) -> str:
    assert main(["ask", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err.removeprefix("flide-jax: error: ").strip()


def test_says_what_cannot_be_done(capsys, tmp_path, monkeypatch):
    file = tmp_path / "one.json"
    file.write_text(json.dumps(ASKED))
    assert fails_with(capsys, file, "--url", "127.0.0.1:8000").startswith("--url must begin with http://")
    assert fails_with(capsys, file, "--url", "http://x:y") == "http://x:y: Invalid port: 'y'"
    assert "--dtype is about a model here" in fails_with(capsys, file, "--url", "http://x", "--dtype", "float32")
    assert "--demo is about a model here" in fails_with(capsys, file, "--url", "http://x", "--demo")
    found = fails_with(capsys, file, "--url", "http://x", "--batch-invariant")
    assert "--batch-invariant is about a model here" in found
    assert "which requests?" in fails_with(capsys, "--url", "http://127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    assert fails_with(capsys, file, "--url", url) == f"{url}: [Errno 111] Connection refused"
    monkeypatch.setenv("FLIDE_JAX_KEY", "schl\u00fcssel")
    assert fails_with(capsys, file, "--url", url) == "FLIDE_JAX_KEY: a key is ASCII"


def test_asking_a_server_imports_no_engine(tmp_path):
    program = "import sys; from flide_jax.cli import main; print(main(), 'jax' in sys.modules)"
    (tmp_path / "one.json").write_text(json.dumps(ASKED))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    arguments = ["ask", str(tmp_path / "one.json"), "--url", url]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
    assert done.stdout == "2 False\n", done.stderr


REQUEST = Request("s", {"n": YesNo(), "c": Choice(None, {"a": None, "b": None}), "s": Score(None, ["low", "high"])})


def test_a_response_is_read_as_it_was_written(tiny_engine):
    answers = tiny_engine.answer(REQUEST)
    found = read_response(REQUEST, json.loads(json.dumps(response(answers, model="m"))))
    assert dict(found) == dict(answers)
    assert found.usage.input_tokens == answers.usage.input_tokens


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.update(answers=None),
        lambda r: r.pop("usage"),
        lambda r: r["usage"].update(input_tokens=1.5),
        lambda r: r["answers"].pop("n"),
        lambda r: r["answers"]["n"].update(noul=None),
        lambda r: r["answers"]["c"]["probabilities"].pop("a"),
        lambda r: r["answers"]["c"].update(choice="z"),
        lambda r: r["answers"]["s"].update(probabilities=[0.5, 0.5]),
    ],
)
def test_a_response_that_is_none_is_refused(tiny_engine, change):
    value = json.loads(json.dumps(response(tiny_engine.answer(REQUEST), model="m")))
    change(value)
    with pytest.raises(RequestError, match="^response"):
        read_response(REQUEST, value)
