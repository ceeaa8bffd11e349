"""The server without HTTP: bodies in, responses out, by way of planner threads and the scheduler."""

import asyncio
import contextlib
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from flide_jax.engine import Engine
from flide_jax.engine.ablation import Logits
from flide_jax.engine.scheduler import DeviceLostError, RoundError, Scheduler, SchedulerConfig
from flide_jax.layout import Demand
from flide_jax.prompts.plan import Plan
from flide_jax.request import Request, RequestError, YesNo, json_kind
from flide_jax.serving import refusals, strict_json
from flide_jax.serving.admission import Limits, Room, Share
from flide_jax.serving.bodies import unpack
from flide_jax.serving.metrics import Metrics
from flide_jax.serving.protocol import WireRequest, read_request, response
from flide_jax.serving.refusals import Refusal

ALIAS = "jev-latest"
"""The name of a model that clients send by default."""
PROBE = Request("The device works.", {"works": YesNo("Does it?")})


@dataclass(frozen=True)
class Call:
    """One HTTP request for answers.

    Attributes:
        body: as it was sent.
        encoding: its content encoding.
        namespace: whose it is.
        share: what it holds of the server's room.
        deadline: when it is given up, in the event loop's time.
        seconds: how long that was from its beginning.
    """

    body: bytes
    encoding: str | None
    namespace: str
    share: Share
    deadline: float
    seconds: float


