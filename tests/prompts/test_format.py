"""The prompt format: plans, labels and answers of the demo checkpoint and of its variants."""

import math
import string
from pathlib import Path

import numpy as np
import pytest

from flide_jax.prompts.format import PromptFormat
from flide_jax.request import Choice, ChoiceAnswer, Request, RequestError, Score, ScoreAnswer, YesNo, YesNoAnswer
from tests.prompts.variants import DEMO, WholeTokenizer, checkpoint, tokenizer_json

PROMPTS = PromptFormat.load(DEMO)
WHOLE = WholeTokenizer(tokenizer_json())
PAIRS = [first + second for first in string.ascii_uppercase for second in string.ascii_uppercase]
SINGLE_PAIRS = [pair for pair in PAIRS if len(WHOLE.plain("\n\n" + pair)) == 2]


def choice(count: int) -> Choice:
    return Choice("Which?", {f"option {i}": None for i in range(count)})


def labels(prompts: PromptFormat, question: YesNo | Choice | Score) -> list[str]:
    return [prompts.labels[column] for column in prompts.label_columns(question)]


def test_name_and_wordings() -> None:
    assert (PROMPTS.name, PROMPTS.version) == ("vllm", 1)
    with pytest.raises(ValueError, match="no wording 'vllm/2', only vllm/1"):
        PromptFormat.load(DEMO, wording="vllm/2")


def test_labels_of_each_type() -> None:
    assert labels(PROMPTS, YesNo()) == ["yes", "no"]
    assert labels(PROMPTS, Score("?", ["x"] * 10)) == list(string.digits)
    assert labels(PROMPTS, Score("?", ["x"])) == ["0"]
    assert labels(PROMPTS, choice(26)) == list(string.ascii_uppercase)
    assert labels(PROMPTS, choice(1)) == ["A"]


def test_past_26_options_every_label_is_a_pair() -> None:
    found = labels(PROMPTS, choice(27))
    assert found[:3] == ["AA", "AB", "AC"] and all(len(label) == 2 for label in found)
    most = labels(PROMPTS, choice(255))
    assert len(set(most)) == 255 and most[:27] == found and most == sorted(most)


def test_a_label_is_one_token_after_the_generation_prompt() -> None:
    assert len(PROMPTS.labels) == len(set(PROMPTS.label_ids.tolist())) == 2 + 10 + 26 + 255
    assert PROMPTS.label_ids.dtype == np.int32
    for label, token_id in zip(PROMPTS.labels, PROMPTS.label_ids, strict=True):
        assert WHOLE.plain("\n\n" + label) == [*WHOLE.plain("\n\n"), token_id]


def test_pairs_without_a_token_are_passed_over() -> None:
    assert list(PROMPTS.labels[38:]) == SINGLE_PAIRS[:255]
    assert "AG" in SINGLE_PAIRS and "AH" not in SINGLE_PAIRS


def without(*words: str):
    """Removes words from the vocabulary, with all that is merged from them, so that their characters stay apart."""

    def change(content: dict) -> None:
        model = content["model"]
        made = {pair_part for pair in model["merges"] for pair_part in pair} - {"".join(x) for x in model["merges"]}
        kept = []
        for pair in model["merges"]:
            if "".join(pair) not in words and made.issuperset(pair):
                made.add("".join(pair))
                kept.append(pair)
        model["merges"] = kept
        model["vocab"] = {word: token_id for word, token_id in model["vocab"].items() if word not in words}

    return change


@pytest.mark.parametrize("word", ["yes", "no"])
def test_a_tokenizer_without_a_label_is_refused(tmp_path: Path, word: str) -> None:
    with pytest.raises(NotImplementedError, match=f"the label '{word}' is not one token of its own") as caught:
        PromptFormat.load(checkpoint(tmp_path, change=without(word)))
    assert str(caught.value).startswith(f"{tmp_path}: ")


def test_labels_that_are_one_token_only_elsewhere_are_refused(tmp_path: Path) -> None:
    """`yes` is a token, but not behind a space without a token of its own before it."""
    source = "<|im_start|>{{ messages[0].content }}<|im_end|>reply: "
    with pytest.raises(NotImplementedError, match="the label 'yes' is not one token"):
        PromptFormat.load(checkpoint(tmp_path, template=source))


def test_labels_with_a_token_in_common_are_refused(tmp_path: Path) -> None:
    """A normaliser that takes digits away gives 0 and 1 the same token."""

    def change(content: dict) -> None:
        digits = {"type": "Replace", "pattern": {"Regex": "[01]"}, "content": "x"}
        content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, digits]}

    with pytest.raises(NotImplementedError, match="the label '1' is not one token of its own"):
        PromptFormat.load(checkpoint(tmp_path, change=change))


def test_a_choice_past_the_tokenizers_pairs_is_refused(tmp_path: Path) -> None:
    gone = [pair for pair in SINGLE_PAIRS if pair[0] not in "ABC"]
    prompts = PromptFormat.load(checkpoint(tmp_path, change=without(*gone)))
    left = prompts.max_options
    assert 26 < left < 255
    prompts.plan(Request("", {"a": choice(left)}))
    with pytest.raises(RequestError) as caught:
        prompts.plan(Request("", {"a": YesNo(), "b c": choice(left + 1)}))
    assert caught.value.location == ("questions", "b c", "options")
    assert caught.value.rule == f"this tokenizer can label at most {left} options, got {left + 1}"
    with pytest.raises(ValueError, match="at most"):
        prompts.label_columns(choice(left + 1))


