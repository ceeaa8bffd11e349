"""Accuracy and calibration of an engine's answers to held-out questions."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.demo_world import WHO, Asked, DemoWorld, Difficulty
from flide_jax.engine import Engine, EngineConfig
from flide_jax.verification import probabilities

GENERATED = ("story", "support", "command")  # parts of the world that need no files
ENGINE = EngineConfig(capacities=(2048,))  # full rounds of one size: one compilation, little padding
SEED = "held out"


@dataclass(frozen=True)
class Judged:
    """One answered question: the probability of each option (float64), and its story's events and people."""

    asked: Asked
    probabilities: np.ndarray
    events: int = 0
    people: int = 0

    @property
    def right(self) -> bool:
        return int(self.probabilities.argmax()) == self.asked.gold


def measure(engine: Engine, world: DemoWorld, *, requests: int, longest: int) -> dict:
    """The report on the first `requests` held-out requests of a world, the same in every run."""
    held_out = dataclasses.replace(world, held_out=True)
    examples = list(itertools.islice(held_out.examples(SEED, Difficulty(longest)), requests))
    answers = engine.answer_all([example.request for example in examples])
    return report(
        [
            Judged(asked, probabilities(answer[name]), example.events, example.people)
            for example, answer in zip(examples, answers, strict=True)
            for name, asked in example.asked.items()
        ]
    )


def measure_labelled(engine: Engine, files: Sequence[Path], *, requests: int) -> dict:
    """The report on labelled messages (`intents.read_labelled`): the tenth of the rows that training never saw."""
    world = DemoWorld(labelled=tuple(files), parts=("labelled",))
    return measure(engine, world, requests=requests, longest=0)


def accuracy(judged: Sequence[Judged]) -> float:
    """The share of questions whose most probable option is the gold one."""
    return float(np.mean([one.right for one in judged]))


def expected_calibration_error(judged: Sequence[Judged], bins: int = 15) -> float:
    """Mean |accuracy - probability of the answer| over equal-width bins of that probability, weighted by questions."""
    top = np.array([one.probabilities.max() for one in judged])
    right = np.array([one.right for one in judged], np.float64)
    index = np.minimum((top * bins).astype(int), bins - 1)
    gaps = np.bincount(index, right - top, minlength=bins)
    return float(np.abs(gaps).sum() / len(judged))


def best_temperature(judged: Sequence[Judged]) -> float:
    """The temperature of 0.5, 0.55, ..., 2 at which the gold options are most probable: 1 when well calibrated."""
    temperatures = np.arange(0.5, 2.01, 0.05)
    losses = np.zeros_like(temperatures)
    for one in judged:
        scaled = np.log(np.maximum(one.probabilities, 1e-30))[None] / temperatures[:, None]
        losses += np.log(np.exp(scaled).sum(axis=1)) - scaled[:, one.asked.gold]
    return round(float(temperatures[losses.argmin()]), 2)


def figures(judged: Sequence[Judged]) -> dict:
    """How many questions, how many of them right, how many a guess gets right, how sure the answers are."""
    return {
        "questions": len(judged),
        "accuracy": accuracy(judged),
        "chance": float(np.mean([1 / one.probabilities.size for one in judged])),
        "mean_probability": float(np.mean([one.probabilities.max() for one in judged])),
        "expected_calibration_error": expected_calibration_error(judged),
    }


def report(judged: Sequence[Judged]) -> dict:
    """Figures overall, by type, by family, by whether the text decides the answer and by events of the story.

    "who" has the questions that turn on who did what, by how many people the story has.
    """
    return {
        "all": figures(judged),
        "types": _by(judged, lambda one: one.asked.family.split("/")[0]),
        "certainty": _by(judged, lambda one: "decided" if one.asked.certain else "left open"),
        "families": _by(judged, lambda one: one.asked.family),
        "events": _by([one for one in judged if one.events], lambda one: f"{one.events:02}"),
        "who": _by(
            [one for one in judged if one.asked.family in WHO and one.asked.certain], lambda one: str(one.people)
        ),
        "stories": _by(judged, lambda one: "story" if one.events else "no story"),
        "best_temperature": best_temperature(judged),
    }


def _by(judged: Sequence[Judged], key: Callable[[Judged], str]) -> dict[str, dict]:
    """Figures of each group of questions, in the order of the groups' names."""
    return {name: figures([one for one in judged if key(one) == name]) for name in sorted(set(map(key, judged)))}
