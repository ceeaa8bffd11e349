"""The Mosaic GPU kernel of fork attention, interpreted on the CPU: what it computes, and what it must not see."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.fork_attention import pallas, reference
from pallas_kernels.fork_attention.cases import AWKWARD, Case
from pallas_kernels.fork_attention.metadata import CachedKeys, KeySpans
from pallas_kernels.trees import Request
from tests.tolerances import OPERATOR, assert_close


def attend(query, key, value, spans, *, cached=None, **options):
    """The kernel, interpreted. What follows waits for it, or both could wait for each other's threads."""
    out = pallas.fork_attention(query, key, value, spans, cached=cached, interpret=True, **options)
    return jax.block_until_ready(out)


def of_case(case, operands, **options):
    query, key, value, *pages = operands
    cached = case.cached_keys(*pages) if pages else None
    return attend(query, key, value, case.spans(), cached=cached, scale=case.scale, **options)


def expected(case, operands):
    """Eq. 3 in float32 on the rounded operands."""
    query, key, value, *pages = (x.astype(jnp.float32) for x in operands)
    cached = case.cached_keys(*pages) if pages else None
    return reference.fork_attention(query, key, value, case.spans(), cached=cached, scale=case.scale)


@pytest.mark.parametrize("name", AWKWARD)
def test_equals_the_reference(name):
    case = AWKWARD[name]
    operands = case.operands(jax.random.key(0))
    out = of_case(case, operands)
    assert out.dtype == jnp.bfloat16
    assert_close(out, expected(case, operands), OPERATOR["bfloat16"])


@pytest.mark.parametrize(("name", "splits"), [("block edges", 2), ("cached and not", 1), ("cached and not", 5)])
def test_split_keys_give_the_same_sums(name, splits):
    case = AWKWARD[name]
    operands = case.operands(jax.random.key(1))
    assert_close(of_case(case, operands, splits=splits), expected(case, operands), OPERATOR["bfloat16"])


def test_windows_and_spans_that_are_not_causal():
    rng = np.random.default_rng(2)
    rows = 192
    cuts = np.sort(rng.integers(0, rows + 1, (rows, 4)), axis=1).astype(np.int32)
    cuts[:5] = 0  # rows that see nothing
    cuts[64:128, :2] = 8, 150  # a tile whose rows share a span
    cuts[64:128, 2:] = 150, 151
    spans = KeySpans(*cuts.T)
    query, key, value = (jnp.asarray(rng.standard_normal((rows, heads, 64)), jnp.bfloat16) for heads in (2, 1, 1))
    out = attend(query, key, value, spans, scale=0.125)
    exact = reference.fork_attention(*(x.astype(jnp.float32) for x in (query, key, value)), spans, scale=0.125)
    assert_close(out, exact, OPERATOR["bfloat16"])
    assert not np.asarray(out[:5], np.float32).any()


@pytest.mark.parametrize("splits", [1, 3])
def test_padding_rows_among_rows_that_share_a_core_are_zero(splits):
    """They do not keep a tile from meeting its keys without a mask, whatever these hold."""
    case = Case([Request(300, [20])], heads=4, key_heads=1, head_dim=64)
    query, key, value = case.operands(jax.random.key(5))
    value = value.at[100, 0, 3].set(jnp.nan)
    out = np.asarray(of_case(case, (query, key, value), splits=splits), np.float32)
    assert not out[320:].any()
    assert np.isnan(out[300:320]).any(axis=(1, 2)).all()


