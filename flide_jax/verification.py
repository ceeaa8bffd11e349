"""Whether forking changed an answer: every question in its round, compared with the same question asked alone.

Paper: section 3 (s + q_i is, token for token, the text of q_i alone), so that both give the same probabilities but for
rounding. Forked, the requests are answered as `Engine.answer_all` answers them, in shared rounds. Alone, each question
is one plain sequence in a round of its own, and runs over its state again: n questions cost n states.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from flide_jax.engine import Engine
from flide_jax.prompts.plan import Plan
from flide_jax.request import Answer, ChoiceAnswer, Request, YesNoAnswer

TOLERANCES = {"float64": 1e-12, "float32": 1e-4, "bfloat16": 5e-2}
"""The largest difference of a probability that rounding explains, by the engine's dtype."""


@dataclass(frozen=True, eq=False)
class QuestionComparison:
    """One question forked and alone.

    Attributes:
        request: which of the compared requests it belongs to.
        question: its id.
        forked, alone: the probabilities of its options; of yes and no.
        same_bits: whether the logits of its options agree in every bit.
    """

    request: int
    question: str
    forked: Float64[np.ndarray, " options"]
    alone: Float64[np.ndarray, " options"]
    same_bits: bool

    @property
    def largest_difference(self) -> float:
        """The largest |dp| of an option."""
        return float(np.abs(self.forked - self.alone).max())

    @property
    def total_variation(self) -> float:
        """Half the sum of |dp|: the most that the probability of any set of options differs."""
        return float(np.abs(self.forked - self.alone).sum() / 2)


def compare(engine: Engine, requests: Sequence[Request]) -> list[QuestionComparison]:
    """Answers every question of the requests forked and alone, in the order of the requests and their questions.

    Raises:
        RequestError: a request cannot be answered; the message does not say which of several.
        FloatingPointError: a logit is not finite; the message names the request and the question.
    """
    plans = [engine.plan(request) for request in requests]
    found: list[QuestionComparison] = []
    for index, (request, plan, forked) in enumerate(zip(requests, plans, engine.logits(plans), strict=True)):
        try:
            found += _compare_request(engine, index, request, forked, _logits_alone(engine, plan))
        except FloatingPointError as error:
            raise FloatingPointError(f"requests[{index}].{error}") from None
    return found


def _logits_alone(engine: Engine, plan: Plan) -> Float[np.ndarray, "reads L"]:
    """The logits of a plan's reads, from one run for each branch."""
    # A read that no branch holds stays NaN, which no answer is made of.
    logits = np.full((plan.read_branches.size, engine.prompt_format.label_ids.size), np.nan, _logits_dtype(engine))
    for branch in range(plan.branch_lengths.size):
        (alone,) = engine.logits([plan.alone(branch)])
        logits[plan.read_branches == branch] = alone
    return logits


def _logits_dtype(engine: Engine) -> type[np.floating]:
    return np.float64 if engine.dtype == np.float64 else np.float32


def _compare_request(
    engine: Engine,
    index: int,
    request: Request,
    forked: Float[np.ndarray, "reads L"],
    alone: Float[np.ndarray, "reads L"],
) -> list[QuestionComparison]:
    answers_forked = engine.prompt_format.answers(request, forked)
    answers_alone = engine.prompt_format.answers(request, alone)
    columns = [engine.prompt_format.label_columns(question) for question in request.questions.values()]
    return [
        QuestionComparison(
            request=index,
            question=name,
            forked=_probabilities(answers_forked[name]),
            alone=_probabilities(answers_alone[name]),
            same_bits=forked[row, options].tobytes() == alone[row, options].tobytes(),
        )
        for row, (name, options) in enumerate(zip(request.questions, columns, strict=True))
    ]


def _probabilities(answer: Answer) -> Float64[np.ndarray, " options"]:
    match answer:
        case YesNoAnswer():
            return np.array([answer.probability, 1.0 - answer.probability])
        case ChoiceAnswer():
            return np.array(list(answer.probabilities.values()))
        case _:
            return np.array(answer.probabilities)
