"""What the tests on the card compare: bits, and errors against float64 on the same rounded operands."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.tolerances import OPERATOR, assert_close, relative_rms

# Root mean square of the error over that of the value: rounding of operands and outputs to bfloat16.
RELATIVE_RMS = 5e-3


def bits(x: Any) -> np.ndarray:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def whole(result: Any) -> Any:
    return result


def exact(call: Callable[..., Any], *operands: Any, defined: Callable[[Any], Any] = whole) -> Any:
    """The `defined` part of the result of a call on these operands in float64."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(jnp.float64), operands)
        return defined(jax.jit(call)(*wide))


def check(found: Any, expected: Any) -> None:
    """Each array of a result in bfloat16, and of what goes with it in float32."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert relative_rms(one, other) < RELATIVE_RMS
        assert_close(one, other, OPERATOR["bfloat16"])


def same_bits(found: Any, expected: Any, where: Any = ...) -> None:
    """At some indices of every array of a result."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(bits(one)[where], bits(other)[where])


def ten_times(call: Callable[..., Any], *operands: Any, defined: Callable[[Any], Any] = whole) -> Any:
    """The `defined` part of a result, after it has come out ten times with the same bits.

    Before each time NaN is written into as much memory as the result takes and given back, so that the allocator is
    likely to put the result there: what is read of it has to be written.
    """
    compiled = jax.jit(call)
    result = compiled(*operands)
    first = defined(result)
    for _ in range(9):
        jax.block_until_ready(jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), result))
        same_bits(defined(compiled(*operands)), first)
    return first
