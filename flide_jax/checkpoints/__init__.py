"""Growing states: where a state is saved, and what is stored (paper, section 3.4). Host logic only, numpy.

Reading order: `placement` (at which position), `pages` (who holds which), `prefixes` (lookup), `store`,
`twins` (what two stores have in common).
"""

from flide_jax.checkpoints.placement import Placement
from flide_jax.checkpoints.store import (
    BudgetError,
    Checkpoint,
    CheckpointStore,
    Counters,
    Reservation,
    StoreSize,
)
from flide_jax.checkpoints.twins import Twins

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Counters",
    "Placement",
    "Reservation",
    "StoreSize",
    "BudgetError",
    "Twins",
]
