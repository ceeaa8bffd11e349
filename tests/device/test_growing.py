"""Growing states on the card: steps that go on from checkpoints against the same states computed as a whole."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.growing_state import Agent, without
from experiments.measured_model import program
from experiments.model_sizes import SIZES
from flide_jax.checkpoints import Placement
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.executables import Executables
from flide_jax.models.qwen3_5.config import LayerKind

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

# Of logits, root mean square: a state that was cut elsewhere into chunks is rounded elsewhere.
RELATIVE_RMS = 3e-2


LAYERS = 2 * (LayerKind.GATED_DELTA_NET, LayerKind.ATTENTION)
SIZE = dataclasses.replace(SIZES["0.8B"], layers=LAYERS, vocabulary=1_000)
CONFIG = EngineConfig(
    dtype="bfloat16",
    capacities=(768, 2_048),
    checkpoint_bytes=400_000_000,
    placement=Placement(shortest=16, margin=8, step=8),
)
PROGRAM = program(SIZE, CONFIG).with_checkpoints(CONFIG)


@pytest.fixture(scope="module")
def run() -> Executables:
    """Two layers of each kind, with the heads of the smallest model."""
    return Executables.of(PROGRAM, PROGRAM.initialise(jax.random.key(0)), CONFIG)


def rms(found, expected) -> float:
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def check(run: Executables, plans, resumed=None) -> None:
    started = run.start(plans)
    if resumed is not None:
        assert started.resumed == resumed
    for found, plan in zip(started(), plans, strict=True):
        assert np.isfinite(found).all()
        assert rms(found, run.logits([without(plan)])[0]) < RELATIVE_RMS


@pytest.mark.parametrize("first", [64, 65, 127, 130, 700])
def test_a_chain_of_steps(run, first):
    run.growing.clear()
    agent, resumed = Agent(1_000, first), 0
    length = first
    for more in (1, 8, 63, 64, 65, 300, 72, 72):
        plan = agent.plan(length, (5, 60, 1))
        check(run, [plan])
        resumed = max(resumed, length - 8)
        length += more
    assert run.growing.store.counters.hits and max(one.tokens.size for one in run.growing.store) > first


def test_agents_that_diverge_in_one_page_and_one_round(run):
    run.growing.clear()
    common = Agent(1_000, 1)
    check(run, [common.plan(200, (5,))], resumed=[0])
    agents = [Agent(1_000, seed) for seed in (2, 3, 4)]
    for agent in agents:
        agent.state = common.state
    check(run, [agent.plan(230, (7, 3)) for agent in agents], resumed=[192] * 3)
    check(run, [agent.plan(300, (7, 3)) for agent in agents], resumed=[222] * 3)
    check(run, [common.plan(260, 64 * (4,))], resumed=[192])


def test_ten_times_the_same_bits(run):
    """Whatever slots and pages it is put into."""
    found = []
    for _ in range(10):
        agent = Agent(1_000, 5)
        first, second = agent.plan(300, (5,)), agent.plan(420, (5, 60))
        run.logits([dataclasses.replace(first, salt=str(len(found)))])
        started = run.start([dataclasses.replace(second, salt=str(len(found)))])
        assert started.resumed == [292]
        found.append(started()[0])
    for one in found[1:]:
        np.testing.assert_array_equal(one, found[0])


@pytest.fixture(scope="module")
def spilling(run) -> Executables:
    """Two checkpoints fit on the card, and more on the host."""
    size = PROGRAM.store
    two = 2 * (size.slot_bytes + size.pages // size.slots * size.page_bytes)
    config = dataclasses.replace(CONFIG, checkpoint_bytes=two, checkpoint_host_bytes=10 * two)
    made = Executables.of(PROGRAM.with_checkpoints(config), run.params, config)
    made.growing.prepare()
    return made


def test_from_the_host_in_every_bit(spilling):
    """Five agents that take turns where two fit, against each of them alone."""
    lengths = (300, 420, 433, 700)
    alone = []
    for seed in range(5):
        spilling.growing.clear()
        agent = Agent(1_000, seed)
        alone.append([spilling.logits([agent.plan(length, (5, 60))])[0] for length in lengths])
    spilling.growing.clear()
    agents = [Agent(1_000, seed) for seed in range(5)]
    for step, length in enumerate(lengths):
        for agent, expected in zip(agents, alone, strict=True):
            started = spilling.start([agent.plan(length, (5, 60))])
            assert started.resumed == [lengths[step - 1] - 8 if step else 0]
            np.testing.assert_array_equal(started()[0], expected[step])
    assert spilling.growing.counters().restored == 15


def test_what_is_not_finite_is_not_kept(run, monkeypatch):
    run.growing.clear()
    agent = Agent(999, 6)
    good, bad = agent.plan(300, (5,)), Agent(999, 6).plan(300, (5,))
    state = bad.state.copy()
    state[100] = 999
    params = PROGRAM.packing.unpack(run.params)
    broken = params.embedding.at[999].set(np.nan)
    monkeypatch.setattr(run, "params", tuple(broken if x is params.embedding else x for x in run.params))
    assert np.isnan(run.logits([dataclasses.replace(bad, state=state)])[0]).all()
    assert len(run.growing.store) == 0 and run.growing.bytes == 0
    check(run, [good], resumed=[0])
    check(run, [agent.plan(400, (5,))], resumed=[292])
