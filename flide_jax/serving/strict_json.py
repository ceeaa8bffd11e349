"""JSON text as RFC 8259 has it, and nothing that Python's reader lets pass beyond it.

Python keeps the last of two equal keys, so that an option named twice would vanish without a word; it reads NaN, and
1e999 as infinity; and it takes a deep enough nesting for an error of its own.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from flide_jax.request import MAX_INTEGER_DIGITS, RequestError


@dataclass(frozen=True)
class _Fault:
    """Stands for what is refused, so that its place can be found once all has been read.

    Attributes:
        rule: what is wrong.
        key: of an object, that is wrong in it.
    """

    rule: str
    key: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Draft:
    """A JSON value that was read, in parts of which something may be refused.

    Attributes:
        value: the whole.
        faulty: whether anything in it is refused. Only `check` may look at it then.
    """

    value: Any
    faulty: bool

    def check[T](self, part: T) -> T:
        """A part of the value, in which nothing is refused. Raises RequestError, located within the part."""
        # The stack is a list: a nesting may be deeper than Python's own. A place is a key behind the place of what
        # holds it, since of many values the whole locations would take long to write.
        stack: list[tuple[Any, Any]] = [(None, part)] if self.faulty else []
        while stack:
            place, found = stack.pop()
            if isinstance(found, _Fault):
                raise RequestError((*_location(place), *found.key), found.rule)
            items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
            stack += reversed([((place, key), item) for key, item in items if isinstance(item, dict | list | _Fault)])
        return part


def parse(text: bytes) -> Any:
    """One JSON value from UTF-8 text, with or without a byte order mark.

    Raises:
        RequestError: as `read` does; or a key twice in one object, NaN, an infinity or a number that becomes one, an
            integer of more than `MAX_INTEGER_DIGITS` digits: the location of the first such key or number.
    """
    draft = read(text)
    return draft.check(draft.value)


def read(text: bytes) -> Draft:
    """One JSON value from UTF-8 text, whose parts are still to be checked.

    Raises:
        RequestError: not UTF-8, not JSON, or a nesting too deep to read. It says where if it can: the offset of what is
            not UTF-8, the line and column of what is not JSON.
    """
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError((), f"not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}") from None
    if not decoded.strip():
        raise RequestError((), "empty: a JSON object is expected")
    faulty = False

    def refuse(rule: str, *key: str) -> _Fault:
        nonlocal faulty
        faulty = True
        return _Fault(rule, key)

    def read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Fault:
        found = dict(pairs)
        if len(found) == len(pairs):
            return found
        counts = Counter(key for key, _ in pairs)
        return refuse("this key stands twice in its object", next(key for key in counts if counts[key] > 1))

    def read_constant(name: str) -> _Fault:
        return refuse(f"NaN and infinities are not JSON, got {name}")

    def read_float(text: str) -> float | _Fault:
        found = float(text)
        return found if math.isfinite(found) else refuse("a number that is no finite float64 is not allowed")

    def read_int(text: str) -> int | _Fault:
        digits = len(text.removeprefix("-"))
        if digits > MAX_INTEGER_DIGITS:
            return refuse(f"an integer of more than {MAX_INTEGER_DIGITS:,} digits is not allowed, got {digits:,}")
        return int(text)

    try:
        value = json.loads(
            decoded,
            object_pairs_hook=read_object,
            parse_constant=read_constant,
            parse_float=read_float,
            parse_int=read_int,
        )
    except json.JSONDecodeError as error:
        raise RequestError((), f"not JSON: {error}") from None
    except RecursionError:
        raise RequestError((), "objects and arrays are nested too deep") from None
    return Draft(value, faulty)


def _location(place: Any) -> tuple[str | int, ...]:
    keys: list[str | int] = []
    while place is not None:
        place, key = place
        keys.append(key)
    return tuple(reversed(keys))
