"""What is each idea worth: the engine without one of them.

The same requests are answered by an engine that lacks nothing, and by engines that lack one thing each
(`flide_jax.engine.ablation`): forks, so that every question is a text of its own; command buffers, so that every launch
is sent by itself; the compiled forward, so that Python goes from op to op; shared rounds, so that a queue is answered
one request a replay; the selective readout, so that the last layer runs at every row. Random token ids; random weights
at a true size of Qwen3.5, or the demo model (the default on a CPU).

Predictions, 0.8B on one H200, four questions of RACE: without forks a lone request takes 1.8 times as long, and 48
questions of MultiRC five times; without command buffers 2.5 times; op by op more than twenty times; one request a round
answers half as many a second of a queue; the readout is worth 3 %. On a CPU command buffers do nothing.
How to read the result: `lone` is the median of a request's milliseconds from its plan to label logits, `times` that
over the engine that lacks nothing; `queued` the requests answered a second when many wait, or nothing where that would
take longer than the budget; `moved` the largest difference of a logit over the largest logit: rounding, whatever is
missing.

Run as `python -m experiments.ablation`: of 0.8B on an accelerator. Records go to `results/ablation.jsonl`.
"""

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import records
from experiments.arguments import implementation, positive
from experiments.measured_model import DEMO, model, parameters
from experiments.model_sizes import SIZES
from experiments.random_requests import random_plan
from flide_jax.engine import Ablation, EngineConfig, serialised
from flide_jax.engine.ablation import Logits, logits_without_forks
from flide_jax.engine.executables import Executables
from flide_jax.engine.program import Program, precision
from flide_jax.layout import Capacity, Demand, capacities_of_rounds
from flide_jax.prompts.plan import Plan
from pallas_kernels.trees import WORKLOADS, Request

WITHOUT = {
    "nothing": Ablation(),
    "forks": Ablation(forks=False),
    "shared rounds": Ablation(one_request_a_round=True),
    "selective readout": Ablation(selective_readout=False),
    "command buffers": Ablation(command_buffers=False),
    "compilation": Ablation(op_by_op=True),
}
SMALL = Request(96, 6 * [24])
# What the workloads fill to a twentieth or better, alone and queued, and few enough to compile for every ablation.
RUNGS = (384, 640, 1_280, 2_688, 5_376, 7_680, 10_752, 16_384)


class Ablated:
    """An engine that lacks something, without tokenizer and answers."""

    def __init__(self, made: Program, params: Any, config: EngineConfig) -> None:
        self.program, self.ablation = made, config.ablation
        self.run = Executables.of(made, params, config)

    def texts(self, plans: Sequence[Plan]) -> list[Plan]:
        """What the rounds are made of."""
        if self.ablation.forks:
            return list(plans)
        return [plan.alone(branch) for plan in plans for branch in range(plan.branch_lengths.size)]

    def compile(self, *queues: Sequence[Plan]) -> None:
        """The executables of some queues, side by side."""
        if not self.ablation.op_by_op:
            wanted = set[Capacity]().union(*(self._capacities(self.texts(plans)) for plans in queues))
            ordered = sorted(wanted, key=lambda capacity: capacity.tokens)
            processes = serialised.default_processes()
            self.run.compiled |= serialised.executables(self.program, ordered, processes=processes)

    def logits(self, plans: Sequence[Plan]) -> list[Logits]:
        """Label logits of each plan."""
        with precision(self.program.dtype):
            if self.ablation.forks:
                return self.run.logits(plans)
            return logits_without_forks(plans, self.run.logits)

    def seconds(self, plans: Sequence[Plan]) -> float:
        """Of answering them together."""
        begin = time.perf_counter()
        self.logits(plans)
        return time.perf_counter() - begin

    def _capacities(self, texts: Sequence[Plan]) -> set[Capacity]:
        demands, ladder = [Demand.of(text) for text in texts], self.run.ladder
        if self.ablation.one_request_a_round:
            return {ladder.smallest_for(demand) for demand in demands}
        return set(capacities_of_rounds(demands, ladder))


