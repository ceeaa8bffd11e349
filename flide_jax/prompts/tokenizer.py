"""A checkpoint's tokenizer, apart from its added tokens: user text is never read as one of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Int32

from flide_jax.prompts.cuts import PROVEN_PATTERNS, pieces
from flide_jax.prompts.kept_tokens import KeptTokens


@dataclass(frozen=True)
class AddedToken:
    """An added token in a text: its index among the text's tokens, and the characters [start, end) it stands for."""

    index: int
    start: int
    end: int


class Tokenizer:
    """Text to token ids.

    Added tokens (`<|im_end|>`, `<think>`, special or not) are recognised by `template_text` only. `encode` reads the
    same characters as plain text, and neither adds a token (a post-processor's BOS) of its own.

    Attributes:
        has_proven_cuts: whether this tokenizer is one for which `cuts` proves where a text may be cut. Where it is not,
            every text is tokenised whole: as exact, but slower.

    Raises:
        ValueError: the tokenizer file cannot be read.
        NotImplementedError: plain text turns into a special token, or into random tokens.
    """

    def __init__(self, full: tokenizers.Tokenizer):
        full.no_truncation()
        full.no_padding()
        self._full = full
        self._kept: KeptTokens | None = None
        self._added = full.get_added_tokens_decoder()
        # The same model behind the same normaliser and pre-tokenizer, but no added tokens and no post-processor.
        self._plain = tokenizers.Tokenizer(full.model)
        if full.normalizer is not None:
            self._plain.normalizer = full.normalizer
        if full.pre_tokenizer is not None:
            self._plain.pre_tokenizer = full.pre_tokenizer
        self.has_proven_cuts = _has_proven_cuts(full)
        if getattr(full.model, "dropout", None):
            raise NotImplementedError("the tokenizer drops merges at random, so a text has no one tokenisation")
        special = {token_id: token.content for token_id, token in self._added.items() if token.special}
        for content, ids in zip(special.values(), self.encode(list(special.values())), strict=True):
            if not special.keys().isdisjoint(ids.tolist()):
                raise NotImplementedError(f"the tokenizer reads {content!r} in plain text as a special token")

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """The tokenizer of a checkpoint directory, from `tokenizer.json` alone: no tokenizer class is needed."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"{directory} has no tokenizer.json")
        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except NotImplementedError as error:
            raise NotImplementedError(f"{path}: {error}") from None
        except Exception as error:  # The library raises bare `Exception`.
            raise ValueError(f"{path} is not a tokenizer: {' '.join(str(error).split())}") from None

    @property
    def largest_id(self) -> int:
        """The largest token id, added tokens included."""
        return max(self._full.get_vocab(with_added_tokens=True).values())

    def encode(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " _"]]:
        """Token ids of each text as plain text. Long texts are cut where that is proven safe; all run in parallel.

        A piece of a text that was read before may be kept (`keep`). A text that grows at its end has the pieces that it
        had, all but the last, so those are the tokens of the whole by the same proof.
        """
        parts = [pieces(text) if self.has_proven_cuts else [text] for text in texts]
        flat = [piece for part in parts for piece in part]
        encoded = iter(self._encode(flat) if self._kept is None else self._kept.encode(flat, self._encode))
        return [np.concatenate([next(encoded) for _ in part]) for part in parts]

    def keep(self, kept: KeptTokens) -> None:
        """Keep the tokens of texts there from now on."""
        self._kept = kept

    def _encode(self, texts: Sequence[str]) -> list[Int32[np.ndarray, " _"]]:
        encodings = self._plain.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(found.ids, np.int32) for found in encodings]

    def encode_whole(self, texts: Sequence[str]) -> list[tuple[Int32[np.ndarray, " _"], list[int]]]:
        """Token ids of each text as plain text, never cut, and where each token's characters end in the text."""
        encodings = self._plain.encode_batch(list(texts), add_special_tokens=False)
        return [(np.array(found.ids, np.int32), [end for _, end in found.offsets]) for found in encodings]

    def template_text(self, text: str) -> tuple[Int32[np.ndarray, " tokens"], list[AddedToken]]:
        """Token ids of text of a chat template, in which added tokens are tokens, and where those stand.

        Raises:
            NotImplementedError: an added token in it takes the space around it, or depends on the words around it.
        """
        found = self._full.encode(text, add_special_tokens=False)
        added = []
        for index, token_id in enumerate(found.ids):
            if (token := self._added.get(token_id)) is not None:
                if token.lstrip or token.rstrip or token.single_word:
                    raise NotImplementedError(f"the added token {token.content!r} reaches into the text around it")
                added.append(AddedToken(index, *found.offsets[index]))
        return np.array(found.ids, np.int32), added


def _has_proven_cuts(full: tokenizers.Tokenizer) -> bool:
    """Whether the tokenizer is of the one kind that `cuts` speaks of."""
    match _state(full.normalizer), _state(full.pre_tokenizer):
        case (
            {"type": "NFC"},
            {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                ],
            },
        ):
            return isinstance(full.model, tokenizers.models.BPE) and pattern in PROVEN_PATTERNS
    return False


def _state(component: Any) -> Any:
    """A component of a tokenizer as it stands in `tokenizer.json`, which is also its pickled state."""
    return None if component is None else json.loads(component.__getstate__())
