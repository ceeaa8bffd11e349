"""The words of the story world: who, where, what, how it feels, and the split by combinations of words."""

import zlib
from collections.abc import Iterable

WOMEN = (
    "Mary Sandra Anna Lucy Emma Alice Carol Eva Grace Julia Kate Maria Nina Rosa Tina Wendy Sara Laura Jane Helen "
    "Sophie Lily Clara Ida Nora Ella Susan Priya Fatima Elena Olivia Sarah Linda Julie"
).split()
MEN = (
    "Tom John Daniel Peter Jack Bob David Frank Henry Ivan Leo Oscar Paul Sam Victor Max Adam Bill Fred George Mark "
    "Martin Ben Hugo Karl Simon Robert Amir Chen Omar Pablo James Michael Kevin"
).split()
PEOPLE = tuple(WOMEN + MEN)
PRONOUN = {name: "she" for name in WOMEN} | {name: "he" for name in MEN}

PLACES = (
    ("kitchen", "garden", "bathroom", "bedroom", "hallway", "cellar", "attic", "garage", "office", "balcony", "yard"),
    ("park", "school", "station", "library", "market", "museum", "bank", "bakery", "church", "square", "cinema",
     "hospital", "shop", "hotel"),
    ("lobby", "canteen", "workshop", "archive", "lab", "warehouse", "meeting room", "office", "storeroom", "hallway"),
)  # fmt: skip
OBJECTS = (
    "apple book key ball lamp letter cup hat phone map ring knife box bag coat camera bottle umbrella pen newspaper "
    "candle bucket rope ticket hammer basket flute"
).split()
COUNTED = (
    ("coin", "coins"), ("marble", "marbles"), ("egg", "eggs"), ("stamp", "stamps"), ("card", "cards"),
    ("cookie", "cookies"), ("flower", "flowers"), ("stone", "stones"), ("shell", "shells"), ("button", "buttons"),
)  # fmt: skip
FEELINGS = ("tired", "hungry", "happy", "angry", "sad", "cold", "bored", "nervous", "thirsty", "calm")
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
