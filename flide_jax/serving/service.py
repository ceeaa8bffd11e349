"""The server without HTTP: bodies in, responses out, by way of the planner and the device."""

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

from flide_jax.prompts.kept_tokens import KeptTokens
from flide_jax.prompts.plan import Plan
from flide_jax.prompts.planner import Planner
from flide_jax.request import RequestError, json_kind
from flide_jax.serving import refusals, strict_json
from flide_jax.serving.admission import Limits, Room, Share, Tally
from flide_jax.serving.bodies import unpack
from flide_jax.serving.counts import Counts
from flide_jax.serving.device import Device, Outcome
from flide_jax.serving.protocol import WireRequest, in_words_of_the_wire, read_request, response
from flide_jax.serving.refusals import Refusal

ALIAS = "jev-latest"
"""The name of a model that clients send by default."""
# What takes the event loop no longer than handing it to a thread and back would: a millisecond or two.
_SMALL_BODY = 16 * 1_024
_FEW_QUESTIONS = 64


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


@dataclass(frozen=True, eq=False)
class _Planned:
    wire: WireRequest
    plan: Plan
    seconds: float


class Service:
    """Answers bodies of System One. Its coroutines run on one event loop.

    Attributes:
        name: what the model is called.
        dtype: of the engine, None while it loads.
        batch_invariant: whether the engine is, None while it loads.
        status: "loading", "ok", "draining" or "failed".
        limits: what it takes.
        counts: where it counts.
        room: requests in work.
    """

    def __init__(
        self, name: str, *, counts: Counts, limits: Limits | None = None, tally: Tally | None = None, row: int = 0
    ) -> None:
        """`row` of the tally is this process's."""
        self.name = name
        self.counts = counts
        self.dtype: str | None = None
        self.batch_invariant: bool | None = None
        self.status = "loading"
        self.limits = limits or Limits()
        self.room = Room(self.limits, refuse=self._busy, tally=tally, row=row)
        self._planner: Planner | None = None
        self._device: Device | None = None
        self._threads = ThreadPoolExecutor(min(4, (os.cpu_count() or 1) + 1), thread_name_prefix="flide-planner")

    def start(self, planner: Planner, device: Device, *, dtype: str, batch_invariant: bool) -> None:
        """Answer from now on. May be called from any thread."""
        kept = KeptTokens(self.limits.kept_bytes, observe=self.counts.tokenised)
        planner.prompt_format.tokenizer.keep(kept)
        self._planner, self._device = planner, device
        self.dtype, self.batch_invariant = dtype, batch_invariant
        self.status = "ok"

    def check(self) -> str | None:
        """Why the device is lost, None while it works; to be called from time to time."""
        lost = None if self._device is None else self._device.check()
        if lost is not None:
            self.status = "failed"
        return lost

    def check_status(self) -> None:
        """Raises Refusal: nothing can be answered yet, or any more."""
        if self.status in ("loading", "failed"):
            raise refusals.unavailable(f"the model is {self.status}")

    def drain(self) -> None:
        """Say that the server is about to end; what is in work is still answered."""
        if self.status == "ok":
            self.status = "draining"

    def close(self) -> None:
        """End each thread when it is done with what it does, which nobody waits for any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, call: Call) -> bytes:
        """The response to a request, as JSON. Raises Refusal."""
        small = call.encoding is None and len(call.body) <= _SMALL_BODY
        return await self._answer(lambda: read_request(strict_json.parse(self._text(call))), call, small=small)

    async def answer_batch(self, call: Call) -> bytes:
        """The responses to `{"requests": [...]}`, as JSON: each an answer, or `{"error": {"status", "detail"}}`.

        A key that stands twice or a NaN fails the request that holds it. Raises Refusal: the body as a whole cannot be
        read, which is so too where one request is nested too deep for that.
        """
        async with _until(call):
            draft, values = await self._in_thread(lambda: _read_batch(self._text(call), self.limits.batch_requests))

        async def one(index: int, value: Any) -> bytes:
            try:
                if index:  # the first has the place of the whole
                    call.share.take(requests=1)
                return await self._answer(lambda: read_request(draft.check(value)), call, small=False)
            except Refusal as refusal:
                self.counts.failed(refusal.status)
                return _dump({"error": {"status": refusal.status, "detail": refusal.detail}}, ascii_only=True)

        answers = await asyncio.gather(*(one(index, value) for index, value in enumerate(values)))
        return b'{"responses":[' + b",".join(answers) + b"]}"

    async def _answer(self, read: Callable[[], WireRequest], call: Call, *, small: bool) -> bytes:
        planner, device = self._planner, self._device
        if planner is None or device is None:
            raise refusals.unavailable("the model is loading")
        async with _until(call):
            if small:
                planned = self._plan(planner, read)
            else:
                planned = await self._in_thread(lambda: self._plan(planner, read))
            outcome = await device.run(planned.plan, call.namespace)
            if len(planned.wire.request.questions) <= _FEW_QUESTIONS:
                return self._respond(planner, planned, outcome)
            return await self._in_thread(lambda: self._respond(planner, planned, outcome))

    def _text(self, call: Call) -> bytes:
        text = unpack(call.body, call.encoding, limit=self.limits.body_bytes)
        call.share.take(size=max(0, len(text) - len(call.body)))
        return text

    def _plan(self, planner: Planner, read: Callable[[], WireRequest]) -> _Planned:
        begin = time.perf_counter()
        try:
            wire = read()
            if wire.model is not None and wire.model not in (ALIAS, self.name):
                raise refusals.unknown_model(wire.model)
            with in_words_of_the_wire():
                plan = planner.plan(wire.request)
        except (RequestError, NotImplementedError) as error:
            raise refusals.invalid(error) from None
        seconds = time.perf_counter() - begin
        self.counts.planned(seconds)
        return _Planned(wire, plan, seconds)

    def _respond(self, planner: Planner, planned: _Planned, outcome: Outcome) -> bytes:
        try:
            answers = planner.answers(planned.wire.request, planned.plan, outcome.logits, resumed=outcome.resumed)
        except FloatingPointError:
            raise refusals.failed("the model's logits are not finite") from None
        usage = answers.usage
        self.counts.answered(len(answers), usage.computed_state_tokens, usage.resumed_state_tokens)
        found = response(answers, model=self.name)
        if planned.wire.costs:
            found["x_costs"] = _costs(planned, outcome)
        return _dump(found)

    async def _in_thread[T](self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _busy(self) -> Refusal:
        seconds = 1.0 if self._device is None else self._device.seconds_until_free()
        return refusals.busy(min(60, max(1, math.ceil(seconds))))


def _costs(planned: _Planned, outcome: Outcome) -> dict[str, Any]:
    """Tokens of the state and of each question, and milliseconds: to tokens, until the round began, in the round."""
    names = planned.wire.request.questions
    milliseconds = {"plan": planned.seconds, "wait": outcome.waited, "round": outcome.seconds}
    return {
        "state_tokens": planned.plan.state.size,
        "question_tokens": dict(zip(names, planned.plan.branch_lengths.tolist(), strict=True)),
        **{f"{name}_ms": round(1e3 * seconds, 3) for name, seconds in milliseconds.items()},
    }


def _read_batch(text: bytes, most: int) -> tuple[strict_json.Draft, list[Any]]:
    """The requests of a batch, each still to be checked. Raises Refusal: it is none, or wrong around its requests."""
    try:
        draft = strict_json.read(text)
        value = draft.value
        if not isinstance(value, dict):
            draft.check(value)
            raise RequestError((), f"must be an object, got {json_kind(value)}")
        if "requests" not in value:
            raise RequestError(("requests",), "is required")
        requests = value.pop("requests")
        draft.check(value)
        if not isinstance(requests, list) or not 1 <= len(requests) <= most:
            raise RequestError(("requests",), f"must be an array of 1 to {most} requests")
    except RequestError as error:
        raise refusals.invalid(error) from None
    return draft, requests


@contextlib.asynccontextmanager
async def _until(call: Call) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(call.deadline):
            yield
    except TimeoutError:
        raise refusals.timed_out(call.seconds) from None


def _dump(value: Any, *, ascii_only: bool = False) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":")).encode()
