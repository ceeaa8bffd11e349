"""Requests that tests ask, and how they wait and compare."""

import socket
import time
from collections.abc import Callable

from flide_jax.verification import TOLERANCES
from tests.serving.live import Live

NOUL = {"type": "noul", "instructions": "Does this need a reply within the hour?"}
CHOICE = {"type": "choice", "instructions": "What next?", "criteria": {"refund": "refund it", "wait": None}}
SCORE = {"type": "score", "instructions": "How angry?", "criteria": ["calm", {"label": "annoyed"}, ["angry"]]}
ASKED = {
    "model": "jev-latest",
    "state": {"order": 1182, "text": "The screen is cracked."},
    "questions": {"urgent": NOUL, "next": CHOICE, "mood": SCORE},
}


def asked(question: object, **fields: object) -> dict:
    return {"state": "s", "questions": {"q": question}, **fields}


def until(reached: Callable[[], bool], *, seconds: float = 30) -> None:
    """Waits for something that another thread does."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def head(body: bytes, **headers: str) -> bytes:
    lines = {"host": "x", "content-length": str(len(body)), **headers}
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST /v1/systemone HTTP/1.1\r\n{text}\r\n".encode()


def is_closed(live: Live) -> bool:
    try:
        socket.create_connection(live.host_and_port, timeout=1).close()
    except OSError:
        return True
    return False


def assert_close(found: dict, expected: dict) -> None:
    assert list(found) == list(expected)
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_close(found[name], value)
        elif isinstance(value, float):
            # A confidence or score is a sum over probabilities, with weights of at most 10.
            assert abs(found[name] - value) <= 10 * TOLERANCES["float32"]
        elif name != "choice":
            assert found[name] == value
