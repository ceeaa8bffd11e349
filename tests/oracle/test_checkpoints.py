"""The checkpoints written for tests are those transformers itself reads, tensor for tensor."""

import pytest
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration

from tests.oracle.checkpoints import FORMS, save_checkpoint


def load(model, directory, **options):
    """The loaded model, and the report of missing, unexpected and mismatched tensors."""
    return model.from_pretrained(directory, output_loading_info=True, **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["one_kv_head", "two_periods"])  # untied and tied
def test_transformers_reads_every_form(checkpoint, name, form):
    directory, twin = checkpoint(name, form)
    # In float64, since loading rounds a mix of dtypes to one.
    read, report = load(Qwen3_5ForCausalLM, directory, dtype=torch.float64)
    assert not any(report.values()), report
    for key, value in twin.state_dict().items():
        assert torch.equal(read.state_dict()[key], value), key


def test_a_released_form_is_a_whole_multimodal_checkpoint(checkpoint):
    directory, _ = checkpoint("two_periods", "released")
    read, report = load(Qwen3_5ForConditionalGeneration, directory)
    assert not any(report.values()), report
    assert read.model.visual.patch_embed.proj.weight.dtype == torch.bfloat16


def test_a_form_that_would_round_is_refused(twin, tmp_path):
    with pytest.raises(ValueError, match="rounded by storage bfloat16"):
        save_checkpoint(twin("untied"), tmp_path, FORMS["text"])
