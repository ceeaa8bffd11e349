"""The least time that a pass, or a layer of it, can take on an H200 in bfloat16, whatever computes it.

Arithmetic at 790 TFLOP/s, or what has to be read and written at 4.3 TB/s where that takes longer; both rates were
measured there (`pallas_kernels.bench`). For the tokens of the requests, without padding.
"""

from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from experiments.measured_model import LABELS
from flide_jax.models import families
from flide_jax.models.gated_delta_net import GatedDeltaNetConfig
from flide_jax.models.params import total_bytes
from flide_jax.models.qwen3_5 import Qwen35Config
from flide_jax.models.qwen3_5.config import LayerKind
from pallas_kernels.bench import BYTES_PER_SECOND, OPERATIONS_PER_SECOND
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from pallas_kernels.trees import Request


def of_pass(size: Qwen35Config, requests: Sequence[Request]) -> float:
    """Seconds of one pass over all of these requests: products, attention and recurrence, or reading the weights.

    The last layer counts at every row, as any layer does. An engine that runs it at the read rows may need 3 % less.
    """
    gdn, attention = size.gated_delta_net, size.attention
    layers = {kind: size.layers.count(kind) for kind in LayerKind}
    specs = families.QWEN3_5.abstract(size, labels=LABELS, dtype=np.dtype(jnp.bfloat16))
    weights = total_bytes(specs) - specs.embedding.bytes
    scores = layers[LayerKind.ATTENTION] * 4 * attention.query_heads * attention.head_dim * _pairs(requests)
    recurrence = layers[LayerKind.GATED_DELTA_NET] * _recurrence(gdn) * _tokens(requests)
    operations = weights * _tokens(requests) + scores + recurrence  # two operations for each weight of two bytes
    return max(operations / OPERATIONS_PER_SECOND, weights / BYTES_PER_SECOND)


def of_layer(kind: LayerKind, size: Qwen35Config, requests: Sequence[Request]) -> Mapping[str, float]:
    """Microseconds of each op of a layer, by the names of `layer_launches`."""
    tokens = _tokens(requests)
    gdn, attention, width = size.gated_delta_net, size.attention, size.width

    def floor(operations: float, numbers: float) -> float:
        return 1e6 * max(operations / OPERATIONS_PER_SECOND, 2 * numbers / BYTES_PER_SECOND)

    def product(columns: int, depth: int, *, swiglu: bool = False, residual: bool = False) -> float:
        written = columns // 2 if swiglu else columns * (1 + residual)
        return floor(2 * tokens * columns * depth, tokens * (depth + written) + columns * depth)

    found = {
        "norm": 2 * floor(0, 2 * tokens * width),
        "gate_up": product(2 * size.feed_forward_width, width, swiglu=True),
        "down": product(width, size.feed_forward_width, residual=True),
    }
    if kind is LayerKind.ATTENTION:
        heads, keys = attention.query_heads * attention.head_dim, attention.key_heads * attention.head_dim
        return found | {
            "in_proj": product(2 * heads + 2 * keys, width),
            "rotary norm": floor(0, 2 * tokens * (heads + 2 * keys)),
            "attention": floor(4 * heads * _pairs(requests), tokens * (2 * heads + 2 * keys)),
            "out_proj": product(width, heads, residual=True),
        }
    return found | {
        "in_proj": product(gdn.conv_channels + gdn.value_channels + 2 * gdn.value_heads, width),
        "convolution": floor(0, 2 * tokens * gdn.conv_channels),
        "recurrence": floor(_recurrence(gdn) * tokens, tokens * (gdn.conv_channels + gdn.value_channels)),
        "gated norm": floor(0, 3 * tokens * gdn.value_channels),
        "out_proj": product(width, gdn.value_channels, residual=True),
    }


def _tokens(requests: Sequence[Request]) -> int:
    return sum(request.state + sum(request.branches) for request in requests)


def _pairs(requests: Sequence[Request]) -> float:
    """Of a row and a key that it sees."""
    return sum(
        request.state**2 / 2 + sum(length * request.state + length**2 / 2 for length in request.branches)
        for request in requests
    )


def _recurrence(gdn: GatedDeltaNetConfig) -> float:
    """Operations for a token: of every value head three products with the state, and four inside a chunk."""
    return gdn.value_heads * 2 * (3 * gdn.key_dim * gdn.value_dim + 4 * CHUNK_ROWS * gdn.value_dim)
