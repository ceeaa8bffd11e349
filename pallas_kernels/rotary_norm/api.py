"""What stands before attention: the norm of every query and key, their rotary positions, and values that are finite."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels import dispatch, operands
from pallas_kernels.dispatch import Implementation
from pallas_kernels.rotary_norm import pallas, reference, xla

__all__ = ["IMPLEMENTATIONS", "rotary_norm"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.rotary_norm,
    "xla": xla.rotary_norm,
    "pallas": pallas.rotary_norm,
}


@operands.checked()
def rotary_norm(
    projected: Float[Array, "N width"],
    weight: Float[Array, " D"],
    cos: Float[Array, "N frequencies"],
    sin: Float[Array, "N frequencies"],
    *,
    heads: int,
    begin: int,
    value_begin: int | None = None,
    epsilon: float,
    implementation: Implementation = None,
) -> tuple[Float[Array, "N heads D"], ...]:
    """Queries or keys n = x / sqrt(mean(x^2) + epsilon) * (1 + weight), head by head, turned by their positions.

    Of the first 2 F dims, F frequencies, (n_j, n_{j + F}) becomes (n_j cos_j - n_{j + F} sin_j,
    n_{j + F} cos_j + n_j sin_j); the others pass through.

    With `value_begin` these are keys, and the values that belong to them are returned as well. A value that is not
    finite becomes zero and its key NaN in that channel: a mask hides a key, where it could not hide a value, since a
    zero weight times NaN is NaN.

    Args:
        projected: rows of a product, of which every head is D columns.
        weight: of the norm, the same for every head; centred at zero.
        cos, sin: of each row's angles.
        heads: how many.
        begin: the first head's first column.
        value_begin: the same of the values.
        epsilon: added to the mean of squares.
        implementation: "reference", "xla", "pallas", or None for the best that can run.

    Returns:
        (queries,) or (keys, values) in the dtype of `projected`. Norm and rotation are float32 at least, and rounded
        once. The bits of a row depend on the row alone as they do in `rms_norm`.

    Raises:
        ValueError: shapes other than these, operands that are not floats, fewer columns than heads, a column before the
            first, or more frequencies than pairs of dims.
    """
    if heads < 1 or begin < 0 or (value_begin or 0) < 0:
        raise ValueError(f"rotary_norm: {heads} heads from column {begin}, values from {value_begin}")
    columns = max(begin, value_begin or 0) + heads * weight.shape[0]
    if projected.shape[1] < columns:
        raise ValueError(f"rotary_norm: rows of {projected.shape[1]} columns, heads up to column {columns}")
    if 2 * cos.shape[1] > weight.shape[0]:
        raise ValueError(f"rotary_norm: {cos.shape[1]} frequencies for heads of {weight.shape[0]} dims")
    options = {"heads": heads, "begin": begin, "value_begin": value_begin, "epsilon": epsilon}
    return tuple(dispatch.run("rotary_norm", IMPLEMENTATIONS, implementation, projected, weight, cos, sin, **options))
