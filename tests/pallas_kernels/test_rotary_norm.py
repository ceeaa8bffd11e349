"""Norm and rotation: every implementation against its formula in numpy, and values that are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rotary_norm import pallas
from pallas_kernels.rotary_norm.api import rotary_norm
from pallas_kernels.rotary_norm.cases import AWKWARD, EPSILON, Case, caller
from tests.pallas_kernels import ANYWHERE
from tests.tolerances import OPERATOR, assert_close


def formula(case: Case, projected, weight, cos, sin) -> tuple[np.ndarray, ...]:
    """In float64, by complex numbers."""
    projected, weight, cos, sin = (np.asarray(x, np.float64) for x in (projected, weight, cos, sin))
    heads, begin, value_begin = (case.chosen[name] for name in ("heads", "begin", "value_begin"))

    def of_heads(begin: int) -> np.ndarray:
        return projected[:, begin : begin + heads * case.dims].reshape(-1, heads, case.dims)

    x = of_heads(begin)
    normed = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPSILON) * (1 + weight)
    half = case.frequencies
    turned = (normed[..., :half] + 1j * normed[..., half : 2 * half]) * (cos + 1j * sin)[:, None]
    found = np.concatenate([turned.real, turned.imag, normed[..., 2 * half :]], axis=-1)
    return (found,) if value_begin is None else (found, of_heads(value_begin))


def bits(x) -> np.ndarray:
    return np.asarray(x).view(np.uint16)


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("dtype", OPERATOR)
@pytest.mark.parametrize("keys", [False, True])
def test_equals_the_formula(implementation, dtype, keys):
    case = Case(5, 4, 2, keys=keys, dims=16, frequencies=3)
    with jax.enable_x64(dtype == "float64"):
        operands = case.operands(jax.random.key(0), jnp.dtype(dtype))
        found, expected = caller(case, implementation)(*operands), formula(case, *operands)
        assert len(found) == len(expected) == 1 + keys
        for one, other in zip(found, expected, strict=True):
            assert one.dtype == operands[0].dtype
            assert_close(one, other, OPERATOR[dtype])


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_a_value_that_is_not_finite_moves_to_its_key(implementation):
    case = Case(4, 2, 2, keys=True, dims=16, frequencies=3)
    projected, *rest = case.operands(jax.random.key(1), jnp.float32)
    begin = case.chosen["value_begin"]
    broken = projected.at[1, begin + 16 + 5].set(jnp.inf).at[2, begin + 3].set(jnp.nan)
    key, value = caller(case, implementation)(broken, *rest)
    clean_key, clean_value = caller(case, implementation)(projected, *rest)
    places = np.array([[1, 1, 5], [2, 0, 3]]).T
    hit = np.zeros(key.shape, bool)
    hit[tuple(places)] = True
    np.testing.assert_array_equal(np.isnan(key), hit)
    np.testing.assert_array_equal(np.where(hit, 0, value), np.where(hit, 0, clean_value))
    np.testing.assert_array_equal(np.where(hit, 0, key), np.where(hit, 0, clean_key))
    assert not np.any(value[tuple(places)])


def test_refuses_what_is_not_there():
    case = Case(5, 4, 2, dims=16, frequencies=3)
    projected, weight, cos, sin = case.operands(jax.random.key(0))
    with pytest.raises(ValueError, match="rows of 192 columns, heads up to column 208"):
        rotary_norm(projected, weight, cos, sin, heads=4, begin=144, epsilon=EPSILON)
    with pytest.raises(ValueError, match="9 frequencies for heads of 16"):
        wide = jnp.ones((5, 9), jnp.float32)
        rotary_norm(projected, weight, wide, wide, heads=4, begin=0, epsilon=EPSILON)
    for columns in ({"heads": 0, "begin": 0}, {"heads": 4, "begin": -1}, {"heads": 4, "begin": 0, "value_begin": -8}):
        with pytest.raises(ValueError, match=f"{columns['heads']} heads from column {columns['begin']}"):
            rotary_norm(projected, weight, cos, sin, epsilon=EPSILON, **columns)


class TestKernel:
    """The Mosaic GPU kernel, interpreted on the CPU."""

    @staticmethod
    def run(case, operands):
        return pallas.rotary_norm(*operands, **case.chosen, epsilon=EPSILON, interpret=True)

    @pytest.mark.parametrize("name", AWKWARD)
    def test_equals_the_formula(self, name):
        case = AWKWARD[name]
        operands = case.operands(jax.random.key(2))
        for one, other in zip(self.run(case, operands), formula(case, *operands), strict=True):
            assert_close(one, other, OPERATOR["bfloat16"])

    def test_a_row_has_its_bits_wherever_it_stands(self):
        case = AWKWARD["70 rows"]
        projected, weight, cos, sin = case.operands(jax.random.key(3))
        whole = self.run(case, (projected, weight, cos, sin))
        for some in (slice(0, 32), slice(5, 40), slice(69, None, -1)):
            part = self.run(case, (projected[some], weight, cos[some], sin[some]))
            for one, other in zip(part, whole, strict=True):
                np.testing.assert_array_equal(bits(one), bits(other)[some])

    def test_a_value_that_is_not_finite_moves_to_its_key(self):
        case = AWKWARD["one block"]
        projected, *rest = case.operands(jax.random.key(4))
        begin = case.chosen["value_begin"]
        for broken in (jnp.inf, -jnp.inf, jnp.nan):
            key, value = self.run(case, (projected.at[7, begin + 40].set(broken), *rest))
            assert np.argwhere(np.isnan(np.asarray(key, np.float32))).tolist() == [[7, 0, 40]]
            assert np.all(np.isfinite(np.asarray(value, np.float32))) and value[7, 0, 40] == 0

    def test_says_what_it_cannot_do(self):
        case = AWKWARD["one block"]
        projected, weight, cos, sin = case.operands(jax.random.key(0))
        with pytest.raises(NotImplementedError, match="bfloat16"):
            self.run(case, (projected.astype(jnp.float32), weight, cos, sin))
        with pytest.raises(NotImplementedError, match="not 32, 16 and 64"):
            self.run(case, (projected, weight, cos[:, :16], sin[:, :16]))
        with pytest.raises(NotImplementedError, match="multiples of 8"):
            pallas.rotary_norm(projected, weight, cos, sin, heads=1, begin=4, epsilon=EPSILON)
