"""The front-end processes, seen from the process that holds the device: it starts them, runs what they ask for, and
keeps them going.

Each has a listening socket of its own for the same address, and this process holds all of them, too: connections that
come while a front end is started again wait for it.
"""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from flide_jax.prompts.plan import Plan
from flide_jax.prompts.planner import Planner
from flide_jax.serving import frames, refusals
from flide_jax.serving import worker as worker_module
from flide_jax.serving.admission import shared_tally
from flide_jax.serving.frames import Message
from flide_jax.serving.local_device import LocalDevice
from flide_jax.serving.metrics import Metrics
from flide_jax.serving.refusals import Refusal
from flide_jax.serving.remote_device import PLAN_ARRAYS
from flide_jax.serving.server import LAST_WORDS
from flide_jax.serving.settings import Settings

_SECONDS_BETWEEN_NEWS = 0.25
_SILENCE = 60.0  # A front end says something four times a second.
# So many ends of front ends in so many seconds are no accidents.
_MOST_ENDS, _WITHIN_SECONDS = 5, 60.0
_SECONDS_TO_END = 5.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class _Worker:
    """A process, and the way to it.

    Attributes:
        runs: what it asked for, by its numbers.
        heard: when it last said something.
        started: whether it answers.
    """

    process: asyncio.subprocess.Process
    writer: asyncio.StreamWriter
    runs: dict[int, asyncio.Task[None]] = dataclasses.field(default_factory=dict)
    heard: float = dataclasses.field(default_factory=time.monotonic)
    started: bool = False


