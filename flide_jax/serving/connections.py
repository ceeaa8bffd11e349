"""Connections that end when a client is slow. uvicorn has a time for the pause between two requests, and none for a
head that comes byte by byte, or for a response that nobody takes."""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flide_jax.serving.admission import Limits

_HEAD_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def impatient(limits: Limits) -> type[asyncio.Protocol]:
    """The protocol of connections, for `uvicorn.Config(http=...)`."""

    class Impatient(HttpToolsProtocol):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._head = _Timer(self.loop, limits.head_seconds, lambda: self.transport.close())
            self._head_bytes = 0
            self._in_body = False
            # What is not taken is not worth the wait of a close.
            self._taking = _Timer(self.loop, limits.head_seconds, lambda: self.transport.abort())

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._head.start()

        def connection_lost(self, exc: Exception | None) -> None:
            self._head.stop()
            self._taking.stop()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            in_work = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]
            if not in_work:
                self._head.start()
                self._head_bytes += 0 if self._in_body else len(data)  # a body that nobody reads any more is no head
                if self._head_bytes > limits.head_bytes and not self.transport.is_closing():
                    self.transport.write(_HEAD_TOO_LARGE)
                    self.transport.close()

        def on_headers_complete(self) -> None:
            self._head.stop()
            self._head_bytes = 0
            self._in_body = True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_body = False
            super().on_message_complete()

        def pause_writing(self) -> None:
            self._taking.start()
            super().pause_writing()

        def resume_writing(self) -> None:
            self._taking.stop()
            super().resume_writing()

    return Impatient


class _Timer:
    """Calls something when it has run for its time. Starting it while it runs changes nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, ended: Callable[[], None]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._ended = ended
        self._handle: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Run, if it does not run already."""
        if self._handle is None:
            self._handle = self._loop.call_later(self._seconds, self._ended)

    def stop(self) -> None:
        """Run no longer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
