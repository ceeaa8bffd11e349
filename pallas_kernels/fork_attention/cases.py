"""Named cases of fork attention, for tests and benchmarks."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from pallas_kernels import trees
from pallas_kernels.fork_attention.api import fork_attention
from pallas_kernels.fork_attention.metadata import PAGE_ROWS, CachedKeys, KeySpans
from pallas_kernels.random_numbers import normal
from pallas_kernels.trees import Request


@dataclasses.dataclass(frozen=True)
class Case:
    """A round, and the heads that attend to it.

    `read_only`: queries at the last row of each branch alone. `cached`: the rows of each request that are in pages;
    then the state's rows of the stream are those that come after them. `finite`: the op is told that values are finite,
    as a model tells it, where `rotary_norm` has seen to that.
    """

    requests: Sequence[Request]
    cached: Sequence[int] = ()
    heads: int = 16
    key_heads: int = 4
    head_dim: int = 256
    read_only: bool = False
    finite: bool = True

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def rows(self) -> int:
        """T."""
        return trees.stream_rows(self.requests)

    def query_rows(self) -> np.ndarray:
        """The stream rows that ask."""
        if not self.read_only:
            return np.arange(self.rows)
        return np.array([piece.begin + piece.length - 1 for piece in trees.pieces(self.requests) if piece.parent])

    def spans(self) -> KeySpans:
        """Of the query rows."""
        spans = trees.key_spans(self.requests, self.rows)
        return KeySpans(**{name: column[self.query_rows()] for name, column in vars(spans).items()})

    def table(self) -> np.ndarray:
        """Pages in an order of their own, request by request. Page 0 is no request's; two entries are not used."""
        entries = sum(-(-length // PAGE_ROWS) for length in self.cached)
        return np.concatenate([1 + np.random.default_rng(0).permutation(entries), [0, 0]]).astype(np.int32)

    def cached_spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Begin and end of the query rows' cached spans."""
        entries = np.array([-(-length // PAGE_ROWS) for length in self.cached], np.int32)
        request_begin = PAGE_ROWS * (np.cumsum(entries) - entries)
        begin, end = np.zeros((2, self.rows), np.int32)
        for piece in trees.pieces(self.requests) if self.cached else ():
            here = slice(piece.begin, piece.begin + piece.length)
            begin[here] = request_begin[piece.slot]
            end[here] = begin[here] + self.cached[piece.slot]
        return begin[self.query_rows()], end[self.query_rows()]

    def cached_keys(self, key: jax.Array, value: jax.Array) -> CachedKeys:
        """These pages as the query rows see them."""
        return CachedKeys(key, value, self.table(), *self.cached_spans())

    def operands(self, key: jax.Array, dtype: DTypeLike = jnp.bfloat16) -> tuple[jax.Array, ...]:
        """Random query, key and value; with cached rows, pages of keys and of values too."""
        pages = (self.table().size - 1, PAGE_ROWS, self.key_heads, self.head_dim)
        shapes = (
            (self.query_rows().size, self.heads, self.head_dim),
            *2 * [(self.rows, self.key_heads, self.head_dim)],
            *(2 * [pages] if self.cached else []),
        )
        keys = jax.random.split(key, len(shapes))
        return tuple(normal(one, shape, dtype) for one, shape in zip(keys, shapes, strict=True))

    def operations(self) -> float:
        """Floating-point operations of the visible scores and their sums."""
        spans = self.spans()
        shown = (spans.state_begin, spans.state_end), (spans.own_begin, spans.own_end), self.cached_spans()
        visible = sum(np.sum(end - begin, dtype=np.int64) for begin, end in shown)
        return 4.0 * self.heads * self.head_dim * float(visible)

    def bytes(self) -> float:
        """Each operand read once and the output written once, in bfloat16."""
        key_rows = self.rows + sum(self.cached)
        return 2.0 * self.head_dim * (2 * self.query_rows().size * self.heads + 2 * key_rows * self.key_heads)


CASES = {name: Case(requests) for name, requests in trees.WORKLOADS.items()} | {
    "quality-all 8/2": Case(trees.WORKLOADS["quality-all"], heads=8, key_heads=2),
    "multirc 8/2": Case(trees.WORKLOADS["multirc"], heads=8, key_heads=2),
    "quality-all reads": Case(trees.WORKLOADS["quality-all"], read_only=True),
    "multirc reads": Case(trees.WORKLOADS["multirc"], read_only=True),
    "multirc any values": Case(trees.WORKLOADS["multirc"], finite=False),  # what it costs to look through them
    "resumed": Case([Request(400, 5 * [60])], cached=[12_000]),
    "resumed 8/2": Case([Request(400, 5 * [60])], cached=[12_000], heads=8, key_heads=2),
    "resumed reads": Case([Request(400, 5 * [60])], cached=[12_000], read_only=True),
}
# Small and awkward ones, for correctness: single rows, edges of a block, more heads a group, many requests.
AWKWARD = {
    "one row": Case([Request(1, [1])], heads=4, key_heads=1, head_dim=64),
    "block edges": Case([Request(64, [1, 63, 64, 65]), Request(63, [127])], heads=8, key_heads=2, head_dim=64),
    "ungrouped": Case(
        [Request(70, [5, 66]), Request(1, [1]), Request(130, [3, 64])], heads=2, key_heads=2, head_dim=64
    ),
    "group of six": Case([Request(100, [17, 1])], heads=6, key_heads=1, head_dim=128),
    "group of eight": Case([Request(90, [33])], heads=8, key_heads=1, head_dim=64),
    "many requests": Case([Request(3, [2]) for _ in range(64)], heads=4, key_heads=1, head_dim=64),
    "head of 256": Case([Request(130, [20, 90])], heads=4, key_heads=1, head_dim=256),
    "reads of long": Case([Request(700, [30, 5])], heads=4, key_heads=1, head_dim=64, read_only=True),
    **{
        f"{length} cached": Case([Request(70, [20, 3])], cached=[length], heads=4, key_heads=1, head_dim=head_dim)
        for length, head_dim in ((1, 64), (63, 128), (64, 64), (65, 256), (400, 64), (600, 256))
    },
    # One tile of rows of two requests with cached rows and of one without.
    "cached and not": Case(
        [Request(9, [3, 4]), Request(5, [2]), Request(7, [3])],
        cached=[100, 0, 200],
        heads=4,
        key_heads=1,
        head_dim=64,
    ),
    # A state that is cached whole: every row of the stream is a branch's.
    "nothing new": Case([Request(0, [20, 50])], cached=[192], heads=4, key_heads=1, head_dim=128),
    "cached reads": Case(
        [Request(40, [30, 5]), Request(3, [8])], cached=[500, 70], heads=4, key_heads=1, head_dim=64, read_only=True
    ),
}


def caller(case: Case, implementation: str) -> Callable[..., jax.Array]:
    """The op on the operands of a case."""
    spans = case.spans()

    def call(query: jax.Array, key: jax.Array, value: jax.Array, *pages: jax.Array) -> jax.Array:
        cached = case.cached_keys(*pages) if pages else None
        options = {"scale": case.scale, "finite": case.finite, "implementation": implementation}
        return fork_attention(query, key, value, spans, cached=cached, **options)

    return call
