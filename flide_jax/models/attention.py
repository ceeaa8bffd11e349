"""Gated softmax attention over a forked stream (paper Eq. 3)."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int32

from flide_jax.layout.growth import GrowthMetadata
from flide_jax.models.layers import RotaryConfig, RotaryTable, rms_norm, rotate
from flide_jax.models.params import Param
from flide_jax.models.pool import KeyPages
from pallas_kernels import KeySpans, fork_attention, matmul
from pallas_kernels.dispatch import Implementation


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    """Sizes: H query heads, KV key heads, D dims of a head, and the rotary positions."""

    query_heads: int
    key_heads: int
    head_dim: int
    rotary: RotaryConfig


@struct.dataclass
class AttentionParams:
    """Rows of `in_proj` are [query | gate | key | value], heads contiguous in each."""

    in_proj: Param  # [(2H + 2KV) D, d]
    query_norm: Param  # [D]
    key_norm: Param  # [D]
    out_proj: Param  # [d, H D]


def gated_attention(
    params: AttentionParams,
    hidden: Float[Array, "T d"],
    rotary: RotaryTable,
    spans: KeySpans,
    config: AttentionConfig,
    *,
    residual: Float[Array, "N d"],
    rows: Int32[Array, " N"] | None = None,
    pages: KeyPages | None = None,
    growth: GrowthMetadata | None = None,
    epsilon: float,
    implementation: Implementation = None,
) -> tuple[Float[Array, "N d"], KeyPages | None]:
    """`residual` + attention with normed queries and keys and a sigmoid gate on its output.

    Every row of `hidden` gives a key and a value. Queries, gate and output are computed at `rows` only, or
    everywhere (N = T) when it is None. Norms and rotation are float32 at least. In a growing round, rows see the keys
    in `pages` that `growth` names, and the pages are returned with the new keys that are kept.
    """
    heads, key_heads, head_dim = config.query_heads, config.key_heads, config.head_dim
    if rows is None:
        projected = matmul(hidden, params.in_proj, implementation=implementation)
        query, gate, key, value = jnp.split(
            projected, [heads * head_dim, 2 * heads * head_dim, (2 * heads + key_heads) * head_dim], axis=1
        )
        query_rotary = rotary
    else:
        of_rows, of_all = params.in_proj[: 2 * heads * head_dim], params.in_proj[2 * heads * head_dim :]
        query, gate = jnp.split(matmul(hidden[rows], of_rows, implementation=implementation), 2, axis=1)
        key, value = jnp.split(matmul(hidden, of_all, implementation=implementation), 2, axis=1)
        query_rotary, spans = rotary.of_rows(rows), spans.of_rows(rows)

    query = query.reshape(-1, heads, head_dim)
    key, value = (x.reshape(-1, key_heads, head_dim) for x in (key, value))
    query = rotate(rms_norm(query, params.query_norm, epsilon=epsilon), query_rotary).astype(hidden.dtype)
    key = rotate(rms_norm(key, params.key_norm, epsilon=epsilon), rotary).astype(hidden.dtype)
    cached = None
    if pages is not None and growth is not None:
        # Written first: what is read is elsewhere, and so one version of the pages is alive at a time.
        pages = pages.keep(key, value, growth)
        cached = pages.cached(growth)
        cached = cached if rows is None else cached.of_rows(rows)
    with jax.named_scope("fork_attention"):
        mixed = fork_attention(
            query, key, value, spans, cached=cached, scale=head_dim**-0.5, implementation=implementation
        )
    mixed = mixed.reshape(-1, heads * head_dim).astype(params.query_norm.dtype)
    gated = mixed * jax.nn.sigmoid(gate.astype(mixed.dtype))
    out = matmul(gated.astype(hidden.dtype), params.out_proj, residual=residual, implementation=implementation)
    return out, pages
