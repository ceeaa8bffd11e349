"""Results of experiments, from their records alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
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
_WAYS = {"forked": BLUE, "texts": ORANGE, "kept state": GREEN, "multi-item": PURPLE, "transformers": GREY}


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
        records: of `pallas_kernels.bench`. Of each op those of one commit are drawn, the newest that has any: kernels
            of several would look like one. Records that do not say which commit made them are left out.
        ops: a panel each.
    """
    with styled():
        timed = {op: _of_newest_commit([one for one in records if one.get("op") == op], "us_floor") for op in ops}
        most = max(map(len, timed.values()))
        figure, axes = panels(3.6 * len(ops), 1.5 + 0.3 * most, columns=len(ops))
        for panel, (op, found) in zip(axes, timed.items(), strict=True):
            rows = sorted(found, key=lambda record: record["us"])
            times, floors = ([record[name] for record in rows] for name in ("us", "us_floor"))
            panel.barh(range(len(rows)), times, facecolor=BLUE, height=0.62, label="measured")
            panel.barh(range(len(rows)), floors, facecolor=GREEN, height=0.62, label="least that the rates allow")
            for line, us in enumerate(times):
                panel.text(us, line, f" {us:.3g}", va="center", fontsize=8)
            panel.set_xlim(0, 1.16 * max(times, default=1.0))
            panel.set_yticks(range(len(rows)), [record["case"] for record in rows])
            panel.set_ylim(len(rows) - most - 0.6, len(rows) - 0.4)
            panel.set_title(op + (f" at {rows[0]['commit'][:7]}" if rows else ": not measured"))
            panel.set_xlabel("us, the sum of the launches")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=2)
    return Picture(figure)


def _of_newest_commit(records: Sequence[Record], field: str) -> list[Record]:
    """Of the newest commit that has this field, the last record of each case."""
    commits = [record["commit"] for record in records if record.get("commit") and record.get(field) is not None]
    of_commit = [record for record in records if commits and record.get("commit") == commits[-1]]
    return list(latest(of_commit, ("case",), having=[field]).values())


def draw_peers(records: Sequence[Record]) -> Picture:
    """Our kernels beside others on the same operands: time, and the error, of attention against float32 and of the
    recurrence against float64.

    Args:
        records: of `experiments/kernel_peers.py`; the last one of each case, op, mask and implementation is drawn,
            and of ours each variant. Bars are calls back to back, with the gaps between launches; a line in one is
            where its launches alone would end, where that was measured.
    """
    # The recurrence has no mask, and others are the same beside each variant of ours.
    peers = [
        {
            **record,
            "mask": f", {record['mask']} mask" if record.get("mask") else "",
            "variant": f" ({record['version']})" if record["by"] == "pallas" and record.get("version") else "",
        }
        for record in records
    ]
    last = latest(peers, ("case", "op", "mask", "by", "variant"), having=["us", "error"])
    cases = {case: sorted((key, one) for key, one in last.items() if key[0] == case)[::-1] for case, *_ in last}
    sizes = [len(rows) + 1.2 for rows in cases.values()]
    with styled():
        figure, axes = panels(
            8.2, 1.0 + 0.34 * sum(sizes), columns=2, rows=len(cases), width_ratios=[2, 1], height_ratios=sizes
        )
        most = max(record["error"] for record in last.values())
        for (case, rows), times, errors in zip(cases.items(), axes[::2], axes[1::2], strict=True):
            for line, ((*_, by, _), record) in enumerate(rows):
                colour = BLUE if by == "pallas" else ORANGE
                times.barh(line, record["us"], facecolor=colour, height=0.62)
                if record.get("us_launches") is not None:
                    times.plot([record["us_launches"]] * 2, [line - 0.31, line + 0.31], color="white", linewidth=1.4)
                times.text(record["us"], line, f" {record['us']:.0f}", va="center", fontsize=8)
                errors.plot(record["error"], line, "o" if by == "pallas" else "D", color=colour)
            names = [
                f"{op}{mask}: {'here' if by == 'pallas' else by}{variant}" for (_, op, mask, by, variant), _ in rows
            ]
            times.set_yticks(range(len(rows)), names)
            times.set_xlim(0, 1.12 * max(record["us"] for _, record in rows))
            times.set_title(case)
            errors.set_xlim(0, 1.25 * most)
            errors.set_yticks(range(len(rows)), [""] * len(rows))
            errors.set_ylim(times.get_ylim())
            errors.tick_params(left=False)
            errors.xaxis.set_major_formatter("{x:.3f}")
            errors.grid(axis="both", color=PALE, linewidth=0.5)
        times.set_xlabel("us, calls back to back; white: the launches alone")
        errors.set_xlabel("relative error")
    return Picture(figure)


