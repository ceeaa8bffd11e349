"""Figures and tables of records show what these say, and go without what they lack."""

import io
import json

import pytest
from rich.console import Console

from experiments import records
from experiments.serve_load import PAPER
from flide_jax.drawing.figures.results import (
    draw_ablation,
    draw_growing,
    draw_kept_bits,
    draw_kernels,
    draw_parts,
    draw_peers,
    draw_questions,
    draw_serving,
    draw_speed,
    latest,
)
from flide_jax.drawing.results import draw_fidelity, draw_memory_use, draw_multi_item, draw_start_up
from tests.drawing.words import texts


def printed(table) -> str:
    written = io.StringIO()
    Console(file=written, width=200).print(table)
    return written.getvalue()


def test_the_last_record_counts_and_other_studies_do_not():
    found = latest(
        [{"a": 1, "x": 1.0}, {"a": 2, "x": 2.0}, {"a": 1, "x": 3.0}, {"a": 1, "y": 4.0}, {"a": 1, "x": None}],
        ["a"],
        having=["x"],
    )
    assert {key: record["x"] for key, record in found.items()} == {(1,): 3.0, (2,): 2.0}


def test_results_are_of_the_card_and_of_what_an_engine_chooses(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    made = [
        {"n": 1, "device": records.CARD, "implementation": None},
        {"n": 2, "device": records.CARD, "implementation": {"matmul": "xla"}},
        {"n": 3, "device": records.CARD},
        {"n": 4, "device": "cpu", "implementation": None},
        {"n": 5, "device": records.CARD, "implementation": "pallas"},
    ]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(one) + "\n" for one in made))
    assert [record["n"] for record in records.results("x")] == [1, 3]
    assert [record["n"] for record in records.results("x", implementation="pallas")] == [5]


def test_a_small_run_is_no_news():
    made = [
        {"k": 1, "n": 9, "x": "a"},
        {"k": 1, "n": 9, "x": "b"},
        {"k": 1, "n": 2, "x": "c"},
        {"k": 2, "n": 1, "x": "d"},
    ]
    assert [record["x"] for record in records.largest(made, ("k",), by="n")] == ["b", "d"]


@pytest.mark.parametrize("original", [[2.0, 100], None])
def test_speed_of_any_records(original):
    made = [
        {"size": size, "workload": "w", "lone_ms": ms, "floor_ms": 0.5, "original": original}
        for size, ms in (("1B", 9.0), ("1B", 3.0), ("9B", 20.0))
    ]
    axes = draw_speed([*made, {"study": "another"}]).figure.axes
    assert [one.get_title(loc="left") for one in axes] == ["1B", "9B"]
    ours = [line for line in axes[0].lines if line.get_label() == "here"]
    assert [line.get_xdata().tolist() for line in ours] == [[3.0]]
    assert len([line for line in axes[0].lines if line.get_label() == "original engine"]) == (original is not None)


def ablation(**without):
    return {"size": "1B", "workload": "w", "device": "a card", "without": without}


def test_an_ablation_shows_what_was_measured():
    whole, slow = {"lone_ms": 2.0, "queued": 10.0}, {"lone_ms": 50.0, "queued": None}
    picture = draw_ablation([ablation(nothing=whole, forks={"lone_ms": 5.0, "queued": 4.0}, compilation=slow, more={})])
    assert texts(picture) == ["2.50", "25.00", " not measured", "0.40", " not measured", " not measured"]
    assert [one.get_text() for one in picture.figure.axes[0].get_yticklabels()][0] == "without forks"


def test_the_ablation_with_most_ideas_is_drawn():
    whole, part = {"lone_ms": 2.0, "queued": 10.0}, {"lone_ms": 3.0, "queued": 5.0}
    old, full = (ablation(nothing=whole, a={**part, "lone_ms": ms}, b=part) for ms in (4.0, 8.0))
    picture = draw_ablation([old, full, ablation(nothing=whole, a=part)])
    assert texts(picture)[0] == "4.00" and len(texts(picture)) == 4


