"""Answers against the numpy reference, with nothing shared: neither prompts nor tokens, label ids, weights or code.

The prompts are written out here, rendered by transformers, tokenised whole and run one by one by `flide_jax.reference`,
which reads the checkpoint itself. A wrong token, label or read row would be wrong forked and alone; here it shows.
"""

import numpy as np
import pytest
import tokenizers
import transformers

from flide_jax import reference
from flide_jax.engine import Engine, EngineConfig
from flide_jax.request import Choice, Request, Score, YesNo, YesNoAnswer
from tests.engine.requests import probabilities_of
from tests.tolerances import EXACT

# Every pair of letters, in order, that this tokenizer has a token for: more than 26 options carry these.
PAIRS = "AA AB AC AD AE AF AG AI AK AL AM AN AP AR AS AT AV AW AX AY BA BB BC BD BE BI BJ".split()

ORDER = Request(
    "Order #1182 arrived with a cracked screen.\nI want my money back!",
    {
        "urgent": YesNo("Does this need a reply within the hour?", yes="someone waits", no="it can rest"),
        "action": Choice("What next?", {"refund": "refund the order", "escalate": None, "wait": "do nothing"}),
        "anger": Score("How angry is the customer?", ["calm", "annoyed", "angry", "furious"]),
    },
)
PARCEL = Request(
    {"parcel": 7, "events": ["left the dépôt"]},
    {
        "shelf": Choice("Which shelf?", {f"shelf {i}": None for i in range(27)}),
        "lost": YesNo(),
        "worth": Score(None, ["low", "high"]),
    },
)

# For each question: the user's turn behind the state, and the labels of the options.
ORDER_STATE = "Order #1182 arrived with a cracked screen.\nI want my money back!\n\n"
ORDER_TURNS = {
    "urgent": (
        "Question: Does this need a reply within the hour?\nyes: someone waits\nno: it can rest\n"
        "Answer with yes or no only.",
        ["yes", "no"],
    ),
    "action": (
        "Question: What next?\nA: refund - refund the order\nB: escalate\nC: wait - do nothing\n"
        "Answer with the letter of one option only.",
        ["A", "B", "C"],
    ),
    "anger": (
        "Question: How angry is the customer?\n0: calm\n1: annoyed\n2: angry\n3: furious\n"
        "Answer with the number of one level only.",
        ["0", "1", "2", "3"],
    ),
}
PARCEL_STATE = '{"parcel": 7, "events": ["left the dépôt"]}\n\n'
PARCEL_TURNS = {
    "shelf": (
        "Question: Which shelf?\n"
        + "".join(f"{label}: shelf {i}\n" for i, label in enumerate(PAIRS))
        + "Answer with the letter of one option only.",
        PAIRS,
    ),
    "lost": ("yes\nno\nAnswer with yes or no only.", ["yes", "no"]),
    "worth": ("0: low\n1: high\nAnswer with the number of one level only.", ["0", "1"]),
}


@pytest.fixture(scope="module")
def expected(tiny_model):
    """expected(turn, labels) -> the probability of each label as the reply to a user's turn."""
    template = transformers.AutoTokenizer.from_pretrained(tiny_model)
    tokenizer = tokenizers.Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    settings, weights = reference.read_checkpoint(tiny_model)

    def answer(turn: str, labels: list[str]) -> np.ndarray:
        text = template.apply_chat_template(
            [{"role": "user", "content": turn}], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        return reference.probabilities(weights, settings, tokens, [tokenizer.token_to_id(label) for label in labels])

    return answer


def test_answers_equal_the_reference(tiny_model, expected):
    """Three kinds of questions in two requests of one round, options with and without descriptions."""
    engine = Engine.load(tiny_model, EngineConfig(dtype="float64", capacities=(768,)))
    answered = engine.answer_all([ORDER, PARCEL])
    assert len(engine.executables.compiled) == 1
    for answers, state, turns in zip(answered, (ORDER_STATE, PARCEL_STATE), (ORDER_TURNS, PARCEL_TURNS), strict=True):
        assert list(answers) == list(turns)
        for name, (turn, labels) in turns.items():
            found, truth = probabilities_of(answers[name]), expected(state + turn, labels)
            truth = truth[:1] if isinstance(answers[name], YesNoAnswer) else truth
            assert found.shape == truth.shape
            error = np.abs(found - truth).max()
            assert error <= EXACT, f"{name}: {error:.1e}"


def test_the_reference_tells_prompts_and_labels_apart(expected):
    """The comparison above can fail: a space or a label in another place is seen."""
    turn, labels = ORDER_TURNS["action"]
    truth = expected(ORDER_STATE + turn, labels)
    assert np.abs(expected(ORDER_STATE + turn + "!", labels) - truth).max() > 1e-4
    assert np.abs(expected(ORDER_STATE + turn, labels[::-1]) - truth).max() > 1e-4
