"""The scheduler: requests of many clients through one device, in rounds formed from what waits.

Two threads. One owns the device: it forms a round, dispatches it, and forms the next while that one runs. The other
waits for the results of rounds, in their order, and hands them out. A round that is dispatched behind one in flight is
always a bounded one, of short requests (`Waiting`), in a capacity that takes no longer than the budget; a long request
starts when nothing is in flight. So a short request that comes while no other short one waits has at most these before
it, however many long requests are queued: the round in flight, a bounded round behind it, and one long request that was
passed over for long enough (`PATIENCE`). Short requests that wait already go first within a namespace, in bounded
rounds; namespaces take turns.

A round that fails is run again in halves, down to the request that fails alone; then a known request shows whether the
device is to blame. If that fails too, or a round does not end, or a thread here meets an error that is not a round's,
the device is lost: every future says so, and the scheduler takes nothing more.
"""

import contextlib
import dataclasses
import functools
import itertools
import logging
import operator
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError

from flide_jax.engine.executables import Started
from flide_jax.engine.round_times import RoundTimes
from flide_jax.engine.waiting import Job, Ran, Waiting
from flide_jax.layout import Demand, Ladder
from flide_jax.prompts.plan import Plan

type Start = Callable[[Sequence[Plan]], Started]
"""Dispatches plans as one round, and gives what waits for it."""

_DEFECT = "a defect of the scheduler"
_CLOSED = "the scheduler is closed"
_log = logging.getLogger(__name__)


class RoundError(RuntimeError):
    """A request failed on the device, alone in its round, and the device works."""


class DeviceLostError(RuntimeError):
    """The device does not answer any more, or the scheduler was closed before the request ran."""


@dataclasses.dataclass(frozen=True)
class SchedulerConfig:
    """Choices about how rounds are formed.

    Attributes:
        round_seconds: how long a bounded round may take.
        ahead: whether a round is dispatched while another runs. For an accelerator, which runs them one after another;
            a CPU would run both at once, and the first would end later for it.
        hang_seconds: a round that runs for longer, and for 20 times what is usual for its size, hangs.
        start_seconds: laying out and dispatching a round may take so long, since it may compile; longer is a hang.
    """

    round_seconds: float = 0.25
    ahead: bool = True
    hang_seconds: float = 60.0
    start_seconds: float = 900.0


@dataclasses.dataclass(frozen=True)
class RoundReport:
    """A round that ran: for metrics.

    Attributes:
        requests, tokens: in the round.
        capacity_tokens: rows of its capacity, padding included.
        dispatch: seconds to lay it out and give it to the device.
        seconds: that the device ran it.
        waits: seconds that each request waited before it.
    """

    requests: int
    tokens: int
    capacity_tokens: int
    dispatch: float
    seconds: float
    waits: list[float]


@dataclasses.dataclass(eq=False)
class _Round:
    """Jobs that run together. `suspect` makes it a probe: this job and its error led to it."""

    jobs: list[Job]
    suspect: tuple[Job, Exception] | None = None
    tokens: int = 0
    capacity_tokens: int = 0
    began: float = 0.0
    started: Started | None = None
    dispatch: float = 0.0

    @property
    def everyone(self) -> list[Job]:
        """All jobs whose futures wait for this round."""
        return [*self.jobs, *([self.suspect[0]] if self.suspect is not None else [])]


