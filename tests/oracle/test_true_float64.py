"""The oracle is what it claims to be: float64 in every operator."""

import numpy as np
import pytest
import torch
from transformers import Qwen3_5ForCausalLM

from tests.oracle.configs import CONFIGS, text_config
from tests.oracle.true_float64 import Float32Spy, true_float64
from tests.oracle.twins import build_twin, record

TOKENS = np.random.default_rng(0).integers(0, 97, 70)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", CONFIGS)
def test_no_operator_is_narrower(name, attention):
    model = build_twin(text_config(name), attention=attention)
    with Float32Spy() as spy:
        record(model, TOKENS)
    assert spy.operators > 500
    assert not spy.found


def test_model_double_is_a_trap(twin):
    """What transformers computes after `model.double()` is float64 by dtype and float32 by error."""
    model = twin("untied")
    naive = Qwen3_5ForCausalLM._from_config(model.config, attn_implementation="sdpa").double().eval()
    naive.load_state_dict(model.state_dict())
    with torch.no_grad(), Float32Spy() as spy:
        logits = naive(input_ids=torch.tensor(TOKENS[None]), use_cache=False).logits[0].numpy()
    truth = record(model, TOKENS).logits
    assert logits.dtype == np.float64
    assert spy.found
    assert 1e-8 < np.abs(logits - truth).max() / np.abs(truth).max() < 1e-3


def test_torch_is_restored_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), true_float64():
        assert torch.zeros(1, dtype=torch.float32).float().to(torch.float32).dtype == torch.float64
        raise RuntimeError("inside")
    single = torch.zeros(1, dtype=torch.float32).float().to(torch.float32)
    assert single.dtype == torch.zeros(1).dtype == single.softmax(0).dtype == torch.float32
    assert torch.softmax(single.double(), 0, dtype=torch.float32).dtype == torch.float32
