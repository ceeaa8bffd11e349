"""The model that is trained, its loss over forked streams, and one step of it."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.demo_training.streams import StreamBatch
from flide_jax.layout import MetadataLayout
from flide_jax.models.layers import rms_norm
from flide_jax.models.params import initialise
from flide_jax.models.qwen3_5 import Qwen35Config, Qwen35Params, abstract, forward, hidden_states
from flide_jax.models.readout import label_logits

# The first columns of the head: yes, no, 0..9, A..Z. Only they are trained; questions of more options need more.
LABELS = 38


class State(NamedTuple):
    """What training carries: float32 parameters (their head is None: it is tied) and the optimiser's moments."""

    params: Qwen35Params
    moments: optax.OptState


@dataclasses.dataclass(frozen=True)
class Trainer:
    """The functions of a run, all pure; the fields are constants of the compiled steps.

    Attributes:
        config: the architecture.
        layout: of a stream's buffer.
        label_ids: token ids of the trained labels, int32 [LABELS].
        dtype: of matrices and activations in the forward pass.
        language_weight: share of the loss that is next-token prediction over the stream, 0 for none.
        weight_decay: of the matrices.
    """

    config: Qwen35Config
    layout: MetadataLayout
    label_ids: np.ndarray
    dtype: np.dtype
    language_weight: float = 0.0
    weight_decay: float = 0.02

    def initial(self, seed: int) -> State:
        """Random parameters: decays near one, and outputs to the residual stream small enough not to drown it."""
        full = abstract(self.config, labels=LABELS, dtype=np.dtype(np.float32))
        tree = dataclasses.replace(full, head=None)
        quieter = (2 * len(self.config.layers)) ** -0.5

        def scaled(path: tuple, leaf: jax.Array) -> jax.Array:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            if name == "embedding":
                return leaf * self.config.width**-0.5
            return leaf * quieter if name.endswith(("out_proj", "down")) else leaf

        params = jax.tree.map_with_path(scaled, initialise(tree, jax.random.key(seed)))
        return State(params, self._optimiser().init(params))

    def step(self, state: State, batch: StreamBatch, learning_rate: jax.Array) -> tuple[State, dict[str, jax.Array]]:
        """One AdamW step on the mean cross entropy of a batch's questions."""
        (_, measures), gradient = jax.value_and_grad(self._loss, has_aux=True)(state.params, batch)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its int32 step count with floats
            updates, moments = self._optimiser().update(gradient, state.moments, state.params)
        params = jax.tree.map(lambda leaf, update: leaf - learning_rate * update, state.params, updates)
        return State(params, moments), measures

    def logits(self, params: Qwen35Params, buffers: jax.Array | np.ndarray) -> jax.Array:
        """Label logits [B, reads, LABELS] of B streams, by the pass that answers."""
        cast = self._cast(params)

        def one_stream(buffer: jax.Array | np.ndarray) -> jax.Array:
            metadata = self.layout.unpack(buffer)
            return forward(cast, metadata, self.config, embedded=self._embed(params, metadata.tokens))

        return jax.vmap(one_stream)(buffers)

    def _embed(self, params: Qwen35Params, tokens: jax.Array | np.ndarray) -> jax.Array:
        """Rows of the float32 embedding: the gradient adds many rows into one, which bfloat16 does slowly and badly."""
        return params.embedding[tokens].astype(self.dtype)

    def _cast(self, params: Qwen35Params) -> Qwen35Params:
        """The parameters in the dtypes of the forward pass, with the labels' rows of the embedding as the head."""
        specs = abstract(self.config, labels=LABELS, dtype=self.dtype)
        tied = dataclasses.replace(params, head=params.embedding[self.label_ids])
        return jax.tree.map(lambda spec, leaf: leaf.astype(spec.dtype), specs, tied)

    def _loss(self, params: Qwen35Params, batch: StreamBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        if self.language_weight:
            cast = self._cast(params)
            logits, language = jax.vmap(lambda buffer: self._read_and_predict(params, cast, buffer))(batch.buffers)
        else:
            logits, language = self.logits(params, batch.buffers), jnp.zeros(1, jnp.float32)
        mean, measures = answer_loss(logits, batch)
        loss = (1 - self.language_weight) * mean + self.language_weight * jnp.mean(language)
        return loss, measures | {"language": jnp.mean(language)}

    def _read_and_predict(
        self, master: Qwen35Params, params: Qwen35Params, buffer: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Label logits of one stream, and the mean cross entropy of every row's token given the row before it.

        The row before the first of a branch is the last of its state, as for the convolution.
        """
        metadata = self.layout.unpack(buffer)
        last = hidden_states(params, metadata, self.config, embedded=self._embed(master, metadata.tokens))[-1]
        epsilon = self.config.norm_epsilon
        logits = label_logits(last[metadata.read_rows], params.final_norm, params.head, epsilon=epsilon)

        @jax.checkpoint  # the [T, V] logits are made again in the backward pass
        def cross_entropy(hidden: jax.Array, embedding: jax.Array) -> jax.Array:
            normed = rms_norm(hidden, params.final_norm, epsilon=epsilon).astype(embedding.dtype)
            every = jnp.einsum("td,vd->tv", normed, embedding, preferred_element_type=jnp.float32)
            before = metadata.predecessors[:, -1]
            said = every[before, metadata.tokens]
            total = jax.nn.logsumexp(every, axis=-1)[before]
            return jnp.mean(total - said, where=before >= 0)

        return logits, cross_entropy(last, params.embedding)

    def _optimiser(self) -> optax.GradientTransformation:
        return optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.scale_by_adam(b1=0.9, b2=0.98),
            optax.add_decayed_weights(
                self.weight_decay, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
            ),
        )


def answer_loss(logits: jax.Array, batch: StreamBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Mean cross entropy of the gold options [], softmax over each question's options, and the accuracy by type.

    `logits` is [B, reads, LABELS]; reads without options are padding.
    """
    column = jnp.arange(LABELS, dtype=jnp.int32)[None, None] - batch.first_label[..., None]
    allowed = (column >= 0) & (column < jnp.maximum(batch.options, 1)[..., None])
    masked = jnp.where(allowed, logits, -1e30)
    target = (batch.first_label + batch.gold)[..., None]
    loss = -jnp.take_along_axis(jax.nn.log_softmax(masked), target, axis=-1)[..., 0]
    asked = batch.options > 0
    right = asked & (jnp.argmax(masked, axis=-1) == target[..., 0])
    mean = jnp.mean(loss, where=asked)
    measures = {"loss": mean}
    for kind, first, last in (("yesno", 0, 2), ("score", 2, 12), ("choice", 12, LABELS)):
        here = asked & (batch.first_label >= first) & (batch.first_label < last)
        measures[kind] = jnp.mean(right, where=here)
    return mean, measures