def draw_ablation(records: Sequence[Record]) -> Picture:
    """A lone request and a full queue without each idea, in times of what they are with all; what was measured of it.

    Args:
        records: of `experiments/ablation.py`; of those with most ideas the last one is drawn.
    """
    record = max(reversed(records), key=lambda one: len(one["without"]))
    with_all, without = record["without"]["nothing"], {k: v for k, v in record["without"].items() if k != "nothing"}
    fields = {"lone_ms": "time of a lone request", "queued": "requests a second of a queue"}
    with styled():
        figure, axes = panels(7.4, 1.0 + 0.34 * len(without), columns=2, sharey=True)
        for panel, (field, title), colour in zip(axes, fields.items(), (ORANGE, BLUE), strict=True):
            panel.set_xscale("log", base=2)
            whole = with_all.get(field)
            ratios = {
                line: one[field] / whole
                for line, one in enumerate(without.values())
                if whole is not None and one.get(field) is not None
            }
            for line in range(len(without)):
                if line not in ratios:
                    panel.text(1, line, " not measured", va="center", fontsize=8, color=GREY)
                    continue
                ratio = ratios[line]
                panel.barh(line, ratio - 1, left=1, facecolor=colour, height=0.62)
                outside, shift = ("left", 3) if ratio >= 1 else ("right", -3)
                panel.annotate(
                    f"{ratio:.2f}", (ratio, line), (shift, 0), textcoords="offset points", va="center", ha=outside,
                    fontsize=8,
                )  # fmt: skip
            panel.axvline(1, color=INK, linewidth=0.8)
            panel.set_xlim(min([0.7, *ratios.values()]) / 1.35, max([1.4, *ratios.values()]) * 1.35)
            panel.xaxis.set_major_formatter("{x:g}")
            panel.set_title(title)
            panel.set_xlabel("times what it is with all ideas")
        axes[0].set_yticks(range(len(without)), [f"without {name}" for name in without])
        axes[0].invert_yaxis()
        _name(figure, record, record["workload"])
    return Picture(figure)


def draw_questions(records: Sequence[Record]) -> Picture:
    """Milliseconds against the questions about one state, a line for each way of asking.

    Args:
        records: of `experiments/questions_per_state.py`; the last one is drawn.
    """
    record = records[-1]
    rows = record["rows"]
    counts = [row["questions"] for row in rows]
    with styled():
        figure, (axes,) = panels(5.2, 3.0)
        for way, colour in _WAYS.items():
            times = {row["questions"]: row["ms"][way] for row in rows if row["ms"].get(way) is not None}
            if times:
                _draw_line(axes, times, colour, way)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(counts, counts)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.grid(axis="y", which="both", color=PALE, linewidth=0.5)
        axes.set_xlabel(f"questions about a state of {record['state']:,} tokens")
        axes.set_ylabel("ms of a request")
        axes.legend(loc="upper left")
        _name(figure, record)
    return Picture(figure)


def draw_parts(records: Sequence[Record]) -> Picture:
    """The device's time of one pass by what its launches are part of, a bar for each size and workload, by its time.

    Args:
        records: of `experiments/where_the_time_goes.py`; the last one of each size and workload is drawn.
    """
    last = latest(records, ("size", "workload"), having=["launches"])
    taken = {key: sum(us for _, us in record["launches"].values()) for key, record in last.items()}
    rows = sorted(last, key=lambda key: (key[0], taken[key]), reverse=True)
    names = [*dict.fromkeys(_PARTS.values()), _REST]
    colours = dict(zip(names, (BLUE, ORANGE, SKY, PURPLE, GREEN, GREY), strict=True))
    with styled():
        figure, (axes,) = panels(7.4, 1.1 + 0.42 * len(last))
        for line, record in enumerate(last[key] for key in rows):
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
        axes.set_yticks(range(len(rows)), [" ".join(key) for key in rows])
        axes.set_xlim(0, 1)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        legend = [Patch(facecolor=colours[name], label=name) for name in names]
        figure.legend(handles=legend, loc="outside upper center", ncols=len(names), handlelength=1, columnspacing=1)
    return Picture(figure)


