"""The architectures that can be loaded, by the `model_type` of config.json."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flide_jax.models import qwen3_5
from flide_jax.models.checkpoint_files import CheckpointError, in_one_line


@dataclasses.dataclass(frozen=True)
class Family:
    """What an engine needs of an architecture; the functions are those of `flide_jax.models.qwen3_5`.

    Attributes:
        read_config: from a transformers config to the family's own.
        abstract: shapes of the parameters, `abstract(config, labels=L, dtype=dtype)`.
        weight_table: where tensors go, `weight_table(config, label_ids)`.
        forward: label logits, `forward(params, metadata, config, implementation=..., selective_readout=...,
            batch_invariant=...)`.
        begin: the residual stream behind the first layers, `begin(params, metadata, config, layers=..., pool=...,
            implementation=..., batch_invariant=...)`, and what they keep in the pool; `forward` goes on from it.
        growing_forward: of growing rounds: the same with a pool behind the metadata, and it returns the pool as well;
            these are not batch-invariant.
        hidden_states: of every row after every layer, `hidden_states(params, metadata, config, embedded=...)`.
        embed: embedding rows, `embed(params, tokens)`.
        abstract_pool: shapes of that, `abstract_pool(config, pages=..., slots=..., dtype=dtype)`.
        conv_taps: taps of the short convolution.
    """

    read_config: Callable[[Any], Any]
    abstract: Callable[..., Any]
    weight_table: Callable[..., Any]
    forward: Callable[..., Any]
    begin: Callable[..., Any]
    hidden_states: Callable[..., Any]
    embed: Callable[..., Any]
    growing_forward: Callable[..., Any]
    abstract_pool: Callable[..., Any]
    conv_taps: Callable[[Any], int]


QWEN3_5 = Family(
    read_config=qwen3_5.Qwen35Config.from_transformers,
    abstract=qwen3_5.abstract,
    weight_table=qwen3_5.weight_table,
    forward=qwen3_5.forward,
    begin=qwen3_5.begin,
    hidden_states=qwen3_5.hidden_states,
    embed=qwen3_5.embed,
    growing_forward=qwen3_5.growing_forward,
    abstract_pool=qwen3_5.abstract_pool,
    conv_taps=qwen3_5.conv_taps,
)
FAMILIES = {"qwen3_5": QWEN3_5, "qwen3_5_text": QWEN3_5}


def read_config(directory: Path) -> tuple[Family, Any]:
    """The family and the architecture config of a checkpoint directory.

    Raises CheckpointError: no readable config.json, another architecture, or an unsupported variant of one.
    """
    file = directory / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{directory}: missing config.json")
    model_type = _model_type(file)
    if model_type not in FAMILIES:
        supported = ", ".join(FAMILIES)
        raise CheckpointError(f"{file}: model_type {model_type!r} is not supported, only {supported}")
    from transformers import AutoConfig  # Seconds to import, with torch where there is one; most processes read none.

    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # transformers checks fields with errors of several libraries
        raise CheckpointError(f"{file}: {in_one_line(error)}") from None
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(f"{file}: quantised weights are not supported")
    family = FAMILIES[model_type]
    try:
        return family, family.read_config(config)
    except (NotImplementedError, ValueError) as error:
        raise CheckpointError(f"{file}: {in_one_line(error)}") from None


def _model_type(file: Path) -> str:
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["model_type"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{file}: not a model's config: {in_one_line(error)}") from None
