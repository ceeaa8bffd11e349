"""Where a model's files are, and what they say before any weight is read."""

import importlib.resources
from pathlib import Path
from typing import Any, NamedTuple

from flide_jax.models import families
from flide_jax.models.checkpoint_files import CheckpointError, in_one_line
from flide_jax.prompts.format import PromptFormat


class ModelDescription(NamedTuple):
    """A model without its weights: enough to plan requests."""

    family: families.Family
    architecture: Any
    prompt_format: PromptFormat


def demo_directory() -> Path:
    """The model that ships with the package."""
    return Path(str(importlib.resources.files("flide_jax") / "demo"))


def find_model(model: str | Path, *, weights: bool = True) -> Path:
    """A directory as it is, or the local copy of a model of the Hugging Face hub, fetched where it is missing.

    Args:
        model: a directory or a hub id.
        weights: whether the weights are wanted too.

    Raises:
        CheckpointError: neither a directory nor a model that the hub gives.
    """
    if Path(model).is_dir():
        return Path(model)
    if str(model).startswith((".", "/", "~")):  # cannot be an id
        raise CheckpointError(f"{model}: no such directory")
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.jinja", *(["*.safetensors"] if weights else [])]
    try:
        return Path(snapshot_download(str(model), allow_patterns=patterns))
    except Exception as error:  # the hub's client raises errors of many libraries
        raise CheckpointError(
            f"{model}: not a directory, and the hub gave no such model: {in_one_line(error)}"
        ) from None


def describe(directory: Path) -> ModelDescription:
    """Read config, tokenizer and chat template. Raises CheckpointError: one of them cannot be used."""
    family, architecture = families.read_config(directory)
    try:
        prompt_format = PromptFormat.load(directory)
    except (ValueError, NotImplementedError) as error:
        raise CheckpointError(str(error)) from None
    # A lookup beyond the embedding would not fail on the device: it would give another token's row.
    if (largest := prompt_format.tokenizer.largest_id) >= architecture.vocabulary:
        raise CheckpointError(
            f"{directory}: the tokenizer has token {largest}, the model a vocabulary of {architecture.vocabulary}"
        )
    return ModelDescription(family, architecture, prompt_format)
