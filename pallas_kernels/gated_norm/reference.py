"""One head of one row at a time."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from pallas_kernels.precision import accumulation_dtype
from pallas_kernels.segmented_gdn.metadata import Segments


def gated_norm(
    out: Float[Array, "chunk_rows nv dv"],
    projected: Float[Array, "T width"],
    weight: Float[Array, " dv"],
    segments: Segments,
    *,
    gate_begin: int,
    rows: Int32[Array, " N"] | None = None,
    epsilon: float,
) -> Float[Array, "N nv*dv"]:
    """See `api.gated_norm`."""
    dtype = accumulation_dtype(projected.dtype)
    heads, value_dim = out.shape[1:]

    def one_head(o: Array, gate: Array) -> Array:
        normed = o / jnp.sqrt(jnp.mean(o * o) + epsilon) * weight.astype(dtype)
        return normed * gate / (1 + jnp.exp(-gate))

    def one_row(row: Array) -> Array:
        o = out[jnp.asarray(segments.chunk_row)[row]].astype(dtype)
        gates = projected[row, gate_begin : gate_begin + heads * value_dim].reshape(heads, value_dim).astype(dtype)
        return jax.vmap(one_head)(o, gates).reshape(-1).astype(projected.dtype)

    wanted = jnp.arange(projected.shape[0], dtype=jnp.int32) if rows is None else rows
    return jax.lax.map(one_row, wanted)
