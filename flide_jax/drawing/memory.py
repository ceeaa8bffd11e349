"""Bytes: what weights and rounds need on the device, and how large files are."""

from collections.abc import Iterable

from rich.table import Table

from flide_jax.drawing.text import plain_table


def draw_memory(weights: int, checkpoints: int, rounds: Iterable[tuple[int, bool, int, int, int]], peak: int) -> Table:
    """The weights, the room for checkpoints if there is any, each capacity's round as (tokens, whether it is a growing
    one, metadata, temporaries, outputs), and the peak; all in bytes."""
    columns = ("what", "metadata", "temporaries", "outputs", "bytes")
    table = plain_table(*columns, right=columns[1:])
    table.add_row("weights", "", "", "", in_bytes(weights))
    if checkpoints:
        table.add_row("checkpoints", "", "", "", in_bytes(checkpoints))
    for tokens, growing, *parts in rounds:
        name = f"{'growing ' if growing else ''}round of {tokens:,} tokens"
        table.add_row(name, *map(in_bytes, [*parts, sum(parts)]))
    table.add_row("peak: all, with the largest round", "", "", "", in_bytes(peak))
    return table


def draw_files(files: Iterable[tuple[int, int]]) -> Table:
    """The executables of a bundle as (tokens, bytes)."""
    table = plain_table("capacity", "bytes", right=("capacity", "bytes"))
    for tokens, size in files:
        table.add_row(f"{tokens:,}", in_bytes(size))
    return table


def in_bytes(count: int) -> str:
    """Three or four digits and a binary unit."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1_000:
            break
        value, unit = value / 1_024, larger
    return f"{count} B" if unit == "B" else f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f} {unit}"
