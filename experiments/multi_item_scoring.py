"""What does a delimiter cost, and what a recurrence that no mask reaches?

Multi-item scoring is the nearest that servers have to a fork: one sequence, state and all questions, a delimiter token
before each question, and a mask in which a question attends to the state and to itself, at positions that restart
behind the state. It was made for models of attention alone. Here it is built on our own forward: only the metadata
differs. In a model with Gated DeltaNet layers the mask reaches neither the recurrence nor the convolution, which run
from question to question; and the delimiter is a token that the question asked alone does not have.

Predictions: forking moves no answer but by rounding, in any order. A delimiter alone moves them by a mean total
variation of 0.02 or more. Through the recurrence it is 0.1 or more; the first question is spared, the last is not, and
with the questions in reverse one in twenty answers or more is another.
How to read the result: `moved` is the mean total variation from the same question asked alone, `first` and `last` that
of the first and last question of each request, `changed` the share whose most probable option is another, `reversed`
the mean total variation between the questions in their order and in reverse, `right` the share of right answers. `ms`
is a pass over one request.

Run as `python -m experiments.multi_item_scoring`: on a CPU, or with `--size demo`, the demo model answers; on an
accelerator random weights of 0.8B give times alone. Records go to `results/multi_item_scoring.jsonl`.
"""

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import known_answers, records
from experiments.arguments import positive
from experiments.known_answers import Asked, Probabilities, accuracy, asked, choices, reordered, variations
from experiments.measured_model import DEMO, model, parameters
from experiments.model_sizes import SIZES
from experiments.random_requests import random_plan
from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.program import Program, compiler_options, precision
from flide_jax.layout import Capacity, Demand, Ladder, MetadataLayout, RoundMetadata, lay_out
from flide_jax.prompts.plan import Plan
from pallas_kernels.trees import WORKLOADS

# What stands before a question: nothing, or the token that ends a turn, which no question holds.
DELIMITER = "<|im_end|>"
COLUMNS = ("moved", "largest", "first", "last", "changed", "reversed", "right")


@dataclasses.dataclass(frozen=True)
class Way:
    """How the questions of a request share a stream.

    Attributes:
        delimiter: whether a token stands before each question.
        masked: whether a question attends to nothing but the state and itself, at positions that restart.
        forked: whether its recurrence and convolution start from the state.
    """

    delimiter: bool
    masked: bool
    forked: bool


WAYS = {
    "forked": Way(delimiter=False, masked=True, forked=True),
    "forked, delimiters": Way(delimiter=True, masked=True, forked=True),
    "masked": Way(delimiter=False, masked=True, forked=False),
    "multi-item scoring": Way(delimiter=True, masked=True, forked=False),
    "one text": Way(delimiter=False, masked=False, forked=False),
}


class Passes:
    """One request a pass, in any of the ways, which are data: each capacity compiles once."""

    def __init__(self, made: Program, params: Any, ladder: Ladder, *, delimiter: int) -> None:
        self._program, self._params, self._ladder, self._delimiter = made, params, ladder, delimiter
        self._run = functools.cache(self._compile)

    @classmethod
    def of(cls, engine: Engine) -> "Passes":
        """Those of an engine's model."""
        (token,), _ = engine.prompt_format.tokenizer.template_text(DELIMITER)
        return cls(engine.program, engine.executables.params, engine.executables.ladder, delimiter=int(token))

    def logits(self, plan: Plan, way: Way) -> np.ndarray:
        """Label logits [reads, L] of a plan in which every branch has one read."""
        plan = with_delimiters(plan, self._delimiter) if way.delimiter else plan
        capacity = self._ladder.smallest_for(Demand.of(plan))
        layout = self._program.layout(capacity)
        tree, text = layout.pack(lay_out([plan])), layout.pack(lay_out([as_one_text(plan)]))
        with precision(self._program.dtype):
            found = self._run(capacity)(self._params, tree, text, way.masked, way.forked)
            return np.asarray(found)[: plan.read_branches.size]

    def timed(self, plan: Plan, way: Way) -> tuple[np.ndarray, float]:
        """The same, and the milliseconds from the plan to the logits."""
        begin = time.perf_counter()
        found = self.logits(plan, way)
        return found, 1e3 * (time.perf_counter() - begin)

    def _compile(self, capacity: Capacity) -> Callable[..., Any]:
        layout = self._program.layout(capacity)

        def forward(params: Any, tree: jax.Array, text: jax.Array, masked: jax.Array, forked: jax.Array) -> jax.Array:
            return self._program.forward(params, metadata_of(layout, tree, text, masked=masked, forked=forked))

        return jax.jit(forward, compiler_options=compiler_options(self._program.ablation, capacity.tokens))


def metadata_of(layout: MetadataLayout, tree: Any, text: Any, *, masked: Any, forked: Any) -> RoundMetadata:
    """What the forward reads: of a request's tree what is masked and what is forked, of the text it makes the rest.

    Both streams hold the same tokens in the same rows.
    """
    of_tree, of_text = layout.unpack(tree), layout.unpack(text)

    def choose(flag: Any, *names: str) -> dict[str, Any]:
        trees = ([getattr(metadata, name) for name in names] for metadata in (of_tree, of_text))
        return dict(zip(names, jax.tree.map(lambda one, other: jnp.where(flag, one, other), *trees), strict=True))

    return dataclasses.replace(
        of_tree, **choose(masked, "spans", "rotary_positions"), **choose(forked, "segments", "predecessors")
    )


