"""Rounds of no request on the card, in the executable of the rounds of their capacity."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.fork_attention import cases as attention
from pallas_kernels.fork_attention.api import CachedKeys, KeySpans, fork_attention
from pallas_kernels.gated_norm import cases as norm
from pallas_kernels.gated_norm.api import gated_norm
from pallas_kernels.matmul import cases as products
from pallas_kernels.rms_norm import cases as row_norm
from pallas_kernels.rotary_norm import cases as rotary
from pallas_kernels.segmented_conv import cases as conv
from pallas_kernels.segmented_conv.api import segmented_conv
from pallas_kernels.segmented_gdn import cases as gdn
from pallas_kernels.segmented_gdn.api import Segments, segmented_gdn
from pallas_kernels.trees import Request
from tests.device.comparing import same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

REQUESTS = [Request(100, [3, 64]), Request(40, [17])]


def without_requests(segments: Segments) -> Segments:
    """As many unused segments and chunks, so that it is the same executable's."""
    return trees.cut(
        [],
        segments.chunk_row.size,
        slots=segments.slots,
        levels=segments.levels,
        parts=segments.parts,
        chunks=segments.chunk_length.size,
        spare=segments.length.size,
    )


def nan(operands):
    return jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), operands)


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("name", ["block edges", "head of 256", "cached and not", "reads of long"])
def test_attention_of_rows_that_see_nothing_is_zero(name, finite):
    case = attention.AWKWARD[name]
    query, key, value, *pages = operands = case.operands(jax.random.key(0))

    @jax.jit
    def call(spans: KeySpans, cached: CachedKeys | None, query, key, value):
        options = {"scale": case.scale, "finite": finite, "implementation": "pallas"}
        return fork_attention(query, key, value, spans, cached=cached, **options)

    spans, cached = case.spans(), case.cached_keys(*pages) if pages else None
    before = call(spans, cached, query, key, value)
    no_spans, nothing_cached = jax.tree.map(np.zeros_like, (spans, cached))
    if pages:
        nothing_cached = CachedKeys(*nan(pages), *(nothing_cached.table, nothing_cached.begin, nothing_cached.end))
    found = call(no_spans, nothing_cached, nan(query), nan(key), value if finite else nan(value))
    assert not np.asarray(found, np.float32).any()
    same_bits(call(spans, cached, query, key, value), before)
    assert call._cache_size() == 1 and np.asarray(before, np.float32).any()
    assert attention.caller(case, "pallas")(*operands).shape == before.shape


@pytest.mark.parametrize("tail", [None, 17])
def test_convolution(tail):
    """Gates of no row are zero; other outputs are not written."""
    case = conv.Case(REQUESTS, key_heads=1, value_heads=2, tail=tail)
    *rows, weights = case.operands(jax.random.key(1))
    options = {"key_heads": 1, "key_dim": conv.HEAD_DIM, "implementation": "pallas"}

    @jax.jit
    def call(segments: Segments, before, rows):
        return segmented_conv(*rows[:3], weights, before, segments, windows=rows[3] if tail else None, **options)

    segments, before = case.segments(), case.predecessors()
    first = call(segments, before, rows)
    found = call(without_requests(segments), np.full_like(before, -1), nan(rows))
    for gates in (found.log_decay, found.write_strength):
        assert not np.asarray(gates).any()
    same_bits(call(segments, before, rows), first, segments.chunk_row[: rows_used()])
    assert call._cache_size() == 1


def rows_used() -> int:
    last = trees.pieces(REQUESTS)[-1]
    return last.begin + last.length


@pytest.mark.parametrize("tail", [None, 17])
def test_recurrence_leaves_every_slot_as_it_is(tail):
    case = gdn.Case(REQUESTS, key_heads=1, value_heads=2, tail=tail)
    operands, pool = (x := case.operands(jax.random.key(2)))[:5], [*x[5:]]
    segments = case.segments()
    states = 1.0 + jnp.arange(segments.slots * 2 * gdn.HEAD_DIM**2, dtype=jnp.float32)
    states = states.reshape(segments.slots, 2, gdn.HEAD_DIM, gdn.HEAD_DIM)

    @jax.jit
    def call(segments: Segments, operands, states, pool):
        given = {"pool": pool[0] if pool else None, "scale": case.scale, "implementation": "pallas"}
        return segmented_gdn(*operands, states, segments, **given)

    out, *slots = call(segments, operands, states, pool)
    _, *kept = call(without_requests(segments), nan(operands), states, pool)
    same_bits(kept, [states, *pool])
    again, *slots_again = call(segments, operands, states, pool)
    rows = segments.chunk_row[: rows_used()]
    same_bits(again, out, rows)
    same_bits(slots_again, slots)
    assert call._cache_size() == 1 and not np.array_equal(np.asarray(slots[0]), np.asarray(states))


def test_gated_norm():
    """Nothing of its result is of a row; the round behind it is as it was before."""
    case = norm.Case(REQUESTS, heads=2, gate_begin=128)
    out, projected, weight = case.operands(jax.random.key(3))

    @jax.jit
    def call(segments: Segments, out, projected):
        options = {"gate_begin": case.gate_begin, "epsilon": norm.EPSILON, "implementation": "pallas"}
        return gated_norm(out, projected, weight, segments, **options)

    segments = case.segments()
    first = call(segments, out, projected)
    assert call(without_requests(segments), nan(out), nan(projected)).shape == first.shape
    same_bits(call(segments, out, projected), first, slice(rows_used()))
    assert call._cache_size() == 1 and np.isfinite(np.asarray(first[: rows_used()], np.float32)).all()


@pytest.mark.parametrize(
    ("cases", "case"),
    [
        (row_norm, row_norm.AWKWARD["130 rows"]),
        (rotary, rotary.AWKWARD["70 rows"]),
        (rotary, rotary.AWKWARD["33 rows"]),
        (products, products.AWKWARD["residual"]),
        (products, products.AWKWARD["swiglu"]),
    ],
)
def test_ops_that_know_rows_alone_make_zeros_of_zeros(cases, case):
    """As the rows of padding are where there are no others."""
    rows, *others = case.operands(jax.random.key(4))
    if getattr(case, "residual", False):
        others[-1] = jnp.zeros_like(others[-1])
    for x in jax.tree.leaves(jax.jit(cases.caller(case, "pallas"))(jnp.zeros_like(rows), *others)):
        assert not np.asarray(x, np.float32).any()