class Service:
    """Answers bodies of System One. Its coroutines run on one event loop.

    Attributes:
        name: what the model is called.
        dtype: of the engine, None while it loads.
        status: "loading", "ok", "draining" or "failed".
        limits: what it takes.
        metrics: where it counts.
        room: requests in work.
    """

    def __init__(self, name: str, *, limits: Limits | None = None) -> None:
        self.name = name
        self.dtype: str | None = None
        self.status = "loading"
        self.limits = limits or Limits()
        self.metrics = Metrics()
        self.room = Room(self.limits, refuse=self._busy)
        self._engine: Engine | None = None
        self._scheduler: Scheduler | None = None
        self._planners = ThreadPoolExecutor(min(4, (os.cpu_count() or 1) + 1), thread_name_prefix="flide-planner")
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="flide-compiler")
        self.metrics.watch(
            opened=lambda: self.room.requests,
            waiting=lambda: self._scheduler.waiting if self._scheduler else (0, 0),
            compiled=lambda: len(self._engine.executables.compiled) if self._engine else 0,
        )

    def start(self, engine: Engine, *, config: SchedulerConfig) -> None:
        """Answer with this engine from now on."""
        self._engine = engine
        self._scheduler = Scheduler(
            engine.start,
            engine.executables.ladder,
            probe=engine.plan(PROBE),
            config=config,
            observe=self.metrics.ran,
        )
        self.dtype = engine.dtype.name
        self.status = "ok"

    def check(self) -> str | None:
        """Why the device is lost, None while it works; to be called from time to time."""
        if self._scheduler is None:
            return None
        self._scheduler.check()
        if self._scheduler.lost is not None:
            self.status = "failed"
        return self._scheduler.lost

    def check_status(self) -> None:
        """Raises Refusal: nothing can be answered yet, or any more."""
        if self.status in ("loading", "failed"):
            raise refusals.unavailable(f"the model is {self.status}")

    def drain(self) -> None:
        """Say that the server is about to end; what is in work is still answered."""
        if self.status == "ok":
            self.status = "draining"

    def close(self) -> None:
        """End all threads."""
        if self._scheduler is not None:
            self._scheduler.close()
        self._planners.shutdown(cancel_futures=True)
        self._compiler.shutdown(cancel_futures=True)

    async def answer(self, call: Call) -> bytes:
        """The response to a request, as JSON. Raises Refusal."""
        return await self._answer(lambda: read_request(strict_json.parse(self._text(call))), call)

    async def answer_batch(self, call: Call) -> bytes:
        """The responses to `{"requests": [...]}`, as JSON: each an answer, or `{"error": {"status", "detail"}}`.

        Raises Refusal: the body as a whole cannot be read.
        """
        async with _until(call):
            values = await _in_thread(self._planners, lambda: _read_batch(self._text(call), self.limits.batch_requests))

        async def one(index: int, value: Any) -> bytes:
            try:
                if index:  # the first has the place of the whole
                    call.share.take(requests=1)
                return await self._answer(lambda: read_request(value), call)
            except Refusal as refusal:
                return _dump({"error": {"status": refusal.status, "detail": refusal.detail}}, ascii_only=True)

        answers = await asyncio.gather(*(one(index, value) for index, value in enumerate(values)))
        return b'{"responses":[' + b",".join(answers) + b"]}"

    async def _answer(self, read: Callable[[], WireRequest], call: Call) -> bytes:
        engine, scheduler = self._engine, self._scheduler
        if engine is None or scheduler is None:
            raise refusals.unavailable("the model is loading")
        try:
            async with _until(call):
                request, plan = await _in_thread(self._planners, lambda: self._plan(engine, read))
                logits = await self._run(engine, scheduler, plan, call.namespace)
                return await _in_thread(self._planners, lambda: self._respond(engine, request, plan, logits))
        except Refusal as refusal:
            self.metrics.failed(refusal.status)
            raise

    async def _run(self, engine: Engine, scheduler: Scheduler, plan: Plan, namespace: str) -> Logits:
        try:
            if not engine.executables.ladder.largest.fits(Demand.of(plan)):
                # Compiled beside the device's thread, which meanwhile goes on with the others.
                await _in_thread(self._compiler, lambda: engine.prepare(plan))
            logits: Logits = await asyncio.wrap_future(scheduler.submit(plan, namespace=namespace))
        except RoundError:
            raise refusals.failed("the device failed with this request") from None
        except DeviceLostError:
            raise refusals.unavailable("the device is lost") from None
        return logits

    def _text(self, call: Call) -> bytes:
        text = unpack(call.body, call.encoding, limit=self.limits.body_bytes)
        call.share.take(size=max(0, len(text) - len(call.body)))
        return text

    def _plan(self, engine: Engine, read: Callable[[], WireRequest]) -> tuple[Request, Plan]:
        begin = time.perf_counter()
        try:
            wire = read()
            if wire.model is not None and wire.model not in (ALIAS, self.name):
                raise refusals.unknown_model(wire.model)
            plan = engine.plan(wire.request)
        except (RequestError, NotImplementedError) as error:
            raise refusals.invalid(error) from None
        self.metrics.planned(time.perf_counter() - begin)
        return wire.request, plan

    def _respond(self, engine: Engine, request: Request, plan: Plan, logits: Logits) -> bytes:
        try:
            answers = engine.answers(request, plan, logits)
        except FloatingPointError:
            raise refusals.failed("the model's logits are not finite") from None
        self.metrics.answered(len(answers))
        return _dump(response(answers, model=self.name))

    def _busy(self) -> Refusal:
        scheduler = self._scheduler
        seconds = 1.0 if scheduler is None else scheduler.seconds_until(scheduler.waiting[1])
        return refusals.busy(min(60, max(1, math.ceil(seconds))))


def _read_batch(text: bytes, most: int) -> list[Any]:
    try:
        value = strict_json.parse(text)
        if not isinstance(value, dict):
            raise RequestError((), f"must be an object, got {json_kind(value)}")
        if "requests" not in value:
            raise RequestError(("requests",), "is required")
        requests = value["requests"]
        if not isinstance(requests, list) or not 1 <= len(requests) <= most:
            raise RequestError(("requests",), f"must be an array of 1 to {most} requests")
    except RequestError as error:
        raise refusals.invalid(error) from None
    return requests


@contextlib.asynccontextmanager
async def _until(call: Call) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(call.deadline):
            yield
    except TimeoutError:
        raise refusals.timed_out(call.seconds) from None


async def _in_thread[T](pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def _dump(value: Any, *, ascii_only: bool = False) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":")).encode()
