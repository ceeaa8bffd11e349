"""A product with a weight, x W^T, and what is done to its sums before they are rounded."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels import dispatch, operands
from pallas_kernels.dispatch import Implementation
from pallas_kernels.matmul import pallas, reference, xla

__all__ = ["IMPLEMENTATIONS", "matmul"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.matmul,
    "xla": xla.matmul,
    "pallas": pallas.matmul,
}


@operands.checked(alike=("x", "weight", "residual"))
def matmul(
    x: Float[Array, "M K"],
    weight: Float[Array, "N K"],
    *,
    residual: Float[Array, "M N"] | None = None,
    swiglu: bool = False,
    batch_invariant: bool = False,
    implementation: Implementation = None,
) -> Float[Array, "M columns"]:
    """x W^T; residual + x W^T; or, with W = [G | U], silu(x G^T) * (x U^T).

    "pallas" and "reference" sum over K in one fixed order whatever M is: the bits of a row depend neither on how many
    other rows there are, nor on what they hold, nor on where the row stands. "xla" promises only that what stands in
    one row does not enter another: a library divides K among programs where there are few rows. Asked for
    `batch_invariant`, it cuts x into blocks of one size on a CPU, and refuses elsewhere.

    Args:
        x: one row for each row of the result.
        weight: rows as a model stores them, one for each column of the product.
        residual: added to the product.
        swiglu: rows of `weight` are [gate | up], N = 2 f.
        batch_invariant: only what sums over K in one fixed order may run.
        implementation: "reference", "xla", "pallas", or None for the best that can run.

    Returns:
        [M, N], or [M, f] with `swiglu`, in the dtype of `x`. Sums and what is done to them are float32 (float64 for
        float64 operands) and rounded once.

    Raises:
        ValueError: shapes other than these, operands of two dtypes, N is odd with `swiglu`, or both `residual` and
            `swiglu`.
    """
    if residual is not None and swiglu:
        raise ValueError("matmul: a product has a residual or is a SwiGLU, not both")
    if swiglu and weight.shape[0] % 2:
        raise ValueError(f"matmul: {weight.shape[0]} rows of weight are not [gate | up]")
    options = {"residual": residual, "swiglu": swiglu, "batch_invariant": batch_invariant}
    return dispatch.run("matmul", IMPLEMENTATIONS, implementation, x, weight, **options)
