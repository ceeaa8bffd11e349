"""What a front end knows of the device: plans go there, and logits come back."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from flide_jax.prompts.plan import Plan


@dataclass(frozen=True, eq=False)
class Outcome:
    """A plan that ran.

    Attributes:
        logits: of its reads.
        waited: seconds until its round began.
        seconds: that the device ran its round.
        resumed: tokens of its state that came from a checkpoint.
    """

    logits: Float[np.ndarray, "reads L"]
    waited: float
    seconds: float
    resumed: int


@runtime_checkable
class Device(Protocol):
    """The device, in this process or in another."""

    async def run(self, plan: Plan, namespace: str) -> Outcome:
        """What comes of a plan. Cancelling takes it out of the queue. Raises Refusal."""
        ...

    def check(self) -> str | None:
        """Why the device is lost, None while it works; to be called from time to time."""
        ...

    def seconds_until_free(self) -> float:
        """About how long it takes for what waits."""
        ...
