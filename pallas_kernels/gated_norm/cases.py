"""Named cases of the gated norm, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels import trees
from pallas_kernels.gated_norm.api import gated_norm
from pallas_kernels.random_numbers import normal
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS, Segments
from pallas_kernels.trees import Request

HEAD_DIM = 128
EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Case:
    """A round, the heads of its recurrence, and the column where a projection's gates begin."""

    requests: Sequence[Request]
    heads: int = 32
    gate_begin: int = 8192

    @property
    def rows(self) -> int:
        """T."""
        return trees.stream_rows(self.requests)

    def segments(self) -> Segments:
        """As in a capacity: not all of it is used."""
        return trees.segments_of_capacity(self.requests)

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[jax.Array, ...]:
        """out, projected (with some columns behind the gates) and weight."""
        chunk_rows = self.segments().chunk_begin.size * CHUNK_ROWS
        width = self.gate_begin + (self.heads + 1) * HEAD_DIM
        out, projected, weight = jax.random.split(key, 3)
        return (
            normal(out, (chunk_rows, self.heads, HEAD_DIM), dtype),
            normal(projected, (self.rows, width), dtype),
            1 + normal(weight, (HEAD_DIM,), jnp.float32),
        )

    def operations(self) -> float:
        """About ten for each channel."""
        return 10.0 * self.rows * self.heads * HEAD_DIM

    def bytes(self) -> float:
        """Outputs and gates read once, and the result written, in bfloat16."""
        return 6.0 * self.rows * self.heads * HEAD_DIM


CASES = {name: Case(requests) for name, requests in trees.WORKLOADS.items()}
# Small and awkward ones, for correctness: every length of a last chunk, single rows.
AWKWARD = {
    "one row": Case([Request(1, [1])], heads=1, gate_begin=128),
    "chunk edges": Case([Request(64, [1, 63, 64, 65]), Request(2, [3, 127])], heads=2, gate_begin=256),
    "all lengths": Case([Request(65, range(1, 65))], heads=1, gate_begin=0),
}


def caller(case: Case, implementation: str) -> Callable[..., jax.Array]:
    """The op on the operands of a case."""
    segments = case.segments()

    def call(out: jax.Array, projected: jax.Array, weight: jax.Array) -> jax.Array:
        return gated_norm(
            out,
            projected,
            weight,
            segments,
            gate_begin=case.gate_begin,
            epsilon=EPSILON,
            implementation=implementation,
        )

    return call
