"""The rows that each query row may look at, as two spans of key rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeySpans:
    """Two half-open spans of key rows for every query row: its state's and its own branch's.

    Row n sees key row y iff `state_begin[n] <= y < state_end[n]` or `own_begin[n] <= y < own_end[n]`. This is Eq. 3
    with its comparisons done beforehand: causal, windowed and two-way masks differ in these numbers alone, so no
    implementation ever compares a key with the query's own index. The two spans of a row never overlap.

    One request with a state of three tokens and two branches of two tokens, stream s0 s1 s2 a0 a1 b0 b1:

        row           0  1  2  3  4  5  6
        state_begin   0  0  0  0  0  0  0
        state_end     1  2  3  3  3  3  3
        own_begin     0  0  0  3  3  5  5
        own_end       0  0  0  4  5  6  7

    A padding row has two empty spans; its output is zero. Implementations may stack blocks of rows on leading axes.
    """

    state_begin: Int32[jax.Array | np.ndarray, "*blocks N"]
    state_end: Int32[jax.Array | np.ndarray, "*blocks N"]
    own_begin: Int32[jax.Array | np.ndarray, "*blocks N"]
    own_end: Int32[jax.Array | np.ndarray, "*blocks N"]

    def of_rows(self, rows: Int32[jax.Array, " M"]) -> "KeySpans":
        """The spans of some rows only: queries of a readout at `rows`."""
        return jax.tree.map(lambda column: column[rows], self)

    def visible(self, key_rows: int) -> jax.Array:
        """bool [N, key_rows]: the mask of Eq. 3, of spans that are not stacked."""
        y = jax.lax.iota(np.int32, key_rows)[None, :]
        state = (self.state_begin[:, None] <= y) & (y < self.state_end[:, None])
        own = (self.own_begin[:, None] <= y) & (y < self.own_end[:, None])
        return jnp.asarray(state | own)
