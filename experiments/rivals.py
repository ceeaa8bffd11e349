"""Does the demo model keep apart two facts of one kind?

Two people, or two things, of which the text says different things with the same verb, and a question about each; the
words and sentences are those of its world, in which such rivals are rare but for places of people. Prediction: right
about places of people, near a guess (50 %) about everything else. How to read the result: `right` of both questions
together, `same` the share of stories in which both got one answer although they should not, `sure` the mean probability
of the answers given.

Run as `python -m experiments.rivals`; a CPU takes about two minutes. Records go to `results/rivals.jsonl`; the model
card takes its table from the newest.
"""

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np

from experiments import records
from experiments.arguments import positive
from experiments.demo_training.evaluation import ENGINE
from experiments.demo_world import words
from flide_jax.engine import Engine
from flide_jax.engine.model_directory import demo_directory
from flide_jax.request import Choice, Request

# What is told of two subjects s and t and two values v and w, and the question about a subject.
RELATIONS = {
    "where two people are": ("{s} went to the {v}. {t} went to the {w}.", "Where is {s}?"),
    "where two things are": ("The {s} is in the {v}. The {t} is in the {w}.", "Where is the {s}?"),
    "who has which of two things": ("{v} took the {s}. {w} took the {t}.", "Who has the {s}?"),
    "who has which, with places": (
        "{v} went to the {a}. {w} went to the {b}. {v} took the {s}. {w} took the {t}.", "Who has the {s}?",
    ),
    "how many two people have": ("{s} has {v} cards. {t} has {w} cards.", "How many cards does {s} have?"),
    "how two people feel": ("{s} is {v}. {t} is {w}.", "How does {s} feel?"),
    "which colours two things have": ("The {s} is {v}. The {t} is {w}.", "What colour is the {s}?"),
}  # fmt: skip
_PLACES = [place for stage in words.PLACES for place in stage]
SUBJECTS = {
    "where two people are": words.PEOPLE,
    "how many two people have": words.PEOPLE,
    "how two people feel": words.PEOPLE,
}
VALUES = {
    "where two people are": _PLACES,
    "where two things are": _PLACES,
    "who has which of two things": words.PEOPLE,
    "who has which, with places": words.PEOPLE,
    "how many two people have": words.NUMBERS[2:7],
    "how two people feel": words.FEELINGS,
    "which colours two things have": words.COLOURS,
}


def draw(relation: str, rng: random.Random) -> tuple[Request, tuple[str, str]]:
    """A story with its two questions, and the two right answers."""
    told, asked = RELATIONS[relation]
    s, t = rng.sample(SUBJECTS.get(relation, words.OBJECTS), 2)
    v, w = rng.sample(VALUES[relation], 2)
    a, b = rng.sample(_PLACES, 2)
    options = dict.fromkeys(rng.sample([v, w], 2))
    questions = {name: Choice(asked.format(s=subject), options) for name, subject in (("first", s), ("second", t))}
    return Request(f"That day {told.format(s=s, t=t, v=v, w=w, a=a, b=b)}", questions), (v, w)


def measure(engine: Engine, relation: str, stories: int) -> dict[str, Any]:
    """Shares over so many stories, and of each the probabilities that its two right answers were given."""
    rng = random.Random(relation)
    drawn = [draw(relation, rng) for _ in range(stories)]
    right, same, sure, samples = [], [], [], []
    for answers, (_, gold) in zip(engine.answer_all([request for request, _ in drawn]), drawn, strict=True):
        given = [answers[name] for name in ("first", "second")]
        chosen = [max(one.probabilities, key=one.probabilities.__getitem__) for one in given]
        right += [one == value for one, value in zip(chosen, gold, strict=True)]
        same.append(chosen[0] == chosen[1])
        sure += [max(one.probabilities.values()) for one in given]
        samples.append([round(one.probabilities[value], 4) for one, value in zip(given, gold, strict=True)])
    shares = {"right": right, "same": same, "sure": sure}
    return {name: float(np.mean(found)) for name, found in shares.items()} | {"samples": samples}


def main(arguments: list[str] | None = None) -> dict:
    """Prints a table and appends one record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stories", type=positive, default=200, help="of each relation")
    parser.add_argument("--results", type=Path, default=records.RESULTS / "rivals.jsonl")
    options = parser.parse_args(arguments)
    engine = Engine.demo(ENGINE)
    found = {relation: measure(engine, relation, options.stories) for relation in RELATIONS}
    for relation, figures in found.items():
        print(f"{relation:32}", *(f"{name} {figures[name]:6.1%}" for name in ("right", "same", "sure")))
    record = {
        "stories": options.stories,
        "relations": found,
        "weights_sha256": records.digest(demo_directory() / "model.safetensors"),
    }
    return records.append(options, record, config=ENGINE, seed="the name of each relation")


if __name__ == "__main__":
    main()
