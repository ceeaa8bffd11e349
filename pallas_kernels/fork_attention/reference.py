"""Eq. 3 as it is written: one dense mask, one softmax."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels import dispatch
from pallas_kernels.fork_attention.metadata import CachedKeys, KeySpans
from pallas_kernels.precision import accumulation_dtype


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
    """See `api.fork_attention`. Builds the [H, N, T] scores, cached keys being more rows of T.

    Raises NotImplementedError: batch-invariant.
    """
    if batch_invariant:
        dispatch.check_batch_invariant("fork_attention", "reference")
    visible = spans.visible(key.shape[0])
    if cached is not None:
        cached_key, cached_value = cached.gathered()
        key, value = jnp.concatenate([cached_key, key]), jnp.concatenate([cached_value, value])
        visible = jnp.concatenate([cached.visible(), visible], axis=1)
    dtype = accumulation_dtype(query.dtype)
    group = query.shape[1] // key.shape[1]
    q = query.astype(dtype)
    k = jnp.repeat(key.astype(dtype), group, axis=1)
    v = jnp.repeat(value.astype(dtype), group, axis=1)

    scores = scale * jnp.einsum("nhd,thd->hnt", q, k, precision="highest")
    scores = jnp.where(visible[None], scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True, initial=jnp.finfo(dtype).min)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1)

    def one_row(row: tuple[Array, Array]) -> Array:
        weights_ht, visible_t = row
        # Hidden values are replaced before they meet their zero weight: 0 * NaN is NaN.
        return jnp.einsum("ht,thd->hd", weights_ht, jnp.where(visible_t[:, None, None], v, 0), precision="highest")

    summed = jax.lax.map(one_row, (jnp.swapaxes(weights, 0, 1), visible))
    return (summed / jnp.where(total == 0, 1, total).T[:, :, None]).astype(query.dtype)
