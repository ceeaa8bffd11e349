"""The Qwen3.5 text model over one sequence, a token at a time: every layer of a token, then the next token."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int

from flide_jax.reference.attention import KeysAndValues, attention
from flide_jax.reference.checkpoint import Config, Weights
from flide_jax.reference.gated_delta_net import Memory, gated_delta_net
from flide_jax.reference.layers import Array, mlp, rms_norm, softmax

Tokens = Sequence[int] | Int[Array, " T"]
Labels = Sequence[int] | Int[Array, " labels"]


def hidden_states(
    weights: Weights, config: Config, tokens: Tokens, *, positions: Int[Array, "3 T"] | None = None
) -> Float64[Array, "rows T d"]:
    """The residual stream after the embedding and after each layer: rows = layers + 1.

    `positions` are rotary positions on the axes time, height, width; None means text, 0, 1, ... on all three. Raises
    ValueError for token ids outside the vocabulary and for no tokens.
    """
    ids = np.asarray(tokens)
    embedding = weights["model.embed_tokens.weight"]
    if len(ids) == 0 or ids.min() < 0 or ids.max() >= len(embedding):
        raise ValueError(f"tokens: at least one id in 0..{len(embedding) - 1} is needed")
    if positions is None:
        positions = np.tile(np.arange(len(ids)), (3, 1))
    layers = [_layer_weights(weights, i) for i in range(len(config.layer_types))]
    memories = [KeysAndValues() if kind == "full_attention" else Memory.empty(config) for kind in config.layer_types]
    stream = np.empty((len(layers) + 1, len(ids), embedding.shape[1]))
    for t, token in enumerate(ids):
        stream[0, t] = embedding[token]
        for i, (layer, memory) in enumerate(zip(layers, memories, strict=True)):
            stream[i + 1, t] = _layer(stream[i, t], layer, config, positions[:, t], memory)
    return stream


def label_logits(
    weights: Weights, config: Config, tokens: Tokens, label_ids: Labels, *, positions: Int[Array, "3 T"] | None = None
) -> Float64[Array, " labels"]:
    """w_o . h for each label token o: h is the normed hidden state at the last token, w_o the head's row (Eq. 1)."""
    last = hidden_states(weights, config, tokens, positions=positions)[-1, -1]
    head = weights["model.embed_tokens.weight" if config.tied else "lm_head.weight"]
    return head[np.asarray(label_ids)] @ rms_norm(last, 1 + weights["model.norm.weight"], config.norm_eps)


def probabilities(
    weights: Weights, config: Config, tokens: Tokens, label_ids: Labels, *, positions: Int[Array, "3 T"] | None = None
) -> Float64[Array, " labels"]:
    """The probability of each label token among the labels (Eq. 1)."""
    return softmax(label_logits(weights, config, tokens, label_ids, positions=positions))


def _layer_weights(weights: Weights, layer: int) -> Weights:
    prefix = f"model.layers.{layer}."
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _layer(
    x: Float64[Array, " d"], weights: Weights, config: Config, position: Int[Array, "3"], memory: KeysAndValues | Memory
) -> Float64[Array, " d"]:
    h = rms_norm(x, 1 + weights["input_layernorm.weight"], config.norm_eps)
    if isinstance(memory, KeysAndValues):
        x = x + attention(h, weights, config, position, memory)
    else:
        x = x + gated_delta_net(h, weights, config, memory)
    h = rms_norm(x, 1 + weights["post_attention_layernorm.weight"], config.norm_eps)
    return x + mlp(h, weights)
