"""How much device memory does a model take, and does the account that is made beforehand hold?

`flide-jax inspect --memory` asks the compiler, before anything is allocated, for the bytes of weights and of each
capacity's round (`flide_jax.engine.memory`). Here rounds of some capacities run as well, filled to the last row, and
the device is asked for its peak (the paper's Table 14; how busy the device is, its other half, is `busy` over `lone` in
`latency`). Random weights at a true size of Qwen3.5, or the demo model (the default on a CPU, which has no count of its
own: there the account stands alone).

Predictions, on one H200: the peak is what the account says to a tenth; 0.8B takes at most 2.5 GiB and 4B at most 9.5,
with a round of 16,384 tokens, where the original engine holds 4.6 and 13.1 once its graphs are recorded.
How to read the result: `account` is weights plus the largest round, `peak` what JAX's allocator counted, `process` what
the driver says that the process holds: libraries, recorded graphs and unused parts of the allocator's pool come on top.

Run as `python -m experiments.memory_use`; `--size 0.8B` on an accelerator, with XLA_PYTHON_CLIENT_PREALLOCATE=false for
`process`. Records go to `results/memory_use.jsonl`.
"""

import argparse
import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import records
from experiments.arguments import positive
from experiments.measured_model import DEMO, model, parameters
from experiments.model_sizes import SIZES
from experiments.random_requests import random_plan
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.executables import Executables
from flide_jax.engine.memory import memory_use
from flide_jax.engine.program import precision
from pallas_kernels.trees import Request

GIB = 2**30
# GiB that the original engine (0.1.4) holds on one H200 in bfloat16, as the driver says.
ORIGINAL = {"0.8B": 4.56, "4B": 13.07}
BRANCHES = 8


def process_bytes() -> int | None:
    """Device memory of this process as the driver says; None where there is no such driver."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    found = {int(pid): int(used) for pid, used in (line.split(",") for line in lines)}
    # In a container the driver knows processes by other numbers: one process there is this one.
    used = found.get(os.getpid(), next(iter(found.values())) if len(found) == 1 else None)
    return None if used is None else used * 2**20


def peak_bytes() -> int | None:
    """The most that was allocated at once; None on a device that does not count."""
    statistics = jax.devices()[0].memory_stats()
    return None if statistics is None else statistics.get("peak_bytes_in_use")


def measure(size: str, config: EngineConfig) -> dict[str, Any]:
    """The account of a model, and the device's count once rounds of its capacities have run."""
    made = model(size, config)
    account = memory_use(made, config.ladder().capacities)
    params = parameters(size, made)
    jax.block_until_ready(params)
    drawn = peak_bytes()  # drawing random weights may take more than keeping them
    run = Executables.of(made, params, config)
    rng = np.random.default_rng(records.SEED)
    rounds = []
    with precision(made.dtype):
        for rows in (capacity.tokens for capacity in config.ladder().capacities):
            question = min(64, rows // (2 * BRANCHES))
            request = Request(rows - BRANCHES * question, BRANCHES * [question])
            run.logits([random_plan(request, rng, vocabulary=made.architecture.vocabulary)])
            rounds.append({"tokens": rows, "peak": peak_bytes(), "process": process_bytes()})
    return {
        "size": size,
        "dtype": made.dtype.name,
        "weights": account.weights,
        "account": account.peak,
        "rounds": [dataclasses.asdict(one) for one in account.rounds],
        "after_weights": drawn,
        "measured": rounds,
        "original_gib": ORIGINAL.get(size),
    }


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints a table; appends one record for each size."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", action="append", choices=[DEMO, *SIZES], help="0.8B and 4B, or demo on a CPU")
    parser.add_argument(
        "--capacities", type=positive, nargs="+", default=[128, 512] if on_cpu else [640, 2_688, 16_384]
    )
    parser.add_argument("--results", type=Path, default=records.RESULTS / "memory_use.jsonl")
    options = parser.parse_args(arguments)
    config, found = EngineConfig(capacities=tuple(options.capacities)), []
    print(
        f"{'GiB':8}{'tokens':>8}{'weights':>10}{'round':>10}{'account':>10}{'peak':>10}{'process':>10}{'original':>10}"
    )
    for size in options.size or ([DEMO] if on_cpu else ["0.8B", "4B"]):
        record = records.append(options, measure(size, config), config=config)
        for one, ran in zip(record["rounds"], record["measured"], strict=True):
            taken = sum(one[name] for name in ("metadata", "temporaries", "outputs"))
            figures = (record["weights"], taken, record["weights"] + taken, ran["peak"], ran["process"])
            shown = "".join(f"{'-' if bytes_ is None else f'{bytes_ / GIB:.3f}':>10}" for bytes_ in figures)
            print(f"{size:8}{one['tokens']:8}{shown}{record['original_gib'] or '-':>10}", flush=True)
        found.append(record)
    return found


if __name__ == "__main__":
    main()
