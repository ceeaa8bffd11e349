"""The model that the arguments name: as an engine, as what is compiled, or only how it reads."""

from argparse import Namespace
from pathlib import Path

from flide_jax.cli.arguments import CommandError
from flide_jax.cli.terminal import note
from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.model_directory import demo_directory, describe, find_model
from flide_jax.engine.program import Program
from flide_jax.prompts.format import PromptFormat


def engine_config(arguments: Namespace, *, bundle: str | None = None) -> EngineConfig:
    """The choices of an engine. Raises CommandError where they are none."""
    try:
        config = EngineConfig(
            dtype=arguments.dtype,
            capacities=tuple(arguments.capacities) if arguments.capacities else None,
            bundle=bundle,
            batch_invariant=arguments.batch_invariant,
            checkpoint_bytes=round(1e9 * getattr(arguments, "checkpoint_gb", 0.0)),
            checkpoint_host_bytes=round(1e9 * getattr(arguments, "checkpoint_host_gb", 0.0)),
        )
        config.check_device()
    except ValueError as error:
        raise CommandError(str(error)) from None
    return config


def load_engine(arguments: Namespace) -> Engine:
    """The engine.

    Raises CheckpointError where the model cannot be used, BundleError where the bundle cannot, and BudgetError where
    the memory for checkpoints cannot.
    """
    config = engine_config(arguments, bundle=arguments.bundle)
    if arguments.demo:
        return Engine.demo(config)
    note(f"loading {arguments.model}")
    return Engine.load(arguments.model, config)


def load_program(arguments: Namespace, config: EngineConfig) -> Program:
    """What is compiled. Weights are not fetched. Raises CheckpointError or BudgetError, as `load_engine` does."""
    return Program.of(describe(find_directory(arguments, weights=False)), config)


def load_format(arguments: Namespace) -> tuple[PromptFormat, int]:
    """How the model reads a request, and how many tokens of a state and one question. Weights are not fetched.

    Raises CheckpointError where there is no such model or it cannot be used.
    """
    _, architecture, prompt_format = describe(find_directory(arguments, weights=False))
    return prompt_format, architecture.max_tokens


def find_directory(arguments: Namespace, *, weights: bool) -> Path:
    """The model's files. Raises CheckpointError where there is no such model."""
    return demo_directory() if arguments.demo else find_model(arguments.model, weights=weights)
