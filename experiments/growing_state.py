"""What does a step of a growing state cost, when only what is new in it is computed?

An agent's next request repeats most of its last one. The engine keeps a checkpoint of each state just before its end;
the next step resumes there. Random weights at a true size of Qwen3.5, or the demo model (the default on a CPU), and
random token ids: speed does not depend on either. A step goes from its plan to label logits on the host, lookup and
saving included. Predictions, on one H200: 400 new tokens and 5 questions of 60 take at most 4.0 ms at a history of
4,000 tokens and 4.6 ms at 12,000 on 0.8B, at most 0.08 ms more for every 1,000 tokens of history, and on 4B at most
1.25 times a plain round of the tokens that are computed; 18 new questions of 90 about a known state of 5,835 take at
most 5.5 ms on 0.8B. How to read the result: `step_ms` with checkpoints, `whole_ms` without, `plain_ms` a request
without history that has as many tokens as the step computes; `original_ms` the original engine's figure on the same
card. `--trace` tells what a GPU launches for a step that it does not for the plain request, without the gaps between.

Run as `python -m experiments.growing_state`; `--replay` runs the agents of `profiles/sweagent_demos.json` instead, of
the demo model at an eighth of their lengths. With `--demonstrations PATH --tokenizer DIR` these are the texts of
SWE-agent's demonstrations, a directory of trajectories or the rows of `workloads.build agent-steps`. Predicted for
these, in tokens of Qwen3.5: of 1,079,296 state tokens of 209 steps 154,501 are computed, and every later step of an
agent resumes. Records go to `results/growing_state.jsonl`.
"""

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments import records
from experiments.arguments import existing_path, implementation, positive, positive_number, tokenizer_directory
from experiments.layer_launches import Launch, by_name
from experiments.measured_model import DEMO, model, parameters
from experiments.model_sizes import SIZES
from experiments.random_requests import PROFILES, random_plan, read_profile
from experiments.workloads.agents import read_agents
from flide_jax.checkpoints import BudgetError, Placement
from flide_jax.engine import serialised
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.executables import Executables
from flide_jax.engine.model_directory import demo_directory
from flide_jax.engine.program import precision
from flide_jax.layout import Demand
from flide_jax.models.params import total_bytes
from flide_jax.prompts.plan import Plan
from pallas_kernels.bench import trace_launches
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from pallas_kernels.trees import Request

PROFILE = PROFILES / "sweagent_demos.json"
# The original engine (0.1.4) on one H200, bfloat16: ms of a step.
ORIGINAL = {("0.8B", "history 4000"): 8.65, ("0.8B", "history 12000"): 10.2, ("0.8B", "recurring"): 11.3}
# Coarser than an engine's own ladder: a replay needs fewer executables, and pads more.
REPLAY_RUNGS = (256, 512, 768, 1_024, 1_536, 2_304, 3_072, 4_096, 6_144, 8_192, 10_240, 12_288)


@dataclasses.dataclass(frozen=True)
class Scale:
    """Lengths in tokens that fit a model."""

    histories: Sequence[int]
    new: int
    questions: Request
    recurring: Request
    placement: Placement = Placement()
    replay_rungs: Sequence[int] = REPLAY_RUNGS
    replayed: int = 1  # of so many tokens of the profile one


FULL = Scale((4_000, 12_000), new=400, questions=Request(0, 5 * [60]), recurring=Request(5_835, 18 * [90]))
SMALL = Scale(
    (600, 1_800),
    new=60,
    questions=Request(0, 5 * [9]),
    recurring=Request(880, 6 * [14]),
    placement=Placement(shortest=64, margin=16, step=16),
    replay_rungs=(128, 512, 1_024, 2_048),
    replayed=8,
)


TRACED = 5  # steps of a trace


