"""The model that the arguments name: as an engine, or only how it reads."""

from argparse import Namespace

from flide_jax.cli.terminal import note
from flide_jax.engine import Engine, EngineConfig
from flide_jax.engine.model_directory import demo_directory, describe, find_model
from flide_jax.prompts.format import PromptFormat


def load_engine(arguments: Namespace) -> Engine:
    """The engine. Raises CheckpointError where the model cannot be used."""
    config = EngineConfig(dtype=arguments.dtype)
    if arguments.demo:
        return Engine.demo(config)
    note(f"loading {arguments.model}")
    return Engine.load(arguments.model, config)


def load_format(arguments: Namespace) -> tuple[PromptFormat, int]:
    """How the model reads a request, and how many tokens of a state and one question. Weights are not fetched.

    Raises CheckpointError where there is no such model or it cannot be used.
    """
    directory = demo_directory() if arguments.demo else find_model(arguments.model, weights=False)
    _, architecture, prompt_format = describe(directory)
    return prompt_format, architecture.max_tokens
