"""The mixture of all parts of the world, as one stream of examples."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import intents, stories, story_questions, support, telling
from .asking import Example, example
from .stories import Difficulty

MOST_QUESTIONS = 20
LONGEST = 10  # events of a story in the world that the demo model is trained and measured on
SHARES = {"story": 0.74, "support": 0.16, "command": 0.04, "labelled": 0.06}  # of the requests


@dataclass(frozen=True)
class DemoWorld:
    """Draws examples.

    Attributes:
        held_out: whether combinations come from the held-out tenth or from the rest.
        labelled: files of labelled messages to draw some requests from (see `intents.read_labelled`).
        parts: which parts of the world to draw from, all by default.
    """

    held_out: bool = False
    labelled: Sequence[Path] = ()
    parts: Sequence[str] = tuple(SHARES)

    def examples(self, seed: int | str, *mixture: Difficulty) -> Iterator[Example]:
        """An endless stream of examples of these difficulties, by default of stories of up to `LONGEST` events."""
        rng = random.Random(f"{seed} {self.held_out}")
        files = [intents.read_labelled(path, held_out=self.held_out) for path in self.labelled]
        parts = [part for part in self.parts if part != "labelled" or files]
        mixture = mixture or (Difficulty(LONGEST),)
        while True:
            difficulty = rng.choices(mixture, [one.share for one in mixture])[0]
            drawn = [part for part in parts if not difficulty.parts or part in difficulty.parts] or parts
            part = rng.choices(drawn, [SHARES[one] for one in drawn])[0]
            if part == "story":
                yield _story(rng, difficulty, held_out=self.held_out)
            elif part == "support":
                yield _support(rng, held_out=self.held_out)
            elif part == "command":
                text, intent = intents.draw_command(rng, held_out=self.held_out)
                yield example(text, [intents.ask_intent(rng, intent, list(intents.TEMPLATES), "command")])
            else:
                rows = rng.choice(files)
                text, intent = rng.choice(rows)
                names = sorted({name for _, name in rows})
                yield example(text, [intents.ask_intent(rng, intent, names, "labelled")])


def _story(rng: random.Random, difficulty: Difficulty, *, held_out: bool) -> Example:
    while True:
        story = stories.draw_story(rng, held_out=held_out, difficulty=difficulty)
        most = rng.randint(1, MOST_QUESTIONS) if rng.random() < 0.8 else 1
        asked = story_questions.draw_questions(rng, story, most, difficulty.asked)
        if asked:
            if difficulty.listed and rng.random() < difficulty.listed:
                return example(telling.tell_places(rng, story), asked, people=len(story.people))
            opening = 1.0 if difficulty.flowing else 0.5
            sentences = telling.tell(rng, story, recaps=difficulty.recaps, opening=opening)
            state = " ".join(sentences) if difficulty.flowing else _state(rng, sentences)
            return example(state, asked, events=len(story.events), people=len(story.people))


def _state(rng: random.Random, sentences: list[str]) -> str | dict | list:
    """Mostly running text; sometimes a line a sentence, or structured."""
    style = rng.random()
    if style < 0.8:
        return " ".join(sentences)
    if style < 0.9:
        return "\n".join(sentences)
    return sentences if style < 0.95 else {"story": " ".join(sentences)}


def _support(rng: random.Random, *, held_out: bool) -> Example:
    while True:
        message = support.draw_message(rng, held_out=held_out)
        asked = support.draw_questions(rng, message, rng.randint(1, 12))
        if asked:
            return example(support.state_of(rng, message), asked)
