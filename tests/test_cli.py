"""The command as a user meets it. Models are tiny and random, so that numbers mean nothing and everything else does."""

import errno
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flide_jax import verification
from flide_jax.cli import main, verify
from flide_jax.cli.arguments import DTYPES
from flide_jax.engine.config import DTypeName
from flide_jax.engine.growing import GrowingStates
from flide_jax.engine.program import Program
from flide_jax.prompts.format import PromptFormat

URGENT = {"type": "noul", "instructions": "Does this need a reply within the hour?"}
ACTION = {"type": "choice", "instructions": "What next?", "criteria": {"refund": "refund it", "a\u2028b\u0085": None}}
ANGER = {"type": "score", "criteria": ["calm", "angry"]}
REQUEST = {"model": "jev-latest", "state": "The screen is cracked.", "questions": {"ur gent": URGENT, "ä.b": ACTION}}


@pytest.fixture
def flide(capsys, monkeypatch):
    """flide(*arguments, stdin=b"") -> (exit status, standard output, standard error)"""
    # Terminals set it, and GNU readline does for every process that its own starts, the workers of pytest among them.
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:  # --help and --version
            status = ended.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def write(tmp_path):
    """write(name, *values) -> a file with one JSON value a line, or bytes as they are"""

    def create(name: str, *values: object) -> Path:
        lines = [v if isinstance(v, bytes) else json.dumps(v, ensure_ascii=False).encode() for v in values]
        (tmp_path / name).write_bytes(b"\n".join(lines))
        return tmp_path / name

    return create


@pytest.fixture
def break_answers(monkeypatch):
    """break_answers(state): requests about this state have logits that are not finite."""

    def fail_for(state: str) -> None:
        def fail(self, request, logits):
            if request.state == state:
                raise FloatingPointError("questions.q: the model's logits are not finite")
            return answers(self, request, logits)

        monkeypatch.setattr(PromptFormat, "answers", fail)

    answers = PromptFormat.answers
    return fail_for


def error_of(found: tuple[int, str, str]) -> str:
    """The message of a run that failed with one line on standard error and nothing on standard output."""
    status, out, err = found
    assert (status, out) == (2, "")
    assert err.startswith("flide-jax: error: ") and err.count("\n") == 1 and err.endswith("\n"), err
    return err.removeprefix("flide-jax: error: ").strip()


def test_help_and_version(flide):
    status, out, _ = flide("--help")
    assert status == 0
    assert all(command in out for command in ("ask", "verify", "inspect", "warm", "convert"))
    assert flide("--version")[:2] == (0, "flide-jax 0.1.0\n")
    ask = flide("ask", "--help")[1]
    assert '"questions"' in ask
    assert [line.split()[0] for line in ask.split("Exit status:\n")[1].splitlines()] == ["0", "1", "2", "130"]


def test_every_dtype_of_the_engine_has_its_name_and_its_tolerance():
    assert set(DTYPES) == set(get_args(DTypeName)) == set(verification.TOLERANCES)


