"""The parts of a decoder layer that treat every token alone: projections, norms, feed-forward, rotary positions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from flax import struct
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int32

from flide_jax.models.params import Param
from pallas_kernels import matmul
from pallas_kernels.dispatch import Implementation


@struct.dataclass
class FeedForwardParams:
    """SwiGLU: rows of `gate_up` are [gate | up]."""

    gate_up: Param  # [2f, d]
    down: Param  # [d, f]


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    """Rotary positions on the first dims of a head.

    Attributes:
        dims: rotated dims of a head; pairs are (j, j + dims / 2).
        theta: base of the frequencies theta^(-2j / dims).
        axes: for each frequency, which of the three positions (time, height, width) it turns by.
    """

    dims: int
    theta: float
    axes: tuple[int, ...]


@struct.dataclass
class RotaryTable:
    """Cosines and sines of every row, in float32 (float64 for a float64 model)."""

    cos: Float[Array, "N frequencies"]
    sin: Float[Array, "N frequencies"]

    def of_rows(self, rows: Int32[Array, " M"]) -> "RotaryTable":
        """The table of some rows."""
        return RotaryTable(cos=self.cos[rows], sin=self.sin[rows])


def rms_norm(
    x: Float[Array, "*axes width"], weight: Float[Array, " width"], *, epsilon: float
) -> Float[Array, "*axes width"]:
    """x / sqrt(mean(x^2) + epsilon) * (1 + weight) over the last axis, in float32 at least; the dtype of `weight`."""
    x = x.astype(weight.dtype)
    normed = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon)
    return normed * (1 + weight.reshape((1,) * (x.ndim - 1) + weight.shape))


def feed_forward(
    params: FeedForwardParams,
    x: Float[Array, "N d"],
    residual: Float[Array, "N d"],
    *,
    batch_invariant: bool = False,
    implementation: Implementation = None,
) -> Float[Array, "N d"]:
    """residual + (silu(x G^T) * (x U^T)) D^T; the product in the middle is rounded once."""
    multiply = functools.partial(matmul, batch_invariant=batch_invariant, implementation=implementation)
    hidden = checkpoint_name(multiply(x, params.gate_up, swiglu=True), "gate_up")
    return checkpoint_name(multiply(hidden, params.down, residual=residual), "down")


def rotary_table(positions: Int32[Array, "3 N"], config: RotaryConfig, dtype: jnp.dtype) -> RotaryTable:
    """Angles position * frequency in `dtype`, each frequency with the position of its own axis."""
    exponents = -2 * jnp.arange(config.dims // 2, dtype=dtype) / config.dims
    frequencies = jnp.asarray(config.theta, dtype) ** exponents
    angles = positions.astype(dtype)[jnp.array(config.axes)].T * frequencies[None]
    return RotaryTable(cos=jnp.cos(angles), sin=jnp.sin(angles))
