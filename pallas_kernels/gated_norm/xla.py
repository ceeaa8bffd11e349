"""All rows at once."""

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
    """See `api.gated_norm`. A row of no segment takes the output of chunk row 0, and nothing reads it."""
    dtype = accumulation_dtype(projected.dtype)
    chunk_row = jnp.asarray(segments.chunk_row)
    gates = projected[:, gate_begin : gate_begin + out.shape[1] * out.shape[2]]
    if rows is not None:
        chunk_row, gates = chunk_row[rows], gates[rows]
    taken = out[chunk_row].astype(dtype)
    normed = taken * jax.lax.rsqrt(jnp.mean(taken * taken, axis=-1, keepdims=True) + epsilon)
    gated = normed * weight.astype(dtype)[None, None] * jax.nn.silu(gates.reshape(taken.shape).astype(dtype))
    return gated.reshape(gates.shape).astype(projected.dtype)
