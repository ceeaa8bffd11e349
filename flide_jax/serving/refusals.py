"""Errors on the wire: which status, and the JSON that clients of System One read.

No text of a state or question stands in them. A `loc` keeps the fields of the format, ids of questions, and indices; it
ends where a key of the user's own content would follow.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flide_jax.request import RequestError, TooLongError

_QUESTION_FIELDS = ("type", "instructions", "criteria")
_LONGEST_NAME = 64


class Refusal(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        detail: a message, `{"error_type", "message"}`, or a list of what is wrong with the body.
        headers: that go with it.
    """

    def __init__(self, status: int, detail: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}

    def body(self) -> bytes:
        """ASCII, since a `loc` may hold what UTF-8 cannot."""
        return json.dumps({"detail": self.detail}, separators=(",", ":"), allow_nan=False).encode()


def _typed(status: int, error_type: str, message: str, **headers: str) -> Refusal:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Refusal(status, {"error_type": error_type, "message": message}, named)


def invalid(error: RequestError | NotImplementedError) -> Refusal:
    """What is wrong with a request: 400 for one that is too long, else 422 with its place in the body."""
    if isinstance(error, TooLongError):
        return _typed(400, "max_tokens_exceeded", error.rule)
    location, rule = (error.location, error.rule) if isinstance(error, RequestError) else ((), str(error))
    kind = "unsupported" if isinstance(error, NotImplementedError) else "missing" if rule == "is required" else "value"
    return Refusal(422, [{"loc": ["body", *public_location(location)], "msg": rule, "type": kind}])


def public_location(location: Sequence[str | int]) -> list[str | int]:
    """The part of a location that is no content of the user: `state` alone; of a question its id, its field, and the
    index or side in its criteria."""
    match location:
        case ("questions", str(name), str(field), *rest) if field in _QUESTION_FIELDS:
            inner = rest[:1] if field == "criteria" and (rest[:1] in (["true"], ["false"]) or _is_index(rest)) else []
            return ["questions", name, field, *inner]
        case ("questions", str(name), str(field), *_) if _is_word(field):
            return ["questions", name, field]  # a misspelt field
        case ("questions", str(name), *_):
            return ["questions", name]
        case ("requests", int(index), *rest):
            return ["requests", index, *public_location(rest)]
        case (str(field), *_) if _is_word(field):
            return [field]
    return []


def _is_word(field: str) -> bool:
    """Whether it may be a field, misspelt. In scripts without spaces a whole sentence is an identifier."""
    return field.isascii() and field.isidentifier() and len(field) <= _LONGEST_NAME


def _is_index(rest: Sequence[str | int]) -> bool:
    return bool(rest) and isinstance(rest[0], int)


def unreadable_body(message: str) -> Refusal:
    """422: the body is not what its headers say."""
    return Refusal(422, [{"loc": ["body"], "msg": message, "type": "body_encoding"}])


def misused(message: str) -> Refusal:
    """400: a header that cannot be used."""
    return _typed(400, "api_usage_error", message)


def unknown_model(name: str) -> Refusal:
    """400: a request names another model."""
    shown = ascii(name)[1:-1]
    shown = shown if len(shown) <= _LONGEST_NAME else f"{shown[:_LONGEST_NAME]}..."
    return _typed(400, "api_usage_error", f"Unknown model: {shown}")


def no_key(message: str) -> Refusal:
    """401: no key, or a wrong one."""
    return _typed(401, "authentication_error", message, www_authenticate="Bearer")


def too_slow(message: str) -> Refusal:
    """408: the body did not arrive in time."""
    return _typed(408, "request_timeout", message, connection="close")


def too_large(limit: int) -> Refusal:
    """413: the body, as sent or unpacked."""
    return _typed(413, "request_too_large", f"a body may have {limit:,} bytes at most, unpacked too")


def unknown_encoding() -> Refusal:
    """415: a content encoding that is not read."""
    return _typed(
        415, "unsupported_encoding", "content-encoding must be zstd, gzip or identity", accept_encoding="zstd, gzip"
    )


def images() -> Refusal:
    """415: multipart bodies carry images."""
    return _typed(415, "unsupported_media_type", "images are not supported: send JSON")


def busy(retry_after: int) -> Refusal:
    """429: as many requests are in work as may be."""
    return _typed(429, "rate_limit_error", "the queue is full", retry_after=str(retry_after))


def failed(message: str) -> Refusal:
    """500: the model or its device failed with this request."""
    return _typed(500, "internal_error", message)


def unavailable(message: str, *, retry_after: int = 1) -> Refusal:
    """503: not ready yet, or not any more."""
    return _typed(503, "unavailable", message, retry_after=str(retry_after))


def timed_out(seconds: float) -> Refusal:
    """504: no answer within the time that the client gives."""
    return _typed(504, "timeout_error", f"no answer within {seconds:g} s")
