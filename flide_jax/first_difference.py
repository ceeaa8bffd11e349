"""Where the bits of a request first part: the layer and the operation, between two rounds that hold it.

Rounds of an engine that is not batch-invariant agree up to rounding. This says which operation rounded differently: a
product whose library divides its sums by the number of rows, attention whose tiles hold other rows, or a norm.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from flide_jax.engine.program import Program, compiler_options, precision
from flide_jax.layout import Capacity, MetadataLayout, lay_out
from flide_jax.prompts.plan import Plan

IN_CHUNK_ROWS = ("convolution", "recurrence")  # the operations whose outputs are; of the others they are in stream rows
FIRST_OF_A_LAYER = "mixer_norm"


@dataclass(frozen=True)
class Difference:
    """The first operation with an output that differs in a bit.

    Attributes:
        layer: which one, from 0.
        operation: "mixer_norm", "in_proj", "query", "key", "attention", "gate", "convolution", "recurrence",
            "gated_norm", "out_proj", "feed_forward_norm", "gate_up" or "down".
        rows: how many of the request's rows differ there.
        of_rows: how many it has.
        largest: the largest difference of a number, in float64; NaN where one is not finite.
    """

    layer: int
    operation: str
    rows: int
    of_rows: int
    largest: float


@dataclass(frozen=True, eq=False)
class Output:
    """What an operation gives for the rows of one request, its state's first."""

    layer: int
    operation: str
    rows: Shaped[np.ndarray, "rows ..."]


def first_difference(
    program: Program,
    params: tuple[jax.Array, ...],
    one: tuple[Sequence[Plan], int, Capacity],
    other: tuple[Sequence[Plan], int, Capacity],
) -> Difference | None:
    """The first operation whose output differs between two rounds for a request that both hold, None for no difference.

    Every row of every layer is compared, also those of the last layer that no question reads. The forward is compiled
    anew so that it gives all of them, and what XLA fuses may differ from the executable that answers.

    Args:
        program, params: of an engine: `engine.program`, `engine.executables.params`.
        one, other: the plans of a round, which of them is compared, and the round's capacity. Both are to be the same
            plan.

    Raises:
        ValueError: they are not, or a round does not fit into its capacity.
    """
    (plans, index, _), (other_plans, other_index, _) = one, other
    for name in ("state", "branches", "branch_lengths"):
        if not np.array_equal(getattr(plans[index], name), getattr(other_plans[other_index], name)):
            raise ValueError(f"what is compared has to be the same request, but its {name} differ")
    for left, right in zip(outputs(program, params, *one), outputs(program, params, *other), strict=True):
        differs = (_bytes(left.rows) != _bytes(right.rows)).any(axis=1)
        if differs.any():
            distance = np.abs(left.rows.astype(np.float64) - right.rows.astype(np.float64)).max()
            return Difference(left.layer, left.operation, int(differs.sum()), differs.size, float(distance))
    return None


def outputs(
    program: Program, params: tuple[jax.Array, ...], plans: Sequence[Plan], index: int, capacity: Capacity
) -> list[Output]:
    """What each operation of the forward gives for the rows of request `index` in a round, in their order."""
    layout, stream = program.layout(capacity), lay_out(plans)
    own = (np.arange(stream.requests) == index)[stream.piece_request][stream.token_piece]
    with precision(program.dtype):
        names, arrays = _named(program, params, layout, layout.pack(stream))
        chunk_row = np.asarray(layout.unpack(layout.pack(stream)).segments.chunk_row)
    stream_rows = np.flatnonzero(own)
    found, layer = [], -1
    for name, array in zip(names, arrays, strict=True):
        layer += name == FIRST_OF_A_LAYER
        rows = chunk_row[stream_rows] if name in IN_CHUNK_ROWS else stream_rows
        found.append(Output(layer, name, np.asarray(array)[rows]))
    return found


def _named(
    program: Program, params: tuple[jax.Array, ...], layout: MetadataLayout, buffer: np.ndarray
) -> tuple[list[str], list[Any]]:
    """The values that the model names (`checkpoint_name`), from a forward that gives these alone."""

    def forward(params: tuple[jax.Array, ...], buffer: jax.Array) -> jax.Array:
        return program.family.hidden_states(
            program.packing.unpack(params),
            layout.unpack(buffer),
            program.architecture,
            batch_invariant=program.batch_invariant,
            implementation=program.implementation,
        )

    traced = jax.make_jaxpr(forward)(params, buffer)
    named = [step for step in traced.eqns if step.primitive.name == "name"]
    values = traced.jaxpr.replace(
        outvars=[step.outvars[0] for step in named], debug_info=traced.jaxpr.debug_info.with_unknown_names()
    )
    run = jax.jit(lambda constants, *leaves: jax.core.eval_jaxpr(values, constants, *leaves))
    arguments = (traced.consts, *params, buffer)
    options = compiler_options(program.ablation, layout.capacity.tokens, batch_invariant=program.batch_invariant)
    return [step.params["name"] for step in named], run.lower(*arguments).compile(dict(options))(*arguments)


def _bytes(rows: Shaped[np.ndarray, "rows ..."]) -> Shaped[np.ndarray, "rows bytes"]:
    return np.ascontiguousarray(rows).reshape(rows.shape[0], -1).view(np.uint8)
