"""One round of an engine from the inside: its structure as arrays, the residual stream after every layer, and the
answers of a structure that was changed.

For proofs and notebooks: nothing here is compiled beforehand, and every row of every layer is kept.
"""

import functools
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Float64

from flide_jax.array_types import IntVector
from flide_jax.checkpoints import Checkpoint
from flide_jax.engine import Engine
from flide_jax.engine.growing import growth_of
from flide_jax.engine.program import precision
from flide_jax.layout import Capacity, Growth, RoundMetadata, Stream, lay_out
from flide_jax.prompts.plan import Plan
from flide_jax.request import Answers, Request


class Inspector:
    """The rounds of an engine in one capacity.

    Attributes:
        engine: whose model runs.
        capacity: of every round, a lone question's too: so both run through the same executable.
    """

    def __init__(self, engine: Engine, capacity: Capacity) -> None:
        self.engine = engine
        self.capacity = capacity

    def metadata(self, stream: Stream) -> RoundMetadata:
        """What the forward of a round reads beside the weights. Raises ValueError: it exceeds the capacity."""
        layout = self.engine.program.layout(self.capacity)
        metadata: RoundMetadata = jax.tree.map(np.asarray, layout.unpack(layout.pack(stream)))
        return metadata

    def hidden_states(
        self, metadata: RoundMetadata, *, poisoned: Bool[np.ndarray, " T"] | None = None
    ) -> Float[np.ndarray, "depths T d"]:
        """The residual stream after the embedding and after every layer, of all rows of the capacity.

        `poisoned` rows are NaN from the embedding on.
        """
        with precision(self.engine.dtype):
            none = np.zeros(self.capacity.tokens, bool) if poisoned is None else poisoned
            return np.asarray(self._hidden_states(self.engine.executables.params, metadata, none))

    def logits(self, metadata: RoundMetadata) -> Float[np.ndarray, "reads L"]:
        """Label logits of the read rows of the capacity."""
        with precision(self.engine.dtype):
            return np.asarray(self._logits(self.engine.executables.params, metadata))

    def answers(self, request: Request, metadata: RoundMetadata) -> Answers:
        """The answers of the only request of a round."""
        logits = self.logits(metadata)[: len(request.questions)]
        return self.engine.answers(request, self.engine.plan(request), logits)

    @functools.cached_property
    def _hidden_states(self) -> jax.stages.Wrapped:
        program = self.engine.program

        def run(packed: tuple[jax.Array, ...], metadata: RoundMetadata, poisoned: jax.Array) -> jax.Array:
            params = program.packing.unpack(packed)
            embedded = program.family.embed(params, metadata.tokens)
            embedded = jnp.where(poisoned[:, None], jnp.nan, embedded).astype(embedded.dtype)
            hidden: jax.Array = program.family.hidden_states(
                params, metadata, program.architecture, embedded=embedded, implementation=program.implementation
            )
            return hidden

        return jax.jit(run)

    @functools.cached_property
    def _logits(self) -> jax.stages.Wrapped:
        return jax.jit(self.engine.program.forward)


def text_rows(stream: Stream, branch: int) -> IntVector:
    """The stream rows of one branch's whole text, s + q: its state's and its own, in the order of the text."""
    piece = stream.requests + branch
    rows = np.arange(stream.tokens.size, dtype=np.int32)
    state = rows[stream.token_piece == stream.piece_parent[piece]]
    return np.concatenate([state, rows[stream.token_piece == piece]])


def growth_between(stored: Iterable[Checkpoint], *, resumed: int, saved: int) -> Growth:
    """What a round took from a pool and left there, from its checkpoints, which are stored still.

    Args:
        stored: of one growing state.
        resumed: tokens of the checkpoint that the round resumed.
        saved: tokens of the one that it left.

    Raises:
        KeyError: there is no checkpoint of so many tokens.
    """
    of_tokens = {checkpoint.tokens.size: checkpoint for checkpoint in stored}
    return growth_of(of_tokens[resumed], of_tokens[saved])


def differences_by_depth(inspector: Inspector, plan: Plan) -> Float64[np.ndarray, "branches depths"]:
    """How far the residual stream of each branch's text, forked, is from that of the text alone.

    The largest difference of a row and channel, over the largest value; after the embedding and after every layer.
    """
    stream = lay_out([plan])
    forked = inspector.hidden_states(inspector.metadata(stream)).astype(np.float64)
    found = []
    for branch in range(plan.branch_lengths.size):
        rows = text_rows(stream, branch)
        alone = inspector.hidden_states(inspector.metadata(lay_out([plan.alone(branch)])))[:, : rows.size]
        alone = alone.astype(np.float64)
        found.append(np.abs(forked[:, rows] - alone).max(axis=(1, 2)) / np.abs(alone).max(axis=(1, 2)))
    return np.stack(found)