class TestAsk:
    def test_json_is_one_exact_response_a_line(self, flide, write, tiny_model):
        status, out, err = flide("ask", write("r.json", REQUEST), "--model", tiny_model, "--json")
        assert (status, err) == (0, "")
        assert out.count("\n") == 1
        found = json.loads(out)
        assert found["model"] == tiny_model.name
        assert list(found["answers"]) == list(REQUEST["questions"])
        assert list(found["answers"]["ä.b"]["probabilities"]) == list(ACTION["criteria"])
        assert sum(found["answers"]["ä.b"]["probabilities"].values()) == pytest.approx(1)
        assert found["usage"]["output_tokens"] == 2
        # As many digits as a float64 has.
        assert len(repr(found["answers"]["ur gent"]["noul"])) > 12

    def test_json_is_utf8_and_a_table_is_what_the_terminal_can_show(self, write, tiny_model, monkeypatch):
        for options, word in ((["--json"], "ä.b"), ([], "?.b")):
            written = io.BytesIO()
            monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii"))
            assert main(["ask", str(write("r.json", REQUEST)), "--model", str(tiny_model), *options]) == 0
            assert word in written.getvalue().decode()

    def test_a_bad_row_does_not_lose_the_others(self, flide, write, tiny_model):
        raw = 'U+2028 "\u2028", U+0085 "\u0085" and \r are no ends of lines'
        rows = write("r.jsonl", REQUEST, b"", REQUEST | {"questions": {}}, b"\xff", b" \r", REQUEST | {"state": raw})
        status, out, err = flide("ask", rows, "--model", tiny_model, "--json")
        assert status == 2
        first, third, fourth, last = map(json.loads, out.removesuffix("\n").split("\n"))
        assert first.keys() == last.keys() == {"model", "answers", "usage"}
        assert third == {
            "error": {
                "row": 3,
                "location": ["questions"],
                "message": "questions: at least one question is required",
            }
        }
        assert fourth["error"]["row"] == 4
        assert [line.split(": ")[2] for line in err.splitlines()] == [f"{rows}:3", f"{rows}:4"]

    def test_rows_that_the_engine_refuses_fail_alone(self, flide, write, tiny_model, break_answers):
        break_answers("broken")
        long, broken = REQUEST | {"state": "word " * 1_000_000}, REQUEST | {"state": "broken"}
        rows = write("r.jsonl", long, broken, REQUEST)
        status, out, err = flide("ask", rows, "--model", tiny_model, "--json")
        first, second, third = map(json.loads, out.removesuffix("\n").split("\n"))
        assert status == 2
        assert "tokens" in first["error"]["message"] and "8192" in first["error"]["message"]
        assert second["error"]["message"] == "questions.q: the model's logits are not finite"
        assert "answers" in third
        assert err.count("\n") == 2

    def test_the_table_shows_every_option_and_no_colours(self, flide, tiny_model):
        request = {"state": "s", "questions": {"[bold]u\n\x1b[31m": URGENT, "anger": ANGER, "action": ACTION}}
        status, out, err = flide("ask", "-", "--model", tiny_model, stdin=json.dumps(request, indent=1).encode())
        assert (status, err) == (0, "")
        assert "\x1b" not in out
        assert r"[bold]u\n\x1b[31m" in out
        assert all(
            word in out for word in ("stdin", "yes", "no", "0: calm", "1: angry", "refund", r"a\u2028b\x85", "█")
        )

    def test_standard_input_holds_lines_too(self, flide, tiny_model):
        stdin = b"\n" + json.dumps(REQUEST).encode() + b'\n{"broken"\n'
        status, out, err = flide("ask", "-", "--model", tiny_model, "--json", stdin=stdin)
        assert status == 2
        assert [list(json.loads(line))[0] for line in out.removesuffix("\n").split("\n")] == ["model", "error"]
        assert "stdin:3: not JSON" in err


