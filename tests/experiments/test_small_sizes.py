"""Every experiment that needs no accelerator runs in a small size, appends its records, and finds what must hold."""

import importlib
import json
import statistics
import subprocess

import numpy as np
import pytest

from experiments import (
    ablation,
    exactness,
    latency,
    measured_model,
    questions_per_state,
    random_checkpoint,
    records,
    rivals,
    serve_load,
    whole_texts,
)
from experiments.known_answers import reordered
from experiments.model_sizes import SIZES
from experiments.random_requests import random_plan
from flide_jax.engine import EngineConfig
from flide_jax.engine.model_directory import describe
from pallas_kernels.trees import Request

ARGUMENTS = {
    "exactness": "--trees 1 --seed 9",
    "fidelity": "--requests 1 --dtype bfloat16",
    "multi_item_scoring": "--requests 1",
    "ablation": "--repeats 1 --queued 1",
    "questions_per_state": "--repeats 1",
    "memory_use": "--capacities 128",
    "start_up": "--size 0.8B --capacities 256 --repeats 1",
    "latency": "--repeats 2 --queued 2 --workload race-one --request 250+1x75",
    "padding": "",
    "growing_state": "--repeats 1",
    "growing_state --replay": "1",
    "multi_item_scoring --size": "0.8B --workload race-one --repeats 1",
    "rivals": "--stories 2",
    "serve_load": "--size 0.8B --capacities 512 --workers 0 --clients 1 4 --seconds 0.3 --workload race-one",
}

# Where it is not the number that most draw with.
SEEDS = {
    "exactness": 9,
    "fidelity": "known answers",
    "multi_item_scoring": "known answers",
    "rivals": "the name of each relation",
}


@pytest.fixture
def run(tmp_path):
    """run(key of ARGUMENTS) -> the records that an experiment appended."""

    def experiment(key: str) -> list[dict]:
        name, *options = key.split()
        results = tmp_path / f"{name}.jsonl"
        module = importlib.import_module(f"experiments.{name}")
        returned = module.main([*options, *ARGUMENTS[key].split(), "--results", str(results)])
        appended = [json.loads(line) for line in results.read_text("utf-8").splitlines()]
        assert appended == json.loads(json.dumps(returned if isinstance(returned, list) else [returned]))
        for record in appended:
            assert record["device"] == "cpu" and record["versions"] and record["host"]["processors"] > 0
            assert record["arguments"]["results"] == results.name and record["seed"] == SEEDS.get(name, records.SEED)
            # The walk of the proof has no engine.
            assert name == "exactness" or record["config"]["capacities"] and record["config"]["dtype"]
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
    # bfloat16 rounds as far away from float32 as from float64.
    for row in ways.values():
        assert row["float32"]["tv"] == pytest.approx(row["tv"], rel=0.05) and row["float32"]["tv"] != row["tv"]


def test_multi_item_scoring(run):
    (record,) = run("multi_item_scoring")
    ways = record["ways"]
    assert ways["forked"]["largest"] < 1e-5 > ways["forked"]["reversed"]
    # A delimiter moves answers and no order does; the recurrence spares the first question alone.
    assert ways["forked, delimiters"]["reversed"] < 1e-5 < ways["forked, delimiters"]["moved"]
    for way in ("masked", "one text"):
        assert ways[way]["first"] < 1e-5 < min(ways[way]["moved"], ways[way]["reversed"])


def test_multi_item_scoring_of_a_true_size(run, two_layers, monkeypatch):
    monkeypatch.setitem(SEEDS, "multi_item_scoring", records.SEED)
    (record,) = run("multi_item_scoring --size")
    assert (record["size"], record["workload"]) == ("0.8B", "race-one") and len(record["ways"]) == 5
    assert all(row["ms"] > 0 and len(row["samples_ms"]) == 1 for row in record["ways"].values())


def test_ablation(run, two_layers):
    (record,) = run("ablation")
    assert list(record["without"]) == [name for name in ablation.WITHOUT if name != "command buffers"]
    assert record["config"]["capacities"] == [256, 768]
    for row in record["without"].values():
        assert row["moved"] < 1e-5 and row["lone_ms"] > 0 and row["queued"] > 0 and len(row["queued_samples_ms"]) == 3


def test_an_ablation_says_why_no_queue_was_timed():
    class TwoSeconds:
        def compile(self, *queues):
            pass

        def seconds(self, plans):
            return 2.0

    left_out = ablation.measure(TwoSeconds(), [None], queued=4, budget=5.0)
    assert left_out["queued"] is None and left_out["queued_samples_ms"] == []
    assert left_out["queued_left_out"] == "4 lone requests take longer than the budget of 5.0 s"
    timed = ablation.measure(TwoSeconds(), [None], queued=2, budget=5.0)
    assert (timed["queued"], timed["queued_samples_ms"], timed["queued_left_out"]) == (1.0, 3 * [2_000.0], None)


def test_growing_state(run, two_layers):
    near, far, known = run("growing_state")
    assert [row["case"] for row in (near, far, known)] == ["history 600", "history 1800", "recurring"]
    for row in (near, far, known):
        assert 0 < min(row["resumed"]) and max(row["computed"]) < 200
        assert len(row["whole_samples_ms"]) > 1 and len(row["plain_samples_ms"]) == 1 == len(row["samples_ms"]) - 2
        assert statistics.median(row["whole_samples_ms"]) == pytest.approx(row["whole_ms"], abs=1e-3)


