"""A workload from a public release of its data, as rows for `system_one`, and the token profile of one.

Usage:
    python -m experiments.workloads.build race RACE/test/middle --rows 256 > race_all.jsonl
    python -m experiments.workloads.build race RACE/test/middle --rows 256 --questions one > race.jsonl
    python -m experiments.workloads.build multirc MultiRC/val.jsonl > multirc.jsonl
    python -m experiments.workloads.build quality QuALITY.dev --rows 115 > quality_all.jsonl
    python -m experiments.workloads.build quality QuALITY.dev --questions each --tokens 3600 --tokenizer DIR > cut.jsonl
    python -m experiments.workloads.build quality QuALITY.dev --rows 15 > quality_15.jsonl
    python -m experiments.workloads.build services SGD/test --rows 385 > di_like.jsonl
    python -m experiments.workloads.build bbh BBH --rows 125 >> di_like.jsonl
    python -m experiments.workloads.build mmlu MMLU/test --rows 110 >> di_like.jsonl
    python -m experiments.workloads.build intents clinc150.json --rows 44 >> di_like.jsonl
    python -m experiments.workloads.build agent-steps TRAJECTORIES > steps.jsonl
    python -m experiments.workloads.build profile multirc.jsonl --tokenizer DIR > multirc.json

The formats of the files are said in `builders`. A profile is [[tokens of the state, [tokens of each question, ..]],
..], with the tokenizer and chat template of a checkpoint directory; those of `profiles/` stand in where there is no
data, and `profiles/README.md` says how near these commands come to them.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence

from experiments.arguments import existing_path
from experiments.workloads import builders
from experiments.workloads.builders import BUILDERS, Row
from experiments.workloads.system_one import read_rows, system_one
from flide_jax.prompts.format import PromptFormat
from flide_jax.prompts.plan import Plan
from flide_jax.serving.protocol import read_request

QUESTIONS: dict[str, Callable[..., list[Row]]] = {
    "all": lambda rows, seed: list(rows),
    "one": lambda rows, seed: builders.one_question(rows, seed=seed),
    "each": lambda rows, seed: builders.each_question(rows),
}


def build(options: argparse.Namespace) -> list[Row]:
    """The rows that the options ask for."""
    rows = builders.sample(list(BUILDERS[options.workload](options.source)), options.rows, seed=options.seed)
    rows = QUESTIONS[options.questions](rows, options.seed)
    if options.tokens is None:
        return rows
    prompts = PromptFormat.load(options.tokenizer)

    def fits(row: Row) -> bool:
        plan = planned(prompts, system_one(row))
        return plan.state.size + int(plan.branch_lengths.max()) <= options.tokens

    return [builders.cut(row, fits) for row in rows]


def profile(options: argparse.Namespace) -> list[list]:
    """Token lengths of the requests of a workload file."""
    prompts = PromptFormat.load(options.tokenizer)
    plans = (planned(prompts, row) for row in read_rows(options.source))
    return [[plan.state.size, plan.branch_lengths.tolist()] for plan in plans]


def planned(prompts: PromptFormat, row: Row) -> Plan:
    """The tokens of a row in System One form."""
    return prompts.plan(read_request(row).request)


def main(arguments: Sequence[str] | None = None) -> None:
    """Writes the rows, one a line, or the profile to standard output."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("workload", choices=[*BUILDERS, "profile"])
    parser.add_argument("source", type=existing_path, help="the file or directory of the release")
    parser.add_argument("--rows", type=int, help="draw so many; default: all")
    parser.add_argument("--questions", choices=[*QUESTIONS], default="all", help="of each state; each: in a row each")
    parser.add_argument("--tokens", type=int, help="cut states so that state and question have at most so many tokens")
    parser.add_argument("--tokenizer", type=existing_path, metavar="DIR", help="a checkpoint directory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.tokenizer is None and (options.tokens is not None or options.workload == "profile"):
        parser.error("tokens are those of a tokenizer: give --tokenizer DIR")
    if options.workload == "profile":
        print(json.dumps(profile(options), separators=(",", ":")))
        return
    for row in build(options):
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