class FrontEnds:
    """Serves on several sockets, with a process for each. `start` and `stop` may be called from any thread."""

    def __init__(
        self,
        settings: Settings,
        listening: Sequence[socket.socket],
        metrics: Metrics,
        *,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """`settings` are those of every process but for its row. `say` is for the operator."""
        self._settings = settings
        self._listening = list(listening)
        self._metrics = metrics
        self._say = say
        self._shared = tempfile.TemporaryFile()
        self._shared.truncate(16 * len(self._listening))
        self._tally = shared_tally(self._shared.fileno(), len(self._listening))
        metrics.watch_requests(lambda: int(self._tally[:, 0].sum()))
        self._workers: dict[int, _Worker] = {}
        self._ends: deque[float] = deque(maxlen=_MOST_ENDS)
        self._device: LocalDevice | None = None
        self._started: bytes | None = None
        self._ready = threading.Event()
        self._stopping = asyncio.Event()
        self._told_to_stop = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wrong: str | None = None

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._told_to_stop

    def start(self, planner: Planner, device: LocalDevice, *, dtype: str, batch_invariant: bool) -> None:
        """Answer from now on. Returns when every process does, or when the server ends."""
        self._device = device
        started = self._started = frames.pack(
            "start",
            dtype=dtype,
            batch_invariant=batch_invariant,
            max_tokens=planner.max_tokens,
            max_request_tokens=planner.max_request_tokens,
        )
        self._soon(lambda: self._tell(started))  # to those that are there; others are told when they come
        self._ready.wait()

    def stop(self) -> None:
        """Every process answers what it has, and ends."""
        self._told_to_stop = True
        self._soon(self._stopping.set)

    async def run(self) -> str | None:
        """Serve until it is stopped. Returns what went wrong, None if nothing did."""
        self._loop = asyncio.get_running_loop()
        if self._told_to_stop:
            self._stopping.set()
        keeping = [asyncio.create_task(self._keep(row)) for row in range(len(self._listening))]
        watching = asyncio.create_task(self._watch())
        for task in (*keeping, watching):
            task.add_done_callback(self._end_if_broken)
        await self._stopping.wait()
        self._ready.set()
        for listening in self._listening:
            listening.close()
        self._tell(frames.pack("drain"))
        await asyncio.wait(keeping, timeout=self._settings.drain_seconds + _SECONDS_TO_END)
        watching.cancel()
        for worker in self._workers.values():
            _kill(worker.process)
        await asyncio.wait(keeping)
        self._shared.close()
        return self._wrong

    def _soon(self, work: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(work)

    def _end_if_broken(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._go_wrong(f"a defect of the server: {_logged(error)}")

    def _go_wrong(self, message: str) -> None:
        self._wrong = self._wrong or message
        self._stopping.set()

    def _tell(self, message: bytes) -> None:
        for worker in self._workers.values():
            worker.writer.write(message)

    async def _watch(self) -> None:
        while True:
            if self._device is not None:
                lost = self._device.check()
                free = self._device.seconds_until_free()
                self._tell(frames.pack("news", lost=lost, seconds_until_free=free))
                if lost is not None:
                    self._wrong = f"the device is lost: {lost}"
                    await asyncio.sleep(LAST_WORDS)
                    self._stopping.set()
            for worker in self._workers.values():
                if time.monotonic() - worker.heard > _SILENCE:
                    _kill(worker.process)
            await asyncio.sleep(_SECONDS_BETWEEN_NEWS)

    async def _keep(self, row: int) -> None:
        """One process after another, until the server ends."""
        while not self._stopping.is_set() and self._wrong is None:
            reader, worker = await self._begin(row)
            self._workers[row] = worker
            await self._hear(reader, worker)
            for task in [*worker.runs.values()]:
                task.cancel()
            status = await _end_of(worker.process)
            worker.writer.close()
            del self._workers[row]
            self._tally[row] = 0
            if not self._stopping.is_set() and self._wrong is None:
                self._count_end(status)

    async def _begin(self, row: int) -> tuple[asyncio.StreamReader, _Worker]:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptors = (theirs.fileno(), self._listening[row].fileno(), self._shared.fileno())
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", worker_module.__name__, *map(str, descriptors)),
                pass_fds=descriptors,
                stdin=asyncio.subprocess.DEVNULL,
            )
        reader, writer = await asyncio.open_connection(sock=ours)
        loaded = self._started is not None
        settings = dataclasses.replace(self._settings, row=row, processes=len(self._listening), loaded=loaded)
        writer.write(frames.pack("settings", **settings.to_json()))
        if self._started is not None:
            writer.write(self._started)
        if self._stopping.is_set():
            writer.write(frames.pack("drain"))
        return reader, _Worker(process, writer)

    def _count_end(self, status: int) -> None:
        now = time.monotonic()
        self._ends.append(now)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        seconds = now - self._ends[0]
        if len(self._ends) == _MOST_ENDS and seconds < _WITHIN_SECONDS:
            self._go_wrong(f"{_MOST_ENDS} front ends have ended within {seconds:.0f} s, the last with {how}")
        else:
            self._say(f"a front end has ended with {how}, another takes its place")

    async def _hear(self, reader: asyncio.StreamReader, worker: _Worker) -> None:
        """What a process says, until it ends."""
        while (message := await frames.read(reader)) is not None:
            worker.heard = time.monotonic()
            number = message.fields.get("number", -1)
            match message.kind:
                case "run":
                    worker.runs[number] = asyncio.create_task(self._run(worker, number, message))
                case "leave" if (task := worker.runs.get(number)) is not None:
                    task.cancel()
                case "counted":
                    self._metrics.replay(message.fields["events"])
                case "metrics":
                    text = (await self._metrics.text()).decode()
                    worker.writer.write(frames.pack("metrics", number=number, text=text))
                case "started":
                    worker.started = True
                    if len(self._workers) == len(self._listening) and all(w.started for w in self._workers.values()):
                        self._ready.set()

    async def _run(self, worker: _Worker, number: int, message: Message) -> None:
        try:
            assert self._device is not None
            arrays: dict[str, Any] = dict(zip(PLAN_ARRAYS, message.arrays, strict=True))
            plan = Plan(**arrays, salt=message.fields["salt"])
            found = await self._device.run(plan, message.fields["namespace"])
            times = {"waited": found.waited, "seconds": found.seconds}
            answer = frames.pack("ran", [found.logits], number=number, resumed=found.resumed, **times)
        except Refusal as refusal:
            answer = _refused(number, refusal)
        except Exception as error:
            _logged(error)
            answer = _refused(number, refusals.failed("a defect of the server"))
        finally:
            del worker.runs[number]
        worker.writer.write(answer)


def _logged(error: BaseException) -> str:
    """The name of an error, whose place is logged. Its message may hold text of a request, the lines of code do not."""
    name = type(error).__name__
    _log.error("defect: %s\n%s", name, "".join(traceback.format_tb(error.__traceback__)))
    return name


def _refused(number: int, refusal: Refusal) -> bytes:
    headers = dict(refusal.headers)
    return frames.pack("refused", number=number, status=refusal.status, detail=refusal.detail, headers=headers)


async def _end_of(process: asyncio.subprocess.Process) -> int:
    """The exit status of a process that has closed its socket."""
    try:
        async with asyncio.timeout(_SECONDS_TO_END):
            return await process.wait()
    except TimeoutError:
        _kill(process)
        return await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
