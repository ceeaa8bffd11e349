"""Fork attention by blocks of query rows: runs anywhere, differentiable, memory linear in the stream."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32

from pallas_kernels import dispatch
from pallas_kernels.fork_attention.metadata import CachedKeys, KeySpans
from pallas_kernels.fork_attention.xla_chunks import fork_attention_in_chunks
from pallas_kernels.precision import accumulation_dtype

# Rows of one block: H * 128 * T scores live at once (61 MB at 16 heads, T = 7,500).
BLOCK_ROWS = 128

type _Ends = tuple[Int32[Array, " N"], Int32[Array, " N"]]  # begin and end of each row's cached span


def fork_attention(
    query: Float[Array, "N H D"],
    key: Float[Array, "T KV D"],
    value: Float[Array, "T KV D"],
    spans: KeySpans,
    *,
    cached: CachedKeys | None = None,
    scale: float,
    finite: bool = False,
    batch_invariant: bool = False,
) -> Float[Array, "N H D"]:
    """See `api.fork_attention`. No [T, T] array is built: one block of rows after another meets all keys.

    Cached keys are gathered from their pages to stand before those of the stream.

    Raises NotImplementedError: batch-invariant elsewhere than on a CPU.
    """
    if batch_invariant:
        dispatch.check_batch_invariant("fork_attention", "xla", on_cpu=True)
        return fork_attention_in_chunks(query, key, value, spans, scale=scale)
    rows, heads, head_dim = query.shape
    stream_rows, key_heads, _ = key.shape
    if cached is not None:
        cached_key, cached_value = cached.gathered()
        key, value = jnp.concatenate([cached_key, key]), jnp.concatenate([cached_value, value])
    dtype = accumulation_dtype(query.dtype)
    blocks = -(-rows // BLOCK_ROWS)

    def in_blocks(x: Array | np.ndarray) -> Array:
        padded = jnp.pad(x, ((0, blocks * BLOCK_ROWS - rows),) + ((0, 0),) * (x.ndim - 1))
        return padded.reshape(blocks, BLOCK_ROWS, *x.shape[1:])

    k = key.astype(dtype)
    v = value.astype(dtype)
    whole = jnp.isfinite(v)
    finite_v = jnp.where(whole, v, 0)
    broken = ~jnp.all(whole, axis=-1)

    @jax.checkpoint  # the backward pass recomputes a block's scores instead of keeping all of them
    def attend(block: tuple[Array, KeySpans, _Ends | None]) -> Array:
        q, block_spans, ends = block
        visible = block_spans.visible(stream_rows)
        if cached is not None and ends is not None:
            of_block = dataclasses.replace(cached, begin=ends[0], end=ends[1])
            visible = jnp.concatenate([of_block.visible(), visible], axis=1)
        q = q.astype(dtype).reshape(BLOCK_ROWS, key_heads, heads // key_heads, head_dim)
        scores = scale * jnp.einsum("nkgd,tkd->kgnt", q, k, precision="highest")
        weights, total = _masked_exponentials(scores, visible)
        summed = jnp.einsum("kgnt,tkd->nkgd", weights, finite_v, precision="highest")
        out = summed / jnp.where(total == 0, 1, total).transpose(2, 0, 1)[..., None]
        # A zero weight times a hidden NaN would be NaN, so non-finite values are left out above and told here.
        sees_broken = jnp.any(visible[:, :, None] & broken[None], axis=1)
        out = jnp.where(sees_broken[:, :, None, None], jnp.nan, out)
        return out.reshape(BLOCK_ROWS, heads, head_dim).astype(query.dtype)

    ends = None if cached is None else (cached.begin, cached.end)
    out = jax.lax.map(attend, jax.tree.map(in_blocks, (query, spans, ends)))
    return out.reshape(blocks * BLOCK_ROWS, heads, head_dim)[:rows]


def _masked_exponentials(
    scores: Float[Array, "KV G N T"], visible: Bool[Array, "N T"]
) -> tuple[Float[Array, "KV G N T"], Float[Array, "KV G N"]]:
    """exp(score - row maximum) where visible, 0 elsewhere, and its sum over T (0 for a row that sees nothing)."""
    visible = visible[None, None]
    scores = jnp.where(visible, scores, 0)  # before exp: a hidden NaN must not reach the gradient
    top = jnp.max(scores, axis=-1, keepdims=True, where=visible, initial=jnp.finfo(scores.dtype).min)
    weights = jnp.where(visible, jnp.exp(scores - jax.lax.stop_gradient(top)), 0)
    return weights, jnp.sum(weights, axis=-1)
