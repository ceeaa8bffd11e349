"""The trained parameters as a checkpoint directory that transformers and the engine read alike."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file
from transformers import Qwen3_5TextConfig

from flide_jax.models.attention import AttentionParams
from flide_jax.models.gated_delta_net import GatedDeltaNetParams
from flide_jax.models.qwen3_5 import Qwen35Config, Qwen35Params


def save(directory: Path, params: Qwen35Params, config: Qwen35Config, written: Qwen3_5TextConfig) -> None:
    """Write config.json and model.safetensors: bfloat16, and float32 where the released checkpoints have it.

    Args:
        params: float32 parameters; the head is tied and not written.
        config: their architecture.
        written: the same architecture as transformers knows it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written.architectures = ["Qwen3_5ForCausalLM"]
    written.dtype = "bfloat16"
    written.save_pretrained(directory)
    tensors = {
        "model.embed_tokens.weight": params.embedding,
        "model.norm.weight": params.final_norm,
    }
    for index, layer in enumerate(params.layers):
        gate, up = np.split(layer.feed_forward.gate_up, 2)
        mixer = (
            _attention(layer.mixer, config)
            if isinstance(layer.mixer, AttentionParams)
            else _gated_delta_net(layer.mixer, config)
        )
        named = {
            "input_layernorm.weight": layer.mixer_norm,
            "post_attention_layernorm.weight": layer.feed_forward_norm,
            "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up,
            "mlp.down_proj.weight": layer.feed_forward.down,
            **mixer,
        }
        tensors |= {f"model.layers.{index}.{name}": tensor for name, tensor in named.items()}
    float32 = ("A_log", "linear_attn.norm.weight")  # decays would be too coarse in bfloat16
    arrays = {
        name: np.ascontiguousarray(tensor, dtype=np.float32 if name.endswith(float32) else jnp.bfloat16)
        for name, tensor in tensors.items()
    }
    save_file(arrays, directory / "model.safetensors", metadata={"format": "pt"})


def _attention(params: AttentionParams, config: Qwen35Config) -> dict[str, np.ndarray]:
    """The file holds [query | gate] head by head; the parameter has all queries first, then all gates."""
    sizes = config.attention
    heads, key_heads = sizes.query_heads * sizes.head_dim, sizes.key_heads * sizes.head_dim
    query, gate, key, value = np.split(np.asarray(params.in_proj), np.cumsum([heads, heads, key_heads]).tolist())
    by_head = [part.reshape(sizes.query_heads, sizes.head_dim, -1) for part in (query, gate)]
    return {
        "self_attn.q_proj.weight": np.concatenate(by_head, axis=1).reshape(2 * heads, -1),
        "self_attn.k_proj.weight": key,
        "self_attn.v_proj.weight": value,
        "self_attn.q_norm.weight": params.query_norm,
        "self_attn.k_norm.weight": params.key_norm,
        "self_attn.o_proj.weight": params.out_proj,
    }


def _gated_delta_net(params: GatedDeltaNetParams, config: Qwen35Config) -> dict[str, np.ndarray]:
    sizes = config.gated_delta_net
    lengths = [sizes.conv_channels, sizes.value_channels, sizes.value_heads]
    mixed, gate, write, decay = np.split(np.asarray(params.in_proj), np.cumsum(lengths).tolist())
    return {
        "linear_attn.in_proj_qkv.weight": mixed,
        "linear_attn.in_proj_z.weight": gate,
        "linear_attn.in_proj_b.weight": write,
        "linear_attn.in_proj_a.weight": decay,
        "linear_attn.conv1d.weight": np.asarray(params.conv_taps).T[:, None],
        "linear_attn.A_log": params.log_decay_rate,
        "linear_attn.dt_bias": params.decay_bias,
        "linear_attn.norm.weight": params.norm,
        "linear_attn.out_proj.weight": params.out_proj,
    }
