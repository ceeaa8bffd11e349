"""A fixed set of questions whose answers are known, and how far two sets of answers to them are apart."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64, Int32

from experiments.demo_training.evaluation import GENERATED
from experiments.demo_world import LONGEST, DemoWorld, Difficulty
from flide_jax.engine import Engine
from flide_jax.prompts.plan import Plan
from flide_jax.reference.layers import softmax

SEED = "known answers"
Probabilities = list[Float64[np.ndarray, " options"]]


@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """One request.

    Attributes:
        plan: one branch and one read for each question.
        columns: which labels the options of each question carry.
        golds: the right option of each, -1 where the text leaves it open.
    """

    plan: Plan
    columns: Sequence[Int32[np.ndarray, " options"]]
    golds: Sequence[int]

    def probabilities(self, logits: Float[np.ndarray, "reads L"]) -> Probabilities:
        """Of every question's options, from its read's logits, in the order of the questions."""
        rows = zip(np.asarray(logits, np.float64), self.columns, strict=True)
        return [softmax(row[columns]) for row, columns in rows]


def asked(engine: Engine, requests: int) -> list[Asked]:
    """The first requests of the demo model's held-out world that have two questions or more, the same in every run."""
    world = DemoWorld(held_out=True, parts=GENERATED).examples(SEED, Difficulty(LONGEST))
    several = (example for example in world if len(example.asked) > 1)
    return [
        Asked(
            plan=engine.plan(example.request),
            columns=[engine.prompt_format.label_columns(one.question) for one in example.asked.values()],
            golds=[one.gold if one.certain else -1 for one in example.asked.values()],
        )
        for example in itertools.islice(several, requests)
    ]


def reordered(plan: Plan, order: Sequence[int]) -> Plan:
    """The same with some or all branches, and their reads, in another order. Every branch has one read."""
    return dataclasses.replace(
        plan,
        branches=np.concatenate([plan.branch(index) for index in order]),
        branch_lengths=plan.branch_lengths[list(order)],
        read_branches=np.arange(len(order), dtype=np.int32),
        read_offsets=plan.read_offsets[list(order)],
    )


def variations(found: Probabilities, expected: Probabilities) -> Float64[np.ndarray, " questions"]:
    """The total variation of each question: half the sum of |dp|."""
    return np.array([np.abs(one - other).sum() / 2 for one, other in zip(found, expected, strict=True)])


def choices(found: Probabilities) -> np.ndarray:
    """The most probable option of each question."""
    return np.array([int(one.argmax()) for one in found])


def accuracy(found: Probabilities, golds: Sequence[int]) -> float:
    """The share of the questions that the text decides whose most probable option is the right one."""
    gold = np.array(golds)
    return float(np.mean((choices(found) == gold)[gold >= 0]))
