"""Checkpoints in every form on disk give the same parameters; broken ones are refused with everything that is wrong."""

import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoConfig

from flide_jax.models import families, qwen3_5
from flide_jax.models.checkpoint_files import CheckpointError
from flide_jax.models.params import named_leaves, total_bytes
from tests.models.support import LABEL_IDS, loaded_model
from tests.oracle.checkpoints import FORMS


def load(directory, dtype: str = "float32"):
    return loaded_model(directory, dtype).params


@pytest.fixture
def copy(checkpoint, tmp_path):
    """A checkpoint that a test may break: (directory, its tensors)."""
    directory = tmp_path / "model"
    shutil.copytree(checkpoint("untied", "text")[0], directory)
    return directory, load_file(directory / "model.safetensors")


@pytest.mark.parametrize("form", [name for name, form in FORMS.items() if form.storage == "bfloat16"])
def test_every_form_gives_the_same_parameters(form, checkpoint):
    found = named_leaves(load(checkpoint("equal_heads", form)[0]))
    expected = named_leaves(load(checkpoint("equal_heads", "text")[0]))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_small_parameters_stay_float32_in_a_bfloat16_model(checkpoint):
    directory, twin = checkpoint("untied", "released")
    params = load(directory, "bfloat16")
    mixer = params.layers[0].mixer
    assert mixer.in_proj.dtype == jax.numpy.bfloat16 and mixer.log_decay_rate.dtype == np.float32
    exact = twin.model.layers[0].linear_attn.A_log.detach().numpy()
    np.testing.assert_array_equal(np.asarray(mixer.log_decay_rate, np.float64), exact)


def test_abstract_tree_counts_the_bytes(checkpoint):
    directory, _ = checkpoint("untied", "text")
    config = qwen3_5.Qwen35Config.from_transformers(AutoConfig.from_pretrained(directory))
    abstract = qwen3_5.abstract(config, labels=LABEL_IDS.size, dtype=jax.numpy.dtype("bfloat16"))
    assert total_bytes(abstract) == sum(leaf.nbytes for leaf in jax.tree.leaves(load(directory, "bfloat16")))


def test_all_findings_are_listed_together(copy):
    directory, tensors = copy
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1]
    tensors["model.layers.0.adapter.weight"] = np.zeros(3, np.float32)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(directory)
    message = str(caught.value)
    assert "3 tensors do not match" in message and "\n" not in message
    assert "missing model.layers.1.mlp.up_proj.weight [112, 64]" in message
    assert "model.norm.weight has shape [63], expected [64]" in message
    assert "unknown tensor model.layers.0.adapter.weight" in message


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(copy, value):
    directory, tensors = copy
    tensors["model.layers.2.mlp.down_proj.weight"][3, 4] = value
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="NaN or infinite values in model.layers.2.mlp.down_proj.weight"):
        load(directory)


def test_a_truncated_file_is_named(copy):
    directory, _ = copy
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="model.safetensors: not a readable safetensors file"):
        load(directory)


def test_a_missing_shard_is_named(copy):
    directory, _ = copy
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="missing model-00001-of-00002.safetensors"):
        load(directory)


@pytest.mark.parametrize("index", ["", "[]", "{}", '{"weight_map": [["a"]]}', '{"weight_map": {"a": 5}}'])
def test_an_index_that_is_none_is_refused(copy, index):
    directory, _ = copy
    (directory / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match="model.safetensors.index.json: not a safetensors index"):
        load(directory)


def test_the_same_tensor_under_two_prefixes_is_refused(copy):
    directory, tensors = copy
    tensors["model.language_model.norm.weight"] = tensors["model.norm.weight"]
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match="are the same tensor, model.norm.weight"):
        load(directory)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model_type": "llama"}, "model_type 'llama' is not supported, only qwen3_5"),
        ({"model_type": "no_such_model"}, "no_such_model"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights are not supported"),
        ({"hidden_size": "abc"}, "hidden_size"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
        ({"layer_types": ["no_such_layer"] * 4}, "layer_types"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be 1 or more, got 0"),
        ({"head_dim": 0}, "head_dim must be 1 or more, got 0"),
        ({"hidden_size": -4}, "hidden_size must be 1 or more, got -4"),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "llama"}}, "text_config: model_type 'llama'"),
    ],
)
def test_other_architectures_are_refused_in_one_line(copy, change, message):
    directory, _ = copy
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(CheckpointError, match=message) as caught:
        families.read_config(directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{"])
def test_a_broken_config_is_refused_in_one_line(copy, content):
    directory, _ = copy
    (directory / "config.json").write_text(content)
    with pytest.raises(CheckpointError) as caught:
        families.read_config(directory)
    assert "\n" not in str(caught.value)
