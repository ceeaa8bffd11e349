"""Named cases of norm and rotation, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.random_numbers import normal
from pallas_kernels.rotary_norm.api import rotary_norm

EPSILON = 1e-6


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows of a product, [query | gate | key | value], and of these the queries, or the keys and values."""

    rows: int
    heads: int
    key_heads: int
    keys: bool = False
    dims: int = 256
    frequencies: int = 32

    @property
    def chosen(self) -> dict[str, Any]:
        """Of the rows' heads."""
        begin = 2 * self.heads * self.dims
        if self.keys:
            return {"heads": self.key_heads, "begin": begin, "value_begin": begin + self.key_heads * self.dims}
        return {"heads": self.heads, "begin": 0, "value_begin": None}

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[jax.Array, ...]:
        """projected, weight, cos and sin."""
        projected, weight, angles = jax.random.split(key, 3)
        turns = 100 * jax.random.uniform(angles, (self.rows, self.frequencies), jnp.float32)
        width = 2 * (self.heads + self.key_heads) * self.dims
        return (
            3 * normal(projected, (self.rows, width), dtype),
            0.3 * normal(weight, (self.dims,), jnp.float32),
            jnp.cos(turns),
            jnp.sin(turns),
        )

    def operations(self) -> float:
        """About ten for each channel."""
        return 10.0 * self.rows * (self.key_heads if self.keys else self.heads) * self.dims

    def bytes(self) -> float:
        """Heads read and written once, in bfloat16; and cosines and sines in float32."""
        heads = 2 * self.key_heads if self.keys else self.heads
        return 4.0 * self.rows * heads * self.dims + 8.0 * self.rows * self.frequencies


# Rows of the workloads' capacities, with the heads of 0.8B and 4B.
CASES = {
    f"{size} {'keys' if keys else 'queries'} {rows}": Case(rows, *heads, keys=keys)
    for size, heads in (("0.8B", (8, 2)), ("4B", (16, 4)))
    for keys in (False, True)
    for rows in (384, 2_688, 7_680)
}
# Small and awkward ones, for correctness.
AWKWARD = {
    "one block": Case(32, 2, 1, keys=True, dims=64),
    "33 rows": Case(33, 3, 1, dims=96),
    "70 rows": Case(70, 2, 2, keys=True),
}


def caller(case: Case, implementation: str) -> Callable[..., tuple[jax.Array, ...]]:
    """The op on the operands of a case."""

    def call(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return rotary_norm(*operands, **case.chosen, epsilon=EPSILON, implementation=implementation)

    return call
