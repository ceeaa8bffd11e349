"""Requests that share a round: each has its own bits where the engine is batch-invariant, and nobody's NaN."""

import contextlib
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx
import numpy as np
import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.executables import Started
from flide_jax.prompts.plan import Plan
from flide_jax.serving.admission import Limits
from flide_jax.serving.protocol import read_request
from tests.serving.asked import CHOICE, NOUL, SCORE, assert_close, until
from tests.serving.live import fronting, serving

LIMITS = Limits(default_seconds=60.0)


@dataclass
class Watched:
    """A server whose rounds end while the gate is open.

    Attributes:
        url: its root.
        sizes: requests in each round so far.
    """

    url: str
    sizes: list[int]
    gate: threading.Event

    def ask(self, body: dict) -> httpx.Response:
        return httpx.post(f"{self.url}/v1/systemone", json=body, timeout=60)

    def waiting(self) -> int:
        """Requests that wait for a round."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return int(float(next(line for line in lines if line.startswith("flide_waiting_requests ")).split()[1]))

    def together(self, posts: Sequence[Callable[[], httpx.Response]], *, requests: int) -> list[httpx.Response]:
        """The responses to posts of so many requests in all, which wait behind another request until all are there."""
        before = len(self.sizes)
        self.gate.clear()
        with ThreadPoolExecutor(1 + len(posts)) as clients:
            clients.submit(self.ask, {"state": "first", "questions": {"q": NOUL}})
            until(lambda: len(self.sizes) == before + 1)
            running = [clients.submit(post) for post in posts]
            until(lambda: self.waiting() == requests)
            self.gate.set()
            return [one.result(60) for one in running]


@contextlib.contextmanager
def watched(engine: Engine, *, processes: int = 0) -> Iterator[Watched]:
    sizes: list[int] = []
    gate = threading.Event()
    gate.set()
    held = copy.copy(engine)

    def start(plans: Sequence[Plan]) -> Started:
        sizes.append(len(plans))
        started = engine.start(plans)

        def finish() -> list[np.ndarray]:
            assert gate.wait(30)
            return started()

        return Started(started.resumed, finish)

    held.start = start  # type: ignore[method-assign]
    if processes:
        with fronting(held, processes=processes, limits=LIMITS) as (url, _, _):
            yield Watched(url, sizes, gate)
    else:
        with serving(held, limits=LIMITS) as live:
            yield Watched(live.url, sizes, gate)


@pytest.fixture(scope="module")
def invariant_engine(tiny_model) -> Engine:
    """A small round for one request, and a large one for many."""
    config = EngineConfig(dtype="float32", capacities=(128, 1_024), batch_invariant=True)
    engine = Engine.load(tiny_model, config)
    list(engine.prepare_all())
    return engine


@pytest.mark.parametrize("processes", [0, 2])
def test_a_batch_invariant_server_gives_everyone_the_bytes_of_being_alone(invariant_engine, processes):
    kinds = (NOUL, CHOICE, SCORE)
    bodies = [
        {"state": f"Order {number} came late. " * (1 + number % 4), "questions": {"q": kinds[number % 3]}}
        for number in range(16)
    ]
    with watched(invariant_engine, processes=processes) as server:
        alone = [server.ask(body).content for body in bodies]
        assert server.sizes == [1] * 16
        found = server.together([lambda body=body: server.ask(body) for body in bodies], requests=16)
        assert sum(server.sizes) == 33 and max(server.sizes[17:]) > 1, "they were not answered together"
    assert [one.content for one in found] == alone
    assert len(set(alone)) == 16


def story(name: str) -> dict:
    state = " ".join(f"On day {day} {name} sent the lamp back." for day in range(1, 5))
    return {"state": state, "questions": {"urgent": NOUL, "next": CHOICE}}


def test_a_token_without_a_number_fails_who_uses_it_alone_and_leaves_no_checkpoint(growing_engine):
    sick, *well = bodies = [story(name) for name in ("Zebedee", "Ann", "Bob")]
    tokens = [set(growing_engine.plan(read_request(body).request).state.tolist()) for body in bodies]
    bad = tokens[0] - tokens[1] - tokens[2]
    assert bad
    engine = copy.copy(growing_engine)
    engine.executables = executables = copy.copy(engine.executables)
    embedding, *others = healthy = executables.params
    store = executables.growing.store
    engine.clear_checkpoints()
    with watched(engine) as server:
        alone = [server.ask(body).json() for body in well]
        engine.clear_checkpoints()
        executables.params = (embedding.at[np.array(sorted(bad))].set(np.nan), *others)
        batch = {"requests": bodies}
        (found,) = server.together(
            [lambda: httpx.post(f"{server.url}/v1/systemone/batch", json=batch, timeout=60)], requests=3
        )
        assert server.sizes == [1, 1, 1, 3]
        failed, *answered = found.json()["responses"]
        assert (failed["error"]["status"], failed["error"]["detail"]["message"]) == (
            500,
            "the model's logits are not finite",
        )
        for one, expected in zip(answered, alone, strict=True):
            assert one["usage"] == expected["usage"]
            assert_close(one["answers"], expected["answers"])
        assert len(list(store)) == 2 and not any(bad & set(kept.tokens.tolist()) for kept in store)
        # With its numbers back it has nothing to resume, and leaves a checkpoint as the others did.
        executables.params = healthy
        again = [server.ask(sick).json()["usage"].get("x_cached_tokens", 0) for _ in range(2)]
        assert again[0] == 0 < again[1]
