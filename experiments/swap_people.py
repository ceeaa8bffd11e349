"""Does the demo model's answer depend on who is asked about?

Prediction: it does. Asked "Where is A?" and "Where is B?" about a story with both, it names two places in nine of ten
stories where they are apart, however long; the training's own evaluation, of 150 stories of up to 6 events, had said
92 %.
How to read the result: `same_answer` is the share of stories of two people for which the two questions, alike but for
the name, got the same most probable place; `should_be_same` the share for which they should. `told_apart` is the share
of different answers among the others, `accuracy_apart` that of right ones: a guess between the two places gets 50 %.
`total_variation` is the median distance of the two answers' probabilities (0: equal, 1: disjoint). The record, with
these figures by the most events of a story, is appended to `results/swap_people.jsonl`.
"""

import argparse
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import flide_jax
from experiments import records
from experiments.arguments import positive
from experiments.demo_training import evaluation
from experiments.demo_world import LONGEST, DemoWorld, Difficulty, words
from flide_jax.engine import Engine
from flide_jax.request import Choice, Request
from flide_jax.verification import probabilities

DEMO = Path(flide_jax.__file__).parent / "demo"
LENGTHS = (6, LONGEST)
SEED = "swap"


def pairs(longest: int) -> Iterator[tuple[Request, tuple[int, int]]]:
    """Held-out stories of two people that ask where both are, with the same options: the request and its two golds.

    `longest` is the most events of a story.
    """
    for example in DemoWorld(held_out=True, parts=("story",)).examples(SEED, Difficulty(longest)):
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


def main(arguments: list[str] | None = None) -> dict:
    """Measures, prints and appends the record; returns it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stories", type=positive, default=600, help="of each length")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "swap_people.jsonl")
    options = parser.parse_args(arguments)
    engine = Engine.demo(evaluation.ENGINE)
    by_longest = {str(longest): measure(engine, options.stories, longest=longest) for longest in LENGTHS}
    for longest, figures in by_longest.items():
        print(f"up to {longest} events: {figures}", flush=True)
    record = {
        "by_longest": by_longest,
        "weights_sha256": records.digest(DEMO / "model.safetensors"),
        "dtype": str(engine.dtype),
    }
    return records.append(options, record, config=evaluation.ENGINE, seed=SEED)


def measure(engine: Engine, stories: int, *, longest: int) -> dict:
    """The figures of an engine on the first `stories` of `pairs`."""
    requests, golds = zip(*itertools.islice(pairs(longest), stories), strict=True)
    answers = engine.answer_all(requests)
    found = np.array([[probabilities(one).argmax() for one in answer.values()] for answer in answers])
    distances = [
        0.5 * np.abs(np.subtract(*(probabilities(one) for one in answer.values()))).sum() for answer in answers
    ]
    gold = np.array(golds)
    apart, told_apart = gold[:, 0] != gold[:, 1], found[:, 0] != found[:, 1]
    return {
        "stories": stories,
        "same_answer": float(np.mean(found[:, 0] == found[:, 1])),
        "should_be_same": float(np.mean(gold[:, 0] == gold[:, 1])),
        "accuracy": float(np.mean(found == gold)),
        "told_apart": float(np.mean(told_apart, where=apart)) if apart.any() else None,
        "accuracy_apart": float(np.mean(found == gold, where=apart[:, None])) if apart.any() else None,
        "total_variation": float(np.median(distances)),
    }


if __name__ == "__main__":
    main()
