"""What happens in a story: events drawn at random, and the world they lead to.

An event is data; `World.apply` is the only place that says what it changes, and `telling` the only one that puts it
into words. Places a story leaves open ("either in the kitchen or in the garden") carry a hidden truth, drawn here.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from . import words

LIKELY = 0.8  # how often "probably" turns out to be true
KINDS = (  # of events, from the plain to the intricate
    "go", "lies", "take", "drop", "noise", "go_together", "give", "has", "gain", "feels", "lose", "colour", "either",
    "probably", "hand_over",
)  # fmt: skip


@dataclass(frozen=True)
class Difficulty:
    """Which stories are drawn, and what they are asked.

    Attributes:
        longest: the most events of a story.
        people: the most people.
        kinds: of events that may happen.
        recaps: how often a sentence is followed by one that says again what holds (`telling`); below one.
        asked: families of questions, all if empty.
        apart: whether the story tells of people in different places.
        flowing: whether it is running text that does not begin with a name. Names without a space before them are
            nearly all cut into other tokens than names with one, which have to be learned name by name.
        listed: how often the story is told as a list of who is where, names and places close together. Of all that
            happens it says no more than that.
        parts: of the world, all if empty.
        share: of the requests, relative to the others of a mixture.
    """

    longest: int
    people: int = 4
    kinds: tuple[str, ...] = KINDS
    recaps: float = 0.0
    asked: tuple[str, ...] = ()
    apart: bool = False
    flowing: bool = False
    listed: float = 0.0
    parts: tuple[str, ...] = ()
    share: float = 1.0


class Event(NamedTuple):
    """`kind` and its arguments, people, places and objects by name; see `World.apply` for each kind's."""

    kind: str
    args: tuple


@dataclass
class World:
    """Where everybody and everything is after the events so far."""

    place: dict[str, str] = field(default_factory=dict)  # person -> place, the hidden truth where unsure
    unsure: dict[str, tuple[str, str]] = field(default_factory=dict)  # person -> the two places it leaves open
    visits: dict[str, list[str]] = field(default_factory=dict)  # person -> places the story surely puts them in
    maybe: set[tuple[str, str]] = field(default_factory=set)  # (person, place) the story leaves open
    holder: dict[str, str] = field(default_factory=dict)  # object -> person, only while carried
    lies: dict[str, str] = field(default_factory=dict)  # object -> place, only while lying somewhere
    count: dict[tuple[str, tuple[str, str]], int] = field(default_factory=dict)  # (person, thing) -> how many
    feeling: dict[str, str] = field(default_factory=dict)
    colour: dict[str, str] = field(default_factory=dict)

    def apply(self, event: Event) -> None:
        """Changes the world as the event says."""
        match event:
            case Event("go", (person, place)):
                self._put(person, place)
            case Event("go_together", (one, other, place)):
                self._put(one, place)
                self._put(other, place)
            case Event("either" | "probably", (person, first, second, truth)):
                self.place[person] = truth
                self.unsure[person] = (first, second)
                self.maybe |= {(person, first), (person, second)}
            case Event("lies", (thing, place)):
                self.lies[thing] = place
            case Event("take", (person, thing)):
                self.lies.pop(thing, None)
                self.holder[thing] = person
            case Event("drop", (person, thing)):
                del self.holder[thing]
                self.lies[thing] = self.place[person]
            case Event("give", (_, receiver, thing)):
                self.holder[thing] = receiver
            case Event("has", (person, thing, number)):
                self.count[person, thing] = number
            case Event("gain", (person, thing, number)):
                self.count[person, thing] += number
            case Event("lose", (person, thing, number)):
                self.count[person, thing] -= number
            case Event("hand_over", (giver, receiver, thing, number)):
                self.count[giver, thing] -= number
                self.count[receiver, thing] += number
            case Event("feels", (person, feeling)):
                self.feeling[person] = feeling
            case Event("colour", (thing, colour)):
                self.colour[thing] = colour
            case Event("noise", _):
                pass
            case _:
                raise ValueError(f"unknown event {event}")

    def _put(self, person: str, place: str) -> None:
        self.place[person] = place
        self.unsure.pop(person, None)
        self.visits.setdefault(person, []).append(place)

    def carried_by(self, person: str) -> list[str]:
        return [thing for thing, holder in self.holder.items() if holder == person]

    def place_of_object(self, thing: str) -> str:
        return self.lies[thing] if thing in self.lies else self.place[self.holder[thing]]

    def open_places(self, thing: str) -> tuple[str, ...]:
        """The places an object may be in, when its holder's place is open."""
        return () if thing in self.lies else self.unsure.get(self.holder[thing], ())


@dataclass
class Story:
    """A cast, a stage and what happened; `people` are those who are mentioned, at least one."""

    people: list[str]
    places: list[str]
    objects: list[str]
    things: list[tuple[str, str]]
    events: list[Event]
    world: World


def draw_story(rng: random.Random, *, held_out: bool, difficulty: Difficulty) -> Story:
    """A story of at least 2 events. Its cast is one of the held-out casts or one of the others, never both."""
    while True:
        story = _draw_any_story(rng, difficulty)
        if difficulty.apart and len({*story.world.place.values()}) < 2:
            continue
        if story.people and words.is_held_out(story.people) == held_out:
            return story


