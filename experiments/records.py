"""Records of runs: one JSON object a line, appended to a file of `results/`, with what produced it."""

import datetime
import hashlib
import json
import subprocess
from pathlib import Path

import jax
import numpy as np

RESULTS = Path(__file__).parent / "results"


def append(path: Path, record: dict) -> dict:
    """Append a record with its provenance to a file; returns the whole."""
    record = record | {
        "commit": _git("rev-parse", "HEAD"),
        "changed": _changed(),  # whether files differed from that commit; those of the records do not count
        "device": jax.devices()[0].device_kind,
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
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


def _changed() -> bool | None:
    """None where git does not say."""
    differs = _git("status", "--porcelain", "--", ":/", f":(exclude,top)experiments/{RESULTS.name}")
    return None if differs is None else differs != ""


def _git(*arguments: str) -> str | None:
    """What git says about the directory of this file, None where there is no git or no commit."""
    try:
        done = subprocess.run(["git", *arguments], cwd=RESULTS.parent, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
