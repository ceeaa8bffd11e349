"""The norm of a row: every implementation against its formula in numpy, and what a row's bits depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.rms_norm import pallas
from pallas_kernels.rms_norm.api import rms_norm
from pallas_kernels.rms_norm.cases import AWKWARD, EPSILON, Case
from tests.pallas_kernels import ANYWHERE
from tests.tolerances import OPERATOR, assert_close


def formula(x, weight) -> np.ndarray:
    """In float64."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    return x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + EPSILON) * (1 + weight)


def bits(x) -> np.ndarray:
    return np.asarray(x).view(np.uint16)


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("dtype", OPERATOR)
def test_equals_the_formula(implementation, dtype):
    with jax.enable_x64(dtype == "float64"):
        x, weight = Case(7, 48).operands(jax.random.key(0), jnp.dtype(dtype))
        found = rms_norm(x, weight, epsilon=EPSILON, implementation=implementation)
        assert found.dtype == x.dtype
        assert_close(found, formula(x, weight), OPERATOR[dtype])


class TestKernel:
    """The Mosaic GPU kernel, interpreted on the CPU."""

    @staticmethod
    def run(x, weight):
        return pallas.rms_norm(x, weight, epsilon=EPSILON, batch_invariant=True, interpret=True)

    @pytest.mark.parametrize("name", AWKWARD)
    def test_equals_the_formula(self, name):
        operands = AWKWARD[name].operands(jax.random.key(1))
        assert_close(self.run(*operands), formula(*operands), OPERATOR["bfloat16"])

    def test_a_row_has_its_bits_wherever_it_stands(self):
        x, weight = AWKWARD["130 rows"].operands(jax.random.key(2))
        whole = bits(self.run(x, weight))
        np.testing.assert_array_equal(bits(self.run(x[::-1], weight)), whole[::-1])
        for some in (slice(0, 4), slice(3, 9), slice(61, 130)):
            np.testing.assert_array_equal(bits(self.run(x[some], weight)), whole[some])

    def test_a_row_that_is_not_finite_stays_alone(self):
        x, weight = AWKWARD["five rows"].operands(jax.random.key(3))
        clean, poisoned = (bits(self.run(rows, weight)) for rows in (x, x.at[2, 7].set(jnp.nan)))
        np.testing.assert_array_equal(clean[[0, 1, 3, 4]], poisoned[[0, 1, 3, 4]])

    def test_says_what_it_cannot_do(self):
        x, weight = AWKWARD["five rows"].operands(jax.random.key(0))
        with pytest.raises(NotImplementedError, match="bfloat16"):
            self.run(x.astype(jnp.float32), weight)
        with pytest.raises(NotImplementedError, match="not 3 of 512"):
            self.run(x[:3], weight)
        with pytest.raises(NotImplementedError, match="not 6 of 5376"):
            self.run(*Case(6, 5376).operands(jax.random.key(0)))
        with pytest.raises(NotImplementedError, match="batch-invariant"):
            pallas.rms_norm(x, weight, epsilon=EPSILON, interpret=True)
