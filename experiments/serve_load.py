"""What does a served model take for a request, and how many requests does it answer a second?

A closed loop of clients, each with one connection, over HTTP to `flide-jax serve` in a process of its own. The texts
are random words whose token counts under the model's tokenizer are those of a token profile (`profiles/`), and every
text is sent once, so nothing is kept from before. The demo model is served (the default on a CPU), or random weights of
a true size, from a checkpoint that is written to a temporary folder. Prediction: with one client, HTTP, words and
tokens add at most 1 ms to the engine's time for RACE, 2 ms for MultiRC and 6 ms for QuALITY with all questions. How to
read the result: `median` and `p99` are a client's milliseconds; `engine` is the mean of what the scheduler saw, laying
out, dispatching and running a round; `added` is the rest of the mean, of which waiting is part when clients are many;
`paper` is its Table 3 (0.8B on an H200: alone with one client, requests a second with 64).

Run as `python -m experiments.serve_load`. Records go to `results/serve_load.jsonl`.
"""

import argparse
import contextlib
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import records
from experiments.arguments import existing_directory, positive
from experiments.measured_model import DEMO
from experiments.random_checkpoint import add_model, size_by_backend, write_checkpoint
from experiments.random_requests import PROFILE_OF, PROFILES, read_profile
from flide_jax.engine import EngineConfig
from flide_jax.engine.model_directory import demo_directory
from flide_jax.prompts.format import PromptFormat
from flide_jax.request import Request, YesNo
from pallas_kernels.trees import Request as Lengths

# Milliseconds alone, and requests a second of 64 clients, of this size.
PAPER_SIZE = "0.8B"
PAPER = {
    "race-one": (6.2, 672), "quality-one": (17.9, 96.5), "decision-index": (7.1, 236),
    "race-all": (7.2, 540), "quality-all": (37.7, 39.1), "multirc": (16.8, 124),
}  # fmt: skip


