"""The generated world: right answers, valid requests, the same for a seed, and no shortcut in the labels."""

import itertools
import json
import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

import flide_jax
from experiments.demo_world import Asked, DemoWorld, Difficulty, Example, intents, stories, words
from flide_jax.request import Choice, Score, YesNo
from tests.experiments.story_reader import NUMBERS, StoryReader


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    return list(itertools.islice(DemoWorld().examples(7, Difficulty(10)), 1500))


@pytest.fixture(scope="module")
def told() -> list[tuple[StoryReader, Example]]:
    """Stories as an independent reader understands their text."""
    some = itertools.islice(DemoWorld(parts=("story",)).examples(11, Difficulty(10), Difficulty(10, recaps=0.5)), 800)
    return [(StoryReader(_text(example)), example) for example in some]


def _text(example: Example) -> str:
    state = example.request.state
    if isinstance(state, dict):
        return state["story"]
    return " ".join(state) if isinstance(state, list) else state


def _given(asked: Asked) -> str:
    """The gold option in words."""
    question = asked.question
    if isinstance(question, YesNo):
        return ("yes", "no")[asked.gold]
    if isinstance(question, Score):
        return str(question.levels[asked.gold])
    name, meaning = list(question.options.items())[asked.gold]
    return str(meaning if re.fullmatch(r"(option|answer|case) \d+", name) else name)


def _expected(reader: StoryReader, family: str, text: str) -> object:
    """What the reader answers: a truth value, a word of the right option, or a number; None if it cannot tell."""
    person = next((word for word in re.findall(r"\w+", text) if word in words.PEOPLE), "")
    place = re.search(r"(?:in|to) the (\w+)", text)
    thing = re.search(r"\bthe (\w+)", text)
    match family:
        case "yesno/person_in":
            return reader.place[person] == place.group(1)
        case "yesno/object_in":
            return reader.place_of(thing.group(1)) == place.group(1)
        case "yesno/has_object":
            return reader.holder[thing.group(1)] == person
        case "choice/where_person":
            return reader.place[person]
        case "choice/where_object":
            return reader.place_of(thing.group(1))
        case "choice/who_has":
            return reader.holder[thing.group(1)] or "nobody"
        case "choice/what_has":
            return next(iter(reader.carried(person)), "nothing")
        case "score/carries":
            return len(reader.carried(person))
        case "score/owns":
            return reader.owned(person, re.search(r"How many (\w+)", text).group(1))
    return None


def test_gold_answers_are_what_the_text_says(told):
    checked: Counter[str] = Counter()
    for reader, example in told:
        for asked in example.asked.values():
            text = asked.question.instructions
            if not asked.certain or text is None or not text.endswith("?"):
                continue
            expected = _expected(reader, asked.family, text)
            if expected is None:
                continue
            checked[asked.family] += 1
            given = _given(asked)
            context = f"{_text(example)}\n{asked}"
            if isinstance(expected, bool):
                assert given == ("yes" if expected else "no"), context
            elif isinstance(expected, int):
                digits = given.removesuffix(" or more").replace("none", "zero")
                level = int(digits) if digits.isdigit() else NUMBERS.index(digits)
                assert level == expected or (given.endswith("or more") and level <= expected), context
            else:
                assert re.search(rf"\b{expected}\b", given), context
    assert len(checked) == 9 and min(checked.values()) > 50, checked


def test_open_questions_are_the_ones_the_text_leaves_open(told):
    places = ("yesno/person_in", "choice/where_person")
    for reader, example in told:
        for asked in example.asked.values():
            text = asked.question.instructions
            if asked.family in places and text is not None and text.endswith("?"):
                open_place = _expected(reader, "choice/where_person", text) is None
                assert asked.certain != open_place, f"{_text(example)}\n{asked}"


def test_either_is_a_matter_of_one_half():
    rng = random.Random(0)
    outcomes = []
    while len(outcomes) < 400:
        story = stories.draw_story(rng, held_out=False, difficulty=Difficulty(12))
        for event in story.events:
            if event.kind == "either":
                _, first, _, truth = event.args
                outcomes.append(truth == first)
    assert abs(np.mean(outcomes) - 0.5) < 0.07


def test_examples_are_determined_by_their_seed(examples):
    assert list(itertools.islice(DemoWorld().examples(7, Difficulty(10)), 50)) == examples[:50]
    assert list(itertools.islice(DemoWorld().examples(8, Difficulty(10)), 50)) != examples[:50]


