"""How long does a lone request take, and how many queued ones are answered a second?

Random weights at the true sizes of Qwen3.5, or the demo model (the default on a CPU, where a true size takes hours),
and random token ids: speed does not depend on either, answers would. The request goes from its plan to label logits on
the host, without tokenizer, server and the softmax over a question's options. Prediction: at most the times of the
original engine on the same card (`ORIGINAL`, measured by its own way from plan to logits). How to read the result:
`lone` is the whole way; `host` the part before the device has its work; `busy` the time a call takes when others wait
behind it, so that the host is hidden; `share` is busy over lone, how much of a lone request the device works (GPU use
in the paper's Table 14); `floor` the arithmetic of the products, attention and recurrence at 790 TFLOP/s, or the
weights read once at 4.3 TB/s where that is more; of true sizes alone.

`--profile` takes the lengths of a workload's own requests instead (`profiles/`), each in a capacity of its own, and
`--request 64000+15x100` one of these lengths: a request over the largest capacity is compiled for its own rounded size.

Run as `python -m experiments.latency`: on one accelerator, or on a CPU to see that it runs. Records go to
`results/latency.jsonl`.
"""

import argparse
import re
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import floors, records
from experiments.arguments import implementation, positive
from experiments.measured_model import DEMO, model, parameters
from experiments.model_sizes import SIZES
from experiments.random_requests import PROFILES, random_plan, read_profile
from flide_jax.engine import serialised
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.executables import Executables
from flide_jax.layout import Demand, capacities_of_rounds, lay_out
from flide_jax.prompts.plan import Plan
from pallas_kernels.trees import WORKLOADS, Request

# The original engine (0.1.4) on one H200, bfloat16: ms of a lone request, requests a second of 64 queued.
ORIGINAL = {
    ("0.8B", "race-one"): (2.99, 1110), ("0.8B", "quality-one"): (12.98, 111), ("0.8B", "decision-index"): (5.23, 296),
    ("0.8B", "race-all"): (3.75, 617), ("0.8B", "quality-all"): (26.80, 43.3), ("0.8B", "multirc"): (10.63, 133),
    ("4B", "race-one"): (7.33, 234), ("4B", "quality-one"): (50.68, 22.1), ("4B", "decision-index"): (19.05, 60.0),
    ("4B", "race-all"): (10.73, 135), ("4B", "quality-all"): (111.21, 9.4), ("4B", "multirc"): (39.09, 27.7),
}  # fmt: skip


def lengths(text: str) -> Request:
    """A state's tokens, how many questions and the tokens of each, as a command line has them: 327+48x49."""
    found = re.fullmatch(r"(\d+)\+(\d+)x(\d+)", text)
    state, questions, tokens = map(int, found.groups()) if found else (0, 0, 0)
    if not (state and questions and tokens):
        raise argparse.ArgumentTypeError(f"must be of the form 327+48x49, got {text!r}")
    return Request(state, questions * [tokens])


def executables(size: str, config: EngineConfig, queues: Sequence[Sequence[Plan]] = ()) -> Executables:
    """An engine's executables for the weights of a size; those that these queues need are compiled, side by side."""
    made, ladder = model(size, config), config.ladder()
    demands = [[Demand.of(plan) for plan in plans] for plans in queues]
    needed = {capacity for queue in demands for capacity in capacities_of_rounds(queue, ladder)}
    ordered = sorted(needed, key=lambda capacity: capacity.tokens)
    compiled = serialised.executables(made, ordered, processes=serialised.default_processes())
    run = Executables.of(made, parameters(size, made), config)
    run.add(compiled)
    return run


def measure(run: Executables, plans: Sequence[Plan]) -> dict[str, Any]:
    """Milliseconds of lone requests, one after another: the whole way, the host's part, and the device's."""
    lone, host = [], []
    for plan in plans:
        begin = time.perf_counter()
        stream = lay_out([plan])
        logits = run.dispatch(stream, run.ladder.smallest_for(Demand.of(plan)))
        host.append(time.perf_counter() - begin)
        np.asarray(logits)
        lone.append(time.perf_counter() - begin)
    rounds = [(lay_out([plan]), run.ladder.smallest_for(Demand.of(plan))) for plan in plans[:10]]

    def queue() -> Any:
        return [run.dispatch(*one) for one in rounds]

    busy = [_seconds(queue) / len(rounds) for _ in range(3)]
    low, high = (1e3 * q for q in np.quantile(lone, (0.1, 0.9)))
    return {
        "lone_ms": 1e3 * statistics.median(lone),
        "lone_ms_p10": low,
        "lone_ms_p90": high,
        "host_ms": 1e3 * statistics.median(host),
        "busy_ms": 1e3 * min(busy),
        "busy_samples_ms": [round(1e3 * one, 4) for one in busy],
        "capacity": statistics.median(capacity.tokens for _, capacity in rounds),
        "samples_ms": [round(1e3 * one, 4) for one in lone],
    }


