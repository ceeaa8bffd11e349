"""Fork attention by blocks of query rows: runs anywhere, differentiable, memory linear in the stream."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int32

from pallas_kernels import dispatch
from pallas_kernels.fork_attention.metadata import PAGE_ROWS, CachedKeys, KeySpans
from pallas_kernels.fork_attention.running_softmax import RunningSoftmax
from pallas_kernels.fork_attention.xla_chunks import fork_attention_in_chunks
from pallas_kernels.precision import accumulation_dtype

# Rows of one block: H * 128 * T scores live at once (61 MB at 16 heads, T = 7,500).
BLOCK_ROWS = 128
# Pages of cached keys that a block meets at a time.
PAGES_AT_ONCE = 8

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

    Cached keys are met behind those of the stream, some pages at a time, and only those that a block's rows see.

    Raises NotImplementedError: batch-invariant elsewhere than on a CPU.
    """
    if batch_invariant:
        dispatch.check_batch_invariant("fork_attention", "xla", on_cpu=True)
        return fork_attention_in_chunks(query, key, value, spans, scale=scale)
    rows, heads, head_dim = query.shape
    stream_rows, key_heads, _ = key.shape
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
        q = q.astype(dtype).reshape(BLOCK_ROWS, key_heads, heads // key_heads, head_dim)
        scores = scale * jnp.einsum("nkgd,tkd->kgnt", q, k, precision="highest")
        weights, total, top = _masked_exponentials(scores, visible)
        summed = jnp.einsum("kgnt,tkd->nkgd", weights, finite_v, precision="highest")
        if cached is None or ends is None:
            out = summed / jnp.where(total == 0, 1, total).transpose(2, 0, 1)[..., None]
        else:
            of_stream = RunningSoftmax(jnp.moveaxis(summed, 0, 2), top, total)
            out = _with_cached(of_stream, q, cached, ends, scale=scale).mean()
        # A zero weight times a hidden NaN would be NaN, so non-finite values are left out above and told here.
        sees_broken = jnp.any(visible[:, :, None] & broken[None], axis=1)
        out = jnp.where(sees_broken[:, :, None, None], jnp.nan, out)
        return out.reshape(BLOCK_ROWS, heads, head_dim).astype(query.dtype)

    ends = None if cached is None else (cached.begin, cached.end)
    out = lax.map(attend, jax.tree.map(in_blocks, (query, spans, ends)))
    return out.reshape(blocks * BLOCK_ROWS, heads, head_dim)[:rows]


def _with_cached(
    softmax: RunningSoftmax, query: Float[Array, "N KV G D"], cached: CachedKeys, ends: _Ends, *, scale: float
) -> RunningSoftmax:
    """With the cached keys that some rows see, whose values are finite."""
    begin, end = (x[:, None] for x in ends)
    table = jnp.pad(jnp.asarray(cached.table), (0, -cached.table.shape[0] % PAGES_AT_ONCE))

    def meet(softmax: RunningSoftmax, some: tuple[Int32[Array, ""], Int32[Array, " pages"]]) -> tuple[Any, None]:
        first, pages = some
        row = first + jnp.arange(PAGES_AT_ONCE * PAGE_ROWS, dtype=jnp.int32)[None]
        visible = (begin <= row) & (row < end)

        def joined() -> RunningSoftmax:
            keys, values = (
                jnp.asarray(x)[pages].reshape(row.size, *x.shape[2:]).astype(query.dtype)
                for x in (cached.key, cached.value)
            )
            scores = scale * jnp.einsum("nkgd,tkd->kgnt", query, keys, precision="highest")
            # The pages of unused entries are anybody's, and may hold anything.
            values = jnp.where(jnp.any(visible, axis=0)[:, None, None], values, 0)
            return softmax.joined(jnp.where(visible, scores, -jnp.inf), values)

        return lax.cond(jnp.any(visible), joined, lambda: softmax), None

    groups = table.reshape(-1, PAGES_AT_ONCE)
    firsts = PAGES_AT_ONCE * PAGE_ROWS * jnp.arange(groups.shape[0], dtype=jnp.int32)
    return lax.scan(meet, softmax, (firsts, groups))[0]


def _masked_exponentials(
    scores: Float[Array, "KV G N T"], visible: Bool[Array, "N T"]
) -> tuple[Float[Array, "KV G N T"], Float[Array, "KV G N"], Float[Array, "KV G N"]]:
    """exp(score - maximum) where visible, 0 elsewhere; its sum over T, 0 for a row that sees nothing; the maximum."""
    visible = visible[None, None]
    scores = jnp.where(visible, scores, 0)  # before exp: a hidden NaN must not reach the gradient
    top = jnp.max(scores, axis=-1, keepdims=True, where=visible, initial=jnp.finfo(scores.dtype).min)
    top = lax.stop_gradient(top)
    weights = jnp.where(visible, jnp.exp(scores - top), 0)
    return weights, jnp.sum(weights, axis=-1), top[..., 0]
