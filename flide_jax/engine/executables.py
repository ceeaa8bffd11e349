"""Compiled forwards, one for each capacity: a round's structure is data, so a different mix never compiles again."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from flide_jax.layout import (
    Capacity,
    Demand,
    Ladder,
    MetadataLayout,
    RoundMetadata,
    Stream,
    form_rounds,
    lay_out,
)
from flide_jax.prompts.plan import Plan

# For a GPU: cuBLAS for every product, which compiles in seconds where trials of Triton tiles take a minute, and adds
# the residual in its epilogue. Products that share an operand stay apart: joining them copies weights at every call.
GPU_COMPILER_OPTIONS = {
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_dot_merger_threshold_mb": 0,
    "xla_gpu_experimental_enable_fusion_autotuner": False,
}

Forward = Callable[[Any, RoundMetadata], jax.Array]
Logits = Float[np.ndarray, "reads L"]


class Executables:
    """Compiles `forward(params, metadata)` when a capacity is first used, and keeps it.

    Attributes:
        params: the parameter tree, on the device.
        ladder: the capacities that are compiled for.
        compiled: the executables so far.
    """

    def __init__(self, forward: Forward, params: Any, ladder: Ladder, *, conv_taps: int) -> None:
        self.params = params
        self.ladder = ladder
        self.compiled: dict[Capacity, jax.stages.Compiled] = {}
        self._forward = forward
        self._conv_taps = conv_taps

    def logits(self, plans: Sequence[Plan]) -> list[Logits]:
        """Label logits of each plan. Plans share rounds.

        All rounds are dispatched before the first is awaited: the next is laid out while one runs.
        """
        running = []
        for members in form_rounds([Demand.of(plan) for plan in plans], self.ladder.largest):
            stream = lay_out([plans[i] for i in members])
            running.append((stream, self.dispatch(stream, self.ladder.smallest_for(Demand.of_stream(stream)))))
        results: list[Logits] = []
        for stream, logits in running:
            found = np.asarray(logits)[: stream.read_rows.size]
            results += np.split(found, np.cumsum(stream.reads_per_request)[:-1])
        return results

    def dispatch(self, stream: Stream, capacity: Capacity) -> Float[jax.Array, "reads L"]:
        """Label logits of the capacity's read rows, those of `stream.read_rows` first. Does not wait for the device."""
        layout = MetadataLayout(capacity, self._conv_taps)
        return self._executable(layout)(self.params, layout.pack(stream))

    def _executable(self, layout: MetadataLayout) -> jax.stages.Compiled:
        if layout.capacity not in self.compiled:

            def flide_round(params: Any, buffer: jax.Array) -> jax.Array:
                return self._forward(params, layout.unpack(buffer))

            buffer = jax.ShapeDtypeStruct((layout.size,), np.int32)
            options = GPU_COMPILER_OPTIONS if jax.default_backend() == "gpu" else {}
            lowered = jax.jit(flide_round).lower(self.params, buffer)
            self.compiled[layout.capacity] = lowered.compile(compiler_options=options)
        return self.compiled[layout.capacity]
