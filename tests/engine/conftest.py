"""Engines over the tiny random checkpoint, compiled once for all tests of this folder."""

import pytest

from flide_jax.engine import Engine, EngineConfig


@pytest.fixture(scope="session")
def engine(tiny_model) -> Engine:
    """float32, with two small capacities."""
    return Engine.load(tiny_model, EngineConfig(dtype="float32", capacities=(256, 512)))


@pytest.fixture(scope="session")
def exact_engine(tiny_model) -> Engine:
    """float64, whose single capacity holds every request of these tests."""
    return Engine.load(tiny_model, EngineConfig(dtype="float64", capacities=(1_024,)))


@pytest.fixture(scope="session")
def small_exact_engine(tiny_model) -> Engine:
    """float64, whose single capacity holds one short request."""
    return Engine.load(tiny_model, EngineConfig(dtype="float64", capacities=(128,)))
