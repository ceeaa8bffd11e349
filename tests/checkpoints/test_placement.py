"""Positions of checkpoints."""

import pytest

from flide_jax.checkpoints import Placement

PLACEMENT = Placement(shortest=100, margin=10, step=20, reach=30)


def position(length: int, **options: int) -> int | None:
    return PLACEMENT.position(length, **options)


def test_a_margin_before_the_end():
    assert position(100) == 90
    assert position(12_345) == 12_335


def test_what_changes_with_every_step_is_left_out():
    assert position(200, changing=20) == 170
    assert position(200, changing=21) == 190, "no more than the reach"
    assert position(200, resumed=150, changing=20) == 170
    assert position(200, resumed=151, changing=20) == 190, "the step would be too short"


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


@pytest.mark.parametrize("wrong", [{"shortest": float("nan")}, {"margin": 1.5}, {"reach": None}])
def test_refuses_what_counts_no_tokens(wrong):
    with pytest.raises(ValueError, match="a placement is whole numbers of tokens, got"):
        Placement(**wrong)