def measure(ablated: Ablated, plans: Sequence[Plan], *, queued: int, budget: float) -> dict[str, Any]:
    """Times of lone requests and of a queue. Repeats end when the budget of seconds is spent.

    `queued` is None where so many lone requests would pass the budget; `queued_left_out` says so.
    """
    queue = [plans[index % len(plans)] for index in range(queued)]
    ablated.compile(plans[:1], queue)
    begin = time.perf_counter()
    ablated.seconds(plans[:1])  # warms up
    lone = [ablated.seconds([plan]) for plan in _until(begin + budget, plans)]
    fits = statistics.median(lone) * queued < budget
    passes = [ablated.seconds(queue) for _ in range(3)] if fits else []
    return {
        "lone_ms": 1e3 * statistics.median(lone),
        "samples_ms": [round(1e3 * one, 3) for one in lone],
        "queued": queued / min(passes) if fits else None,
        "queued_samples_ms": [round(1e3 * one, 3) for one in passes],
        "queued_left_out": None if fits else f"{queued} lone requests take longer than the budget of {budget} s",
    }


def _until(end: float, plans: Sequence[Plan]) -> list[Plan] | Any:
    """The plans, at least one, as long as there is time."""
    for number, plan in enumerate(plans):
        if number and time.perf_counter() > end:
            return
        yield plan


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Prints a table and appends one record."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=[DEMO, *SIZES], default=DEMO if on_cpu else "0.8B")
    parser.add_argument("--workload", choices=[*WORKLOADS], default="race-all", help="of a true size")
    parser.add_argument("--without", action="append", choices=[*WITHOUT], help="all by default")
    parser.add_argument("--repeats", type=positive, default=3 if on_cpu else 20, help="lone requests")
    parser.add_argument("--queued", type=positive, default=3 if on_cpu else 64)
    parser.add_argument("--budget", type=float, default=5.0, help="seconds for each measurement, about")
    parser.add_argument("--implementation", type=implementation, help='by op, in JSON: {"segmented_gdn": "xla"}')
    parser.add_argument("--results", type=Path, default=records.RESULTS / "ablation.jsonl")
    options = parser.parse_args(arguments)
    request = SMALL if options.size == DEMO else WORKLOADS[options.workload][0]
    # Nothing is recorded on a CPU, so nothing is taken away.
    names = options.without or [name for name in WITHOUT if not (on_cpu and name == "command buffers")]
    config = EngineConfig(implementation=options.implementation, capacities=(256, 768) if on_cpu else RUNGS)
    made = model(options.size, config)
    params = parameters(options.size, made)
    rng = np.random.default_rng(records.SEED)
    plans = [random_plan(request, rng, vocabulary=made.architecture.vocabulary) for _ in range(options.repeats)]
    rows: dict[str, Any] = {}
    expected = None
    print(f"{'without':20}{'lone ms':>10}{'times':>8}{'queued/s':>10}{'moved':>10}")
    for name in dict.fromkeys(["nothing", *names]):
        lacking = dataclasses.replace(config, ablation=WITHOUT[name])
        ablated = Ablated(model(options.size, lacking), params, lacking)
        rows[name] = measure(ablated, plans, queued=options.queued, budget=options.budget)
        found = np.concatenate(ablated.logits(plans[:1]))
        expected = found if expected is None else expected
        rows[name]["moved"] = float(np.abs(found - expected).max() / np.abs(expected).max())
        rows[name]["times"] = rows[name]["lone_ms"] / rows["nothing"]["lone_ms"]
        print(_line(name, rows[name]), flush=True)
    record = {
        "size": options.size,
        "workload": "small" if options.size == DEMO else options.workload,
        "dtype": made.dtype.name,
        "queued": options.queued,
        "without": rows,
    }
    return records.append(options, record, config=config)


def _line(name: str, row: dict[str, Any]) -> str:
    queued = "-" if row["queued"] is None else f"{row['queued']:.1f}"
    return f"{name:20}{row['lone_ms']:10.2f}{row['times']:8.2f}{queued:>10}{row['moved']:10.1e}"


if __name__ == "__main__":
    main()