def test_questions_go_without_a_way_that_is_missing():
    rows = [{"questions": n, "ms": {"forked": float(n), "texts": 2.0 * n if n < 4 else None}} for n in (1, 2, 4)]
    picture = draw_questions([{"size": "1B", "device": "a card", "state": 1_000, "rows": rows}])
    assert texts(picture) == [" 4 ms", " 4 ms"]
    assert [line.get_xdata().tolist() for line in picture.figure.axes[0].lines] == [[1, 2, 4], [1, 2]]


def test_kernels_are_of_one_commit():
    def timed(case, us, commit, op="a"):
        return {"op": op, "case": case, "us": us, "us_floor": 1.0, "commit": commit}

    made = [
        timed("old", 9.0, "0" * 40),
        timed("x", 5.0, "1" * 40),
        timed("x", 4.0, "1" * 40),
        timed("y", 7.0, "1" * 40),
    ]
    picture = draw_kernels([*made, timed("z", 3.0, None), timed("w", 2.0, "0" * 40, op="b")], ["a", "b"])
    assert texts(picture) == [" 4", " 7", " 2"]
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == ["a at 1111111", "b at 0000000"]


def test_parts_are_in_the_order_of_sizes_and_times():
    made = [
        {"size": size, "workload": workload, "launches": {"fork_attention_x": [1, us], "nvjet_y": [2, us]}}
        for size, workload, us in (("4B", "b", 50), ("0.8B", "a", 45), ("4B", "a", 40), ("0.8B", "b", 20))
    ]
    picture = draw_parts(made)
    lines = [label.get_text() for label in picture.figure.axes[0].get_yticklabels()]
    assert lines[::-1] == ["0.8B b", "0.8B a", "4B a", "4B b"]
    assert [word for word in texts(picture) if "ms" in word][::-1] == ["0.04 ms", "0.09 ms", "0.08 ms", "0.10 ms"]


def test_peers_have_a_panel_for_each_case_and_ours_a_line_for_each_variant():
    def timed(case, by, us, **changes):
        return {
            "op": "a",
            "case": case,
            "mask": "fork",
            "by": by,
            "us": us,
            "error": 0.1,
            "us_launches": None,
        } | changes

    ours = [timed("x", "pallas", 9.0), timed("x", "pallas", 2.0), timed("x", "pallas", 3.0, version="v")]
    others = [timed("x", "cudnn", 4.0), timed("x", "cudnn", 5.0, version="v"), timed("y", "pallas", 7.0, mask=None)]
    picture = draw_peers([*ours, *others])
    times = picture.figure.axes[::2]
    assert [axes.get_title(loc="left") for axes in times] == ["x", "y"]
    lines = [[label.get_text() for label in axes.get_yticklabels()] for axes in times]
    assert lines == [["a, fork mask: here (v)", "a, fork mask: here", "a, fork mask: cudnn"], ["a: here"]]
    assert texts(picture) == [" 3", " 2", " 5", " 7"]


def served(workers, clients, rate, **changes):
    record = {"workload": "race-one", "workers": workers, "clients": clients, "requests_per_second": rate}
    return record | {"median_ms": 1e3 * clients / rate, "model": "1B"} | changes


def test_serving_has_a_line_for_each_number_of_front_ends():
    made = [
        served(0, 1, 9.0),
        served(0, 1, 100.0),
        served(2, 1, 80.0),
        served(2, 64, 900.0),
        served(0, 64, 1.0, model="2B"),
    ]
    rates, latencies = draw_serving(made, {"race-one": (6.0, 700.0)}, model="1B").figure.axes
    assert {line.get_label(): line.get_ydata().tolist() for line in rates.lines} == {
        "0 front ends": [100.0],
        "2 front ends": [80.0, 900.0],
        "paper": [700.0],
    }
    assert [line.get_xdata().tolist() for line in latencies.lines] == [[1], [1, 64], [1]]


def test_growing_states_are_drawn_against_their_history():
    made = [
        {"size": "1B", "case": case, "step_ms": ms, "whole_ms": 9 * ms, "plain_ms": ms / 2, "original_ms": original}
        for case, ms, original in (("history 200", 2.0, 4.0), ("history 100", 1.0, None), ("recurring", 5.0, 6.0))
    ]
    (axes,) = draw_growing(made).figure.axes
    found = {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in axes.lines}
    assert found["resumed"] == ([100, 200], [1.0, 2.0]) and found["whole state"] == ([100, 200], [9.0, 18.0])
    assert found["original, resumed"] == ([200], [4.0])


