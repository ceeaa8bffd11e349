"""Accuracy and calibration on held-out questions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.demo_training.streams import StreamBatch
from experiments.demo_world import Asked


@dataclass(frozen=True)
class Judged:
    """One answered question: what was asked, and the probability of each option (float64)."""

    asked: Asked
    probabilities: np.ndarray

    @property
    def right(self) -> bool:
        return int(self.probabilities.argmax()) == self.asked.gold


def judge(
    logits: Callable[[StreamBatch], np.ndarray], batches: Sequence[tuple[StreamBatch, list[list[Asked]]]]
) -> list[Judged]:
    """Answers every question; `logits` gives [B, reads, L] for a batch. The softmax runs in float64."""
    judged = []
    for batch, asked in batches:
        values = np.asarray(logits(batch), np.float64)
        for row, stream in enumerate(asked):
            for column, one in enumerate(stream):
                first = batch.first_label[row, column]
                options = values[row, column, first : first + batch.options[row, column]]
                weights = np.exp(options - options.max())
                judged.append(Judged(one, weights / weights.sum()))
    return judged


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
    return float(temperatures[losses.argmin()])


def report(judged: Sequence[Judged]) -> dict:
    """The figures of a model card: overall, by type, by family, and for questions that the state leaves open."""
    types = sorted({one.asked.family.split("/")[0] for one in judged})
    families = sorted({one.asked.family for one in judged})
    unsure = [one for one in judged if not one.asked.certain]

    def figures(some: Sequence[Judged]) -> dict:
        return {
            "questions": len(some),
            "accuracy": accuracy(some),
            "expected_calibration_error": expected_calibration_error(some),
        }

    return {
        "all": figures(judged),
        "types": {kind: figures([one for one in judged if one.asked.family.startswith(kind + "/")]) for kind in types},
        "certain": figures([one for one in judged if one.asked.certain]),
        "left_open": figures(unsure) | {"mean_probability": float(np.mean([one.probabilities.max() for one in unsure]))}
        if unsure
        else None,
        "best_temperature": best_temperature(judged),
        "families": {family: accuracy([one for one in judged if one.asked.family == family]) for family in families},
    }
