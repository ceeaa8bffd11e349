"""The model that is trained, its loss over forked streams, and one step of it."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib

from experiments.demo_training.streams import StreamBatch
from flide_jax.layout import MetadataLayout
from flide_jax.models.layers import rms_norm
from flide_jax.models.params import initialise
from flide_jax.models.qwen3_5 import Qwen35Config, Qwen35Params, abstract, hidden_states
from flide_jax.models.readout import label_logits

# The first columns of the head: yes, no, 0..9, A..Z. Only they are trained; questions of more options need more.
LABELS = 38
# Kernels written for a GPU have no backward pass.
DIFFERENTIABLE = "xla"


class Weights(NamedTuple):
    """What the loss adds to the cross entropy of the answers.

    Attributes:
        language: the share of next-token prediction over the states.
        word: the weight of the answers in one word (`StreamBatch.words`), said where the question's text ends,
        late: and said once more at the read row.
    """

    language: jax.typing.ArrayLike
    word: jax.typing.ArrayLike
    late: jax.typing.ArrayLike


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
        word_depth: after how many layers the answers in one word are said at the end of the question's text,
        late_depth: and after how many at the read row. Only the layers above can use what is found there.
        muon_scale: root mean square of the updates of matrices, which are Muon's, before the learning rate. All others
            are Adam's, of 0.2 to 0.4.
        embedding_scale: of Adam's updates of the embedding. Its entries are small, and rows that move by a large part
            of themselves at a time cannot be told apart.
        weight_decay: of all parameters but vectors.
    """

    config: Qwen35Config
    layout: MetadataLayout
    label_ids: np.ndarray
    dtype: np.dtype
    word_depth: int
    late_depth: int
    muon_scale: float
    embedding_scale: float
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
        return State(params, self.descent().init(params))

    def step(
        self, state: State, batch: StreamBatch, learning_rate: jax.Array, weights: Weights
    ) -> tuple[State, dict[str, jax.Array]]:
        """One step on the mean cross entropy of a batch's questions and, by their weights, of the other parts.

        Returns the next state and measures, float32 [] each: the parts of the loss and the shares of right answers.
        """
        gradient_of = jax.value_and_grad(self._loss, has_aux=True)
        (_, measures), gradient = gradient_of(state.params, batch, weights)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its int32 step count with floats
            updates, moments = self.descent().update(gradient, state.moments, state.params)
        params = jax.tree.map(lambda leaf, update: leaf - learning_rate * update, state.params, updates)
        return State(params, moments), measures

    def _embed(self, params: Qwen35Params, tokens: jax.Array | np.ndarray) -> jax.Array:
        """Rows of the float32 embedding: the gradient adds many rows into one, which bfloat16 does slowly and badly."""
        return params.embedding[tokens].astype(self.dtype)

    def _cast(self, params: Qwen35Params) -> Qwen35Params:
        """The parameters in the dtypes of the forward pass, with the labels' rows of the embedding as the head."""
        specs = abstract(self.config, labels=LABELS, dtype=self.dtype)
        tied = dataclasses.replace(params, head=params.embedding[self.label_ids])
        return jax.tree.map(lambda spec, leaf: leaf.astype(spec.dtype), specs, tied)

    def _loss(
        self, params: Qwen35Params, batch: StreamBatch, weights: Weights
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        cast = self._cast(params)
        logits, language, word_logits = jax.vmap(
            lambda buffer, word_rows: self._read_and_predict(params, cast, buffer, word_rows)
        )(batch.buffers, batch.word_rows)
        mean, measures = answer_loss(logits, batch)
        (word, late), (word_right, late_right) = word_loss(word_logits, batch)
        loss = (1 - weights.language) * mean + weights.language * jnp.mean(language)
        loss += weights.word * word + weights.late * late
        measures |= {"language": jnp.mean(language), "word": word, "word_right": word_right}
        return loss, measures | {"late": late, "late_right": late_right}

    def _read_and_predict(
        self, master: Qwen35Params, params: Qwen35Params, buffer: jax.Array, word_rows: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Label logits of one stream; the mean cross entropy of its states' tokens, each given the row before it; the
        logits of all tokens as the answer in one word, at `word_depth` and at `late_depth`, [2, reads, V].

        Next-token prediction leaves out the questions: who is asked about what cannot be foretold, and their frame soon
        is no news.
        """
        metadata = self.layout.unpack(buffer)
        embedded = self._embed(master, metadata.tokens)
        hidden = hidden_states(params, metadata, self.config, embedded=embedded, implementation=DIFFERENTIABLE)
        last = hidden[-1]
        epsilon = self.config.norm_epsilon
        logits = label_logits(last[metadata.read_rows], params.final_norm, params.head, epsilon=epsilon)
        at_words = jnp.stack([hidden[self.word_depth, word_rows], hidden[self.late_depth, metadata.read_rows]])
        normed = rms_norm(at_words, params.final_norm, epsilon=epsilon).astype(params.embedding.dtype)
        word_logits = jnp.einsum("nrd,vd->nrv", normed, params.embedding, preferred_element_type=jnp.float32)

        @jax.checkpoint  # the [T, V] logits are made again in the backward pass
        def cross_entropy(hidden: jax.Array, embedding: jax.Array) -> jax.Array:
            normed = rms_norm(hidden, params.final_norm, epsilon=epsilon).astype(embedding.dtype)
            every = jnp.einsum("td,vd->tv", normed, embedding, preferred_element_type=jnp.float32)
            before = metadata.predecessors[:, -1]
            in_state = (before >= 0) & (metadata.spans.own_end == 0)
            said = every[before, metadata.tokens]
            total = jax.nn.logsumexp(every, axis=-1)[before]
            return jnp.mean(total - said, where=in_state)

        return logits, cross_entropy(last, params.embedding), word_logits

    def descent(self) -> optax.GradientTransformation:
        """From gradients to what the learning rate is multiplied with; a step is against it."""

        def kind(path: tuple, leaf: jax.Array) -> str:
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            if name == "embedding":
                return "embedding"
            return "matrix" if leaf.ndim > 1 and not name.endswith("conv_taps") else "other"

        decay = optax.add_decayed_weights(
            self.weight_decay, mask=lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)
        )
        adam = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b1=0.9, b2=0.98), decay)
        muon = optax.chain(
            optax.contrib.scale_by_muon(weight_dimension_numbers=_rows_and_columns),
            optax.stateless_with_tree_map(self._to_scale),
            decay,
        )
        return optax.partition(
            {
                "embedding": optax.chain(adam, optax.scale(self.embedding_scale)),
                "matrix": muon,
                "other": adam,
            },
            lambda params: jax.tree.map_with_path(kind, params),
        )

    def _to_scale(self, update: jax.Array, _: jax.Array | None) -> jax.Array:
        """An orthogonal update, whose root mean square goes by its longer side, with the same one for all shapes."""
        return update * (self.muon_scale * max(update.shape) ** 0.5)


def _rows_and_columns(tree: Any) -> Any:
    """For Muon: every leaf is a matrix as it is."""
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(), tree)


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
    measures = {"loss": mean, "who": jnp.mean(right, where=asked & batch.who)}
    for kind, first, last in (("yesno", 0, 2), ("score", 2, 12), ("choice", 12, LABELS)):
        here = asked & (batch.first_label >= first) & (batch.first_label < last)
        measures[kind] = jnp.mean(right, where=here)
    return mean, measures


def word_loss(logits: jax.Array, batch: StreamBatch) -> tuple[jax.Array, jax.Array]:
    """Mean cross entropy of the answers in one word and the share of right ones, each [2].

    `logits` is [B, 2, reads, V]; reads without such an answer do not count.
    """
    has_one = (batch.words >= 0)[:, None]
    target = jnp.broadcast_to(jnp.maximum(batch.words, 0)[:, None], logits.shape[:-1])
    said = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    loss = jax.nn.logsumexp(logits, axis=-1) - said
    right = jnp.argmax(logits, axis=-1) == target
    # A batch without any adds nothing: the mean of no number is no number.
    count = jnp.maximum(jnp.sum(has_one, dtype=jnp.float32), 1)
    mean, share = (jnp.sum(one, axis=(0, 2), where=has_one, dtype=jnp.float32) / count for one in (loss, right))
    return mean, share
