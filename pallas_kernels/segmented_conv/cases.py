"""Named cases of the segmented convolution, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import trees
from pallas_kernels.segmented_conv.api import segmented_conv
from pallas_kernels.segmented_conv.metadata import ConvOutput, ConvWeights
from pallas_kernels.segmented_gdn.metadata import Segments
from pallas_kernels.trees import Request

TAPS = 4
HEAD_DIM = 128


@dataclasses.dataclass(frozen=True)
class Case:
    """A round, and the heads of its recurrence."""

    requests: Sequence[Request]
    key_heads: int = 16
    value_heads: int = 32

    @property
    def rows(self) -> int:
        """T."""
        return trees.stream_rows(self.requests)

    @property
    def channels(self) -> int:
        return HEAD_DIM * (2 * self.key_heads + self.value_heads)

    def segments(self) -> Segments:
        """As in a capacity: not all of it is used."""
        return trees.segments_of_capacity(self.requests)

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[Any, ...]:
        """mixed (wider than the channels, as a projection's output is), write_logit, decay_input and the weights."""
        shapes = ((self.rows, self.channels + HEAD_DIM), *2 * [(self.rows, self.value_heads)])
        *rows, taps, rate, bias = (
            jax.random.normal(one, shape, jnp.float32)
            for one, shape in zip(
                jax.random.split(key, 6),
                (*shapes, (TAPS, self.channels), *2 * [(self.value_heads,)]),
                strict=True,
            )
        )
        return (*(x.astype(dtype) for x in rows), ConvWeights(taps, rate, bias))

    def operations(self) -> float:
        """Multiply-adds of the taps."""
        return 2.0 * TAPS * self.rows * self.channels

    def bytes(self) -> float:
        """Each row read once and written once, in bfloat16."""
        return 4.0 * self.rows * self.channels


CASES = {name: Case(requests) for name, requests in trees.WORKLOADS.items()} | {
    "quality-all 16/16": Case(trees.WORKLOADS["quality-all"], value_heads=16),
}
# Small and awkward ones, for correctness.
AWKWARD = {
    "one row": Case([Request(1, [1])], key_heads=1, value_heads=1),
    "chunk edges": Case([Request(64, [1, 63, 64, 65]), Request(2, [3])], key_heads=1, value_heads=2),
    "many requests": Case([Request(3, [2]) for _ in range(20)], key_heads=1, value_heads=1),
}


def caller(case: Case, implementation: str) -> Callable[..., ConvOutput]:
    """The op on the operands of a case."""
    segments, before = case.segments(), trees.predecessors(case.requests, case.rows, taps=TAPS)

    def call(mixed: jax.Array, write_logit: jax.Array, decay_input: jax.Array, weights: ConvWeights) -> ConvOutput:
        return segmented_conv(
            mixed,
            write_logit,
            decay_input,
            weights,
            jnp.asarray(before),
            segments,
            key_heads=case.key_heads,
            key_dim=HEAD_DIM,
            implementation=implementation,
        )

    return call