class TestVerify:
    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_forked_equals_alone(self, flide, write, tiny_model, dtype):
        rows = write("r.jsonl", REQUEST, REQUEST | {"state": "Other.", "questions": {"anger": ANGER}})
        status, out, _ = flide("verify", rows, "--model", tiny_model, "--dtype", dtype, "--per-question")
        assert status == 0
        assert all(name in out for name in ("ur gent", "ä.b", "anger", "r.jsonl:2", "largest |dp|", "same bits"))
        assert f"for {dtype}: within" in out

    def test_names_the_row_of_any_group(self, flide, write, tiny_model, monkeypatch):
        monkeypatch.setattr("flide_jax.cli.rows.ROWS_PER_GROUP", 1)
        rows = write("r.jsonl", *(REQUEST | {"questions": {f"q{i}": ANGER}} for i in (1, 2, 3)))
        _, out, _ = flide("verify", rows, "--model", tiny_model, "--per-question")
        assert [line.split()[:2] for line in out.splitlines()[1:4]] == [[f"r.jsonl:{i}", f"q{i}"] for i in (1, 2, 3)]

    def test_a_row_with_nan_does_not_lose_the_others(self, flide, write, tiny_model, break_answers):
        break_answers("broken")
        rows = write("r.jsonl", REQUEST, REQUEST | {"state": "broken"}, REQUEST | {"state": "Other."})
        status, out, err = flide("verify", rows, "--model", tiny_model, "--per-question")
        assert status == 2
        assert err == f"flide-jax: error: {rows}:2: questions.q: the model's logits are not finite\n"
        assert [line.split()[0] for line in out.splitlines()[1:5]] == ["r.jsonl:1"] * 2 + ["r.jsonl:3"] * 2
        assert "4, each forked and alone" in out and "within" in out

    def test_a_difference_past_the_tolerance_is_status_1(self, flide, write, tiny_model, monkeypatch):
        monkeypatch.setitem(verification.TOLERANCES, "float32", -1.0)
        status, out, _ = flide("verify", write("r.json", REQUEST), "--model", tiny_model, "--dtype", "float32")
        assert status == 1
        assert "EXCEEDED" in out

    def test_a_promise_of_the_same_bits(self, flide, write, tiny_model, monkeypatch):
        """Kept; then broken in the last row alone, which is status 1 and named."""
        rows = write("r.jsonl", *(REQUEST | {"state": state} for state in ("Other.", "A longer state, this.")))
        options = ("--model", tiny_model, "--capacities", "256", "512", "--batch-invariant")
        load, loaded = verify.load_engine, []

        def once(arguments):  # compiled once for both runs
            loaded.extend([] if loaded else [load(arguments)])
            return loaded[0]

        monkeypatch.setattr(verify, "load_engine", once)
        status, out, _ = flide("verify", rows, *options)
        assert status == 0 and "kept" in out and "4 of 4" in out
        assert loaded[0].program.batch_invariant and "not tried" not in out
        right = verify._compare_bits

        def wrong(*arguments):
            *others, (_, last) = right(*arguments)
            return [*others, ("r.jsonl:2, ä.b", replace(last, same=last.same - 1, first=(1, 1)))]

        monkeypatch.setattr(verify, "_compare_bits", wrong)
        status, out, _ = flide("verify", rows, *options)
        assert status == 1 and "BROKEN" in out and "r.jsonl:2, ä.b" in out

    def test_what_could_not_be_tried_is_said(self, flide, write, tiny_model):
        file = write("r.json", REQUEST)
        status, out, _ = flide("verify", file, "--model", tiny_model, "--capacities", 256, "--same-bits")
        assert status == 0 and "not tried" in out.split("in larger capacities")[1]

    def test_bits_that_nobody_promised(self, flide, write, tiny_model):
        rows = write("r.jsonl", *(REQUEST | {"state": " ".join(n * ["state"])} for n in range(20, 28)))
        status, out, _ = flide("verify", rows, "--model", tiny_model, "--capacities", "128", "1024", "--same-bits")
        assert status == 0
        assert "not given by this engine" in out
        assert "r.jsonl:" in out.split("all in rounds")[1]

    def test_a_bad_row_is_status_2(self, flide, write, tiny_model):
        status, out, err = flide("verify", write("r.jsonl", b"{}", REQUEST), "--model", tiny_model)
        assert status == 2
        assert "within" in out and err.count("\n") == 1


class TestPictures:
    def test_draws_the_first_round(self, flide, write, tmp_path, tiny_model):
        rows = write("r.jsonl", REQUEST, REQUEST | {"state": "Other."})
        status, _, err = flide("inspect", rows, "--model", tiny_model, "--png", tmp_path / "new" / "pictures")
        assert status == 0, err
        files = sorted((tmp_path / "new" / "pictures").iterdir())
        assert [file.name for file in files] == ["mask.png", "stream.png", "tiles.png", "tree.png"]
        assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)

    def test_a_long_round_has_no_mask(self, flide, write, tmp_path, tiny_model, monkeypatch):
        monkeypatch.setattr("flide_jax.cli.pictures._MOST_ROWS", 64)
        status, _, _ = flide("inspect", write("r.json", REQUEST), "--model", tiny_model, "--png", tmp_path / "p")
        assert status == 0 and {file.name for file in (tmp_path / "p").iterdir()} == {"stream.png", "tree.png"}

    def test_says_where_nothing_can_be_written(self, flide, write, tiny_model):
        file = write("r.json", REQUEST)
        status, _, err = flide("inspect", file, "--model", tiny_model, "--png", file)
        assert status == 2 and err.count("\n") == 1 and "r.json" in err

    def test_does_not_go_with_memory(self, flide):
        status, _, err = flide("inspect", "--demo", "--memory", "--png", "x")
        assert status == 2 and "--png" in err


