"""Parameters as fewer arrays: what a call costs the host grows with the number of its arguments."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Packing:
    """How the leaves of a parameter tree stand in stacks: the vectors of one shape and dtype in one.

    A stack is [leaves, width]; all other leaves stay as they are. Vectors are read by fusions of XLA, into which a
    slice goes without a launch. A matrix is read by a kernel: its slice is not copied either, but XLA wraps the launch,
    which costs the host more time than an argument does (5 us and 3 us beside an H200).

    Attributes:
        structure: of the tree.
        stacks: for each stack, the numbers of its leaves in the order of the tree.
        first: how many of the stacks hold the tree's first leaves, which an executable of their own takes.
    """

    structure: jax.tree_util.PyTreeDef
    stacks: tuple[tuple[int, ...], ...]
    first: int = 0

    @classmethod
    def of(cls, tree: Any, *, first_leaves: int = 0) -> "Packing":
        """The packing of a tree of arrays, or of anything with shape and dtype.

        No stack holds some of the first leaves and some of the others.
        """
        leaves, structure = jax.tree.flatten(tree)
        stacks: dict[Any, list[int]] = {}
        for number, leaf in enumerate(leaves):
            alike = (leaf.shape, leaf.dtype) if len(leaf.shape) == 1 else number
            stacks.setdefault((number < first_leaves, alike), []).append(number)
        first = sum(numbers[0] < first_leaves for numbers in stacks.values())
        return cls(structure, tuple(map(tuple, stacks.values())), first)

    def shapes(self, tree: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of the stacks of such a tree."""
        leaves = jax.tree.leaves(tree)
        return tuple(
            jax.ShapeDtypeStruct(
                (len(stack), *leaves[stack[0]].shape) if len(stack) > 1 else leaves[stack[0]].shape,
                leaves[stack[0]].dtype,
            )
            for stack in self.stacks
        )

    def pack(self, tree: Any) -> tuple[jax.Array, ...]:
        """The stacks of a tree."""
        leaves = jax.tree.leaves(tree)
        return tuple(
            jnp.stack([leaves[number] for number in stack]) if len(stack) > 1 else leaves[stack[0]]
            for stack in self.stacks
        )

    def unpack(self, packed: Sequence[jax.Array | None]) -> Any:
        """The tree, of slices of the stacks; of None for those that are None."""
        leaves: dict[int, jax.Array | None] = {}
        for stack, array in zip(self.stacks, packed, strict=True):
            for place, number in enumerate(stack):
                leaves[number] = array[place] if array is not None and len(stack) > 1 else array
        return jax.tree.unflatten(self.structure, [leaves[number] for number in range(len(leaves))])
