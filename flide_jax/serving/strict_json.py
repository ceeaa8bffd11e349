"""JSON text as RFC 8259 has it, and nothing that Python's reader lets pass beyond it.

Python keeps the last of two equal keys, so that an option named twice would vanish without a word; it reads NaN, and
it takes a deep enough nesting for an error of its own.
"""

import json
from collections.abc import Callable
from typing import Any

from flide_jax.request import MAX_INTEGER_DIGITS, RequestError


def parse(text: bytes) -> Any:
    """One JSON value from UTF-8 text, with or without a byte order mark.

    Raises:
        RequestError: not UTF-8, not JSON, a key twice in one object, NaN or an infinity, an integer of more than
            `MAX_INTEGER_DIGITS` digits, or a nesting too deep to read. It says where if it can: the location of the key
            or number, the line and column of what is not JSON, the offset of what is not UTF-8.
    """
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError((), f"not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}") from None
    if not decoded.strip():
        raise RequestError((), "empty: a JSON object is expected")
    repeated: list[tuple[dict[str, Any], str]] = []

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                repeated.append((found, key))
            found[key] = value
        return found

    refused: list[tuple[object, str]] = []

    def refuse(rule: str) -> object:
        mark = object()  # It stands for the number, so that its place can be found once all has been read.
        refused.append((mark, rule))
        return mark

    def read_constant(name: str) -> object:
        return refuse(f"NaN and infinities are not JSON, got {name}")

    def read_int(text: str) -> object:
        digits = len(text.removeprefix("-"))
        if digits > MAX_INTEGER_DIGITS:
            return refuse(f"an integer of more than {MAX_INTEGER_DIGITS:,} digits is not allowed, got {digits:,}")
        return int(text)

    try:
        value = json.loads(decoded, object_pairs_hook=read_object, parse_constant=read_constant, parse_int=read_int)
    except json.JSONDecodeError as error:
        raise RequestError((), f"not JSON: {error}") from None
    except RecursionError:
        raise RequestError((), "objects and arrays are nested too deep") from None
    if repeated:
        # Inner objects are read first, so the last of them lies in nothing that another repetition has replaced.
        holder, key = repeated[-1]
        raise RequestError(
            (*_location(value, lambda found: found is holder), key), "this key stands twice in its object"
        )
    if refused:
        mark, rule = refused[0]
        raise RequestError(_location(value, lambda found: found is mark), rule)
    return value


def _location(value: Any, wanted: Callable[[Any], bool]) -> tuple[str | int, ...]:
    """Where the first wanted value stands. The stack is a list: a nesting may be deeper than Python's own."""
    stack: list[tuple[tuple[str | int, ...], Any]] = [((), value)]
    while stack:
        location, found = stack.pop()
        if wanted(found):
            return location
        items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
        stack += reversed([((*location, key), item) for key, item in items])
    raise AssertionError("the value is not part of what was read")
