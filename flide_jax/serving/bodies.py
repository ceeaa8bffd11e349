"""Bodies of requests: read to a limit, and unpacked to a limit."""

import sys
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from flide_jax.serving import refusals

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_FRAMES = 16
"""Of one body. Python's decompressors copy all that follows a frame, so many small ones would take long."""
# A frame says how much memory it wants; more than 32 MiB it does not get.
_ZSTD_OPTIONS = {int(zstd.DecompressionParameter.window_log_max): 25}

type Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientLeftError(Exception):
    """The client closed the connection."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


async def read_body(
    receive: Receive, *, limit: int, declared: str | None, take: Callable[[int], None] = lambda size: None
) -> bytes:
    """The body of a request as it was sent.

    Args:
        receive: of ASGI.
        limit: most bytes.
        declared: the header `content-length`; a body that says it is too long is not read.
        take: is told of the bytes of each part; what it raises ends the reading.

    Raises:
        Refusal: it is longer than the limit.
        ClientLeftError: it did not come to its end.
    """
    if declared is not None and declared.isdecimal() and int(declared) > limit:
        raise refusals.too_large(limit)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise refusals.too_large(limit)
        take(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def unpack(body: bytes, encoding: str | None, *, limit: int) -> bytes:
    """The body without its content encoding.

    Raises:
        Refusal: an encoding that is not read, a body that is not in it or in more than `MOST_FRAMES` frames of it, or
            one that unpacks to more than the limit.
    """
    match (encoding or "identity").strip().lower():
        case "identity":
            return body
        case "gzip" | "x-gzip":
            return _decompress(body, "gzip", lambda: zlib.decompressobj(wbits=31), limit)
        case "zstd":
            return _decompress(body, "zstd", lambda: zstd.ZstdDecompressor(options=_ZSTD_OPTIONS), limit)
    raise refusals.unknown_encoding()


def _decompress(body: bytes, name: str, create: Callable[[], _Decompressor], limit: int) -> bytes:
    """All frames of a body, one after another; never more than one byte past the limit in memory."""
    parts: list[bytes] = []
    room = limit + 1
    rest = body
    while rest or not parts:
        if len(parts) == MOST_FRAMES:
            raise refusals.unreadable_body(f"{name} in more than {MOST_FRAMES} frames")
        frame = create()
        try:
            part = frame.decompress(rest, room)
        except (zlib.error, zstd.ZstdError):
            raise refusals.unreadable_body(f"not {name}") from None
        room -= len(part)
        if not room:
            raise refusals.too_large(limit)
        if not frame.eof:
            raise refusals.unreadable_body(f"{name} that ends too early")
        parts.append(part)
        rest = frame.unused_data
    return b"".join(parts)
