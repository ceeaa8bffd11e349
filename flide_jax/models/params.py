"""Parameters before they are arrays: one abstract tree drives initialisation, loading and memory accounts."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# A leaf of a parameter tree: an array, or the ParamSpec that stands for it in an abstract tree.
Param = Any
Initializer = Callable[[jax.Array, tuple[int, ...]], jax.Array]


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """Shape and dtype of a parameter and how to draw one, `initializer(key, shape) -> float32 array`."""

    shape: tuple[int, ...]
    dtype: np.dtype
    initializer: Initializer

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return math.prod(self.shape) * self.dtype.itemsize


def normal(deviation: float) -> Initializer:
    """Normal values with mean 0."""
    return lambda key, shape: deviation * jax.random.normal(key, shape, jnp.float32)


def constant(value: float) -> Initializer:
    """One value everywhere."""
    return lambda key, shape: jnp.full(shape, value, jnp.float32)


def uniform(low: float, high: float) -> Initializer:
    """Values between two bounds."""
    return lambda key, shape: jax.random.uniform(key, shape, jnp.float32, low, high)


def log_uniform(low: float, high: float) -> Initializer:
    """Logarithms of values between two positive bounds."""
    return lambda key, shape: jnp.log(jax.random.uniform(key, shape, jnp.float32, low, high))


def initialise[Tree](abstract: Tree, key: jax.Array) -> Tree:
    """Draw every parameter of an abstract tree."""
    specs, structure = jax.tree.flatten(abstract)
    keys = jax.random.split(key, len(specs))
    drawn = [spec.initializer(k, spec.shape).astype(spec.dtype) for spec, k in zip(specs, keys, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def named_leaves(tree: Any) -> dict[str, Any]:
    """The leaves of a parameter tree by dotted path, such as `layers.0.mixer.in_proj`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in jax.tree.leaves_with_path(tree)
    }


def total_bytes(abstract: Any) -> int:
    """Memory of all parameters of an abstract tree."""
    return sum(spec.bytes for spec in jax.tree.leaves(abstract))
