"""How much a server has in work at a time."""

import contextlib
import dataclasses
import mmap
import threading
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Int64

Tally = Int64[np.ndarray, "processes 2"]
"""Requests in work and the bytes of their bodies, a row for each process that takes requests."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a server takes.

    Attributes:
        body_bytes: of one body, as sent and unpacked.
        batch_requests: of one batch.
        open_requests: requests in work at a time, each of a batch counted.
        open_bytes: bodies in work at a time, unpacked.
        default_seconds, most_seconds: until a request is given up, where its client names no time, and at most.
        body_seconds: until a body must have arrived.
        head_seconds: until the head of a request must have arrived, and until a client takes more of its response.
        head_bytes: of a head.
        kept_bytes: of texts and their tokens that a process keeps, so as not to tokenise them again.
    """

    body_bytes: int = 32 * 2**20
    batch_requests: int = 1_024
    open_requests: int = 1_024
    open_bytes: int = 512 * 2**20
    default_seconds: float = 10.0
    most_seconds: float = 600.0
    body_seconds: float = 30.0
    head_seconds: float = 10.0
    head_bytes: int = 64 * 2**10
    kept_bytes: int = 64 * 2**20


def new_tally() -> Tally:
    """Of one process."""
    return np.zeros((1, 2), np.int64)


def shared_tally(descriptor: int, processes: int) -> Tally:
    """In a file that processes share, which has room for it.

    Each writes its own row and reads all; an aligned word is written as a whole. Two may pass a limit together, by what
    they take in that moment.
    """
    return np.frombuffer(mmap.mmap(descriptor, processes * 16), np.int64).reshape(processes, 2)


class Room:
    """Requests and bytes in work, against their limits. Threads may share it."""

    def __init__(
        self, limits: Limits, *, refuse: Callable[[], Exception], tally: Tally | None = None, row: int = 0
    ) -> None:
        """`refuse` makes the error for what there is no room for. `row` of the tally is this process's."""
        self._limits = limits
        self._refuse = refuse
        self._tally = new_tally() if tally is None else tally
        self._row = row
        self._lock = threading.Lock()

    @property
    def requests(self) -> int:
        """In work now, in all processes."""
        return int(self._tally[:, 0].sum())

    @property
    def size(self) -> int:
        """Bytes of their bodies."""
        return int(self._tally[:, 1].sum())

    @contextlib.contextmanager
    def open(self) -> Iterator["Share"]:
        """A share with one request in it, as long as the context lasts. Raises what `refuse` makes."""
        share = Share(self)
        share.take(requests=1)
        try:
            yield share
        finally:
            share.give_back()

    def _change(self, requests: int, size: int) -> None:
        with self._lock:
            too_many = requests > 0 and self.requests + requests > self._limits.open_requests
            too_large = size > 0 and self.size + size > self._limits.open_bytes
            if too_many or too_large:
                raise self._refuse()
            self._tally[self._row] += (requests, size)


class Share:
    """What one HTTP request holds of the room."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._requests = 0
        self._size = 0
        self._closed = False
        self._lock = threading.Lock()

    def take(self, *, requests: int = 0, size: int = 0) -> None:
        """Hold more."""
        with self._lock:
            if self._closed:
                return  # Who asked has left; a thread may still be unpacking what was sent.
            self._room._change(requests, size)
            self._requests += requests
            self._size += size

    def give_back(self) -> None:
        """Hold nothing any more."""
        with self._lock:
            self._closed = True
            self._room._change(-self._requests, -self._size)
            self._requests = self._size = 0
