"""Tiny Qwen3.5 text configurations, each small enough to run in float64 in milliseconds.

All have key and value dims of Gated DeltaNet that differ or an odd number of heads, so that a transposed state or a
wrongly repeated key head changes the answer.
"""

from transformers import Qwen3_5TextConfig

LINEAR, FULL = "linear_attention", "full_attention"

_BASE = dict(
    vocab_size=97,
    hidden_size=64,
    intermediate_size=112,
    num_hidden_layers=4,
    layer_types=[LINEAR, LINEAR, FULL, FULL],
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    linear_num_key_heads=2,
    linear_num_value_heads=6,
    linear_key_head_dim=16,
    linear_value_head_dim=24,
    linear_conv_kernel_dim=4,
    max_position_embeddings=8192,
    tie_word_embeddings=False,
)
_ROPE = dict(
    rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25, mrope_section=[3, 3, 2], mrope_interleaved=True
)

CONFIGS: dict[str, dict] = {
    # Three value heads a key head (27B); two adjacent layers of each kind.
    "untied": {},
    "tied": dict(tie_word_embeddings=True),
    # As many value heads as key heads (0.8B and 2B) in the released order of layers.
    "equal_heads": dict(
        tie_word_embeddings=True,
        layer_types=[LINEAR, LINEAR, LINEAR, FULL],
        linear_num_key_heads=3,
        linear_num_value_heads=3,
    ),
    # Every head count that can be odd is, with a single key/value head; time keeps what height and width leave.
    "one_kv_head": dict(
        head_dim=32,
        rope_parameters=_ROPE | dict(mrope_section=[3, 1, 0]),
        layer_types=[LINEAR, LINEAR, LINEAR, FULL],
        num_attention_heads=3,
        num_key_value_heads=1,
        linear_num_key_heads=1,
        linear_num_value_heads=3,
        hidden_size=40,
        intermediate_size=56,
    ),
    # Two periods of the released order with two value heads a key head (4B and 9B): attention feeds Gated DeltaNet.
    "two_periods": dict(
        head_dim=32,
        rope_parameters=_ROPE | dict(mrope_section=[2, 1, 1]),
        tie_word_embeddings=True,
        num_hidden_layers=8,
        layer_types=2 * [LINEAR, LINEAR, LINEAR, FULL],
        linear_num_value_heads=4,
        hidden_size=48,
        intermediate_size=64,
    ),
}


def text_config(name: str, **changes) -> Qwen3_5TextConfig:
    """The named tiny configuration, with fields of the transformers config replaced by `changes`."""
    return Qwen3_5TextConfig(**(_BASE | dict(rope_parameters=dict(_ROPE)) | CONFIGS[name] | changes))
