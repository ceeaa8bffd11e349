"""The tokenizer: plain text stays plain text, and other kinds of tokenizers are told apart."""

from pathlib import Path

import pytest
import tokenizers

from flide_jax.prompts.tokenizer import Tokenizer
from tests.prompts.variants import DEMO, WholeTokenizer, checkpoint, tokenizer_json


def test_added_tokens_are_tokens_in_template_text_only() -> None:
    tokenizer = Tokenizer.load(DEMO)
    added = WholeTokenizer(tokenizer_json()).added
    for content, token_id in added.items():
        ids, places = tokenizer.template_text(f"a{content}b")
        assert ids.tolist().count(token_id) == 1
        assert [(place.start, place.end) for place in places] == [(1, 1 + len(content))]
        (plain,) = tokenizer.encode([f"a{content}b"])
        assert set(plain.tolist()).isdisjoint(added.values()), content


def test_no_token_is_added_by_a_post_processor(tmp_path: Path) -> None:
    def with_bos(content: dict) -> None:
        token = {"id": "<|endoftext|>", "ids": [16384], "tokens": ["<|endoftext|>"]}
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token["id"], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token["id"]: token},
        }
        content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}

    path = checkpoint(tmp_path, change=with_bos)
    assert len(tokenizers.Tokenizer.from_file(str(path / "tokenizer.json")).encode("a b c d")) == 2
    tokenizer = Tokenizer.load(path)
    expected = WholeTokenizer(tokenizer_json()).plain("a b c d")
    assert tokenizer.encode(["a b c d"])[0].tolist() == tokenizer.template_text("a b c d")[0].tolist() == expected


def test_offsets_say_where_tokens_end() -> None:
    ((ids, ends),) = Tokenizer.load(DEMO).encode_whole(["a\n\nQuestion: e\u0301"])
    assert len(ids) == len(ends) and ends[0] == 1 and ends[-1] == 14 and sorted(ends) == ends


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(Regex=r"\p{N}{1,3}|\p{L}+|[^\p{L}\p{N}]+"),
        lambda c: c["pre_tokenizer"]["pretokenizers"][0].update(behavior="MergedWithNext"),
        lambda c: c["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True),
        lambda c: c["pre_tokenizer"]["pretokenizers"][1].update(use_regex=True),
        lambda c: c["pre_tokenizer"]["pretokenizers"].append({"type": "Digits", "individual_digits": True}),
        lambda c: c.update(normalizer=None),
        lambda c: c.update(normalizer={"type": "NFKC"}),
        lambda c: c.update(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}),
        lambda c: c.update(pre_tokenizer=None),
    ],
    ids=["pattern", "behavior", "prefix", "regex", "more", "no normalizer", "NFKC", "lowercase", "none"],
)
def test_other_tokenizers_are_not_cut(tmp_path: Path, change) -> None:
    assert not Tokenizer.load(checkpoint(tmp_path, change=change)).has_proven_cuts


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no tokenizer.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ValueError, match="is not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_that_drops_merges_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match="at random"):
        Tokenizer.load(checkpoint(tmp_path, change=lambda c: c["model"].update(dropout=0.5)))


def test_plain_text_that_makes_a_special_token_is_refused(tmp_path: Path) -> None:
    """A word of the vocabulary declared special: its text would be that token with or without the declaration."""

    def change(content: dict) -> None:
        word = {"id": content["model"]["vocab"]["no"], "content": "no"}
        content["added_tokens"].append(content["added_tokens"][0] | word)

    with pytest.raises(NotImplementedError, match="reads 'no' in plain text as a special token"):
        Tokenizer.load(checkpoint(tmp_path, change=change))


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word"])
def test_added_tokens_that_reach_into_the_text_are_refused(tmp_path: Path, flag: str) -> None:
    def change(content: dict) -> None:
        for token in content["added_tokens"]:
            token[flag] = token["content"] == "<|im_end|>"

    tokenizer = Tokenizer.load(checkpoint(tmp_path, change=change))
    tokenizer.template_text("a <|im_start|> b")
    with pytest.raises(NotImplementedError, match="reaches into the text"):
        tokenizer.template_text("a <|im_end|> b")
