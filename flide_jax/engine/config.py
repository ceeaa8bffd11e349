"""Choices about how a model runs; nothing here changes what it computes beyond rounding."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args

import jax
import numpy as np

from flide_jax.checkpoints import Placement
from flide_jax.engine.ablation import Ablation
from flide_jax.layout import Ladder
from flide_jax.layout.capacity import RUNGS
from pallas_kernels import dispatch
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS

DTypeName = Literal["bfloat16", "float32", "float64"]


@dataclasses.dataclass(frozen=True)
class EngineConfig:
    """Runtime choices of an engine.

    With `batch_invariant` the same request gets the same bits from the same executables' versions, weights, dtype and
    device, alone, in any round, at any capacity and in any order, and a question gets those that it gets alone behind
    its state. Why: a request's state is one piece of the stream and each of its questions another. Products sum over
    their columns in one order however many rows there are; attention and recurrence begin a chunk of 64 rows at each
    piece, and a chunk meets the same chunks before it wherever these stand; norms, gates, rotary positions and readout
    are one row's, and no library or rounding is chosen by the number of rows. What a question alone means is one
    state and one branch: as a single text, state and question together, it is cut into other chunks, and equal but for
    rounding. A state that resumes from a checkpoint is cut where the checkpoint ends, and meets its former keys in
    pages: it has the bits of the same steps again, not those of a fresh state. So checkpoints are refused here.

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
        checkpoint_host_bytes: host memory for those that had to make room on the device; they come back when they are
            resumed. 0: they are gone.
        placement: which states leave a checkpoint, and where.
        bundle: a directory of executables that `flide-jax warm` made of this model with these choices. They are loaded
            when they would be compiled, so it must stay as it is; see `flide_jax.engine.bundle`. Loading one may run
            code that it holds.
        batch_invariant: the bits of an answer do not depend on what it is answered with (above), at some cost in
            time. On a CPU, or in bfloat16 on Hopper.
        ablation: what the engine goes without, for experiments.

    Raises:
        ValueError: an unknown dtype or implementation, capacities that do not ascend, a bundle for an engine that runs
            no executable, checkpoints for one that does not fork, or what cannot be batch-invariant.
    """

    dtype: DTypeName | None = None
    implementation: dispatch.Implementation = None
    capacities: tuple[int, ...] | None = None
    max_request_tokens: int = 131_072
    checkpoint_bytes: int = 0
    checkpoint_host_bytes: int = 0
    placement: Placement = Placement()
    bundle: str | Path | None = None
    batch_invariant: bool = False
    ablation: Ablation = Ablation()

    def __post_init__(self) -> None:
        if self.dtype not in (None, *get_args(DTypeName)):
            raise ValueError(f"dtype must be one of {', '.join(get_args(DTypeName))}, got {self.dtype!r}")
        dispatch.check(self.implementation)
        if self.capacities is not None:
            Ladder(self.capacities)
        if self.bundle == "":
            raise ValueError("bundle must name a directory, got ''")
        if self.bundle is not None and self.ablation.op_by_op:
            raise ValueError("an engine that runs op by op has no executables, so it cannot take any from a bundle")
        if self.checkpoint_bytes < 0:
            raise ValueError(f"checkpoint_bytes must be 0 or more, got {self.checkpoint_bytes}")
        if self.checkpoint_host_bytes < 0:
            raise ValueError(f"checkpoint_host_bytes must be 0 or more, got {self.checkpoint_host_bytes}")
        if self.checkpoint_host_bytes and not self.checkpoint_bytes:
            raise ValueError("checkpoints come to the host from the device, where checkpoint_bytes is 0")
        if not isinstance(self.placement, Placement):
            raise ValueError(f"placement must be a Placement, got {self.placement!r}")
        if self.checkpoint_bytes and not self.ablation.forks:
            raise ValueError("an engine without forks has no states by themselves, so it cannot keep checkpoints")
        if self.batch_invariant:
            self._check_batch_invariant()

    def _check_batch_invariant(self) -> None:
        ablation, smallest = self.ablation, min(self.capacities or (CHUNK_ROWS,))
        forms = {op: self._named(op) for op in ("fork_attention", "segmented_gdn")}
        whole = next((f"{op} by {name}" for op, name in forms.items() if name in ("reference", "triton")), None)
        refusals = {
            f"with {whole}, which cuts nothing into chunks of one request": whole is not None,
            "with checkpoints: a state that resumes is cut elsewhere than a fresh one": self.checkpoint_bytes > 0,
            "without forks: a question is cut elsewhere than behind its state": not ablation.forks,
            "op by op: each op would be compiled for itself": ablation.op_by_op,
            "without selective readout: the last layer is another one": not ablation.selective_readout,
            # Kernels are for whole chunks, and another op would stand in for them.
            f"in a capacity of {smallest} tokens, only from {CHUNK_ROWS} on": smallest < CHUNK_ROWS,
        }
        for refusal, applies in refusals.items():
            if applies:
                raise ValueError(f"an engine cannot be batch-invariant {refusal}")

    def check_device(self) -> None:
        """Raises ValueError: the default device or the host has not the memory that is given to checkpoints, or
        batch-invariant on a device whose products are a library's."""
        if self.checkpoint_bytes:
            self._check_memory()
        if self.batch_invariant and jax.default_backend() != "cpu":
            self._check_products()

    def _check_memory(self) -> None:
        host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        counted = jax.devices()[0].memory_stats()  # None on a CPU, whose memory is the host's
        device = host if counted is None else counted.get("bytes_limit")
        wanted = {"device": (self.checkpoint_bytes, device), "host": (self.checkpoint_host_bytes, host)}
        for place, (given, there) in wanted.items():
            if there is not None and given > there:
                raise ValueError(f"checkpoints cannot have {given:,} bytes of the {place}, which has {there:,} in all")

    def _check_products(self) -> None:
        kind, dtype = dispatch.device_kind(), self.resolved_dtype().name
        if dtype != "bfloat16" or not any(model in kind for model in dispatch.HOPPER):
            models = ", ".join(dispatch.HOPPER)
            raise ValueError(
                f"an engine can be batch-invariant on a CPU, and in bfloat16 on {models}, not in {dtype} on {kind}"
            )
        for op in dispatch.OPS:
            if (name := self._named(op)) not in (None, "pallas"):
                raise ValueError(f"an engine cannot be batch-invariant with {op} by {name} on {kind}, only by pallas")

    def _named(self, op: str) -> str | None:
        return self.implementation.get(op) if isinstance(self.implementation, Mapping) else self.implementation

    def resolved_implementation(self) -> dispatch.Implementation:
        """The implementations on the default backend: batch-invariant elsewhere than on a CPU only the kernels, so that
        nothing stands in for one that refuses a shape."""
        kernels_only = self.batch_invariant and jax.default_backend() != "cpu"
        return "pallas" if kernels_only else self.implementation

    def resolved_dtype(self) -> np.dtype:
        """The dtype on the default backend."""
        on_cpu = jax.default_backend() == "cpu"
        return jax.numpy.dtype(self.dtype or ("float32" if on_cpu else "bfloat16"))

    def ladder(self) -> Ladder:
        """The capacities on the default backend."""
        on_cpu = jax.default_backend() == "cpu"
        return Ladder(self.capacities or RUNGS["coarse" if on_cpu else "fine"])
