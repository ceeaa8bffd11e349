"""Records of runs: one JSON object a line, appended to a file of `results/`, with what produced it."""

import argparse
import dataclasses
import hashlib
import importlib.metadata
import json
from pathlib import Path

from flide_jax.engine import EngineConfig
from pallas_kernels.provenance import plain, provenance

RESULTS = Path(__file__).parent / "results"
# Of weights, tokens and texts, wherever an experiment draws them and says no other.
SEED = 0


def append(
    options: argparse.Namespace,
    record: dict,
    *,
    config: EngineConfig | None = None,
    seed: int | str | None = SEED,
) -> dict:
    """Append a record to the file `options.results`, with what produced it; returns the whole.

    Args:
        options: the command's arguments.
        record: what was found.
        config: of the engine that was measured, on the default backend.
        seed: what drew at random; None where nothing did.
    """
    record = record | {"config": None if config is None else resolved(config), "seed": seed} | provenance(options)
    options.results.parent.mkdir(parents=True, exist_ok=True)
    with options.results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return record


def resolved(config: EngineConfig) -> dict:
    """The fields of a config as JSON has them, with the dtype and the capacities that it means on this backend."""
    capacities = [capacity.tokens for capacity in config.ladder().capacities]
    return plain(dataclasses.asdict(config) | {"dtype": config.resolved_dtype().name, "capacities": capacities})


def packages(*names: str) -> dict[str, str]:
    """Their versions, as far as installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def read(path: Path) -> list[dict]:
    """The records of a file, the oldest first."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def newest(path: Path) -> dict:
    """The last record of a file."""
    return read(path)[-1]


CARD = "NVIDIA H200"
"""The device of the results; what runs elsewhere is recorded, and no result."""


def counts(record: dict, *, implementation: str | None = None) -> bool:
    """Whether a record is a result: of the card, and computed with what an engine chooses by itself or this."""
    return bool(record["device"] == CARD and record.get("implementation") == implementation)


def results(name: str, *, implementation: str | None = None) -> list[dict]:
    """The records of an experiment that are results, and not of a version that was tried beside what is here; the
    oldest first. `implementation`: of the ops, where each has."""
    found = [one for one in read(RESULTS / f"{name}.jsonl") if "version" not in one]
    return [one for one in found if counts(one, implementation=implementation)]


def largest(found: list[dict], keys: tuple[str, ...], *, by: str) -> list[dict]:
    """Of each combination of `keys` the record with most of `by`, the newest of these: a small run is no news."""
    best: dict[tuple, dict] = {}
    for record in found:
        key = tuple(record[name] for name in keys)
        if key not in best or record[by] >= best[key][by]:
            best[key] = record
    return list(best.values())


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal: which weights a record is about."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
