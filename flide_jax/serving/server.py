"""The application as a process: a socket, signals, and an end that says what happened."""

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from typing import NoReturn, Protocol, runtime_checkable

import uvicorn
from starlette.types import ASGIApp

from flide_jax.prompts.planner import Planner
from flide_jax.serving.admission import Tally
from flide_jax.serving.app import create_app
from flide_jax.serving.connections import impatient
from flide_jax.serving.counts import Counts
from flide_jax.serving.device import Device
from flide_jax.serving.keys import Keys
from flide_jax.serving.service import Service
from flide_jax.serving.settings import Settings

# Between the loss of the device and the end of the process: what was in work hears of it, and so does a health check.
LAST_WORDS = 1.0


class Server:
    """One server on one socket.

    `stop` makes it take no new connections, answer what it has, and end.

    Attributes:
        service: what answers.
    """

    def __init__(self, app: ASGIApp, service: Service, listening: socket.socket, *, drain_seconds: int = 30) -> None:
        config = uvicorn.Config(
            app,
            http=impatient(service.limits),
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=drain_seconds,
        )
        self.service = service
        self._server = _Uvicorn(config)
        self._listening = listening

    @classmethod
    def of(
        cls, settings: Settings, listening: socket.socket, *, counts: Counts, tally: Tally | None = None
    ) -> "Server":
        """The server of one process, with its service and routes. `tally`: of all processes, None for this one."""
        service = Service(settings.name, counts=counts, limits=settings.limits, tally=tally, row=settings.row)
        keys = Keys.of_digests(settings.keys)
        app = create_app(service, keys=keys, version=settings.version, release_date=settings.release_date)
        return cls(app, service, listening, drain_seconds=settings.drain_seconds)

    @property
    def started(self) -> bool:
        """Whether it takes connections."""
        return self._server.started

    def start(self, planner: Planner, device: Device, *, dtype: str, batch_invariant: bool) -> None:
        """Answer from now on. May be called from any thread."""
        self.service.start(planner, device, dtype=dtype, batch_invariant=batch_invariant)

    def stop(self) -> None:
        """May be called from any thread."""
        self.service.drain()
        self._server.should_exit = True

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        return self._server.should_exit

    async def run(self) -> str | None:
        """Serve until it is stopped. Returns what went wrong, None if nothing did."""
        watching = asyncio.ensure_future(self._watch())
        try:
            await self._server.serve(sockets=[self._listening])
        finally:
            watching.cancel()
            self.service.close()
        lost = self.service.check()
        return None if lost is None else f"the device is lost: {lost}"

    async def _watch(self) -> None:
        while self.service.check() is None:
            await asyncio.sleep(0.25)
        await asyncio.sleep(LAST_WORDS)
        self._server.should_exit = True


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whom the process belongs: uvicorn would raise them again when it has ended, and so its exit
    status would be that of a killed process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@runtime_checkable
class Stoppable(Protocol):
    """A server in one process or in several."""

    @property
    def stopping(self) -> bool:
        """Whether it was told to end."""
        ...

    def stop(self) -> None:
        """End when what is in work is answered. May be called from any thread."""
        ...


@contextlib.contextmanager
def stopped_by_signals(server: Stoppable, *, interrupted: Callable[[], None]) -> Generator[None]:
    """SIGTERM and SIGINT stop the server as long as the context lasts; a second SIGINT calls `interrupted`."""

    def stop(number: int, frame: object) -> None:
        if number == signal.SIGINT and server.stopping:
            interrupted()
        server.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections. Raises OSError."""
    return _listen(host, port, shared=False)


def listen_for_each(host: str, port: int, processes: int) -> list[socket.socket]:
    """Sockets of one address, between which the system spreads connections. Raises OSError."""
    # The system would let another server share the address with this one; this finds out whether there is one.
    with listen(host, port) as probe:
        port = probe.getsockname()[1]
    return [_listen(host, port, shared=True) for _ in range(processes)]


def _listen(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        host.encode("idna")
    except UnicodeError:  # which the system's calls raise as another error
        raise OSError(errno.EINVAL, "this is no name of a host") from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=1_024, reuse_port=shared)
    # Connections inherit it. Without it the body of a response waits for the client to acknowledge the head: 40 ms.
    # The event loop sets it only on sockets that name their protocol, which this one does not.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """Its URL."""
    host, port, *_ = listening.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def logged_to_standard_error() -> Generator[None]:
    """A line for each request, as long as the context lasts."""
    access = logging.getLogger("flide_jax.access")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    before = access.level, access.propagate
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False
    try:
        yield
    finally:  # Whoever goes on in this process may have another standard error, or none.
        access.removeHandler(handler)
        access.setLevel(before[0])
        access.propagate = before[1]


def end_at_once(status: int) -> NoReturn:
    """End the process without waiting for threads, which may hang in the device, or work for those who have left."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
