"""Named cases of fork attention, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels import trees
from pallas_kernels.fork_attention.api import fork_attention
from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.trees import Request


@dataclasses.dataclass(frozen=True)
class Case:
    """A round, and the heads that attend to it. `read_only`: queries at the last row of each branch alone."""

    requests: Sequence[Request]
    heads: int = 16
    key_heads: int = 4
    head_dim: int = 256
    read_only: bool = False

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def rows(self) -> int:
        """T."""
        return trees.stream_rows(self.requests)

    def spans(self) -> KeySpans:
        """Of the query rows."""
        spans = trees.key_spans(self.requests, self.rows)
        if not self.read_only:
            return spans
        reads = [piece.begin + piece.length - 1 for piece in trees.pieces(self.requests) if piece.parent]
        return KeySpans(**{name: column[np.array(reads)] for name, column in vars(spans).items()})

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Random query, key and value."""
        shapes = (
            (self.spans().own_end.size, self.heads, self.head_dim),
            *2 * [(self.rows, self.key_heads, self.head_dim)],
        )
        return tuple(
            jax.random.normal(one, shape, dtype) for one, shape in zip(jax.random.split(key, 3), shapes, strict=True)
        )  # type: ignore[return-value]

    def operations(self) -> float:
        """Floating-point operations of the visible scores and their sums."""
        spans = self.spans()
        visible = np.sum(spans.state_end - spans.state_begin, dtype=np.int64) + np.sum(
            spans.own_end - spans.own_begin, dtype=np.int64
        )
        return 4.0 * self.heads * self.head_dim * float(visible)

    def bytes(self) -> float:
        """Each operand read once and the output written once, in bfloat16."""
        return 2.0 * self.head_dim * (2 * self.spans().own_end.size * self.heads + 2 * self.rows * self.key_heads)


CASES = {name: Case(requests) for name, requests in trees.WORKLOADS.items()} | {
    "quality-all 8/2": Case(trees.WORKLOADS["quality-all"], heads=8, key_heads=2),
    "multirc 8/2": Case(trees.WORKLOADS["multirc"], heads=8, key_heads=2),
    "quality-all reads": Case(trees.WORKLOADS["quality-all"], read_only=True),
    "multirc reads": Case(trees.WORKLOADS["multirc"], read_only=True),
    "resumed": Case([Request(12_400, 5 * [60])]),
}
# Small and awkward ones, for correctness: single rows, edges of a block, more heads a group, many requests.
AWKWARD = {
    "one row": Case([Request(1, [1])], heads=4, key_heads=1, head_dim=64),
    "block edges": Case([Request(64, [1, 63, 64, 65]), Request(63, [127])], heads=8, key_heads=2, head_dim=64),
    "ungrouped": Case(
        [Request(70, [5, 66]), Request(1, [1]), Request(130, [3, 64])], heads=2, key_heads=2, head_dim=64
    ),
    "group of six": Case([Request(100, [17, 1])], heads=6, key_heads=1, head_dim=128),
    "group of eight": Case([Request(90, [33])], heads=8, key_heads=1, head_dim=64),
    "many requests": Case([Request(3, [2]) for _ in range(64)], heads=4, key_heads=1, head_dim=64),
    "head of 256": Case([Request(130, [20, 90])], heads=4, key_heads=1, head_dim=256),
    "reads of long": Case([Request(700, [30, 5])], heads=4, key_heads=1, head_dim=64, read_only=True),
}


def caller(case: Case, implementation: str) -> Callable[..., jax.Array]:
    """The op on the operands of a case."""
    spans = case.spans()

    def call(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return fork_attention(query, key, value, spans, scale=case.scale, implementation=implementation)

    return call
