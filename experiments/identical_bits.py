"""How many answers keep their bits in company, and what does it cost that all of them do?

Requests of the workloads' token profiles with random tokens, each alone and then in rounds of up to 8 and up to 64,
shuffled too, and some in every way of `flide_jax.same_bits`; in the usual mode and batch-invariant. Prediction: all of
them batch-invariant, hardly any in the usual mode in bfloat16 on an H200; 10 % of time for 64 queued requests at most,
20 % for a lone one of 325 tokens. How to read the result: shares of answers (label logits of a question) whose bits are
those of their request alone; then, of the usual mode, the operation in which a request first differs; then times.

Run as `python -m experiments.identical_bits`: on an accelerator for random weights at true sizes, which takes long for
4B; on a CPU for the shipped model and few requests. Records go to `results/identical_bits.jsonl`.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import latency, records
from experiments.arguments import positive
from experiments.measured_model import DEMO, model, parameters
from experiments.model_sizes import SIZES
from experiments.random_requests import PROFILE_OF, PROFILES, random_plan, read_profile
from flide_jax.engine import EngineConfig, serialised
from flide_jax.engine.executables import Executables
from flide_jax.engine.program import Program
from flide_jax.first_difference import first_difference
from flide_jax.layout import Demand, capacities_of_rounds, form_rounds
from flide_jax.prompts.plan import Plan
from flide_jax.same_bits import BitsComparison, Logits, compare_bits
from pallas_kernels.trees import WORKLOADS

MODES = {"batch-invariant": True, "usual": False}
# Without arguments on any machine, and for a true size on one whose compiler is quick enough for so few.
SMALL = {"workload": ["race-all"], "most": 6, "capacities": [640, 1_024]}
WHOLE = {"workload": [*WORKLOADS], "most": None, "capacities": [384, 640, 1_280, 2_816, 4_096, 7_680, 16_384]}


def requests(workload: str, *, most: int | None, vocabulary: int, longest: int) -> list[Plan]:
    """Random tokens in the lengths of a profile's requests, as far as they are not longer than the largest capacity."""
    rng = np.random.default_rng(records.SEED)
    found = read_profile(PROFILES / f"{PROFILE_OF[workload]}.json")[:most]
    plans = [random_plan(request, rng, vocabulary=vocabulary) for request in found]
    return [plan for plan in plans if plan.tokens <= longest]


def ways(run: Executables, plans: Sequence[Plan], *, in_detail: int) -> list[BitsComparison]:
    """Requests alone against the same in company; the first `in_detail` in every way that `compare_bits` knows."""
    alone = [run.logits_in(run.ladder.smallest_for(Demand.of(plan)), [plan])[0] for plan in plans]

    def rounds_of(most: int, order: Sequence[int]) -> Iterable[tuple[int, Logits, Logits]]:
        for together in itertools.batched(order, most):
            for number, found in zip(together, run.logits([plans[i] for i in together]), strict=True):
                yield number, alone[number], found

    shuffled = np.random.default_rng(records.SEED + 1).permutation(len(plans)).tolist()
    return [
        BitsComparison.of("rounds of up to 8", rounds_of(8, range(len(plans)))),
        BitsComparison.of("rounds of up to 64", rounds_of(64, range(len(plans)))),
        BitsComparison.of("shuffled rounds of up to 64", rounds_of(64, shuffled)),
        *compare_bits(run, plans[:in_detail]),
    ]


def where(run: Executables, program: Program, plans: Sequence[Plan]) -> dict[str, Any] | None:
    """The operation in which the last request of the first round parts from itself alone; None where it does not."""
    demands, ladder = [Demand.of(plan) for plan in plans], run.ladder
    members, *_ = form_rounds(demands, ladder.largest)
    capacity, *_ = capacities_of_rounds(demands, ladder)
    together = [plans[i] for i in members]
    alone = (together[-1:], 0, ladder.smallest_for(demands[members[-1]]))
    found = first_difference(program, run.params, alone, (together, len(together) - 1, capacity))
    return None if found is None else dataclasses.asdict(found)


