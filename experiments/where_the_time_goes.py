"""Where does the time of one pass go, launch by launch?

Traces passes over one request with random weights at a true size, adds up the launches by name, and shows every launch
of one layer of each kind beside the floor of its op. Prediction: products take most, and nothing is far above its floor
but what many tokens do not fill the card with. How to read the result: microseconds of one pass, and of one layer in
the last. The profiler runs every launch on its own, outside the CUDA graph, so the sum is the time the device computes
and leaves gaps out; `experiments.latency` has the whole. Floors are those of the request's tokens, without padding.

Run as `python -m experiments.where_the_time_goes [--size 4B] [--workload quality-all]` on one GPU. It measures
launches, of which a CPU has none, so there is no small size. Records go to `results/where_the_time_goes.jsonl`.
"""

import argparse
import itertools
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import floors, latency, records
from experiments.arguments import implementation, need_gpu, positive
from experiments.layer_launches import Launch, by_name, one_layer_of_each, ops_of, table
from experiments.model_sizes import SIZES
from experiments.random_requests import random_plan
from flide_jax.engine.config import EngineConfig
from flide_jax.layout import Demand, lay_out
from pallas_kernels.bench import trace_launches
from pallas_kernels.trees import WORKLOADS

PASSES = 5


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Prints the launches that take most; appends a record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=[*SIZES], default="4B")
    parser.add_argument("--workload", choices=[*WORKLOADS], default="quality-all")
    parser.add_argument("--implementation", type=implementation, help="as in experiments.latency")
    parser.add_argument("--most", type=positive, default=40, help="names printed")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "where_the_time_goes.jsonl")
    options = parser.parse_args(arguments)
    need_gpu(parser)
    size = SIZES[options.size]
    plan = random_plan(WORKLOADS[options.workload][0], np.random.default_rng(records.SEED), vocabulary=size.vocabulary)
    config = EngineConfig(implementation=options.implementation)
    run = latency.executables(options.size, config, [[plan]])
    stream, capacity = lay_out([plan]), run.ladder.smallest_for(Demand.of(plan))
    for _ in range(3):
        jax.block_until_ready(run.dispatch(stream, capacity))
    found = trace_launches(lambda: [run.dispatch(stream, capacity) for _ in range(PASSES)])
    launches = [Launch(*one) for one in found.in_order]
    in_passes = list(itertools.batched(launches, len(launches) // PASSES))
    sums, of_passes = by_name(launches, PASSES), [by_name(one, 1) for one in in_passes[:PASSES]]
    count, microseconds = (sum(column) for column in zip(*sums.values(), strict=True))
    print(f"{options.size} {options.workload}: {microseconds:.0f} us, {count:.0f} launches")
    for name, (count, us) in itertools.islice(sums.items(), options.most):
        print(f"{us:10.1f} us {count:7.1f} x  {name[:100]}")
    one_pass = launches[-(len(launches) // PASSES) :]
    layers, of_layers = one_layer_of_each(one_pass, size.layers), {}
    for kind, layer in layers.items():
        least = floors.of_layer(kind, size, WORKLOADS[options.workload])
        print(f"\none layer, {kind}", *table(layer, least), sep="\n")
        shown = [[op, one.name, round(one.us, 2)] for op, one in zip(ops_of(layer), layer, strict=True)]
        of_layers[kind.value] = {"launches": shown, "floor_us": {op: round(us, 2) for op, us in least.items()}}
    record = {
        "size": options.size,
        "workload": options.workload,
        "launches": sums,
        "samples_us": {name: [one.get(name, (0, 0.0))[1] for one in of_passes] for name in sums},
        "layers": of_layers,
    }
    return records.append(options, record, config=config)


if __name__ == "__main__":
    main()
