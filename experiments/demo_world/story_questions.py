"""Questions about a story, one function a family; each returns None when the story cannot be asked that."""

import random
from collections.abc import Callable, Container
from types import FunctionType

from . import words
from .asking import Asked, choice, score, yes_no
from .stories import Story


def person_in(rng: random.Random, story: Story) -> Asked | None:
    person = _some_placed_person(rng, story)
    if person is None:
        return None
    pool = _near_misses(rng, story, person)
    truth, place = _is_there(rng, story.world.place[person], story.world.unsure.get(person, ()), pool)
    text = rng.choice(("Is {p} in the {l}?", "Is {p} now in the {l}?", "Can {p} be found in the {l}?",
                       "At the end, is {p} in the {l}?")).format(p=person, l=place)  # fmt: skip
    return yes_no(rng, truth, text, yes=f"{person} is in the {place}", no=f"{person} is not in the {place}",
                  family="person_in", certain=person not in story.world.unsure,
                  word=story.world.place[person])  # fmt: skip


def object_in(rng: random.Random, story: Story) -> Asked | None:
    thing = _some_object(rng, story)
    if thing is None:
        return None
    open_places = story.world.open_places(thing)
    truth, place = _is_there(rng, story.world.place_of_object(thing), open_places, story.places)
    text = rng.choice(("Is the {o} in the {l}?", "Is the {o} now in the {l}?", "Can the {o} be found in the {l}?"))
    return yes_no(rng, truth, text.format(o=thing, l=place), yes=f"the {thing} is in the {place}",
                  no=f"the {thing} is somewhere else", family="object_in", certain=not open_places,
                  word=story.world.place_of_object(thing))  # fmt: skip


def has_object(rng: random.Random, story: Story) -> Asked | None:
    thing = _some_object(rng, story)
    if thing is None:
        return None
    holder = story.world.holder.get(thing)
    if holder is None:
        truth, person = False, rng.choice(story.people)
    else:
        truth, person = _true_or_not(rng, holder, story.people)
    text = rng.choice(("Does {p} have the {o}?", "Is {p} carrying the {o}?", "Is the {o} with {p}?",
                       "Does {p} hold the {o}?")).format(p=person, o=thing)  # fmt: skip
    return yes_no(rng, truth, text, yes=f"{person} has the {thing}", no=f"{person} does not have the {thing}",
                  family="has_object", word=holder or "nobody")  # fmt: skip


def feels(rng: random.Random, story: Story) -> Asked | None:
    if not story.world.feeling:
        return None
    person = rng.choice(list(story.world.feeling))
    truth, feeling = _true_or_not(rng, story.world.feeling[person], words.FEELINGS)
    text = rng.choice(("Is {p} {f}?", "Does {p} feel {f}?", "Is {p} {f} now?")).format(p=person, f=feeling)
    return yes_no(rng, truth, text, yes=f"{person} is {feeling}", no=f"{person} is not {feeling}", family="feels",
                  word=story.world.feeling[person])  # fmt: skip


def has_number(rng: random.Random, story: Story) -> Asked | None:
    if not story.world.count:
        return None
    (person, thing), count = rng.choice(list(story.world.count.items()))
    truth, number = _true_or_not(rng, count, [max(0, count - 1), count + 1, count + 2])
    text, yes = f"Does {person} have {words.number_of(number, thing)}?", words.number_of(number, thing)
    return yes_no(rng, truth, text, yes=f"{person} has {yes}", no=f"{person} does not have {yes}",
                  family="has_number", word=words.NUMBERS[count])  # fmt: skip


def where_person(rng: random.Random, story: Story) -> Asked | None:
    person = _some_placed_person(rng, story)
    if person is None:
        return None
    text = rng.choice(("Where is {p}?", "Where is {p} now?", "In which place is {p}?", "Where can {p} be found?"))
    return _where(rng, story, story.world.place[person], text.format(p=person), f"{person} is in the {{}}".format,
                  "where_person", certain=person not in story.world.unsure)  # fmt: skip


def where_object(rng: random.Random, story: Story) -> Asked | None:
    thing = _some_object(rng, story)
    if thing is None:
        return None
    text = rng.choice(("Where is the {o}?", "Where is the {o} now?", "In which place is the {o}?"))
    return _where(rng, story, story.world.place_of_object(thing), text.format(o=thing),
                  f"the {thing} is in the {{}}".format, "where_object",
                  certain=not story.world.open_places(thing))  # fmt: skip


def who_has(rng: random.Random, story: Story) -> Asked | None:
    thing = _some_object(rng, story)
    if thing is None:
        return None
    gold = story.world.holder.get(thing, "nobody")
    others = [name for name in [*story.people, "nobody", _stranger(rng, story)] if name != gold]
    text = rng.choice(("Who has the {o}?", "Who is carrying the {o}?", "With whom is the {o}?")).format(o=thing)
    return choice(rng, gold, others, text, says=f"{{}} has the {thing}".format, family="who_has")


def what_has(rng: random.Random, story: Story) -> Asked | None:
    alone = [person for person in story.people if len(story.world.carried_by(person)) <= 1]
    carriers = [person for person in alone if story.world.carried_by(person)]
    people = carriers if carriers and rng.random() < 0.8 else alone
    if not people:
        return None
    person = rng.choice(people)
    gold = next(iter(story.world.carried_by(person)), "nothing")
    pool = [*story.objects, *rng.sample(words.OBJECTS, 2), "nothing"]
    others = [thing for thing in dict.fromkeys(pool) if thing != gold]
    text = rng.choice(("What is {p} carrying?", "What does {p} have?", "Which object is with {p}?")).format(p=person)

    def says(name: str) -> str:
        return f"{person} has {name if name == 'nothing' else 'the ' + name}"

    return choice(rng, gold, others, text, says=says, family="what_has")


