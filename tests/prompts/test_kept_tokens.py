"""Kept tokens are those of the text, and take no more memory than they may."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flide_jax.prompts.cuts import PIECE
from flide_jax.prompts.kept_tokens import KeptTokens
from flide_jax.prompts.tokenizer import Tokenizer
from tests.prompts.variants import DEMO, texts


class Encoder:
    """Gives every character as a token, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def __call__(self, texts: Sequence[str]) -> list[np.ndarray]:
        self.asked.append(list(texts))
        return [np.array([ord(character) for character in text], np.int32) for text in texts]


def test_what_is_kept_is_not_asked_for_again():
    told: list[tuple[int, int]] = []
    encoder, kept = Encoder(), KeptTokens(10_000, observe=lambda *counts: told.append(counts))
    kept.encode(["abc", "d", "abc"], encoder)
    found = kept.encode(["d", "ef", "abc"], encoder)
    assert [tokens.tolist() for tokens in found] == [[100], [101, 102], [97, 98, 99]]
    assert encoder.asked == [["abc", "d"], ["ef"]]
    assert told == [(0, 4), (4, 2)]
    with pytest.raises(ValueError, match="read-only"):
        found[0][0] = 1


@given(st.lists(st.lists(st.sampled_from(["a", "bb", "c" * 300, "d" * 5_000, "é", ""]), max_size=4), max_size=12))
def test_it_is_bounded_and_never_wrong(rounds):
    kept = KeptTokens(3_000)
    for asked in rounds:
        found = kept.encode(asked, Encoder())
        assert ["".join(map(chr, tokens)) for tokens in found] == asked
        assert 0 <= kept.size <= kept.most_bytes


def test_those_not_wanted_for_longest_go():
    encoder, kept = Encoder(), KeptTokens(900)
    for text in ("a", "b", "c"):
        kept.encode([text], encoder)
    kept.encode(["a"], encoder)
    kept.encode(["d"], encoder)
    encoder.asked.clear()
    kept.encode(["a", "b"], encoder)
    assert encoder.asked == [["b"]]


@pytest.fixture(scope="module")
def pair() -> tuple[Tokenizer, Tokenizer]:
    """A tokenizer that keeps, and one that does not."""
    keeping = Tokenizer.load(DEMO)
    keeping.keep(KeptTokens(2**20))
    return keeping, Tokenizer.load(DEMO)


@given(st.lists(texts(), max_size=4), st.integers(0, 3))
def test_a_tokenizer_that_keeps_gives_the_same_tokens(pair, found, again):
    keeping, plain = pair
    for _ in range(1 + again % 2):
        for kept, fresh in zip(keeping.encode(found), plain.encode(found), strict=True):
            np.testing.assert_array_equal(kept, fresh)


def test_a_text_that_grows_is_tokenised_at_its_end_only():
    told: list[tuple[int, int]] = []
    keeping, plain = Tokenizer.load(DEMO), Tokenizer.load(DEMO)
    keeping.keep(KeptTokens(2**20, observe=lambda *counts: told.append(counts)))
    text = ""
    for step in range(30):
        text += "".join(f"{step}.{i}: Mary went to the kitchen, 'and she's there.\n" for i in range(40))
        told.clear()
        (kept,), (fresh,) = keeping.encode([text]), plain.encode([text])
        np.testing.assert_array_equal(kept, fresh)
        (_, made), *_ = told
        # New are the piece that the text ended with, and what came: no more than two pieces and the step.
        assert made <= kept.size * (2 * PIECE + 4_000) / len(text) + 100
    assert made < kept.size / 4
