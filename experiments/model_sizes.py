"""The true sizes of the released Qwen3.5 models, for measuring speed with random weights."""

from flide_jax.models.attention import AttentionConfig
from flide_jax.models.gated_delta_net import GatedDeltaNetConfig
from flide_jax.models.layers import RotaryConfig
from flide_jax.models.qwen3_5 import Qwen35Config
from flide_jax.models.qwen3_5.config import LayerKind


def _dense(width: int, layers: int, feed_forward: int, heads: tuple[int, int], value_heads: int) -> Qwen35Config:
    """Three GDN layers and one of attention a period; what all sizes share is filled in."""
    return Qwen35Config(
        vocabulary=248_320,
        width=width,
        feed_forward_width=feed_forward,
        layers=(3 * (LayerKind.GATED_DELTA_NET,) + (LayerKind.ATTENTION,)) * (layers // 4),
        attention=AttentionConfig(
            query_heads=heads[0],
            key_heads=heads[1],
            head_dim=256,
            rotary=RotaryConfig(dims=64, theta=1e7, axes=tuple(j % 3 if j < 32 else 0 for j in range(32))),
        ),
        gated_delta_net=GatedDeltaNetConfig(
            key_heads=16, value_heads=value_heads, key_dim=128, value_dim=128, conv_taps=4
        ),
        norm_epsilon=1e-6,
        tied_head=True,
        max_tokens=262_144,
    )


SIZES = {
    "0.8B": _dense(1024, 24, 3584, (8, 2), 16),
    "2B": _dense(2048, 24, 6144, (8, 2), 16),
    "4B": _dense(2560, 32, 9216, (16, 4), 32),
    "9B": _dense(4096, 32, 12288, (16, 4), 32),
    "27B": _dense(5120, 64, 17408, (24, 4), 48),
}
