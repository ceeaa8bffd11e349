"""What waits for the device, and who goes next: fair between namespaces, and short before long."""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future

from flide_jax.engine.ablation import Logits
from flide_jax.layout import Capacity, Demand
from flide_jax.prompts.plan import Plan

# A long request starts at the latest when bounded rounds have run this many times its own tokens since it came, or
# since the last long one started.
PATIENCE = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Ran:
    """A request that ran.

    Attributes:
        logits: of its reads.
        waited: seconds until its round began.
        seconds: that the device ran its round.
        resumed: tokens of its state that came from a checkpoint.
    """

    logits: Logits
    waited: float
    seconds: float
    resumed: int


@dataclasses.dataclass(eq=False)
class Job:
    """One request on its way through the device.

    Attributes:
        plan: its tokens.
        namespace: whose it is; the device's time is shared between namespaces.
        arrived: when it was submitted, in seconds of the scheduler's clock.
        demand: what it needs of a capacity.
        future: what came of it, or why nothing did. Cancelling it takes the job out of the queue.
        passed_at: tokens that bounded rounds had run when it came; for `PATIENCE`.
    """

    plan: Plan
    namespace: str
    arrived: float
    demand: Demand
    future: Future[Ran] = dataclasses.field(default_factory=Future, init=False)
    passed_at: int = dataclasses.field(default=0, init=False)


class Waiting:
    """The queue of jobs. It is told how large a bounded round may be, and knows no time and no threads.

    A job is *short* if it fits into a bounded round, else *long*. Within a namespace short jobs keep their order, and
    so do long ones. Between namespaces the one that was given the fewest tokens is next; one that comes back after it
    had nothing to ask starts level with the others, so that a pause earns nothing.
    """

    def __init__(self) -> None:
        self._queues: dict[str, dict[Job, None]] = {}
        self._given: dict[str, int] = {}
        self._level = 0
        self._bounded_tokens = 0
        self._last_long = 0

    def __len__(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    @property
    def tokens(self) -> int:
        """Tokens of all jobs."""
        return sum(job.demand.tokens for queue in self._queues.values() for job in queue)

    def add(self, job: Job) -> None:
        """Queue a job behind those of its namespace."""
        if job.namespace not in self._queues:
            self._given[job.namespace] = max(self._level, self._given.get(job.namespace, 0))
        job.passed_at = self._bounded_tokens
        self._queues.setdefault(job.namespace, {})[job] = None

    def remove(self, job: Job) -> bool:
        """Take a job out. Returns whether it was there."""
        queue = self._queues.get(job.namespace, {})
        if job not in queue:
            return False
        del queue[job]
        if not queue:
            del self._queues[job.namespace]
            # What it was given is remembered for as long as it is ahead of the others.
            ahead = {name: given for name, given in self._given.items() if given > self._level}
            self._given = {name: self._given[name] for name in (*self._queues, *ahead)}
        return True

    def take(self, bound: Capacity) -> list[Job]:
        """The next round: a long job whose turn it is, or short ones; empty where nothing waits."""
        long = self._long_turn(bound)
        return [self._take(long)] if long is not None else self.take_short(bound)

    def take_short(self, bound: Capacity) -> list[Job]:
        """A bounded round of short jobs, as many as fit."""
        members = list(self._short_round(bound))
        for job in members:
            self.remove(job)
        self._bounded_tokens += sum(job.demand.tokens for job in members)
        return members

    def short_turn(self, bound: Capacity) -> bool:
        """Whether a short job waits, and no long one was passed over for long enough."""
        waits = any(bound.fits(job.demand) for queue in self._queues.values() for job in queue)
        return waits and self._long_turn(bound) is None

    def fills(self, bound: Capacity) -> bool:
        """Whether the short jobs that wait are more than one bounded round holds."""
        total: Demand | None = None
        for queue in self._queues.values():
            for job in queue:
                if bound.fits(job.demand):
                    total = job.demand if total is None else total + job.demand
                    if not bound.fits(total):
                        return True
        return False

    def clear(self) -> list[Job]:
        """Take out everything."""
        jobs = [job for queue in self._queues.values() for job in queue]
        self._queues.clear()
        return jobs

    def _short_round(self, bound: Capacity) -> Iterator[Job]:
        """Job by job, from the namespace that was given least, until the next of each namespace does not fit."""
        short = {name: (job for job in queue if bound.fits(job.demand)) for name, queue in self._queues.items()}
        heads = {name: next(jobs, None) for name, jobs in short.items()}
        total: Demand | None = None
        while open_names := [name for name, head in heads.items() if head is not None]:
            name = min(open_names, key=self._given.__getitem__)
            job = heads[name]
            assert job is not None
            grown = job.demand if total is None else total + job.demand
            if not bound.fits(grown):
                heads[name] = None
                continue
            total = grown
            self._give(job)
            heads[name] = next(short[name], None)
            yield job

    def _long_turn(self, bound: Capacity) -> Job | None:
        """The long job to run now: where no short one waits, or where it was passed over for long enough."""
        firsts = {
            name: next((job for job in queue if not bound.fits(job.demand)), None)
            for name, queue in self._queues.items()
        }
        candidates = [job for job in firsts.values() if job is not None]
        if not candidates:
            return None
        job = min(candidates, key=lambda job: self._given[job.namespace])
        short_waits = any(bound.fits(other.demand) for queue in self._queues.values() for other in queue)
        passed = self._bounded_tokens - max(job.passed_at, self._last_long)
        return job if not short_waits or passed >= PATIENCE * job.demand.tokens else None

    def _take(self, job: Job) -> Job:
        self._give(job)
        self._last_long = self._bounded_tokens
        self.remove(job)
        return job

    def _give(self, job: Job) -> None:
        self._level = max(self._level, self._given[job.namespace])
        self._given[job.namespace] += job.demand.tokens
