"""Short commands to an assistant and what they intend: generated ones, and labelled ones read from files."""

import csv
import json
import lzma
import random
from collections.abc import Sequence
from pathlib import Path

from . import words
from .asking import Asked, choice

TEMPLATES = {
    "set alarm": ("wake me up at {n}", "set an alarm for {n}", "I have to get up at {n} tomorrow",
                  "alarm at {n} please"),
    "set timer": ("set a timer for {n} minutes", "tell me when {n} minutes are over", "count down {n} minutes"),
    "play music": ("play some {m}", "I want to hear {m}", "put on some {m} music", "turn on my {m} playlist"),
    "weather": ("will it rain in the {l} tomorrow", "what is the weather like", "do I need an umbrella today",
                "how warm will it be on {d}"),
    "call": ("call {p}", "phone {p} for me", "I need to speak to {p}, dial the number", "ring {p} please"),
    "send message": ("write {p} that I am late", "send a message to {p}", "tell {p} I will be there at {n}",
                     "text {p} happy birthday"),
    "turn on light": ("make it brighter in the {l}", "turn on the light in the {l}", "it is too dark in the {l}"),
    "turn off light": ("switch off the lamp in the {l}", "lights out in the {l}", "turn off the light in the {l}"),
    "directions": ("how do I get to the {l}", "show me the way to the {l}", "which bus goes to the {l}"),
    "book table": ("reserve a table for {n} people", "get us a table for {n} on {d}", "book dinner for {n}"),
    "translate": ("how do you say {o} in {g}", "what is the {g} word for {o}", "translate {o} into {g}"),
    "shopping list": ("put a {o} on my list", "we need to buy a {o}", "add a {o} to the shopping list"),
    "calendar": ("what do I have on {d}", "am I free on {d}", "show my meetings on {d}"),
    "reminder": ("remind me to call {p}", "do not let me forget the {o}", "remind me on {d} about the {o}"),
}  # fmt: skip
MUSIC = ("jazz", "rock", "classical", "folk", "pop", "blues")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LANGUAGES = ("German", "French", "Spanish", "Japanese", "Swedish", "Turkish")
PLACES = tuple(place for stage in words.PLACES for place in stage)
ASKS = ("What does the user want?", "Which intent is this?", "What is the intent of the message?", "What is asked for?")

type Labelled = tuple[str, str]  # text, intent


def draw_command(rng: random.Random, *, held_out: bool) -> Labelled:
    """A generated command and its intent; a held-out one has wording that no other has."""
    while True:
        intent = rng.choice(list(TEMPLATES))
        text = rng.choice(TEMPLATES[intent]).format(
            n=rng.choice(words.NUMBERS[2:]), m=rng.choice(MUSIC), l=rng.choice(PLACES), d=rng.choice(DAYS),
            p=rng.choice(words.PEOPLE), o=rng.choice(words.OBJECTS), g=rng.choice(LANGUAGES))  # fmt: skip
        if words.is_held_out((text,)) == held_out:
            return text, intent


def read_labelled(path: Path, *, held_out: bool) -> list[Labelled]:
    """The training rows of a data set, a tenth of them held out by their text.

    Two layouts: comma-separated `text,category` with a header line (banking77), and xz-compressed JSON with a list of
    [text, intent] under "train" (clinc150).
    """
    if path.suffix == ".csv":
        with path.open(newline="", encoding="utf-8") as file:
            rows = [(row["text"], row["category"]) for row in csv.DictReader(file)]
    else:
        with lzma.open(path, "rt", encoding="utf-8") as file:
            rows = [(text, intent) for text, intent in json.load(file)["train"]]
    return [(text, intent.replace("_", " ")) for text, intent in rows if words.is_held_out((text,)) == held_out]


def ask_intent(rng: random.Random, intent: str, intents: Sequence[str], family: str) -> Asked:
    """Which of several intents it is."""
    others = [other for other in intents if other != intent]
    return choice(rng, intent, others, rng.choice(ASKS), says="the user wants: {}".format, family=family)
