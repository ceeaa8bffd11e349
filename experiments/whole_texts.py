"""A baseline outside of JAX: transformers' Qwen3.5 over every question as a text of its own, state and question."""

import importlib.util
from typing import Any

import numpy as np

from experiments.measured_model import DEMO, LABELS
from experiments.random_checkpoint import config_json
from experiments.records import SEED
from flide_jax.models.qwen3_5 import Qwen35Config
from flide_jax.prompts.plan import Plan

# What decides which kernels transformers takes.
PACKAGES = ("torch", "transformers", "flash-linear-attention", "causal-conv1d")


def left_out(size: str) -> str | None:
    """Why a size cannot be measured here; None where it can."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} not installed"
    import torch

    if size != DEMO and not torch.cuda.is_available():
        return "torch has no accelerator here, and a true size takes hours on a CPU"
    return None


class WholeTexts:
    """Random weights of transformers' own drawing: in bfloat16 on torch's accelerator, in float32 on a CPU."""

    def __init__(self, architecture: Qwen35Config, *, most_tokens: int) -> None:
        """`most_tokens`: of the texts that are computed together."""
        import torch
        from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

        on_gpu = torch.cuda.is_available()
        self.device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
        torch.manual_seed(SEED)
        config = Qwen3_5TextConfig.from_dict(config_json(architecture))
        with torch.device(self.device):
            self.model = Qwen3_5ForCausalLM._from_config(config, dtype=dtype).eval()
        self._most_tokens = most_tokens

    def logits(self, plan: Plan) -> np.ndarray:
        """Logits [questions, L] at the last row of every text. Raises ValueError: questions of different lengths."""
        import torch

        texts = np.stack([np.concatenate([plan.state, plan.branch(i)]) for i in range(plan.branch_lengths.size)])
        together = max(1, self._most_tokens // texts.shape[1])
        found = []
        with torch.inference_mode():
            for begin in range(0, len(texts), together):
                ids = torch.from_numpy(texts[begin : begin + together]).to(self.device, torch.int64)
                answered: Any = self.model(input_ids=ids, use_cache=False, logits_to_keep=1)
                found.append(answered.logits[:, -1, :LABELS].float())
            return torch.cat(found).cpu().numpy()
