"""The gated delta rule for NVIDIA cards without wgmma, as Triton kernels called through jax-triton.

As on Hopper: what no state enters is computed for all chunks side by side (`solve`), then the states are carried along
the segments (`scan`), in one launch for each level. Grids are as large as the capacity; a program of an unused chunk,
or of a segment of another level, ends at once. The system of a chunk is inverted in float32 (three passes of TF32): its
keys may be nearly equal, and then errors of a narrower inverse would not stay small.

Configurations are fixed and were chosen from what compilers say (registers, shared memory), never by timing at run
time: a row's bits then depend on neither the card's mood nor the round.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from pallas_kernels import dispatch, triton
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments

HEAD_DIMS = (16, 32, 64, 128)


class _Scan(NamedTuple):
    share: int  # dimensions of dv that one program carries
    stages: int  # chunks in flight


# By dtype: states that stay in registers without spills, many enough programs for a lone state (four a head), and at
# most the 99 KB of shared memory of the smaller cards (RTX 30 to 50). float32 is multiplied in three passes of TF32 and
# spills; it is here for accuracy, not for speed.
SCANS = {"bfloat16": _Scan(share=32, stages=2), "float32": _Scan(share=16, stages=1)}
WARPS = 4
SLAB = 32  # channels that the solve multiplies at a time: what its registers hold beside the blocks of the inverse


@functools.partial(jax.jit, static_argnames=("scale", "batch_invariant"))  # lowered once for all layers
def segmented_gdn(
    query: Float[Array, "chunk_rows nk dk"],
    key: Float[Array, "chunk_rows nk dk"],
    value: Float[Array, "chunk_rows nv dv"],
    log_decay: Float[Array, "chunk_rows nv"],
    write_strength: Float[Array, "chunk_rows nv"],
    states: Float[Array, "slots nv dv dk"],
    segments: Segments,
    *,
    pool: Float[Array, "pool_slots nv dv dk"] | None = None,
    scale: float,
    batch_invariant: bool = False,
) -> tuple[Float[Array, "chunk_rows nv dv"], *tuple[Float[Array, "_ nv dv dk"], ...]]:
    """See `api.segmented_gdn`. Rows of padding in used chunks have to be zero; unused chunks are never read.

    The slots are updated in place where XLA can give `states` and `pool` away, else XLA copies them once. Each of
    `segments.levels` is a launch of the scan; a segment of a level beyond them does not run at all.

    Raises NotImplementedError: dtypes or head dimensions that it is not for, a package is missing, or
    batch-invariant.
    """
    if batch_invariant:
        dispatch.check_batch_invariant("segmented_gdn", "triton")
    triton.check()
    from pallas_kernels.segmented_gdn import triton_kernels

    _check(query, key, value, log_decay, write_strength, states)
    (_, key_heads, key_dim), (_, value_heads, value_dim) = key.shape, value.shape
    chunks = segments.chunk_length.shape[0]
    constants = {
        "key_heads": key_heads,
        "value_heads": value_heads,
        "key_dim": key_dim,
        "scale": scale,
        "precision": "tf32x3",
    }
    square = jax.ShapeDtypeStruct((chunks, value_heads, CHUNK_ROWS, CHUNK_ROWS), value.dtype)
    solved = triton.call(
        triton_kernels.solve,
        segments.chunk_length,
        query,
        key,
        log_decay,
        write_strength,
        out_type=(square, square, jax.ShapeDtypeStruct((chunks, value_heads, 2, CHUNK_ROWS), np.float32)),
        grid=(value_heads, chunks),
        warps=1,
        stages=1,
        slab=min(SLAB, key_dim),
        **constants,
    )
    scan = SCANS[value.dtype.name]
    share = min(scan.share, value_dim)
    out = jax.new_ref(lax.empty(value.shape, value.dtype))
    slots = [jax.new_ref(array) for array in ((states,) if pool is None else (states, pool))]
    levels = segments.level()
    for level in range(segments.levels):
        triton.call(
            triton_kernels.scan,
            jnp.where(levels == level, segments.length, 0),
            segments.first_chunk,
            segments.initial_slot,
            segments.final_slot,
            query,
            key,
            value,
            *solved,
            out,
            *(slots if pool is not None else (*slots, None)),
            grid=(value_heads * (value_dim // share), segments.length.shape[0]),
            warps=WARPS,
            stages=scan.stages,
            slots=states.shape[0],
            value_dim=value_dim,
            share=share,
            **constants,
        )
    return jax.freeze(out), *map(jax.freeze, slots)


def _check(query: Array, key: Array, value: Array, log_decay: Array, write_strength: Array, states: Array) -> None:
    if not query.dtype == key.dtype == value.dtype or value.dtype.name not in SCANS:
        found = f"{query.dtype}, {key.dtype} and {value.dtype}"
        raise NotImplementedError(f"segmented_gdn by triton is for {' or '.join(SCANS)}, not for {found}")
    for dimension in (key.shape[2], value.shape[2]):
        if dimension not in HEAD_DIMS:
            known = ", ".join(map(str, HEAD_DIMS))
            raise NotImplementedError(f"segmented_gdn by triton has head dimensions {known}, not {dimension}")
    for name, x in (("log_decay", log_decay), ("write_strength", write_strength), ("states", states)):
        if x.dtype != jnp.float32:
            raise NotImplementedError(f"segmented_gdn by triton: {name} has to be float32, it is {x.dtype}")
