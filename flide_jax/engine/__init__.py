"""From requests to answers: `config`, `executables` (one for each capacity), `engine`."""

from flide_jax.engine.config import EngineConfig
from flide_jax.engine.engine import Engine

__all__ = ["Engine", "EngineConfig"]
