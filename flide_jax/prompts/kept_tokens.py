"""Tokens of texts that were read before, as many as fit into some memory; those that were not wanted for longest go."""

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Int32

Tokens = Int32[np.ndarray, " tokens"]

_ENTRY_BYTES = 200
"""About what an entry takes beside its text and its tokens."""


class KeptTokens:
    """Texts and their token ids. Threads may share it.

    Attributes:
        most_bytes: that texts and tokens may take together.
        size: bytes that they take.
    """

    def __init__(self, most_bytes: int, *, observe: Callable[[int, int], None] = lambda kept, made: None) -> None:
        """`observe` is told, whenever texts are encoded, how many of their tokens were kept and how many were made."""
        self.most_bytes = most_bytes
        self.size = 0
        self._observe = observe
        self._kept: OrderedDict[str, Tokens] = OrderedDict()
        self._lock = threading.Lock()

    def encode(self, texts: Sequence[str], encode: Callable[[Sequence[str]], list[Tokens]]) -> list[Tokens]:
        """The token ids of each text, read-only: as they were kept, or as `encode` gives them, which is asked once for
        all that are missing."""
        found = self._find(texts)
        missing = list(dict.fromkeys(text for text in texts if text not in found))
        new = dict(zip(missing, encode(missing), strict=True)) if missing else {}
        self._keep(new)
        self._observe(*(sum(tokens.size for tokens in some.values()) for some in (found, new)))
        found |= new
        return [found[text] for text in texts]

    def _find(self, texts: Sequence[str]) -> dict[str, Tokens]:
        found = {}
        with self._lock:
            for text in texts:
                if (tokens := self._kept.get(text)) is not None:
                    self._kept.move_to_end(text)
                    found[text] = tokens
        return found

    def _keep(self, new: dict[str, Tokens]) -> None:
        with self._lock:
            for text, tokens in new.items():
                tokens.flags.writeable = False
                size = _size(text, tokens)
                if text in self._kept or size > self.most_bytes:
                    continue
                self._kept[text] = tokens
                self.size += size
            while self.size > self.most_bytes:
                self.size -= _size(*self._kept.popitem(last=False))


def _size(text: str, tokens: Tokens) -> int:
    return sys.getsizeof(text) + tokens.nbytes + _ENTRY_BYTES
