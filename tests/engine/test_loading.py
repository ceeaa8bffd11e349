"""What an engine refuses before it answers, in one line."""

import shutil

import huggingface_hub
import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.models.checkpoint_files import CheckpointError


@pytest.fixture
def offline(monkeypatch):
    """The hub's client fails as it does without a network, in more than one line."""

    def fail(model, **_):
        raise ConnectionError(f"no network for {model}\nand a second line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


@pytest.mark.parametrize("model", ["nobody/no-such-model", "no such model"])
def test_a_model_that_is_nowhere(model, offline):
    with pytest.raises(CheckpointError) as caught:
        Engine.load(model)
    message = str(caught.value)
    reason = f"no network for {model} and a second line"
    assert message == f"{model}: not a directory, and the hub gave no such model: {reason}"


@pytest.mark.parametrize("model", ["/no/such/directory", "./nowhere"])
def test_a_path_is_not_looked_for_in_the_hub(model, offline):
    with pytest.raises(CheckpointError, match="no such directory$"):
        Engine.load(model)


def test_the_hub_gives_weights_and_text_files_only(tiny_model, monkeypatch):
    """No pickles, and no code."""
    asked = {}

    def download(model, **options):
        asked.update({name: set(patterns) for name, patterns in options.items()}, model=model)
        return str(tiny_model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert Engine.load("owner/model", EngineConfig(dtype="float32")).name == "model"
    assert asked == {"model": "owner/model", "allow_patterns": {"*.safetensors", "*.json", "*.jinja"}}


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_directory_without_a_file(missing, tiny_model, tmp_path):
    model = shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns(missing))
    with pytest.raises(CheckpointError, match=missing) as caught:
        Engine.load(model)
    assert str(model) in str(caught.value) and "\n" not in str(caught.value)


def test_tokens_beyond_the_vocabulary(tiny_model, checkpoint, tmp_path):
    """A tokenizer of another model: its tokens have no row in the embedding."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoint("tied", "text")[0] / name, model)
    with pytest.raises(CheckpointError, match=r"the tokenizer has token 16416, the model a vocabulary of 97$"):
        Engine.load(model)


def test_an_engine_is_named_after_its_directory(engine, tiny_model):
    assert engine.name == tiny_model.name


class TestConfig:
    @pytest.mark.parametrize("dtype", ["float16", "int8", "", "double"])
    def test_unknown_dtypes(self, dtype):
        # Past the constructor, whose annotation the tests check before it could say so itself.
        config = EngineConfig()
        object.__setattr__(config, "dtype", dtype)
        with pytest.raises(ValueError, match="dtype must be one of bfloat16, float32, float64"):
            config.__post_init__()

    @pytest.mark.parametrize("capacities", [(), (256, 128), (128, 128), (0, 128), (-64,)])
    def test_capacities_that_do_not_ascend(self, capacities):
        with pytest.raises(ValueError, match="capacities must be ascending positive token counts"):
            EngineConfig(capacities=capacities)

    def test_an_implementation_that_is_none(self):
        with pytest.raises(ValueError, match="implementation must be one of .*, got 'abacus'"):
            EngineConfig(implementation="abacus")

    def test_defaults_on_a_cpu(self):
        config = EngineConfig()
        assert config.resolved_dtype() == "float32"
        assert config.ladder().largest.tokens == 4_096
