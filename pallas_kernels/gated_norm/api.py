"""What stands after the delta rule: the gated norm of every head, and the way back from chunk rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

from pallas_kernels import dispatch, operands
from pallas_kernels.dispatch import Implementation
from pallas_kernels.gated_norm import pallas, reference, xla
from pallas_kernels.segmented_gdn.metadata import Segments

__all__ = ["IMPLEMENTATIONS", "gated_norm"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.gated_norm,
    "xla": xla.gated_norm,
    "pallas": pallas.gated_norm,
}


@operands.checked(alike=("out", "projected"))
def gated_norm(
    out: Float[Array, "chunk_rows nv dv"],
    projected: Float[Array, "T width"],
    weight: Float[Array, " dv"],
    segments: Segments,
    *,
    gate_begin: int,
    rows: Int32[jax.Array | np.ndarray, " N"] | None = None,
    epsilon: float,
    implementation: Implementation = None,
) -> Float[Array, "N nv*dv"]:
    """o / sqrt(mean(o^2) + epsilon) * weight * silu(gate), head by head: the norm comes before the gate.

    Args:
        out: outputs of the delta rule in chunk rows.
        projected: rows of the stream whose columns from `gate_begin` on are the gates of all heads, so that a
            projection's output need not be cut.
        weight: of the norm, the same for every head; centred at one.
        segments: where each row of the stream stands among the chunk rows.
        gate_begin: the first gate's column.
        rows: the stream rows that are wanted; all T when it is None.
        epsilon: added to the mean of squares.
        implementation: "reference", "xla", "pallas", or None for the best that can run.

    Returns:
        One row for each wanted row, in the dtype of `projected`; norm and gate are float32 at least. Rows of no segment
        are unspecified.

    Raises:
        ValueError: shapes or dtypes other than these, `out` and `projected` of two dtypes, a gate before the first
            column or behind the last, chunk rows that are not those of `segments`, or, in arrays on the host, segments
            that do not fit together or rows that there are not.
    """
    columns = gate_begin + out.shape[1] * out.shape[2]
    if gate_begin < 0 or projected.shape[1] < columns:
        found = f"rows of {projected.shape[1]} columns, gates from column {gate_begin} up to column {columns}"
        raise ValueError(f"gated_norm: {found}")
    segments.check("gated_norm", chunk_rows=out.shape[0])
    if rows is not None:
        operands.check_values("gated_norm", {"rows": (rows, 0, projected.shape[0] - 1)})
        rows = jnp.asarray(rows)
    return dispatch.run(
        "gated_norm",
        IMPLEMENTATIONS,
        implementation,
        out,
        projected,
        weight,
        segments,
        gate_begin=gate_begin,
        rows=rows,
        epsilon=epsilon,
    )
