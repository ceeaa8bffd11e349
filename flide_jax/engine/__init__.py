"""From requests to answers: `config`, `program` (what is compiled), `executables` (one for each capacity), `engine`.

`growing` holds the checkpoints that rounds resume and leave, `stored_states` keeps them on disk. `bundle` keeps
executables on disk, `memory` says what they need, `ablation` takes the engine's ideas away one by one.
"""

from flide_jax.engine.ablation import Ablation
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.engine import Engine

__all__ = ["Ablation", "Engine", "EngineConfig"]