def with_delimiters(plan: Plan, delimiter: int) -> Plan:
    """The same with a token before every branch."""
    before = np.array([delimiter], np.int32)
    branches = [part for index in range(plan.branch_lengths.size) for part in (before, plan.branch(index))]
    return dataclasses.replace(
        plan,
        branches=np.concatenate(branches),
        branch_lengths=plan.branch_lengths + np.int32(1),
        read_offsets=plan.read_offsets + np.int32(1),
    )


def as_one_text(plan: Plan) -> Plan:
    """State and branches, one after another, without a fork and without reads."""
    none = np.empty(0, np.int32)
    return Plan(
        state=np.concatenate([plan.state, plan.branches]),
        branches=none,
        branch_lengths=none,
        read_branches=none,
        read_offsets=none,
    )


def alone(engine: Engine, known: Sequence[Asked]) -> list[Probabilities]:
    """The answers of every question asked alone, request by request."""
    plans = [[one.plan.alone(index) for index in range(one.plan.branch_lengths.size)] for one in known]
    logits = iter(engine.logits([plan for several in plans for plan in several]))
    return [
        one.probabilities(np.concatenate([next(logits) for _ in several]))
        for one, several in zip(known, plans, strict=True)
    ]


def compare(passes: Passes, known: Sequence[Asked], by_itself: Sequence[Probabilities], way: Way) -> dict[str, Any]:
    """How far the answers to some requests move from those of every question asked alone."""
    moved, back, found, golds, samples = [], [], [], [], []
    for one, expected in zip(known, by_itself, strict=True):
        order = list(range(one.plan.branch_lengths.size))[::-1]
        logits, taken = passes.timed(one.plan, way)
        given, samples = one.probabilities(logits), [*samples, taken]
        turned = one.probabilities(passes.logits(reordered(one.plan, order), way)[order])
        moved.append(variations(given, expected))
        back.append(variations(given, turned))
        found, golds = found + given, golds + [*one.golds]
    every = np.concatenate(moved)
    return {
        "moved": float(every.mean()),
        "largest": float(every.max()),
        "first": float(np.mean([one[0] for one in moved])),
        "last": float(np.mean([one[-1] for one in moved])),
        "changed": float(np.mean(choices(found) != choices([p for several in by_itself for p in several]))),
        "reversed": float(np.concatenate(back).mean()),
        "right": accuracy(found, golds),
        "ms": statistics.median(samples),
        "samples": [round(float(one), 9) for one in every],
        "samples_ms": samples,
    }


def of_demo(options: argparse.Namespace) -> dict[str, Any]:
    """The record of the demo model's answers, way by way."""
    config = EngineConfig(capacities=(1_024,), dtype=options.dtype)
    engine = Engine.demo(config)
    passes, known = Passes.of(engine), asked(engine, options.requests)
    by_itself = alone(engine, known)
    passes.logits(known[0].plan, WAYS["forked"])  # compiles
    rows = {}
    print(f"{'':20}", *(f"{name:>9}" for name in COLUMNS), "       ms")
    for name, way in WAYS.items():
        rows[name] = compare(passes, known, by_itself, way)
        print(
            f"{name:20}", *(f"{rows[name][column]:9.1e}" for column in COLUMNS), f"{rows[name]['ms']:9.2f}", flush=True
        )
    record = {"size": DEMO, "dtype": engine.dtype.name, "requests": options.requests, "ways": rows}
    return records.append(options, record, config=config, seed=known_answers.SEED)


def of_size(options: argparse.Namespace) -> dict[str, Any]:
    """The record of the times of a true size with random weights."""
    config = EngineConfig(dtype=options.dtype)
    made = model(options.size, config)
    passes = Passes(made, parameters(options.size, made), config.ladder(), delimiter=1)
    vocabulary = made.architecture.vocabulary
    plan = random_plan(WORKLOADS[options.workload][0], np.random.default_rng(records.SEED), vocabulary=vocabulary)
    rows = {}
    for name, way in WAYS.items():
        samples = [passes.timed(plan, way)[1] for _ in range(options.repeats + 2)][2:]
        rows[name] = {"ms": statistics.median(samples), "samples_ms": samples}
        print(f"{options.size} {options.workload} {name:20}{rows[name]['ms']:9.2f} ms", flush=True)
    record = {"size": options.size, "dtype": made.dtype.name, "workload": options.workload, "ways": rows}
    return records.append(options, record, config=config)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Prints a table and appends one record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=positive, default=8, help="to the demo model")
    parser.add_argument("--dtype", choices=["bfloat16", "float32", "float64"], help="as EngineConfig")
    parser.add_argument(
        "--size",
        choices=[DEMO, *SIZES],
        default=DEMO if jax.default_backend() == "cpu" else "0.8B",
        help="a true size: random weights, for times alone",
    )
    parser.add_argument("--workload", choices=[*WORKLOADS], default="multirc", help="of a true size")
    parser.add_argument("--repeats", type=positive, default=20, help="passes of a true size")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "multi_item_scoring.jsonl")
    options = parser.parse_args(arguments)
    return of_demo(options) if options.size == DEMO else of_size(options)


if __name__ == "__main__":
    main()
