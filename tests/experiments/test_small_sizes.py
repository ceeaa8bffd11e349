"""Every experiment that needs no accelerator runs in a small size, appends its records, and finds what must hold."""

import importlib
import json

import pytest

from experiments import exactness, latency, measured_model
from experiments.model_sizes import SIZES
from flide_jax.engine.model_directory import describe

ARGUMENTS = {
    "exactness": "--trees 1 --seed 9",
    "fidelity": "--requests 1 --dtype bfloat16",
    "multi_item_scoring": "--requests 1",
    "ablation": "--without forks --repeats 1 --queued 1",
    "questions_per_state": "--repeats 1",
    "memory_use": "--capacities 128",
    "start_up": "--size 0.8B --capacities 256 --repeats 1",
    "latency": "--repeats 2 --queued 2",
    "padding": "",
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


@pytest.fixture
def two_layers(tiny_model, monkeypatch):
    """In place of the demo model and of a true size, where no answer matters: a program compiles a quarter as long."""
    monkeypatch.setattr(measured_model, "demo_directory", lambda: tiny_model)
    monkeypatch.setitem(SIZES, "0.8B", describe(tiny_model).architecture)


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


def test_ablation(run, two_layers):
    (record,) = run("ablation")
    assert list(record["without"]) == ["nothing", "forks"]
    for row in record["without"].values():
        assert row["moved"] < 1e-5 and row["lone_ms"] > 0


def test_questions_per_state(run, two_layers):
    (record,) = run("questions_per_state")
    for row in record["rows"]:
        assert row["tokens"] == record["state"] + row["questions"] * record["question"]
        assert list(row["ms"]) == ["forked", "texts", "kept state", "multi-item"] and min(row["ms"].values()) > 0


def test_memory_use(run):
    (record,) = run("memory_use")
    assert record["account"] > record["weights"] > 14e6  # the file of the demo model, in bfloat16
    assert [one["tokens"] for one in record["rounds"]] == [128]


def test_start_up(run, two_layers):
    (record,) = run("start_up")
    assert set(record["seconds"]) == {"compiled", "bundle", "served", "warm"} and record["bundle_mb"] > 0.1


def test_latency(run, two_layers):
    (record,) = run("latency")
    assert (record["size"], record["workload"], record["dtype"]) == ("demo", "race-one", "float32")
    assert len(record["samples_ms"]) == 2 and list(record["queued"]) == ["2"] and "floor_ms" not in record
    assert 0 < record["host_ms"] < record["lone_ms"] and record["queued"]["2"] > 0


def test_latency_of_a_true_size_is_refused_on_a_cpu(capsys):
    with pytest.raises(SystemExit) as stopped:
        latency.main(["--size", "0.8B"])
    assert stopped.value.code == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .endswith("error: a true size takes hours on a CPU: --size demo, or an --implementation if it is meant")
    )


def test_padding(run):
    found = {record["profile"]: record for record in run("padding")}
    assert len(found) == 8 and found["multirc"]["requests"] == 83
    for record in found.values():
        assert 0 < record["queued"] < 0.05 and 0 < record["alone_rows"] < 0.1


@pytest.mark.parametrize("name", ["where_the_time_goes", "kernel_peers", "attention_in_a_pass"])
def test_what_needs_a_gpu_says_so_at_once(name, tmp_path, capsys):
    results = tmp_path / "results.jsonl"
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"experiments.{name}").main(["--results", str(results)])
    assert stopped.value.code == 2 and not results.exists()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith("error: needs a GPU, whose launches it measures; the device here is cpu")


@pytest.mark.parametrize("given", ["xla", '"cuda"', '{"attention": "xla"}'])
def test_an_implementation_that_is_none(given, capsys):
    with pytest.raises(SystemExit) as stopped:
        latency.main(["--implementation", given])
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "argument --implementation: must be a name, or names by op, in JSON: " in last


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "many"])
@pytest.mark.parametrize("option", ["fidelity --requests", "exactness --trees", "latency --queued"])
def test_a_count_is_at_least_one(option, count, capsys):
    name, option = option.split()
    with pytest.raises(SystemExit) as stopped:
        importlib.import_module(f"experiments.{name}").main([option, count])
    assert stopped.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"argument {option}: must be a whole number from 1, got {count!r}")
