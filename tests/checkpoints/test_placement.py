"""Positions of checkpoints."""

import numpy as np
import pytest

from flide_jax.checkpoints import Placement

PLACEMENT = Placement(shortest=100, margin=10, step=20, reach=30)


def position(length: int, *, turn_ends=None, **options: int) -> int | None:
    ends = None if turn_ends is None else np.array(turn_ends, np.int32)
    return PLACEMENT.position(length, turn_ends=ends, **options)


def test_a_margin_before_the_end():
    assert position(100) == 90
    assert position(12_345) == 12_335


def test_the_end_of_the_last_complete_turn_where_it_is_near():
    assert position(200, turn_ends=[50, 175]) == 175
    assert position(200, turn_ends=[50, 170]) == 170
    assert position(200, turn_ends=[50, 169]) == 190, "the turn that is not complete is too long to be read again"
    assert position(200, turn_ends=[50, 200]) == 200, "a turn that ends with the state"
    assert position(200, turn_ends=[]) == 190


def test_what_changes_with_every_step_is_left_out():
    assert position(200, changing=20) == 170
    assert position(200, changing=21) == 190, "no more than the reach"
    assert position(200, resumed=150, changing=20) == 170
    assert position(200, resumed=151, changing=20) == 190, "the step would be too short"
    assert position(200, turn_ends=[175], changing=20) == 170


def test_short_states_and_short_steps_save_nothing():
    assert position(99) is None
    assert position(200, resumed=170) == 190
    assert position(200, resumed=171) is None
    assert position(200, resumed=190) is None
    assert position(200, resumed=195) is None


@pytest.mark.parametrize("wrong", [{"shortest": 0}, {"margin": -1}, {"step": 0}, {"reach": -1}])
def test_refuses_numbers_that_make_no_sense(wrong):
    with pytest.raises(ValueError, match="shortest and step must be 1 or more, margin and reach 0 or more"):
        Placement(**wrong)
