"""What is compiled: the forward of a model over shapes, so that an executable needs no weights."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import jax
import numpy as np

from flide_jax.checkpoints import StoreSize
from flide_jax.engine.ablation import Ablation
from flide_jax.engine.config import EngineConfig
from flide_jax.engine.model_directory import ModelDescription
from flide_jax.engine.parts import CompiledRound, Part, first_layers
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
given away. Compiled, unless it runs op by op."""


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


def op_by_op(forward: Forward, layout: MetadataLayout) -> Run:
    """The same without compiling it as a whole."""

    def run(params: Any, buffer: Any, *pool: Any) -> Any:
        with jax.disable_jit():
            return forward(params, layout.unpack(jax.numpy.asarray(buffer)), *pool)

    return run


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

        Raises BudgetError: too few bytes for checkpoints; ValueError: what `EngineConfig.check_device` refuses.
        """
        config.check_device()
        made = cls(
            family=model.family,
            architecture=model.architecture,
            label_ids=model.prompt_format.label_ids,
            dtype=config.resolved_dtype(),
            implementation=config.resolved_implementation(),
            ablation=config.ablation,
            batch_invariant=config.batch_invariant,
        )
        return made.with_checkpoints(config) if config.checkpoint_bytes else made

    def with_checkpoints(self, config: EngineConfig) -> "Program":
        """The same with room for checkpoints. Raises BudgetError."""
        one_of_each = self.family.abstract_pool(self.architecture, pages=1, slots=1, dtype=self.dtype)
        page_bytes, slot_bytes = bytes_of(one_of_each)
        store = StoreSize.within(config.checkpoint_bytes, page_bytes=page_bytes, slot_bytes=slot_bytes)
        longest = -(-min(config.max_request_tokens, self.architecture.max_tokens) // PAGE_ROWS)
        return dataclasses.replace(self, store=store, resumed_pages=min(store.pages, longest))

    def host_store(self, config: EngineConfig) -> StoreSize | None:
        """How many checkpoints the host has room for, None for none. Raises BudgetError."""
        if self.store is None or not config.checkpoint_host_bytes:
            return None
        page_bytes, slot_bytes = self.store.page_bytes, self.store.slot_bytes
        return StoreSize.within(config.checkpoint_host_bytes, page_bytes=page_bytes, slot_bytes=slot_bytes)

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
        first = self.abstract.embedding, self.abstract.layers[: self.first_layers]
        return Packing.of(self.abstract, first_leaves=len(jax.tree.leaves(first)) if self.first_layers else 0)

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

    @functools.cached_property
    def first_layers(self) -> int:
        """Layers that are an executable of their own; 0: all are one."""
        return first_layers(len(self.abstract.layers))

    @property
    def executables(self) -> int:
        """Of one capacity."""
        return 2 if self.first_layers else 1

    def forward(self, params: tuple[jax.Array, ...], metadata: RoundMetadata, *pool: tuple[jax.Array, ...]) -> Any:
        """Label logits of the read rows of a round, from packed parameters; of a growing one, which takes the leaves of
        the pool, also these."""
        logits, kept = self._answer(params, metadata, (), *pool or ((),), first_layer=0)
        return (logits, kept) if pool else logits

    def _begin(
        self, params: tuple[Any, ...], metadata: RoundMetadata, pool: tuple[Any, ...]
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """The residual stream behind the first layers, from their parameters and pool, and the pool."""
        missing = (None,) * (len(self.packing.stacks) - len(params))
        hidden, kept = self.family.begin(
            self.packing.unpack((*params, *missing)),
            metadata,
            config=self.architecture,
            layers=self.first_layers,
            pool=self._layers_of(self.pool[: self.first_layers], pool),
            implementation=self.implementation,
            batch_invariant=self.batch_invariant,
        )
        return hidden, tuple(jax.tree.leaves(kept))

    def _answer(
        self, params: tuple[Any, ...], metadata: RoundMetadata, hidden: Any, pool: tuple[Any, ...], *, first_layer: int
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Logits from the parameters and pool of the layers from this one on, and the pool."""
        missing = (None,) * (len(self.packing.stacks) - len(params))
        tree = self.packing.unpack((*missing, *params))
        options = {
            "config": self.architecture,
            "implementation": self.implementation,
            "selective_readout": self.ablation.selective_readout,
        }
        if first_layer:
            options |= {"first_layer": first_layer, "embedded": hidden}
        if not pool:
            return self.family.forward(tree, metadata, batch_invariant=self.batch_invariant, **options), ()
        given = self._layers_of(self.pool[first_layer:], pool)
        logits, kept = self.family.growing_forward(tree, metadata, given, **options)
        return logits, tuple(jax.tree.leaves(kept))

    @staticmethod
    def _layers_of(shapes: Pool, leaves: tuple[Any, ...]) -> Pool | None:
        return jax.tree.unflatten(jax.tree.structure(shapes), leaves) if leaves else None

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

    def run(self, capacity: Capacity) -> Run:
        """What runs a capacity: compiled, or op by op."""
        return op_by_op(self.forward, self.layout(capacity)) if self.ablation.op_by_op else self.compile(capacity)

    def compile(self, capacity: Capacity) -> CompiledRound:
        """The executables of one capacity."""
        return self.chained([self.compile_part(capacity, part) for part in range(self.executables)])

    def compile_part(self, capacity: Capacity, part: int) -> jax.stages.Compiled:
        """One of them."""
        options = compiler_options(self.ablation, capacity.tokens, batch_invariant=self.batch_invariant)
        with precision(self.dtype):
            return self.parts(capacity)[part].compile(options)

    def chained(self, compiled: Sequence[jax.stages.Compiled]) -> CompiledRound:
        """The compiled parts of a capacity."""
        return CompiledRound(tuple(compiled), self.packing.first, self._first_of_pool)

    def parts(self, capacity: Capacity) -> tuple[Part, ...]:
        """What is compiled for a capacity, in the order in which it runs."""
        layout, first = self.layout(capacity), self.first_layers
        leaves = tuple(jax.tree.leaves(self.pool)) if capacity.is_growing else ()
        buffer = jax.ShapeDtypeStruct((layout.size,), np.int32)
        hidden: Any = jax.ShapeDtypeStruct((capacity.tokens, self.abstract.embedding.shape[1]), self.dtype)

        def flide_round_begin(params: Any, buffer: jax.Array, hidden: Any, pool: Any) -> Any:
            hidden, kept = self._begin(params, layout.unpack(buffer), pool)
            # The buffer is on the device now, and need not be copied there twice.
            return (hidden, buffer + 0), kept

        def flide_round(params: Any, buffer: jax.Array, hidden: Any, pool: Any) -> Any:
            return self._answer(params, layout.unpack(buffer), hidden, pool, first_layer=first)

        begun = self._first_of_pool if leaves else 0
        parts = [
            Part(
                flide_round,
                (self.params[self.packing.first :], buffer, hidden if first else (), leaves[begun:]),
                jax.tree.structure((0, leaves[begun:])),
                answers=True,
            )
        ]
        if first:
            arguments = (self.params[: self.packing.first], buffer, (), leaves[:begun])
            results = jax.tree.structure(((0, 0), leaves[:begun]))
            parts.insert(0, Part(flide_round_begin, arguments, results, answers=False))
        return tuple(parts)

    @functools.cached_property
    def _first_of_pool(self) -> int:
        return len(jax.tree.leaves(self.pool[: self.first_layers]))

    def compile_all(self, capacities: Sequence[Capacity]) -> Iterator[tuple[Capacity, CompiledRound]]:
        """The executables of many capacities, in the order in which they are ready."""
        pool = ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1))
        try:
            # The largest first, for they may take longest.
            running = {pool.submit(self.compile, capacity): capacity for capacity in reversed(capacities)}
            for done in as_completed(list(running)):
                yield running.pop(done), done.result()
        finally:
            pool.shutdown(cancel_futures=True)
