"""What is compiled: the forward of a model over shapes, so that an executable needs no weights."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flide_jax.checkpoints import StoreSize
from flide_jax.engine.ablation import Ablation
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.model_directory import ModelDescription
from flide_jax.layout import Capacity, Ladder, MetadataLayout, RoundMetadata
from flide_jax.models import converted, loading
from flide_jax.models.families import Family
from flide_jax.models.packing import Packing
from flide_jax.models.params import initialise, total_bytes
from flide_jax.models.pool import Pool, bytes_of
from pallas_kernels.dispatch import Implementation
from pallas_kernels.fork_attention.metadata import PAGE_ROWS

# For a GPU: cuBLAS for every product, which compiles in seconds where trials of Triton tiles take a minute, and adds
# the residual in its epilogue. Products that share an operand stay apart: joining them copies weights at every call.
GPU_COMPILER_OPTIONS: dict[str, bool | int | str] = {
    "xla_gpu_enable_triton_gemm": False,
    "xla_gpu_dot_merger_threshold_mb": 0,
    "xla_gpu_experimental_enable_fusion_autotuner": False,
}
# Batch-invariant: whether a value is rounded must not depend on what XLA fuses, for which it looks at the shapes. And
# what sums over a row may not choose its order by the number of rows, as XLA's Triton tiles for norms do on a GPU (one
# or eight warps a row) and its library for reductions on a CPU.
BATCH_INVARIANT_OPTIONS: dict[str, dict[str, bool | int | str]] = {
    "gpu": {"xla_allow_excess_precision": False, "xla_disable_hlo_passes": "triton-softmax-rewriter"},
    "cpu": {"xla_allow_excess_precision": False, "xla_cpu_experimental_ynn_fusion_type": ""},
}
# Up to this many tokens, where the gaps between launches count and memory does not, a launch waits for those whose
# results it reads and not for the one before it: 0.2 ms less for 384 tokens of 0.8B, and half as much memory again.
CONCURRENT_TOKENS = 2_048
# Executables that are compiled at a time: XLA compiles outside Python's lock, but traces and lowers within it.
_MOST_THREADS = 16

Forward = Callable[..., Any]
"""(parameters, metadata) -> label logits; of growing rounds (parameters, metadata, pool) -> (label logits, pool)."""
Run = Callable[..., Any]
"""What a capacity runs: the same of (parameters, metadata buffer), and of (parameters, metadata buffer, pool), which is
given away. An executable, unless it runs op by op."""


def compiler_options(ablation: Ablation, tokens: int, *, batch_invariant: bool = False) -> dict[str, bool | int | str]:
    """XLA's options on the default backend for a capacity of so many tokens."""
    backend = jax.default_backend()
    options = dict(BATCH_INVARIANT_OPTIONS[backend]) if batch_invariant else {}
    if backend != "gpu":
        return options
    options |= GPU_COMPILER_OPTIONS
    if tokens <= CONCURRENT_TOKENS:
        options["xla_gpu_command_buffer_scheduling_mode"] = "CONCURRENT"
    if not ablation.command_buffers:
        options["xla_gpu_enable_command_buffer"] = ""
    return options


def compile_round(
    forward: Forward, arguments: Sequence[Any], layout: MetadataLayout, options: Mapping[str, bool | int | str]
) -> jax.stages.Compiled:
    """The executable of one capacity, for the default device.

    `arguments` are the parameters, and the pool of a growing round: arrays or anything with shape and dtype.
    """

    def flide_round(params: Any, buffer: jax.Array, *pool: Any) -> Any:
        return forward(params, layout.unpack(buffer), *pool)

    params, *pool = map(shapes_of, arguments)
    buffer = jax.ShapeDtypeStruct((layout.size,), np.int32)
    logits = _where_logits_go()
    compiled = jax.jit(
        flide_round,
        donate_argnums=(2,) if pool else (),
        out_shardings=(logits, None) if pool else logits,
    )
    return compiled.lower(params, buffer, *pool).compile(compiler_options=dict(options))


def _where_logits_go() -> jax.sharding.Sharding | None:
    """From a GPU straight into host memory: a copy that is asked for afterwards would cost a third of a millisecond."""
    if jax.default_backend() != "gpu":
        return None
    return jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")


def op_by_op(forward: Forward, layout: MetadataLayout) -> Run:
    """The same without compiling it as a whole."""

    def run(params: Any, buffer: Any, *pool: Any) -> Any:
        with jax.disable_jit():
            return forward(params, layout.unpack(jax.numpy.asarray(buffer)), *pool)

    return run


