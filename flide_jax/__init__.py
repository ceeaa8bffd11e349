"""Exact state forking for decision models: a state and questions in, a probability for every option out."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flide_jax.engine import Engine, EngineConfig
    from flide_jax.models.checkpoint_files import CheckpointError
    from flide_jax.request import (
        Answers,
        Choice,
        ChoiceAnswer,
        Request,
        RequestError,
        Score,
        ScoreAnswer,
        Usage,
        YesNo,
        YesNoAnswer,
    )

__all__ = [
    "Answers",
    "CheckpointError",
    "Choice",
    "ChoiceAnswer",
    "Engine",
    "EngineConfig",
    "Request",
    "RequestError",
    "Score",
    "ScoreAnswer",
    "Usage",
    "YesNo",
    "YesNoAnswer",
]

_HOMES = {
    "Engine": "flide_jax.engine",
    "EngineConfig": "flide_jax.engine",
    "CheckpointError": "flide_jax.models.checkpoint_files",
}


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: writing a request needs no JAX, and `--help` answers at once."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "flide_jax.request")), name)
