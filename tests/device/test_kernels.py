"""The Mosaic GPU kernels on the card: every case against the same op in float64, ten times the same bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.fork_attention import cases as attention
from pallas_kernels.gated_norm import cases as norm
from pallas_kernels.rms_norm import cases as row_norm
from pallas_kernels.rotary_norm import cases as rotary
from pallas_kernels.segmented_conv import cases as conv
from pallas_kernels.segmented_gdn import cases as gdn
from pallas_kernels.trees import Request
from tests.device.comparing import RELATIVE_RMS, check, exact, same_bits, ten_times
from tests.tolerances import relative_rms

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

# Rows around the edges of tiles and chunks, and rounds of many requests.
LENGTHS = [1, 17, 63, 64, 65, 127]
MANY_REQUESTS = [Request(3, [2]) for _ in range(64)]
CONV_CASES = {
    **conv.AWKWARD,
    **conv.CASES,
    "lengths": conv.Case([Request(n, LENGTHS) for n in LENGTHS], key_heads=2, value_heads=4),
    "many requests": conv.Case(MANY_REQUESTS, key_heads=1, value_heads=1),
}
GDN_CASES = {
    "lengths": gdn.Case([Request(n, LENGTHS) for n in LENGTHS], key_heads=2, value_heads=4),
    "many requests": gdn.Case([Request(5, [3]) for _ in range(64)], key_heads=1, value_heads=1),
    "long": gdn.Case([Request(1500, [90, 90])], key_heads=2, value_heads=2),
    "growing": gdn.Case([Request(n + 65, LENGTHS) for n in LENGTHS], key_heads=2, value_heads=4, tail=65),
}
NORM_CASES = {
    **norm.AWKWARD,
    **norm.CASES,
    "lengths": norm.Case([Request(n, LENGTHS) for n in LENGTHS], heads=2, gate_begin=128),
    "many requests": norm.Case(MANY_REQUESTS, heads=1, gate_begin=0),
}
ROW_NORM_CASES = {
    **row_norm.AWKWARD,
    **row_norm.CASES,
    **{f"{rows} rows": row_norm.Case(rows, 512) for rows in LENGTHS if rows >= 4},
}
ROTARY_CASES = {
    **rotary.AWKWARD,
    **rotary.CASES,
    **{f"{rows} rows": rotary.Case(rows, 2, 1, keys=True) for rows in LENGTHS if rows >= 32},
}


@pytest.mark.parametrize("name", {**attention.AWKWARD, **attention.CASES})
def test_fork_attention(name):
    case = {**attention.AWKWARD, **attention.CASES}[name]
    operands = case.operands(jax.random.key(0))
    found = ten_times(attention.caller(case, "pallas"), *operands)
    check(found, exact(attention.caller(case, "xla"), *operands))


@pytest.mark.parametrize("name", CONV_CASES)
def test_segmented_conv(name):
    case = CONV_CASES[name]
    operands = case.operands(jax.random.key(2))
    used = 64 * int(np.sum(case.segments().chunk_length > 0))

    def defined(result):
        return jax.tree.map(lambda x: x[:used], result)

    found = ten_times(conv.caller(case, "pallas"), *operands, defined=defined)
    check(found, exact(conv.caller(case, "xla"), *operands, defined=defined))


@pytest.mark.parametrize("name", {**GDN_CASES, **gdn.CASES})
def test_segmented_gdn(name):
    """Token by token in float64."""
    case = {**GDN_CASES, **gdn.CASES}[name]
    operands = case.operands(jax.random.key(3))
    rows = np.asarray(case.segments().stream_rows()) >= 0

    def defined(result):
        return result[0][rows], *result[1:]

    found = ten_times(gdn.caller(case, "pallas"), *operands, defined=defined)
    expected = exact(gdn.caller(case, "reference"), *operands, defined=defined)
    for one, other in zip(found, expected, strict=True):
        assert relative_rms(one, other) < RELATIVE_RMS


@pytest.mark.parametrize("name", NORM_CASES)
def test_gated_norm(name):
    case = NORM_CASES[name]
    operands = case.operands(jax.random.key(4))
    last = trees.pieces(case.requests)[-1]

    def defined(result):
        return result[: last.begin + last.length]

    found = ten_times(norm.caller(case, "pallas"), *operands, defined=defined)
    check(found, exact(norm.caller(case, "xla"), *operands, defined=defined))


@pytest.mark.parametrize("name", ROW_NORM_CASES)
def test_rms_norm(name):
    x, weight = ROW_NORM_CASES[name].operands(jax.random.key(5))
    call = row_norm.caller(ROW_NORM_CASES[name], "pallas")
    found = ten_times(call, x, weight)
    check(found, exact(row_norm.caller(ROW_NORM_CASES[name], "xla"), x, weight))
    same_bits(jax.jit(call)(x[-4:], weight), found[-4:])


@pytest.mark.parametrize("name", ROTARY_CASES)
def test_rotary_norm(name):
    case = ROTARY_CASES[name]
    projected, *rest = case.operands(jax.random.key(6))
    if case.keys:
        projected = projected.at[3, case.chosen["value_begin"] + 5].set(jnp.nan)
    found = ten_times(rotary.caller(case, "pallas"), projected, *rest)
    expected = exact(rotary.caller(case, "xla"), projected, *rest)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(np.asarray(one, np.float32)), np.isnan(other))
    check(*(jax.tree.map(lambda x: np.nan_to_num(np.asarray(x, np.float64)), result) for result in (found, expected)))
