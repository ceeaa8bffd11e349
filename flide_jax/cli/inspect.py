"""`flide-jax inspect`: how requests fork, and the streams they are laid out in."""

from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from flide_jax.cli.console import open_console
from flide_jax.cli.model import engine_config, find_directory, load_format
from flide_jax.cli.rows import Group, Planned, Row, plan_group
from flide_jax.drawing.stream import LEGEND, draw_stream, draw_strip, summary
from flide_jax.drawing.tree import draw_tree
from flide_jax.engine.model_directory import describe
from flide_jax.layout import Demand, Ladder, form_rounds, lay_out

# Requests that are drawn in full unless all are asked for, or those of the first round if they are more.
_DRAWN = 8


def inspect(arguments: Namespace, groups: Iterable[Group]) -> int:
    """Draws all rounds, the first ones with every request in them. Returns 2 if a row could not be read."""
    status, rounds, drawn, left_out = 0, 0, 0, 0
    prompt_format, max_tokens = load_format(arguments)
    console = open_console()
    ladder = engine_config(arguments).ladder()
    for group in groups:
        planned = list(plan_group(prompt_format.plan, group))
        status = status if len(planned) == len(group) else 2
        for members in form_rounds([Demand.of(plan) for *_, plan in planned], ladder.largest):
            in_full = arguments.all or not rounds or (not left_out and drawn + len(members) <= _DRAWN)
            drawn, left_out = (drawn + len(members), left_out) if in_full else (drawn, left_out + len(members))
            if arguments.png is not None and not rounds:
                _save(arguments, ladder, [planned[i] for i in members])
            _draw_round(console, ladder, rounds, [planned[i] for i in members], in_full=in_full)
            rounds += 1
    if drawn:
        console.print(Text(LEGEND, style="dim"))
    console.print(f"The model reads {max_tokens:,} tokens of a state and one question.")
    if left_out:
        console.print(f"{left_out} requests are not drawn in full; --all draws every one.")
    return status


def _save(arguments: Namespace, ladder: Ladder, planned: Sequence[Planned]) -> None:
    from flide_jax.cli.pictures import save_pictures  # needs an extra

    stream = lay_out([plan for *_, plan in planned])
    trees = [(_title(index, row), request, plan) for index, (row, request, plan) in enumerate(planned)]
    _, architecture, _ = describe(find_directory(arguments, weights=False))
    capacity = ladder.smallest_for(Demand.of_stream(stream))
    save_pictures(Path(arguments.png), trees, stream, capacity, architecture.attention)


def _draw_round(console: Console, ladder: Ladder, number: int, planned: Sequence[Planned], *, in_full: bool) -> None:
    stream = lay_out([plan for *_, plan in planned])
    capacity = ladder.smallest_for(Demand.of_stream(stream))
    first, last = planned[0][0].label, planned[-1][0].label
    places = first if len(planned) == 1 else f"{first} to {last}"
    console.print(Text(f"round {number}", style="bold"), Text(places))
    console.print(Text(summary(stream, capacity)))
    console.print(draw_strip(stream, capacity), overflow="crop", no_wrap=True)
    console.print()
    if not in_full:
        return
    for index, (row, request, plan) in enumerate(planned):
        console.print(draw_tree(request, plan, title=_title(index, row)))
    console.print()
    names = [name for _, request, _ in planned for name in request.questions]
    console.print(draw_stream(stream, capacity, names))
    console.print()


def _title(index: int, row: Row) -> str:
    return f"request {index}  {row.label}"
