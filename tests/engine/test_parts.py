"""Two executables in a chain, as on a GPU, against one."""

import dataclasses

import jax
import numpy as np
import pytest

from flide_jax.checkpoints import Placement
from flide_jax.engine import EngineConfig, bundle, parts
from flide_jax.engine.engine import Engine
from flide_jax.engine.model_directory import describe
from flide_jax.engine.program import Program
from tests.engine.requests import REQUESTS

CONFIG = EngineConfig(dtype="float32", capacities=(512,))
GROWING = dataclasses.replace(CONFIG, checkpoint_bytes=20_000_000, placement=Placement(shortest=1, margin=1, step=1))


def chain(monkeypatch) -> None:
    """The first of the two layers of the tiny model in an executable of its own."""
    monkeypatch.setattr(parts, "CHAINED_ON", ("cpu",))
    monkeypatch.setattr(parts, "FIRST_SHARE", 2)


@pytest.fixture
def chained(monkeypatch):
    chain(monkeypatch)


def logits(engine: Engine, *, checkpoints: bool = True) -> np.ndarray:
    requests = [dataclasses.replace(request, checkpoints=checkpoints) for request in REQUESTS]
    return np.concatenate(engine.logits([engine.plan(request) for request in requests]))


@pytest.mark.parametrize("config", [CONFIG, GROWING], ids=["plain", "growing"])
def test_it_answers_alike(config, tiny_model, monkeypatch):
    """Twice, for the second time goes on from what the first has left in the pool."""
    whole = Engine.load(tiny_model, config)
    expected = [logits(whole) for _ in range(2)]
    chain(monkeypatch)
    engine = Engine.load(tiny_model, config)
    found = [logits(engine) for _ in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    (run,) = engine.executables.compiled.values()
    assert len(run.parts) == 2 and whole.program.first_layers == 0 < engine.program.first_layers
    if config is GROWING:
        assert engine.executables.growing.store.counters.hits > 0


@pytest.mark.usefixtures("chained")
def test_it_goes_through_a_bundle(tiny_model, tmp_path):
    """Of an engine that keeps checkpoints: the executables of growing rounds, and of those that have none."""
    program = Program.of(describe(tiny_model), GROWING)
    capacities = program.capacities(GROWING.ladder())
    assert [capacity.is_growing for capacity in capacities] == [False, True]
    bundle.prepare(tmp_path / "bundle")
    assert set(dict(bundle.save(tmp_path / "bundle", program, capacities))) == set(capacities)
    assert len(list((tmp_path / "bundle").glob("*executable"))) == 2 * len(capacities)
    compiled = Engine.load(tiny_model, GROWING)
    loaded = Engine.load(tiny_model, dataclasses.replace(GROWING, bundle=tmp_path / "bundle"))
    assert set(loaded.prepare_all()) == set(loaded.executables.compiled) == set(capacities)
    for checkpoints in (True, False):
        np.testing.assert_array_equal(
            logits(loaded, checkpoints=checkpoints), logits(compiled, checkpoints=checkpoints)
        )


@pytest.mark.parametrize("config", [CONFIG, GROWING], ids=["plain", "growing"])
def test_each_capacity_is_run_once_before_it_is_needed(config, tiny_model, monkeypatch):
    monkeypatch.setattr("flide_jax.engine.executables.WARMED_ON", ("cpu",))
    engine = Engine.load(tiny_model, config)
    runs, run = [], engine.executables._run  # what gives a capacity's executables

    def counting(capacity):
        found = run(capacity)
        return lambda *arguments: runs.append(capacity) or found(*arguments)

    engine.executables._run = counting
    assert list(engine.prepare_all()) == runs == list(engine.program.capacities(config.ladder()))
    assert np.isfinite(logits(engine)).all()


@pytest.mark.usefixtures("chained")
def test_every_array_of_the_parameters_is_an_argument_of_one_part(tiny_model):
    program = Program.of(describe(tiny_model), CONFIG)
    first, rest = program.parts(CONFIG.ladder().largest)
    assert (*first.arguments[0], *rest.arguments[0]) == program.params
    assert len(jax.tree.leaves(first.arguments[0])) == program.packing.first
