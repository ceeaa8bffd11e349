"""Requests of every kind of question, and their answers as numbers."""

import numpy as np

from flide_jax.request import Answer, Answers, Choice, ChoiceAnswer, Request, Score, YesNo, YesNoAnswer

URGENT = YesNo("Does this need a reply within the hour?", yes="someone waits", no="it can rest")
ACTION = Choice("What should support do next?", {"refund": "refund the order", "escalate": None, "wait": None})
ANGER = Score("How angry is the customer?", ["calm", "annoyed", "angry"])
ORDER = Request("Order #1182 arrived with a cracked screen.", {"urgent": URGENT, "action": ACTION, "anger": ANGER})
THANKS = Request("Thank you, the new lamp is lovely!", {"urgent": URGENT})
PARCEL = Request({"parcel": 7, "events": ["left the depot", "lost"]}, {"action": ACTION, "again": ACTION})
REQUESTS = [ORDER, THANKS, PARCEL]


def probabilities(answers: Answers) -> np.ndarray:
    """The probabilities of all options of all questions, one after another."""
    return np.concatenate([probabilities_of(answer) for answer in answers.values()])


def probabilities_of(answer: Answer) -> np.ndarray:
    """The probabilities of the options of one question; of yes alone."""
    match answer:
        case YesNoAnswer():
            return np.array([answer.probability])
        case ChoiceAnswer():
            return np.array(list(answer.probabilities.values()))
        case _:
            return np.array(answer.probabilities)


def largest_difference(found: list[Answers], expected: list[Answers]) -> float:
    """The largest |dp| over the answers of as many requests."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.abs(probabilities(a) - probabilities(b)).max()) for a, b in pairs)
