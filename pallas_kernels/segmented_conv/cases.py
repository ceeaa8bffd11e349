"""Named cases of the segmented convolution, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels import trees
from pallas_kernels.random_numbers import normal
from pallas_kernels.segmented_conv.api import segmented_conv
from pallas_kernels.segmented_conv.metadata import ConvOutput, ConvWeights
from pallas_kernels.segmented_gdn.metadata import Segments
from pallas_kernels.trees import Request

TAPS = 4
HEAD_DIM = 128


@dataclasses.dataclass(frozen=True)
class Case:
    """A round, and the heads of its recurrence.

    With a `tail` it is a growing round: states go on from windows, and each is cut so many rows before its end.
    """

    requests: Sequence[Request]
    key_heads: int = 16
    value_heads: int = 32
    tail: int | None = None

    @property
    def rows(self) -> int:
        """T."""
        return trees.stream_rows(self.requests)

    @property
    def channels(self) -> int:
        return HEAD_DIM * (2 * self.key_heads + self.value_heads)

    def segments(self) -> Segments:
        """As in a capacity: not all of it is used."""
        return trees.segments_of_capacity(self.requests, tail=self.tail)

    def predecessors(self) -> np.ndarray:
        """As the op takes them."""
        rows_before = trees.predecessors if self.tail is None else trees.resumed_predecessors
        return rows_before(self.requests, self.rows, taps=TAPS)

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[Any, ...]:
        """mixed (wider than the channels, as a projection's output is), write_logit, decay_input, the windows where
        there are any, and the weights."""
        shapes: list[tuple[int, ...]] = [(self.rows, self.channels + HEAD_DIM), *2 * [(self.rows, self.value_heads)]]
        if self.tail is not None:
            shapes.append((len(self.requests), TAPS - 1, self.channels))
        *rows, taps, rate, bias = (
            normal(one, shape, jnp.float32)
            for one, shape in zip(
                jax.random.split(key, 3 + len(shapes)),
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
    "growing step": Case(trees.GROWING_STEP, tail=32),
}
# Small and awkward ones, for correctness.
AWKWARD = {
    "one row": Case([Request(1, [1])], key_heads=1, value_heads=1),
    "chunk edges": Case([Request(64, [1, 17, 63, 64, 65]), Request(2, [3, 127])], key_heads=1, value_heads=2),
    "many requests": Case([Request(3, [2]) for _ in range(20)], key_heads=1, value_heads=1),
    "windows": Case([Request(66, [1, 5]), Request(2, [3]), Request(1, [1])], key_heads=1, value_heads=1, tail=1),
}


def caller(case: Case, implementation: str) -> Callable[..., ConvOutput]:
    """The op on the operands of a case."""
    segments, before = case.segments(), case.predecessors()

    def call(mixed: jax.Array, write_logit: jax.Array, decay_input: jax.Array, *rest: Any) -> ConvOutput:
        *windows, weights = rest
        return segmented_conv(
            mixed,
            write_logit,
            decay_input,
            weights,
            before,
            segments,
            windows=windows[0] if windows else None,
            key_heads=case.key_heads,
            key_dim=HEAD_DIM,
            implementation=implementation,
        )

    return call
