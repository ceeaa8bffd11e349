"""The tests of this folder can fail: every way of forking wrongly moves a probability beyond their tolerance.

In every dtype, and beyond that of `verify` too, but for what is named here.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flide_jax.layout import RoundMetadata
from flide_jax.models import qwen3_5
from flide_jax.verification import TOLERANCES
from tests.models.support import probabilities, tiny_model
from tests.tolerances import EXACT, FORKED_ROUNDED
from tests.trees import laid_out, plan_of

STATE, BRANCHES = 4, [*range(1, 10), 66]


def is_branch(metadata: RoundMetadata) -> np.ndarray:
    """bool [T]: the rows of branches."""
    return metadata.spans.own_end > 0


def with_spans(metadata: RoundMetadata, **spans) -> RoundMetadata:
    return dataclasses.replace(metadata, spans=dataclasses.replace(metadata.spans, **spans))


def memory_is_lost(metadata: RoundMetadata) -> RoundMetadata:
    """Branches start their recurrence from zero."""
    slots = np.full_like(metadata.segments.initial_slot, -1)
    return dataclasses.replace(metadata, segments=dataclasses.replace(metadata.segments, initial_slot=slots))


def window_is_lost(metadata: RoundMetadata) -> RoundMetadata:
    """The convolution of branches sees zeros in place of the last rows of the state."""
    own = np.where(is_branch(metadata), metadata.spans.own_begin, 0)[:, None]
    return dataclasses.replace(metadata, predecessors=np.where(metadata.predecessors < own, -1, metadata.predecessors))


def state_ends_early(metadata: RoundMetadata) -> RoundMetadata:
    """Branches do not see the last row of the state."""
    return with_spans(metadata, state_end=metadata.spans.state_end - is_branch(metadata).astype(np.int32))


def siblings_are_seen(metadata: RoundMetadata) -> RoundMetadata:
    """Branches see those before them."""
    return with_spans(metadata, own_begin=np.where(is_branch(metadata), STATE, 0).astype(np.int32))


def positions_restart(metadata: RoundMetadata) -> RoundMetadata:
    """Branches count their positions from 0."""
    own = np.arange(is_branch(metadata).size, dtype=np.int32) - metadata.spans.own_begin
    positions = np.where(is_branch(metadata)[None], own[None], metadata.rotary_positions)
    return dataclasses.replace(metadata, rotary_positions=positions.astype(np.int32))


def positions_overlap(metadata: RoundMetadata) -> RoundMetadata:
    """Branches count from the position of the state's last row."""
    positions = metadata.rotary_positions - is_branch(metadata)[None].astype(np.int32)
    return dataclasses.replace(metadata, rotary_positions=positions)


WRONG = [memory_is_lost, window_is_lost, state_ends_early, siblings_are_seen, positions_restart, positions_overlap]
# A shift of rotary positions moves this little model's answers by a hundredth, and `verify` allows bfloat16 more than
# that: it speaks for deep models, in which rounding adds up.
UNSEEN_BY_VERIFY = {(positions_restart, "bfloat16"), (positions_overlap, "bfloat16")}


@functools.cache
def answering(dtype: str):
    """metadata -> the probabilities of every read, compiled once: structure is data."""
    model = tiny_model("untied", dtype)
    run = jax.jit(lambda params, metadata: qwen3_5.forward(params, metadata, model.config))
    return lambda metadata: probabilities(run(model.params, jax.tree.map(jnp.asarray, metadata))[: len(BRANCHES)])


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("mutation", WRONG, ids=lambda mutation: mutation.__name__)
def test_a_wrong_fork_is_seen(mutation, dtype):
    _, metadata = laid_out([plan_of(STATE, BRANCHES, np.random.default_rng(54))])
    with jax.enable_x64(dtype == "float64"):
        answers = answering(dtype)
        error = np.abs(answers(mutation(metadata)) - answers(metadata)).max()
    assert error > 2 * FORKED_ROUNDED.get(dtype, EXACT), f"{error:.1e}"
    assert (error > TOLERANCES[dtype]) == ((mutation, dtype) not in UNSEEN_BY_VERIFY), f"{error:.1e}"
