"""Every form of a checkpoint on disk gives the same config and the exact values of its tensors."""

import json

import numpy as np
import pytest

from flide_jax.reference import read_checkpoint, read_config
from tests.oracle.checkpoints import FORMS


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["one_kv_head", "two_periods"])  # untied and tied
def test_every_form_is_read_exactly(checkpoint, name, form):
    directory, twin = checkpoint(name, form)
    config, weights = read_checkpoint(directory)
    tensors = {key: value.numpy() for key, value in twin.state_dict().items()}
    if twin.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    assert weights.keys() == tensors.keys()
    for key, value in tensors.items():
        assert weights[key].dtype == np.float64
        np.testing.assert_array_equal(weights[key], value, err_msg=key)
    assert config == read_config(twin.config.to_dict())
    assert config.tied == twin.config.tie_word_embeddings
    assert list(config.layer_types) == twin.config.layer_types


@pytest.mark.parametrize("silent", ["the text config", "the top level"])
def test_a_head_is_tied_wherever_the_config_says_so(checkpoint, silent):
    directory, _ = checkpoint("two_periods", "released")
    raw = json.loads((directory / "config.json").read_text())
    del (raw["text_config"] if silent == "the text config" else raw)["tie_word_embeddings"]
    assert read_config(raw).tied


def test_other_architectures_are_refused(twin):
    raw = twin("untied").config.to_dict()
    with pytest.raises(ValueError, match="expected qwen3_5_text, got 'llama'"):
        read_config(raw | {"model_type": "llama"})
    with pytest.raises(NotImplementedError):
        read_config(raw | {"attention_bias": True})
    with pytest.raises(NotImplementedError):
        read_config(raw | {"rope_parameters": raw["rope_parameters"] | {"rope_type": "yarn"}})
