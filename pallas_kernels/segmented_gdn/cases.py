"""Named cases of the segmented gated delta rule, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from pallas_kernels import trees
from pallas_kernels.random_numbers import normal
from pallas_kernels.segmented_gdn.api import segmented_gdn
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments
from pallas_kernels.trees import Request

HEAD_DIM = 128


@dataclasses.dataclass(frozen=True)
class Case:
    """A round, and the heads of its recurrence.

    With a `tail` it is a growing round: states go on from a pool, and each is cut so many rows before its end.
    """

    requests: Sequence[Request]
    key_heads: int = 16
    value_heads: int = 32
    tail: int | None = None

    @property
    def scale(self) -> float:
        return HEAD_DIM**-0.5

    @property
    def used_chunks(self) -> int:
        return int((self.segments().chunk_length > 0).sum())

    def segments(self) -> Segments:
        """As in a capacity: not all of it is used."""
        return trees.segments_of_capacity(self.requests, tail=self.tail)

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[jax.Array, ...]:
        """query, key, value, log_decay and write_strength in chunk rows, zero in padding; related keys, slow decays.
        Then the pool of a growing round."""
        segments = self.segments()
        padding = (segments.stream_rows() < 0)[:, None]
        rows = padding.shape[0]
        keys = jax.random.split(key, 7)
        query, key, value = (
            normal(one, (rows, heads, HEAD_DIM), jnp.float32)
            for one, heads in zip(keys[:3], (self.key_heads, self.key_heads, self.value_heads), strict=True)
        )
        key = key + 0.5 * normal(keys[3], (1, self.key_heads, HEAD_DIM), jnp.float32)
        query, key = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (query, key))
        log_decay, write_strength = (normal(one, (rows, self.value_heads), jnp.float32) for one in keys[4:6])
        gates = (-jnp.exp(log_decay - 2), jax.nn.sigmoid(write_strength + 1))
        return (
            *(jnp.where(padding[..., None], 0, x).astype(dtype) for x in (query, key, value)),
            *(jnp.where(padding, 0, x) for x in gates),
            *self._pool(keys[6]),
        )

    def _pool(self, key: jax.Array) -> list[jax.Array]:
        shape = (2 * len(self.requests), self.value_heads, HEAD_DIM, HEAD_DIM)
        return [] if self.tail is None else [0.1 * normal(key, shape, jnp.float32)]

    def operations(self) -> float:
        """Products of the chunks: three with the state, and the chunk's own scores, inverse (13 of 64) and mixes."""
        state = 3 * 2 * CHUNK_ROWS * HEAD_DIM * HEAD_DIM
        chunk = 4 * 2 * CHUNK_ROWS * CHUNK_ROWS * HEAD_DIM + 13 * 2 * CHUNK_ROWS**3
        return float(self.used_chunks * self.value_heads * (state + chunk))

    def bytes(self) -> float:
        """Operands read once and outputs written once; states written once, those of a pool read and written."""
        rows = self.used_chunks * CHUNK_ROWS
        states = 4.0 * (1 if self.tail is None else 3) * len(self.requests) * self.value_heads * HEAD_DIM**2
        return (
            2.0 * rows * HEAD_DIM * (2 * self.key_heads + 2 * self.value_heads) + 8.0 * rows * self.value_heads + states
        )


CASES = {name: Case(requests) for name, requests in trees.WORKLOADS.items()} | {
    f"{name} 16/16": Case(requests, value_heads=16) for name, requests in trees.WORKLOADS.items()
}
CASES |= {"growing step": Case(trees.GROWING_STEP, tail=32)}


def text_alone(
    operands: Sequence[jax.Array | np.ndarray], segments: Segments, text: np.ndarray
) -> tuple[list[np.ndarray], Segments]:
    """The operands of one question's whole text as a round of its own, and its segments.

    Args:
        operands: of a round, in its chunk rows.
        segments: of the round.
        text: the stream rows of the text, in its order (`trees.texts`).
    """
    alone = trees.segments([Request(text.size, [])], text.size)
    rows = CHUNK_ROWS * alone.chunk_length.shape[0]
    own = []
    for operand in operands:
        placed = np.zeros((rows, *operand.shape[1:]), operand.dtype)
        placed[: text.size] = np.asarray(operand)[np.asarray(segments.chunk_row)[text]]
        own.append(placed)
    return own, alone


def in_float64(
    case: Case, operands: Sequence[jax.Array | np.ndarray], segments: Segments, implementation: str
) -> tuple[np.ndarray, ...]:
    """Outputs in chunk rows, and the slots, of the op in float64 from slots of zeros.

    Args:
        case: its heads and scale.
        operands: in the chunk rows of `segments`; without a pool.
        segments: those of the case, or others.
        implementation: which one.
    """
    with jax.enable_x64(True):
        query, key, value, log_decay, write_strength = (jnp.asarray(operand, jnp.float64) for operand in operands)
        states = jnp.zeros((segments.slots, case.value_heads, HEAD_DIM, HEAD_DIM), jnp.float64)
        found = segmented_gdn(
            query,
            key,
            value,
            log_decay,
            write_strength,
            states,
            jax.tree.map(jnp.asarray, segments),
            scale=case.scale,
            implementation=implementation,
        )
        return tuple(map(np.asarray, found))


def caller(case: Case, implementation: str) -> Callable[..., tuple[jax.Array, ...]]:
    """The op on the operands of a case, with slots that hold nothing yet."""
    segments = case.segments()

    def call(
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        log_decay: jax.Array,
        write_strength: jax.Array,
        *pool: jax.Array,
    ) -> tuple[jax.Array, ...]:
        states = lax.empty((segments.slots, case.value_heads, HEAD_DIM, HEAD_DIM), log_decay.dtype)
        return segmented_gdn(
            query,
            key,
            value,
            log_decay,
            write_strength,
            states,
            segments,
            pool=pool[0] if pool else None,
            scale=case.scale,
            implementation=implementation,
        )

    return call
