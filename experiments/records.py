"""Records of runs: one JSON object a line, appended to a file of `results/`, with what produced it."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pallas_kernels.provenance import provenance

RESULTS = Path(__file__).parent / "results"
CARD = "NVIDIA H200"
"""The device of the results; what runs elsewhere is recorded, and no result."""


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


def counts(record: Mapping[str, Any]) -> bool:
    """Whether a record is a result: of the card, computed with what an engine chooses by itself."""
    return bool(record["device"] == CARD and record.get("implementation") is None)


def results(name: str) -> list[dict]:
    """The records of an experiment that are results, the oldest first."""
    return list(filter(counts, read(RESULTS / f"{name}.jsonl")))


def largest(found: Iterable[dict], keys: Sequence[str], *, by: str) -> list[dict]:
    """Of each combination of `keys` the record with most of `by`, the newest of these: a small run is no news."""
    best: dict[tuple[Any, ...], dict] = {}
    for record in found:
        key = tuple(record[name] for name in keys)
        if key not in best or record[by] >= best[key][by]:
            best[key] = record
    return list(best.values())


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal: which weights a record is about."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
