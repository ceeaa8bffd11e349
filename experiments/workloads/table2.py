"""How many tokens do the workloads have, with the state once and with a state for each question (the paper's Table 2)?

From the token profiles of `profiles/`, which stand in for texts that are not part of this repository. Prediction:
those of MultiRC are the paper's to the digit it gives, for its data and its rules are public; the others are sampled,
and only near. How to read the result: means over the requests; `saved` is how many times more tokens are read without
forks.

Run as `python -m experiments.workloads.table2`; exits with 1 unless MultiRC agrees. `multirc_table2` counts the texts.
Records go to `results/table2.jsonl`.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import records
from experiments.random_requests import PROFILES, read_profile
from experiments.workloads.multirc_table2 import PAPER
from pallas_kernels.trees import Request

WIDTHS = {"state": 10, "stream": 10, "as sequences": 11}  # of the printed columns


def means(requests: Sequence[Request]) -> dict[str, float]:
    """Mean tokens of states, of forked streams, and of every question as a text of its own."""
    states = np.array([request.state for request in requests])
    questions = np.array([len(request.branches) for request in requests])
    branches = np.array([sum(request.branches) for request in requests])
    return {
        "requests": len(requests),
        "questions": float(questions.mean()),
        "state": float(states.mean()),
        "stream": float((states + branches).mean()),
        "as sequences": float((states * questions + branches).mean()),
    }


def agrees(found: dict[str, float]) -> bool:
    """Whether these are the paper's means of MultiRC."""
    return all(f"{found[name]:.1f}" == f"{value:.1f}" for name, value in PAPER.items())


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Prints a table and appends one record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=records.RESULTS / "table2.jsonl")
    options = parser.parse_args(arguments)
    found = {path.stem: means(read_profile(path)) for path in sorted(PROFILES.glob("*.json"))}
    print(f"{'':24}{'requests':>9}{'questions':>10}{'state':>10}{'stream':>10}{'as texts':>11}{'saved':>7}")
    for name, row in found.items():
        saved = row["as sequences"] / row["stream"]
        print(
            f"{name:24}{row['requests']:9.0f}{row['questions']:10.1f}{row['state']:10.1f}{row['stream']:10.1f}"
            f"{row['as sequences']:11.1f}{saved:7.1f}"
        )
    print(f"{'multirc in the paper':43}" + "".join(f"{PAPER[name]:{width}.1f}" for name, width in WIDTHS.items()))
    return records.append(options, {"profiles": found, "agrees": agrees(found["multirc"])}, seed=None)


if __name__ == "__main__":
    sys.exit(0 if main()["agrees"] else 1)