class Writer:
    """Texts of so many tokens under one tokenizer: every word is one token."""

    def __init__(self, directory: Path) -> None:
        """The tokenizer and template are those of a checkpoint directory."""
        prompt_format = PromptFormat.load(directory)
        vocabulary = json.loads((directory / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
        words = [token[1:] for token in vocabulary if re.fullmatch("Ġ[a-z]{3,8}", token)]
        alone = prompt_format.tokenizer.encode(words)
        self._words = [word for word, ids in zip(words, alone, strict=True) if ids.size == 1]
        probe = prompt_format.plan(Request("word", {"q": YesNo("word?")}))
        self._around_state, self._around_question = probe.state.size - 1, int(probe.branch_lengths[0]) - 1

    def body(self, lengths: Lengths, rng: random.Random) -> bytes:
        """A request of these lengths, as near as the words around a state and a question let it come."""
        questions = {
            f"q{i}": {"type": "noul", "instructions": f"{self._text(tokens - self._around_question, rng)}?"}
            for i, tokens in enumerate(lengths.branches)
        }
        state = self._text(lengths.state - self._around_state, rng)
        return json.dumps({"state": state, "questions": questions}).encode()

    def _text(self, tokens: int, rng: random.Random) -> str:
        return " ".join(rng.choices(self._words, k=max(1, tokens)))


class Client(threading.Thread):
    """Sends bodies on one connection, one after another, until they or the time are at an end.

    Attributes:
        seconds: of each request.
        tokens: of each, as the server counts them.
    """

    def __init__(self, port: int, bodies: Iterator[bytes], end: float) -> None:
        super().__init__(daemon=True)
        self.seconds: list[float] = []
        self.tokens: list[int] = []
        self._bodies = bodies
        self._end = end
        self._connection = socket.create_connection(("127.0.0.1", port))
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self) -> None:
        with self._connection:
            while time.perf_counter() < self._end and (body := next(self._bodies, None)) is not None:
                begin = time.perf_counter()
                head, content = exchange(self._connection, "POST /v1/systemone", body)
                self.seconds.append(time.perf_counter() - begin)
                if b" 200 " not in head.split(b"\r\n", 1)[0]:
                    raise RuntimeError(content.decode())
                self.tokens.append(json.loads(content)["usage"]["input_tokens"])


def exchange(connection: socket.socket, what: str, body: bytes = b"") -> tuple[bytes, bytes]:
    """Head and body of the response to one request. By hand, since a client's own time would count as the server's."""
    head = f"{what} HTTP/1.1\r\nhost: x\r\nx-request-timeout-ms: 600000\r\ncontent-length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    found = b""
    while b"\r\n\r\n" not in found:
        found += connection.recv(65_536)
    answered, _, content = found.partition(b"\r\n\r\n")
    size = re.search(rb"content-length: (\d+)", answered)
    assert size is not None
    while len(content) < int(size[1]):
        content += connection.recv(65_536)
    return answered, content


class Shared:
    """One iterator for many threads."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self._values = iter(values)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            return next(self._values)


@contextlib.contextmanager
def served(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """The port of a server, which is there for as long as the context lasts."""
    command = [sys.executable, "-m", "flide_jax", "serve", "--port", "0", *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said: list[str] = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"http://127\.0\.0\.1:(\d+) serves ", line):
                    break
            else:
                raise RuntimeError("".join(said[-5:]))
            rest = threading.Thread(target=process.stderr.read, daemon=True)  # or it would stop writing
            rest.start()
            yield int(found[1])
        finally:
            process.terminate()
            process.wait(60)
        rest.join()


def counted(port: int) -> dict[str, float]:
    """The sums and counts of the server's metrics."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        _, text = exchange(connection, "GET /metrics")
    lines = [line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def counted_all(port: int, before: dict[str, float], requests: int) -> dict[str, float]:
    """The same when so many requests more are in them: front ends tell of theirs now and then. Raises RuntimeError."""
    end = time.monotonic() + 5.0
    while time.monotonic() < end:
        found = counted(port)
        if found["flide_plan_seconds_count"] - before["flide_plan_seconds_count"] >= requests:
            return found
        time.sleep(0.05)
    raise RuntimeError(f"the server's metrics do not count {requests} requests that it answered")


def measure(port: int, bodies: Sequence[bytes], clients: int, seconds: float) -> dict[str, Any]:
    """Latencies of one load, and what the server saw of it."""
    before = counted(port)
    shared, begin = Shared(bodies), time.perf_counter()
    threads = [Client(port, shared, begin + seconds) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - begin
    latencies = [1e3 * one for thread in threads for one in thread.seconds]
    if len(latencies) < clients:
        raise RuntimeError(f"{len(latencies)} of {clients} clients got an answer")
    after = counted_all(port, before, len(latencies))

    def mean(name: str, scale: float = 1e3) -> float:
        count = after[f"{name}_count"] - before[f"{name}_count"]
        return scale * (after[f"{name}_sum"] - before[f"{name}_sum"]) / count

    engine = mean("flide_dispatch_seconds") + mean("flide_round_seconds")
    return {
        "clients": clients,
        "requests": len(latencies),
        "tokens": statistics.mean(count for thread in threads for count in thread.tokens),
        "median_ms": statistics.median(latencies),
        "p99_ms": float(np.quantile(latencies, 0.99)),
        "samples_ms": [round(one, 2) for one in latencies],
        "requests_per_second": len(latencies) / took,
        "engine_ms": engine,
        "dispatch_ms": mean("flide_dispatch_seconds"),
        "added_ms": statistics.mean(latencies) - engine,
        "plan_ms": mean("flide_plan_seconds"),
        "wait_ms": mean("flide_wait_seconds"),
        "requests_per_round": mean("flide_round_requests", 1.0),
    }


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_model(parser)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2], help="front-end processes")
    parser.add_argument("--clients", type=positive, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--workload", nargs="+", choices=[*PROFILE_OF], default=[*PROFILE_OF])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each load, at most")
    parser.add_argument("--requests", type=positive, default=2_000, help="of each load, at most")
    parser.add_argument(
        "--capacities", type=positive, nargs="+", default=[], help="as for serve; compiled ahead, all at once"
    )
    parser.add_argument("--bundle", type=existing_directory, help="made of these before; nothing is compiled")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "serve_load.jsonl")
    options = parser.parse_args(arguments)
    options.size = options.size or size_by_backend()
    if options.bundle and not options.capacities:
        parser.error("--bundle needs the --capacities that are to be taken from it")
    return options


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints a table; appends one record for each number of processes, workload and number of clients."""
    options = parse(arguments)
    config = EngineConfig(capacities=tuple(options.capacities) or None)
    found: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for record in run(options, Path(folder)):
                found.append(record)
                print(_line(record), flush=True)
    finally:
        # When no server holds the device any more, for a record names it; and when it was interrupted, too.
        found = [records.append(options, record, config=config) for record in found]
    return found


def run(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """The records of all loads, one server after another."""
    directory, model = demo_directory(), ["--demo"]
    if options.size != DEMO:
        directory = folder / options.size
        write_checkpoint(directory, options.size, options.tokenizer)
        model = ["--model", str(directory)]
    if options.capacities:
        model += ["--capacities", *map(str, options.capacities)]
        compiled = ["--bundle", str(options.bundle or folder / "bundle")]
        if options.bundle is None:
            subprocess.run([sys.executable, "-m", "flide_jax", "warm", *model, *compiled], check=True)
        model += compiled
    writer = Writer(directory)
    print("workers workload        clients requests  tokens   median      p99  requests/s   engine    added   paper")
    for workers in options.workers:
        with served([*model, "--workers", str(workers)]) as port:
            for record in loads(options, writer, port):
                yield record | {"model": options.size, "workers": workers}


def loads(options: argparse.Namespace, writer: Writer, port: int) -> Iterator[dict[str, Any]]:
    """Every workload with every number of clients, on one server."""
    rng = random.Random(records.SEED)
    for workload in options.workload:
        profile = read_profile(PROFILES / f"{PROFILE_OF[workload]}.json")

        def bodies(count: int, profile: list[Lengths] = profile) -> list[bytes]:
            return [writer.body(profile[i % len(profile)], rng) for i in range(count)]

        rate = 1.0 / measure(port, bodies(8), 1, 60.0)["median_ms"]  # it warms up, too; requests a millisecond
        for clients in options.clients:
            # Texts for four times what one client would ask for in this time; rounds that are shared are no faster.
            many = max(2 * clients, min(options.requests, int(4e3 * rate * options.seconds)))
            yield measure(port, bodies(many), clients, options.seconds) | {"workload": workload}


def _line(record: dict[str, Any]) -> str:
    alone, queued = PAPER[record["workload"]]
    beside = {1: f"{alone} ms", 64: f"{queued}/s"} if record["model"] == PAPER_SIZE else {}
    paper = beside.get(record["clients"], "")
    return (
        "{workers:7} {workload:15} {clients:7} {requests:8} {tokens:7.0f} {median_ms:8.2f} {p99_ms:8.2f} "
        "{requests_per_second:11.1f} {engine_ms:8.2f} {added_ms:8.2f}".format_map(record)
        + f"   {paper}"
    )


if __name__ == "__main__":
    main()
