"""Qwen3.5, Qwen3.6 and Qwen3.8 text models: dense, three Gated DeltaNet layers to one of attention."""

from flide_jax.models.qwen3_5.config import Qwen35Config, conv_taps
from flide_jax.models.qwen3_5.model import (
    Qwen35Params,
    abstract,
    abstract_pool,
    begin,
    embed,
    forward,
    growing_forward,
    hidden_states,
)
from flide_jax.models.qwen3_5.weights import weight_table

__all__ = [
    "Qwen35Config",
    "Qwen35Params",
    "abstract",
    "abstract_pool",
    "begin",
    "conv_taps",
    "embed",
    "forward",
    "growing_forward",
    "hidden_states",
    "weight_table",
]
