"""What the picture of a request says of it."""

import numpy as np

from flide_jax.drawing.figures.tree import MOST_BRANCHES, MOST_REQUESTS, draw_trees
from flide_jax.request import Choice, Request, Score, YesNo
from tests.trees import plan_of

QUESTIONS = {
    "urgent": YesNo("Within the hour?"),
    "next": Choice("What next?", {"refund": "refund it", "$x$": None, "\u8a02": None}),
    "mood": Score("How angry?", ["calm", "angry"]),
}
REQUEST = Request("I paid $5, then $6.", QUESTIONS)


def drawn(*requests: Request, branches: list[int]) -> tuple[list[str], list[tuple[float, float]]]:
    """All words of the picture, and the bars as (begin, tokens)."""
    trees = [(f"request {i}", one, plan_of(40, branches, np.random.default_rng(i))) for i, one in enumerate(requests)]
    figure = draw_trees(trees).figure
    bars = [(bar.get_x(), bar.get_width()) for group in figure.axes[0].containers for bar in group]
    return [text.get_text() for axes in figure.axes for text in axes.texts], bars


def test_branches_begin_where_their_state_ends():
    words, bars = drawn(REQUEST, branches=[20, 5, 7])
    assert bars == [(0, 40), (40, 20), (40, 5), (40, 7)]
    assert {" 40", " 20", " 5", " 7", "request 0  72 tokens forked, 152 as 3 texts"} <= set(words)


def test_questions_have_their_names_and_answers():
    words, _ = drawn(REQUEST, branches=[20, 5, 7])
    told = ["I paid $5, then $6.", "yes or no", "choice of 3: refund, $x$, \u25a1", "score of 2 levels: calm, angry"]
    assert {"state", *QUESTIONS, *told} <= set(words)


def test_what_is_not_drawn_is_counted():
    many = Request("A state.", {f"q{i}": YesNo("Is it?") for i in range(MOST_BRANCHES + 3)})
    words, bars = drawn(*[many] * (MOST_REQUESTS + 2), branches=[3] * (MOST_BRANCHES + 3))
    assert len(bars) == MOST_REQUESTS * (1 + MOST_BRANCHES)
    assert words.count("and 3 more questions of 9 tokens") == MOST_REQUESTS and "and 2 more requests" in words
