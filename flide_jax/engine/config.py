"""Choices about how a model runs; nothing here changes what it computes beyond rounding."""

import dataclasses
from pathlib import Path
from typing import Literal, get_args

import jax
import numpy as np

from flide_jax.checkpoints import Placement
from flide_jax.engine.ablation import Ablation
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
        checkpoint_bytes: device memory for checkpoints of growing states: a request whose state begins as that of a
            former one computes the rest of it alone. 0: there are none.
        placement: which states leave a checkpoint, and where.
        bundle: a directory of executables that `flide-jax warm` made of this model with these choices. They are loaded
            where they would be compiled; see `flide_jax.engine.bundle`. Loading one may run code that it holds.
        ablation: what the engine goes without, for experiments.

    Raises:
        ValueError: an unknown dtype or implementation, capacities that do not ascend, a bundle for an engine that runs
            no executable, or checkpoints for one that does not fork.
    """

    dtype: DTypeName | None = None
    implementation: dispatch.Implementation = None
    capacities: tuple[int, ...] | None = None
    max_request_tokens: int = 131_072
    checkpoint_bytes: int = 0
    placement: Placement = Placement()
    bundle: str | Path | None = None
    ablation: Ablation = Ablation()

    def __post_init__(self) -> None:
        if self.dtype not in (None, *get_args(DTypeName)):
            raise ValueError(f"dtype must be one of {', '.join(get_args(DTypeName))}, got {self.dtype!r}")
        dispatch.check(self.implementation)
        if self.capacities is not None:
            Ladder(self.capacities)
        if self.bundle is not None and self.ablation.op_by_op:
            raise ValueError("an engine that runs op by op has no executables, so it cannot take any from a bundle")
        if self.checkpoint_bytes < 0:
            raise ValueError(f"checkpoint_bytes must be 0 or more, got {self.checkpoint_bytes}")
        if self.checkpoint_bytes and not self.ablation.forks:
            raise ValueError("an engine without forks has no states by themselves, so it cannot keep checkpoints")

    def resolved_dtype(self) -> np.dtype:
        """The dtype on the default backend."""
        on_cpu = jax.default_backend() == "cpu"
        return jax.numpy.dtype(self.dtype or ("float32" if on_cpu else "bfloat16"))

    def ladder(self) -> Ladder:
        """The capacities on the default backend."""
        on_cpu = jax.default_backend() == "cpu"
        return Ladder(self.capacities or RUNGS["coarse" if on_cpu else "fine"])
