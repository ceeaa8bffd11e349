"""What the benchmark measures and refuses to; no time is looked at."""

import json
import re
from pathlib import Path

import jax
import pytest

from pallas_kernels import bench
from pallas_kernels.fork_attention import api, cases


def test_every_asked_case_is_measured_once(monkeypatch):
    measured = []
    monkeypatch.setattr(bench, "measure", lambda case, call: measured.append(case) or {})
    rows = list(bench.rows(["fork_attention"], ["multirc", "quality-all"], ["xla", "pallas"]))
    assert [(row["case"], row["implementation"]) for row in rows] == [
        (case, implementation) for case in ("multirc", "quality-all") for implementation in ("xla", "pallas")
    ]
    assert measured == [cases.CASES[row["case"]] for row in rows]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fork_attention", "--case", "multirk"], "no case multirk; there are .*multirc"),
        (["segmented_gdn", "--case", "multirc reads"], "no case multirc reads"),  # attention has such a case
        (["attention"], "no op attention; there are fork_attention"),
        (["--implementation", "cuda"], "no implementation cuda; there are pallas"),
    ],
)
def test_a_misspelt_name_is_refused_and_named(arguments, said, capsys):
    with pytest.raises(SystemExit):
        bench.main(arguments)
    assert re.search(said, capsys.readouterr().err)


def test_only_what_cannot_run_is_a_row_with_an_error(monkeypatch):
    def cannot(case, call):
        raise NotImplementedError("not on this card")

    def wrong(case, call):
        raise ValueError("shapes disagree")

    monkeypatch.setattr(bench, "measure", cannot)
    (row,) = bench.rows(["fork_attention"], ["multirc"], ["pallas"])
    assert row["error"] == "not on this card"
    (row,) = bench.rows(["matmul"], ["4B in 64"], ["triton"])
    assert row["error"] == "matmul has no triton"
    monkeypatch.setattr(bench, "measure", wrong)
    with pytest.raises(ValueError, match="shapes disagree"):
        list(bench.rows(["fork_attention"], ["multirc"], ["pallas"]))


def test_without_a_gpu_it_says_so():
    with pytest.raises(RuntimeError, match="benchmarks need a GPU"):
        bench.trace_launches(lambda: jax.numpy.zeros(1))


def test_records_go_to_the_file_of_the_checkout(monkeypatch, tmp_path, capsys):
    figures = dict.fromkeys(("us", "us_floor", "tflops", "gbs", "launches"), 1.0) | {"largest": {"kernel": 1.0}}
    monkeypatch.setattr(bench, "measure", lambda case, call: figures)
    monkeypatch.setattr(bench, "device_kind", lambda: "a card")
    assert bench.RECORDS == Path(__file__).parents[2] / "experiments/results/kernels.jsonl" and bench.RECORDS.is_file()
    monkeypatch.setattr(bench, "RECORDS", tmp_path / "kernels.jsonl")
    for _ in range(2):
        bench.main(["fork_attention", "--case", "multirc", "--case", "multirc any values"])
    records = [json.loads(line) for line in bench.RECORDS.read_text().splitlines()]
    assert [record["case"] for record in records] == 2 * ["multirc", "multirc any values"]
    assert records[0] | figures == records[0] and "commit" in records[0]
    monkeypatch.setattr(bench, "RECORDS", tmp_path / "not there" / "kernels.jsonl")
    bench.main(["fork_attention", "--case", "multirc"])
    assert len(list(tmp_path.iterdir())) == 1 and "multirc" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["multirc", "multirc any values"])
def test_attention_is_told_that_values_are_finite_but_in_one_case(name, monkeypatch):
    told = []
    monkeypatch.setitem(api.IMPLEMENTATIONS, "xla", lambda query, *_, finite, **__: told.append(finite) or query)
    operands = jax.eval_shape(cases.CASES[name].operands, jax.random.key(0))
    jax.eval_shape(cases.caller(cases.CASES[name], "xla"), *operands)
    assert told == [name == "multirc"]
