"""The models that experiments measure, by name: the shipped one, or a true size with random weights."""

from typing import Any

import jax
import numpy as np

from experiments.model_sizes import SIZES
from experiments.records import SEED
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.model_directory import demo_directory, describe
from flide_jax.engine.program import Program
from flide_jax.models import families
from flide_jax.models.qwen3_5 import Qwen35Config

DEMO = "demo"
LABELS = 38


def model(size: str, config: EngineConfig) -> Program:
    """The demo model or a true size, as an engine with this config compiles it."""
    return Program.of(describe(demo_directory()), config) if size == DEMO else program(SIZES[size], config)


def program(size: Qwen35Config, config: EngineConfig) -> Program:
    """What an engine with this config compiles for a model of this size, without room for checkpoints.

    Raises ValueError: batch-invariant on a device that cannot be.
    """
    config.check_device()
    return Program(
        family=families.QWEN3_5,
        architecture=size,
        label_ids=np.arange(LABELS, dtype=np.int32),
        dtype=config.resolved_dtype(),
        implementation=config.resolved_implementation(),
        ablation=config.ablation,
        batch_invariant=config.batch_invariant,
    )


def parameters(size: str, made: Program) -> Any:
    """The shipped weights of the demo model, or random ones."""
    return made.load(demo_directory()) if size == DEMO else made.initialise(jax.random.key(SEED))
