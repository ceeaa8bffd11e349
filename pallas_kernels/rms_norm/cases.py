"""Named cases of the norm, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.random_numbers import normal
from pallas_kernels.rms_norm.api import rms_norm

EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows of a width."""

    rows: int
    width: int

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[jax.Array, jax.Array]:
        """x, with rows of different sizes, and weight."""
        x, size, weight = jax.random.split(key, 3)
        sizes = jnp.exp(3 * normal(size, (self.rows, 1), jnp.float32))
        return (
            (sizes * normal(x, (self.rows, self.width), jnp.float32)).astype(dtype),
            0.3 * normal(weight, (self.width,), jnp.float32),
        )

    def operations(self) -> float:
        """About five for each channel."""
        return 5.0 * self.rows * self.width

    def bytes(self) -> float:
        """Rows read and written once, in bfloat16."""
        return 4.0 * self.rows * self.width


# Rows of the workloads' capacities, at the widths of 0.8B and 4B.
CASES = {
    f"{size} {rows}": Case(rows, width)
    for size, width in (("0.8B", 1024), ("4B", 2560))
    for rows in (384, 1_344, 2_688, 7_680)
}
# Small and awkward ones, for correctness.
AWKWARD = {
    "four rows": Case(4, 256),
    "five rows": Case(5, 512),
    "130 rows": Case(130, 768),
    "27B": Case(6, 5120),  # as wide as can be
}


def caller(case: Case, implementation: str) -> Callable[..., jax.Array]:
    """The op on the operands of a case."""

    def call(x: jax.Array, weight: jax.Array) -> jax.Array:
        return rms_norm(x, weight, epsilon=EPSILON, batch_invariant=True, implementation=implementation)

    return call
