"""Named cases of the segmented gated delta rule, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels import trees
from pallas_kernels.segmented_gdn.api import segmented_gdn
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments
from pallas_kernels.trees import Request

HEAD_DIM = 128


@dataclasses.dataclass(frozen=True)
class Case:
    """A round, and the heads of its recurrence."""

    requests: Sequence[Request]
    key_heads: int = 16
    value_heads: int = 32

    @property
    def scale(self) -> float:
        return HEAD_DIM**-0.5

    @property
    def used_chunks(self) -> int:
        return sum(-(-piece.length // CHUNK_ROWS) for piece in trees.pieces(self.requests))

    def segments(self) -> Segments:
        """As in a capacity: not all of it is used."""
        return trees.segments_of_capacity(self.requests)

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[jax.Array, ...]:
        """query, key, value, log_decay and write_strength in chunk rows, zero in padding; related keys, slow decays."""
        segments = self.segments()
        padding = (segments.stream_rows() < 0)[:, None]
        rows = padding.shape[0]
        keys = jax.random.split(key, 6)
        query, key, value = (
            jax.random.normal(one, (rows, heads, HEAD_DIM), jnp.float32)
            for one, heads in zip(keys[:3], (self.key_heads, self.key_heads, self.value_heads), strict=True)
        )
        key = key + 0.5 * jax.random.normal(keys[3], (1, self.key_heads, HEAD_DIM), jnp.float32)
        query, key = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
        log_decay, write_strength = (jax.random.normal(one, (rows, self.value_heads), jnp.float32) for one in keys[4:])
        gates = (-jnp.exp(log_decay - 2), jax.nn.sigmoid(write_strength + 1))
        return (
            *(jnp.where(padding[..., None], 0, x).astype(dtype) for x in (query, key, value)),
            *(jnp.where(padding, 0, x) for x in gates),
        )

    def operations(self) -> float:
        """Products of the chunks: three with the state, and the chunk's own scores, inverse (13 of 64) and mixes."""
        state = 3 * 2 * CHUNK_ROWS * HEAD_DIM * HEAD_DIM
        chunk = 4 * 2 * CHUNK_ROWS * CHUNK_ROWS * HEAD_DIM + 13 * 2 * CHUNK_ROWS**3
        return float(self.used_chunks * self.value_heads * (state + chunk))

    def bytes(self) -> float:
        """Operands read once and outputs written once; states written once."""
        rows = self.used_chunks * CHUNK_ROWS
        states = 4.0 * len(self.requests) * self.value_heads * HEAD_DIM**2
        return (
            2.0 * rows * HEAD_DIM * (2 * self.key_heads + 2 * self.value_heads) + 8.0 * rows * self.value_heads + states
        )


CASES = {name: Case(requests) for name, requests in trees.WORKLOADS.items()} | {
    f"{name} 16/16": Case(requests, value_heads=16) for name, requests in trees.WORKLOADS.items()
}


def caller(case: Case, implementation: str) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """The op on the operands of a case, with slots that hold nothing yet."""
    segments = case.segments()

    def call(
        query: jax.Array, key: jax.Array, value: jax.Array, log_decay: jax.Array, write_strength: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        states = lax.empty((segments.slots, case.value_heads, HEAD_DIM, HEAD_DIM), log_decay.dtype)
        return segmented_gdn(
            query,
            key,
            value,
            log_decay,
            write_strength,
            states,
            segments,
            scale=case.scale,
            implementation=implementation,
        )

    return call
