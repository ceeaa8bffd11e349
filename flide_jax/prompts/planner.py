"""What is done with a request apart from the device: to tokens within limits, and from logits to answers."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from flide_jax.prompts.format import PromptFormat
from flide_jax.prompts.plan import Plan
from flide_jax.request import Answers, Request, TooLongError, Usage


@dataclass(frozen=True)
class Planner:
    """How one model's requests are read and answered. It needs no weights and no device.

    Attributes:
        prompt_format: from requests to tokens and from logits to answers.
        max_tokens: longest text, a state and one question, that the model reads.
        max_request_tokens: most tokens of one request, its state and all its questions.
    """

    prompt_format: PromptFormat
    max_tokens: int
    max_request_tokens: int

    def plan(self, request: Request) -> Plan:
        """The tokens of a request.

        Raises:
            RequestError: longer than the model or the engine takes, or more options than there are labels.
            NotImplementedError: the model's chat template rewrites the text of this request.
        """
        plan = self.prompt_format.plan(request)
        longest = plan.state.size + int(plan.branch_lengths.max(initial=0))
        if longest > self.max_tokens:
            raise TooLongError(
                (), f"the state and its longest question have {longest} tokens, the model reads {self.max_tokens}"
            )
        if plan.tokens > self.max_request_tokens:
            raise TooLongError((), f"the request has {plan.tokens} tokens, the engine takes {self.max_request_tokens}")
        return plan

    def answers(
        self, request: Request, plan: Plan, logits: Float[np.ndarray, "reads L"], *, resumed: int = 0
    ) -> Answers:
        """The answers of a request from its plan's logits; `resumed` tokens of its state came from a checkpoint.

        Raises FloatingPointError: a logit is not finite.
        """
        usage = Usage(
            input_tokens=plan.tokens,
            output_tokens=len(request.questions),
            computed_state_tokens=plan.state.size - resumed,
            resumed_state_tokens=resumed,
        )
        return Answers(self.prompt_format.answers(request, logits), usage=usage)
