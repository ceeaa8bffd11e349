"""An engine, compiled once for the tests of this folder, and servers of it."""

import copy
from collections.abc import Iterator, Sequence

import pytest

from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.executables import Started
from flide_jax.prompts.plan import Plan
from flide_jax.serving.admission import Limits
from tests.engine.queued import HeldDevice
from tests.serving.live import Live, serving


@pytest.fixture(scope="session")
def demo_engine() -> Engine:
    """float32, with capacities for few and for many requests."""
    engine = Engine.demo(EngineConfig(dtype="float32", capacities=(256, 1_024, 4_096)))
    list(engine.prepare_all())
    return engine


@pytest.fixture(scope="module")
def live(demo_engine) -> Iterator[Live]:
    """A server of the demo model that asks for no key."""
    with serving(demo_engine, limits=Limits(default_seconds=60.0)) as server:  # the machine may be busy
        yield server


@pytest.fixture
def held(demo_engine) -> Iterator[tuple[Engine, HeldDevice]]:
    """The engine on a device that ends its rounds when the test says so, and then with the engine's own logits."""
    device = HeldDevice()
    engine = copy.copy(demo_engine)

    def start(plans: Sequence[Plan]):
        finish = device.start(plans)

        def finish_with_logits():
            finish()
            return demo_engine.logits(plans)

        return Started(finish.resumed, finish_with_logits)

    engine.start = start  # type: ignore[method-assign]
    yield engine, device
    device.release()
