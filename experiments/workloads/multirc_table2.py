"""Do the prompts of MultiRC have the token counts of the paper's Table 2?

Usage: python -m experiments.workloads.multirc_table2 MULTIRC.jsonl[.xz] TOKENIZER_DIRECTORY

The workload is in the form of `system_one`; the directory holds a Qwen3.5 tokenizer (tokenizer.json) and its chat
template. Prints the three means over the states, appends them to `results/table2.jsonl` and exits 1 unless each agrees
with the paper to the digit it gives.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from experiments import records
from experiments.arguments import existing_path
from experiments.workloads.system_one import read_rows
from flide_jax.prompts.format import PromptFormat
from flide_jax.serving.protocol import read_request

PAPER = {"state": 327.4, "stream": 2663.0, "as sequences": 17808.4}


def main(arguments: list[str] | None = None) -> int:
    """Prints measured and published means; 0 if they agree, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workload", type=existing_path, metavar="MULTIRC.jsonl[.xz]")
    parser.add_argument("tokenizer", type=existing_path, metavar="TOKENIZER_DIRECTORY")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "table2.jsonl")
    options = parser.parse_args(arguments)
    prompts = PromptFormat.load(options.tokenizer)
    plans = [prompts.plan(read_request(row).request) for row in read_rows(options.workload)]
    lengths = {
        "state": [plan.state.size for plan in plans],
        "stream": [plan.tokens for plan in plans],
        "as sequences": [plan.state.size * plan.branch_lengths.size + plan.branches.size for plan in plans],
    }
    means = {name: float(np.mean(values)) for name, values in lengths.items()}
    for name, mean in means.items():
        print(f"{name:13}{mean:10.3f} tokens, paper {PAPER[name]:10.1f}")
    agree = all(f"{mean:.1f}" == f"{PAPER[name]:.1f}" for name, mean in means.items())
    records.append(options, {"requests": len(plans), "texts": means, "agrees": agree}, seed=None)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
