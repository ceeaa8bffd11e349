"""Parameters as fewer arrays: what a call costs the host grows with the number of its arguments."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from flide_jax.models.params import ParamSpec
from pallas_kernels import Rows


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the leaves of a parameter tree stand in arrays.

    Vectors of one shape and dtype are the rows of one array: they are read by fusions of XLA, into which a slice goes
    without a launch. Matrices whose readers take `Rows` stand below each other in one array for each width and dtype,
    where the kernels can read them there; XLA would copy them, or wrap the launch of a kernel that takes a slice, which
    costs the host more time than an argument does (5 us and 3 us beside an H200). All other leaves stay as they are.

    Attributes:
        structure: of the tree.
        arrays: for each array, the numbers of its leaves in the order of the tree.
        specs: of the leaves.
    """

    structure: jax.tree_util.PyTreeDef
    arrays: tuple[tuple[int, ...], ...]
    specs: tuple[ParamSpec, ...]

    @classmethod
    def of(cls, abstract: Any, *, join_rows: bool) -> "Packing":
        """The packing of an abstract tree; `join_rows` of matrices, too."""
        specs, structure = jax.tree.flatten(abstract)
        arrays: dict[Any, list[int]] = {}
        for number, spec in enumerate(specs):
            joined = len(spec.shape) == 1 or (join_rows and spec.read_as_rows)
            key = (len(spec.shape), spec.shape[-1], spec.dtype) if joined else number
            arrays.setdefault(key, []).append(number)
        return cls(structure, tuple(map(tuple, arrays.values())), tuple(specs))

    @property
    def shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of the arrays."""
        return tuple(
            jax.ShapeDtypeStruct(
                self.specs[numbers[0]].shape
                if len(numbers) == 1
                else (sum(map(self._rows, numbers)), self.specs[numbers[0]].shape[-1]),
                self.specs[numbers[0]].dtype,
            )
            for numbers in self.arrays
        )

    def pack(self, tree: Any) -> tuple[jax.Array, ...]:
        """The arrays of a tree, whose leaves are deleted on the way: there is no room for two of a large model."""
        leaves = jax.tree.leaves(tree)
        packed = []
        for numbers in self.arrays:
            if len(numbers) == 1:
                packed.append(leaves[numbers[0]])
                continue
            packed.append(_joined([leaves[number] for number in numbers]))
            packed[-1].block_until_ready()
            for number in numbers:
                leaves[number].delete()
        return tuple(packed)

    def unpack(self, packed: tuple[jax.Array, ...]) -> Any:
        """The tree: of slices of the arrays, and of `Rows` of those that matrices stand in."""
        leaves: dict[int, jax.Array | Rows] = {}
        for numbers, array in zip(self.arrays, packed, strict=True):
            first = 0
            for number in numbers:
                spec, rows = self.specs[number], self._rows(number)
                if len(numbers) == 1:
                    leaves[number] = array
                else:
                    leaves[number] = array[first] if len(spec.shape) == 1 else Rows(array, first, rows)
                first += rows
        return jax.tree.unflatten(self.structure, [leaves[number] for number in range(len(leaves))])

    def _rows(self, number: int) -> int:
        shape = self.specs[number].shape
        return 1 if len(shape) == 1 else shape[0]


@jax.jit
def _joined(leaves: list[jax.Array]) -> jax.Array:
    return jnp.concatenate([leaf.reshape(-1, leaf.shape[-1]) for leaf in leaves])
