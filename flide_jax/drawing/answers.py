"""Answers as a table: one line for each option, with its probability as a bar."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from flide_jax.drawing.text import one_line, plain_table
from flide_jax.request import Answer, Answers, ChoiceAnswer, Content, YesNoAnswer

_BAR_CELLS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉"
# Options of one question that are listed before the rest is summed up.
_MOST_OPTIONS = 12

Line = tuple[Text, float, bool]


def draw_answers(answers: Answers) -> Table:
    """The answers in the order of the questions; the most probable option of each is marked."""
    table = plain_table("question", "answer", "option", "p", "", right=("p",), names=("question", "option"))
    for name, answer in answers.items():
        names = iter([one_line(name, limit=28)])
        summaries = iter([Text(line) for line in _summary(answer)])
        lines = list(_lines(answer))
        for text, probability, best in lines:
            table.add_row(
                next(names, Text()),
                next(summaries, Text()),
                Text("▸ " if best else "  ").append_text(text),
                f"{probability:.4f}",
                Text(bar(probability), style="green" if best else "dim"),
                style="bold" if best else None,
            )
        for summary in summaries:
            table.add_row("", summary)
    return table


def bar(probability: float) -> str:
    """A bar of 20 cells for 1, in eighths of a cell."""
    eighths = round(probability * _BAR_CELLS * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _summary(answer: Answer) -> tuple[str, ...]:
    match answer:
        case YesNoAnswer():
            return ("yes or no",)
        case ChoiceAnswer():
            return "choice", f"confidence {answer.confidence:.2f}"
        case _:
            return f"score {answer.score:.2f}", f"confidence {answer.confidence:.2f}"


def _lines(answer: Answer) -> Iterator[Line]:
    match answer:
        case YesNoAnswer():
            yes = answer.probability
            yield Text("yes"), yes, yes >= 0.5
            yield Text("no"), 1.0 - yes, yes < 0.5
        case ChoiceAnswer():
            chosen = list(answer.probabilities).index(answer.choice)
            yield from _listed(list(answer.probabilities), list(answer.probabilities.values()), chosen)
        case _:
            probabilities = list(answer.probabilities)
            levels = [f"{i}: {one_line(level)}" for i, level in enumerate(answer.levels)]
            yield from _listed(levels, probabilities, probabilities.index(max(probabilities)))


def _listed(options: Sequence[Content], probabilities: Sequence[float], best: int) -> Iterator[Line]:
    """Few options in their own order; of many, the most probable ones and the sum of the others."""
    order = list(range(len(options)))
    if len(options) > _MOST_OPTIONS:
        order = sorted(order, key=lambda i: -probabilities[i])[: _MOST_OPTIONS - 2]
    for i in order:
        yield one_line(options[i], limit=34), probabilities[i], i == best
    if len(order) < len(options):
        rest = sum(probabilities) - sum(probabilities[i] for i in order)
        yield Text(f"{len(options) - len(order)} others"), max(0.0, rest), False
