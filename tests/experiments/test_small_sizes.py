"""Every experiment that needs no accelerator runs in a small size, appends its records, and finds what must hold."""

import importlib
import json

import pytest

from experiments import exactness

ARGUMENTS = {
    "exactness": "--trees 1 --seed 9",
    "fidelity": "--requests 1 --dtype bfloat16",
    "multi_item_scoring": "--requests 1",
    "ablation": "--without forks --repeats 1 --queued 1",
    "questions_per_state": "--repeats 1",
    "memory_use": "--capacities 128",
    "start_up": "--capacities 256",
}


@pytest.fixture
def run(tmp_path):
    """run(name) -> the records that an experiment appended."""

    def experiment(name: str) -> list[dict]:
        results = tmp_path / f"{name}.jsonl"
        module = importlib.import_module(f"experiments.{name}")
        returned = module.main([*ARGUMENTS[name].split(), "--results", str(results)])
        appended = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
        assert appended == json.loads(json.dumps(returned if isinstance(returned, list) else [returned]))
        assert all(record["device"] == "cpu" and record["versions"] for record in appended)
        return appended

    return experiment


def test_exactness(run):
    (record,) = run("exactness")
    assert exactness.holds(record)


def test_fidelity(run):
    (record,) = run("fidelity")
    ways = record["ways"]
    for way in ("alone", "forked", "kept state"):
        assert ways[way]["flip"] == 0 and 0 < ways[way]["tv"] < 5e-3
    assert ways["multi-item"]["tv"] > 10 * ways["alone"]["tv"]


def test_multi_item_scoring(run):
    (record,) = run("multi_item_scoring")
    ways = record["ways"]
    assert ways["forked"]["largest"] < 1e-5 > ways["forked"]["reversed"]
    # A delimiter moves answers and no order does; the recurrence spares the first question alone.
    assert ways["forked, delimiters"]["reversed"] < 1e-5 < ways["forked, delimiters"]["moved"]
    for way in ("masked", "one text"):
        assert ways[way]["first"] < 1e-5 < min(ways[way]["moved"], ways[way]["reversed"])


def test_ablation(run):
    (record,) = run("ablation")
    assert list(record["without"]) == ["nothing", "forks"]
    for row in record["without"].values():
        assert row["moved"] < 1e-5 and row["lone_ms"] > 0


def test_questions_per_state(run):
    (record,) = run("questions_per_state")
    for row in record["rows"]:
        assert row["tokens"] == record["state"] + row["questions"] * record["question"]
        assert list(row["ms"]) == ["forked", "texts", "kept state", "multi-item"] and min(row["ms"].values()) > 0


def test_memory_use(run):
    (record,) = run("memory_use")
    assert record["account"] > record["weights"] > 14e6  # the file of the demo model, in bfloat16
    assert [one["tokens"] for one in record["rounds"]] == [128]


def test_start_up(run):
    (record,) = run("start_up")
    assert set(record["seconds"]) == {"compiled", "bundle", "warm"} and record["bundle_mb"] > 0.1
