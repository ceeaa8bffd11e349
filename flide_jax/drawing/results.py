"""What experiments found, as small tables from their records alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from flide_jax.drawing.memory import in_bytes
from flide_jax.drawing.text import plain_table

type Record = Mapping[str, Any]
"""One line of a file of records."""

_GIB = 2**30


def draw_fidelity(records: Iterable[Record]) -> Table:
    """How far answers in each dtype are from those of float64, in each way of asking.

    Args:
        records: of `experiments/fidelity.py`, one of each dtype.
    """
    columns = ("questions with known answers", "total variation", "99 % below", "same answer", "right")
    table = plain_table(*columns, right=columns[1:])
    for record in records:
        for way, row in record["ways"].items():
            shares = (f"{row[name]:.1%}" for name in ("agr", "acc"))
            table.add_row(
                f"{record['dtype']} on {record['device']}, {way}", f"{row['tv']:.1e}", f"{row['p99']:.1e}", *shares
            )
    return table


def draw_multi_item(records: Sequence[Record]) -> Table:
    """What multi-item scoring does to answers, step by step from a fork, and what a pass takes.

    Args:
        records: of `experiments/multi_item_scoring.py`; the last one with answers is shown, and the times of the last
            one of a workload.
    """
    answers = next(record for record in reversed(records) if "requests" in record)
    times = next(record for record in reversed(records) if "workload" in record)
    columns = ("way", "moved", "other answers", "moved by reversing", "right", "ms")
    table = plain_table(*columns, right=columns[1:])
    table.caption = (
        f"answers: {answers['size']}, {answers['dtype']} on {answers['device']}; "
        f"ms: {times['size']} {times['workload']} on {times['device']}"
    )
    for way, row in answers["ways"].items():
        moved, reversing = (f"{row[name]:.1e}" for name in ("moved", "reversed"))
        ms = times["ways"].get(way, {}).get("ms")
        shown = "-" if ms is None else f"{ms:.2f}"
        table.add_row(way, moved, f"{row['changed']:.1%}", reversing, f"{row['right']:.1%}", shown)
    return table


def draw_memory_use(records: Sequence[Record]) -> Table:
    """Device memory with the largest round that ran: as accounted for, as counted, and as the driver says.

    Args:
        records: of `experiments/memory_use.py`; the last one of each size is shown.
    """
    columns = ("size", "round", "weights", "account", "peak", "process", "original process")
    table = plain_table(*columns, right=columns[1:])
    for record in {record["size"]: record for record in records}.values():
        measured = max(record["measured"], key=lambda one: one["tokens"])
        counted = (record["weights"], record["account"], measured["peak"], measured["process"])
        original = record.get("original_gib")
        table.add_row(
            record["size"],
            f"{measured['tokens']:,} tokens",
            *("-" if count is None else in_bytes(count) for count in counted),
            "-" if original is None else in_bytes(round(original * _GIB)),
        )
    return table


def draw_start_up(records: Sequence[Record]) -> Table:
    """Seconds from a start to the first answer, in each way of starting.

    Args:
        records: of `experiments/start_up.py`; of each size, number of capacities and way the last one is shown.
    """
    says = {
        "compiled": "first answer, compiling what it needs",
        "bundle": "first answer, from a bundle",
        "served": "a server with all of a bundle loaded",
        "warm": "making the bundle",
    }
    table = plain_table("size", "capacities", "until", "seconds", right=("capacities", "seconds"))
    found = {
        (record["size"], len(record["capacities"]), way): seconds
        for record in records
        for way, seconds in record["seconds"].items()
    }
    for (size, capacities, way), seconds in sorted(found.items(), key=str):
        table.add_row(size, str(capacities), says.get(way, way), f"{seconds:.1f}")
    return table
