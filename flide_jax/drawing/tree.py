"""A request as the tree that it is: a state, and the branches that fork from it."""

from rich.text import Text
from rich.tree import Tree

from flide_jax.drawing.text import one_line
from flide_jax.prompts.plan import Plan
from flide_jax.request import Choice, Question, Request, YesNo


def draw_tree(request: Request, plan: Plan, *, title: str) -> Tree:
    """The state with its first words, then each branch with the id of its question and its tokens."""
    lengths = plan.branch_lengths.tolist()
    tree = Tree(
        Text(title, style="bold").append(
            f"  {plan.tokens:,} tokens forked, {plan.tokens_alone:,} as {len(lengths)} texts", style="not bold"
        ),
        guide_style="dim",
    )
    state = tree.add(Text(f"state  {plan.state.size:,} tokens  ").append_text(one_line(request.state, limit=60)))
    names = [one_line(name, limit=32) for name in request.questions]
    width, number_width = max(name.cell_len for name in names), len(f"{max(lengths):,}")
    for name, question, length in zip(names, request.questions.values(), lengths, strict=True):
        name.pad_right(width - name.cell_len + 2)
        label = Text(f"{length:>{number_width},} tokens  ").append_text(name)
        state.add(label.append(_kind(question), style="dim"))
    return tree


def _kind(question: Question) -> str:
    if isinstance(question, YesNo):
        return "yes or no"
    if isinstance(question, Choice):
        return f"choice of {len(question.options)}"
    return f"score of {len(question.levels)} levels"
