"""Rows of a larger matrix, read where they stand.

What a call of an executable costs the host grows with the number of its arguments, so matrices of all layers may be one
argument. A kernel is given the number of its first row as data: one kernel serves all layers, and nothing is copied.
"""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int32


@struct.dataclass
class Rows:
    """The rows [first, first + count) of a matrix, for an operation that says it takes them.

    Attributes:
        matrix: [M, K].
        first: the first row.
        count: how many.
    """

    matrix: Float[Array, "M K"]
    first: int = struct.field(pytree_node=False)
    count: int = struct.field(pytree_node=False)

    @classmethod
    def of(cls, operand: "Float[Array, 'N K'] | Rows") -> "Rows":
        """All rows of an array; rows as they are."""
        return operand if isinstance(operand, Rows) else cls(operand, 0, operand.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """(count, K)."""
        return self.count, self.matrix.shape[1]

    @property
    def dtype(self) -> jnp.dtype:
        """Of the matrix."""
        return self.matrix.dtype

    @property
    def number(self) -> Int32[Array, " 1"]:
        """The first row as a kernel takes it."""
        return jnp.array([self.first], jnp.int32)

    def __getitem__(self, some: slice) -> "Rows":
        """Some of them, without a step."""
        begin, end, _ = some.indices(self.count)
        return Rows(self.matrix, self.first + begin, end - begin)

    def read(self) -> Float[Array, "count K"]:
        """As an array of their own."""
        return jax.lax.slice_in_dim(self.matrix, self.first, self.first + self.count)
