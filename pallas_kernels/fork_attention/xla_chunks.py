"""Fork attention chunk by chunk: every product has the shape of one chunk of rows and one of keys, whatever the stream.

A row meets its state's chunks of keys, then its own piece's, one after the other. So its bits depend neither on where
these stand nor on how long the stream is. Runs anywhere; not differentiable, since the lists of keys have any length.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.fork_attention.running_softmax import RunningSoftmax
from pallas_kernels.precision import accumulation_dtype
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS


def fork_attention_in_chunks(
    query: Float[Array, "N H D"],
    key: Float[Array, "N KV D"],
    value: Float[Array, "N KV D"],
    spans: KeySpans,
    *,
    scale: float,
) -> Float[Array, "N H D"]:
    """See `api.fork_attention`, batch-invariant: rows are whole chunks, and those of a chunk are of one piece."""
    rows, heads, head_dim = query.shape
    key_heads, dtype = key.shape[1], accumulation_dtype(query.dtype)
    k, v = key.astype(dtype), value.astype(dtype)
    finite = jnp.isfinite(v)
    v, broken = jnp.where(finite, v, 0), ~jnp.all(finite, axis=(1, 2))

    def attend(chunk: tuple[Array, KeySpans]) -> Array:
        q, spans = chunk
        q = q.astype(dtype).reshape(CHUNK_ROWS, key_heads, heads // key_heads, head_dim)
        # Rows of padding are the last ones, with spans [0, 0).
        state, own = spans.state_begin[0], spans.own_begin[0]
        of_state, of_own = _chunks(jnp.max(spans.state_end) - state), _chunks(jnp.max(spans.own_end) - own)

        def meet(number: Array, carry: tuple[RunningSoftmax, Bool[Array, " rows"]]) -> tuple[RunningSoftmax, Array]:
            softmax, sees_broken = carry
            begin = jnp.where(number < of_state, state + CHUNK_ROWS * number, own + CHUNK_ROWS * (number - of_state))
            keys, values, broken_here = (lax.dynamic_slice_in_dim(x, begin, CHUNK_ROWS) for x in (k, v, broken))
            y = begin + jnp.arange(CHUNK_ROWS, dtype=jnp.int32)[None]
            in_state = (spans.state_begin[:, None] <= y) & (y < spans.state_end[:, None])
            visible = in_state | ((spans.own_begin[:, None] <= y) & (y < spans.own_end[:, None]))
            scores = scale * jnp.einsum("nkgd,tkd->kgnt", q, keys, precision="highest")
            softmax = softmax.joined(jnp.where(visible[None, None], scores, -jnp.inf), values)
            return softmax, sees_broken | jnp.any(visible & broken_here[None], axis=1)

        nothing = RunningSoftmax.nothing((key_heads, heads // key_heads, CHUNK_ROWS), head_dim, dtype)
        softmax, sees_broken = lax.fori_loop(0, of_state + of_own, meet, (nothing, jnp.zeros(CHUNK_ROWS, bool)))
        # A zero weight times a hidden NaN would be NaN, so values that are not finite are left out and told here.
        out = jnp.where(sees_broken[:, None, None, None], jnp.nan, softmax.mean())
        return out.reshape(CHUNK_ROWS, heads, head_dim).astype(query.dtype)

    def in_chunks(x: Array) -> Array:
        return x.reshape(rows // CHUNK_ROWS, CHUNK_ROWS, *x.shape[1:])

    out = lax.map(attend, jax.tree.map(in_chunks, (query, jax.tree.map(jnp.asarray, spans))))
    return out.reshape(query.shape)


def _chunks(rows: Array) -> Array:
    return (rows + CHUNK_ROWS - 1) // CHUNK_ROWS
