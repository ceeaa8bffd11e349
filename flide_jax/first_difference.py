"""Where the bits of a request first part: the layer and the operation, between two rounds that hold it.

Rounds of an engine that is not batch-invariant agree up to rounding. This says which operation rounded differently: a
product whose library divides its sums by the number of rows, attention whose tiles hold other rows, or a norm.
"""

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Shaped

from flide_jax.engine import Engine
from flide_jax.engine.program import Program, compiler_options, precision
from flide_jax.layout import Capacity, Demand, MetadataLayout, lay_out
from flide_jax.prompts.plan import Plan
from flide_jax.request import Request
from flide_jax.same_bits import same_rows

IN_CHUNK_ROWS = ("convolution", "recurrence")  # the operations whose outputs are; of the others they are in stream rows
FIRST_OF_A_LAYER = "mixer_norm"


@dataclass(frozen=True)
class Difference:
    """The first operation with an output that differs in a bit.

    Attributes:
        layer: which one, from 0.
        operation: "mixer_norm", "in_proj", "query", "key", "attention", "gate", "convolution", "recurrence",
            "gated_norm", "out_proj", "feed_forward_norm", "gate_up" or "down"; behind the last layer "readout", see
            `where_bits_differ`.
        rows: how many of the request's rows differ there.
        of_rows: how many it has.
        largest: the largest difference of a number, in float64; NaN where one is not finite.
    """

    layer: int
    operation: str
    rows: int
    of_rows: int
    largest: float

    def __str__(self) -> str:
        return f"layer {self.layer}, {self.operation}: {self.rows} of {self.of_rows} rows, by up to {self.largest:.1e}"


@dataclass(frozen=True, eq=False)
class Output:
    """What an operation gives for the rows of one request, its state's first."""

    layer: int
    operation: str
    rows: Shaped[np.ndarray, "rows ..."]


def where_bits_differ(engine: Engine, requests: Sequence[Request], number: int) -> Difference | None:
    """Where request `number` parts from itself alone when all of them share a round; None: no bit of its logits does.

    Where no operation of `first_difference` parts and the logits do all the same, it is the "readout": the last norm
    and the head, or the last layer, which an answer computes at the rows that are read and not at every row.

    Raises ValueError: no such request; RequestError or NotImplementedError as `Engine.plan`.
    """
    plans = [engine.plan(request) for request in requests]
    if not 0 <= number < len(plans):
        raise ValueError(f"there is no request {number} of {len(plans)}")
    run, plan = engine.executables, plans[number]
    capacity = run.ladder.smallest_for(Demand.of(plan))
    shared = run.ladder.smallest_for(functools.reduce(operator.add, map(Demand.of, plans)))
    with precision(engine.dtype):
        alone, together = run.logits_in(capacity, [plan])[0], run.logits_in(shared, plans)[number]
    same = same_rows(alone, together)
    if same.all():
        return None
    found = first_difference(engine.program, run.params, ([plan], 0, capacity), (plans, number, shared))
    largest = float(np.abs(alone.astype(np.float64) - together.astype(np.float64)).max())
    layers = len(engine.program.abstract.layers)
    return found or Difference(layers, "readout", int((~same).sum()), same.size, largest)


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
        ValueError: they are not, there is no such plan, or a round does not fit into its capacity.
    """
    (plans, index, _), (other_plans, other_index, _) = one, other
    for held, number in ((plans, index), (other_plans, other_index)):
        if not 0 <= number < len(held):
            raise ValueError(f"there is no plan {number} in a round of {len(held)}")
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
