"""How does the time of a request grow with the number of its questions, forked and in other ways?

One state, and 1 to 64 questions about it, new tokens each time (the paper's Figure 5a): forked; every question as a
text of its own, in shared rounds; the state once and kept, then every question behind it in rounds of their own, as a
server with a prefix cache does it; multi-item scoring, whose answers are others (`multi_item_scoring`); and where torch
is installed every question as a text of its own by transformers (`whole_texts`), in batches as large as our rounds.
Random weights at a true size of Qwen3.5, or the demo model (the default on a CPU).

Predictions, 0.8B on one H200, a state of 1,000 tokens and questions of 50: one question takes as long in every way of
ours; forked, 64 questions take 3 times as long as one, as texts of their own 30 times; the kept state stays 2 ms
behind, by its second pass. Multi-item scoring is no faster than forking. By transformers a text alone takes ten times
as long as forked, and 64 three times as long as texts of their own here.
How to read the result: medians of milliseconds from the plan to label logits on the host; `tokens` is what the forked
pass reads. In the small size all rounds have one capacity, so that only their number shows.

Run as `python -m experiments.questions_per_state`: 0.8B on an accelerator. Records go to
`results/questions_per_state.jsonl`.
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
import numpy as np

from experiments import records, whole_texts
from experiments.arguments import positive
from experiments.known_answers import reordered
from experiments.measured_model import DEMO, model, parameters
from experiments.model_sizes import SIZES
from experiments.multi_item_scoring import WAYS, Passes
from experiments.random_requests import random_plan
from experiments.whole_texts import WholeTexts
from flide_jax.checkpoints import Placement
from flide_jax.engine import serialised
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.executables import Executables
from flide_jax.engine.program import precision
from flide_jax.layout import Capacity, Demand, Ladder, capacities_of_rounds
from flide_jax.prompts.plan import Plan
from pallas_kernels.trees import Request

TRANSFORMERS = "transformers"
CHOICES = ("forked", "texts", "kept state", "multi-item", TRANSFORMERS)
COUNTS = (1, 2, 4, 8, 16, 32, 64)
DELIMITER = 1
STEP = 64  # of the rungs
CHECKPOINT_BYTES = {True: 200_000_000, False: 8_000_000_000}  # for the demo model, and for others
PLACEMENT = Placement(shortest=16, margin=8, step=8)


@dataclasses.dataclass(frozen=True)
class Scale:
    """Tokens of a state and of each question, and of the largest round."""

    state: int
    question: int
    counts: Sequence[int]
    largest: int

    def config(self) -> EngineConfig:
        """Rungs that the forked pass, the questions behind the state and all texts fill; one where compiling costs."""
        # A growing round resumes as many pages as the longest request may: here those of all questions' states.
        longest = max(self.counts) * (self.state + self.question)
        if self is SMALL:
            return EngineConfig(capacities=(self.largest,), max_request_tokens=longest)
        tokens = [self.state + count * (self.question + 1) for count in self.counts]
        tokens += [count * (self.question + PLACEMENT.margin) for count in self.counts]
        tokens += [count * (self.state + self.question) for count in self.counts]
        rungs = sorted({min(self.largest, -(-count // STEP) * STEP) for count in tokens})
        return EngineConfig(capacities=tuple(rungs), max_request_tokens=longest)


FULL = Scale(state=1_000, question=50, counts=COUNTS, largest=16_384)
SMALL = Scale(state=200, question=12, counts=(1, 8), largest=512)


class Bench:
    """The executables of a model that the ways need: of plain rounds and of growing ones.

    Those of multi-item scoring are compiled, and the weights of transformers drawn, when they are first called.

    Attributes:
        ways: what answers a plan, by name.
        left_out: why another is not among them.
    """

    def __init__(self, size: str, config: EngineConfig) -> None:
        made = model(size, config)
        self.vocabulary: int = made.architecture.vocabulary
        params = parameters(size, made)
        growing = dataclasses.replace(config, checkpoint_bytes=CHECKPOINT_BYTES[size == DEMO], placement=PLACEMENT)
        self.program, self.growing = made, made.with_checkpoints(growing)
        self.run = Executables.of(made, params, config)
        self.keeping = Executables.of(self.growing, params, growing)
        self.passes = Passes(made, params, config.ladder(), delimiter=DELIMITER)
        self.ways: dict[str, Callable[[Plan], Any]] = {
            "forked": lambda plan: self.run.logits([plan]),
            "texts": lambda plan: self.run.logits(alone(plan)),
            "kept state": self.behind_the_state,
            "multi-item": lambda plan: self.passes.logits(plan, WAYS["multi-item scoring"]),
        }
        self.left_out = {TRANSFORMERS: reason} if (reason := whole_texts.left_out(size)) else {}
        if not self.left_out:
            texts = functools.cache(lambda: WholeTexts(made.architecture, most_tokens=config.ladder().largest.tokens))
            self.ways[TRANSFORMERS] = lambda plan: texts().logits(plan)

    def behind_the_state(self, plan: Plan) -> None:
        """The state with its first question, which leaves the state; then all others, which resume it."""
        first, *others = (reordered(plan, [index]) for index in range(plan.branch_lengths.size))
        self.keeping.logits([first])
        if others:
            started = self.keeping.start(others)
            started()
            assert all(started.resumed), "the state was not kept"

    def compile(self, plans: Sequence[Plan]) -> None:
        """What the ways need for some plans, side by side."""
        plain = [[Demand.of(plan)] for plan in plans] + [[Demand.of(text) for text in alone(plan)] for plan in plans]
        processes = serialised.default_processes()
        needed = capacities(plain, self.run.ladder)
        self.run.compiled |= serialised.executables(self.program, needed, processes=processes)
        kept: list[list[Demand]] = []
        for plan in plans:
            saved = plan.state.size - PLACEMENT.margin
            first, *others = (reordered(plan, [index]) for index in range(plan.branch_lengths.size))
            kept += [[Demand.of(first, saved=saved)], [Demand.of(other, resumed=saved) for other in others]]
        wanted = capacities(kept, self.keeping.growing_ladder)
        self.keeping.compiled |= serialised.executables(self.growing, wanted, processes=processes)

    def milliseconds(self, way: str, plans: Sequence[Plan]) -> list[float]:
        """Of each of some plans, behind one that warms up."""
        found = []
        for plan in plans:
            begin = time.perf_counter()
            with precision(self.program.dtype):
                self.ways[way](plan)
            found.append(1e3 * (time.perf_counter() - begin))
        return found[1:]


def alone(plan: Plan) -> list[Plan]:
    """Every question as a text of its own."""
    return [plan.alone(index) for index in range(plan.branch_lengths.size)]


def capacities(queues: Sequence[Sequence[Demand]], ladder: Ladder) -> list[Capacity]:
    """What the rounds of some queues run in."""
    wanted = {capacity for queue in queues for capacity in capacities_of_rounds(queue, ladder)}
    return sorted(wanted, key=lambda capacity: capacity.tokens)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Prints a table and appends one record."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", choices=[DEMO, *SIZES], default=DEMO if on_cpu else "0.8B")
    parser.add_argument("--way", action="append", choices=CHOICES, help="all that can run by default")
    parser.add_argument("--repeats", type=positive, default=2 if on_cpu else 10)
    parser.add_argument("--results", type=Path, default=records.RESULTS / "questions_per_state.jsonl")
    options = parser.parse_args(arguments)
    scale = SMALL if options.size == DEMO else FULL
    config = scale.config()
    bench = Bench(options.size, config)
    rng = np.random.default_rng(records.SEED)
    requests = {count: Request(scale.state, count * [scale.question]) for count in scale.counts}
    asked = {
        count: [random_plan(request, rng, vocabulary=bench.vocabulary) for _ in range(options.repeats + 1)]
        for count, request in requests.items()
    }
    bench.compile([plans[0] for plans in asked.values()])
    rows = []
    ways = [way for way in options.way or CHOICES if way not in bench.left_out]
    for way, reason in bench.left_out.items():
        print(f"{way}: left out, {reason}")
    print(f"{'questions':>9}{'tokens':>8}", *(f"{way:>11}" for way in ways))
    for count, plans in asked.items():
        samples = {way: bench.milliseconds(way, plans) for way in ways}
        medians = {way: statistics.median(found) for way, found in samples.items()}
        rows.append({"questions": count, "tokens": plans[0].tokens, "ms": medians, "samples_ms": samples})
        print(f"{count:9}{plans[0].tokens:8}", *(f"{medians[way]:11.2f}" for way in ways), flush=True)
    record = {
        "size": options.size,
        "state": scale.state,
        "question": scale.question,
        "dtype": bench.program.dtype.name,
        "rows": rows,
        "left_out": bench.left_out,
        "packages": records.packages(*whole_texts.PACKAGES),
    }
    return records.append(options, record, config=config)


if __name__ == "__main__":
    main()
