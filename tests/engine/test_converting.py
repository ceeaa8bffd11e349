"""A converted model is the model, in every dtype and to the last bit."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.model_directory import describe
from flide_jax.engine.program import Program
from flide_jax.models import converted
from flide_jax.models.checkpoint_files import CheckpointError
from tests.engine.requests import REQUESTS


def convert(directory: Path, out: Path) -> None:
    Program.of(describe(directory), EngineConfig()).convert(directory, out)


@pytest.fixture(scope="session")
def made(tiny_model, tmp_path_factory) -> Path:
    """The converted tiny model; read-only."""
    out = tmp_path_factory.mktemp("converted") / "new" / "model"
    convert(tiny_model, out)
    return out


@pytest.fixture
def copy(made, tmp_path) -> Path:
    """A converted model that a test may break."""
    return shutil.copytree(made, tmp_path / "model")


def error_of(directory: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        Engine.load(directory, EngineConfig(dtype="float32"))
    assert "\n" not in str(caught.value) and str(directory) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_the_parameters_have_the_same_bits(made, tiny_model, dtype):
    config = EngineConfig(dtype=dtype)
    found, expected = (Engine.load(directory, config).executables.params for directory in (made, tiny_model))
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert one.dtype == other.dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_the_answers_have_the_same_bits(made, engine):
    assert Engine.load(made, engine.config).answer_all(REQUESTS) == engine.answer_all(REQUESTS)


def test_nothing_is_fused_or_read_from_safetensors(made, monkeypatch):
    monkeypatch.setattr("flide_jax.models.loading.TensorFiles", None)
    assert not list(made.glob("*.safetensors"))
    assert converted.is_converted(made)
    Engine.load(made, EngineConfig(dtype="float32"))


def test_parameters_keep_the_dtype_of_the_files(made, tiny_model):
    """bfloat16 matrices, as in the checkpoint: a conversion to float32 would double them."""
    stored = sum(file.stat().st_size for file in (made / converted.PARAMETERS).rglob("*") if file.is_file())
    assert stored < 1.1 * (tiny_model / "model.safetensors").stat().st_size


def test_only_new_or_empty_directories(made, tiny_model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is not empty"):
        convert(tiny_model, tmp_path)
    with pytest.raises(CheckpointError, match="file: File exists"):
        convert(tiny_model, tmp_path / "file")
    with pytest.raises(CheckpointError, match="is a converted model already"):
        convert(made, tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_broken_checkpoint_is_not_converted(tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(CheckpointError, match="missing model.safetensors"):
        convert(model, tmp_path / "out")
    assert not converted.is_converted(tmp_path / "out")


class TestRefused:
    def test_another_tokenizer(self, copy):
        manifest = json.loads((copy / converted.MANIFEST).read_text())
        manifest["label_ids"][0] += 1
        (copy / converted.MANIFEST).write_text(json.dumps(manifest))
        assert "must be converted again: the tokenizer or" in error_of(copy)

    def test_another_size(self, copy):
        config = json.loads((copy / "config.json").read_text())
        config["intermediate_size"] += 1
        (copy / "config.json").write_text(json.dumps(config))
        assert "must be converted again: config.json describes a model of other sizes" in error_of(copy)

    def test_other_code(self, copy, monkeypatch):
        monkeypatch.setattr(converted, "_sources_of", lambda *functions: "other")
        assert error_of(copy).endswith(
            "must be converted again: this version of flide-jax may fuse tensors in another way"
        )

    @pytest.mark.parametrize(
        ("content", "message"),
        [("{", "not the manifest"), ("[]", "it holds no object"), ('{"format": 0}', "format 0 cannot be read, only 1")],
    )
    def test_the_manifest(self, copy, content, message):
        (copy / converted.MANIFEST).write_text(content)
        assert message in error_of(copy)

    def test_parameters_that_are_not_there(self, copy):
        shutil.rmtree(copy / converted.PARAMETERS)
        assert f"{copy / converted.PARAMETERS}: cannot be read: " in error_of(copy)

    def test_parameters_that_are_damaged(self, copy):
        """In a process of its own: orbax leaves reads behind that fail later, in other threads."""
        for file in (copy / converted.PARAMETERS).rglob("d/*"):
            file.write_bytes(file.read_bytes()[:-10])
        command = [sys.executable, "-m", "flide_jax", "ask", "-", "--model", str(copy)]
        request = json.dumps({"state": "s", "questions": {"q": {"type": "noul", "instructions": "Is it?"}}})
        done = subprocess.run(command, input=request, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"flide-jax: error: {copy / converted.PARAMETERS}: cannot be read: " in done.stderr

    def test_parameters_of_another_model(self, copy, made, tiny_model, monkeypatch, tmp_path):
        program = Program.of(describe(tiny_model), EngineConfig())
        smaller = dataclasses.replace(program, label_ids=program.label_ids[:-1])
        smaller.convert(tiny_model, tmp_path / "smaller")
        shutil.rmtree(copy / converted.PARAMETERS)
        shutil.copytree(tmp_path / "smaller" / converted.PARAMETERS, copy / converted.PARAMETERS)
        assert "not the parameters that" in error_of(copy)
