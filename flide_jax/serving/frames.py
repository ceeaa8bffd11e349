"""Messages between the processes of one server, over a socket that only they hold: a few JSON fields, and arrays as
they stand in memory.

    bytes 0..3   length of the JSON, little-endian
    bytes 4..7   length of the arrays
    then the JSON: {"kind": ..., "arrays": [[dtype, shape], ...], field: value, ...}
    then the arrays, one behind the other
"""

import asyncio
import dataclasses
import json
import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

_LENGTHS = struct.Struct("<II")
_DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(name) for name in ("int32", "float32", "float64")}


@dataclasses.dataclass(frozen=True, eq=False)
class Message:
    """One message.

    Attributes:
        kind: what it says.
        fields: JSON values.
        arrays: read-only.
    """

    kind: str
    fields: dict[str, Any]
    arrays: list[np.ndarray]


def pack(kind: str, arrays: Sequence[np.ndarray] = (), **fields: Any) -> bytes:
    """A message in bytes. The arrays are int32, float32 or float64."""
    shapes = [[array.dtype.name, array.shape] for array in arrays]
    header = json.dumps(fields | {"kind": kind, "arrays": shapes}, separators=(",", ":")).encode()
    body = b"".join(array.tobytes() for array in arrays)
    return _LENGTHS.pack(len(header), len(body)) + header + body


async def read(reader: asyncio.StreamReader) -> Message | None:
    """The next message. None: the other process has closed the socket, or is gone."""
    try:
        header_length, body_length = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        content = await reader.readexactly(header_length + body_length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    fields = json.loads(content[:header_length])
    arrays, begin = [], header_length
    for name, shape in fields.pop("arrays"):
        dtype, count = _DTYPES[name], math.prod(shape)
        arrays.append(np.frombuffer(content, dtype, count, begin).reshape(shape))
        begin += count * dtype.itemsize
    return Message(fields.pop("kind"), fields, arrays)