def cost(run: Executables, plans: Sequence[Plan], *, repeats: int) -> dict[str, Any]:
    """Milliseconds of a lone request, and requests a second of 64 queued ones."""
    latency.measure(run, plans[:2])
    lone = latency.measure(run, [plans[i % len(plans)] for i in range(repeats)])
    rate, samples = latency.throughput(run, [plans[i % len(plans)] for i in range(64)])
    kept = ("lone_ms", "busy_ms", "samples_ms", "busy_samples_ms")
    return {name: lone[name] for name in kept} | {"queued_64": rate, "queued_64_samples_ms": samples}


def measure(
    options: argparse.Namespace, size: str, append: Callable[[dict[str, Any], EngineConfig], dict[str, Any]]
) -> list[dict[str, Any]]:
    """One record for each mode and workload of a size."""
    params, found = None, []
    for mode in options.mode:
        batch_invariant = MODES[mode]
        config = EngineConfig(capacities=tuple(options.capacities), batch_invariant=batch_invariant)
        made = model(size, config)
        params = parameters(size, made) if params is None else params
        processes = serialised.default_processes()
        compiled = serialised.executables(made, config.ladder().capacities, processes=processes)
        run = Executables.of(made, params, config)
        run.add(compiled)
        for workload in options.workload:
            limits = {"most": options.most, "longest": run.ladder.largest.tokens}
            plans = requests(workload, vocabulary=made.architecture.vocabulary, **limits)
            record = {
                "size": size,
                "workload": workload,
                "batch_invariant": batch_invariant,
                "dtype": made.dtype.name,
                "capacities": options.capacities,
                "requests": len(plans),
                "ways": {one.way: [one.same, one.questions] for one in ways(run, plans, in_detail=options.in_detail)},
                "first_difference": where(run, made, plans) if options.where else None,
                "cost": cost(run, plans, repeats=options.repeats) if options.repeats else None,
            }
            found.append(append(record, config))
            print(_shown(record), flush=True)
    return found


def _shown(record: dict[str, Any]) -> str:
    (mode,) = (name for name, value in MODES.items() if value == record["batch_invariant"])
    cost = record["cost"] or {}
    times = "".join(f"  {name} {cost[name]:.2f}" for name in ("lone_ms", "busy_ms", "queued_64") if cost)
    part = record["first_difference"]
    first = "" if part is None else f"  first in layer {part['layer']}, {part['operation']}"
    shares = [f"  {way:28} {same} of {questions}" for way, (same, questions) in record["ways"].items()]
    return "\n".join([f"{record['size']:5} {record['workload']:15} {mode:15}{first}{times}", *shares])


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints shares for each size, mode and workload, and appends a record for each."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", action="append", choices=[DEMO, *SIZES], help="0.8B and 4B, or demo on a CPU")
    parser.add_argument("--workload", action="append", choices=[*WORKLOADS])
    parser.add_argument("--mode", action="append", choices=[*MODES], help="both by default")
    parser.add_argument("--most", type=positive, help="requests of each profile; for a true size all by default")
    parser.add_argument("--in-detail", type=positive, default=8, help="requests that are asked in every way")
    parser.add_argument("--capacities", type=positive, nargs="+")
    parser.add_argument("--where", action="store_true", help="also find the first operation that differs")
    parser.add_argument("--repeats", type=int, default=20, help="lone requests that are timed; 0: no times")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "identical_bits.jsonl")
    given = parser.parse_args(arguments)
    found = []
    for size in given.size or ([DEMO] if on_cpu else ["0.8B", "4B"]):
        defaults = SMALL if size == DEMO else WHOLE
        chosen = {name: getattr(given, name) or value for name, value in defaults.items()}
        options = argparse.Namespace(**vars(given) | chosen | {"mode": given.mode or [*MODES]})
        found += measure(options, size, lambda record, config: records.append(given, record, config=config))
    return found


if __name__ == "__main__":
    main()
