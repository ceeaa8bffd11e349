"""A fact about a state as a question: the three types, in many wordings.

`Asked` pairs a question with its gold answer: an option's index in the order the question lists its options
(yes = 0, no = 1 for a yes/no question).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flide_jax.request import Choice, Question, Request, Score, YesNo

# Families whose answers differ by person.
WHO = ("yesno/person_in", "choice/where_person", "yesno/has_object", "choice/who_has")


@dataclass(frozen=True)
class Asked:
    """A question, its gold option, its family (for accuracy tables) and whether the state decides it.

    `word` is what the state says about the matter, whatever the options are: the place where Mary is, whether the
    question is where she is or whether she is in the kitchen. None where no word says it.
    """

    question: Question
    gold: int
    family: str
    certain: bool = True
    word: str | None = None


@dataclass(frozen=True)
class Example:
    """A request and what is known about it: each of its questions, by name; the events of its story and the people in
    it, 0 where there is no story."""

    request: Request
    asked: dict[str, Asked]
    events: int = 0
    people: int = 0

    def shortened(self, questions: int) -> "Example":
        """The same state with the first questions only."""
        return example(
            self.request.state, list(self.asked.values())[:questions], events=self.events, people=self.people
        )


def example(state: str | dict | list, asked: Sequence[Asked], *, events: int = 0, people: int = 0) -> Example:
    """The request that asks these questions about this state, named q1, q2, ..."""
    named = {f"q{number}": one for number, one in enumerate(asked, 1)}
    return Example(Request(state, {name: one.question for name, one in named.items()}), named, events, people)


def yes_no(
    rng: random.Random,
    truth: bool,
    text: str,
    *,
    yes: str,
    no: str,
    family: str,
    certain: bool = True,
    word: str | None = None,
) -> Asked:
    """A yes/no question; `yes` and `no` are the statements that its two answers make."""
    style = rng.random()
    if style < 0.7:
        question = YesNo(text)
    elif style < 0.82:
        question = YesNo(text, yes=yes, no=no)
    elif style < 0.88:
        question = YesNo(text, yes=yes)
    elif style < 0.94:
        question = YesNo(
            rng.choice(("Is this true? {}", "True or false: {}", "Does the text say this? {}")).format(yes)
        )
    else:
        question = YesNo(None, yes=yes, no=no)
    return Asked(question, 0 if truth else 1, f"yesno/{family}", certain, word if certain else None)


def choice(
    rng: random.Random,
    gold: str,
    others: Sequence[str],
    text: str,
    *,
    says: Callable[[str], str],
    family: str,
    certain: bool = True,
    most: int = 8,
) -> Asked:
    """A choice between `gold` and some of `others`, shuffled; `says` is what an option means in words.

    Option names are the answers themselves, or answers with a description, or bare numbers that only a description
    explains.
    """
    count = min(len(others), rng.randint(1, most - 1))
    names = [gold, *rng.sample(others, count)]
    rng.shuffle(names)
    style = rng.random()
    options: dict[str, str | None]
    if style < 0.7:
        options = dict.fromkeys(names)
    elif style < 0.85:
        options = {name: says(name) for name in names}
    elif style < 0.89:
        word = rng.choice(("option", "answer", "case"))
        options = {f"{word} {number}": says(name) for number, name in enumerate(names, 1)}
    else:
        options = {name: says(name) if rng.random() < 0.5 else None for name in names}
    said = gold if certain else None
    return Asked(Choice(text, options), names.index(gold), f"choice/{family}", certain, said)


def score(gold: int, levels: Sequence[str], text: str, *, family: str, word: str | None = None) -> Asked:
    """A score question whose right level is `gold`."""
    return Asked(Score(text, list(levels)), gold, f"score/{family}", word=word)
