"""Attention over a forked stream: every row reads its state's keys and its own branch's keys (Eq. 3)."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels import dispatch, operands
from pallas_kernels.dispatch import Implementation
from pallas_kernels.fork_attention import pallas, reference, triton, xla
from pallas_kernels.fork_attention.metadata import PAGE_ROWS, CachedKeys, KeySpans
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS

__all__ = ["IMPLEMENTATIONS", "PAGE_ROWS", "CachedKeys", "KeySpans", "fork_attention"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.fork_attention,
    "xla": xla.fork_attention,
    "pallas": pallas.fork_attention,
    "triton": triton.fork_attention,
}


@operands.checked(alike=("query", "key", "value", "cached.key", "cached.value"), page_rows=PAGE_ROWS)
def fork_attention(
    query: Float[Array, "N H D"],
    key: Float[Array, "T KV D"],
    value: Float[Array, "T KV D"],
    spans: KeySpans,
    *,
    cached: CachedKeys | None = None,
    scale: float,
    finite: bool = False,
    batch_invariant: bool = False,
    implementation: Implementation = None,
) -> Float[Array, "N H D"]:
    """softmax(scale q k^T) v over the keys that `spans` and `cached` show to each query row.

    A state of 104 tokens that resumes at token 100, with one branch of two: the stream holds the last four tokens of
    the state, then the branch, and both see the cached rows [0, 100).

        row           0    1    2    3    4    5
        cached.begin  0    0    0    0    0    0
        cached.end    100  100  100  100  100  100
        state_begin   0    0    0    0    0    0
        state_end     1    2    3    4    4    4
        own_begin     0    0    0    0    4    4
        own_end       0    0    0    0    5    6

    So row 5 sees 100 + 4 + 2 keys: what a stream of all 106 tokens would show it.

    Args:
        query: one row for each wanted output: all T rows of the stream, or the read rows only.
        key: keys of every stream row; query head h reads key head h // (H / KV).
        value: values of every stream row.
        spans: two spans of the stream's rows for each query row.
        cached: keys and values of former rounds, and the span of them that each query row sees as well.
        scale: factor of the scores.
        finite: all values are finite, and where one was not its key is NaN: as `rotary_norm` leaves them.
        batch_invariant: the bits of a row depend on the keys and values that it sees, on their order and on its place
            in its piece (its state's rows, or its own branch's), and neither on where these stand nor on what stands
            beside them. For rows of the stream in which every piece begins at a multiple of CHUNK_ROWS and no
            CHUNK_ROWS rows hold two pieces, for all of them, and without cached keys.
        implementation: "reference", "xla", "pallas", "triton", or None for the best that can run.

    Returns:
        One row for each query row in the dtype of `query`. Softmax and sums are float32 (float64 for float64
        operands). A row that sees no key is zero. A row that sees a value that is not finite is not finite, in the
        channel of that value at least. Rows outside the spans have no influence whatever they hold, NaN included.

    Raises:
        ValueError: shapes other than these, or dtypes: queries, keys, values and pages share theirs; H is not a
            multiple of KV; what is batch-invariant has cached keys or other rows than whole chunks of the stream; or,
            in arrays on the host, a span ends before it begins or leaves the rows, or a page is named that there is
            not.
    """
    heads, key_heads = query.shape[1], key.shape[1]
    if not key_heads or heads % key_heads:
        raise ValueError(f"fork_attention: {heads} query heads are not a multiple of {key_heads} key heads")
    _check_values(spans, cached, key.shape[0])
    if batch_invariant:
        _check_batch_invariant(query, key, cached)
    if not query.shape[0]:
        return query
    options = {"cached": cached, "scale": scale, "finite": finite, "batch_invariant": batch_invariant}
    return dispatch.run("fork_attention", IMPLEMENTATIONS, implementation, query, key, value, spans, **options)


def _check_batch_invariant(
    query: Float[Array, "N H D"], key: Float[Array, "T KV D"], cached: CachedKeys | None
) -> None:
    if cached is not None:
        raise ValueError("fork_attention: cached keys stand in pages, so what sees them is not batch-invariant")
    if query.shape[0] != key.shape[0] or key.shape[0] % CHUNK_ROWS:
        found = f"{query.shape[0]} queries of {key.shape[0]} rows"
        raise ValueError(
            f"fork_attention: batch-invariant is for all rows of whole chunks of {CHUNK_ROWS}, not {found}"
        )


def _check_values(spans: KeySpans, cached: CachedKeys | None, rows: int) -> None:
    ranges: dict[str, operands.Range] = {
        "spans.state_begin": (spans.state_begin, 0, rows),
        "spans.state_end": (spans.state_end, spans.state_begin, rows),
        "spans.own_begin": (spans.own_begin, 0, rows),
        "spans.own_end": (spans.own_end, spans.own_begin, rows),
    }
    if cached is not None:
        ranges |= {
            "cached.table": (cached.table, 0, cached.key.shape[0] - 1),
            "cached.begin": (cached.begin, 0, cached.rows),
            "cached.end": (cached.end, cached.begin, cached.rows),
        }
    operands.check_values("fork_attention", ranges)
