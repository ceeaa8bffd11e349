"""The words of the story world: who, where, what, how it feels, and the split by combinations of words."""

import zlib
from collections.abc import Iterable

# Nearly every name, place and thing is one token of the demo model's tokenizer where a space comes before it: what a
# small model has to connect, it sees whole.
WOMEN = "Mary Carol Ann Rose Kim Virginia Georgia April June Jo Pat Taylor Alex".split()
MEN = (
    "Eric Andrew Thomas William Charles Richard Joe Steve Scott Jim Tim Dan Matt Chris Ryan Jeff Mike Ray Lee Nick "
    "Harry Roy Joseph Tom John Daniel Peter Jack Bob David Frank Paul Sam Max Adam Bill George Martin Ben Robert James "
    "Michael Kevin Mark Greg Louis Donald"
).split()
PEOPLE = tuple(WOMEN + MEN)
PRONOUN = {name: "she" for name in WOMEN} | {name: "he" for name in MEN}

PLACES = (
    ("kitchen", "garden", "bathroom", "bedroom", "hall", "office", "study", "pool", "cellar"),
    ("park", "school", "station", "library", "market", "bank", "church", "square", "hospital", "shop", "hotel",
     "restaurant", "court", "airport"),
    ("lab", "factory", "farm", "studio", "mill", "forest", "camp", "field", "village"),
)  # fmt: skip
OBJECTS = (
    "apple book key ball letter cup hat phone map ring box bag camera bottle pen newspaper basket bucket watch clock "
    "glass plate radio brush doll stick paper umbrella"
).split()
COUNTED = (
    ("coin", "coins"), ("card", "cards"), ("cookie", "cookies"), ("button", "buttons"), ("photo", "photos"),
    ("ticket", "tickets"), ("block", "blocks"), ("star", "stars"), ("note", "notes"),
)  # fmt: skip
FEELINGS = ("happy", "sad", "sick", "cold", "warm", "afraid", "proud", "excited", "surprised", "busy")
COLOURS = ("red", "blue", "green", "yellow", "black", "white", "brown", "silver")
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NOISE = (
    "The sun was shining.", "It was raining outside.", "A dog barked somewhere.", "It was a quiet day.",
    "The clock struck {n}.", "Nobody said a word.", "It was getting late.", "The wind was cold.",
    "Somewhere a door closed.", "There was music in the {l}.", "The {l} smelled of paint.", "A cat slept in the {l}.",
    "The light in the {l} was on.", "It was {n} o'clock.", "The {l} looked very clean.",
    "The windows of the {l} were open.",
    "That day everybody was busy.", "A bird sang in the distance.", "The floor of the {l} was wet.",
    "Time passed slowly.",
)  # fmt: skip


def with_article(noun: str) -> str:
    """'an apple', 'a key'."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def number_of(count: int, thing: tuple[str, str]) -> str:
    """'one coin', 'three coins', 'no coins'; `thing` is (singular, plural)."""
    return f"{'no' if count == 0 else NUMBERS[count]} {thing[count != 1]}"


def is_held_out(parts: Iterable[str]) -> bool:
    """Whether this combination of words belongs to the held-out tenth, the same in every process."""
    return zlib.crc32("|".join(sorted(parts)).encode()) % 10 == 0
