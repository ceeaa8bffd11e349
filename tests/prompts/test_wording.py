"""The wording `vllm/1`, line by line."""

import pytest

from flide_jax.prompts.wording import WORDINGS, content_text
from flide_jax.request import Choice, Question, Score, YesNo

VLLM = WORDINGS["vllm/1"]
YES_NO = "Answer with yes or no only."
LETTER = "Answer with the letter of one option only."
NUMBER = "Answer with the number of one level only."


@pytest.mark.parametrize(
    ("question", "labels", "block"),
    [
        (YesNo("Is it?"), ["yes", "no"], f"Question: Is it?\nyes\nno\n{YES_NO}"),
        (YesNo("Is it?", yes="it is", no=""), ["yes", "no"], f"Question: Is it?\nyes: it is\nno\n{YES_NO}"),
        (YesNo(no={"not": "é"}), ["yes", "no"], f'yes\nno: {{"not": "é"}}\n{YES_NO}'),
        (YesNo(), ["yes", "no"], f"yes\nno\n{YES_NO}"),
        (YesNo(""), ["yes", "no"], f"yes\nno\n{YES_NO}"),
        (YesNo([]), ["yes", "no"], f"yes\nno\n{YES_NO}"),
        (YesNo(" "), ["yes", "no"], f"Question:  \nyes\nno\n{YES_NO}"),
        (YesNo(["é", 1]), ["yes", "no"], f'Question: ["é", 1]\nyes\nno\n{YES_NO}'),
        (
            Choice("Next?", {"refund": "refund it", "wait": None, "ask": "", "go": {"to": [1, 2]}}),
            ["A", "B", "C", "D"],
            f'Question: Next?\nA: refund - refund it\nB: wait\nC: ask\nD: go - {{"to": [1, 2]}}\n{LETTER}',
        ),
        (Choice(None, {"x": "y"}), ["AA"], f"AA: x - y\n{LETTER}"),
        (
            Score("Angry?", ["calm", {"a": None}, ""]),
            ["0", "1", "2"],
            f'Question: Angry?\n0: calm\n1: {{"a": null}}\n2\n{NUMBER}',
        ),
    ],
)
def test_blocks(question: Question, labels: list[str], block: str) -> None:
    assert VLLM.block(question, labels) == block


def test_structured_content_is_json_in_its_own_script() -> None:
    assert content_text({"질문": ["“x”", 1.5, None, True], "b": {}}) == '{"질문": ["“x”", 1.5, null, true], "b": {}}'
    assert content_text({}) == "{}"
    assert content_text(' "x"\n') == ' "x"\n'
    assert VLLM.state("") == ""
