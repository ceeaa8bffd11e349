"""The norm of a row."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels import dispatch, operands
from pallas_kernels.dispatch import Implementation
from pallas_kernels.rms_norm import pallas, reference, xla

__all__ = ["IMPLEMENTATIONS", "rms_norm"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.rms_norm,
    "xla": xla.rms_norm,
    "pallas": pallas.rms_norm,
}


@operands.checked()
def rms_norm(
    x: Float[Array, "N width"],
    weight: Float[Array, " width"],
    *,
    epsilon: float,
    batch_invariant: bool = False,
    implementation: Implementation = None,
) -> Float[Array, "N width"]:
    """x / sqrt(mean(x^2) + epsilon) * (1 + weight), row by row.

    In every implementation a row's bits depend on the row alone where XLA may choose nothing by the number of rows
    (`flide_jax.engine.program.BATCH_INVARIANT_OPTIONS`); there XLA's form takes three launches, and "pallas" one.

    Args:
        x: rows.
        weight: centred at zero.
        epsilon: added to the mean of squares.
        batch_invariant: whether XLA may choose nothing by the number of rows.
        implementation: "reference", "xla", "pallas", or None for the best that can run.

    Returns:
        The normed rows in the dtype of `x`; the norm is float32 at least, and rounded once.

    Raises:
        ValueError: shapes other than these, or operands that are not floats.
    """
    options = {"epsilon": epsilon, "batch_invariant": batch_invariant}
    return dispatch.run("rms_norm", IMPLEMENTATIONS, implementation, x, weight, **options)
