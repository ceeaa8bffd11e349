"""Choices about how a model runs; nothing here changes what it computes beyond rounding."""

import dataclasses
from typing import Literal, get_args

import jax
import numpy as np

from flide_jax.layout import Ladder
from flide_jax.layout.capacity import RUNGS
from pallas_kernels import dispatch

DTypeName = Literal["bfloat16", "float32", "float64"]


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Runtime choices of an engine.

    Attributes:
        dtype: of activations and matrices. None: bfloat16 on an accelerator; float32 on a CPU, where bfloat16 saves
            nothing. "float64" computes everything in float64, for proofs.
        implementation: of the operations in `pallas_kernels`: one name for all, or names by op; None, and for an op
            that is not named, the best that can run.
        capacities: stream lengths in tokens that executables are compiled for, ascending. None: fine steps up to
            16,384 on an accelerator, where padding costs; coarse ones up to 4,096 on a CPU, where compiling does.
        max_request_tokens: most tokens of one request, its state and all its questions.

    Raises:
        ValueError: an unknown dtype or implementation, or capacities that do not ascend.
    """

    dtype: DTypeName | None = None
    implementation: dispatch.Implementation = None
    capacities: tuple[int, ...] | None = None
    max_request_tokens: int = 131_072

    def __post_init__(self) -> None:
        if self.dtype not in (None, *get_args(DTypeName)):
            raise ValueError(f"dtype must be one of {', '.join(get_args(DTypeName))}, got {self.dtype!r}")
        dispatch.check(self.implementation)
        if self.capacities is not None:
            Ladder(self.capacities)

    def resolved_dtype(self) -> np.dtype:
        """The dtype on the default backend."""
        on_cpu = jax.default_backend() == "cpu"
        return jax.numpy.dtype(self.dtype or ("float32" if on_cpu else "bfloat16"))

    def ladder(self) -> Ladder:
        """The capacities on the default backend."""
        on_cpu = jax.default_backend() == "cpu"
        return Ladder(self.capacities or RUNGS["coarse" if on_cpu else "fine"])
