"""Fork attention by blocks of query rows: runs anywhere, differentiable, memory linear in the stream."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.precision import accumulation_dtype

# Rows of one block: H * 128 * T scores live at once (61 MB at 16 heads, T = 7,500).
BLOCK_ROWS = 128


def fork_attention(
    query: Float[Array, "N H D"],
    key: Float[Array, "T KV D"],
    value: Float[Array, "T KV D"],
    spans: KeySpans,
    *,
    scale: float,
) -> Float[Array, "N H D"]:
    """See `api.fork_attention`. No [T, T] array is built: one block of rows after another meets all keys."""
    rows, heads, head_dim = query.shape
    key_rows, key_heads, _ = key.shape
    dtype = accumulation_dtype(query.dtype)
    blocks = -(-rows // BLOCK_ROWS)

    def in_blocks(x: Array | np.ndarray) -> Array:
        padded = jnp.pad(x, ((0, blocks * BLOCK_ROWS - rows),) + ((0, 0),) * (x.ndim - 1))
        return padded.reshape(blocks, BLOCK_ROWS, *x.shape[1:])

    k = key.astype(dtype)
    v = value.astype(dtype)
    finite = jnp.isfinite(v)
    finite_v = jnp.where(finite, v, 0)
    broken = ~jnp.all(finite, axis=-1)

    @jax.checkpoint  # the backward pass recomputes a block's scores instead of keeping all of them
    def attend(block: tuple[Array, KeySpans]) -> Array:
        q, block_spans = block
        visible = block_spans.visible(key_rows)
        q = q.astype(dtype).reshape(BLOCK_ROWS, key_heads, heads // key_heads, head_dim)
        scores = scale * jnp.einsum("nkgd,tkd->kgnt", q, k, precision="highest")
        weights, total = _masked_exponentials(scores, visible)
        summed = jnp.einsum("kgnt,tkd->nkgd", weights, finite_v, precision="highest")
        out = summed / jnp.where(total == 0, 1, total).transpose(2, 0, 1)[..., None]
        # A zero weight times a hidden NaN would be NaN, so non-finite values are left out above and told here.
        sees_broken = jnp.any(visible[:, :, None] & broken[None], axis=1)
        out = jnp.where(sees_broken[:, :, None, None], jnp.nan, out)
        return out.reshape(BLOCK_ROWS, heads, head_dim).astype(query.dtype)

    out = jax.lax.map(attend, (in_blocks(query), jax.tree.map(in_blocks, spans)))
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