# The interpreter multiplies with numpy, which warns of what is being tried here.
@pytest.mark.filterwarnings("ignore:.* encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_rows_outside_the_spans_have_no_influence(poison):
    case = Case([Request(70, [5, 66]), Request(40, [9])], heads=4, key_heads=1, head_dim=64)
    operands = case.operands(jax.random.key(3))
    pieces = trees.pieces(case.requests)
    mine = np.zeros(case.rows, bool)
    for piece in pieces:
        mine[piece.begin : piece.begin + piece.length] = piece.slot == 0
    sibling = pieces[3]
    mine[sibling.begin : sibling.begin + sibling.length] = False
    clean = of_case(case, operands)
    poisoned = (jnp.where(mine[:, None, None], x, jnp.asarray(poison, x.dtype)) for x in operands)
    found = of_case(case, poisoned)
    np.testing.assert_array_equal(np.asarray(found, np.float32)[mine], np.asarray(clean, np.float32)[mine])


def test_a_visible_nan_is_not_hidden():
    case = Case([Request(70, [5, 66])], heads=4, key_heads=1, head_dim=64)
    query, key, value = case.operands(jax.random.key(4))
    value = value.at[69, 0, 3].set(jnp.nan)  # last row of the state: its branches see it, no other state row does
    out = of_case(case, (query, key, value))
    broken = np.isnan(np.asarray(out, np.float32)).any(axis=(1, 2))
    np.testing.assert_array_equal(broken, (np.arange(case.rows) >= 69) & (np.arange(case.rows) < 70 + 5 + 66))


def test_a_nan_in_a_key_alone_stands_for_a_value_that_is_not_finite():
    """As `rotary_norm` leaves keys and values, which are not looked through again."""
    case = Case([Request(70, [5])], heads=4, key_heads=1, head_dim=64)
    query, key, value = case.operands(jax.random.key(4))
    moved = key.at[40, 0, 3].set(jnp.nan), value.at[40, 0, 3].set(0)
    looked_through = np.asarray(of_case(case, (query, key, value.at[40, 0, 3].set(jnp.inf))), np.float32)
    found = np.asarray(of_case(case, (query, *moved), finite=True), np.float32)
    assert np.isnan(looked_through[40:75]).all() and np.isfinite(looked_through[:40]).all()
    np.testing.assert_array_equal(found, looked_through)


# The interpreter multiplies with numpy, which warns of what is being tried here.
@pytest.mark.filterwarnings("ignore:.* encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize("poison", [np.nan, 1e30])
def test_rows_of_pages_beyond_the_spans_have_no_influence(poison):
    """Stale rows of a request's last page, another request's pages, and pages of nobody. Their values are finite."""
    case = AWKWARD["cached and not"]
    query, key, value, *pages = case.operands(jax.random.key(6))
    clean = np.asarray(of_case(case, (query, key, value, *pages)), np.float32)
    table, (begin, end) = case.table(), case.cached_spans()
    for request, rows in ((0, slice(0, 9)), (2, slice(14, 21))):  # a request's state rows
        hidden = np.ones(pages[0].shape[:2], bool)
        for row in range(begin[rows.start], end[rows.start]):
            hidden[table[row // 64], row % 64] = False
        assert hidden.sum() + case.cached[request] == hidden.size
        poisoned = [jnp.where(hidden[:, :, None, None], bad, x) for x, bad in zip(pages, (poison, 1e30), strict=True)]
        found = np.asarray(of_case(case, (query, key, value, *poisoned)), np.float32)
        np.testing.assert_array_equal(found[rows], clean[rows])


def test_a_nan_in_a_cached_key_is_seen():
    """It stands for a value that is not finite; the rows that see it are not finite."""
    case = AWKWARD["cached and not"]
    query, key, value, *pages = case.operands(jax.random.key(7))
    begin, end = case.cached_spans()
    row = 64 + 30  # of the first request
    pages[0] = pages[0].at[case.table()[row // 64], row % 64].set(jnp.nan)
    out = of_case(case, (query, key, value, *pages))
    broken = np.isnan(np.asarray(out, np.float32)).any(axis=(1, 2))
    np.testing.assert_array_equal(broken, (begin <= row) & (row < end))


def test_a_page_may_serve_two_requests():
    """What they have in common is kept once."""
    case = AWKWARD["cached and not"]
    query, key, value, *pages = case.operands(jax.random.key(8))
    cached = case.cached_keys(*pages)
    table = cached.table.copy()
    table[2:4] = table[:2]  # the third request's first pages
    shared = dataclasses.replace(cached, table=table)
    out = attend(query, key, value, case.spans(), cached=shared, scale=case.scale)
    exact = CachedKeys(*(x.astype(jnp.float32) for x in pages), table, cached.begin, cached.end)
    operands = (x.astype(jnp.float32) for x in (query, key, value))
    assert_close(out, reference.fork_attention(*operands, case.spans(), cached=exact, scale=case.scale), 1e-2)


@pytest.mark.parametrize(("dtype", "head_dim", "said"), [("float32", 64, "bfloat16"), ("bfloat16", 512, "512")])
def test_says_what_it_cannot_do(dtype, head_dim, said):
    case = Case([Request(10, [5])], heads=1, key_heads=1, head_dim=head_dim)
    with pytest.raises(NotImplementedError, match=said):
        of_case(case, case.operands(jax.random.key(0), jnp.dtype(dtype)))
