"""Compiled forwards, one for each capacity: a round's structure is data, so a different mix never compiles again."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from flide_jax.layout import Capacity, MetadataLayout, RoundMetadata, Stream

Forward = Callable[[Any, RoundMetadata], jax.Array]


class Executables:
    """Compiles `forward(params, metadata)` when a capacity is first used, and keeps it.

    Attributes:
        params: the parameter tree, on the device.
        compiled: the executables so far.
    """

    def __init__(self, forward: Forward, params: Any, *, conv_taps: int) -> None:
        self.params = params
        self.compiled: dict[Capacity, jax.stages.Compiled] = {}
        self._forward = forward
        self._conv_taps = conv_taps

    def dispatch(self, stream: Stream, capacity: Capacity) -> Float[jax.Array, "reads L"]:
        """Label logits of the capacity's read rows, those of `stream.read_rows` first. Does not wait for the device."""
        layout = MetadataLayout(capacity, self._conv_taps)
        return self._executable(layout)(self.params, layout.pack(stream))

    def _executable(self, layout: MetadataLayout) -> jax.stages.Compiled:
        if layout.capacity not in self.compiled:

            def flide_round(params: Any, buffer: jax.Array) -> jax.Array:
                return self._forward(params, layout.unpack(buffer))

            buffer = jax.ShapeDtypeStruct((layout.size,), np.int32)
            self.compiled[layout.capacity] = jax.jit(flide_round).lower(self.params, buffer).compile()
        return self.compiled[layout.capacity]
