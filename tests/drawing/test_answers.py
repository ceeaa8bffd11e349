import io

import numpy as np
import pytest
from rich.console import Console

from flide_jax.drawing.answers import bar, draw_answers
from flide_jax.request import Answers, Choice, ChoiceAnswer, Score, ScoreAnswer, Usage


def drawn(answer) -> str:
    written = io.StringIO()
    Console(file=written, width=120).print(draw_answers(Answers({"q": answer}, usage=Usage(1, 1))))
    return written.getvalue()


@pytest.mark.parametrize(("options", "lines"), [(1, 1), (12, 12), (13, 11), (255, 11)])
def test_many_options_are_summed_up(options, lines):
    question = Choice(None, {f"option {i}": None for i in range(options)})
    probabilities = np.arange(1, options + 1) / np.arange(1, options + 1).sum()
    text = drawn(ChoiceAnswer.of(question, probabilities))
    assert text.count("option ") == lines - (options > 12) + 1  # and the heading
    assert f"▸ option {options - 1} " in text
    if options > 12:
        assert f"{options - 10} others" in text
        assert f"{probabilities[:-10].sum():.4f}" in text


def test_a_narrow_terminal_cuts_no_name():
    written = io.StringIO()
    name, option = "the-name-of-a-question", "the-long-name-of-an-option"
    answer = ChoiceAnswer.of(Choice(None, {option: None}), np.ones(1))
    answers = Answers({name: answer}, usage=Usage(1, 1))
    Console(file=written, width=72).print(draw_answers(answers))
    heading, *lines = written.getvalue().splitlines()
    for column, following, text in (("question", "answer", name), ("option", "p ", option)):
        cells = [line[heading.index(column) : heading.index(following)] for line in lines]
        assert text in "".join(cell.strip() for cell in cells)


def test_confidence_has_a_line_where_there_is_one_option():
    assert "confidence 1.00" in drawn(ScoreAnswer.of(Score(None, ["only"]), np.ones(1)))


def test_bars_grow_in_eighths_of_a_cell():
    assert bar(0.0) == "" and bar(1.0) == "█" * 20
    assert bar(0.5 + 1 / 160) == "█" * 10 + "▏"
