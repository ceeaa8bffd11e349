"""A story's events in words."""

import random
import re
from collections.abc import Sequence

from . import words
from .stories import Event, Story, World

SENTENCES = {
    "go": (
        "{p} went to the {l}.", "{p} moved to the {l}.", "{p} walked to the {l}.", "{p} ran to the {l}.",
        "{p} travelled to the {l}.", "{p} hurried to the {l}.", "{p} came into the {l}.", "{p} entered the {l}.",
        "{p} is in the {l} now.", "{p} is now in the {l}.", "{p} went into the {l}.", "{p} has gone to the {l}.",
        "{p} can be found in the {l}.", "{p} made {their} way to the {l}.",
    ),
    "leave": (
        "{p} left the {old} and went to the {l}.", "{p} went from the {old} to the {l}.",
        "{p} is no longer in the {old} but in the {l}.", "{p} moved from the {old} to the {l}.",
    ),
    "go_together": (
        "{p} and {q} went to the {l}.", "{p} and {q} walked to the {l} together.", "{p} and {q} are in the {l} now.",
        "{p} followed {q} to the {l}.", "{p} went to the {l} with {q}.", "{p} took {q} along to the {l}.",
    ),
    "either": (
        "{p} is either in the {a} or in the {b}.", "{p} is in the {a} or the {b}, nobody knows which.",
        "{p} went to the {a} or to the {b}.", "{p} must be in the {a} or in the {b}.",
    ),
    "probably": (
        "{p} is probably in the {a}, but perhaps in the {b}.", "{p} is most likely in the {a}, otherwise in the {b}.",
        "{p} probably went to the {a}, or else to the {b}.",
    ),
    "lies": (
        "There is {ao} in the {l}.", "The {o} is in the {l}.", "The {o} lies in the {l}.", "{Ao} was left in the {l}.",
        "Somebody put the {o} in the {l}.",
    ),
    "take": (
        "{p} picked up the {o}.", "{p} took the {o}.", "{p} grabbed the {o}.", "{p} got the {o}.",
        "{p} found the {o} and took it.", "{p} took the {o} with {them}.", "{p} picked the {o} up.",
    ),
    "drop": (
        "{p} put down the {o}.", "{p} dropped the {o}.", "{p} left the {o} there.", "{p} put the {o} on the floor.",
        "{p} left the {o} in the {here}.", "{p} put the {o} down in the {here}.",
    ),
    "give": (
        "{p} gave the {o} to {q}.", "{p} handed the {o} to {q}.", "{p} gave {q} the {o}.", "{p} passed the {o} to {q}.",
        "{q} got the {o} from {p}.", "{q} took the {o} from {p}.",
    ),
    "has": ("{p} has {n}.", "{p} owns {n}.", "{p} had {n} to begin with.", "At first {p} had {n}."),
    "gain": (
        "{p} found {m}.", "{p} bought {m}.", "{p} got {m}.", "Somebody gave {p} {m}.", "{p} won {m}.",
    ),
    "lose": ("{p} lost {n}.", "{p} sold {n}.", "{p} threw away {n}.", "{p} no longer has {n} of {their} {things}."),
    "hand_over": ("{p} gave {n} to {q}.", "{p} gave {q} {n}.", "{q} got {n} from {p}.", "{p} sold {n} to {q}."),
    "feels": ("{p} is {f}.", "{p} feels {f}.", "{p} looks {f}.", "{p} was {f} by then.", "{p} has become {f}."),
    "colour": ("The {o} is {c}.", "The colour of the {o} is {c}.", "The {o} looks {c}."),
}  # fmt: skip
TOGETHER = ("{p} went to the {l} and picked up the {o}.", "{p} went to the {l}, where {they} took the {o}.",
            "{p} took the {o} after going to the {l}.")  # fmt: skip
