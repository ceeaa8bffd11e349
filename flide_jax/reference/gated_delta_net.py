"""Gated DeltaNet for one token: a short convolution, then the delta rule as a recurrence (Eq. 4)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from flide_jax.reference.checkpoint import Config, Weights
from flide_jax.reference.layers import Array, rms_norm, sigmoid, silu, softplus


@dataclass
class Memory:
    """What a layer keeps of the tokens so far."""

    state: Float64[Array, "nv dv dk"]
    window: Float64[Array, "taps channels"]  # inputs of the convolution, oldest first; zero before the first token

    @staticmethod
    def empty(config: Config) -> "Memory":
        keys, values = config.gdn_key_heads * config.gdn_key_dim, config.gdn_value_heads * config.gdn_value_dim
        state = np.zeros((config.gdn_value_heads, config.gdn_value_dim, config.gdn_key_dim))
        return Memory(state, np.zeros((config.convolution_taps, 2 * keys + values)))


def l2_norm(x: Float64[Array, "heads n"]) -> Float64[Array, "heads n"]:
    """x / sqrt(sum(x^2) + 1e-6): the constant is the model's, inside the root, on the sum."""
    return x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def delta_rule(
    state: Float64[Array, "nv dv dk"],
    q: Float64[Array, "nv dk"],
    k: Float64[Array, "nv dk"],
    v: Float64[Array, "nv dv"],
    alpha: Float64[Array, " nv"],
    eta: Float64[Array, " nv"],
) -> tuple[Float64[Array, "nv dv dk"], Float64[Array, "nv dv"]]:
    """S_t = alpha S_{t-1} (I - eta k k^T) + eta v k^T and o_t = S_t q, for each head (Eq. 4)."""
    decayed = alpha[:, None, None] * state
    written = eta[:, None] * (v - np.einsum("hvk,hk->hv", decayed, k))
    state = decayed + written[:, :, None] * k[:, None, :]
    return state, np.einsum("hvk,hk->hv", state, q)


def gated_delta_net(h: Float64[Array, " d"], weights: Weights, config: Config, memory: Memory) -> Float64[Array, " d"]:
    """The layer's output for a token; `memory` moves on by it."""
    keys, values = config.gdn_key_heads, config.gdn_value_heads
    key_dim, value_dim = config.gdn_key_dim, config.gdn_value_dim
    memory.window = np.concatenate([memory.window[1:], (weights["linear_attn.in_proj_qkv.weight"] @ h)[None]])
    mixed = silu(np.sum(weights["linear_attn.conv1d.weight"][:, 0].T * memory.window, axis=0))
    q, k, v = np.split(mixed, [keys * key_dim, 2 * keys * key_dim])
    # Value head j reads key head j // (values / keys).
    q = np.repeat(l2_norm(q.reshape(keys, key_dim)) / np.sqrt(key_dim), values // keys, axis=0)
    k = np.repeat(l2_norm(k.reshape(keys, key_dim)), values // keys, axis=0)
    v = v.reshape(values, value_dim)

    eta = sigmoid(weights["linear_attn.in_proj_b.weight"] @ h)
    rate = softplus(weights["linear_attn.in_proj_a.weight"] @ h + weights["linear_attn.dt_bias"])
    alpha = np.exp(-np.exp(weights["linear_attn.A_log"]) * rate)
    memory.state, out = delta_rule(memory.state, q, k, v, alpha, eta)

    gate = (weights["linear_attn.in_proj_z.weight"] @ h).reshape(values, value_dim)
    out = rms_norm(out, weights["linear_attn.norm.weight"], config.norm_eps) * silu(gate)
    return weights["linear_attn.out_proj.weight"] @ out.reshape(values * value_dim)
