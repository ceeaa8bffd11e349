"""Capacities: the sizes an executable is compiled for, and the ladder from which the smallest that fits is taken."""

import bisect
import dataclasses
from collections.abc import Sequence

import numpy as np

from flide_jax.layout.pieces import chunks_of
from flide_jax.layout.stream import Stream
from flide_jax.prompts.plan import Plan
from pallas_kernels.fork_attention.metadata import PAGE_ROWS
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS


@dataclasses.dataclass(frozen=True)
class Demand:
    """What a set of requests needs of a capacity. Demands of requests add up to the demand of their round."""

    tokens: int
    requests: int
    branches: int
    reads: int
    chunks: int
    entries: int = 0

    @classmethod
    def of(cls, plan: Plan, *, resumed: int = 0, saved: int = 0) -> "Demand":
        """The demand of one request, whose state resumes at a token and is saved so many rows later (`Growth`)."""
        state = plan.state.size - resumed
        return cls(
            tokens=state + plan.branches.size,
            requests=1,
            branches=int(plan.branch_lengths.size),
            reads=int(plan.read_branches.size),
            chunks=int(chunks_of(plan.branch_lengths).sum()) + chunks_of(saved) + chunks_of(state - saved),
            entries=-(-resumed // PAGE_ROWS),
        )

    @classmethod
    def of_stream(cls, stream: Stream) -> "Demand":
        """The demand of a round that is laid out."""
        chunks, entries = int(chunks_of(stream.piece_length).sum()), 0
        if (growth := stream.growth) is not None:
            whole, saved = stream.piece_length[: stream.requests], np.asarray(growth.saved)
            chunks += int((chunks_of(saved) + chunks_of(whole - saved) - chunks_of(whole)).sum())
            entries = growth.cached_pages.size
        return cls(
            tokens=stream.tokens.size,
            requests=stream.requests,
            branches=stream.piece_length.size - stream.requests,
            reads=stream.read_piece.size,
            chunks=chunks,
            entries=entries,
        )

    def __add__(self, other: "Demand") -> "Demand":
        # One by one: this runs for every request that waits, and `dataclasses.astuple` copies deeply.
        return Demand(
            tokens=self.tokens + other.tokens,
            requests=self.requests + other.requests,
            branches=self.branches + other.branches,
            reads=self.reads + other.reads,
            chunks=self.chunks + other.chunks,
            entries=self.entries + other.entries,
        )


@dataclasses.dataclass(frozen=True)
class Capacity:
    """Sizes of one executable: stream rows (T), requests and state slots (R), branches (Q), read rows, chunks (C).

    `chunks` left out (0) is enough for any cut of the rows: each segment wastes less than one chunk. With `entries` it
    is for growing rounds, whose requests together resume so many pages of keys.
    """

    tokens: int
    requests: int
    branches: int
    reads: int
    chunks: int = 0
    entries: int = 0

    def __post_init__(self) -> None:
        if not self.chunks:
            parts = self.requests if self.is_growing else 0
            object.__setattr__(self, "chunks", self.tokens // CHUNK_ROWS + self.segments + parts)

    @property
    def is_growing(self) -> bool:
        """Whether states resume and are saved."""
        return self.entries > 0

    @property
    def segments(self) -> int:
        """G: a state for each request, and the branches."""
        return self.requests + self.branches

    @classmethod
    def of_tokens(cls, tokens: int, *, entries: int = 0) -> "Capacity":
        """A rung of the ladder: a branch and a chunk for every 32 tokens and 16 more, at most 64 requests.

        A chunk costs as much as a full one however few its rows, so these are fewer than any cut could need; a round
        of very many short branches takes a higher rung.
        """
        branches = chunks = tokens // 32 + 16
        requests = min(64, branches)
        return cls(tokens, requests, branches, reads=requests + branches, chunks=chunks, entries=entries)

    def fits(self, demand: Demand) -> bool:
        """Whether a round of this demand runs in this capacity."""
        return (
            demand.tokens <= self.tokens
            and demand.requests <= self.requests
            and demand.branches <= self.branches
            and demand.reads <= self.reads
            and demand.chunks <= self.chunks
            and demand.entries <= self.entries
        )


# Rungs in tokens. Padding is what costs on an accelerator, compilation is what costs on a CPU.
RUNGS = {
    "fine": (
        *range(64, 1_025, 64),
        *range(1_152, 4_097, 128),
        *range(4_352, 8_193, 256),
        *range(8_704, 16_385, 512),
    ),
    "coarse": (128, 256, 512, 1_024, 2_048, 4_096),
}
# An oversize request is rounded up to this many tokens, so that a growing one does not compile at every step.
OVERSIZE_STEP = 2_048
# Rows are counted in int32, and a pass over so many is beyond any device.
MOST_TOKENS = 2**24


class Ladder:
    """The capacities an engine compiles, smallest first."""

    def __init__(self, rungs: Sequence[int], *, entries: int = 0) -> None:
        """Rungs: stream lengths in tokens, ascending, `MOST_TOKENS` at most. Raises ValueError otherwise.

        With `entries` all capacities are for growing rounds that resume so many pages.
        """
        if not rungs or list(rungs) != sorted(set(rungs)) or rungs[0] < 1:
            raise ValueError(f"capacities must be ascending positive token counts, got {list(rungs)}")
        if rungs[-1] > MOST_TOKENS:
            raise ValueError(f"capacities may have {MOST_TOKENS:,} tokens at most, got {rungs[-1]:,}")
        self.capacities = tuple(Capacity.of_tokens(tokens, entries=entries) for tokens in rungs)

    @property
    def largest(self) -> Capacity:
        """The capacity that bounds a round of several requests."""
        return self.capacities[-1]

    def largest_for(self, demand: Demand) -> Capacity:
        """The largest capacity; for a demand over it, one of its own."""
        return self.largest if self.largest.fits(demand) else self.smallest_for(demand)

    def smallest_for(self, demand: Demand) -> Capacity:
        """The smallest capacity that fits; for a demand over the largest, one of its own, rounded up."""
        first = bisect.bisect_left(self.capacities, demand.tokens, key=lambda capacity: capacity.tokens)
        for capacity in self.capacities[first:]:
            if capacity.fits(demand):
                return capacity
        rung = Capacity.of_tokens(max(self.largest.tokens, _round_up(demand.tokens, OVERSIZE_STEP)))
        return Capacity(
            tokens=rung.tokens,
            requests=max(rung.requests, demand.requests),
            branches=max(rung.branches, _round_up(demand.branches, 64)),
            reads=max(rung.reads, _round_up(demand.reads, 64)),
            chunks=max(rung.chunks, _round_up(demand.chunks, 64)),
            entries=max(self.largest.entries, _round_up(demand.entries, 64)),
        )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