class TestLadder:
    def test_climbs_to_the_server(self, flide, write, tiny_model):
        other = {"model": "another", "state": "Other.", "questions": {"anger": ANGER}}
        rows = write("r.jsonl", REQUEST, b"{}", other)
        status, out, err = flide("verify", rows, "--model", tiny_model, "--ladder", "--capacities", 256)
        assert status == 2 and err.count("\n") == 1 and "r.jsonl:2" in err
        rungs = "tokens forks company order padding checkpoints".split()
        lines = out.splitlines()[1:]
        assert [line.split()[0] for line in lines[:6]] == rungs
        assert [line.split("  ")[0] for line in lines[6:9]] == ["server, 0", "server, 1", "server, 2"]
        assert "float32: within" in out and "EXCEEDED" not in out

    def test_a_rung_past_the_tolerance_is_status_1(self, flide, write, tiny_model, monkeypatch):
        monkeypatch.setattr("flide_jax.cli.invariances._SERVERS", {})
        monkeypatch.setitem(verification.TOLERANCES, "float32", -1.0)
        status, out, _ = flide(
            "verify", write("r.json", REQUEST), "--model", tiny_model, "--ladder", "--capacities", 256
        )
        assert status == 1 and "float32: EXCEEDED" in out

    def test_does_not_go_with_lines_for_questions_nor_bits(self, flide):
        status, _, err = flide("verify", "--demo", "--ladder", "--per-question")
        assert status == 2 and "--per-question" in err
        for option in ("--same-bits", "--batch-invariant"):
            status, _, err = flide("verify", "--demo", "--ladder", option)
            assert status == 2 and "--ladder compares up to rounding" in err


class TestInspect:
    @pytest.fixture
    def without_weights(self, tmp_path, tiny_model):
        return shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))

    def test_draws_tree_and_stream_without_weights(self, flide, write, without_weights):
        questions = {f"question {i}": URGENT for i in range(48)}
        status, out, err = flide(
            "inspect", write("r.json", {"state": "s", "questions": questions}), "--model", without_weights
        )
        assert (status, err) == (0, "")
        assert "\x1b" not in out and max(map(len, out.splitlines())) <= 120
        # Each question stands in the tree once and in the stream once.
        assert out.count("question 47 ") == 2
        assert "1 of 64 requests, 48 of " in out

    @pytest.mark.parametrize("command", [["verify", "--per-question"], ["inspect"]])
    def test_no_directory_and_no_narrow_terminal_cuts_a_name(
        self, flide, write, tmp_path, tiny_model, monkeypatch, command
    ):
        monkeypatch.setenv("COLUMNS", "80")
        (tmp_path / ("d" * 200)).mkdir()
        rows = write(f"{'d' * 200}/r.jsonl", *[{"state": "s", "questions": {"alpha beta gamma": URGENT}}] * 2)
        status, out, err = flide(*command, rows, "--model", tiny_model)
        assert (status, err) == (0, "")
        assert max(map(len, out.splitlines())) <= 80
        # In the tree and the stream, or in the table and twice in the verdict; there it may stand on several lines.
        assert [out.count(word) for word in ("alpha", "beta", "gamma", "…")] == [4, 4, 4, 0]
        assert "r.jsonl:2" in out and "ddd" not in out

    def test_says_how_many_requests_form_rounds(self, flide, write, without_weights):
        rows = write("r.jsonl", *[REQUEST | {"state": "word " * 150}] * 20, b"{}")
        status, out, err = flide("inspect", rows, "--model", without_weights)
        assert status == 2
        assert f"{rows}:21: state: is required" in err
        assert "round 0" in out and "round 1" in out
        assert out.count("request 0") == 1 and "3 requests are not drawn" in out
        assert flide("inspect", rows, "--model", without_weights, "--all")[1].count("request 0") == 2


