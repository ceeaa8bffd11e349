"""Text of requests inside a drawing: on one line, within a width, without control characters."""

from rich.table import Table
from rich.text import Text

from flide_jax.prompts.wording import content_text
from flide_jax.request import Content


def one_line(content: Content, *, limit: int = 40) -> Text:
    """The content in at most `limit` characters, line breaks and control characters escaped. It is not markup."""
    text = content_text(content)
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return Text(shown if len(text) <= limit and len(shown) <= limit else shown[: limit - 1] + "…")


def plain_table(*columns: str, right: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> Table:
    """A table without lines.

    Args:
        columns: their headings.
        right: the columns that hold numbers.
        names: the columns that fold into several lines where the width is short, so that no name is cut; the cells of
            the others are one line.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in columns:
        folds = name in names
        table.add_column(
            name,
            justify="right" if name in right else "left",
            no_wrap=not folds,
            overflow="fold" if folds else "ellipsis",
            min_width=len(name),
        )
    return table
