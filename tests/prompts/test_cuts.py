"""Safe cuts: the tokens of the parts are the tokens of the whole."""

import json
import re
import time
import unicodedata
from unittest import mock

import hypothesis.strategies as st
import pytest
import tokenizers
from hypothesis import assume, given, settings

from flide_jax.prompts import cuts
from flide_jax.prompts.tokenizer import Tokenizer
from tests.prompts.variants import DEMO, WholeTokenizer, texts, tokenizer_json


def with_pattern(pattern: str) -> dict:
    content = tokenizer_json()
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    return content


@pytest.fixture(scope="module", params=sorted(cuts.PROVEN_PATTERNS), ids=["Qwen2", "Qwen3.5"])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, WholeTokenizer]:
    content = with_pattern(request.param)
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content))), WholeTokenizer(content)


def test_both_kinds_are_recognised(pair: tuple[Tokenizer, WholeTokenizer]) -> None:
    assert pair[0].has_proven_cuts
    assert Tokenizer.load(DEMO).has_proven_cuts


def test_the_demo_tokenizer_has_a_proven_pattern() -> None:
    pattern = tokenizer_json()["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    assert pattern in cuts.PROVEN_PATTERNS and r"[\p{L}\p{M}]+" in pattern


def test_every_pair_of_ascii_characters(pair: tuple[Tokenizer, WholeTokenizer]) -> None:
    """Exhaustive over the pair at the cut, in contexts that press on every alternative of the patterns."""
    _, whole = pair
    lefts = ["", "a", "'", " ", "\n", " \n ", ".\n", "e\u0301", "\u0301", "7"]
    rights = ["", "a", "s", " ", "\n", "\u0301", "\u0338", "7", "."]
    ascii_characters = [chr(code) for code in range(128)]
    pairs = [(x, y) for x in ascii_characters for y in ascii_characters if cuts.is_safe_cut(x, y)]
    assert len(pairs) == 62 * (128 - 52) + 62
    for index, (x, y) in enumerate(pairs):
        # Every context with every pair would be 430,000 texts: the contexts take turns, and so meet every class.
        left, right = lefts[index % 10] + x, y + rights[index // 10 % 9]
        assert whole.plain(left + right) == whole.plain(left) + whole.plain(right), (left, right)


ASCII = st.characters(codec="ascii")


@settings(max_examples=300, deadline=None)
@given(texts(), ASCII, ASCII, texts())
def test_safe_cuts_are_safe(before: str, x: str, y: str, after: str) -> None:
    assume(cuts.is_safe_cut(x, y))
    left, right = before + x, y + after
    assert cuts.is_safe_cut(left, right)
    assert WHOLE.plain(left + right) == WHOLE.plain(left) + WHOLE.plain(right)


@settings(max_examples=400, deadline=None)
@given(texts(max_parts=30), st.integers(1, 8))
def test_pieces_give_the_tokens_of_the_whole(text: str, piece: int) -> None:
    with mock.patch.object(cuts, "PIECE", piece):
        parts = cuts.pieces(text)
        (ids,) = TOKENIZER.encode([text])
    assert "".join(parts) == text
    assert all(len(part) >= piece for part in parts[:-1])
    assert ids.tolist() == WHOLE.plain(text) == [token for part in parts for token in WHOLE.plain(part)]


def test_nothing_but_marks_composes_with_ascii_that_is_no_letter() -> None:
    """Step 1 of the proof: what NFC makes of such a character is a symbol, and so in no class of the patterns."""
    composed = {
        character: unicodedata.category(character)
        for character in map(chr, range(0x110000))
        if re.match(r"[\x00-@\[-`{-\x7f].", unicodedata.normalize("NFD", character), re.DOTALL)
        and unicodedata.normalize("NFC", character) == character
    }
    assert composed and set(composed.values()) == {"Sm"}


@pytest.mark.parametrize(
    "text",
    [
        '{"id":17,"name":"Ann","tags":["x","y"],"ok":true},' * 2000,
        "x" * 100_000,
        "漢字かな" * 25_000,
        " " * 100_000 + "x",
        "=" * 100_000,
        "\u1112\u1161\u11ab" * 33_000,
        "e" + "\u0301" * 100_000,
    ],
    ids=["json", "letters", "kanji", "spaces", "symbols", "jamo", "marks"],
)
def test_100_kb_in_bounded_time(text: str) -> None:
    started = time.process_time()
    (ids,) = TOKENIZER.encode([text])
    assert time.process_time() - started < 5
    assert ids.tolist() == WHOLE.plain(text)


def test_space_free_json_is_cut() -> None:
    lengths = [len(piece) for piece in cuts.pieces('{"id":17,"name":"Ann"},' * 4000)]
    assert len(lengths) == 89 and max(lengths[:-1]) < cuts.PIECE + 23


TOKENIZER = Tokenizer.load(DEMO)
WHOLE = WholeTokenizer(tokenizer_json())