def test_single_letters_remain_without_pairs(tmp_path: Path) -> None:
    prompts = PromptFormat.load(checkpoint(tmp_path, change=without(*SINGLE_PAIRS)))
    assert prompts.max_options == 26 and len(prompts.labels) == 38
    assert labels(prompts, choice(26))[-1] == "Z"


REQUEST = Request("s", {"y": YesNo("?"), "c": choice(3), "s": Score("?", ["low", "mid", "high"]), "many": choice(30)})


def test_plan_reads_the_last_token_of_every_branch() -> None:
    plan = PROMPTS.plan(REQUEST)
    assert plan.read_branches.tolist() == [0, 1, 2, 3]
    assert (plan.read_offsets == plan.branch_lengths - 1).all()
    assert {int(plan.branch(i)[-1]) for i in range(4)} == {WHOLE.plain("\n\n")[0]}


def test_checkpoints_are_asked_for_by_the_request() -> None:
    question = {"q": YesNo("Well?")}
    assert PROMPTS.plan(Request("", question)).salt == ""
    assert PROMPTS.plan(Request("", question, cache_salt="a")).salt == "a"
    assert PROMPTS.plan(Request("", question, checkpoints=False, cache_salt="a")).salt is None


def test_order_and_ids_of_questions_do_not_change_their_tokens() -> None:
    questions = list(REQUEST.questions.values())
    forward = PROMPTS.plan(REQUEST)
    backward = PROMPTS.plan(Request("s", {f"id {i}": question for i, question in enumerate(reversed(questions))}))
    assert forward.state.tolist() == backward.state.tolist()
    assert [forward.branch(i).tolist() for i in range(4)] == [backward.branch(3 - i).tolist() for i in range(4)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_answers_are_a_softmax_over_the_labels_of_the_question(dtype: type) -> None:
    logits = np.random.default_rng(0).normal(0, 4, (4, len(PROMPTS.labels))).astype(dtype)
    answers = PROMPTS.answers(REQUEST, logits)
    assert list(answers) == ["y", "c", "s", "many"]
    rows = []
    for row, question in zip(logits.tolist(), REQUEST.questions.values(), strict=True):
        weights = [math.exp(row[PROMPTS.labels.index(label)]) for label in labels(PROMPTS, question)]
        rows.append([weight / sum(weights) for weight in weights])
    yes, pick, score, many = answers.values()
    assert isinstance(yes, YesNoAnswer) and yes.probability == pytest.approx(rows[0][0], rel=1e-13)
    assert isinstance(pick, ChoiceAnswer) and list(pick.probabilities) == ["option 0", "option 1", "option 2"]
    assert list(pick.probabilities.values()) == pytest.approx(rows[1], rel=1e-13)
    assert isinstance(score, ScoreAnswer) and score.score == pytest.approx(rows[2][1] + 2 * rows[2][2], rel=1e-13)
    assert isinstance(many, ChoiceAnswer) and list(many.probabilities.values()) == pytest.approx(rows[3], rel=1e-13)
    assert many.choice == f"option {int(np.argmax(rows[3]))}"


def test_huge_logits_do_not_overflow() -> None:
    logits = np.full((1, len(PROMPTS.labels)), 3e38, np.float32)
    logits[0, 1] = -3e38
    (answer,) = PROMPTS.answers(Request("", {"q": YesNo()}), logits).values()
    assert answer == YesNoAnswer(1.0)


def test_a_logit_that_is_not_finite_is_refused() -> None:
    request = Request("", {"a": YesNo(), "b": YesNo()})
    logits = np.zeros((2, len(PROMPTS.labels)), np.float32)
    logits[:, PROMPTS.labels.index("A")] = np.nan  # No label of these questions.
    PROMPTS.answers(request, logits)
    for value in (np.nan, np.inf, -np.inf):
        logits[1, 0] = value
        with pytest.raises(FloatingPointError, match="questions.b: the model's logits are not finite"):
            PROMPTS.answers(request, logits)


def test_logits_of_another_request_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must have shape \(4, 293\), got \(3, 293\)"):
        PROMPTS.answers(REQUEST, np.zeros((3, len(PROMPTS.labels)), np.float32))


def test_a_text_that_the_template_rewrites_is_refused(tmp_path: Path) -> None:
    source = "<|im_start|>{{ messages[0].content | replace('secret', '***') }}<|im_end|>\n"
    prompts = PromptFormat.load(checkpoint(tmp_path, template=source))
    prompts.plan(Request("x", {"a": YesNo(), "b": YesNo("?")}))
    for request in (Request("secret", {"a": YesNo()}), Request("x", {"a": YesNo(), "b": YesNo("secret?")})):
        with pytest.raises(NotImplementedError, match="rewrites the text of this request"):
            prompts.plan(request)
