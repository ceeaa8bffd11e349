"""Do the prompts of MultiRC have the token counts of the paper's Table 2?

Usage: python experiments/workloads/multirc_table2.py MULTIRC.jsonl[.xz] TOKENIZER_DIRECTORY

The workload is one JSON object a line, {"state": text, "questions": [{"type": "noul", "question": text, ...}, ...]};
the directory holds a Qwen3.5 tokenizer (tokenizer.json) and its chat template. Prints the three means over the states
and exits 1 unless each agrees with the paper to the digit it gives.
"""

import json
import lzma
import sys
from pathlib import Path

import numpy as np

from flide_jax.prompts.format import PromptFormat
from flide_jax.request import Request, YesNo

PAPER = {"state": 327.4, "stream": 2663.0, "as sequences": 17808.4}


def requests(path: Path) -> list[Request]:
    """One request for each line of a workload of yes/no questions."""
    raw = path.read_bytes()
    text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()
    rows = [json.loads(line) for line in text.split("\n") if line]
    return [
        Request(row["state"], {str(i): YesNo(question["question"]) for i, question in enumerate(row["questions"])})
        for row in rows
    ]


def main(workload: str, tokenizer: str) -> int:
    """Prints measured and published means; 0 if they agree, 1 if not."""
    prompts = PromptFormat.load(tokenizer)
    plans = [prompts.plan(request) for request in requests(Path(workload))]
    lengths = {
        "state": [plan.state.size for plan in plans],
        "stream": [plan.tokens for plan in plans],
        "as sequences": [plan.state.size * plan.branch_lengths.size + plan.branches.size for plan in plans],
    }
    agree = True
    for name, values in lengths.items():
        mean = float(np.mean(values))
        agree &= f"{mean:.1f}" == f"{PAPER[name]:.1f}"
        print(f"{name:13}{mean:10.3f} tokens, paper {PAPER[name]:10.1f}")
    return 0 if agree else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
