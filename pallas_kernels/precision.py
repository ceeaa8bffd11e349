"""The dtype in which reductions, softmax, decays and recurrent states are carried."""

import numpy as np
from jax.typing import DTypeLike


def accumulation_dtype(dtype: DTypeLike) -> np.dtype:
    """float64 for float64 operands, float32 for everything narrower."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)
