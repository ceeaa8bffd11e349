"""How much of a round is padding?

Every request of a token profile goes alone into the smallest capacity that fits it, and 64 of them, in order, into
rounds. Prediction: 2 to 6 % of the rows of lone requests are padding. How to read the result: `alone` and `queued` are
the shares of rows that are padding; `forced` is how many lone requests take a larger capacity than their tokens need,
because of their branches, reads or chunks.

Run as `python -m experiments.padding`; it needs no accelerator. Records go to `results/padding.jsonl`.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from experiments import records
from experiments.random_requests import PROFILES, random_plan, read_profile
from flide_jax.engine import EngineConfig
from flide_jax.layout import Demand, Ladder, capacities_of_rounds
from flide_jax.layout.capacity import RUNGS
from pallas_kernels.trees import Request

QUEUED = 64


def measure(requests: list[Request], ladder: Ladder) -> dict[str, Any]:
    """Shares of padding, alone and queued, and how many requests something else than tokens decides for."""
    rng = np.random.default_rng(records.SEED)
    demands = [Demand.of(random_plan(request, rng, vocabulary=10)) for request in requests]
    alone = [ladder.smallest_for(demand) for demand in demands]
    smallest = [next((c for c in ladder.capacities if c.tokens >= d.tokens), None) for d in demands]
    rounds = capacities_of_rounds(demands[:QUEUED], ladder)
    return {
        "requests": len(requests),
        "alone": float(np.mean([1 - d.tokens / c.tokens for d, c in zip(demands, alone, strict=True)])),
        "alone_rows": 1 - sum(d.tokens for d in demands) / sum(c.tokens for c in alone),
        "queued": 1 - sum(d.tokens for d in demands[:QUEUED]) / sum(c.tokens for c in rounds),
        "forced": sum(c is not s for c, s in zip(alone, smallest, strict=True)),
    }


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints a table; appends one record for each profile."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=records.RESULTS / "padding.jsonl")
    options = parser.parse_args(arguments)
    config = EngineConfig(capacities=RUNGS["fine"])
    found = []
    print(f"{'profile':24} requests   alone  of rows  queued  forced")
    for path in sorted(PROFILES.glob("*.json")):
        record = {"profile": path.stem} | measure(read_profile(path), config.ladder())
        line = "{profile:24} {requests:8} {alone:7.1%} {alone_rows:8.1%} {queued:7.1%} {forced:7}"
        print(line.format_map(record))
        found.append(records.append(options, record, config=config))
    return found


if __name__ == "__main__":
    main()
