"""From plans to the arrays of one round: no loop over tokens or branches.

Reading order: `stream` (Eq. 2), `pieces`, `ranges` (Eq. 3), `segments` (Eq. 4), `growth`, `capacity`, `metadata`,
`rounds`.
"""

from flide_jax.layout.capacity import Capacity, Demand, Ladder
from flide_jax.layout.growth import Growth, GrowthMetadata
from flide_jax.layout.metadata import MetadataLayout, RoundMetadata
from flide_jax.layout.rounds import capacities_of_rounds, form_rounds
from flide_jax.layout.stream import Stream, lay_out

__all__ = [
    "Capacity",
    "Demand",
    "Growth",
    "GrowthMetadata",
    "Ladder",
    "MetadataLayout",
    "RoundMetadata",
    "Stream",
    "capacities_of_rounds",
    "form_rounds",
    "lay_out",
]