def _draw_any_story(rng: random.Random, difficulty: Difficulty) -> Story:
    length = rng.randint(2, max(2, rng.randint(2, difficulty.longest)))
    people = rng.sample(words.PEOPLE, rng.randint(2, min(difficulty.people, 2 + length // 5)))
    stage = rng.choice(words.PLACES)
    places = rng.sample(stage, rng.randint(2, min(5, 2 + length // 3)))
    story = Story(people, places, rng.sample(words.OBJECTS, rng.randint(1, 4)),
                  rng.sample(words.COUNTED, rng.randint(1, 2)), [], World())  # fmt: skip
    weights = {"go": 4.0, "go_together": 0.5, "noise": rng.choice((0.0, 0.3, 1.0))}
    if rng.random() < 0.8:
        weights |= {"take": 2.5, "drop": 1.2, "give": 1.5, "lies": 0.5}
    if rng.random() < 0.4:
        weights |= {"has": 1.5, "gain": 1.2, "lose": 0.8, "hand_over": 0.8}
    if rng.random() < 0.3:
        weights |= {"feels": 0.8}
    if rng.random() < 0.25:
        weights |= {"colour": 0.6}
    if rng.random() < 0.5:
        weights |= {"either": 0.7, "probably": 0.5}
    weights = {kind: weight for kind, weight in weights.items() if kind in difficulty.kinds}
    kinds, shares = list(weights), list(weights.values())
    while len(story.events) < length:
        event = _draw_event(rng, story, rng.choices(kinds, shares)[0])
        if event is not None:
            story.world.apply(event)
            story.events.append(event)
    story.people = [person for person in people if any(person in event.args for event in story.events)]
    return story


def _draw_event(rng: random.Random, story: Story, kind: str) -> Event | None:
    """An event of this kind that can happen now, or None when the draw cannot."""
    if kind in ("go", "go_together", "either", "probably"):
        return _draw_move(rng, story, kind)
    if kind in ("lies", "take", "drop", "give"):
        return _draw_handling(rng, story, kind)
    if kind in ("has", "gain", "lose", "hand_over"):
        return _draw_counting(rng, story, kind)
    if kind == "feels":
        return Event(kind, (rng.choice(story.people), rng.choice(words.FEELINGS)))
    if kind == "colour":
        plain = [thing for thing in _known_objects(story.world) if thing not in story.world.colour]
        return Event(kind, (rng.choice(plain), rng.choice(words.COLOURS))) if plain else None
    return Event("noise", (rng.randrange(len(words.NOISE)), rng.choice(story.places), rng.choice(words.NUMBERS[2:])))


def _known_objects(world: World) -> list[str]:
    return [*world.lies, *world.holder]


def _draw_move(rng: random.Random, story: Story, kind: str) -> Event | None:
    world = story.world
    person = rng.choice(story.people)
    if kind == "go_together":
        one, other = rng.sample(story.people, 2)
        place = rng.choice(story.places)
        return Event(kind, (one, other, place)) if place not in (world.place.get(one), world.place.get(other)) else None
    if kind == "go":
        elsewhere = [place for place in story.places if person in world.unsure or place != world.place.get(person)]
        return Event(kind, (person, rng.choice(elsewhere)))
    first, second = rng.sample(story.places, 2)
    truth = first if rng.random() < (0.5 if kind == "either" else LIKELY) else second
    return Event(kind, (person, first, second, truth))


def _draw_handling(rng: random.Random, story: Story, kind: str) -> Event | None:
    world = story.world
    thing = rng.choice(story.objects)
    known = thing in world.lies or thing in world.holder
    if kind == "lies":
        return None if known else Event(kind, (thing, rng.choice(story.places)))
    placed = [person for person in world.place if person not in world.unsure]
    if kind == "take":
        if thing in world.holder:
            return None
        near = [person for person in placed if thing not in world.lies or world.lies[thing] == world.place[person]]
        return Event(kind, (rng.choice(near), thing)) if near else None
    holder = world.holder.get(thing)
    if holder is None or holder not in placed:
        return None
    if kind == "drop":
        return Event(kind, (holder, thing))
    near = [person for person in placed if person != holder and world.place[person] == world.place[holder]]
    return Event(kind, (holder, rng.choice(near), thing)) if near else None


def _draw_counting(rng: random.Random, story: Story, kind: str) -> Event | None:
    """Counts stay within 0..6."""
    world = story.world
    person, thing = rng.choice(story.people), rng.choice(story.things)
    have = world.count.get((person, thing))
    if kind == "has":
        return Event(kind, (person, thing, rng.randint(0, 4))) if have is None else None
    if have is None:
        return None
    if kind == "gain":
        return Event(kind, (person, thing, rng.randint(1, min(2, 6 - have)))) if have < 6 else None
    if have == 0:
        return None
    number = rng.randint(1, min(2, have))
    if kind == "lose":
        return Event(kind, (person, thing, number))
    others = [other for (other, held), count in world.count.items()
              if held == thing and other != person and count + number <= 6]  # fmt: skip
    return Event(kind, (person, rng.choice(others), thing, number)) if others else None