class Scheduler:
    """Runs what is submitted. Every method may be called from any thread.

    Attributes:
        lost: why the device is taken as lost, None while it works.
    """

    def __init__(
        self,
        start: Start,
        ladder: Ladder,
        *,
        probe: Plan,
        config: SchedulerConfig = SchedulerConfig(),  # noqa: B008  frozen
        demand: Callable[[Plan], Demand] = Demand.of,
        observe: Callable[[RoundReport], None] = lambda report: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts both threads.

        Args:
            start: the device.
            ladder: the capacities that rounds are compiled for.
            probe: a short request that is known to work.
            config: how rounds are formed.
            demand: what a request needs of a capacity, as far as that is known when it is submitted.
            observe: is told of each round, on the thread that collects results.
            clock: seconds, from any beginning.
        """
        self.lost: str | None = None
        self._start = start
        self._ladder = ladder
        self._probe = probe
        self._config = config
        self._demand = demand
        self._observe = observe
        self._clock = clock
        self._times = RoundTimes(ladder, budget=config.round_seconds)
        self._waiting = Waiting()
        self._again: deque[_Round] = deque()
        self._starting: _Round | None = None
        self._in_flight: deque[_Round] = deque()
        self._closed = False
        self._changed = threading.Condition()
        self._dispatched: queue.SimpleQueue[_Round | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"flide-{name}", daemon=True)
            for name, work in (("device", self._dispatch_rounds), ("results", self._collect_rounds))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, plan: Plan, *, namespace: str = "") -> Future[Ran]:
        """Queue a request. Cancelling the future takes it out again, unless its round has started.

        The future raises RoundError or DeviceLostError. Raises DeviceLostError at once where nothing can run any more.
        """
        job = Job(plan, namespace, self._clock(), self._demand(plan))
        with self._changed:
            if self.lost is not None or self._closed:
                raise DeviceLostError(self.lost or _CLOSED)
            self._waiting.add(job)
            self._changed.notify_all()
        job.future.add_done_callback(lambda future: self._forget(job) if future.cancelled() else None)
        return job.future

    @property
    def waiting(self) -> tuple[int, int]:
        """Requests that wait for their round, and their tokens."""
        with self._changed:
            return len(self._waiting), self._waiting.tokens

    def seconds_until(self, tokens: int) -> float:
        """About how long the device takes for so many tokens, in bounded rounds; 1 before anything ran."""
        with self._changed:
            bound = self._times.bound().tokens
            seconds = self._times.estimate(bound)
        return 1.0 if seconds is None else seconds * tokens / bound

    def check(self) -> None:
        """Takes the device as lost if a round hangs; to be called from time to time."""
        with self._changed:
            now = self._clock()
            if self._in_flight:
                first = self._in_flight[0]
                usual = self._times.estimate(first.capacity_tokens) or 0.0
                if now - first.began > max(self._config.hang_seconds, 20 * usual):
                    self._lose(f"a round of {first.tokens} tokens has not ended for {now - first.began:.0f} s")
            if self._starting is not None and now - self._starting.began > self._config.start_seconds:
                waited = now - self._starting.began
                self._lose(f"a round of {self._starting.tokens} tokens could not be started for {waited:.0f} s")

    def close(self, *, timeout: float = 10.0) -> None:
        """Ends both threads behind the rounds in flight; what still waits fails."""
        with self._changed:
            self._closed = True
            jobs = [*self._waiting.clear(), *(job for again in self._again for job in again.everyone)]
            self._again.clear()
            self._fail(jobs, DeviceLostError(_CLOSED))
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(timeout)

    def _forget(self, job: Job) -> None:
        with self._changed:
            self._waiting.remove(job)

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread's whole life. A thread that ended without a word would leave every future unanswered."""
        try:
            work()
        except BaseException as error:
            # The message of an error may hold anything, the lines of code do not.
            _log.error("defect of the scheduler: %s", "".join(traceback.format_tb(error.__traceback__)))
            with self._changed:
                self._lose(f"{_DEFECT}: {type(error).__name__}")
        finally:
            self._dispatched.put(None)

    # The thread that owns the device.

    def _dispatch_rounds(self) -> None:
        while (upcoming := self._next_round()) is not None:
            try:
                started = self._start([job.plan for job in upcoming.jobs])
            except Exception as error:
                with self._changed:
                    self._starting = None
                    self._failed(upcoming, error)
                continue
            with self._changed:
                self._starting = None
                now = self._clock()
                upcoming.started, upcoming.dispatch, upcoming.began = started, now - upcoming.began, now
                self._in_flight.append(upcoming)
            self._dispatched.put(upcoming)

    def _next_round(self) -> _Round | None:
        """Waits until a round is to be dispatched. None: there will be no more."""
        with self._changed:
            while not self._closed and self.lost is None:
                if (upcoming := self._form()) is not None:
                    self._starting = upcoming  # from here on an error finds its jobs
                    self._measure(upcoming)
                    upcoming.began = self._clock()
                    return upcoming
                self._changed.wait(self._seconds_to_stage())
        return None

    def _form(self) -> _Round | None:
        if self._again:
            return self._again.popleft() if not self._in_flight else None
        bound = self._times.bound()
        if not self._in_flight:
            take = self._waiting.take
        elif len(self._in_flight) == 1 and self._may_stage():
            take = self._waiting.take_short
        else:
            return None
        while jobs := take(bound):
            # From here on they can no longer be cancelled, and those that are cancelled already are left out.
            if jobs := [job for job in jobs if job.future.set_running_or_notify_cancel()]:
                return _Round(jobs)
        return None

    def _measure(self, formed: _Round) -> None:
        demand = functools.reduce(operator.add, (job.demand for job in formed.jobs))
        formed.tokens = demand.tokens
        formed.capacity_tokens = self._ladder.smallest_for(demand).tokens

    def _may_stage(self) -> bool:
        """A round is staged behind another when waiting longer would not make it larger, or when the other is about to
        end; any earlier would shut out who comes meanwhile."""
        if not self._config.ahead or not self._waiting.short_turn(self._times.bound()):
            return False
        if self._waiting.fills(self._times.bound()):
            return True
        seconds = self._seconds_to_stage()
        return seconds is not None and seconds <= 0

    def _seconds_to_stage(self) -> float | None:
        """Seconds until the round in flight has run for three quarters of what is usual. None: that is not known."""
        if not self._config.ahead or len(self._in_flight) != 1:
            return None
        if not self._waiting.short_turn(self._times.bound()):
            return None
        usual = self._times.estimate(self._in_flight[0].capacity_tokens)
        if usual is None:
            return None
        left = self._in_flight[0].began + 0.75 * usual - self._clock()
        return max(0.0, left)

    # The thread that waits for results.

    def _collect_rounds(self) -> None:
        while (running := self._dispatched.get()) is not None:
            try:
                self._end(running)
            except BaseException:
                self._fail(running.everyone, DeviceLostError(_DEFECT))  # it may have landed, so nobody else knows it
                raise

    def _end(self, running: _Round) -> None:
        assert running.started is not None
        try:
            logits = running.started()
            if len(logits) != len(running.jobs):
                raise RuntimeError(f"{len(logits)} results for {len(running.jobs)} requests")
        except Exception as error:
            with self._changed:
                self._landed(running)
                self._failed(running, error)
            return
        with self._changed:
            seconds = self._clock() - running.began
            waits = [running.began - job.arrived for job in running.jobs]
            self._landed(running)
            self._times.learn(running.capacity_tokens, seconds)
            if running.suspect is not None:
                suspect, first = running.suspect
                self._fail([suspect], RoundError(f"{type(first).__name__} on the device"))
        for job, found, waited, resumed in zip(running.jobs, logits, waits, running.started.resumed, strict=True):
            with contextlib.suppress(InvalidStateError):  # the device was taken as lost meanwhile
                job.future.set_result(Ran(found, waited, seconds, resumed))
        sizes = (len(running.jobs), running.tokens, running.capacity_tokens)
        self._observe(RoundReport(*sizes, running.dispatch, seconds, waits))

    def _landed(self, running: _Round) -> None:
        with contextlib.suppress(ValueError):  # the device was taken as lost meanwhile
            self._in_flight.remove(running)
        if self._in_flight:
            self._in_flight[0].began = max(self._in_flight[0].began, self._clock())
        self._changed.notify_all()

    # Failures; the lock is held.

    def _failed(self, failed: _Round, error: Exception) -> None:
        """A round failed: its halves are run again, or the device is probed if it was one request alone."""
        if self._closed or self.lost is not None:
            self._fail(failed.everyone, DeviceLostError(self.lost or _CLOSED))
        elif failed.suspect is not None:
            job, first = failed.suspect
            self._fail([job], DeviceLostError(type(first).__name__))
            self._lose(f"the device fails known work: {_in_one_line(error)}")
        elif len(failed.jobs) == 1:
            (job,) = failed.jobs
            probe = Job(self._probe, job.namespace, self._clock(), Demand.of(self._probe))
            self._again.appendleft(_Round([probe], suspect=(job, error)))
        else:
            half = -(-len(failed.jobs) // 2)
            self._again.extendleft(_Round(list(jobs)) for jobs in itertools.batched(failed.jobs, half))
        self._changed.notify_all()

    def _lose(self, message: str) -> None:
        if self.lost is None:
            self.lost = message
            rounds = [*self._again, *self._in_flight, *([self._starting] if self._starting else [])]
            jobs = [*self._waiting.clear(), *(job for again in rounds for job in again.everyone)]
            self._fail(jobs, DeviceLostError(message))
            self._again.clear()
            self._in_flight.clear()
            self._changed.notify_all()

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        for job in jobs:
            with contextlib.suppress(InvalidStateError):  # it has its result, or its client has left
                job.future.set_exception(error)


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
