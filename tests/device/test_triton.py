"""The Triton kernels on the card: every case against the same op in float64, ten times the same bits."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.fork_attention import cases as attention
from pallas_kernels.fork_attention.api import fork_attention
from pallas_kernels.segmented_gdn import cases as gdn
from tests.device.comparing import RELATIVE_RMS, check, exact, same_bits, ten_times
from tests.device.test_kernels import GDN_CASES
from tests.tolerances import relative_rms

pytestmark = pytest.mark.gpu

FLOAT32 = 1e-5  # relative root mean square: three passes of TF32 leave out what is below 2^-22


@pytest.fixture(autouse=True)
def jax_triton():
    for package in ("jax_triton", "triton"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the Triton kernels are not tested: the package {package} is not installed")


@pytest.mark.parametrize("name", {**attention.AWKWARD, **attention.CASES})
def test_fork_attention(name):
    case = {**attention.AWKWARD, **attention.CASES}[name]
    operands = case.operands(jax.random.key(0))
    found = ten_times(attention.caller(case, "triton"), *operands)
    check(found, exact(attention.caller(case, "xla"), *operands))


@pytest.mark.parametrize("name", ["block edges", "group of six", "head of 256", "cached and not", "cached reads"])
def test_fork_attention_in_float32(name):
    case = attention.AWKWARD[name]
    operands = case.operands(jax.random.key(0), jnp.float32)
    found = ten_times(attention.caller(case, "triton"), *operands)
    assert relative_rms(found, exact(attention.caller(case, "xla"), *operands)) < FLOAT32


@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e38])
def test_fork_attention_does_not_see_hidden_rows(poison):
    case = attention.AWKWARD["block edges"]
    operands, spans = case.operands(jax.random.key(1)), case.spans()
    mine = np.arange(case.rows) < case.requests[0].state
    poisoned = [jnp.where(mine[:, None, None], x, jnp.asarray(poison, x.dtype)) for x in operands]
    clean, found = (fork_attention(*x, spans, scale=case.scale, implementation="triton") for x in (operands, poisoned))
    same_bits(found, clean, mine)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", GDN_CASES)
def test_segmented_gdn(name, dtype):
    case = GDN_CASES[name]
    operands = case.operands(jax.random.key(3), jnp.dtype(dtype))
    rows = np.asarray(case.segments().stream_rows()) >= 0

    def defined(result):
        return result[0][rows], *result[1:]

    found = ten_times(gdn.caller(case, "triton"), *operands, defined=defined)
    expected = exact(gdn.caller(case, "reference"), *operands, defined=defined)
    for one, other in zip(found, expected, strict=True):
        assert relative_rms(one, other) < (RELATIVE_RMS if dtype == "bfloat16" else FLOAT32)