class TestMemory:
    def test_is_known_without_weights(self, flide, tiny_model, tmp_path):
        model = shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
        command = ["inspect", "--memory", "--model", model, "--capacities", 64, 128]
        status, out, err = flide(*command, "--json")
        assert (status, err, out.count("\n")) == (0, "", 1)
        found = json.loads(out)
        assert list(found) == [
            "dtype", "device", "batch_invariant", "weights", "checkpoints", "capacities", "peak"
        ]  # fmt: skip
        assert (found["dtype"], [one["tokens"] for one in found["capacities"]]) == ("float32", [64, 128])
        *_, largest = found["capacities"]
        assert found["peak"] == found["weights"] + sum(largest[name] for name in ("metadata", "temporaries", "outputs"))
        growing = json.loads(flide(*command[:-1], "--checkpoint-gb", 0.02, "--json")[1])
        assert [one["growing"] for one in growing["capacities"]] == [False, True]
        assert 10e6 < growing["checkpoints"] <= 20e6 < growing["peak"]
        status, out, err = flide(*command[:-1], "--dtype", "float64")
        assert (status, err) == (0, "")
        assert "weights float64" in out and "round of 64 tokens" in out and "peak" in out
        assert max(map(len, out.splitlines())) <= 80

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["FILE", "--memory"], "reads no requests, but FILE was given"),
            (["--memory", "--all"], "--all draws requests"),
            (["FILE", "--json"], "--json goes with --memory only"),
            (["FILE", "--dtype", "float32"], "--dtype goes with --memory only"),
            (["FILE", "--batch-invariant"], "--batch-invariant goes with --memory only"),
            (["FILE", "--checkpoint-gb", "1"], "--checkpoint-gb goes with --memory only"),
        ],
    )
    def test_options_that_do_not_go_together(self, flide, options, message):
        assert message in error_of(flide("inspect", "--demo", *options))


@pytest.fixture(scope="module")
def bundle(tiny_model, tmp_path_factory):
    """What `warm` made of the tiny model; read-only."""
    directory = tmp_path_factory.mktemp("warm") / "bundle"
    command = ["warm", "--model", tiny_model, "--capacities", 128, 256, "--bundle", directory]
    assert main([str(argument) for argument in command]) == 0
    return directory


class TestWarm:
    @pytest.mark.parametrize("command", [["ask", "--json"], ["ask"], ["verify", "--per-question"]])
    def test_the_output_is_the_same_with_the_bundle(self, flide, write, tiny_model, bundle, command):
        # FILE stands first, for --capacities takes whatever follows it.
        run = [command[0], write("r.json", REQUEST), *command[1:], "--model", tiny_model, "--capacities", 128, 256]
        status, out, err = flide(*run, "--bundle", bundle)
        assert (status, err) == (0, "")
        assert (status, out, err) == flide(*run)

    def test_says_what_it_made(self, flide, tiny_model, tmp_path):
        status, out, err = flide("warm", "--model", tiny_model, "--capacities", 64, "--bundle", tmp_path / "b")
        assert (status, err) == (0, "")
        heading, row, last = out.splitlines()
        assert heading.split() == ["capacity", "bytes"] and row.split()[0] == "64"
        assert last.startswith(f"{tmp_path / 'b'}: 1 executables, ")

    def test_a_bundle_of_something_else(self, flide, write, tiny_model, bundle):
        run = ["ask", write("r.json", REQUEST), "--model", tiny_model, "--bundle", bundle]
        found = error_of(flide(*run, "--dtype", "float64"))
        assert found == f'{bundle}: made for something else: dtype is "float64" here, "float32" in the bundle'
        assert error_of(flide(*run[:-1], "nowhere")).endswith("nowhere: No such file or directory")

    def test_bad_arguments(self, flide, tiny_model, bundle, tmp_path):
        model = ["--model", tiny_model]
        assert "--bundle" in error_of(flide("warm", *model))
        assert "which model?" in error_of(flide("warm", "--bundle", tmp_path / "b"))
        assert "is not empty" in error_of(flide("warm", *model, "--bundle", bundle))
        for capacities in ([128, 64], [0]):
            found = error_of(flide("warm", *model, "--bundle", tmp_path / "b", "--capacities", *capacities))
            assert found.startswith("capacities must be ascending positive token counts")
        assert "invalid int" in error_of(flide("warm", *model, "--bundle", tmp_path / "b", "--capacities", "many"))
        assert not (tmp_path / "b").exists()