def throughput(run: Executables, plans: Sequence[Plan]) -> tuple[float, list[float]]:
    """Requests a second of a queue in rounds, by the median of three passes after one; and their milliseconds."""
    passes = [_seconds(lambda: run.logits(plans)) for _ in range(4)][1:]
    return len(plans) / statistics.median(passes), [round(1e3 * one, 4) for one in passes]


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - begin


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints a table; appends one record for each size and workload."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", action="append", choices=[DEMO, *SIZES], help="0.8B and 4B, or demo on a CPU")
    parser.add_argument("--workload", action="append", choices=[*WORKLOADS], help="all six, or race-one on a CPU")
    parser.add_argument(
        "--profile", action="append", default=[], choices=sorted(p.stem for p in PROFILES.glob("*.json"))
    )
    parser.add_argument("--request", action="append", default=[], type=lengths, metavar="STATE+NxTOKENS")
    parser.add_argument("--repeats", type=positive, default=5 if on_cpu else 30, help="lone requests of each workload")
    parser.add_argument(
        "--queued", type=positive, nargs="*", default=[4] if on_cpu else [8, 64], help="requests that wait together"
    )
    parser.add_argument("--implementation", type=implementation, help='by op, in JSON: {"segmented_gdn": "xla"}')
    parser.add_argument("--results", type=Path, default=records.RESULTS / "latency.jsonl")
    options = parser.parse_args(arguments)
    sizes = options.size or ([DEMO] if on_cpu else ["0.8B", "4B"])
    if on_cpu and sizes != [DEMO] and options.implementation is None:
        parser.error("a true size takes hours on a CPU: --size demo, or an --implementation if it is meant")
    config, found = EngineConfig(implementation=options.implementation), []
    columns = ("lone", "p10", "p90", "host", "busy", "share", "floor", "original")
    print(f"{'ms':26}", *(f"{column:>8}" for column in columns), " queued/s")
    chosen = options.profile or options.request
    workloads = options.workload or ([] if chosen else ["race-one"] if on_cpu else [*WORKLOADS])
    cases = {name: WORKLOADS[name] for name in workloads}
    cases |= {name: read_profile(PROFILES / f"{name}.json") for name in options.profile}
    cases |= {f"{one.state}+{len(one.branches)}x{one.branches[0]}": [one] for one in options.request}
    for name in sizes:
        made, rng = model(name, config), np.random.default_rng(records.SEED)
        plans = {
            case: [
                random_plan(requests[i % len(requests)], rng, vocabulary=made.architecture.vocabulary)
                for i in range(options.repeats)
            ]
            for case, requests in cases.items()
        }
        queues = {case: {n: [of[i % len(of)] for i in range(n)] for n in options.queued} for case, of in plans.items()}
        needed = [queue for of in queues.values() for queue in of.values()] + [[p] for of in plans.values() for p in of]
        run = executables(name, config, needed)
        for case, lone in plans.items():
            measure(run, lone)  # warms up
            record = measure(run, lone) | {"size": name, "workload": case, "dtype": made.dtype.name}
            if name in SIZES:
                used = [cases[case][i % len(cases[case])] for i in range(options.repeats)]
                record["floor_ms"] = 1e3 * statistics.median(floors.of_pass(SIZES[name], [request]) for request in used)
            rates = {n: throughput(run, queue) for n, queue in queues[case].items()}
            record["queued"] = {n: rate for n, (rate, _) in rates.items()}
            record["queued_samples_ms"] = {n: samples for n, (_, samples) in rates.items()}
            record["original"] = ORIGINAL.get((name, case))
            record |= {"implementation": options.implementation, "device_share": record["busy_ms"] / record["lone_ms"]}
            found.append(records.append(options, record, config=config))
            print(_line(record), flush=True)
        del run
    return found


def _line(record: dict[str, Any]) -> str:
    lone, rate = record["original"] or (None, "-")
    names = ("lone_ms", "lone_ms_p10", "lone_ms_p90", "host_ms", "busy_ms", "device_share", "floor_ms")
    figures = [*(record.get(name) for name in names), lone]
    shown = " ".join(f"{'-' if figure is None else f'{figure:.2f}':>8}" for figure in figures)
    queued = " ".join(f"{n}: {here:.1f}" for n, here in record["queued"].items())
    return f"{record['size']:5} {record['workload']:20} {shown}  {queued} (original 64: {rate})"


if __name__ == "__main__":
    main()
