"""Ways of forking wrongly, each as a change of a round's metadata: to show what a mistake does, and that it is seen.

The structure of a round is data, so every mistake of forking is a wrong number in it: the executable is the same.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float64

from flide_jax.array_types import IntVector
from flide_jax.inspection import Inspector
from flide_jax.layout import RoundMetadata, lay_out
from flide_jax.request import Request
from flide_jax.verification import differences


def memory_is_lost(metadata: RoundMetadata) -> RoundMetadata:
    """Branches start their recurrence from zero."""
    slots = np.full_like(np.asarray(metadata.segments.initial_slot), -1)
    return dataclasses.replace(metadata, segments=dataclasses.replace(metadata.segments, initial_slot=slots))


def window_is_lost(metadata: RoundMetadata) -> RoundMetadata:
    """The convolution of branches sees zeros in place of the last rows of the state."""
    before = np.asarray(metadata.predecessors)
    own = np.where(_of_branches(metadata), np.asarray(metadata.spans.own_begin), 0)[:, None]
    return dataclasses.replace(metadata, predecessors=np.where(before < own, np.int32(-1), before))


def state_ends_early(metadata: RoundMetadata) -> RoundMetadata:
    """Branches do not see the last row of the state."""
    return _with_spans(metadata, state_end=np.asarray(metadata.spans.state_end) - _of_branches(metadata))


def siblings_are_seen(metadata: RoundMetadata) -> RoundMetadata:
    """Branches see those before them."""
    own, state = np.asarray(metadata.spans.own_begin), np.asarray(metadata.spans.state_begin)
    begin = own.copy()
    for request in np.unique(state[_of_branches(metadata)]):
        rows = _of_branches(metadata) & (state == request)
        begin[rows] = own[rows].min()
    return _with_spans(metadata, own_begin=begin)


def positions_restart(metadata: RoundMetadata) -> RoundMetadata:
    """Branches count their positions from 0."""
    own = np.arange(metadata.spans.own_begin.shape[0], dtype=np.int32) - np.asarray(metadata.spans.own_begin)
    positions = np.where(_of_branches(metadata)[None], own[None], np.asarray(metadata.rotary_positions))
    return dataclasses.replace(metadata, rotary_positions=positions.astype(np.int32))


def positions_overlap(metadata: RoundMetadata) -> RoundMetadata:
    """Branches count from the position of the state's last row."""
    positions = np.asarray(metadata.rotary_positions) - _of_branches(metadata)[None].astype(np.int32)
    return dataclasses.replace(metadata, rotary_positions=positions)


WRONG_FORKS: tuple[Callable[[RoundMetadata], RoundMetadata], ...] = (
    memory_is_lost,
    window_is_lost,
    state_ends_early,
    siblings_are_seen,
    positions_restart,
    positions_overlap,
)


def differences_by_fork(inspector: Inspector, request: Request) -> dict[str, Float64[np.ndarray, " questions"]]:
    """The largest |dp| of each question against the question alone: of the fork, and of every wrong one.

    By what was done, "the fork" first. All run through one executable, the questions alone too.
    """
    plan = inspector.engine.plan(request)
    alone = [
        inspector.logits(inspector.metadata(lay_out([plan.alone(one)])))[:1] for one in range(len(request.questions))
    ]
    expected = inspector.engine.answers(request, plan, np.concatenate(alone))
    metadata = inspector.metadata(lay_out([plan]))
    rounds = {"the fork": metadata} | {one.__name__.replace("_", " "): one(metadata) for one in WRONG_FORKS}
    return {name: differences(inspector.answers(request, one), expected) for name, one in rounds.items()}


def _of_branches(metadata: RoundMetadata) -> Bool[np.ndarray, " T"]:
    """The rows of branches."""
    return np.asarray(metadata.spans.own_end) > 0


def _with_spans(metadata: RoundMetadata, **spans: IntVector) -> RoundMetadata:
    changed = {name: column.astype(np.int32) for name, column in spans.items()}
    return dataclasses.replace(metadata, spans=dataclasses.replace(metadata.spans, **changed))