class TestConvert:
    def test_a_converted_model_answers_the_same(self, flide, write, tiny_model, tmp_path):
        out = tmp_path / "out" / tiny_model.name  # a model is called what its directory is called
        assert flide("convert", "--model", tiny_model, "--out", out) == (
            0,
            f"{out}: converted; give it as --model\n",
            "",
        )
        ask = ["ask", write("r.json", REQUEST), "--json", "--model"]
        assert flide(*ask, out) == flide(*ask, tiny_model)

    def test_bad_arguments(self, flide, tiny_model, tmp_path):
        assert "--out" in error_of(flide("convert", "--model", tiny_model))
        assert "which model?" in error_of(flide("convert", "--out", tmp_path / "out"))
        assert "is not empty" in error_of(flide("convert", "--model", tiny_model, "--out", tiny_model))
        assert "no such directory" in error_of(flide("convert", "--model", "./nowhere", "--out", tmp_path / "out"))


class TestCheckpoints:
    def test_rows_resume_what_rows_before_them_left(self, flide, write, tiny_model):
        """In one group of rows: two agents in turn, and one whose salt is another."""
        states = [f"The {what} was sent back again. " * times for times in (80, 85, 90) for what in ("lamp", "bed")]
        rows = [*(REQUEST | {"state": state} for state in states), REQUEST | {"state": states[0], "x_cache_salt": "b"}]
        run = ["ask", write("r.jsonl", *rows), "--model", tiny_model, "--capacities", 1024, "--json"]
        status, out, err = flide(*run, "--checkpoint-gb", 0.1)
        assert (status, err) == (0, "")
        resumed = [json.loads(line)["usage"].get("x_cached_tokens", 0) for line in out.split("\n")[:-1]]
        assert [tokens > 0 for tokens in resumed] == [False] * 2 + [True] * 4 + [False]
        assert "x_cached_tokens" not in flide(*run)[1]

    def test_a_field_without_its_prefix_is_said_to_be_ignored(self, flide, write, tiny_model):
        rows = [REQUEST | {"cache_salt": "a"}, REQUEST | {"x_cache_salt": "a", "cache_salt": "a", "mine": 1}]
        file = write("r.jsonl", *rows)
        status, _, err = flide("inspect", file, "--model", tiny_model)
        assert status == 0
        ignored = "cache_salt is ignored, as no field of System One; the one of this package is x_cache_salt"
        assert err == f"flide-jax: {file}:1: {ignored}\n"

    @pytest.mark.parametrize("command", ["ask", "verify", "verify --ladder", "warm", "serve --port 0"])
    def test_too_few_bytes_for_them(self, flide, write, tmp_path, tiny_model, command):
        run = [*command.split(), "--model", tiny_model, "--capacities", 64, "--checkpoint-gb", 0.001]
        file = {"ask": [write("r.json", REQUEST)], "verify": [write("r.json", REQUEST)]}.get(command.split()[0], [])
        bundle = ["--bundle", tmp_path / "bundle"] if command == "warm" else []
        status, out, err = flide(*run[:1], *file, *run[1:], *bundle)
        assert (status, out) == (2, "") and "Traceback" not in err
        *said, last = err.splitlines()
        message = r"flide-jax: error: checkpoints of this model take [\d,]+ bytes at least, got 1,000,000"
        assert re.fullmatch(message, last)
        assert not any("error" in line for line in said)
        assert not (tmp_path / "bundle").exists()

    def test_too_few_bytes_on_the_host(self, flide, write, tiny_model):
        run = [
            "ask",
            write("r.json", REQUEST),
            "--model",
            tiny_model,
            "--capacities",
            64,
            "--checkpoint-host-gb",
            0.001,
        ]
        found = error_of(flide(*run))
        assert found == "--checkpoint-host-gb is for checkpoints that were on the device: give --checkpoint-gb too"
        status, _, err = flide(*run, "--checkpoint-gb", 0.1)
        assert status == 2 and err.endswith(" bytes at least, got 1,000,000\n") and "Traceback" not in err

    @pytest.mark.parametrize(
        ("place", "command"),
        [
            *(("device", command) for command in ("ask", "verify --ladder", "warm", "serve --port 0")),
            *(("host", command) for command in ("ask", "serve --port 0")),
        ],
    )
    def test_more_bytes_than_the_machine_has(self, flide, write, tmp_path, tiny_model, command, place):
        name, *options = command.split()
        budgets = {"--checkpoint-gb": 0.1} | {f"--checkpoint{'-host' if place == 'host' else ''}-gb": 1_000_000}
        options += [*itertools.chain(*budgets.items()), *(["--bundle", tmp_path / "b"] if name == "warm" else [])]
        file = [write("r.json", REQUEST)] if name in ("ask", "verify") else []
        status, out, err = flide(name, *file, "--model", tiny_model, "--capacities", 64, *options)
        assert (status, out) == (2, "") and "Traceback" not in err
        message = rf"flide-jax: error: checkpoints cannot have [\d,]+ bytes of the {place}, which has [\d,]+ in all"
        assert re.fullmatch(message, err.splitlines()[-1])

    def test_memory_that_others_took(self, flide, write, tiny_model, monkeypatch):
        def full(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory\nallocating")

        monkeypatch.setattr(GrowingStates, "_empty", full)
        options = ["--model", tiny_model, "--capacities", 64, "--checkpoint-gb", 0.1]
        found = error_of(flide("ask", write("r.json", REQUEST), *options))
        assert (
            found == "there is no room for checkpoints beside the weights: RESOURCE_EXHAUSTED: Out of memory allocating"
        )

    @pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e300", "1e400", "much"])
    def test_what_is_no_number_of_bytes(self, flide, tiny_model, value):
        found = error_of(flide("warm", "--model", tiny_model, "--bundle", "b", f"--checkpoint-gb={value}"))
        assert found.startswith(f"argument --checkpoint-gb: must be a number, 0 or more, got '{value}'")


def test_a_request_over_the_largest_capacity_is_said_in_one_line(flide, write, tiny_model):
    rows = write("r.jsonl", *[REQUEST | {"state": "word " * 150}] * 2)
    status, out, err = flide("ask", rows, "--json", "--model", tiny_model, "--capacities", 64)
    assert (status, out.count("\n"), err.count("\n")) == (0, 2, 1)
    assert err.startswith("flide-jax: a request does not fit into the largest capacity (64 tokens)")


class TestBadInput:
    def test_arguments(self, flide, write):
        file = write("r.json", REQUEST)
        assert "which requests?" in error_of(flide("ask", "--model", "somewhere"))
        assert "which model?" in error_of(flide("ask", file))
        assert "not allowed with" in error_of(flide("ask", file, "--demo", "--model", "m"))
        assert "bfloat16" in error_of(flide("ask", file, "--demo", "--dtype", "int8"))
        assert "COMMAND" in error_of(flide())
        assert "from 1 to 64, got '0'" in error_of(flide("warm", "--demo", "--bundle", "b", "--processes", 0))

    def test_files(self, flide, write, tmp_path):
        for file, message in (
            (tmp_path / "nowhere.json", "nowhere.json: No such file"),
            (tmp_path, f"{tmp_path}: Is a directory"),
            (write("empty.json"), "empty.json: empty"),
            (write("empty.jsonl", b" ", b"\r"), "empty.jsonl: no request"),
            (write("utf8.json", b'{"state": "\xe9"}'), "utf8.json: not UTF-8: byte 0xe9 at offset 11"),
            (write("lines.json", {}, {}), "lines.json: not JSON: Extra data: line 2"),
            (write("array.json", [REQUEST]), "array.json: must be an object, got an array"),
            (write("none.json", REQUEST | {"questions": {}}), "none.json: questions: at least one"),
        ):
            assert message in error_of(flide("ask", file, "--demo", "--json"))
        assert error_of(flide("ask", "-", "--demo")) == "stdin: no request in it"
        assert "stdin: not JSON" in error_of(flide("ask", "-", "--demo", stdin=b'{"state":\n"s"'))

    def test_an_endless_message_is_cut(self, flide, write):
        request = {"state": "s", "questions": {"q" * 10**6: {"type": "box"}}}
        assert len(error_of(flide("ask", write("r.json", request), "--demo"))) < 1_100

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            (lambda path: (path / "config.json").unlink(), "config.json"),
            (lambda path: (path / "config.json").write_text('{"model_type": "llama"}'), "model_type 'llama'"),
            (lambda path: truncate(path / "model.safetensors"), "model.safetensors"),
            (lambda path: put_nan(path / "model.safetensors"), "NaN or infinite values in"),
            (lambda path: forget_words(path / "tokenizer.json"), "the label 'yes'"),
            (lambda path: (path / "tokenizer.json").unlink(), "tokenizer.json"),
            (lambda path: shutil.rmtree(path), "no such directory"),
        ],
    )
    def test_checkpoints(self, flide, write, tmp_path, tiny_model, damage, message, monkeypatch):
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        model = shutil.copytree(tiny_model, tmp_path / "model")
        damage(model)
        found = error_of(flide("ask", write("r.json", REQUEST), "--model", model))
        assert message in found
        assert str(model) in found

    def test_a_device_that_is_full(self, flide, write, tiny_model, monkeypatch):
        def fail(*_: object) -> None:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\nBuffers: ...")

        monkeypatch.setattr(Program, "load", fail)
        found = error_of(flide("ask", write("r.json", REQUEST), "--model", tiny_model))
        assert found == "the device has no room: RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes."

    def test_an_error_of_the_system_is_not_one_of_standard_output(self, flide, monkeypatch):
        def fail(*_: object) -> None:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr("flide_jax.cli.run.read_groups", fail)
        assert error_of(flide("ask", "-", "--demo")) == "[Errno 24] Too many open files"

    def test_standard_error_that_cannot_be_written_loses_no_answer(self, flide, write, tiny_model, monkeypatch):
        class Full(io.StringIO):
            def write(self, text: str) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("sys.stderr", Full())
        status, out, _ = flide("ask", write("r.jsonl", b"{}", REQUEST), "--model", tiny_model, "--json")
        assert status == 2
        assert [list(json.loads(line))[0] for line in out.removesuffix("\n").split("\n")] == ["error", "model"]

    @pytest.mark.parametrize("seconds", [1.5, 3.0])
    def test_an_interrupt_ends_it_at_any_time(self, write, tiny_model, seconds):
        """Also while libraries are imported, where an exception may be lost."""
        command = [sys.executable, "-m", "flide_jax", "ask", "-", "--model", str(tiny_model)]
        pipes = {name: subprocess.PIPE for name in ("stdin", "stdout", "stderr")}
        with subprocess.Popen(command, **pipes) as process:  # it waits for requests
            time.sleep(seconds)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (130, b"", b"flide-jax: error: interrupted\n")


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def put_nan(file: Path) -> None:
    tensors = load_file(file)
    tensors["model.norm.weight"] = np.full_like(tensors["model.norm.weight"], np.nan)
    save_file(tensors, file)


