"""Where each tensor of a Qwen3.5 checkpoint goes."""

import functools
import re

import numpy as np

from flide_jax.models.loading import Row, WeightTable
from flide_jax.models.qwen3_5.config import LayerKind, Qwen35Config

# Official files, text-only files and older ones differ in the prefix of the same tensors.
_TEXT_PREFIX = re.compile(r"^(?:model\.language_model\.|language_model\.model\.)")
_IGNORED = {
    r"(?:model\.)?visual\..*": "vision tower: images are not read",
    r"mtp\..*": "multi-token prediction: drafts for generation",
}


def weight_table(config: Qwen35Config, label_ids: np.ndarray) -> WeightTable:
    """The table for a dense text model. `label_ids` (int32 [L]) are the head's rows that are kept."""
    width, embedding = config.width, "model.embed_tokens.weight"
    head = embedding if config.tied_head else "lm_head.weight"
    ignored = {**_IGNORED, r"lm_head\.weight": "the embedding is the head"} if config.tied_head else _IGNORED
    rows = [
        Row("embedding", {embedding: (config.vocabulary, width)}),
        Row("final_norm", {"model.norm.weight": (width,)}),
        Row("head", {head: (config.vocabulary, width)}, fuse=lambda rows: rows[label_ids]),
    ]
    for i, kind in enumerate(config.layers):
        source, target = f"model.layers.{i}", f"layers.{i}"
        mixer = _attention_rows if kind is LayerKind.ATTENTION else _gated_delta_net_rows
        rows += [*mixer(config, source, f"{target}.mixer"), *_shared_rows(config, source, target)]
    return WeightTable(rows=rows, ignored=ignored, canonical=_canonical)


def _canonical(name: str) -> str:
    return _TEXT_PREFIX.sub("model.", name).removeprefix("language_model.")


def _shared_rows(config: Qwen35Config, source: str, target: str) -> list[Row]:
    width, hidden = config.width, config.feed_forward_width
    return [
        Row(f"{target}.mixer_norm", {f"{source}.input_layernorm.weight": (width,)}),
        Row(f"{target}.feed_forward_norm", {f"{source}.post_attention_layernorm.weight": (width,)}),
        Row(
            f"{target}.feed_forward.gate_up",
            {f"{source}.mlp.gate_proj.weight": (hidden, width), f"{source}.mlp.up_proj.weight": (hidden, width)},
        ),
        Row(f"{target}.feed_forward.down", {f"{source}.mlp.down_proj.weight": (width, hidden)}),
    ]


def _attention_rows(config: Qwen35Config, source: str, target: str) -> list[Row]:
    width, attention = config.width, config.attention
    source = f"{source}.self_attn"
    heads = attention.query_heads * attention.head_dim
    key_heads = attention.key_heads * attention.head_dim
    return [
        Row(
            f"{target}.in_proj",
            {
                f"{source}.q_proj.weight": (2 * heads, width),
                f"{source}.k_proj.weight": (key_heads, width),
                f"{source}.v_proj.weight": (key_heads, width),
            },
            fuse=functools.partial(_fuse_attention, head_dim=attention.head_dim),
        ),
        Row(f"{target}.query_norm", {f"{source}.q_norm.weight": (attention.head_dim,)}),
        Row(f"{target}.key_norm", {f"{source}.k_norm.weight": (attention.head_dim,)}),
        Row(f"{target}.out_proj", {f"{source}.o_proj.weight": (width, heads)}),
    ]


def _fuse_attention(query_gate: np.ndarray, key: np.ndarray, value: np.ndarray, *, head_dim: int) -> np.ndarray:
    """The file holds [query | gate] head by head; all queries come first here, then all gates."""
    by_head = query_gate.reshape(-1, 2, head_dim, query_gate.shape[1])
    query, gate = (by_head[:, i].reshape(-1, query_gate.shape[1]) for i in (0, 1))
    return np.concatenate([query, gate, key, value])


def _gated_delta_net_rows(config: Qwen35Config, source: str, target: str) -> list[Row]:
    width, gdn = config.width, config.gated_delta_net
    source = f"{source}.linear_attn"
    return [
        Row(
            f"{target}.in_proj",
            {
                f"{source}.in_proj_qkv.weight": (gdn.conv_channels, width),
                f"{source}.in_proj_z.weight": (gdn.value_channels, width),
                f"{source}.in_proj_b.weight": (gdn.value_heads, width),
                f"{source}.in_proj_a.weight": (gdn.value_heads, width),
            },
        ),
        Row(
            f"{target}.conv_taps",
            {f"{source}.conv1d.weight": (gdn.conv_channels, 1, gdn.conv_taps)},
            fuse=lambda taps: taps[:, 0].T,
        ),
        Row(f"{target}.log_decay_rate", {f"{source}.A_log": (gdn.value_heads,)}),
        Row(f"{target}.decay_bias", {f"{source}.dt_bias": (gdn.value_heads,)}),
        Row(f"{target}.norm", {f"{source}.norm.weight": (gdn.value_dim,)}),
        Row(f"{target}.out_proj", {f"{source}.out_proj.weight": (width, gdn.value_channels)}),
    ]