def test_growing_state_of_an_agent(run, two_layers):
    (row,) = run("growing_state --replay")
    assert row["steps"] == 15 == len(row["samples_ms"]) == len(row["whole_samples_ms"])
    assert row["computed_tokens"] < 0.5 * row["tokens"]


def test_serve_load(run, two_layers, monkeypatch, capsys):
    monkeypatch.setitem(serve_load.PAPER, "race-one", (6.5, 678))
    one, four = run("serve_load")
    assert [(row["clients"], row["workers"], row["model"]) for row in (one, four)] == [(1, 0, "0.8B"), (4, 0, "0.8B")]
    for row in (one, four):
        assert row["requests"] == len(row["samples_ms"]) >= row["clients"] and row["config"]["capacities"] == [512]
        assert statistics.median(row["samples_ms"]) == pytest.approx(row["median_ms"], abs=0.01)
    *_, alone, together = capsys.readouterr().out.splitlines()
    assert alone.endswith(" 6.5 ms") and "678" not in together


def test_the_papers_figures_stand_beside_its_size_alone():
    row = dict.fromkeys(
        ("workers", "requests", "tokens", "median_ms", "p99_ms", "requests_per_second", "engine_ms", "added_ms"), 1
    )
    row |= {"workload": "race-one", "clients": 64}
    assert serve_load._line(row | {"model": "0.8B"}).endswith(" 672/s")
    assert "672" not in serve_load._line(row | {"model": "demo"})


@pytest.mark.parametrize(("backend", "size"), [("cpu", "demo"), ("gpu", "0.8B")])
def test_what_starts_processes_asks_one_for_the_backend(backend, size, monkeypatch):
    """The device stays theirs."""
    said = subprocess.CompletedProcess([], 0, stdout=f"{backend}\n")
    monkeypatch.setattr(random_checkpoint.subprocess, "run", lambda command, **_: said)
    assert serve_load.parse([]).size == size
    assert serve_load.parse(["--size", "4B"]).size == "4B" and serve_load.parse([]).tokenizer.is_dir()


def test_rivals(run, monkeypatch):
    monkeypatch.setattr(rivals, "ENGINE", EngineConfig(capacities=(256,)))
    (record,) = run("rivals")
    assert record["stories"] == 2 and list(record["relations"]) == list(rivals.RELATIONS)
    assert record["relations"]["where two people are"]["right"] == 1
    for row in record["relations"].values():
        given = [probability for story in row["samples"] for probability in story]
        assert len(given) == 4 and np.mean([one > 0.5 for one in given]) == row["right"]


def test_questions_per_state(run, two_layers):
    (record,) = run("questions_per_state")
    for row in record["rows"]:
        assert row["tokens"] == record["state"] + row["questions"] * record["question"]
        assert tuple(row["ms"]) == questions_per_state.CHOICES and min(row["ms"].values()) > 0
    assert record["left_out"] == {} and set(record["packages"]) >= {"torch", "transformers"}


def test_what_transformers_cannot_do_here_is_said(monkeypatch):
    assert whole_texts.left_out("0.8B") == "torch has no accelerator here, and a true size takes hours on a CPU"
    monkeypatch.setattr(whole_texts.importlib.util, "find_spec", lambda name: None if name == "torch" else name)
    assert whole_texts.left_out("demo") == "torch not installed"


def test_transformers_answers_every_question_as_a_text_of_its_own(tiny_model):
    architecture = describe(tiny_model).architecture
    plan = random_plan(Request(9, [4, 4, 4]), np.random.default_rng(0), vocabulary=architecture.vocabulary)
    texts = whole_texts.WholeTexts(architecture, most_tokens=26)
    found = texts.logits(plan)
    assert found.shape == (3, measured_model.LABELS)
    for row, index in zip(found, range(3), strict=True):
        np.testing.assert_allclose(texts.logits(reordered(plan, [index])), row[None], atol=1e-5)
    assert not np.allclose(found[0], found[1])


def test_memory_use(run):
    (record,) = run("memory_use")
    assert record["account"] > record["weights"] > 14e6  # the file of the demo model, in bfloat16
    assert [one["tokens"] for one in record["rounds"]] == [128]


def test_start_up(run, two_layers):
    (record,) = run("start_up")
    assert set(record["seconds"]) == {"compiled", "bundle", "served", "warm"} and record["bundle_mb"] > 0.1


def test_latency(run, two_layers):
    record, own = run("latency")
    assert own["workload"] == "250+1x75" and own["capacity"] == record["capacity"]
    assert (record["size"], record["workload"], record["dtype"]) == ("demo", "race-one", "float32")
    assert len(record["samples_ms"]) == 2 and list(record["queued"]) == ["2"] and "floor_ms" not in record
    assert 0 < record["host_ms"] < record["lone_ms"] and record["queued"]["2"] > 0
    assert record["device_share"] == record["busy_ms"] / record["lone_ms"]
    assert len(record["busy_samples_ms"]) == 3 == len(record["queued_samples_ms"]["2"])


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
