"""A tiny random model of our own, and its forward compiled once for each capacity."""

import dataclasses
import functools
from pathlib import Path

import jax
import numpy as np
from transformers import AutoConfig

from flide_jax.layout import Capacity, MetadataLayout, Stream, lay_out
from flide_jax.models import loading, qwen3_5
from flide_jax.models.params import initialise
from flide_jax.models.readout import label_logits
from flide_jax.prompts.plan import Plan
from tests.oracle.configs import text_config
from tests.trees import capacity_of

LABEL_IDS = np.array([3, 5, 7, 11], np.int32)


@dataclasses.dataclass(frozen=True)
class TinyModel:
    """Parameters and compiled functions of one model; every capacity compiles once a process."""

    config: qwen3_5.Qwen35Config
    params: qwen3_5.Qwen35Params
    implementation: str | None = None

    def logits(self, stream: Stream, *, params=None) -> np.ndarray:
        """Label logits of the read rows."""
        return self._run("forward", stream, params)[: stream.read_rows.size]

    def hidden_states(self, stream: Stream, *, params=None) -> np.ndarray:
        """The residual stream [depths, T, d], padding cut off."""
        return self._run("hidden_states", stream, params)[:, : stream.tokens.size]

    def alone(self, plan: Plan, branch: int) -> tuple[np.ndarray, np.ndarray]:
        """Hidden states [depths, T, d] of one question's whole text alone, and the logits [reads, L] at its reads."""
        stream = lay_out([plan.alone(branch)])
        hidden = self.hidden_states(stream)
        return hidden, self.read(hidden[-1, stream.read_rows])

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Label logits [N, L] of rows [N, d] of the last hidden states: the readout without selection."""
        rows = jax.numpy.asarray(rows)
        return np.asarray(
            label_logits(rows, self.params.final_norm, self.params.head, epsilon=self.config.norm_epsilon)
        )

    def _run(self, name: str, stream: Stream, params) -> np.ndarray:
        layout = MetadataLayout(capacity_of(stream), self.config.gated_delta_net.conv_taps)
        run = compiled(name, self.config, layout.capacity, self.implementation)
        return np.asarray(run(self.params if params is None else params, layout.pack(stream)))


@functools.cache
def compiled(name: str, config: qwen3_5.Qwen35Config, capacity: Capacity, implementation: str | None):
    """A jitted `forward` or `hidden_states` over (params, buffer)."""
    layout = MetadataLayout(capacity, config.gated_delta_net.conv_taps)
    function = getattr(qwen3_5, name)
    return jax.jit(
        lambda params, buffer: function(params, layout.unpack(buffer), config, implementation=implementation)
    )


@functools.cache
def architecture(name: str) -> qwen3_5.Qwen35Config:
    """One of the tiny configurations of `tests.oracle.configs`."""
    return qwen3_5.Qwen35Config.from_transformers(text_config(name))


def loaded_model(directory: Path, dtype: str) -> TinyModel:
    """The model of a checkpoint directory."""
    config = qwen3_5.Qwen35Config.from_transformers(AutoConfig.from_pretrained(directory))
    abstract = qwen3_5.abstract(config, labels=LABEL_IDS.size, dtype=jax.numpy.dtype(dtype))
    return TinyModel(config, loading.load(directory, qwen3_5.weight_table(config, LABEL_IDS), abstract))


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Softmax over the labels, in float64."""
    logits = np.asarray(logits, np.float64)
    exponentials = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def tiny_model(name: str, dtype: str, *, seed: int = 0, implementation: str | None = None) -> TinyModel:
    """Random parameters with decays near one and norm weights that matter, so that a wrong fork shows."""
    config = architecture(name)
    # Drawn in float64 and rounded, so that models of all dtypes are the same one.
    drawn = draw(config, seed)
    abstract = qwen3_5.abstract(config, labels=LABEL_IDS.size, dtype=jax.numpy.dtype(dtype))
    params = jax.tree.map(lambda value, spec: jax.numpy.asarray(value).astype(spec.dtype), drawn, abstract)
    return TinyModel(config, params, implementation)


def draw(config: qwen3_5.Qwen35Config, seed: int) -> qwen3_5.Qwen35Params:
    """Parameters as numpy arrays that bfloat16 holds exactly."""
    abstract = qwen3_5.abstract(config, labels=LABEL_IDS.size, dtype=np.dtype(np.float32))
    leaves, structure = jax.tree.flatten(initialise(abstract, jax.random.key(seed)))
    leaves = [np.asarray(leaf) for leaf in leaves]
    rng = np.random.default_rng(seed)
    # Norm weights start as constants, with which weights left out or given to another norm would not show.
    noisy = [x + 0.3 * rng.standard_normal(x.shape) if np.ptp(x) == 0 else x for x in leaves]
    return jax.tree.unflatten(structure, [x.astype(jax.numpy.bfloat16) for x in noisy])
