"""Does the demo model's answer depend on who is asked about?

Prediction, after a handful of tries by hand: it does not. "Where is A?" and "Where is B?" get the same answer about a
story with both, and so either name is as good as the other.
How to read the result: `same_answer` is the share of stories of two people for which the two questions, alike but for
the name, got the same most probable place; `should_be_same` the share for which they should. `total_variation` is the
median distance of the two answers' probabilities (0: equal, 1: disjoint). The record is appended to
`results/swap_people.jsonl`.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments import records
from experiments.demo_training import evaluation
from experiments.demo_world import DemoWorld, words
from flide_jax.engine import Engine
from flide_jax.request import Choice, Request


def pairs() -> Iterator[tuple[Request, tuple[int, int]]]:
    """Held-out stories of two people that ask where both are, with the same options: the request and its two golds."""
    for example in DemoWorld(held_out=True, parts=("story",)).examples("swap"):
        if example.people != 2:
            continue
        golds = {}
        options: dict = {}
        for one in example.asked.values():
            question = one.question
            if one.family == "choice/where_person" and one.certain and isinstance(question, Choice):
                (person,) = set(re.findall(r"\w+", str(question.instructions))) & set(words.PEOPLE)
                places = list(question.options)
                if all(re.fullmatch(r"(option|answer|case) \d+", place) is None for place in places):
                    golds[person] = places[one.gold]
                    options |= dict.fromkeys(places)
        if len(golds) == 2:
            asked = {name: Choice(f"Where is {name}?", options) for name in golds}
            first, second = (list(options).index(gold) for gold in golds.values())
            yield Request(example.request.state, asked), (first, second)


def main(stories: int = 150, results: Path = records.RESULTS / "swap_people.jsonl") -> dict:
    """Measures and appends the record; returns it."""
    requests, golds = zip(*itertools.islice(pairs(), stories), strict=True)
    answers = Engine.demo(evaluation.ENGINE).answer_all(requests)
    found = np.array([[evaluation.probabilities(one).argmax() for one in answer.values()] for answer in answers])
    distances = [
        0.5 * np.abs(np.subtract(*(evaluation.probabilities(one) for one in answer.values()))).sum()
        for answer in answers
    ]
    gold = np.array(golds)
    record = {
        "stories": stories,
        "same_answer": float(np.mean(found[:, 0] == found[:, 1])),
        "should_be_same": float(np.mean(gold[:, 0] == gold[:, 1])),
        "accuracy": float(np.mean(found == gold)),
        "total_variation": float(np.median(distances)),
    }
    return records.append(results, record)


if __name__ == "__main__":
    print(main())
