"""Workload rows as System One requests, for `flide-jax ask` and for measuring.

Usage: python -m experiments.workloads.system_one WORKLOAD.jsonl[.xz] > requests.jsonl

A workload is one JSON object a line: {"state": text, "questions": [{"type": "noul" | "choice" | "score",
"question": text, "options": [[name, description or null], ...]}, ...]}. Questions are named by their place.
"""

import argparse
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from experiments.arguments import existing_path

CRITERIA: dict[str, Callable[[Any], Any]] = {
    "noul": lambda options: None,
    "choice": dict,
    "score": lambda options: [name for name, _ in options],
}


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a workload, each in System One form."""
    raw = path.read_bytes()
    text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode()
    for line in text.split("\n"):
        if line:
            yield system_one(json.loads(line))


def system_one(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a workload in System One form."""
    return {"state": row["state"], "questions": dict(map(_question, enumerate(row["questions"])))}


def _question(numbered: tuple[int, dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    number, question = numbered
    criteria = CRITERIA[question["type"]](question.get("options", ()))
    return str(number), {"type": question["type"], "instructions": question["question"], "criteria": criteria}


def main(arguments: list[str] | None = None) -> None:
    """Prints the requests, one a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("workload", type=existing_path, metavar="WORKLOAD.jsonl[.xz]")
    for request in read_rows(parser.parse_args(arguments).workload):
        print(json.dumps(request, ensure_ascii=False))


if __name__ == "__main__":
    main()
