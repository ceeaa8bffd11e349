"""Whether forking changed an answer: every question in its round, compared with the same question asked alone.

Paper: section 3 (s + q_i is, token for token, the text of q_i alone), so that both give the same probabilities but for
rounding. Forked, a request may share its rounds with others, as in `Engine.answer_all`. Alone, each question is a text
of its own in a round of its own, and runs over its state again: n questions cost n states.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from flide_jax.engine import Engine
from flide_jax.prompts.plan import Plan
from flide_jax.request import Answer, Answers, ChoiceAnswer, Request, YesNoAnswer
from pallas_kernels.precision import accumulation_dtype

TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 7e-2}
"""The largest difference of a probability that rounding explains, by the engine's dtype.

In float32 and bfloat16 at least ten times the worst of 239 questions to a former demo model on a CPU: 7.6e-7 and
6.2e-3. In float64, where that worst is 1.3e-15, what exact forking is held to on random models.
"""


@dataclass(frozen=True, eq=False)
class QuestionComparison:
    """One question forked and alone.

    Attributes:
        question: its id.
        forked, alone: the probabilities of its options; of yes and no.
        same_bits: whether the logits of its options agree in every bit.
    """

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


def compare(
    engine: Engine, request: Request, plan: Plan, forked: Float[np.ndarray, "reads L"]
) -> list[QuestionComparison]:
    """Answers every question of a request alone, and compares with its forked answers, in the order of the questions.

    Args:
        engine: what answers.
        request: the request.
        plan: `engine.plan(request)`.
        forked: the plan's logits as `engine.logits` gave them, together with those of any other plans.

    Raises:
        FloatingPointError: a logit is not finite; the message names the question.
    """
    answers_forked = engine.prompt_format.answers(request, forked)
    alone = _logits_alone(engine, plan)
    answers_alone = engine.prompt_format.answers(request, alone)
    columns = [engine.prompt_format.label_columns(question) for question in request.questions.values()]
    return [
        QuestionComparison(
            question=name,
            forked=probabilities(answers_forked[name]),
            alone=probabilities(answers_alone[name]),
            same_bits=forked[row, options].tobytes() == alone[row, options].tobytes(),
        )
        for row, (name, options) in enumerate(zip(request.questions, columns, strict=True))
    ]


def differences(answers: Answers, others: Answers) -> Float64[np.ndarray, " questions"]:
    """The largest |dp| of each question between two answers to one request."""
    pairs = zip(answers.values(), others.values(), strict=True)
    return np.array([np.abs(probabilities(one) - probabilities(other)).max() for one, other in pairs])


def probabilities(answer: Answer) -> Float64[np.ndarray, " options"]:
    """The probability of every option in the question's order; of yes and no."""
    match answer:
        case YesNoAnswer():
            return np.array([answer.probability, 1.0 - answer.probability])
        case ChoiceAnswer():
            return np.array(list(answer.probabilities.values()))
        case _:
            return np.array(answer.probabilities)


def _logits_alone(engine: Engine, plan: Plan) -> Float[np.ndarray, "reads L"]:
    """The logits of a plan's reads, from one run for each branch."""
    # A read that no branch holds stays NaN, which no answer is made of.
    shape = (plan.read_branches.size, engine.prompt_format.label_ids.size)
    logits = np.full(shape, np.nan, accumulation_dtype(engine.dtype))
    for branch in range(plan.branch_lengths.size):
        (alone,) = engine.logits([plan.alone(branch)])
        logits[plan.read_branches == branch] = alone
    return logits
