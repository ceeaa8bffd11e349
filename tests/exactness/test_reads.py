"""Any row can be read: `forward` runs its last layer at the read rows alone, and gives what all rows would."""

import dataclasses

import jax
import numpy as np
import pytest

from flide_jax.layout import lay_out
from flide_jax.models.qwen3_5.config import LayerKind
from tests.models.support import TinyModel, draw, tiny_model
from tests.tolerances import EXACT, relative_error
from tests.trees import plan_of


def plans_of_many_reads():
    """Of a state its first row, one inside and its last; of a branch several, out of order and one of them twice."""
    rng = np.random.default_rng(0)
    plan = dataclasses.replace(
        plan_of(70, [5, 66], rng),
        read_branches=np.int32([1, -1, 0, -1, 1, 1, -1, 0]),
        read_offsets=np.int32([65, 0, 2, 69, 0, 65, 33, 4]),
    )
    state_alone = dataclasses.replace(plan_of(3, [2], rng), read_branches=np.int32([-1]), read_offsets=np.int32([2]))
    return [plan, plan_of(1, [1, 9], rng), state_alone]


def ending_with(last: LayerKind) -> TinyModel:
    """A tiny model whose last layer is of a kind."""
    config = tiny_model("untied", "float64").config
    config = dataclasses.replace(config, layers=(*config.layers[:-1], last))
    params = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, np.float64), draw(config, 0))
    return TinyModel(config, params)


@pytest.mark.parametrize("last", LayerKind)
def test_reads_equal_the_rows_of_all_hidden_states(last):
    plans = plans_of_many_reads()
    stream = lay_out(plans)
    # Counted here from the plans: a state stands before all branches, a branch where those before it end.
    starts = [{-1: 0, 0: 74, 1: 79}, {0: 145, 1: 146}, {-1: 71}]
    rows = [
        starts[i][branch] + offset
        for i, plan in enumerate(plans)
        for branch, offset in zip(plan.read_branches.tolist(), plan.read_offsets.tolist(), strict=True)
    ]
    with jax.enable_x64(True):
        model = ending_with(last)
        found, expected = model.logits(stream), model.read(model.hidden_states(stream)[-1, rows])
        assert found.shape == (11, 4)
        assert relative_error(found, expected) <= EXACT
        # Each row is its own: the nearest two of the reads, the same row apart, differ by far more.
        different = np.abs(found[:, None] - found[None]).max(axis=2)[~np.equal.outer(rows, rows)]
        assert different.min() > 1e-3


def test_a_read_of_a_state_is_what_the_state_alone_gives():
    plan = plans_of_many_reads()[0]
    none = np.empty(0, np.int32)
    of_state = plan.read_branches == -1
    alone = dataclasses.replace(
        plan,
        branches=none,
        branch_lengths=none,
        read_branches=plan.read_branches[of_state],
        read_offsets=plan.read_offsets[of_state],
    )
    with jax.enable_x64(True):
        model = tiny_model("untied", "float64")
        found, expected = model.logits(lay_out([plan])), model.logits(lay_out([alone]))
        assert relative_error(found[of_state], expected) <= EXACT
        for branch in (0, 1):
            assert relative_error(found[plan.read_branches == branch], model.alone(plan, branch)[1]) <= EXACT
