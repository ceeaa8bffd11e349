"""How much a server has in work at a time."""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator


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
    """

    body_bytes: int = 32 * 2**20
    batch_requests: int = 1_024
    open_requests: int = 1_024
    open_bytes: int = 512 * 2**20
    default_seconds: float = 10.0
    most_seconds: float = 600.0
    body_seconds: float = 30.0


class Room:
    """Requests and bytes in work, against their limits. Threads may share it.

    Attributes:
        requests, size: in work now; the bytes of their bodies.
    """

    def __init__(self, limits: Limits, *, refuse: Callable[[], Exception]) -> None:
        """`refuse` makes the error for what there is no room for."""
        self.requests = 0
        self.size = 0
        self._limits = limits
        self._refuse = refuse
        self._lock = threading.Lock()

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
            grown, larger = self.requests + requests, self.size + size
            too_many = requests > 0 and grown > self._limits.open_requests
            too_large = size > 0 and larger > self._limits.open_bytes
            if too_many or too_large:
                raise self._refuse()
            self.requests, self.size = grown, larger


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
