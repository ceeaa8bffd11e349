"""The label of every option: one token that can stand first in a reply."""

import string
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32

from flide_jax.prompts.split import TokenFrame
from flide_jax.prompts.tokenizer import Tokenizer
from flide_jax.request import MAX_LEVELS, MAX_OPTIONS, Choice, Question, YesNo

_YES_NO, _DIGITS, _LETTERS = ("yes", "no"), tuple(string.digits[:MAX_LEVELS]), tuple(string.ascii_uppercase)
_ALWAYS = (*_YES_NO, *_DIGITS, *_LETTERS)
_PAIRS = tuple(first + second for first in _LETTERS for second in _LETTERS)


@dataclass(frozen=True, eq=False)
class Labels:
    """Every label that this tokenizer offers: yes, no, 0..9, A..Z, and up to 255 pairs of letters (AA, AB, ...).

    Attributes:
        texts: the labels.
        ids: the token of each, all distinct (int32).
    """

    texts: tuple[str, ...]
    ids: Int32[np.ndarray, " labels"]

    @property
    def max_options(self) -> int:
        """How many options a choice may have: the single letters, or the pairs if there are more of them."""
        return max(len(_LETTERS), len(self.texts) - len(_ALWAYS))

    def columns(self, question: Question) -> Int32[np.ndarray, " options"]:
        """Which labels the options of a question carry, in order. Past 26 options, every one carries a pair.

        Raises:
            ValueError: a choice has more options than `max_options`.
        """
        if isinstance(question, YesNo):
            first, count = 0, len(_YES_NO)
        elif isinstance(question, Choice):
            count = len(question.options)
            if count > self.max_options:
                raise ValueError(f"this tokenizer can label at most {self.max_options} options, got {count}")
            first = len(_YES_NO) + len(_DIGITS) if count <= len(_LETTERS) else len(_ALWAYS)
        else:
            first, count = len(_YES_NO), len(question.levels)
        return np.arange(first, first + count, dtype=np.int32)


def find_labels(tokenizer: Tokenizer, frame: TokenFrame) -> Labels:
    """The labels as they would follow the generation prompt: each must add one token to it, its own.

    Raises:
        NotImplementedError: yes, no, a digit or a single letter does not; the message names it.
    """
    prompt, *labelled = tokenizer.encode([frame.prompt_end + label for label in ("", *_ALWAYS, *_PAIRS)])
    found: dict[str, int] = {}
    for label, ids in zip((*_ALWAYS, *_PAIRS), labelled, strict=True):
        if len(ids) == len(prompt) + 1 and (ids[:-1] == prompt).all() and int(ids[-1]) not in found.values():
            found[label] = int(ids[-1])
        elif label in _ALWAYS:
            raise NotImplementedError(f"the label {label!r} is not one token of its own after the generation prompt")
        if len(found) == len(_ALWAYS) + MAX_OPTIONS:
            break
    return Labels(texts=tuple(found), ids=np.array(list(found.values()), np.int32))
