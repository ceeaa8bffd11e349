"""The application as a process: a socket, signals, and an end that says what happened."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Generator

import uvicorn
from starlette.types import ASGIApp

from flide_jax.serving.service import Service

# Between the loss of the device and the end of the process: what was in work hears of it, and so does a health check.
_LAST_WORDS = 1.0


class Server:
    """One server on one socket.

    `stop` makes it take no new connections, answer what it has, and end.
    """

    def __init__(self, app: ASGIApp, service: Service, *, drain_seconds: int = 30) -> None:
        config = uvicorn.Config(
            app,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=drain_seconds,
        )
        self._server = _Uvicorn(config)
        self._service = service

    @property
    def started(self) -> bool:
        """Whether it takes connections."""
        return self._server.started

    def stop(self) -> None:
        """May be called from any thread."""
        self._service.drain()
        self._server.should_exit = True

    async def run(self, listening: socket.socket) -> str | None:
        """Serve until it is stopped. Returns why the device was lost, None if it was not."""
        watching = asyncio.ensure_future(self._watch())
        try:
            await self._server.serve(sockets=[listening])
        finally:
            watching.cancel()
        return self._service.check()

    @contextlib.contextmanager
    def signals(self, *, interrupted: Callable[[], None]) -> Generator[None]:
        """SIGTERM and SIGINT stop the server as long as the context lasts; a second SIGINT calls `interrupted`."""

        def stop(number: int, frame: object) -> None:
            if number == signal.SIGINT and self._server.should_exit:
                interrupted()
            self.stop()

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def _watch(self) -> None:
        while self._service.check() is None:
            await asyncio.sleep(0.25)
        await asyncio.sleep(_LAST_WORDS)
        self._server.should_exit = True


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whom the process belongs: uvicorn would raise them again when it has ended, and so its exit
    status would be that of a killed process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.create_server((host, port), family=family, backlog=1_024)
    # Connections inherit it. Without it the body of a response waits for the client to acknowledge the head: 40 ms.
    # The event loop sets it only on sockets that name their protocol, which this one does not.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def address_of(listening: socket.socket) -> str:
    """Its URL."""
    host, port, *_ = listening.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def end_at_once(status: int) -> None:
    """End the process without waiting for threads that may hang in the device."""
    os._exit(status)