# What a story says again: the word that only a reader who remembers can foretell stands last. Some is said in answer to
# a question, so that next-token prediction learns to answer, too.
RECAPS = {
    "place": ("{p} is still in the {l}.", "By now {p} is in the {l}.", "So {p} is in the {l}."),
    "where": ("Where is {p}? In the {l}.", "Where is {p} now? In the {l}.", "Where can {p} be found? In the {l}."),
    "whether": ("Is {p} in the {l}? {a}.", "Is {p} now in the {l}? {a}.", "Can {p} be found in the {l}? {a}."),
    "lies": ("The {o} is still in the {l}.", "By now the {o} is in the {l}."),
    "carried": ("So the {o} is in the {l}.", "The {o} is with {p} in the {l}."),
    "holder": ("The {o} is still with {p}.", "The one who has the {o} is {p}."),
    "holds": ("{p} still has the {o}.", "What {p} has is the {o}."),
    "count": ("{p} still has {n}.", "By now {p} has {n}."),
    "feeling": ("{p} is still {f}.",),
    "colour": ("The {o} is still {c}.",),
}
MOST_RECAPS = 6  # after one sentence: stories have to fit a stream
_DESCRIBES = re.compile(r" (is|are|was|can|must|has|had|owns|looks|feels|lies) |^The |It |^Nobody ")
LISTS = ("Places:", "Where everybody is:", "List:", "Now:", "Today:")
OPENERS = ("Then ", "After that, ", "Later, ", "Soon ", "A little later, ", "Meanwhile, ", "Next, ", "In the evening, ")
OPENINGS = ("Today ", "Today, ", "To begin with, ", "In the beginning, ", "This afternoon, ", "Here is what we know. ")


# A key of RECAPS with whom or what it is about, and what fills its sentences.
Facts = dict[tuple[str, ...], dict[str, str]]


def tell_places(rng: random.Random, story: Story) -> str:
    """Who is where at the end of a story, as a list: "Places: Mary - kitchen, John - garden." """
    between = rng.choice((":", " -", " =", " in the"))
    listed = [
        f"{person}{between} {story.world.place[person]}" for person in story.people if person in story.world.place
    ]
    rng.shuffle(listed)
    return f"{rng.choice(LISTS)} {rng.choice((', ', '; ', '. ')).join(listed)}."


def tell(rng: random.Random, story: Story, *, recaps: float = 0.0, opening: float = 0.5) -> list[str]:
    """The sentences of a story, in order; an event and the one after it sometimes share a sentence.

    `recaps` is how often a sentence is followed by another that only says again what an earlier one said; `opening` is
    how often a story does not begin with a name.
    """
    sentences: list[str] = []
    where: dict[str, str] = {}
    subject: str | None = None  # the only person the last sentence is about, whom a pronoun may stand for
    events = list(story.events)
    told, known = World(), Facts()
    while events:
        event = events.pop(0)
        applied = [event]
        joined = events and event.kind == "go" and events[0].kind == "take" and events[0].args[0] == event.args[0]
        if joined and rng.random() < 0.5:
            person, place = event.args
            where[person] = place
            applied.append(events.pop(0))
            thing = applied[-1].args[1]
            sentence = rng.choice(TOGETHER).format(p="{p}", l=place, o=thing, they=words.PRONOUN[person])
            about: list[str] = [person]
        else:
            sentence, about = _sentence(rng, event, where)
        name = about[0] if about else ""
        if about and sentence.startswith("{p}") and subject == name and rng.random() < 0.25:
            name = words.PRONOUN[name]
        if sentences and not _DESCRIBES.search(sentence) and rng.random() < 0.2:
            sentence = rng.choice(OPENERS) + (sentence if sentence.startswith("{p}") else _lower(sentence))
        if not sentences and sentence.startswith("{p}") and rng.random() < opening:
            sentence = rng.choice(OPENINGS) + sentence
        sentence = sentence.replace("{p}", name)
        sentences.append(sentence[0].upper() + sentence[1:])
        subject = about[0] if len(about) == 1 else None
        if recaps:
            before, known = known, _facts(told, applied)
            old = [fact for fact in known if before.get(fact) == known[fact]]
            for _ in range(MOST_RECAPS):
                if not old or rng.random() >= recaps:
                    break
                kind = rng.choice(sorted({fact[0] for fact in old}))
                said = rng.choice([fact for fact in old if fact[0] == kind])
                sentences.append(rng.choice(RECAPS[said[0]]).format(**known[said]))
                old, subject = [fact for fact in known if fact != said], None
    return sentences


