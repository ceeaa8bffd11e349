"""Named cases of the product, for tests and benchmarks."""

import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.matmul.api import matmul
from pallas_kernels.random_numbers import normal


@dataclasses.dataclass(frozen=True)
class Case:
    """M, K, N and what is done to the product."""

    rows: int
    depth: int
    columns: int
    residual: bool = False
    swiglu: bool = False

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[jax.Array, ...]:
        """x, a weight that keeps its size, and the residual if there is one."""
        x, weight, residual = jax.random.split(key, 3)
        operands = (
            normal(x, (self.rows, self.depth), dtype),
            normal(weight, (self.columns, self.depth), dtype) / math.sqrt(self.depth),
        )
        return (*operands, normal(residual, (self.rows, self.columns), dtype))[: 2 + self.residual]

    def operations(self) -> float:
        """Of the product."""
        return 2.0 * self.rows * self.depth * self.columns

    def bytes(self) -> float:
        """Each operand read once and the result written once, in bfloat16."""
        result = self.rows * self.columns // (1 + self.swiglu)
        return 2.0 * (self.rows * self.depth + self.columns * self.depth + (1 + self.residual) * result)


ROWS = (64, 384, 1344, 2688, 7680)
# K, N and the epilogue by projection: of a GDN layer's input, of any mixer's output, and of the feed-forward.
PROJECTIONS = {
    "0.8B in": Case(0, 1024, 8224),
    "0.8B out": Case(0, 2048, 1024, residual=True),
    "0.8B gate_up": Case(0, 1024, 2 * 3584, swiglu=True),
    "0.8B down": Case(0, 3584, 1024, residual=True),
    "4B in": Case(0, 2560, 12352),
    "4B out": Case(0, 4096, 2560, residual=True),
    "4B gate_up": Case(0, 2560, 2 * 9216, swiglu=True),
    "4B down": Case(0, 9216, 2560, residual=True),
}
CASES = {f"{name} {rows}": dataclasses.replace(case, rows=rows) for name, case in PROJECTIONS.items() for rows in ROWS}
# Small and awkward ones, for correctness: ragged tiles down and across, rows that are padded, few blocks of K.
AWKWARD = {
    "one row": Case(1, 64, 64),
    "a tile": Case(64, 128, 128),
    "a tile and a half": Case(192, 128, 256),
    "columns of 32": Case(128, 128, 160),
    "rows of no tile": Case(101, 192, 128, residual=True),
    "residual": Case(192, 128, 192, residual=True),
    "deep residual": Case(64, 1024, 256, residual=True),
    "swiglu": Case(192, 128, 256, swiglu=True),
    "ragged swiglu": Case(72, 64, 2 * 160, swiglu=True),
}


def caller(case: Case, implementation: str) -> Callable[..., jax.Array]:
    """The op on the operands of a case."""

    def call(x: jax.Array, weight: jax.Array, residual: jax.Array | None = None) -> jax.Array:
        return matmul(x, weight, residual=residual, swiglu=case.swiglu, implementation=implementation)

    return call