def forget_words(file: Path) -> None:
    tokenizer = json.loads(file.read_text("utf-8"))
    tokenizer["model"]["merges"] = []
    file.write_text(json.dumps(tokenizer), "utf-8")


class TestProcess:
    """What only a process of its own shows: its standard streams, and what the interpreter says as it ends."""

    @staticmethod
    def run(shell: str, *arguments: object, **options) -> subprocess.CompletedProcess:
        words = [sys.executable, "-m", "flide_jax", *map(str, arguments)]
        # Unbuffered, a write fails at once; buffered, it may fail as late as at the end.
        buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        return subprocess.run(["sh", "-c", shell, *words], capture_output=True, timeout=120, env=buffered, **options)

    def test_invalid_utf8_on_standard_input(self):
        found = self.run('exec "$0" "$@"', "ask", "-", "--demo", input=b'{"state": "\xff"}')
        assert (found.returncode, found.stdout) == (2, b"")
        assert found.stderr == b"flide-jax: error: stdin: not UTF-8: byte 0xff at offset 11\n"

    def test_standard_output_is_closed(self):
        found = self.run('exec "$0" "$@" >&-', "ask", "--demo")
        assert (found.returncode, found.stderr) == (2, b"flide-jax: error: stdout: closed\n")

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full disk to offer")
    def test_the_disk_is_full(self):
        found = self.run('exec "$0" "$@" >/dev/full', "--help")
        assert (found.returncode, found.stderr) == (2, b"flide-jax: error: stdout: No space left on device\n")

    def test_the_reader_leaves(self):
        found = self.run('{ "$0" "$@"; echo "status $?" >&2; } | true', "--help")
        assert found.stderr == b"status 2\n"


@pytest.mark.parametrize("options", [["ask"], ["ask", "--json"], ["verify"], ["inspect"]])
def test_a_reader_that_left_ends_every_command_without_a_word(flide, write, tiny_model, monkeypatch, options):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        assert flide(*options, write("r.json", REQUEST), "--model", tiny_model) == (2, "", "")
