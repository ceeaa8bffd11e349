"""The Mosaic GPU kernels on the card: every case against the same op in float32 or float64, ten times the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.dispatch import device_kind, is_hopper
from pallas_kernels.fork_attention import cases as attention
from pallas_kernels.fork_attention.api import fork_attention
from pallas_kernels.gated_norm import cases as norm
from pallas_kernels.rms_norm import cases as row_norm
from pallas_kernels.segmented_conv import cases as conv
from pallas_kernels.segmented_gdn import cases as gdn
from pallas_kernels.trees import Request
from tests.tolerances import OPERATOR, assert_close

pytestmark = pytest.mark.gpu

# Root mean square of the error over that of the value: rounding of operands and outputs to bfloat16.
RELATIVE_RMS = 5e-3
# Rows around the edges of tiles and chunks, and rounds of many requests.
LENGTHS = [1, 17, 63, 64, 65, 127]
GDN_CASES = {
    "lengths": gdn.Case([Request(n, LENGTHS) for n in LENGTHS], key_heads=2, value_heads=4),
    "many requests": gdn.Case([Request(5, [3]) for _ in range(64)], key_heads=1, value_heads=1),
    "long": gdn.Case([Request(1500, [90, 90])], key_heads=2, value_heads=2),
    "growing": gdn.Case([Request(n + 65, LENGTHS) for n in LENGTHS], key_heads=2, value_heads=4, tail=65),
}


@pytest.fixture(autouse=True)
def hopper():
    if not is_hopper():
        pytest.fail(f"these tests were asked for, and this is {device_kind()}")


def rms(found, expected) -> float:
    found, expected = (np.asarray(x, np.float64) for x in (found, expected))
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def ten_times(function, *arguments, defined=lambda result: result):
    """The `defined` part of a result, after it has come out ten times with the same bits."""
    compiled = jax.jit(function)
    first = defined(compiled(*arguments))
    for _ in range(9):
        again = defined(compiled(*arguments))
        for one, other in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))
    return first


@pytest.mark.parametrize("name", {**attention.AWKWARD, **attention.CASES})
def test_fork_attention(name):
    case = {**attention.AWKWARD, **attention.CASES}[name]
    operands = case.operands(jax.random.key(0))
    found = ten_times(attention.caller(case, "pallas"), *operands)
    expected = jax.jit(attention.caller(case, "xla"))(*(x.astype(jnp.float32) for x in operands))
    assert rms(found, expected) < RELATIVE_RMS
    assert_close(found, expected, OPERATOR["bfloat16"])


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_fork_attention_does_not_see_hidden_rows(poison):
    case = attention.AWKWARD["block edges"]
    operands, spans = case.operands(jax.random.key(1)), case.spans()
    mine = np.arange(case.rows) < case.requests[0].state
    poisoned = [jnp.where(mine[:, None, None], x, jnp.asarray(poison, x.dtype)) for x in operands]
    clean, found = (fork_attention(*x, spans, scale=case.scale, implementation="pallas") for x in (operands, poisoned))
    np.testing.assert_array_equal(np.asarray(clean, np.float32)[mine], np.asarray(found, np.float32)[mine])


@pytest.mark.parametrize("name", {**conv.AWKWARD, **conv.CASES})
def test_segmented_conv(name):
    case = {**conv.AWKWARD, **conv.CASES}[name]
    *rows, weights = case.operands(jax.random.key(2))
    used = 64 * int(np.sum(case.segments().chunk_length > 0))

    def defined(result):
        return jax.tree.map(lambda x: x[:used], result)

    found = ten_times(conv.caller(case, "pallas"), *rows, weights, defined=defined)
    expected = defined(jax.jit(conv.caller(case, "xla"))(*(x.astype(jnp.float32) for x in rows), weights))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(one, other, OPERATOR["bfloat16"])


@pytest.mark.parametrize("name", GDN_CASES)
def test_segmented_gdn(name):
    case = GDN_CASES[name]
    operands = case.operands(jax.random.key(3))
    rows = np.asarray(case.segments().stream_rows()) >= 0
    found, *slots = ten_times(
        gdn.caller(case, "pallas"), *operands, defined=lambda result: (result[0][rows], *result[1:])
    )
    with jax.enable_x64(True):
        exact = [x.astype(jnp.float64) for x in operands]
        expected, *expected_slots = jax.jit(gdn.caller(case, "reference"))(*exact)
    assert rms(found, expected[rows]) < RELATIVE_RMS
    for one, other in zip(slots, expected_slots, strict=True):
        assert rms(one, other) < RELATIVE_RMS


@pytest.mark.parametrize("name", {**norm.AWKWARD, **norm.CASES})
def test_gated_norm(name):
    case = {**norm.AWKWARD, **norm.CASES}[name]
    out, projected, weight = case.operands(jax.random.key(4))
    last = trees.pieces(case.requests)[-1]
    used = slice(last.begin + last.length)
    found = ten_times(norm.caller(case, "pallas"), out, projected, weight, defined=lambda result: result[used])
    expected = jax.jit(norm.caller(case, "xla"))(out.astype(jnp.float32), projected.astype(jnp.float32), weight)
    assert_close(found, expected[used], OPERATOR["bfloat16"])


@pytest.mark.parametrize("name", {**row_norm.AWKWARD, **row_norm.CASES})
def test_rms_norm(name):
    case = {**row_norm.AWKWARD, **row_norm.CASES}[name]
    x, weight = case.operands(jax.random.key(5))
    call = row_norm.caller(case, "pallas")
    found = ten_times(call, x, weight)
    expected = jax.jit(row_norm.caller(case, "xla"))(x.astype(jnp.float32), weight)
    assert_close(found, expected, OPERATOR["bfloat16"])
    last = jax.jit(call)(x[-4:], weight)
    np.testing.assert_array_equal(np.asarray(last, np.float32), np.asarray(found[-4:], np.float32))
