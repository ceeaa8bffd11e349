"""What a front end counts: in its own process, or for another."""

from collections import deque
from typing import Any, Protocol, runtime_checkable

type Event = list[Any]
"""The name of a method of `Counts`, then its arguments."""


@runtime_checkable
class Counts(Protocol):
    """What is told of requests."""

    def responded(self, route: str, status: int, seconds: float) -> None:
        """A response was sent, or its client left (499)."""
        ...

    def planned(self, seconds: float) -> None:
        """A request was turned into tokens."""
        ...

    def tokenised(self, kept: int, made: int) -> None:
        """So many tokens of texts were kept from before, and so many were made."""
        ...

    def answered(self, questions: int, computed: int, resumed: int) -> None:
        """A request was answered; so many tokens of its state were computed, and so many came from a checkpoint."""
        ...

    def failed(self, status: int) -> None:
        """A request was not answered."""
        ...

    async def text(self) -> bytes:
        """All metrics of the server, in Prometheus' text format."""
        ...


class EventList:
    """Events until they are taken. Threads may add to it."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()

    def take(self) -> list[Event]:
        """What happened since the last time."""
        return [self._events.popleft() for _ in range(len(self._events))]

    def responded(self, route: str, status: int, seconds: float) -> None:
        """A response was sent, or its client left (499)."""
        self._events.append(["responded", route, status, seconds])

    def planned(self, seconds: float) -> None:
        """A request was turned into tokens."""
        self._events.append(["planned", seconds])

    def tokenised(self, kept: int, made: int) -> None:
        """So many tokens of texts were kept from before, and so many were made."""
        self._events.append(["tokenised", kept, made])

    def answered(self, questions: int, computed: int, resumed: int) -> None:
        """A request was answered; so many tokens of its state were computed, and so many came from a checkpoint."""
        self._events.append(["answered", questions, computed, resumed])

    def failed(self, status: int) -> None:
        """A request was not answered."""
        self._events.append(["failed", status])
