"""Gated softmax attention over a forked stream (paper Eq. 3)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int32

from flide_jax.layout.growth import GrowthMetadata
from flide_jax.layout.ranges import in_chunk_rows
from flide_jax.models.layers import RotaryConfig, RotaryTable
from flide_jax.models.params import Param
from flide_jax.models.pool import KeyPages
from pallas_kernels import KeySpans, Segments, fork_attention, matmul, rotary_norm
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
    chunks: Segments | None = None,
    implementation: Implementation = None,
) -> tuple[Float[Array, "N d"], KeyPages | None]:
    """`residual` + attention with normed queries and keys and a sigmoid gate on its output.

    Every row of `hidden` gives a key and a value. Queries, gate and output are computed at `rows` only, or
    everywhere (N = T) when it is None. Norms and rotation are float32 at least. In a growing round, rows see the keys
    in `pages` that `growth` names, and the pages are returned with the new keys that are kept.

    With `chunks` it is batch-invariant: queries meet keys in the chunk rows of these segments, all of them, and what
    comes out is taken at `rows`.
    """
    heads, key_heads, head_dim = config.query_heads, config.key_heads, config.head_dim
    multiply = functools.partial(matmul, batch_invariant=chunks is not None, implementation=implementation)
    query_rows = rows if chunks is None else None
    if query_rows is None:
        of_queries = of_keys = checkpoint_name(multiply(hidden, params.in_proj), "in_proj")
        key_begin, query_rotary = 2 * heads * head_dim, rotary
    else:
        query_columns = 2 * heads * head_dim
        of_queries = multiply(hidden[query_rows], params.in_proj[:query_columns])
        of_keys = multiply(hidden, params.in_proj[query_columns:])
        key_begin, query_rotary, spans = 0, rotary.of_rows(query_rows), spans.of_rows(query_rows)

    normed = functools.partial(rotary_norm, epsilon=epsilon, implementation=implementation)
    (query,) = normed(of_queries, params.query_norm, query_rotary.cos, query_rotary.sin, heads=heads, begin=0)
    key, value = normed(
        of_keys,
        params.key_norm,
        rotary.cos,
        rotary.sin,
        heads=key_heads,
        begin=key_begin,
        value_begin=key_begin + key_heads * head_dim,
    )
    gate = of_queries[:, heads * head_dim : 2 * heads * head_dim]
    query, key = checkpoint_name(query, "query"), checkpoint_name(key, "key")
    cached = None
    if pages is not None and growth is not None:
        cached = pages.cached(growth)
        cached = cached if rows is None else cached.of_rows(rows)
    attend = functools.partial(
        fork_attention, cached=cached, scale=head_dim**-0.5, finite=True, implementation=implementation
    )
    with jax.named_scope("fork_attention"):
        if chunks is None:
            mixed = attend(query, key, value, spans)
        else:
            query, key, value = map(chunks.in_chunk_rows, (query, key, value))
            mixed = attend(query, key, value, in_chunk_rows(spans, chunks), batch_invariant=True)
            chunk_row = jnp.asarray(chunks.chunk_row)
            mixed = mixed[chunk_row if rows is None else chunk_row[rows]]
            gate = gate if rows is None else gate[rows]
    if pages is not None and growth is not None:
        # Written when they have been read, so that no version is copied, and beside what follows, which waits for none.
        mixed, pages = lax.optimization_barrier((mixed, pages))
        pages = pages.keep(key, value, growth)
    mixed = checkpoint_name(mixed, "attention").reshape(-1, heads * head_dim).astype(params.query_norm.dtype)
    gated = checkpoint_name((mixed * jax.nn.sigmoid(gate.astype(mixed.dtype))).astype(hidden.dtype), "gate")
    return checkpoint_name(multiply(gated, params.out_proj, residual=residual), "out_proj"), pages
