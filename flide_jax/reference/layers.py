"""Norms, activations and the MLP, for one token."""

import numpy as np
from jaxtyping import Float64

from flide_jax.reference.checkpoint import Weights

Array = np.ndarray


def rms_norm(x: Float64[Array, "*heads n"], scale: Float64[Array, " n"], eps: float) -> Float64[Array, "*heads n"]:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis. Qwen's norms but one store scale - 1."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * scale


def sigmoid(x: Float64[Array, "..."]) -> Float64[Array, "..."]:
    """1 / (1 + exp(-x)), without overflow."""
    return np.exp(-np.logaddexp(0, -x))


def silu(x: Float64[Array, "..."]) -> Float64[Array, "..."]:
    """x sigmoid(x)."""
    return x * sigmoid(x)


def softplus(x: Float64[Array, "..."]) -> Float64[Array, "..."]:
    """log(1 + exp(x)), without overflow."""
    return np.logaddexp(0, x)


def softmax(x: Float64[Array, "*rows n"]) -> Float64[Array, "*rows n"]:
    """Over the last axis."""
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def mlp(h: Float64[Array, " d"], weights: Weights) -> Float64[Array, " d"]:
    """(silu(gate) * up) projected down."""
    gate, up = weights["mlp.gate_proj.weight"] @ h, weights["mlp.up_proj.weight"] @ h
    return weights["mlp.down_proj.weight"] @ (silu(gate) * up)
