"""How near are rounded answers to those in float64, and does forking move them away?

The demo model answers a fixed set of questions in float32 and bfloat16, in four ways: every question as a text of its
own; all forked; the state once and kept, then every question behind it (as a server with a prefix cache would); and
multi-item scoring (`multi_item_scoring`). They are compared with float64, and with float32, every question as a text of
its own.

Predictions: forked and kept states are as near to float64 as texts of their own, in either dtype: their mean total
variations agree within a quarter, and what is right stays right. In float32 no answer is another. Multi-item scoring is
ten times further away than bfloat16's rounding.
How to read the result, over all questions: `agr` is the share whose most probable option is float64's; `tv` and `p99`
are the mean and the 99th percentile of the total variation from float64's probabilities, and behind them stand the same
three from float32's; `flip` is the share whose most probable option is not that of the same question as a text of its
own in the same dtype; `acc` is the share of right answers where the text decides; `stab` is the share whose most
probable option stays when the questions of each request, and the requests, come in reverse. The paper's Table 4 has
columns of these names; their definitions here are ours.

Run as `python -m experiments.fidelity`, on any device: a true size with random weights has no known answers. Records go
to `results/fidelity.jsonl`.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import known_answers, records
from experiments.arguments import positive
from experiments.known_answers import Asked, Probabilities, accuracy, asked, choices, reordered, variations
from experiments.multi_item_scoring import WAYS, Passes
from flide_jax.checkpoints import Placement
from flide_jax.engine import Engine, EngineConfig
from flide_jax.prompts.plan import Plan

CONFIG = EngineConfig(capacities=(1_024,), max_request_tokens=2_048)
# Kept states of any length, all but their last tokens.
KEEPING = dataclasses.replace(CONFIG, checkpoint_bytes=100_000_000, placement=Placement(shortest=16, margin=8, step=8))
TRUTHS = ("float64", "float32")
AGAINST = ("agr", "tv", "p99")
COLUMNS = (*AGAINST, "flip", "acc", "stab")

# Label logits [reads, L] of each plan.
Answering = Callable[[Sequence[Plan]], list[np.ndarray]]


def each_alone(engine: Engine) -> Answering:
    """Every question as a text of its own; texts share rounds."""

    def answer(plans: Sequence[Plan]) -> list[np.ndarray]:
        logits = iter(engine.logits([plan.alone(i) for plan in plans for i in range(plan.branch_lengths.size)]))
        return [np.concatenate([next(logits) for _ in range(plan.branch_lengths.size)]) for plan in plans]

    return answer


def behind_kept_states(engine: Engine) -> Answering:
    """The state of each request once, then its questions, each a request of its own that resumes it."""

    def answer(plans: Sequence[Plan]) -> list[np.ndarray]:
        found = []
        for plan in plans:
            questions = [reordered(plan, [index]) for index in range(plan.branch_lengths.size)]
            engine.logits(questions[:1])  # leaves the state
            started = engine.start(questions)
            found.append(np.concatenate(started()))
            if plan.state.size >= KEEPING.placement.shortest and not all(started.resumed):
                raise RuntimeError(f"a state of {plan.state.size} tokens was not kept")
        return found

    return answer


def multi_item(engine: Engine) -> Answering:
    """One sequence with delimiters and a mask."""
    passes = Passes.of(engine)
    return lambda plans: [passes.logits(plan, WAYS["multi-item scoring"]) for plan in plans]


ANSWERING: dict[str, Callable[[str], Answering]] = {
    "alone": lambda dtype: each_alone(engine(CONFIG, dtype)),
    "forked": lambda dtype: engine(CONFIG, dtype).logits,
    "kept state": lambda dtype: behind_kept_states(engine(KEEPING, dtype)),
    "multi-item": lambda dtype: multi_item(engine(CONFIG, dtype)),
}


@functools.cache
def engine(config: EngineConfig, dtype: str) -> Engine:
    """The demo model in a dtype, whose executables are compiled once."""
    return Engine.demo(dataclasses.replace(config, dtype=dtype))


def answers(known: Sequence[Asked], answering: Answering) -> Probabilities:
    """The probabilities of every question, request by request."""
    logits = answering([one.plan for one in known])
    return [p for one, found in zip(known, logits, strict=True) for p in one.probabilities(found)]


def answers_in_reverse(known: Sequence[Asked], answering: Answering) -> Probabilities:
    """The same with requests and questions asked in reverse, in the order of `answers`."""
    orders = [list(range(one.plan.branch_lengths.size))[::-1] for one in known]
    plans = [reordered(one.plan, order) for one, order in zip(known, orders, strict=True)]
    logits = answering(plans[::-1])[::-1]
    return [
        p
        for one, order, found in zip(known, orders, logits, strict=True)
        for p in one.probabilities(np.asarray(found)[order])
    ]


def measure(
    known: Sequence[Asked], answering: Answering, truths: Mapping[str, Probabilities], texts: Probabilities | None
) -> tuple[dict[str, Any], Probabilities]:
    """The figures of one way, and its answers.

    Args:
        known: what is asked.
        answering: the way.
        truths: the answers of texts of their own in each of `TRUTHS`.
        texts: those in the way's own dtype; None if this is their way.
    """
    found = answers(known, answering)
    return {
        **against(found, truths["float64"]),
        "flip": float(np.mean(choices(found) != choices(found if texts is None else texts))),
        "acc": accuracy(found, [gold for one in known for gold in one.golds]),
        "stab": float(np.mean(choices(found) == choices(answers_in_reverse(known, answering)))),
        "float32": against(found, truths["float32"]),
    }, found


def against(found: Probabilities, truth: Probabilities) -> dict[str, Any]:
    """How far answers are from those that are held for true."""
    distance = variations(found, truth)
    return {
        "agr": float(np.mean(choices(found) == choices(truth))),
        "tv": float(distance.mean()),
        "p99": float(np.quantile(distance, 0.99)),
        "samples": [float(f"{one:.3e}") for one in distance],
    }


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Prints a table; appends one record for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=positive, default=8)
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16"], help="both by default")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "fidelity.jsonl")
    options = parser.parse_args(arguments)
    known = asked(engine(CONFIG, "float64"), options.requests)
    truths = {dtype: answers(known, each_alone(engine(CONFIG, dtype))) for dtype in TRUTHS}
    found = []
    print(f"{'':22}", *(f"{column:>9}" for column in COLUMNS), " from float32:", *AGAINST)
    for dtype in options.dtype or ["float32", "bfloat16"]:
        rows, texts = {}, None
        for name, answering in ANSWERING.items():
            rows[name], given = measure(known, answering(dtype), truths, texts)
            texts = given if texts is None else texts
            shown = [_shown(column, rows[name][column]) for column in COLUMNS]
            shown += [_shown(column, rows[name]["float32"][column]) for column in AGAINST]
            print(f"{dtype:9} {name:12}", *shown, flush=True)
        questions = len(truths["float64"])
        record = {"dtype": dtype, "requests": options.requests, "questions": questions, "ways": rows}
        config = dataclasses.replace(CONFIG, dtype=dtype)
        found.append(records.append(options, record, config=config, seed=known_answers.SEED))
    return found


def _shown(column: str, value: float) -> str:
    return f"{value:9.1e}" if column in ("tv", "p99") else f"{value:9.1%}"


if __name__ == "__main__":
    main()
