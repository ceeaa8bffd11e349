"""Full attention for one token, over the list of keys and values of all tokens so far (Eq. 3 of a lone sequence)."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int

from flide_jax.reference.checkpoint import Config, Weights
from flide_jax.reference.layers import Array, rms_norm, sigmoid, softmax


@dataclass
class KeysAndValues:
    """One entry a token, each [KV, D]; keys are normed and rotated."""

    keys: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)


def rotate(x: Float64[Array, "heads D"], position: Int[Array, "3"], config: Config) -> Float64[Array, "heads D"]:
    """Turns the pairs (j, j + n), j < n = rotary_dim / 2, by position * base^(-j / n); the dims after them stay.

    `position` has the axes time, height, width. Frequencies take them in turn, T H W T H W ..., until height and width
    have had their sections; the rest belongs to time. Text has three equal positions.
    """
    n = config.rotary_dim // 2
    axes = np.zeros(n, np.int64)
    for axis in (1, 2):
        axes[axis : 3 * config.rotary_sections[axis] : 3] = axis
    angle = position[axes] * config.rotary_base ** (-np.arange(n) / n)
    cos, sin = np.cos(angle), np.sin(angle)
    first, second, rest = x[:, :n], x[:, n : 2 * n], x[:, 2 * n :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=1)


def attention(
    h: Float64[Array, " d"], weights: Weights, config: Config, position: Int[Array, "3"], past: KeysAndValues
) -> Float64[Array, " d"]:
    """Gated grouped-query attention of a token over itself and `past`, to which its key and value are appended.

    A head's rows of q_proj are [query | gate].
    """
    heads, kv_heads, dim = config.query_heads, config.kv_heads, config.head_dim
    query, gate = np.split((weights["self_attn.q_proj.weight"] @ h).reshape(heads, 2 * dim), 2, axis=1)
    key = (weights["self_attn.k_proj.weight"] @ h).reshape(kv_heads, dim)
    value = (weights["self_attn.v_proj.weight"] @ h).reshape(kv_heads, dim)
    query = rms_norm(query, 1 + weights["self_attn.q_norm.weight"], config.norm_eps)
    key = rms_norm(key, 1 + weights["self_attn.k_norm.weight"], config.norm_eps)
    past.keys.append(rotate(key, position, config))
    past.values.append(value)
    # Query head i reads key/value head i // (heads / kv_heads).
    keys = np.repeat(np.stack(past.keys), heads // kv_heads, axis=1)
    values = np.repeat(np.stack(past.values), heads // kv_heads, axis=1)
    scores = np.einsum("hd,thd->ht", rotate(query, position, config), keys) / np.sqrt(dim)
    mixed = np.einsum("ht,thd->hd", softmax(scores), values)
    return weights["self_attn.o_proj.weight"] @ (mixed * sigmoid(gate)).reshape(heads * dim)
