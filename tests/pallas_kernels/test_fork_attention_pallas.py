"""The Mosaic GPU kernel of fork attention, interpreted on the CPU: what it computes, and what it must not see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.fork_attention import pallas, reference
from pallas_kernels.fork_attention.cases import AWKWARD, Case
from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.fork_attention.tiles import ALIGNMENT, tile_table
from pallas_kernels.trees import Request
from tests.tolerances import OPERATOR, assert_close


def expected(query, key, value, spans, scale):
    """Eq. 3 in float32 on the rounded operands."""
    return reference.fork_attention(*(x.astype(jnp.float32) for x in (query, key, value)), spans, scale=scale)


@pytest.mark.parametrize("name", AWKWARD)
def test_equals_the_reference(name):
    case = AWKWARD[name]
    operands, spans = case.operands(jax.random.key(0)), case.spans()
    out = pallas.fork_attention(*operands, spans, scale=case.scale, interpret=True)
    assert out.dtype == jnp.bfloat16
    assert_close(out, expected(*operands, spans, case.scale), OPERATOR["bfloat16"])


@pytest.mark.parametrize("splits", [2, 3, 5])
def test_split_keys_give_the_same_sums(splits):
    case = AWKWARD["block edges"]
    operands, spans = case.operands(jax.random.key(1)), case.spans()
    out = pallas.fork_attention(*operands, spans, scale=case.scale, splits=splits, interpret=True)
    assert_close(out, expected(*operands, spans, case.scale), OPERATOR["bfloat16"])


def test_windows_and_spans_that_are_not_causal():
    rng = np.random.default_rng(2)
    rows = 192
    cuts = np.sort(rng.integers(0, rows + 1, (rows, 4)), axis=1).astype(np.int32)
    cuts[:5] = 0  # rows that see nothing
    cuts[64:128, :2] = 8, 150  # a tile whose rows share a span
    cuts[64:128, 2:] = 150, 151
    spans = KeySpans(*cuts.T)
    query, key, value = (jnp.asarray(rng.standard_normal((rows, heads, 64)), jnp.bfloat16) for heads in (2, 1, 1))
    out = pallas.fork_attention(query, key, value, spans, scale=0.125, interpret=True)
    assert_close(out, expected(query, key, value, spans, 0.125), OPERATOR["bfloat16"])
    assert not np.asarray(out[:5], np.float32).any()


# The interpreter multiplies with numpy, which warns of what is being tried here.
@pytest.mark.filterwarnings("ignore:.* encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_rows_outside_the_spans_have_no_influence(poison):
    case = Case([Request(70, [5, 66]), Request(40, [9])], heads=4, key_heads=1, head_dim=64)
    spans = case.spans()
    operands = case.operands(jax.random.key(3))
    pieces = trees.pieces(case.requests)
    mine = np.zeros(case.rows, bool)
    for piece in pieces:
        mine[piece.begin : piece.begin + piece.length] = piece.slot == 0
    sibling = pieces[3]
    mine[sibling.begin : sibling.begin + sibling.length] = False
    clean = pallas.fork_attention(*operands, spans, scale=case.scale, interpret=True)
    poisoned = (jnp.where(mine[:, None, None], x, jnp.asarray(poison, x.dtype)) for x in operands)
    found = pallas.fork_attention(*poisoned, spans, scale=case.scale, interpret=True)
    np.testing.assert_array_equal(np.asarray(found, np.float32)[mine], np.asarray(clean, np.float32)[mine])


def test_a_visible_nan_is_not_hidden():
    case = Case([Request(70, [5, 66])], heads=4, key_heads=1, head_dim=64)
    query, key, value = case.operands(jax.random.key(4))
    value = value.at[69, 0, 3].set(jnp.nan)  # last row of the state: its branches see it, no other state row does
    out = pallas.fork_attention(query, key, value, case.spans(), scale=case.scale, interpret=True)
    broken = np.isnan(np.asarray(out, np.float32)).any(axis=(1, 2))
    np.testing.assert_array_equal(broken, (np.arange(case.rows) >= 69) & (np.arange(case.rows) < 70 + 5 + 66))


@pytest.mark.parametrize("rows", [8, 32])
def test_tiles_meet_every_visible_key_once_and_hidden_ones_only_under_the_mask(rows):
    requests = [Request(300, [40, 90, 1]), Request(5, [200]), Request(130, [3, 64])]
    length = trees.stream_rows(requests)
    spans, block = trees.key_spans(requests, length), 64
    table = jax.tree.map(np.asarray, tile_table(spans, rows=rows, block=block))
    assert not (table.hull_begin % ALIGNMENT).any()
    for source, (begin, end) in enumerate(((spans.state_begin, spans.state_end), (spans.own_begin, spans.own_end))):
        for tile in range(length // rows):
            here = slice(tile * rows, (tile + 1) * rows)
            visible = [set(range(b, e)) for b, e in zip(begin[here], end[here], strict=True)]
            hull = int(table.hull_begin[tile, source])
            covered = range(hull, hull + block * int(table.blocks[tile, source]))
            assert set().union(*visible) <= set(covered)
            core_begin, core_end = int(table.core_begin[tile, source]), int(table.core_end[tile, source])
            assert 0 <= core_begin <= core_end <= table.blocks[tile, source]
            core = set(range(hull + block * core_begin, hull + block * core_end))
            assert all(core <= seen for seen in visible)


def test_long_states_are_met_without_a_mask():
    """What a fork saves: every question's tile reads the state's keys as dense blocks."""
    requests = [Request(640, [64, 64])]
    spans = trees.key_spans(requests, trees.stream_rows(requests))
    table = tile_table(spans, rows=32, block=64)
    np.testing.assert_array_equal(table.core_end[20:, 0] - table.core_begin[20:, 0], 10)


@pytest.mark.parametrize(("dtype", "head_dim", "said"), [("float32", 64, "bfloat16"), ("bfloat16", 512, "512")])
def test_says_what_it_cannot_do(dtype, head_dim, said):
    case = Case([Request(10, [5])], heads=1, key_heads=1, head_dim=head_dim)
    with pytest.raises(NotImplementedError, match=said):
        pallas.fork_attention(*case.operands(jax.random.key(0), jnp.dtype(dtype)), case.spans(), scale=1.0)
