"""What must not be seen, on the card: other requests, padding, slots and pages of others, and what outputs held before.

All of these hold NaN, and every bit of the rows that do not see them is as it is without.
"""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.fork_attention import cases as attention
from pallas_kernels.fork_attention.api import fork_attention
from pallas_kernels.gated_norm import cases as norm
from pallas_kernels.rms_norm import cases as row_norm
from pallas_kernels.rotary_norm import cases as rotary
from pallas_kernels.segmented_conv import cases as conv
from pallas_kernels.segmented_gdn import cases as gdn
from pallas_kernels.segmented_gdn import pallas as gdn_pallas
from pallas_kernels.segmented_gdn.api import segmented_gdn
from pallas_kernels.segmented_gdn.metadata import CHUNK_ROWS
from pallas_kernels.trees import Request
from tests.device.comparing import same_bits

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

REQUESTS = [Request(65, [17, 64]), Request(127, [63, 1]), Request(30, [65])]
TAIL = 17  # of growing rounds: rows behind which a state is left in the pool


def rows_of(requests, request: int) -> np.ndarray:
    """The stream rows of one request."""
    here = [piece for piece in trees.pieces(requests) if piece.slot == request]
    return np.concatenate([np.arange(piece.begin, piece.begin + piece.length) for piece in here])


def poisoned(x: jax.Array, mine: np.ndarray, poison: float = np.nan) -> jax.Array:
    """`poison` in all rows but `mine`."""
    kept = np.isin(np.arange(x.shape[0]), mine).reshape(-1, *(1,) * (x.ndim - 1))
    return jnp.where(kept, x, jnp.asarray(poison, x.dtype))


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_fork_attention_does_not_see_hidden_rows(poison):
    case = attention.AWKWARD["block edges"]
    operands, spans = case.operands(jax.random.key(1)), case.spans()
    mine = np.arange(case.requests[0].state)
    clean, found = (
        fork_attention(*some, spans, scale=case.scale, implementation="pallas")
        for some in (operands, [poisoned(x, mine, poison) for x in operands])
    )
    same_bits(found, clean, mine)


