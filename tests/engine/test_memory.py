"""What a model needs is known before any of it is there."""

import shutil

import jax
import pytest

from flide_jax.engine import EngineConfig
from flide_jax.engine.memory import CapacityMemory, MemoryUse, memory_use
from flide_jax.engine.model_directory import describe
from flide_jax.engine.program import Program


@pytest.fixture
def program(tiny_model, tmp_path) -> Program:
    """Of a model whose weights are not there."""
    model = shutil.copytree(tiny_model, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    return Program.of(describe(model), EngineConfig(dtype="float32"))


def test_the_weights_are_what_an_engine_holds(engine, program):
    leaves = jax.tree.leaves(engine.executables.params)
    assert program.weight_bytes == sum(leaf.nbytes for leaf in leaves)


def test_rounds_are_what_the_executables_say(engine, program):
    capacities = engine.executables.ladder.capacities
    before = sum(array.nbytes for array in jax.live_arrays())
    seen = []
    use = memory_use(program, capacities, seen.append)
    assert sum(array.nbytes for array in jax.live_arrays()) <= before
    assert sorted(seen, key=lambda capacity: capacity.tokens) == list(capacities)
    for capacity, found in zip(capacities, use.rounds, strict=True):
        expected = program.compile(capacity).parts[0].memory_analysis()
        assert (found.tokens, found.temporaries) == (capacity.tokens, expected.temp_size_in_bytes)
        assert found.outputs == expected.output_size_in_bytes >= 4 * capacity.reads * program.label_ids.size
        # Operands are padded to a few bytes each.
        operands = expected.argument_size_in_bytes
        assert 0 <= operands - program.weight_bytes - found.metadata < 1_000
    assert 0 < use.rounds[0].temporaries < use.rounds[1].temporaries
    assert use.weights == program.weight_bytes


def test_the_peak_is_the_weights_and_the_largest_round():
    sizes = [(64, 1, 2, 3), (128, 10, 20, 30), (256, 9, 9, 9)]
    rounds = [CapacityMemory(tokens, False, *parts) for tokens, *parts in sizes]
    assert MemoryUse(1_000, rounds).peak == 1_060
