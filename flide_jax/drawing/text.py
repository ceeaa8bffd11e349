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


def plain_table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """A table of one-line cells under a rule. Columns named in `right` hold numbers."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", title_style="bold", header_style="dim")
    for name in columns:
        table.add_column(
            name, justify="right" if name in right else "left", no_wrap=True, overflow="ellipsis", min_width=len(name)
        )
    return table