@pytest.mark.parametrize("request_number", [0, 1, 2])
def test_fork_attention_does_not_see_pages_of_others(request_number):
    """Keys of other requests, of a page's rows behind the last, and of padding are NaN; values are large, as they have
    to be finite, but where no entry of a request names the page."""
    case = attention.AWKWARD["cached and not"]
    query, key, value, *pages = case.operands(jax.random.key(6))
    mine = rows_of(case.requests, request_number)
    begin, end = (int(x[mine[0]]) for x in case.cached_spans())
    cached = np.arange(begin, end)
    rows = CHUNK_ROWS * case.table()[cached // CHUNK_ROWS] + cached % CHUNK_ROWS
    named = np.isin(np.arange(pages[0].shape[0]), case.table()[:-2])
    bad_pages = []
    for page, poison in zip(pages, (np.nan, 1e30), strict=True):
        flat = poisoned(page.reshape(-1, *page.shape[2:]), rows, poison)
        bad_pages.append(jnp.where(named[:, None, None, None], flat.reshape(page.shape), jnp.nan))
    assert not named.all() and rows.size == case.cached[request_number]
    call = jax.jit(attention.caller(case, "pallas"))
    found = call(poisoned(query, mine), poisoned(key, mine), poisoned(value, mine, 1e30), *bad_pages)
    same_bits(found, call(query, key, value, *pages), mine)


@pytest.mark.parametrize("tail", [None, TAIL])
@pytest.mark.parametrize("request_number", [0, 1, 2])
def test_segmented_conv_does_not_see_others(request_number, tail):
    """Nor their windows, nor the columns behind the channels."""
    case = conv.Case(REQUESTS, key_heads=1, value_heads=2, tail=tail)
    *rows, weights = operands = case.operands(jax.random.key(2))
    mine = rows_of(REQUESTS, request_number)
    bad = [poisoned(x, mine) for x in rows[:3]] + [poisoned(x, np.array([request_number])) for x in rows[3:]]
    bad[0] = bad[0].at[:, case.channels :].set(jnp.nan)
    assert len(bad) == 3 + (tail is not None) and bad[0].shape[1] > case.channels
    call = jax.jit(conv.caller(case, "pallas"))
    clean, found = call(*operands), call(*bad, weights)
    segments = case.segments()
    same_bits(found, clean, segments.chunk_row[mine])
    # Padding is zero whatever stands there in the stream, or the recurrence would see it.
    used = np.repeat(segments.chunk_length > 0, CHUNK_ROWS)
    padding = used & (np.asarray(segments.stream_rows()) < 0)
    for x in jax.tree.leaves(found):
        assert padding.any() and not np.asarray(x, np.float32)[padding].any()


@pytest.mark.parametrize("tail", [None, TAIL])
@pytest.mark.parametrize("request_number", [0, 1, 2])
def test_segmented_gdn_does_not_see_others(request_number, tail):
    """Nor unused chunks, nor what a slot held before its state is written there, nor others' slots of the pool."""
    case = gdn.Case(REQUESTS, key_heads=1, value_heads=2, tail=tail)
    segments, count = case.segments(), len(REQUESTS)
    operands, pool = (x := case.operands(jax.random.key(3)))[:5], [*x[5:]]
    mine = segments.chunk_row[rows_of(REQUESTS, request_number)]
    chunk_rows = np.concatenate([np.arange(CHUNK_ROWS) + CHUNK_ROWS * chunk for chunk in np.unique(mine // CHUNK_ROWS)])
    shape = (segments.slots, 2, gdn.HEAD_DIM, gdn.HEAD_DIM)

    @jax.jit
    def call(operands, states, pool):
        given = {"pool": pool[0] if pool else None, "scale": case.scale, "implementation": "pallas"}
        return segmented_gdn(*operands, states, segments, **given)

    clean = call(operands, jnp.zeros(shape, jnp.float32), pool)
    found = call(
        [poisoned(x, chunk_rows) for x in operands],
        jnp.full(shape, jnp.nan, jnp.float32),
        [poisoned(x, np.array([request_number])) for x in pool],
    )
    assert np.isnan(np.asarray(found[1])).any()
    same_bits(found[0], clean[0], mine)
    same_bits(found[1], clean[1], request_number)
    for one, other in zip(found[2:], clean[2:], strict=True):
        same_bits(one, other, np.array([request_number, count + request_number]))


@pytest.mark.parametrize("request_number", [0, 1, 2])
def test_gated_norm_does_not_see_others(request_number):
    """Nor padding and unused chunks, nor the columns beside the gates."""
    case = norm.Case(REQUESTS, heads=2, gate_begin=256)
    out, projected, weight = case.operands(jax.random.key(4))
    mine = rows_of(REQUESTS, request_number)
    gates = np.arange(projected.shape[1])[None] - case.gate_begin
    bad = jnp.where((gates >= 0) & (gates < 2 * norm.HEAD_DIM), poisoned(projected, mine), jnp.nan)
    call = jax.jit(norm.caller(case, "pallas"))
    found = call(poisoned(out, case.segments().chunk_row[mine]), bad, weight)
    same_bits(found, call(out, projected, weight), mine)


def test_rms_norm_does_not_see_other_rows():
    case = row_norm.AWKWARD["130 rows"]
    x, weight = case.operands(jax.random.key(5))
    mine = np.arange(1, case.rows, 3)
    call = jax.jit(row_norm.caller(case, "pallas"))
    same_bits(call(poisoned(x, mine), weight), call(x, weight), mine)


@pytest.mark.parametrize("keys", [False, True])
def test_rotary_norm_does_not_see_other_rows_and_heads(keys):
    case = rotary.Case(70, 2, 2, keys=keys)
    projected, weight, cos, sin = case.operands(jax.random.key(6))
    mine, chosen = np.arange(1, case.rows, 3), case.chosen
    begins = [begin for begin in (chosen["begin"], chosen["value_begin"]) if begin is not None]
    read = np.concatenate([np.arange(begin, begin + chosen["heads"] * case.dims) for begin in begins])
    bad = poisoned(poisoned(projected, mine).T, read).T
    assert read.size < projected.shape[1]
    call = jax.jit(rotary.caller(case, "pallas"))
    same_bits(call(bad, weight, poisoned(cos, mine), poisoned(sin, mine)), call(projected, weight, cos, sin), mine)


@pytest.mark.parametrize("tail", [None, TAIL])
def test_what_is_read_of_the_recurrence_was_written(tail, monkeypatch):
    """Whatever is in the memory of its outputs before, and in slots that are written before they are read."""
    case = gdn.Case(REQUESTS, key_heads=1, value_heads=2, tail=tail)
    segments, count = case.segments(), len(REQUESTS)
    operands = case.operands(jax.random.key(7))
    rows = np.asarray(segments.stream_rows()) >= 0
    results = []
    for poison in (0.0, np.nan):
        holding = functools.partial(jnp.full, fill_value=poison)
        made = types.SimpleNamespace(empty=lambda shape, dtype, holding=holding: holding(shape, dtype=dtype))
        monkeypatch.setattr(gdn_pallas, "lax", made)
        states = holding((segments.slots, 2, gdn.HEAD_DIM, gdn.HEAD_DIM), dtype=jnp.float32)
        pool = operands[5].at[count:].set(poison) if tail else None
        recurrence = functools.partial(gdn_pallas.segmented_gdn.__wrapped__, scale=case.scale)
        jitted = jax.jit(recurrence, donate_argnums=5)  # anew, for the memory is made while it is traced
        out, *slots = jitted(*operands[:5], states, jax.tree.map(jnp.asarray, segments), pool=pool)
        results.append((np.asarray(out)[rows], *map(np.asarray, slots)))
    same_bits(results[1], results[0])
    assert all(np.isfinite(np.asarray(x, np.float32)).all() for x in results[1])