def test_questions_are_well_formed(examples):
    counts = [len(example.asked) for example in examples]
    assert min(counts) == 1 and max(counts) <= 20 and len(set(counts)) > 12
    for example in examples:
        assert list(example.request.questions) == list(example.asked)
        for asked in example.asked.values():
            question = asked.question
            options = 2
            if isinstance(question, Choice):
                options = len(question.options)
                assert 2 <= options <= 12
            elif isinstance(question, Score):
                options = len(question.levels)
                assert 2 <= options <= 8 and len(set(question.levels)) == options
            assert 0 <= asked.gold < options
            assert "{" not in json.dumps([question.instructions, str(question)]).replace("mappingproxy({", "")


def test_labels_are_no_shortcut(examples):
    """Within a question type the label says nothing: yes and no alike, and a choice's answer is anywhere."""
    asked = [one for example in examples for one in example.asked.values()]
    yes = np.mean([one.gold == 0 for one in asked if one.family.startswith("yesno/")])
    assert 0.44 < yes < 0.56
    choices = [one for one in asked if one.family.startswith("choice/")]
    for count in range(2, 6):
        golds = [one.gold for one in choices if len(one.question.options) == count]
        shares = np.bincount(golds, minlength=count) / len(golds)
        assert np.abs(shares - 1 / count).max() < 4 * (count * len(golds)) ** -0.5, (count, shares)
    kinds = Counter(one.family.split("/")[0] for one in asked)
    assert min(kinds.values()) > 0.18 * len(asked), kinds


def test_held_out_combinations_never_occur_in_training():
    rng = random.Random(3)
    for held_out in (False, True):
        for _ in range(30):
            story = stories.draw_story(rng, held_out=held_out, difficulty=Difficulty(10))
            assert words.is_held_out(story.people) == held_out
            text, _ = intents.draw_command(rng, held_out=held_out)
            assert words.is_held_out((text,)) == held_out


def test_labelled_messages_are_read_and_split(tmp_path):
    file = tmp_path / "messages.csv"
    rows = [(f"where is card number {number}?", f"card_{number % 5}") for number in range(300)]
    file.write_text("text,category\n" + "".join(f"{text},{intent}\n" for text, intent in rows), encoding="utf-8")
    kept, held = (intents.read_labelled(file, held_out=held_out) for held_out in (False, True))
    assert sorted(kept + held) == sorted((text, intent.replace("_", " ")) for text, intent in rows)
    assert 10 < len(held) < 60
    world = DemoWorld(labelled=(file,), parts=("labelled",), held_out=True)
    for example in itertools.islice(world.examples(0), 20):
        asked = example.asked["q1"]
        assert (example.request.state, _given(asked).removeprefix("the user wants: ")) in held


def test_recaps_say_what_holds_and_only_where_they_are_asked_for():
    for share, least, most in ((0.0, 0.0, 0.0), (0.6, 0.5, 4.0)):
        examples = itertools.islice(DemoWorld(parts=("story",)).examples(13, Difficulty(8, recaps=share)), 150)
        read = [(StoryReader(_text(example)).recaps, example.events) for example in examples]  # it checks each of them
        recaps, events = np.sum(read, axis=0)
        assert least <= recaps / events <= most


def test_stories_of_people_apart_need_their_names():
    plain = Difficulty(
        3, 2, kinds=("go", "take"), asked=("where_person",), apart=True, flowing=True, listed=0.5, parts=("story",)
    )
    lists = 0
    for example in itertools.islice(DemoWorld().examples(0, plain), 100):
        assert re.search(rf"(?<! )\b({'|'.join(words.PEOPLE)})\b", _text(example)) is None
        reader = StoryReader(_text(example))
        assert len(set(reader.place.values())) == 2
        assert {one.family for one in example.asked.values()} == {"choice/where_person"}
        for asked in example.asked.values():
            expected = _expected(reader, asked.family, asked.question.instructions)
            assert re.search(rf"\b{expected}\b", _given(asked)), _text(example)
        lists += not example.events
    assert 30 < lists < 70


def test_names_and_places_are_whole_tokens():
    """All of them but one: a word that is not is still understood."""
    tokenizer = Tokenizer.from_file(str(Path(flide_jax.__file__).parent / "demo" / "tokenizer.json"))
    split = [
        word
        for word in (*words.PEOPLE, *(place for stage in words.PLACES for place in stage))
        if len(tokenizer.encode(f" {word}", add_special_tokens=False).ids) > 1
    ]
    assert split == ["cellar"]
