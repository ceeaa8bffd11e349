"""The rows that each query row may look at: two spans of the stream's rows, and one of rows kept from former rounds."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32

PAGE_ROWS = 64  # rows of a page of cached keys


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

    def pairs(self) -> int:
        """How many pairs of a row and a key that it sees there are."""
        lengths = (self.state_end - self.state_begin) + (self.own_end - self.own_begin)
        return int(np.asarray(lengths).sum())

    def visible(self, key_rows: int) -> jax.Array:
        """bool [N, key_rows]: the mask of Eq. 3, of spans that are not stacked."""
        y = jax.lax.iota(np.int32, key_rows)[None, :]
        state = (self.state_begin[:, None] <= y) & (y < self.state_end[:, None])
        own = (self.own_begin[:, None] <= y) & (y < self.own_end[:, None])
        return jnp.asarray(state | own)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CachedKeys:
    """Keys and values of former rounds in pages, and the span of them that every query row sees besides its `KeySpans`.

    A cached row v is row `v % PAGE_ROWS` of page `table[v // PAGE_ROWS]`; query row n sees it iff
    `begin[n] <= v < end[n]`. Each request of a round has a run of entries of `table` to itself, so a span that stays
    inside the run can reach no other request's pages. An empty span sees none; unused entries are 0.

    One request resumed at token 100, its keys in pages 7 and 2, and one that starts anew; two rows of each:

        table   7  2  0  0      unused entries at the end
        row     0    1    2  3
        begin   0    0    0  0
        end     100  100  0  0      cached row 99 is row 35 of page 2

    Values in pages have to be finite (where one is not, the key is NaN instead: a mask hides it), for rows of a page
    beyond the spans hold what was written there before.
    """

    key: Float[jax.Array | np.ndarray, "pages page_rows KV D"]
    value: Float[jax.Array | np.ndarray, "pages page_rows KV D"]
    table: Int32[jax.Array | np.ndarray, " entries"]
    begin: Int32[jax.Array | np.ndarray, " N"]
    end: Int32[jax.Array | np.ndarray, " N"]

    def of_rows(self, rows: Int32[jax.Array, " M"]) -> "CachedKeys":
        """For some query rows only."""
        return dataclasses.replace(self, begin=self.begin[rows], end=self.end[rows])

    @property
    def rows(self) -> int:
        """Cached rows that the table can name."""
        return self.table.shape[0] * PAGE_ROWS

    def gathered(self) -> tuple[Float[Array, "rows KV D"], Float[Array, "rows KV D"]]:
        """Keys and values of all cached rows, in one piece."""
        key, value = (jnp.asarray(pages)[jnp.asarray(self.table)] for pages in (self.key, self.value))
        return key.reshape(self.rows, *key.shape[2:]), value.reshape(self.rows, *value.shape[2:])

    def visible(self) -> jax.Array:
        """bool [N, rows]: which cached rows each query row sees."""
        v = jax.lax.iota(np.int32, self.rows)[None, :]
        return jnp.asarray((self.begin[:, None] <= v) & (v < self.end[:, None]))