def _facts(told: World, events: Sequence[Event]) -> Facts:
    """What the story says for sure after these events, too."""
    for event in events:
        told.apply(event)
    sure = {person: place for person, place in told.place.items() if person not in told.unsure}
    facts: Facts = {("place", person): {"p": person, "l": place} for person, place in sure.items()}
    facts |= {("where", person): {"p": person, "l": place} for person, place in sure.items()}
    facts |= {
        ("whether", person, other): {"p": person, "l": other, "a": "Yes" if place == other else "No"}
        for person, place in sure.items()
        for other in dict.fromkeys(sure.values())
    }
    facts |= {("lies", thing): {"o": thing, "l": place} for thing, place in told.lies.items()}
    facts |= {("feeling", person): {"p": person, "f": feeling} for person, feeling in told.feeling.items()}
    facts |= {("colour", thing): {"o": thing, "c": colour} for thing, colour in told.colour.items()}
    for thing, person in told.holder.items():
        facts["holder", thing] = {"p": person, "o": thing}
        if person in sure:
            facts["carried", thing] = {"p": person, "o": thing, "l": sure[person]}
        if len(told.carried_by(person)) == 1:
            facts["holds", person] = {"p": person, "o": thing}
    for (person, thing), count in told.count.items():
        facts["count", person, thing[1]] = {"p": person, "n": words.number_of(count, thing)}
    return facts


def _sentence(rng: random.Random, event: Event, where: dict[str, str]) -> tuple[str, list[str]]:
    """The sentence with its first person still to be filled in as {p}, and the people it is about."""
    if event.kind == "noise":
        index, place, number = event.args
        return words.NOISE[index].format(l=place, n=number), []
    kind, values, about = event.kind, {}, [arg for arg in event.args if arg in words.PRONOUN]
    match event:
        case Event("go", (person, place)):
            values = {"l": place, "old": where.get(person, "")}
            kind = "leave" if person in where and rng.random() < 0.2 else "go"
            where[person] = place
        case Event("go_together", (one, other, place)):
            values = {"l": place}
            where[one] = where[other] = place
        case Event("either" | "probably", (person, first, second, _)):
            if event.kind == "either" and rng.random() < 0.5:
                first, second = second, first
            values = {"a": first, "b": second}
            where.pop(person, None)
        case Event("lies", (thing, place)):
            values = {"l": place, "o": thing, "ao": words.with_article(thing),
                      "Ao": words.with_article(thing).capitalize()}  # fmt: skip
        case Event("take" | "drop", (person, thing)):
            values = {"o": thing, "here": where[person]}
        case Event("give", (_, _, thing)):
            values = {"o": thing}
        case Event("has" | "gain" | "lose" | "hand_over", (*_, thing, number)):
            more = f"{words.NUMBERS[number]} more {thing[number != 1]}"
            values = {"n": words.number_of(number, thing), "m": more, "things": thing[1]}
        case Event("feels", (_, feeling)):
            values = {"f": feeling}
        case Event("colour", (thing, colour)):
            values = {"o": thing, "c": colour}
    if about:
        they = words.PRONOUN[about[0]]
        values |= {"p": "{p}", "q": about[-1], "they": they, "their": {"she": "her", "he": "his"}[they],
                   "them": {"she": "her", "he": "him"}[they]}  # fmt: skip
    return rng.choice(SENTENCES[kind]).format(**values), about


def _lower(sentence: str) -> str:
    """The sentence to stand after an opener: lower case unless it begins with a name."""
    first = sentence.split()[0]
    return sentence if first in words.PRONOUN else sentence[0].lower() + sentence[1:]
