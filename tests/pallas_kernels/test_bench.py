"""What the benchmark measures and refuses to; no time is looked at."""

import re

import jax
import pytest

from pallas_kernels import bench
from pallas_kernels.fork_attention import cases


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
