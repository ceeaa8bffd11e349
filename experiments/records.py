"""Records of runs: one JSON object a line, appended to a file of `results/`, with what produced it."""

import hashlib
import json
from pathlib import Path

from pallas_kernels.provenance import provenance

RESULTS = Path(__file__).parent / "results"


def append(path: Path, record: dict) -> dict:
    """Append a record with its provenance to a file; returns the whole."""
    record = record | provenance()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return record


def read(path: Path) -> list[dict]:
    """The records of a file, the oldest first."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def newest(path: Path) -> dict:
    """The last record of a file."""
    return read(path)[-1]


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal: which weights a record is about."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
