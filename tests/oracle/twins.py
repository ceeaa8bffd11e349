"""Random tiny transformers models, and everything one forward of them computes.

A twin holds float64 parameters whose values are exactly those of its stored form (`Storage`), so that a checkpoint
written from it loses nothing and the twin is the truth about that checkpoint.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

from tests.oracle.true_float64 import true_float64

torch.set_num_threads(1)  # tensors are tiny, and the workers of a test run share the cores

# "bfloat16" is the released mix, float32 for A_log and the norm of Gated DeltaNet; "all_bfloat16" has no exception.
Storage = Literal["float64", "float32", "bfloat16", "all_bfloat16"]

_KEPT_FLOAT32 = ("linear_attn.A_log", "linear_attn.norm.weight")


def stored_dtype(name: str, storage: Storage) -> torch.dtype:
    """The dtype in which the tensor `name` stands in a file of this storage."""
    if storage == "bfloat16" and name.endswith(_KEPT_FLOAT32):
        return torch.float32
    return getattr(torch, storage.removeprefix("all_"))


def build_twin(
    config: Qwen3_5TextConfig, *, seed: int = 0, storage: Storage = "float64", attention: str = "sdpa"
) -> Qwen3_5ForCausalLM:
    """A random model of this configuration with float64 parameters, to be run by `record`."""
    with true_float64():
        model = Qwen3_5ForCausalLM._from_config(config, attn_implementation=attention).double().eval()
    randomise(model, seed=seed, storage=storage)  # outside, where float32 means float32
    return model


@torch.no_grad()
def randomise(model: torch.nn.Module, *, seed: int = 0, storage: Storage = "float64") -> None:
    """Fills every parameter so that every branch has a voice.

    With transformers' own initialisation norm weights are neutral and the state forgets within two tokens, so that a
    wrongly forked state cannot be seen. Here decays lie near one: exp(-A softplus(dt_bias)) with A in 0.05..3 and
    dt_bias in -5..-2.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        normal = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        uniform = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
        if name.endswith("A_log"):
            value = torch.log(0.05 + 3 * uniform)
        elif name.endswith("dt_bias"):
            value = -5 + 3 * uniform
        elif name.endswith("linear_attn.norm.weight"):
            value = 1 + 0.3 * normal
        elif "norm" in name:
            value = 0.3 * normal
        elif "embed_tokens" in name:
            value = 0.7 * normal
        elif "conv1d" in name:
            value = 0.5 * normal
        else:
            value = 0.15 * normal
        parameter.copy_(value.to(stored_dtype(name, storage)).double())


@dataclass(frozen=True)
class Record:
    """One forward over one sequence of T tokens, float64."""

    residual: np.ndarray  # [layers + 1, T, d]: the residual stream after the embedding and after each layer
    hidden: np.ndarray  # [T, d]: after the final norm
    logits: np.ndarray  # [T, vocabulary]


@torch.no_grad()
def record(model: Qwen3_5ForCausalLM, tokens: np.ndarray, *, positions: np.ndarray | None = None) -> Record:
    """Runs a model built by `build_twin` over `tokens` [T] in true float64; `positions` [3, T] are rotary positions."""
    residual: list[torch.Tensor] = []
    final: list[torch.Tensor] = []
    body = model.model
    # The hidden states that transformers returns have the final norm in place of the last layer's residual stream.
    hooks = [module.register_forward_hook(lambda _, __, out: residual.append(out)) for module in body.layers]
    hooks.append(body.embed_tokens.register_forward_hook(lambda _, __, out: residual.append(out)))
    hooks.append(body.norm.register_forward_hook(lambda _, __, out: final.append(out)))
    try:
        with true_float64():
            ids = torch.tensor(np.asarray(tokens, np.int64)[None])
            # Three axes: two-dimensional positions with a jump would be read as packed sequences and cut attention.
            axes = None if positions is None else torch.tensor(np.asarray(positions, np.int64)[:, None])
            logits = model(input_ids=ids, position_ids=axes, use_cache=False).logits
    finally:
        for hook in hooks:
            hook.remove()
    return Record(torch.cat(residual).numpy(), final[0][0].numpy(), logits[0].numpy())