class Agent:
    """A state of random tokens that grows."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self.rng = np.random.default_rng([records.SEED, seed])
        self.vocabulary = vocabulary
        self.state = np.empty(0, np.int32)

    def plan(self, tokens: int, questions: Sequence[int]) -> Plan:
        """The state as long as this, and new questions."""
        new = self.rng.integers(0, self.vocabulary, max(0, tokens - self.state.size), np.int32)
        self.state = np.concatenate([self.state[:tokens], new])
        asked = random_plan(Request(1, questions), self.rng, vocabulary=self.vocabulary)
        return dataclasses.replace(asked, state=self.state)


class Bench:
    """The executables of a model, with room for checkpoints; and what is measured with them."""

    def __init__(self, size: str, config: EngineConfig, scale: Scale) -> None:
        self.size, self.scale = size, scale
        self.config = config = dataclasses.replace(config, placement=scale.placement)
        self.program = model(size, dataclasses.replace(config, checkpoint_bytes=0)).with_checkpoints(config)
        self.vocabulary: int = self.program.architecture.vocabulary
        self.run = Executables.of(self.program, parameters(size, self.program), config)

    def compile(self, plans: Sequence[Plan], *, growing: bool) -> None:
        """The executables that these plans need, side by side."""
        ladder = self.run.growing_ladder if growing else self.run.ladder
        wanted = {ladder.smallest_for(Demand.of(plan)) for plan in plans} - set(self.run.compiled)
        needed = sorted(wanted, key=lambda capacity: capacity.tokens)
        self.run.compiled |= serialised.executables(self.program, needed, processes=serialised.default_processes())

    def seconds(self, plan: Plan) -> tuple[float, int]:
        """Of one request, and how many tokens of its state were resumed."""
        with precision(self.program.dtype):
            begin = time.perf_counter()
            started = self.run.start([plan])
            started()
            return time.perf_counter() - begin, started.resumed[0]

    def milliseconds(self, name: str, plans: Sequence[Plan]) -> dict[str, Any]:
        """Of lone requests behind two that warm up: the median, and each of them."""
        samples = [1e3 * self.seconds(plan)[0] for plan in plans][2:]
        return {f"{name}_ms": statistics.median(samples), f"{name}_samples_ms": [round(one, 3) for one in samples]}

    def begun(self, history: int, agents: int) -> tuple[list[Plan], list[Plan]]:
        """The next steps of agents whose states of this history are stored, and requests of just what they compute."""
        scale, lengths = self.scale, self.scale.questions.branches
        growing = [Agent(self.vocabulary, seed=history + number) for number in range(agents)]
        self.run.growing.clear()  # type: ignore[union-attr]
        histories = [agent.plan(history, lengths) for agent in growing]
        computed = Request(scale.new + scale.placement.margin, lengths)
        plain = [without(random_plan(computed, agent.rng, vocabulary=self.vocabulary)) for agent in growing]
        self.compile([histories[0], plain[0]], growing=True)
        self.compile(plain[:1], growing=False)
        for plan in histories:
            self.seconds(plan)
        return [agent.plan(history + scale.new, lengths) for agent in growing], plain

    def steps(self, history: int, *, repeats: int) -> dict[str, Any]:
        """The next steps of agents that each have a history."""
        plans, plain = self.begun(history, repeats + 2)
        whole = without(plans[0])
        self.compile([whole], growing=False)
        found = [self.seconds(plan) for plan in plans]
        return {
            "case": f"history {history}",
            "step_ms": 1e3 * statistics.median([seconds for seconds, _ in found][2:]),
            **self.milliseconds("whole", [whole] * 6),
            **self.milliseconds("plain", plain),
            "resumed": [resumed for _, resumed in found],
            "computed": [plan.tokens - resumed for plan, (_, resumed) in zip(plans, found, strict=True)],
            "samples_ms": [round(1e3 * seconds, 3) for seconds, _ in found],
        }

    def launches(self, history: int) -> dict[str, Any]:
        """What a GPU launches for such a step, and for a request of just what it computes: counts and microseconds."""
        steps, plain = self.begun(history, TRACED + 2)
        traces = {}
        for name, plans in (("step", steps), ("plain", plain)):
            for plan in plans[:2]:
                self.seconds(plan)
            traced = trace_launches(lambda plans=plans: [self.seconds(plan) for plan in plans[2:]])
            traces[name] = by_name([Launch(*one) for one in traced.in_order], TRACED)
        return {"case": f"launches of history {history}", **traces}

    def recurring(self, *, repeats: int) -> dict[str, Any]:
        """New questions about a known state."""
        request = self.scale.recurring
        agent = Agent(self.vocabulary, seed=7)
        self.run.growing.clear()  # type: ignore[union-attr]
        plans = [agent.plan(request.state, request.branches) for _ in range(repeats + 3)]
        known = Request(self.scale.placement.margin, request.branches)
        plain = [without(random_plan(known, agent.rng, vocabulary=self.vocabulary)) for _ in range(repeats + 2)]
        self.compile([plans[0], plain[0]], growing=True)
        self.compile([plans[0], plain[0]], growing=False)
        self.seconds(plans[0])
        found = [self.seconds(plan) for plan in plans[1:]]
        return {
            "case": "recurring",
            "step_ms": 1e3 * statistics.median([seconds for seconds, _ in found][2:]),
            **self.milliseconds("whole", [without(plan) for plan in plans[:6]]),
            **self.milliseconds("plain", plain),
            "resumed": [resumed for _, resumed in found],
            "computed": [plan.tokens - resumed for plan, (_, resumed) in zip(plans[1:], found, strict=True)],
            "samples_ms": [round(1e3 * seconds, 3) for seconds, _ in found],
        }

    def random_agents(self, lengths: Sequence[Sequence[Request]]) -> list[list[Plan]]:
        """Agents whose steps are as long as these, of random tokens."""
        agents = [Agent(self.vocabulary, seed=number) for number in range(len(lengths))]
        pairs = zip(agents, lengths, strict=True)
        return [[agent.plan(step.state, step.branches) for step in steps] for agent, steps in pairs]

    def replay(self, agents: Sequence[Sequence[Plan]]) -> dict[str, Any]:
        """The steps of some agents, one agent after another; with checkpoints and without."""
        self.run.growing.clear()  # type: ignore[union-attr]
        plans = [plan for steps in agents for plan in steps]
        self.compile_replay(agents)
        for warm in range(2):  # every executable has run twice
            found = [self.seconds(plan) for plan in plans]
            whole = [self.seconds(without(plan))[0] for plan in plans]
            if not warm:
                self.run.growing.clear()  # type: ignore[union-attr]
        first = np.cumsum([0, *map(len, agents)])[:-1]
        later = [index for index in range(len(plans)) if index not in set(first.tolist())]
        return {
            "case": f"replay of {len(agents)} agents",
            "steps": len(plans),
            "tokens": sum(plan.tokens for plan in plans),
            "state_tokens": sum(plan.state.size for plan in plans),
            "resumed_tokens": sum(resumed for _, resumed in found),
            "later_steps": len(later),
            "later_steps_resumed": sum(found[index][1] > 0 for index in later),
            "resumed_share": statistics.median(found[index][1] / plans[index].state.size for index in later),
            "computed_tokens": sum(plan.tokens - resumed for plan, (_, resumed) in zip(plans, found, strict=True)),
            "step_ms": 1e3 * statistics.median(found[index][0] for index in later),
            "whole_ms": 1e3 * statistics.median(whole[index] for index in later),
            "all_steps_s": sum(seconds for seconds, _ in found),
            "all_whole_s": sum(whole),
            "counters": dataclasses.asdict(self.run.growing.counters()),  # type: ignore[union-attr]
            "samples_ms": [round(1e3 * seconds, 3) for seconds, _ in found],
            "whole_samples_ms": [round(1e3 * seconds, 3) for seconds in whole],
        }

    def compile_replay(self, agents: Sequence[Sequence[Plan]]) -> None:
        """What the steps of these agents run in, as far as their lengths tell."""
        grown: list[Plan] = []
        for steps in agents:
            known = 0
            for step in steps:
                grown.append(sized(max(1, step.state.size - known), step.branch_lengths.tolist()))
                known = max(0, step.state.size - self.scale.placement.margin)
        self.compile(grown, growing=True)
        self.compile([without(step) for steps in agents for step in steps], growing=False)

    def memory(self) -> dict[str, Any]:
        """Bytes of what is kept."""
        size = self.program.store
        assert size is not None
        return {
            "keys_mb_per_1000_tokens": size.page_bytes * 1_000 / PAGE_ROWS / 1e6,
            "state_mb_per_checkpoint": size.slot_bytes / 1e6,
            "store_gb": size.bytes / 1e9,
            "pages": size.pages,
            "slots": size.slots,
            "weights_gb": total_bytes(self.program.abstract) / 1e9,
        }


def sized(state: int, branches: Sequence[int]) -> Plan:
    """A plan of such lengths."""
    return random_plan(Request(state, branches), np.random.default_rng(records.SEED), vocabulary=2)


def without(plan: Plan) -> Plan:
    """The same, with no checkpoint looked for or kept."""
    return dataclasses.replace(plan, salt=None)


def profile(part: int = 1) -> list[list[Request]]:
    """The agents of the profile: their steps, each with its state's length. A shorter state is another agent's.

    `part`: lengths are this part of the profile's, a token at least.
    """
    rows = [
        Request(row.state // part, [max(1, length // part) for length in row.branches]) for row in read_profile(PROFILE)
    ]
    begins = [0, *(n for n, (one, next_) in enumerate(itertools.pairwise(rows), 1) if next_.state <= one.state)]
    return [rows[begin:end] for begin, end in zip(begins, [*begins[1:], len(rows)], strict=True)]


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints a table; appends one record for each size and case."""
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", action="append", choices=[DEMO, *SIZES], help="0.8B and 4B, or demo on a CPU")
    parser.add_argument("--repeats", type=positive, default=3 if on_cpu else 12, help="steps that are measured")
    parser.add_argument(
        "--replay", type=positive, nargs="?", const=19, default=0, metavar="AGENTS", help="19 by default"
    )
    parser.add_argument("--trace", action="store_true", help="first the launches of a step and of a plain request")
    parser.add_argument(
        "--demonstrations", type=existing_path, metavar="PATH", help="with --replay: of agents, as texts"
    )
    parser.add_argument(
        "--tokenizer",
        type=tokenizer_directory,
        default=demo_directory(),
        help="of the texts: a directory with tokenizer.json, or .json.xz; the demo model's by default",
    )
    parser.add_argument("--checkpoint-gb", type=positive_number, default=0.5 if on_cpu else 8.0)
    parser.add_argument("--implementation", type=implementation, help='by op, in JSON: {"segmented_gdn": "xla"}')
    parser.add_argument("--results", type=Path, default=records.RESULTS / "growing_state.jsonl")
    options = parser.parse_args(arguments)
    if options.demonstrations is not None and not options.replay:
        parser.error("--demonstrations are what --replay runs")
    texts = None
    if options.demonstrations is not None:
        try:
            texts = read_agents(options.demonstrations, options.tokenizer)
        except ValueError as error:
            parser.error(f"--demonstrations: {error}")
    found = []
    print(f"{'':26}", *(f"{title:>9}" for title in ("step ms", "whole", "plain", "original", "computed")))
    for size in options.size or ([DEMO] if on_cpu else ["0.8B", "4B"]):
        scale = SMALL if size == DEMO else FULL
        config = EngineConfig(
            implementation=options.implementation,
            capacities=tuple(scale.replay_rungs) if options.replay else None,
            checkpoint_bytes=round(1e9 * options.checkpoint_gb),
        )
        try:
            bench = Bench(size, config, scale)
        except BudgetError as error:
            parser.error(f"--checkpoint-gb: {error}")
        if options.replay:
            agents = (bench.random_agents(profile(scale.replayed)) if texts is None else texts)[: options.replay]
            if (largest := max(int(step.state.max()) for steps in agents for step in steps)) >= bench.vocabulary:
                parser.error(f"--tokenizer: token {largest} is none of the {bench.vocabulary} of {size}")
            rows = [bench.replay(agents)]
            print(_resumed(rows[0]))
        else:
            rows = [bench.steps(history, repeats=options.repeats) for history in bench.scale.histories]
            near, far = rows
            more = (far["step_ms"] - near["step_ms"]) / (np.diff(bench.scale.histories)[0] / 1_000)
            rows.append(bench.recurring(repeats=options.repeats))
        for history in bench.scale.histories if options.trace else ():
            traced = {"size": size, **bench.launches(history)}
            found.append(records.append(options, traced, config=bench.config))
            print("\n".join(launch_lines(traced)), flush=True)
        for row in rows:
            row |= {"size": size, "original_ms": ORIGINAL.get((size, row["case"]))}
            record = row | bench.memory() | {"implementation": options.implementation}
            found.append(records.append(options, record, config=bench.config))
            print(_line(row), flush=True)
        if not options.replay:
            print(f"{size}: {more:.3f} ms for every 1,000 tokens of history")
        memory = bench.memory()
        print(
            f"{size}: {memory['keys_mb_per_1000_tokens']:.1f} MB of keys for every 1,000 tokens of history, once; "
            f"{memory['state_mb_per_checkpoint']:.1f} MB of states for every checkpoint"
        )
        del bench
    return found


