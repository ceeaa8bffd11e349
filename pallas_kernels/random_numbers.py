"""Random numbers for the operands of cases."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.precision import accumulation_dtype

LEAST = 2**18


def normal(key: jax.Array, shape: Sequence[int], dtype: DTypeLike = jnp.float32) -> jax.Array:
    """Of the standard normal distribution: the first of 2**n that are drawn in float32, or float64 for float64.

    XLA compiles that for few sizes: it would take longer for every shape than small cases take to run.
    """
    size = math.prod(shape)
    drawn = jax.random.normal(key, (max(LEAST, 1 << (size - 1).bit_length()),), accumulation_dtype(jnp.dtype(dtype)))
    return drawn[:size].reshape(shape).astype(dtype)