def test_kept_bits_are_added_up():
    made = [
        {"size": "1B", "workload": "w", "batch_invariant": mode, "ways": {"a": [same, 4], "b": [same, 6]}}
        for mode, same in ((False, 1), (True, 4))
    ]
    picture = draw_kept_bits(made)
    assert texts(picture) == [" 2 of 10", " 8 of 10"]
    widths = [bar.get_width() for group in picture.figure.axes[0].containers for bar in group]
    assert widths == pytest.approx([0.2, 0.8])


def test_the_committed_records_can_be_drawn():
    kernels = records.results("kernels", implementation="pallas")
    assert texts(draw_kernels(kernels, ["fork_attention", "segmented_gdn"]))
    latency = records.results("latency")
    assert {one.get_title(loc="left") for one in draw_speed(latency).figure.axes} == {one["size"] for one in latency}
    peers, parts = records.results("kernel_peers"), records.results("where_the_time_goes")
    assert len(texts(draw_peers(peers))) >= len({(r["case"], r["op"], r.get("mask"), r["by"]) for r in peers})
    assert f"{sum(us for _, us in parts[-1]['launches'].values()) / 1e3:.2f} ms" in texts(draw_parts(parts))
    ideas = max(len(record["without"]) - 1 for record in records.results("ablation"))
    assert len(texts(draw_ablation(records.results("ablation")))) == 2 * ideas
    ways = records.results("questions_per_state")[-1]["rows"][-1]["ms"]
    assert len(texts(draw_questions(records.results("questions_per_state")))) == len(ways)
    assert len(draw_serving(records.results("serve_load"), PAPER, model="0.8B").figure.axes) == 2 * len(PAPER)
    assert texts(draw_growing(records.results("growing_state")))
    bits = records.largest(records.results("identical_bits"), ("size", "workload", "batch_invariant"), by="requests")
    assert len(texts(draw_kept_bits(bits))) == len(bits)


def test_the_committed_records_give_tables():
    fidelity = records.read(records.RESULTS / "fidelity.jsonl")
    assert printed(draw_fidelity(fidelity)).count("\n") == 1 + sum(len(record["ways"]) for record in fidelity)
    scoring = records.read(records.RESULTS / "multi_item_scoring.jsonl")
    assert "forked, delimiters" in printed(draw_multi_item(scoring))
    memory = records.results("memory_use")
    assert printed(draw_memory_use(memory)).count("tokens") == len({record["size"] for record in memory})
    assert "first answer, from a bundle" in printed(draw_start_up(records.results("start_up")))


def test_tables_show_the_last_of_each():
    rounds = [{"tokens": 64, "peak": 2**30, "process": None}, {"tokens": 128, "peak": 2**31, "process": 2**31}]
    made = [{"size": "1B", "weights": weights, "account": 2**30, "measured": rounds} for weights in (2**20, 2**21)]
    _, row = printed(draw_memory_use(made)).splitlines()
    assert row.split("  ")[0] == "1B" and "128 tokens" in row and "2.00 MiB" in row and row.rstrip().endswith("-")
    starts = [{"size": "1B", "capacities": [64], "seconds": {"bundle": s}} for s in (9.0, 3.0)]
    assert printed(draw_start_up(starts)).splitlines()[1].split()[-1] == "3.0"
    way = {"moved": 0.5, "changed": 0.25, "reversed": 0.125, "right": 0.75}
    scored = [
        {"size": "demo", "dtype": "float32", "device": "cpu", "requests": 3, "ways": {"forked": way, "masked": way}},
        {"size": "1B", "dtype": "bfloat16", "device": "a card", "workload": "w", "ways": {"forked": {"ms": 8.0}}},
    ]
    _, forked, masked, caption = printed(draw_multi_item(scored)).splitlines()
    assert forked.split()[1:] == ["5.0e-01", "25.0%", "1.2e-01", "75.0%", "8.00"] and masked.split()[-1] == "-"
    assert caption.strip() == "answers: demo, float32 on cpu; ms: 1B w on a card"