def draw_serving(
    records: Sequence[Record], paper: Mapping[str, tuple[float | int, float | int]], *, model: str
) -> Picture:
    """Requests a second and the median latency against the clients of a server, a line for each number of front ends.

    Args:
        records: of `experiments/serve_load.py`; the last one of each workload, number of front ends and clients is
            drawn.
        paper: by workload, the paper's milliseconds for one client and its requests a second for 64.
        model: what is served, as the records name it.
    """
    served = [record for record in records if record.get("model") == model]
    last = latest(served, ("workload", "workers", "clients"), having=["requests_per_second", "median_ms"])
    workloads = [one for one in paper if any(workload == one for workload, _, _ in last)]
    colours = dict(zip(sorted({workers for _, workers, _ in last}), (BLUE, GREEN, PURPLE, SKY), strict=False))
    fields = {"requests_per_second": ("requests a second", 64, 1), "median_ms": ("ms, median", 1, 0)}
    with styled():
        figure, axes = panels(1.9 * len(workloads), 4.2, rows=2, columns=len(workloads), sharex=True)
        for number, panel in enumerate(axes):
            field, (name, clients, of_paper) = list(fields.items())[number // len(workloads)]
            workload = workloads[number % len(workloads)]
            for workers, colour in colours.items():
                found = {key[2]: one[field] for key, one in sorted(last.items()) if key[:2] == (workload, workers)}
                panel.plot(
                    [*found], [*found.values()], "o-", color=colour, markersize=3.5, label=f"{workers} front ends"
                )
            panel.plot(clients, paper[workload][of_paper], "D", color=ORANGE, markersize=6, label="paper")
            panel.set_xscale("log", base=2)
            panel.set_xticks(sorted({key[2] for key in last}), sorted({key[2] for key in last}))
            if number < len(workloads):
                panel.set_title(workload)
                panel.set_ylim(bottom=0)
            else:
                panel.set_xlabel("clients")
                panel.set_yscale("log")
                _few_ticks(panel)
            if number % len(workloads) == 0:
                panel.set_ylabel(name)
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    return Picture(figure)


def draw_growing(records: Sequence[Record]) -> Picture:
    """Milliseconds of a step against the history of its state (as the paper's Figure 5b), a panel for each size.

    A step that resumes, the same with the whole state computed, and a request without history that has as many tokens
    as the step computes.

    Args:
        records: of `experiments/growing_state.py`; the last one of each size and history is drawn, other cases are not.
    """
    last = latest(records, ("size", "case"), having=["step_ms", "whole_ms", "plain_ms"])
    steps = {key: record for key, record in last.items() if key[1].startswith("history ")}
    sizes = sorted({size for size, _ in steps})
    lines = {
        "whole_ms": ("whole state", ORANGE, "center"),
        "step_ms": ("resumed", BLUE, "bottom"),
        "plain_ms": ("no history", GREEN, "top"),
    }
    with styled():
        figure, axes = panels(3.7 * len(sizes), 3.0, columns=len(sizes))
        for panel, size in zip(axes, sizes, strict=True):
            found = {int(case.split()[1]): one for (of, case), one in steps.items() if of == size}
            found = dict(sorted(found.items()))
            for field, (name, colour, side) in lines.items():
                _draw_line(panel, {history: one[field] for history, one in found.items()}, colour, name, side=side)
            original = {history: one["original_ms"] for history, one in found.items() if one.get("original_ms")}
            if original:
                panel.plot([*original], [*original.values()], "D", color=INK, markersize=4, label="original, resumed")
            panel.set_ylim(bottom=0)
            panel.set_xlim(0, 1.25 * max(found))
            panel.set_xticks([0, *found], [f"{history:,}" for history in (0, *found)])
            panel.set_title(size)
            panel.set_xlabel("tokens of history")
        axes[0].set_ylabel("ms of a step")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    return Picture(figure)


def draw_kept_bits(records: Sequence[Record]) -> Picture:
    """The share of answers that have the bits that they have alone, in all ways of asking together, in both modes.

    Args:
        records: of `experiments/identical_bits.py`, one of each size, workload and mode; a panel for each size.
    """
    modes = {False: ("usual", ORANGE), True: ("batch-invariant", BLUE)}
    found = {(one["size"], one["workload"], one["batch_invariant"]): one["ways"].values() for one in records}
    sizes = sorted({size for size, _, _ in found})
    workloads = sorted({workload for _, workload, _ in found}, reverse=True)
    with styled():
        figure, axes = panels(3.9 * len(sizes), 1.2 + 0.42 * len(workloads), columns=len(sizes), sharey=True)
        for panel, size in zip(axes, sizes, strict=True):
            for mode, (_, colour) in modes.items():
                for line, workload in enumerate(workloads):
                    ways = found.get((size, workload, mode))
                    if ways is None:
                        continue
                    same, asked = (sum(way[place] for way in ways) for place in (0, 1))
                    y = line - 0.2 if mode else line + 0.2
                    panel.barh(y, same / asked, facecolor=colour, height=0.36)
                    panel.text(same / asked, y, f" {same:,} of {asked:,}", va="center", fontsize=7.5)
            panel.set_xlim(0, 1.45)
            panel.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
            panel.set_yticks(range(len(workloads)), workloads)
            panel.set_title(size)
            panel.set_xlabel("answers with the bits that they have alone")
        legend = [Patch(facecolor=colour, label=name) for name, colour in modes.values()]
        figure.legend(handles=legend, loc="outside upper center", ncols=2)
    return Picture(figure)


def _name(figure: Figure, record: Record, *more: str) -> None:
    """Write above a figure what its record is of."""
    figure.suptitle(", ".join([record["size"], *more, record["device"]]), x=0.01, ha="left", fontsize=9.5)


def _draw_line(axes: Axes, times: Mapping[int, float], colour: str, name: str, *, side: str = "center") -> None:
    """Milliseconds as a line, the last of them in figures behind it."""
    axes.plot([*times], [*times.values()], "o-", color=colour, markersize=4, label=name)
    end = max(times)
    axes.text(end, times[end], f" {times[end]:.3g} ms", va=side, fontsize=8)


def _few_ticks(axes: Axes) -> None:
    """1, 2 and 5 of each decade, on a logarithmic axis."""
    low, high = axes.get_ylim()
    ticks = [digit * 10.0**power for power in range(-1, 5) for digit in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_yticks(shown, [f"{tick:g}" for tick in shown])
    axes.set_yticks([], minor=True)
    axes.set_ylim(low, high)