def launch_lines(row: dict[str, Any], *, least_us: float = 3.0) -> list[str]:
    """What a step launches for longer or shorter than a plain request, where that is more than this; and all."""
    step, plain = row["step"], row["plain"]
    more = {
        name: tuple(one - other for one, other in zip(step.get(name, (0, 0)), plain.get(name, (0, 0)), strict=True))
        for name in step | plain
    }
    lines = [f"{row['size']} {row['case']}: {sum(us for _, us in more.values()):.1f} us more than a plain request"]
    for name, (count, us) in sorted(more.items(), key=lambda item: -item[1][1]):
        if abs(us) >= least_us:
            lines.append(f"{us:10.1f} us {count:+7.1f} x  {name[:80]}")
    return lines


def _resumed(row: dict[str, Any]) -> str:
    computed = row["state_tokens"] - row["resumed_tokens"]
    return (
        f"{computed:,} of {row['state_tokens']:,} state tokens are computed with checkpoints, all of them without; "
        f"{row['later_steps_resumed']} of {row['later_steps']} later steps resume, "
        f"{row['resumed_share']:.0%} of their state at the median"
    )


def _line(row: dict[str, Any]) -> str:
    figures = [row["step_ms"], row["whole_ms"], row.get("plain_ms"), row["original_ms"]]
    computed = row["computed"][-1] if "computed" in row else f"{row['computed_tokens'] / row['tokens']:.0%}"
    shown = ("-" if figure is None else f"{figure:.2f}" for figure in figures)
    return f"{row['size']:6} {row['case']:19}" + " ".join(f"{figure:>9}" for figure in (*shown, computed))


if __name__ == "__main__":
    main()
