"""Random requests as plans of random tokens: the trees that layout, operators and exactness are tried on."""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from flide_jax.layout import Capacity, Demand, MetadataLayout, RoundMetadata, Stream, lay_out
from flide_jax.prompts.plan import Plan

# Two sizes for everything that is compiled: any text of these tests alone, and any round. A round's own capacity gives
# an unused segment a chunk of padding, for which a text alone would pay as much as for ten texts.
ALONE = Capacity(tokens=384, requests=1, branches=0, reads=4)
ROUND = Capacity(tokens=640, requests=4, branches=80, reads=84)


def plan_of(state: int, branches: Sequence[int], rng: np.random.Generator, *, vocabulary: int = 97) -> Plan:
    """A plan of random tokens: `state` rows, then branches of these lengths, each read at its last row."""
    lengths = np.array(branches, np.int32)
    return Plan(
        state=rng.integers(0, vocabulary, state, np.int32),
        branches=rng.integers(0, vocabulary, int(lengths.sum()), np.int32),
        branch_lengths=lengths,
        read_branches=np.arange(lengths.size, dtype=np.int32),
        read_offsets=lengths - 1,
    )


def capacity_of(stream: Stream) -> Capacity:
    """`ALONE` for one text, `ROUND` for a round."""
    demand = Demand.of_stream(stream)
    return ALONE if ALONE.fits(demand) else ROUND


def padded(stream: Stream, *, taps: int = 4) -> tuple[Capacity, RoundMetadata]:
    """The metadata of a stream in its capacity."""
    layout = MetadataLayout(capacity_of(stream), taps)
    return layout.capacity, layout.unpack(layout.pack(stream))


def laid_out(plans: Sequence[Plan]) -> tuple[Stream, RoundMetadata]:
    """A stream and its metadata."""
    stream = lay_out(plans)
    return stream, padded(stream)[1]


# Lengths around the edges of a chunk (64 rows) and of the convolution (4 taps).
STATE_LENGTHS = st.one_of(st.sampled_from([1, 2, 3, 4, 63, 64, 65, 127, 128, 129, 191, 192]), st.integers(1, 200))
BRANCH_LENGTHS = st.one_of(st.sampled_from([1, 2, 3, 4, 63, 64, 65, 130]), st.integers(1, 130))


@st.composite
def trees(draw, *, most_tokens: int = 1_024, most_requests: int = 4, most_branches: int = 64) -> list[Plan]:
    """The plans of a round, at most `most_tokens` tokens together."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    plans, left = [], most_tokens
    for _ in range(draw(st.integers(1, most_requests))):
        state = draw(STATE_LENGTHS)
        few_or_many = draw(st.sampled_from([3, most_branches]))
        branches = draw(
            st.lists(BRANCH_LENGTHS if few_or_many == 3 else st.integers(1, 9), min_size=1, max_size=few_or_many)
        )
        if state + sum(branches) > left:
            break
        left -= state + sum(branches)
        plans.append(plan_of(state, branches, rng))
    return plans or [plan_of(1, [1], rng)]
