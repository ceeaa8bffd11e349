"""Lookup of the longest stored text that another begins with, by its tokens."""

import secrets
from collections.abc import Callable

import numpy as np
from jaxtyping import Int32, UInt64

type Tokens = Int32[np.ndarray, " m"]
type Text = Int32[np.ndarray, " text"]
type Hashes = UInt64[np.ndarray, " m"]


class PrefixIndex[Item]:
    """Texts in namespaces, each with an item.

    A text is found by a hash of its tokens and then compared token by token: equal hashes alone find nothing.
    """

    def __init__(self, hashes: Callable[[Tokens], Hashes] | None = None) -> None:
        """`hashes` gives those of all beginnings of a text, of one token, two, and so on; a `PrefixHash` if None."""
        self._hashes = hashes or PrefixHash()
        # By namespace, length and hash.
        self._found: dict[str, dict[int, dict[int, list[tuple[Tokens, Item]]]]] = {}

    def add(self, namespace: str, tokens: Tokens, item: Item) -> None:
        """Store a text of one token at least that is not stored yet."""
        by_hash = self._found.setdefault(namespace, {}).setdefault(tokens.size, {})
        by_hash.setdefault(int(self._hashes(tokens)[-1]), []).append((tokens, item))

    def remove(self, namespace: str, tokens: Tokens) -> None:
        """Take out a text that is stored."""
        by_length = self._found[namespace]
        by_hash, key = by_length[tokens.size], int(self._hashes(tokens)[-1])
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
        lengths = sorted((length for length in by_length if length <= min(most, tokens.size)), reverse=True)
        if not lengths:
            return None
        hashes = self._hashes(tokens[: lengths[0]])
        for length in lengths:
            for stored, item in by_length[length].get(int(hashes[length - 1]), ()):
                if np.array_equal(stored, tokens[:length]):
                    return item
        return None

    def exact(self, namespace: str, tokens: Tokens) -> Item | None:
        """The item of just this text."""
        by_hash = self._found.get(namespace, {}).get(tokens.size, {})
        pairs = by_hash.get(int(self._hashes(tokens)[-1]), ()) if by_hash else ()
        return next((item for stored, item in pairs if np.array_equal(stored, tokens)), None)


def common_tokens(one: Tokens, other: Text) -> int:
    """How many tokens two texts begin with alike."""
    length = min(one.size, other.size)
    differing = one[:length] != other[:length]
    return int(differing.argmax()) if differing.any() else length


class PrefixHash:
    """Hashes of all beginnings of a text at once: sum_i (t_i + 1) r^i mod 2^64, r odd.

    r is drawn anew for each, so that nobody can choose texts whose hashes are equal.
    """

    def __init__(self) -> None:
        self._multiplier = np.uint64(secrets.randbits(64) | 1)
        self._powers = np.ones(1, np.uint64)

    def __call__(self, tokens: Tokens) -> Hashes:
        while self._powers.size < tokens.size:
            next_power = self._powers[-1:] * self._multiplier
            self._powers = np.concatenate([self._powers, self._powers * next_power])
        return np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * self._powers[: tokens.size], dtype=np.uint64)
