"""Architecture of a Qwen3.5 text model."""

import dataclasses
import enum
from typing import Any

from flide_jax.models.attention import AttentionConfig
from flide_jax.models.gated_delta_net import GatedDeltaNetConfig
from flide_jax.models.layers import RotaryConfig


class LayerKind(enum.StrEnum):
    """Mixer of a layer, by the names of config.json."""

    GATED_DELTA_NET = "linear_attention"
    ATTENTION = "full_attention"


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "max_position_embeddings",
)


@dataclasses.dataclass(frozen=True)
class Qwen35Config:
    """Sizes of the model, and nothing about how it runs.

    Attributes:
        vocabulary: rows of the embedding (V).
        width: of the residual stream (d).
        feed_forward_width: f.
        layers: mixer of each layer.
        attention, gated_delta_net: sizes of the two mixers.
        norm_epsilon: of every RMS norm.
        tied_head: whether the head's rows are the embedding's.
        max_tokens: longest text the model was made for.
    """

    vocabulary: int
    width: int
    feed_forward_width: int
    layers: tuple[LayerKind, ...]
    attention: AttentionConfig
    gated_delta_net: GatedDeltaNetConfig
    norm_epsilon: float
    tied_head: bool
    max_tokens: int

    @classmethod
    def from_transformers(cls, config: Any) -> "Qwen35Config":
        """From a `Qwen3_5Config` or `Qwen3_5TextConfig`.

        Raises:
            NotImplementedError: attention biases, an activation other than silu, or scaled rotary positions.
            ValueError: another text model inside, or sizes that do not go together.
        """
        text = config.get_text_config()
        if text.model_type != "qwen3_5_text":
            raise ValueError(f"text_config: model_type {text.model_type!r} is not supported, only 'qwen3_5_text'")
        rope = text.rope_parameters
        if text.attention_bias:
            raise NotImplementedError("attention_bias: true is not supported")
        if text.hidden_act != "silu":
            raise NotImplementedError(f"hidden_act: {text.hidden_act!r} is not supported, only 'silu'")
        if rope.get("rope_type", "default") != "default":
            raise NotImplementedError(f"rope_type: {rope['rope_type']!r} is not supported, only 'default'")
        if small := [name for name in _SIZES if getattr(text, name) < 1]:
            raise ValueError(f"{small[0]} must be 1 or more, got {getattr(text, small[0])}")
        dims = int(text.head_dim * rope.get("partial_rotary_factor", 1.0))
        for many, few in (
            ("num_attention_heads", "num_key_value_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            if getattr(text, many) % getattr(text, few):
                raise ValueError(f"{many} {getattr(text, many)} is not a multiple of {few} {getattr(text, few)}")
        return cls(
            vocabulary=text.vocab_size,
            width=text.hidden_size,
            feed_forward_width=text.intermediate_size,
            layers=tuple(LayerKind(kind) for kind in text.layer_types),
            attention=AttentionConfig(
                query_heads=text.num_attention_heads,
                key_heads=text.num_key_value_heads,
                head_dim=text.head_dim,
                rotary=RotaryConfig(
                    dims=dims,
                    theta=float(rope["rope_theta"]),
                    axes=_interleaved_axes(dims // 2, rope.get("mrope_section", (11, 11, 10))),
                ),
            ),
            gated_delta_net=GatedDeltaNetConfig(
                key_heads=text.linear_num_key_heads,
                value_heads=text.linear_num_value_heads,
                key_dim=text.linear_key_head_dim,
                value_dim=text.linear_value_head_dim,
                conv_taps=text.linear_conv_kernel_dim,
            ),
            norm_epsilon=text.rms_norm_eps,
            tied_head=bool(text.tie_word_embeddings or config.tie_word_embeddings),
            max_tokens=text.max_position_embeddings,
        )


def conv_taps(config: Qwen35Config) -> int:
    """Taps of the short convolution."""
    return config.gated_delta_net.conv_taps


def _interleaved_axes(frequencies: int, sections: tuple[int, ...] | list[int]) -> tuple[int, ...]:
    """Axis of each frequency: time, height, width in turn, as long as height and width have frequencies left."""
    if len(sections) != 3:
        raise ValueError(f"mrope_section must hold three counts, got {list(sections)}")
    return tuple(j % 3 if j % 3 and j < 3 * sections[j % 3] else 0 for j in range(frequencies))
