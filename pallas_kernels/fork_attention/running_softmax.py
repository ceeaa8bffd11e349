"""Softmax over keys that come in parts: what is kept of the parts so far, and how the next one joins it."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, DTypeLike, Float


class RunningSoftmax(NamedTuple):
    """Of some query rows, in groups that share a key head: weighted values, largest score, and sum of weights."""

    summed: Float[Array, "KV G N D"]
    maximum: Float[Array, "KV G N"]
    total: Float[Array, "KV G N"]

    @classmethod
    def nothing(cls, shape: tuple[int, int, int], head_dim: int, dtype: DTypeLike) -> "RunningSoftmax":
        """Before any key; `shape` is [KV, G, N]."""
        least = jnp.full(shape, jnp.finfo(dtype).min, dtype)  # finite, so that the difference of two is a number
        return cls(jnp.zeros((*shape, head_dim), dtype), least, jnp.zeros(shape, dtype))

    def joined(self, scores: Float[Array, "KV G N keys"], values: Float[Array, "keys KV D"]) -> "RunningSoftmax":
        """With more keys. Scores of hidden keys are -inf; values are finite."""
        # The mean does not depend on it, so neither does its gradient.
        maximum = lax.stop_gradient(jnp.maximum(self.maximum, jnp.max(scores, axis=-1)))
        fade, weights = jnp.exp(self.maximum - maximum), jnp.exp(scores - maximum[..., None])
        summed = jnp.einsum("kgnt,tkd->kgnd", weights, values, precision="highest")
        return RunningSoftmax(
            summed=self.summed * fade[..., None] + summed,
            maximum=maximum,
            total=self.total * fade + jnp.sum(weights, axis=-1),
        )

    def mean(self) -> Float[Array, "N KV G D"]:
        """The weighted mean of the values; 0 where a row saw no key."""
        mean = self.summed / jnp.where(self.total == 0, 1, self.total)[..., None]
        return jnp.moveaxis(mean, 2, 0)
