"""A twin as a checkpoint directory, in each form found in the wild (config.json and safetensors; no tokenizer).

Twins are Qwen3_5ForCausalLM; the forms differ in prefix, nesting of the config, sharding, dtypes, and the tensors of
other parts of the model that lie beside the text model's.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3_5ForCausalLM
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5VisionConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5VisionModel

from tests.oracle.twins import Storage, stored_dtype


@dataclass(frozen=True)
class Form:
    """How a checkpoint stands on disk. `storage` must be that of the twin, so that nothing is rounded on writing."""

    storage: Storage = "bfloat16"
    prefix: str = "model."  # or "model.language_model."
    shards: int = 1  # 1: model.safetensors; more: numbered files and an index
    multimodal: bool = False  # the multimodal class: a nested text_config, vision and mtp tensors
    interval_only: bool = False  # full_attention_interval stands in for layer_types


FORMS: dict[str, Form] = {
    # The released files.
    "released": Form(prefix="model.language_model.", shards=3, multimodal=True),
    "released_all_bfloat16": Form(
        storage="all_bfloat16", prefix="model.language_model.", shards=2, multimodal=True, interval_only=True
    ),
    # Saved from a text config, and a released file loaded as text and saved again.
    "text": Form(),
    "text_sharded": Form(shards=2),
    "text_resaved": Form(prefix="model.language_model."),
    "text_float32": Form(storage="float32"),
    "text_float64": Form(storage="float64"),
}


def save_checkpoint(model: Qwen3_5ForCausalLM, directory: Path, form: Form) -> None:
    """Writes config.json and the weights of `model` into `directory`, which must exist.

    Raises ValueError if the form's storage would round a parameter, and NotImplementedError if a form with
    `interval_only` cannot say the model's layer types.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        stored = value.to(stored_dtype(name, form.storage))
        if not torch.equal(stored.double(), value):
            raise ValueError(f"{name} is rounded by storage {form.storage}: build the twin with that storage")
        tensors[_renamed(name, form.prefix)] = stored
    if form.multimodal:
        tensors |= other_tensors(model.config.hidden_size, stored_dtype("", form.storage))
    config = config_json(model, form)
    (directory / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    write_weights(tensors, directory, shards=form.shards)


def _renamed(name: str, prefix: str) -> str:
    return prefix + name.removeprefix("model.") if name.startswith("model.") else name


def write_weights(tensors: dict[str, torch.Tensor], directory: Path, *, shards: int = 1) -> None:
    """model.safetensors, or shards in round robin with model.safetensors.index.json."""
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        names = list(tensors)[shard::shards]
        save_file({name: tensors[name] for name in names}, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def config_json(model: Qwen3_5ForCausalLM, form: Form) -> dict:
    """The content of config.json as a model of this form has it."""
    text = model.config.to_diff_dict()
    dtype = str(stored_dtype("", form.storage)).removeprefix("torch.")
    text |= {"dtype": dtype, "tie_word_embeddings": model.config.tie_word_embeddings}
    if form.interval_only:
        text = _with_interval(text)
    if not form.multimodal:
        return text | {"architectures": ["Qwen3_5ForCausalLM"]}
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": dtype,
        "image_token_id": 90,
        "video_token_id": 91,
        "vision_start_token_id": 92,
        "vision_end_token_id": 93,
        "tie_word_embeddings": model.config.tie_word_embeddings,
        "text_config": text,
        "vision_config": _vision_config(model.config.hidden_size).to_diff_dict(),
    }


def _with_interval(text: dict) -> dict:
    kinds = text["layer_types"]
    interval = kinds.index("full_attention") + 1
    said = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(len(kinds))]
    if said != kinds:
        raise NotImplementedError(f"no full_attention_interval says {kinds}")
    return {key: value for key, value in text.items() if key != "layer_types"} | {"full_attention_interval": interval}


def _vision_config(width: int) -> Qwen3_5VisionConfig:
    return Qwen3_5VisionConfig(
        depth=1, hidden_size=24, intermediate_size=40, num_heads=2, patch_size=4, out_hidden_size=width,
        num_position_embeddings=36,
    )  # fmt: skip


def other_tensors(width: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What a released file holds beside the text model: a whole (tiny) vision tower, and multi-token prediction."""
    vision = Qwen3_5VisionModel._from_config(_vision_config(width)).state_dict()
    mtp = {
        "fc.weight": (width, 2 * width),
        "norm.weight": (width,),
        "pre_fc_norm_embedding.weight": (width,),
        "pre_fc_norm_hidden.weight": (width,),
        "layers.0.input_layernorm.weight": (width,),
        "layers.0.self_attn.q_proj.weight": (16, width),
        "layers.0.mlp.down_proj.weight": (width, 16),
    }
    tensors = {f"model.visual.{name}": value for name, value in vision.items()}
    tensors |= {f"mtp.{name}": torch.full(shape, 0.5) for name, shape in mtp.items()}
    return {name: value.to(dtype) for name, value in tensors.items()}
