"""Attention over a forked stream: every row reads its state's keys and its own branch's keys (Eq. 3)."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels import dispatch
from pallas_kernels.dispatch import Implementation
from pallas_kernels.fork_attention import pallas, reference, xla
from pallas_kernels.fork_attention.metadata import KeySpans

__all__ = ["IMPLEMENTATIONS", "KeySpans", "fork_attention"]

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.fork_attention,
    "xla": xla.fork_attention,
    "pallas": pallas.fork_attention,
}


def fork_attention(
    query: Float[Array, "N H D"],
    key: Float[Array, "T KV D"],
    value: Float[Array, "T KV D"],
    spans: KeySpans,
    *,
    scale: float,
    implementation: Implementation = None,
) -> Float[Array, "N H D"]:
    """softmax(scale q k^T) v over the keys that `spans` shows to each query row.

    Args:
        query: one row for each wanted output: all T rows of the stream, or the read rows only.
        key: keys of every stream row; query head h reads key head h // (H / KV).
        value: values of every stream row.
        spans: two spans of key rows for each query row.
        scale: factor of the scores.
        implementation: "reference", "xla", "pallas", or None for the best that can run.

    Returns:
        One row for each query row in the dtype of `query`. Softmax and sums are float32 (float64 for float64
        operands). A row that sees no key is zero. A row that sees a value that is not finite is not finite, in the
        channel of that value at least. Rows outside the spans have no influence whatever they hold, NaN included.

    Raises:
        ValueError: H is not a multiple of KV, or the shapes disagree.
    """
    (_, heads, head_dim), (_, key_heads, _) = query.shape, key.shape
    if heads % key_heads:
        raise ValueError(f"fork_attention: {heads} query heads are not a multiple of {key_heads} key heads")
    if key.shape != value.shape or key.shape[2] != head_dim:
        raise ValueError(f"fork_attention: query {query.shape}, key {key.shape} and value {value.shape} disagree")
    if spans.own_end.shape != query.shape[:1]:
        raise ValueError(f"fork_attention: spans of {spans.own_end.shape[0]} rows for {query.shape[0]} query rows")
    return dispatch.run("fork_attention", IMPLEMENTATIONS, implementation, query, key, value, spans, scale=scale)
