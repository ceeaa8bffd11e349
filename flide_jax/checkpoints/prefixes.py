"""Lookup of the longest stored text that another begins with, by its tokens."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int32

type Tokens = Int32[np.ndarray, " m"]


class PrefixIndex[Item]:
    """Texts in namespaces, each with an item.

    A text is found by a hash of its tokens and then compared token by token: equal hashes alone find nothing.
    """

    def __init__(self, hasher: Callable[[], Any] = hashlib.blake2b) -> None:
        """`hasher` makes a running hash, as those of `hashlib`."""
        self._hasher = hasher
        # By namespace, length and hash.
        self._found: dict[str, dict[int, dict[bytes, list[tuple[Tokens, Item]]]]] = {}

    def add(self, namespace: str, tokens: Tokens, item: Item) -> None:
        """Store a text that is not stored yet."""
        by_hash = self._found.setdefault(namespace, {}).setdefault(tokens.size, {})
        by_hash.setdefault(self._hash(tokens), []).append((tokens, item))

    def remove(self, namespace: str, tokens: Tokens) -> None:
        """Take out a text that is stored."""
        by_length = self._found[namespace]
        by_hash, key = by_length[tokens.size], self._hash(tokens)
        by_hash[key] = [pair for pair in by_hash[key] if not np.array_equal(pair[0], tokens)]
        if not by_hash[key]:
            del by_hash[key]
        if not by_hash:
            del by_length[tokens.size]
        if not by_length:
            del self._found[namespace]

    def longest(self, namespace: str, tokens: Tokens, most: int) -> Item | None:
        """The item of the longest text of the namespace that the first `most` of these tokens begin with."""
        by_length = self._found.get(namespace, {})
        lengths = sorted(length for length in by_length if length <= min(most, tokens.size))
        for length, key in reversed(list(zip(lengths, self._hashes(tokens, lengths), strict=True))):
            for stored, item in by_length[length].get(key, ()):
                if np.array_equal(stored, tokens[:length]):
                    return item
        return None

    def _hashes(self, tokens: Tokens, lengths: Sequence[int]) -> Iterator[bytes]:
        """Of the first tokens, so many each time; ascending."""
        running, begin = self._hasher(), 0
        for length in lengths:
            running.update(np.ascontiguousarray(tokens[begin:length]).data)
            begin = length
            yield running.digest()

    def _hash(self, tokens: Tokens) -> bytes:
        return next(self._hashes(tokens, [tokens.size]))
