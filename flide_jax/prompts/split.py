"""Prompts that share their beginning, as the tokens of one state and of the branches that continue it."""

import os.path
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
from jaxtyping import Int32

from flide_jax.prompts.cuts import is_safe_cut
from flide_jax.prompts.template import Frame
from flide_jax.prompts.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class TokenFrame:
    """A chat template's frame in tokens. The user's text joins the text at the seams, so those stay text:

        before_ids + tokens(before_text + user's text + after_text) + after_ids

    Attributes:
        before_ids: tokens up to the last added token before the user's text, that token included (int32).
        before_text: the template's text between it and the user's text.
        after_text: the template's text between the user's text and the next added token.
        after_ids: tokens from that added token on (int32).
        prompt_end: the text that a reply's first token follows: all since the last added token.
    """

    before_ids: Int32[np.ndarray, " before"]
    before_text: str
    after_text: str
    after_ids: Int32[np.ndarray, " after"]
    prompt_end: str


def token_frame(tokenizer: Tokenizer, frame: Frame) -> TokenFrame:
    """The frame in tokens.

    Raises:
        NotImplementedError: the tokens of a text depend on more than the text between two added tokens.
    """
    head_ids, head_added = tokenizer.template_text(frame.head)
    tail_ids, tail_added = tokenizer.template_text(frame.tail)
    before = (head_added[-1].index + 1, head_added[-1].end) if head_added else (0, 0)
    after = (tail_added[0].index, tail_added[0].start) if tail_added else (len(tail_ids), len(frame.tail))
    before_text, after_text = frame.head[before[1] :], frame.tail[: after[1]]
    user = "A user's text, with spaces."
    found = TokenFrame(
        before_ids=head_ids[: before[0]],
        before_text=before_text,
        after_text=after_text,
        after_ids=tail_ids[after[0] :],
        prompt_end=frame.tail[tail_added[-1].end :] if tail_added else before_text + user + after_text,
    )
    (middle,) = tokenizer.encode([before_text + user + after_text])
    whole, _ = tokenizer.template_text(frame.render(user))
    if not np.array_equal(np.concatenate([found.before_ids, middle, found.after_ids]), whole):
        raise NotImplementedError("the tokenizer reads a text differently behind an added token")
    return found


@dataclass(frozen=True, eq=False)
class Split:
    """Prompts in tokens: prompt i is `state + branches[i]` (int32)."""

    state: Int32[np.ndarray, " P"]
    branches: list[Int32[np.ndarray, " _"]]


def split(tokenizer: Tokenizer, frame: TokenFrame, shared: str, blocks: Sequence[str]) -> Split:
    """The prompts `shared + block`, in the frame. The state is the longest run of tokens that all prompts begin with
    and that ends no later than `shared`; every prompt is, token for token, what it is when tokenised whole.

    Where the place behind `shared` is a safe cut of a tokenizer that has them, no token straddles it: the state is
    then the tokens of `shared`, tokenised once, and each branch those of its block. Otherwise prompts are tokenised
    whole and compared.
    """
    start = frame.before_text + shared
    if tokenizer.has_proven_cuts and all(is_safe_cut(start, block) for block in blocks):
        state, *branches = tokenizer.encode([start, *(block + frame.after_text for block in blocks)])
    else:
        state, branches = _split_whole(tokenizer, start, [block + frame.after_text for block in blocks])
    return Split(
        state=np.concatenate([frame.before_ids, state]),
        branches=[np.concatenate([branch, frame.after_ids]) for branch in branches],
    )


def _split_whole(
    tokenizer: Tokenizer, start: str, ends: Sequence[str]
) -> tuple[Int32[np.ndarray, " P"], list[Int32[np.ndarray, " _"]]]:
    """The tokens of all texts `start + end`, split behind the last token that they share and that lies in `start`."""
    found = tokenizer.encode_whole([start + end for end in ends])
    within = min(sum(1 for _ in takewhile(len(start).__ge__, stops)) for _, stops in found)
    prompts = [ids for ids, _ in found]
    common = len(os.path.commonprefix([ids[:within].tolist() for ids in prompts]))
    return prompts[0][:common], [ids[common:] for ids in prompts]
