"""A tiny random model of our own, and its forward compiled once for each capacity."""

import dataclasses
import functools

import jax
import numpy as np
from transformers import Qwen3_5TextConfig

from flide_jax.layout import Capacity, Demand, MetadataLayout, Stream
from flide_jax.models import qwen3_5
from flide_jax.models.params import initialise
from tests.oracle.configs import text_config
from tests.trees import LADDER

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

    def _run(self, name: str, stream: Stream, params) -> np.ndarray:
        layout = MetadataLayout(LADDER.smallest_for(Demand.of_stream(stream)), self.config.gated_delta_net.conv_taps)
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
    config: Qwen3_5TextConfig = text_config(name)
    return qwen3_5.Qwen35Config.from_transformers(config)


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
    params = initialise(abstract, jax.random.key(seed))
    leaves, structure = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)
    noisy = [np.asarray(x) + 0.3 * rng.standard_normal(x.shape) * np.isin(np.ptp(np.asarray(x)), [0.0]) for x in leaves]
    return jax.tree.unflatten(structure, [x.astype(jax.numpy.bfloat16) for x in noisy])
