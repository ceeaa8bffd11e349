"""A prompt format: from a request to the plan that a model runs, and from the model's logits to the answers."""

from pathlib import Path

import numpy as np
from jaxtyping import Float, Float64, Int32

from flide_jax.prompts.labels import find_labels
from flide_jax.prompts.plan import Plan
from flide_jax.prompts.split import split, token_frame
from flide_jax.prompts.template import ChatTemplate
from flide_jax.prompts.tokenizer import Tokenizer
from flide_jax.prompts.wording import WORDINGS, Wording
from flide_jax.request import (
    Answer,
    Choice,
    ChoiceAnswer,
    Question,
    Request,
    RequestError,
    ScoreAnswer,
    YesNo,
    YesNoAnswer,
)


class PromptFormat:
    """A wording in the chat template and tokens of one checkpoint (paper, figure 6).

    Every question is one user turn, state and question, and its answer is read where the reply would begin: one branch
    with one read at its last token.

    Attributes:
        name, version: of the wording.
        labels: every label that an option may carry.
        label_ids: their token ids [L] (int32), the rows of the readout head.
        max_options: how many options a choice may have with this tokenizer, 26 to 255.

    Raises:
        NotImplementedError: the tokenizer or the template is of a kind that cannot be used; the message says why.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, wording: Wording):
        self.name = wording.name
        self.version = wording.version
        self.tokenizer = tokenizer
        self.template = template
        self._wording = wording
        self._frame = token_frame(tokenizer, template.frame)
        self._labels = find_labels(tokenizer, self._frame)
        self.labels: tuple[str, ...] = self._labels.texts
        self.label_ids: Int32[np.ndarray, " L"] = self._labels.ids
        self.max_options = self._labels.max_options

    @classmethod
    def load(cls, directory: Path | str, *, wording: str = "vllm/1") -> "PromptFormat":
        """The format for the checkpoint in a directory: `tokenizer.json`, `tokenizer_config.json` and, where the
        template is not in the latter, `chat_template.jinja`.

        Args:
            directory: the checkpoint.
            wording: a key of `WORDINGS`, `name/version`.

        Raises:
            ValueError: there is no such wording, or a file is missing or damaged.
            NotImplementedError: the checkpoint cannot be used; the message says why.
        """
        if wording not in WORDINGS:
            raise ValueError(f"there is no wording {wording!r}, only {', '.join(WORDINGS)}")
        directory = Path(directory)
        tokenizer, template = Tokenizer.load(directory), ChatTemplate.load(directory)
        try:
            return cls(tokenizer, template, WORDINGS[wording])
        except NotImplementedError as error:
            raise NotImplementedError(f"{directory}: {error}") from None

    def plan(self, request: Request) -> Plan:
        """The tokens of a request: one branch and one read per question, in the request's order.

        Raises:
            RequestError: a choice has more options than this tokenizer can label.
            NotImplementedError: the template would not render this request as it renders others.
        """
        blocks = [self._block(name, question) for name, question in request.questions.items()]
        shared = self._wording.state(request.state) + "\n\n"
        self.template.check(shared + "\n".join(blocks))
        if self.template.frame.trims:
            shared = shared.lstrip()
        prompts = split(self.tokenizer, self._frame, shared, blocks)
        if not prompts.state.size:
            raise NotImplementedError("the chat template and this state have no token, so there is none to fork from")
        lengths = np.array([len(branch) for branch in prompts.branches], np.int32)
        return Plan(
            state=prompts.state,
            branches=np.concatenate(prompts.branches),
            branch_lengths=lengths,
            read_branches=np.arange(len(lengths), dtype=np.int32),
            read_offsets=lengths - 1,
            salt=request.cache_salt if request.checkpoints else None,
        )

    def text(self, request: Request, question: str) -> str:
        """The prompt of one question, as the chat template renders it."""
        block = self._block(question, request.questions[question])
        return self.template.frame.render(f"{self._wording.state(request.state)}\n\n{block}")

    def label_columns(self, question: Question) -> Int32[np.ndarray, " options"]:
        """Which of the L labels the question's options carry, in the order of the options; yes before no.

        Raises:
            ValueError: a choice has more options than this tokenizer can label.
        """
        return self._labels.columns(question)

    def answers(self, request: Request, logits: Float[np.ndarray, "reads L"]) -> dict[str, Answer]:
        """The answers of a request: a softmax in float64 over the labels of each question (paper, Eq. 1).

        Args:
            request: the request that was planned.
            logits: one row for each read of the plan, one column for each label.

        Raises:
            ValueError: the logits are not those of this request.
            FloatingPointError: a logit of one of the options is not finite; the message names the question.
        """
        expected = (len(request.questions), len(self.labels))
        if logits.shape != expected:
            raise ValueError(f"logits must have shape {expected}, got {logits.shape}")
        return {
            name: _answer(name, question, row[self.label_columns(question)].astype(np.float64))
            for (name, question), row in zip(request.questions.items(), logits, strict=True)
        }

    def _block(self, name: str, question: Question) -> str:
        try:
            columns = self.label_columns(question)
        except ValueError as error:
            raise RequestError(("questions", name, "options"), str(error)) from None
        return self._wording.block(question, [self.labels[column] for column in columns])


def _answer(name: str, question: Question, logits: Float64[np.ndarray, " options"]) -> Answer:
    if not np.isfinite(logits).all():
        raise FloatingPointError(f"questions.{name}: the model's logits are not finite")
    weights = np.exp(logits - logits.max())
    probabilities = weights / weights.sum()
    match question:
        case YesNo():
            return YesNoAnswer.of(question, probabilities)
        case Choice():
            return ChoiceAnswer.of(question, probabilities)
        case _:
            return ScoreAnswer.of(question, probabilities)