def shapes_of(tree: Any) -> Any:
    """A tree of arrays, or of anything with shape and dtype, as shapes and dtypes alone."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def precision(dtype: np.dtype) -> contextlib.AbstractContextManager[Any]:
    """float64 exists in JAX only where it is asked for: in this thread, for as long as the context lasts."""
    return jax.enable_x64(dtype == np.float64)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """Everything that the executables of a model depend on, but for their capacity.

    Attributes:
        family, architecture: the model.
        label_ids: the tokens that its head has rows for, int32 [L].
        dtype: of activations and matrices.
        implementation: of the operations in `pallas_kernels`.
        ablation: what it goes without.
        store: how many checkpoints there is room for, None for none.
        resumed_pages: of keys, that one request resumes at most.
        batch_invariant: whether the bits of an answer depend on nothing else in its round.
    """

    family: Family
    architecture: Any
    label_ids: np.ndarray
    dtype: np.dtype
    implementation: Implementation
    ablation: Ablation
    store: StoreSize | None = None
    resumed_pages: int = 0
    batch_invariant: bool = False

    @classmethod
    def of(cls, model: ModelDescription, config: EngineConfig) -> "Program":
        """The program of an engine.

        Raises ValueError: too few bytes for checkpoints, or batch-invariant on a device that cannot be.
        """
        config.check_device()
        made = cls(
            family=model.family,
            architecture=model.architecture,
            label_ids=model.prompt_format.label_ids,
            dtype=config.resolved_dtype(),
            implementation=config.implementation,
            ablation=config.ablation,
            batch_invariant=config.batch_invariant,
        )
        return made.with_checkpoints(config) if config.checkpoint_bytes else made

    def with_checkpoints(self, config: EngineConfig) -> "Program":
        """The same with room for checkpoints. Raises ValueError: too few bytes for them."""
        one_of_each = self.family.abstract_pool(self.architecture, pages=1, slots=1, dtype=self.dtype)
        page_bytes, slot_bytes = bytes_of(one_of_each)
        store = StoreSize.within(config.checkpoint_bytes, page_bytes=page_bytes, slot_bytes=slot_bytes)
        longest = -(-min(config.max_request_tokens, self.architecture.max_tokens) // PAGE_ROWS)
        return dataclasses.replace(self, store=store, resumed_pages=min(store.pages, longest))

    @functools.cached_property
    def abstract(self) -> Any:
        """The tree of the parameters' shapes and dtypes."""
        return self.family.abstract(self.architecture, labels=self.label_ids.size, dtype=self.dtype)

    @property
    def weight_bytes(self) -> int:
        """Device memory of all parameters."""
        return total_bytes(self.abstract)

    @property
    def conv_taps(self) -> int:
        """Taps of the short convolution."""
        return self.family.conv_taps(self.architecture)

    @functools.cached_property
    def packing(self) -> Packing:
        """How the executables take the parameters."""
        return Packing.of(self.abstract)

    @property
    def params(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and dtypes of the parameters as the executables take them."""
        return self.packing.shapes(self.abstract)

    @property
    def pool(self) -> Pool:
        """Shapes and dtypes of what checkpoints are made of; () where there are none."""
        if self.store is None:
            return ()
        size = self.store
        return self.family.abstract_pool(self.architecture, pages=size.pages, slots=size.slots, dtype=self.dtype)

    def growing_ladder(self, ladder: Ladder) -> Ladder:
        """The capacities of growing rounds, as large as those of a ladder; the ladder itself without checkpoints."""
        if self.store is None:
            return ladder
        return Ladder([capacity.tokens for capacity in ladder.capacities], entries=self.resumed_pages)

    def capacities(self, ladder: Ladder) -> tuple[Capacity, ...]:
        """All capacities of an engine: those of its ladder, and of growing rounds."""
        growing = () if self.store is None else self.growing_ladder(ladder).capacities
        return (*ladder.capacities, *growing)

    def forward(self, params: tuple[jax.Array, ...], metadata: RoundMetadata, *pool: tuple[jax.Array, ...]) -> Any:
        """Label logits of the read rows of a round, from packed parameters; of a growing one, which takes the leaves of
        the pool, also these."""
        options = {
            "config": self.architecture,
            "implementation": self.implementation,
            "selective_readout": self.ablation.selective_readout,
        }
        if not pool:
            options["batch_invariant"] = self.batch_invariant
            return self.family.forward(self.packing.unpack(params), metadata, **options)
        given = jax.tree.unflatten(jax.tree.structure(self.pool), pool[0])
        logits, after = self.family.growing_forward(self.packing.unpack(params), metadata, given, **options)
        return logits, tuple(jax.tree.leaves(after))

    def layout(self, capacity: Capacity) -> MetadataLayout:
        """Where a round's metadata stands."""
        return MetadataLayout(capacity, self.conv_taps)

    def load(self, directory: Path) -> tuple[jax.Array, ...]:
        """The packed parameters, on the default device.

        Raises CheckpointError: anything in the directory that is wrong.
        """
        table = self.family.weight_table(self.architecture, self.label_ids)
        with precision(self.dtype):
            if converted.is_converted(directory):
                return self.packing.pack(converted.load(directory, table, self.abstract, self.label_ids))
            return self.packing.pack(loading.load(directory, table, self.abstract))

    def initialise(self, key: jax.Array) -> tuple[jax.Array, ...]:
        """Packed random parameters, on the default device."""
        return self.packing.pack(initialise(self.abstract, key))

    def convert(self, directory: Path, out: Path) -> None:
        """Save the parameters of a checkpoint as `load` would put them together. See `models.converted`."""
        table = self.family.weight_table(self.architecture, self.label_ids)
        converted.convert(directory, out, table, self.abstract, self.label_ids)

    def compile(self, capacity: Capacity) -> jax.stages.Compiled:
        """The executable of one capacity."""
        with precision(self.dtype):
            options = compiler_options(self.ablation, capacity.tokens, batch_invariant=self.batch_invariant)
            return compile_round(self.forward, self.arguments(capacity), self.layout(capacity), options)

    def arguments(self, capacity: Capacity) -> tuple[Any, ...]:
        """Shapes and dtypes of what an executable takes beside the metadata."""
        return (self.params, tuple(jax.tree.leaves(self.pool))) if capacity.is_growing else (self.params,)

    def compile_all(self, capacities: Sequence[Capacity]) -> Iterator[tuple[Capacity, jax.stages.Compiled]]:
        """The executables of many capacities, in the order in which they are ready."""
        pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
        try:
            # The largest first, for they may take longest.
            running = {pool.submit(self.compile, capacity): capacity for capacity in reversed(capacities)}
            for done in as_completed(list(running)):
                yield running.pop(done), done.result()
        finally:
            pool.shutdown(cancel_futures=True)
