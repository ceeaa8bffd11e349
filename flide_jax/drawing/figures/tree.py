"""Requests as the trees that they are, to scale: a state, and the branches that fork from its end."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from flide_jax.drawing.figures.style import GREY, INK, STATE, Picture, of_branch, panels, printable, styled
from flide_jax.drawing.text import one_line
from flide_jax.prompts.plan import Plan
from flide_jax.request import Choice, Content, Question, Request, YesNo

type Tree = tuple[str, Request, Plan]
"""What stands above a request, the request, and its tokens."""

# More of them would make a picture that nobody can look at.
MOST_REQUESTS, MOST_BRANCHES = 8, 24
_BAR = 0.62
_SMALL = 7.5


def draw_trees(trees: Sequence[Tree]) -> Picture:
    """Each state as a bar of its tokens, and from its end a bar for each question, with what can be answered.

    Of many requests, and of many questions of one, the first are drawn and the rest is counted.
    """
    shown = trees[:MOST_REQUESTS]
    lines = sum(2.6 + min(plan.branch_lengths.size, MOST_BRANCHES + 1) for _, _, plan in shown)
    lines += len(trees) > len(shown)
    longest = max(int(plan.state.size + plan.branch_lengths.max(initial=0)) for _, _, plan in shown)
    with styled():
        figure, (bars, words) = panels(9.4, 0.5 + 0.36 * lines, columns=2, sharey=True, width_ratios=[1.1, 1])
        top = 0.0
        for title, request, plan in shown:
            top = _draw_tree(bars, words, top, title, request, plan)
        if len(trees) > len(shown):
            bars.text(0, top, f"and {len(trees) - len(shown)} more requests", fontsize=8, va="center")
        bars.set_ylim(lines - 1.1, -0.6)
        bars.set_xlim(0, 1.1 * longest)
        bars.set_xlabel("position in the text of a question")
        bars.spines["left"].set_visible(False)
        bars.tick_params(left=False, labelleft=False)
        words.axis("off")
        words.set_xlim(0, 1)
    return Picture(figure)


def _draw_tree(bars: Axes, words: Axes, top: float, title: str, request: Request, plan: Plan) -> float:
    """One tree from a line on; the line where the next begins."""
    state, lengths = plan.state.size, plan.branch_lengths.tolist()
    counts = f"  {plan.tokens:,} tokens forked, {plan.tokens_alone:,} as {len(lengths)} texts"
    bars.text(0, top, printable(title) + counts, va="center", weight="bold", parse_math=False)
    root = top + 1
    _draw_bar(bars, root, 0, state, STATE)
    _write(words, root, "state", _in_words(request.state, 72))
    line = root
    drawn = list(zip(request.questions.items(), lengths, strict=True))[:MOST_BRANCHES]
    for number, ((name, question), length) in enumerate(drawn):
        line += 1
        _draw_bar(bars, line, state, length, of_branch(number))
        _write(words, line, _in_words(name, 40), _answers(question))
    bars.plot([state, state], [root - _BAR / 2, line + _BAR / 2], color=INK, linewidth=1.2, zorder=3)
    if len(lengths) > len(drawn):
        line += 1
        rest = lengths[len(drawn) :]
        words.text(0, line, f"and {len(rest)} more questions of {sum(rest):,} tokens", fontsize=8, va="center")
    return line + 1.6


def _draw_bar(axes: Axes, line: float, begin: int, tokens: int, colour: str) -> None:
    axes.barh(line, tokens, left=begin, facecolor=colour, height=_BAR)
    axes.text(begin + tokens, line, f" {tokens:,}", va="center", fontsize=8)


def _write(axes: Axes, line: float, name: str, below: str) -> None:
    axes.text(0, line - 0.2, name, va="center", fontsize=8.5, weight="bold", parse_math=False)
    axes.text(0, line + 0.24, below, va="center", fontsize=_SMALL, color=GREY, parse_math=False)


def _answers(question: Question) -> str:
    """The kind of a question and what can be answered, as much as there is room for."""
    if isinstance(question, YesNo):
        return "yes or no"
    options = question.options if isinstance(question, Choice) else question.levels
    kind = f"choice of {len(options)}" if isinstance(question, Choice) else f"score of {len(options)} levels"
    return f"{kind}: " + _in_words(", ".join(one_line(option, limit=24).plain for option in options), 56)


def _in_words(content: Content, limit: int) -> str:
    return printable(one_line(content, limit=limit).plain)
