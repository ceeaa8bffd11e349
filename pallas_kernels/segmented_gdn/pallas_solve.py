"""What a chunk needs that no state enters: the inverse of its triangular system and its products of queries and keys.

One warpgroup takes one (chunk, value head) at a time. With c the cumulative log decay of the chunk, G_ij =
exp(c_i - c_j) for i >= j (zero above) and A_ij = e_i (k_i . k_j) G_ij for i > j, the chunk's writes U solve
(I + A) U = e (V - exp(c) K S^T). Taking G out of the inverse, T = (I + A / G)^-1 holds keys and strengths alone, and

system = G T e (columns scaled by e):  U = system (V - exp(c) K S^T)
mix = scale G (Q K^T):  O = scale exp(c) Q S^T + mix U
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Float, Int32

# Each warpgroup takes its own items. Two leave it the 255 registers that the inverse wants.
WARPGROUPS = 2
# What TMA and wgmma ask of 16-bit operands.
TILE = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # type: ignore[abstract]

_MATRIX = plgpu.Layout.WGMMA
_BY_ROW, _BY_COLUMN = _MATRIX.reduce(1), _MATRIX.reduce(0)


def products(
    interpret: bool, *sums: tuple[Float[Array, "_ _"], Sequence[tuple[Any, Any]]]
) -> tuple[Float[Array, "_ _"], ...]:
    """For each (start, pairs of operands): start + the sum of the pairs' products, all in flight together, float32.

    A left operand is an array in registers or a ref to shared memory, a right operand is such a ref. Interpret mode
    has neither started accumulators nor operands in registers (jax 0.11.2), so it multiplies with jnp.dot.
    """
    if interpret:

        def value(operand: Any) -> Array:
            return operand if isinstance(operand, jax.Array) else operand[...]

        return tuple(
            start + sum(jnp.dot(value(left), value(right), preferred_element_type=jnp.float32) for left, right in pairs)
            for start, pairs in sums
        )

    def issue(accumulators: tuple[Any, ...]) -> None:
        for accumulator, (_, pairs) in zip(accumulators, sums, strict=True):
            for left, right in pairs:
                plgpu.wgmma(accumulator, left, right)

    return pl.run_state(issue)(tuple(plgpu.ACC.init(start) for start, _ in sums))


def zeros(*shape: int) -> Float[Array, "..."]:
    return plgpu.layout_cast(jnp.zeros(shape, jnp.float32), _MATRIX)


def solve(
    query: Float[Array, "chunk_rows nk dk"],
    key: Float[Array, "chunk_rows nk dk"],
    log_decay: Float[Array, "nv C rows"],
    write_strength: Float[Array, "nv C rows"],
    used_chunks: Int32[Array, "1"],
    *,
    scale: float,
    blocks: int,
    interpret: bool,
) -> tuple[Float[Array, "nv C rows rows"], Float[Array, "nv C rows rows"], Float[Array, "nv C 2 rows"]]:
    """`system` and `mix` (bfloat16) of the first `used_chunks` chunks, and their gates (float32).

    The gates of a chunk are exp(c) and exp(c_last - c). Entries of unused chunks are left as they are.
    """
    value_heads, chunks, rows = log_decay.shape
    group, dk = value_heads // key.shape[1], key.shape[2]

    def kernel(
        query_ref: Any,
        key_ref: Any,
        decay_ref: Any,
        strength_ref: Any,
        used_ref: Any,
        system_ref: Any,
        mix_ref: Any,
        gates_ref: Any,
        *scratch: Any,
    ) -> None:
        warpgroup = lax.axis_index("warpgroup")
        queries, keys, left, right, low, out, decays, strengths, sums, arrived = (x.at[warpgroup] for x in scratch)
        items = used_ref[0] * value_heads
        first, step = lax.axis_index("block") * WARPGROUPS + warpgroup, jnp.int32(blocks * WARPGROUPS)

        def place(item: Array) -> tuple[Array, Array]:
            return lax.div(item, jnp.int32(value_heads)), lax.rem(item, jnp.int32(value_heads))

        def fetch(item: Array, parity: Array | int) -> None:
            @pl.when(item < items)
            def copy_operands() -> None:
                chunk, head = place(item)
                chunk_rows = pl.ds(pl.multiple_of(chunk * rows, rows), rows)
                key_head = lax.div(head, jnp.int32(group))
                plgpu.copy_gmem_to_smem(key_ref.at[chunk_rows, key_head], keys, arrived)
                plgpu.copy_gmem_to_smem(query_ref.at[chunk_rows, key_head], queries, arrived)
                plgpu.copy_gmem_to_smem(decay_ref.at[head, chunk], decays.at[parity], arrived)
                plgpu.copy_gmem_to_smem(strength_ref.at[head, chunk], strengths.at[parity], arrived)

        def one_item(number: Array, _: None) -> None:
            item = first + number * step
            chunk, head = place(item)
            parity = lax.rem(number, jnp.int32(2))
            i, j = (plgpu.broadcasted_iota(jnp.int32, (rows, rows), axis, layout=_MATRIX) for axis in (0, 1))

            def product(a: Any, b: Any) -> Array:
                (result,) = products(interpret, (zeros(rows, rows), [(a, b)]))
                return plgpu.layout_cast(result, _MATRIX)

            def added(start: Array, *pairs: tuple[Any, Any]) -> Array:
                (result,) = products(interpret, (start, pairs))
                return plgpu.layout_cast(result, _MATRIX)

            def only(where: Array, x: Array) -> Array:
                return plgpu.layout_cast(jnp.where(where, x, jnp.zeros_like(x)), _MATRIX)

            def row_vector(ref: Any) -> Array:
                vector = plgpu.load(ref, layout=_BY_ROW)
                return plgpu.layout_cast(lax.broadcast_in_dim(vector, (rows, rows), [0]), _MATRIX)

            def column_vector(ref: Any) -> Array:
                vector = plgpu.load(ref, layout=_BY_COLUMN)
                return plgpu.layout_cast(lax.broadcast_in_dim(vector, (rows, rows), [1]), _MATRIX)

            def decay() -> Array:  # G; computed twice, because kept it would cost 32 registers
                # The mask comes before exp: above the diagonal the difference is positive and may overflow.
                difference = row_vector(sums) - column_vector(sums)
                return jnp.exp(jnp.where(i >= j, difference, jnp.full((rows, rows), -1e30, jnp.float32)))

            plgpu.barrier_wait(arrived)
            sums[...] = jnp.sum(only(i >= j, column_vector(decays.at[parity])), axis=1)
            plgpu.commit_smem()

            keys_t = keys.transpose((1, 0))
            mix = (product(queries, keys_t) * scale * decay()).astype(jnp.bfloat16)
            minus_a = only(i > j, -product(keys, keys_t) * row_vector(strengths.at[parity]))
            plgpu.wait_smem_to_gmem(0, wait_read_only=True)
            out[0] = mix
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out.at[0], mix_ref.at[head, chunk])
            fetch(item + step, 1 - parity)  # its copies run while this item is inverted

            # Block doubling: with T right in diagonal blocks of w rows, T - T L T is right in blocks of 2 w rows, L
            # being the lower left w x w block of each. Keys of unit length and e <= 1 keep every entry of T and of the
            # products at most 1 in size, so float16 operands with float32 sums are safe, and finer than bfloat16.
            high = minus_a.astype(jnp.float16)
            low[...] = (minus_a - high.astype(jnp.float32)).astype(jnp.float16)
            unit = only(i == j, jnp.ones((rows, rows), jnp.float32))
            inverse = (unit + only((i ^ 1) == j, minus_a)).astype(jnp.float16)
            for width in (2**level for level in range(1, int(math.log2(rows)))):
                level = width.bit_length() - 1
                right[...] = inverse
                plgpu.commit_smem()
                left[...] = product(only(((i >> level) ^ 1) == (j >> level), high), right).astype(jnp.float16)
                plgpu.commit_smem()
                inverse = added(inverse.astype(jnp.float32), (inverse, left)).astype(jnp.float16)

            # One Newton step, T + T (I - (I + A) T), brings it to float32; the residual sees A as high + low.
            right[...] = inverse
            plgpu.commit_smem()
            residual = added(unit - inverse.astype(jnp.float32), (high, right), (low, right))
            left[...] = residual.astype(jnp.float16)
            plgpu.commit_smem()
            exact = added(inverse.astype(jnp.float32), (inverse, left))

            out[1] = (exact * decay() * column_vector(strengths.at[parity])).astype(jnp.bfloat16)
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(out.at[1], system_ref.at[head, chunk])
            cumulative = plgpu.load(sums, layout=_BY_COLUMN)
            gates_ref.at[head, chunk, 0][...] = jnp.exp(cumulative)
            gates_ref.at[head, chunk, 1][...] = jnp.exp(sums[rows - 1] - cumulative)

        fetch(first, 0)
        lax.fori_loop(0, lax.div(jnp.maximum(items - first + step - 1, 0), step), one_item, None)
        plgpu.wait_smem_to_gmem(0)

    def tile(*shape: int, dtype: Any = jnp.float16) -> Any:
        return plgpu.SMEM((WARPGROUPS, *shape), dtype, transforms=TILE)

    matrix = jax.ShapeDtypeStruct((value_heads, chunks, rows, rows), jnp.bfloat16)
    return plgpu.kernel(
        kernel,
        out_type=(matrix, matrix, jax.ShapeDtypeStruct((value_heads, chunks, 2, rows), jnp.float32)),
        grid=(blocks,),
        grid_names=("block",),
        num_threads=WARPGROUPS,
        thread_name="warpgroup",
        kernel_name="segmented_gdn_solve",
        # Lane semantics takes the column layouts that warpgroup semantics cannot infer (jax 0.11.2).
        compiler_params=plgpu.CompilerParams(approx_math=True, lowering_semantics=plgpu.LoweringSemantics.Lane),
        scratch_types=[
            tile(rows, dk, dtype=jnp.bfloat16),
            tile(rows, dk, dtype=jnp.bfloat16),
            tile(rows, rows),
            tile(rows, rows),
            tile(rows, rows),
            tile(2, rows, rows, dtype=jnp.bfloat16),
            plgpu.SMEM((WARPGROUPS, 2, rows), jnp.float32),
            plgpu.SMEM((WARPGROUPS, 2, rows), jnp.float32),
            plgpu.SMEM((WARPGROUPS, rows), jnp.float32),
            plgpu.Barrier(num_arrivals=4, num_barriers=WARPGROUPS),
        ],
    )(query, key, log_decay, write_strength, used_chunks)
