"""A Qwen3.5 checkpoint directory as a small config and a dict of float64 arrays."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  gives numpy the dtype name bfloat16, which safetensors asks it for
import numpy as np
from safetensors import safe_open

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class Config:
    """What the tensors do not say by themselves. Dims are counts of elements, heads counts of heads."""

    layer_types: tuple[str, ...]  # "linear_attention" or "full_attention"
    norm_eps: float
    tied: bool  # the head is the embedding
    query_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # leading dims of a head that turn
    rotary_base: float
    rotary_sections: tuple[int, ...]  # frequencies of the axes time, height, width
    gdn_key_heads: int
    gdn_value_heads: int
    gdn_key_dim: int
    gdn_value_dim: int
    convolution_taps: int


def read_config(raw: dict[str, Any]) -> Config:
    """Reads the content of a config.json, with the text config nested under "text_config" or flat.

    Raises ValueError for another architecture, NotImplementedError for a variant of it that is not written here.
    """
    text = raw.get("text_config", raw)
    if text.get("model_type") != "qwen3_5_text":
        raise ValueError(f"model_type: expected qwen3_5_text, got {text.get('model_type')!r}")
    rope = text["rope_parameters"]
    if rope.get("rope_type", "default") != "default" or text.get("attention_bias") or text["hidden_act"] != "silu":
        raise NotImplementedError("scaled rotary positions, attention biases, or an activation other than silu")
    kinds = text.get("layer_types")
    if kinds is None:
        interval = text["full_attention_interval"]
        layers = range(1, text["num_hidden_layers"] + 1)
        kinds = ["linear_attention" if layer % interval else "full_attention" for layer in layers]
    rotary_share = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))
    return Config(
        layer_types=tuple(kinds),
        norm_eps=float(text["rms_norm_eps"]),
        tied=bool(text.get("tie_word_embeddings") or raw.get("tie_word_embeddings")),
        query_heads=text["num_attention_heads"],
        kv_heads=text["num_key_value_heads"],
        head_dim=text["head_dim"],
        rotary_dim=int(text["head_dim"] * rotary_share),
        rotary_base=float(rope["rope_theta"]),
        rotary_sections=tuple(rope.get("mrope_section", (11, 11, 10))),
        gdn_key_heads=text["linear_num_key_heads"],
        gdn_value_heads=text["linear_num_value_heads"],
        gdn_key_dim=text["linear_key_head_dim"],
        gdn_value_dim=text["linear_value_head_dim"],
        convolution_taps=text["linear_conv_kernel_dim"],
    )


def read_checkpoint(directory: str | Path) -> tuple[Config, Weights]:
    """Reads config.json and the text model's tensors, from model.safetensors or from the files of its index.

    Every tensor is read in its own dtype and then widened to float64 (8 bytes an element: four times a bfloat16 file).
    Names are those of the text model, `model.layers.0...`, `lm_head.weight`; vision and `mtp` tensors are left out.
    """
    directory = Path(directory)
    config = read_config(json.loads((directory / "config.json").read_text(encoding="utf-8")))
    index = directory / "model.safetensors.index.json"
    files = {"model.safetensors"}
    if index.exists():
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    weights: Weights = {}
    for file in sorted(files):
        with safe_open(directory / file, framework="numpy") as tensors:
            for stored in tensors.keys():
                name = _text_name(stored)
                if name.startswith(("model.", "lm_head.")):
                    weights[name] = tensors.get_tensor(stored).astype(np.float64)
    return config, weights


def _text_name(name: str) -> str:
    """The name in a text-only model; names of other parts come back without the prefix `model.`."""
    for prefix in ("model.language_model.", "language_model.model."):
        if name.startswith(prefix):
            return "model." + name.removeprefix(prefix)
    return name.removeprefix("language_model.").replace("model.visual.", "visual.")
