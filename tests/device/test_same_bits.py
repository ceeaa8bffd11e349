"""The batch-invariant forward on the card: the bits of an answer in any round, order and capacity."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from experiments.measured_model import program
from experiments.model_sizes import SIZES
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.executables import Executables
from flide_jax.first_difference import first_difference
from flide_jax.layout import Demand
from flide_jax.models.qwen3_5.config import LayerKind
from flide_jax.same_bits import compare_bits, same_rows
from tests.trees import plan_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

# Each kind of layer before the other, with the heads of two sizes and few words.
LAYERS = 2 * (LayerKind.GATED_DELTA_NET, LayerKind.ATTENTION)
CAPACITIES = (64, 384, 1_280, 4_096)
LENGTHS = (1, 2, 3, 4, 17, 31, 32, 33, 63, 64, 65, 66, 90, 127, 128, 129, 190, 300)


def program_of(size: str, *, batch_invariant: bool):
    small = dataclasses.replace(SIZES[size], layers=LAYERS, vocabulary=1_000)
    config = EngineConfig(dtype="bfloat16", capacities=CAPACITIES, batch_invariant=batch_invariant)
    return program(small, config), config


@functools.cache
def executables(size: str, *, batch_invariant: bool = True) -> Executables:
    made, config = program_of(size, batch_invariant=batch_invariant)
    return Executables.of(made, made.initialise(jax.random.key(0)), config)


def plans(count: int, seed: int):
    rng = np.random.default_rng(seed)
    return [
        plan_of(int(rng.choice(LENGTHS)), rng.choice(LENGTHS[:14], rng.integers(1, 6)), rng, vocabulary=1_000)
        for _ in range(count)
    ]


@pytest.mark.parametrize("size", ["0.8B", "4B"])
def test_every_way_of_asking(size):
    found = compare_bits(executables(size), plans(64, 0))
    assert [(one.same, one.first) for one in found] == [(one.questions, None) for one in found], found


@pytest.mark.parametrize("size", ["0.8B", "4B"])
def test_every_capacity(size):
    run = executables(size)
    for plan in plans(24, 1):
        fitting = [capacity for capacity in run.ladder.capacities if capacity.fits(Demand.of(plan))]
        expected, *others = (run.logits_in(capacity, [plan])[0] for capacity in fitting)
        for capacity, found in zip(fitting[1:], others, strict=True):
            assert same_rows(expected, found).all(), capacity


def test_a_hundred_times_the_same_bits():
    run, some = executables("0.8B"), plans(20, 2)
    expected = run.logits(some)
    for _ in range(100):
        for one, other in zip(expected, run.logits(some), strict=True):
            assert same_rows(one, other).all()


def test_the_usual_forward_changes_bits():
    """So that the tests above can fail; and what changes them first is found, and only there."""
    some = plans(32, 0)
    usual = executables("0.8B", batch_invariant=False)
    assert not all(one.same == one.questions for one in compare_bits(usual, some))
    for batch_invariant in (True, False):
        run = executables("0.8B", batch_invariant=batch_invariant)
        made, _ = program_of("0.8B", batch_invariant=batch_invariant)
        alone = (some[:1], 0, run.ladder.smallest_for(Demand.of(some[0])))
        found = first_difference(made, run.params, alone, (some[:8], 0, run.ladder.largest))
        assert (found is None) == batch_invariant
