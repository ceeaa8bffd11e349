"""Results of experiments, from their records alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.patches import Patch

from flide_jax.drawing.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    Picture,
    panels,
    styled,
)

type Record = Mapping[str, Any]
"""One line of a file of records."""

# What a launch is part of, by how its name begins; the rest are fusions of norms and the like.
_PARTS = {
    "fork_attention": "attention",
    "rotary_norm": "attention",
    "segmented_gdn": "recurrence",
    "segmented_conv": "convolution",
    "gated_norm": "gated norm",
    "matmul": "products",
    "nvjet": "products",
    "void cutlass": "products",
}
_REST = "everything else"


def latest(records: Iterable[Record], keys: Sequence[str], *, having: Sequence[str]) -> dict[tuple[Any, ...], Record]:
    """The last record of each combination of `keys`; those that lack any of these fields are of another study."""
    found: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if all(record.get(name) is not None for name in (*keys, *having)):
            found[tuple(record[key] for key in keys)] = record
    return found


def draw_speed(records: Sequence[Record]) -> Picture:
    """Milliseconds of a lone request: ours, the original engine's and the floor, by workload; a panel for each size.

    Args:
        records: of `experiments/latency.py`; the last one of each size and workload is drawn.
    """
    last = latest(records, ("size", "workload"), having=["lone_ms"])
    sizes = sorted({size for size, _ in last})
    with styled():
        most = max(sum(size == one for one, _ in last) for size in sizes)
        figure, axes = panels(3.9 * len(sizes), 1.2 + 0.42 * most, columns=len(sizes))
        for panel, size in zip(axes, sizes, strict=True):
            rows = sorted((workload for one, workload in last if one == size), key=lambda w: last[size, w]["lone_ms"])
            for line, workload in enumerate(rows):
                record = last[size, workload]
                ours, original = record["lone_ms"], (record.get("original") or [None])[0]
                if original is not None:
                    panel.plot([ours, original], [line, line], color=GREY, linewidth=1, zorder=1)
                    panel.plot(original, line, "D", color=ORANGE, markersize=6, label="original engine")
                panel.plot(ours, line, "o", color=BLUE, markersize=6, label="here")
                if "floor_ms" in record:
                    panel.plot(record["floor_ms"], line, "|", color=INK, markersize=11, label="floor")
            panel.set_xscale("log")
            panel.set_yticks(range(len(rows)), rows)
            panel.set_ylim(-0.6, len(rows) - 0.4)
            panel.grid(axis="x", which="both", color=PALE, linewidth=0.5)
            panel.set_axisbelow(True)
            panel.xaxis.set_major_formatter("{x:g}")
            panel.set_title(size)
            panel.set_xlabel("ms, a lone request")
        handles, names = axes[0].get_legend_handles_labels()
        unique = dict(zip(names, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), loc="outside upper center", ncols=3)
    return Picture(figure)


def draw_kernels(records: Sequence[Record], ops: Sequence[str]) -> Picture:
    """Microseconds of each op's kernel on its cases, with the least that the card's rates allow.

    Args:
        records: of `pallas_kernels.bench`; the last one of each op and case is drawn.
        ops: a panel each.
    """
    ours = [record for record in records if record.get("implementation") == "pallas" and record.get("op") in ops]
    last = latest(ours, ("op", "case"), having=["us", "us_floor"])
    with styled():
        most = max(sum(one == op for one, _ in last) for op in ops)
        figure, axes = panels(3.6 * len(ops), 1.3 + 0.3 * most, columns=len(ops))
        for panel, op in zip(axes, ops, strict=True):
            cases = sorted((case for one, case in last if one == op), key=lambda case: last[op, case]["us"])
            times = [last[op, case]["us"] for case in cases]
            floors = [last[op, case]["us_floor"] for case in cases]
            panel.barh(range(len(cases)), times, facecolor=BLUE, height=0.62, label="measured")
            panel.barh(range(len(cases)), floors, facecolor=GREEN, height=0.62, label="least that the rates allow")
            for line, us in enumerate(times):
                panel.text(us, line, f" {us:.3g}", va="center", fontsize=8)
            panel.set_xlim(0, 1.16 * max(times, default=1.0))
            panel.set_yticks(range(len(cases)), cases)
            panel.set_title(op)
            panel.set_xlabel("us")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=2)
    return Picture(figure)


def draw_peers(records: Sequence[Record]) -> Picture:
    """Our kernels beside others on the same operands: time, and the error against float64.

    Args:
        records: of `experiments/kernel_peers.py`; the last one of each op, mask and implementation is drawn.
    """
    # The recurrence has no mask.
    peers = [{**record, "mask": record.get("mask") or ""} for record in records]
    rows = sorted(latest(peers, ("op", "mask", "by"), having=["us", "error"]).items(), reverse=True)
    with styled():
        figure, (times, errors) = panels(7.4, 1.1 + 0.34 * len(rows), columns=2, sharey=True, width_ratios=[2, 1])
        for line, ((_, _, by), record) in enumerate(rows):
            colour = BLUE if by == "pallas" else ORANGE
            times.barh(line, record["us"], facecolor=colour, height=0.62)
            times.text(record["us"], line, f" {record['us']:.0f}", va="center", fontsize=8)
            errors.plot(record["error"], line, "o" if by == "pallas" else "D", color=colour)
        labels = [" ".join((f"{op}, {mask} mask:" if mask else f"{op}:", "here" if by == "pallas" else by))
                  for (op, mask, by), _ in rows]  # fmt: skip
        times.set_yticks(range(len(rows)), labels)
        times.set_xlim(0, 1.12 * max(record["us"] for _, record in rows))
        times.set_xlabel("us")
        errors.set_xlabel("relative error")
        errors.set_xlim(0, 1.25 * max(record["error"] for _, record in rows))
        errors.tick_params(left=False)
        errors.xaxis.set_major_formatter("{x:.3f}")
        errors.grid(axis="both", color=PALE, linewidth=0.5)
    return Picture(figure)


def draw_ablation(record: Record) -> Picture:
    """A lone request and a full queue without each idea, in times of what they are with all.

    Args:
        record: of `experiments/ablation.py`.
    """
    with_all, without = record["without"]["nothing"], {k: v for k, v in record["without"].items() if k != "nothing"}
    ratios = {
        "time of a lone request": {name: one["lone_ms"] / with_all["lone_ms"] for name, one in without.items()},
        "requests a second of a queue": {name: one["queued"] / with_all["queued"] for name, one in without.items()},
    }
    with styled():
        figure, axes = panels(7.4, 1.0 + 0.34 * len(without), columns=2, sharey=True)
        for panel, (title, times), colour in zip(axes, ratios.items(), (ORANGE, BLUE), strict=True):
            panel.barh(range(len(times)), [*times.values()], facecolor=colour, height=0.62)
            for line, ratio in enumerate(times.values()):
                panel.text(ratio, line, f" {ratio:.2f}", va="center", fontsize=8)
            panel.axvline(1, color=INK, linewidth=0.8)
            panel.set_xlim(0, 1.16 * max(1.0, *times.values()))
            panel.set_title(title)
            panel.set_xlabel("times what it is with all ideas")
        axes[0].set_yticks(range(len(without)), [f"without {name}" for name in without])
        axes[0].invert_yaxis()
    return Picture(figure)


def draw_questions(record: Record) -> Picture:
    """Milliseconds against the questions about one state, a line for each way of asking.

    Args:
        record: of `experiments/questions_per_state.py`.
    """
    rows = record["rows"]
    counts = [row["questions"] for row in rows]
    ways = ("forked", "texts", "kept state", "multi-item", "transformers")
    colours = dict(zip(ways, (BLUE, ORANGE, GREEN, PURPLE, GREY), strict=True))
    with styled():
        figure, (axes,) = panels(5.2, 3.0)
        for way in rows[0]["ms"]:
            times = [row["ms"][way] for row in rows]
            axes.plot(counts, times, "o-", color=colours[way], markersize=4, label=way)
            axes.text(counts[-1], times[-1], f" {times[-1]:.3g} ms", va="center", fontsize=8)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts, counts)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(axis="y", which="both", color=PALE, linewidth=0.5)
        axes.set_xlabel(f"questions about a state of {record['state']:,} tokens")
        axes.set_ylabel("ms of a request")
        axes.legend(loc="upper left")
    return Picture(figure)


def draw_parts(records: Sequence[Record]) -> Picture:
    """The device's time of one pass by what its launches are part of, a bar for each size and workload.

    Args:
        records: of `experiments/where_the_time_goes.py`; the last one of each size and workload is drawn.
    """
    last = latest(records, ("size", "workload"), having=["launches"])
    names = [*dict.fromkeys(_PARTS.values()), _REST]
    colours = dict(zip(names, (BLUE, ORANGE, SKY, PURPLE, GREEN, GREY), strict=True))
    with styled():
        figure, (axes,) = panels(7.4, 1.1 + 0.42 * len(last))
        for line, record in enumerate(last.values()):
            times = dict.fromkeys(names, 0.0)
            for launch, (_, us) in record["launches"].items():
                part = next((part for prefix, part in _PARTS.items() if launch.startswith(prefix)), _REST)
                times[part] += us
            left, total = 0.0, sum(times.values())
            for name, us in times.items():
                axes.barh(line, us / total, left=left, facecolor=colours[name], edgecolor="white", height=0.66)
                if us > 0.04 * total:
                    axes.text(left + us / total / 2, line, f"{us / total:.0%}", ha="center", va="center", fontsize=8)
                left += us / total
            axes.text(1.01, line, f"{total / 1e3:.2f} ms", va="center", fontsize=8)
        axes.set_yticks(range(len(last)), [" ".join(key) for key in last])
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        legend = [Patch(facecolor=colours[name], label=name) for name in names]
        figure.legend(handles=legend, loc="outside upper center", ncols=len(names), handlelength=1, columnspacing=1)
    return Picture(figure)
