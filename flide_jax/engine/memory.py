"""How much memory a model needs, before any of it is allocated: executables are compiled from shapes alone."""

import dataclasses
from collections.abc import Callable, Sequence

from flide_jax.engine.program import Program
from flide_jax.layout import Capacity


@dataclasses.dataclass(frozen=True)
class CapacityMemory:
    """Bytes of one round beside the weights.

    Attributes:
        tokens: rows of the capacity's stream.
        growing: whether its rounds resume and leave checkpoints.
        metadata: the round's structure.
        temporaries: everything that is kept only while the round runs.
        outputs: the logits.
    """

    tokens: int
    growing: bool
    metadata: int
    temporaries: int
    outputs: int

    @property
    def total(self) -> int:
        """All of it together."""
        return self.metadata + self.temporaries + self.outputs


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Bytes of the weights, of a round of each capacity, and of the store of checkpoints."""

    weights: int
    rounds: Sequence[CapacityMemory]
    checkpoints: int = 0

    @property
    def peak(self) -> int:
        """All of it, with the largest round. What the device's libraries and recorded graphs take comes on top."""
        return self.weights + self.checkpoints + max(one.total for one in self.rounds)


def memory_use(
    program: Program, capacities: Sequence[Capacity], done: Callable[[Capacity], None] = lambda capacity: None
) -> MemoryUse:
    """Compiles every capacity and asks the compiler. Loads no weight. Calls `done` as each is ready."""
    rounds = []
    for capacity, compiled in program.compile_all(capacities):
        parts = [found for part in compiled.parts if (found := part.memory_analysis()) is not None]
        if len(parts) < len(compiled.parts):
            raise NotImplementedError("the compiler for this device does not say how much memory an executable needs")
        # The store is written in place; what one part hands to the next is kept while that runs.
        *handed_on, outputs = (part.output_size_in_bytes - part.alias_size_in_bytes for part in parts)
        rounds.append(
            CapacityMemory(
                tokens=capacity.tokens,
                growing=capacity.is_growing,
                metadata=4 * program.layout(capacity).size,
                temporaries=max(part.temp_size_in_bytes for part in parts) + sum(handed_on),
                outputs=outputs,
            )
        )
        done(capacity)
    checkpoints = 0 if program.store is None else program.store.bytes
    return MemoryUse(program.weight_bytes, sorted(rounds, key=lambda one: (one.growing, one.tokens)), checkpoints)