def how_feels(rng: random.Random, story: Story) -> Asked | None:
    if not story.world.feeling:
        return None
    person, gold = rng.choice(list(story.world.feeling.items()))
    others = [feeling for feeling in words.FEELINGS if feeling != gold]
    text = rng.choice((f"How does {person} feel?", f"How is {person}?", f"What is the mood of {person}?"))
    return choice(rng, gold, others, text, says=f"{person} is {{}}".format, family="how_feels")


def which_colour(rng: random.Random, story: Story) -> Asked | None:
    if not story.world.colour:
        return None
    thing, gold = rng.choice(list(story.world.colour.items()))
    others = [colour for colour in words.COLOURS if colour != gold]
    text = rng.choice((f"What colour is the {thing}?", f"Which colour does the {thing} have?"))
    return choice(rng, gold, others, text, says=f"the {thing} is {{}}".format, family="which_colour")


def carries(rng: random.Random, story: Story) -> Asked | None:
    carriers = sorted(set(story.world.holder.values()))
    if not carriers and rng.random() < 0.7:
        return None
    person = rng.choice(carriers if carriers and rng.random() < 0.8 else story.people)
    text = rng.choice(("How many objects is {p} carrying?", "How many objects does {p} carry?")).format(p=person)
    return _how_many(rng, len(story.world.carried_by(person)), text, "carries", least=2)


def owns(rng: random.Random, story: Story) -> Asked | None:
    if not story.world.count:
        return None
    (person, thing), count = rng.choice(list(story.world.count.items()))
    text = rng.choice(("How many {things} does {p} have?", "How many {things} does {p} have now?"))
    return _how_many(rng, count, text.format(p=person, things=thing[1]), "owns", least=3)


FAMILIES: tuple[tuple[FunctionType, float], ...] = (
    (person_in, 1.2), (object_in, 0.8), (has_object, 1.2), (feels, 0.5), (has_number, 0.7), (where_person, 1.4),
    (where_object, 1.0), (who_has, 1.2), (what_has, 0.8), (how_feels, 0.5), (which_colour, 0.5), (carries, 2.2),
    (owns, 2.2),
)  # fmt: skip


def draw_questions(rng: random.Random, story: Story, most: int, only: Container[str] = ()) -> list[Asked]:
    """Up to `most` different questions, drawn by the weights above, of some families or of all."""
    asked: dict[str, Asked] = {}
    drawn = [(family, weight) for family, weight in FAMILIES if not only or family.__name__ in only]
    families, weights = zip(*drawn, strict=True)
    for family in rng.choices(families, weights, k=2 * most):
        one = family(rng, story)
        if one is not None and len(asked) < most:
            asked.setdefault(str(one.question.instructions) + one.family, one)
    return list(asked.values())


def _true_or_not[T](rng: random.Random, truth: T, pool: list[T] | tuple[T, ...]) -> tuple[bool, T]:
    """Half the time the true value, otherwise a false one from the pool (the true one when there is no other)."""
    false = [value for value in pool if value != truth]
    if rng.random() < 0.5 or not false:
        return True, truth
    return False, rng.choice(false)


def _is_there(rng: random.Random, truth: str, open_places: tuple[str, ...], pool: list[str]) -> tuple[bool, str]:
    """A place to ask about and whether it is the true one. An open place is picked without looking at the truth, so
    that "either here or there" is asked about both places alike and stays a matter of one half."""
    if not open_places:
        return _true_or_not(rng, truth, pool)
    place = rng.choice(open_places if rng.random() < 0.75 else pool)
    return place == truth, place


def _near_misses(rng: random.Random, story: Story, person: str) -> list[str]:
    """The places this person has been, or the whole stage: what a careless reader would answer."""
    been = story.world.visits.get(person, [])
    open_ones = [place for place in story.places if (person, place) in story.world.maybe]
    return been + open_ones if len(set(been + open_ones)) > 1 and rng.random() < 0.6 else story.places


def _some_placed_person(rng: random.Random, story: Story) -> str | None:
    """Anybody whose place the story tells; those whose place it leaves open more often."""
    world = story.world
    people = list(world.unsure if world.unsure and rng.random() < 0.5 else world.place)
    return rng.choice(people) if people else None


def _some_object(rng: random.Random, story: Story) -> str | None:
    known = [*story.world.lies, *story.world.holder]
    return rng.choice(known) if known else None


def _stranger(rng: random.Random, story: Story) -> str:
    return rng.choice([name for name in words.PEOPLE if name not in story.people])


def _where(
    rng: random.Random, story: Story, gold: str, text: str, says: Callable[[str], str], family: str, *, certain: bool
) -> Asked:
    pool = story.places if rng.random() < 0.7 else [*story.places, *rng.choice(words.PLACES)]
    others = [place for place in dict.fromkeys(pool) if place != gold]
    most = 12 if rng.random() < 0.1 else 8
    return choice(rng, gold, others, text, says=says, family=family, certain=certain, most=most)


def _how_many(rng: random.Random, count: int, text: str, family: str, *, least: int) -> Asked:
    """A score over 0 .. top; the last level may stand for everything from there on."""
    top = max(rng.randint(least, 6), 1)
    open_ended = count > top or rng.random() < 0.2
    numbers = words.NUMBERS if rng.random() < 0.6 else tuple(str(number) for number in range(11))
    levels = [numbers[number] for number in range(top + 1)]
    if levels[0] == "zero" and rng.random() < 0.5:
        levels[0] = "none"
    if open_ended:
        levels[top] += " or more"
    return score(min(count, top), levels, text, family=family, word=words.NUMBERS[count])
