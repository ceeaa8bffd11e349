"""The Triton kernel of fork attention, interpreted on the CPU: what it computes, and what it must not see."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.fork_attention import reference, triton
from pallas_kernels.fork_attention.cases import AWKWARD, Case
from pallas_kernels.fork_attention.metadata import KeySpans
from pallas_kernels.trees import Request
from tests.tolerances import OPERATOR, assert_close

if sys.platform == "linux":
    from tests.pallas_kernels.triton_interpreter import interpreted  # noqa: F401
else:
    pytest.skip("Triton is there for Linux only", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("interpreted")


def found(case: Case, operands, *, splits: int | None = None):
    query, key, value, *pages = operands
    cached = case.cached_keys(*pages) if pages else None
    options = {"cached": cached, "scale": case.scale, "splits": splits}
    return triton.fork_attention(query, key, value, case.spans(), **options)


def expected(case: Case, operands):
    """Eq. 3 in float32 on the rounded operands."""
    query, key, value, *pages = (x.astype(jnp.float32) for x in operands)
    cached = case.cached_keys(*pages) if pages else None
    return reference.fork_attention(query, key, value, case.spans(), cached=cached, scale=case.scale)


ROUNDED = ["one row", "group of six", "65 cached", "head of 256"]


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float32") for name in AWKWARD), *((name, "bfloat16") for name in ROUNDED)]
)
def test_equals_the_reference(name, dtype):
    case = AWKWARD[name]
    operands = case.operands(jax.random.key(0), jnp.dtype(dtype))
    out = found(case, operands)
    assert out.dtype == dtype
    assert_close(out, expected(case, operands), OPERATOR[dtype])


@pytest.mark.parametrize(("name", "splits"), [("block edges", 2), ("block edges", 5), ("cached and not", 3)])
def test_split_keys_give_the_same_sums(name, splits):
    case = AWKWARD[name]
    operands = case.operands(jax.random.key(1), jnp.float32)
    assert_close(found(case, operands, splits=splits), expected(case, operands), OPERATOR["float32"])


def test_windows_and_spans_that_are_not_causal():
    rng = np.random.default_rng(2)
    rows = 189  # and as many keys: the last of them fill no strip
    cuts = np.sort(rng.integers(0, rows + 1, (rows, 4)), axis=1).astype(np.int32)
    cuts[:5] = 0  # rows that see nothing
    cuts[64:128, :2] = 8, 150  # a tile whose rows share a span
    cuts[64:128, 2:] = 150, 151
    spans = KeySpans(*cuts.T)
    operands = [jnp.asarray(rng.standard_normal((rows, heads, 64)), jnp.float32) for heads in (2, 1, 1)]
    out = triton.fork_attention(*operands, spans, scale=0.125)
    assert_close(out, reference.fork_attention(*operands, spans, scale=0.125), OPERATOR["float32"])
    assert not np.asarray(out[:5]).any()


# The interpreter takes maxima with numpy, which warns of what is being tried here.
@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e38])
def test_rows_outside_the_spans_have_no_influence(poison, dtype):
    """Rows of one request and one branch are poisoned, and pages of the request where no span reaches."""
    case = Case([Request(70, [5, 66]), Request(40, [9])], cached=[70, 65], heads=4, key_heads=1, head_dim=64)
    query, key, value, *pages = case.operands(jax.random.key(3), jnp.dtype(dtype))
    pieces = trees.pieces(case.requests)
    mine = np.zeros(case.rows, bool)
    for piece in pieces:
        mine[piece.begin : piece.begin + piece.length] = piece.slot == 0
    sibling = pieces[3]
    mine[sibling.begin : sibling.begin + sibling.length] = False
    seen = np.zeros(pages[0].shape[:2], bool)
    for row in range(70):
        seen[case.table()[row // 64], row % 64] = True

    def poisoned(x, mine, by=poison):
        return jnp.where(mine.reshape(*mine.shape, *(1,) * (x.ndim - mine.ndim)), x, jnp.asarray(by, x.dtype))

    clean = found(case, (query, key, value, *pages))
    finite = poison if np.isfinite(poison) else 1e38  # values in pages are
    operands = (*(poisoned(x, mine) for x in (query, key, value)), poisoned(pages[0], seen))
    out = found(case, (*operands, poisoned(pages[1], seen, finite)))
    np.testing.assert_array_equal(np.asarray(out, np.float32)[mine], np.asarray(clean, np.float32)[mine])


def test_a_visible_nan_is_not_hidden():
    case = Case([Request(70, [5, 66])], heads=4, key_heads=1, head_dim=64)
    query, key, value = case.operands(jax.random.key(4))
    value = value.at[69, 0, 3].set(jnp.nan)  # last row of the state: its branches see it, no other state row does
    broken = np.isnan(np.asarray(found(case, (query, key, value)), np.float32)).any(axis=(1, 2))
    np.testing.assert_array_equal(broken, (np.arange(case.rows) >= 69) & (np.arange(case.rows) < 70 + 5 + 66))


@pytest.mark.parametrize(("dtype", "head_dim"), [("float16", 64), ("bfloat16", 512)])
def test_says_what_it_cannot_do(dtype, head_dim):
    case = Case([Request(10, [5])], heads=1, key_heads=1, head_dim=head_dim)
    with pytest.raises(NotImplementedError, match=f"no tiles for {dtype}, .* of head size {head_dim}"):
        found(case, case.operands(jax.random.key(0), jnp.dtype(dtype)))
