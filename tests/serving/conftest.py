"""Engines, compiled once for the tests of this folder, and servers of them."""

import copy
from collections.abc import Iterator, Sequence

import pytest

from flide_jax.checkpoints import Placement
from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.executables import Started
from flide_jax.prompts.plan import Plan
from flide_jax.serving.admission import Limits
from tests.engine.queued import HeldDevice
from tests.serving.live import Live, serving


@pytest.fixture(scope="session")
def tiny_engine(tiny_model) -> Engine:
    """float32, with capacities for few and for many requests; of random weights."""
    engine = Engine.load(tiny_model, EngineConfig(dtype="float32", capacities=(256, 1_024)))
    list(engine.prepare_all())
    return engine


@pytest.fixture(scope="session")
def demo_engine() -> Engine:
    """The model that ships, with a third capacity, so that what is long in several ways is compiled for once."""
    engine = Engine.demo(EngineConfig(dtype="float32", capacities=(256, 1_024, 6_144)))
    list(engine.prepare_all())
    return engine


@pytest.fixture(scope="session")
def growing_engine(tiny_model) -> Engine:
    """The tiny model with room for checkpoints, also of short states. Whatever tests left in it is to be cleared."""
    placement = Placement(shortest=40, margin=8, step=8, reach=64)
    config = EngineConfig(dtype="float32", capacities=(512,), checkpoint_bytes=60_000_000, placement=placement)
    engine = Engine.load(tiny_model, config)
    list(engine.prepare_all())
    return engine


@pytest.fixture(scope="module")
def live(tiny_engine) -> Iterator[Live]:
    """A server that asks for no key."""
    with serving(tiny_engine, limits=Limits(default_seconds=60.0)) as server:  # the machine may be busy
        yield server


@pytest.fixture
def held(tiny_engine) -> Iterator[tuple[Engine, HeldDevice]]:
    """The engine on a device that ends its rounds when the test says so, and then with the engine's own logits."""
    device = HeldDevice()
    engine = copy.copy(tiny_engine)

    def start(plans: Sequence[Plan]):
        finish = device.start(plans)

        def finish_with_logits():
            finish()
            return tiny_engine.logits(plans)

        return Started(finish.resumed, finish_with_logits)

    engine.start = start  # type: ignore[method-assign]
    yield engine, device
    device.release()
