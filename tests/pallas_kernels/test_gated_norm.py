"""The gated norm: every implementation against its formula in numpy, and the rows it may touch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.gated_norm import pallas
from pallas_kernels.gated_norm.api import gated_norm
from pallas_kernels.gated_norm.cases import AWKWARD, EPSILON, Case
from tests.pallas_kernels import ANYWHERE
from tests.tolerances import OPERATOR, assert_close


def formula(case: Case, out, projected, weight) -> np.ndarray:
    """Of the rows of the stream, in float64."""
    out, projected, weight = (np.asarray(x, np.float64) for x in (out, projected, weight))
    taken = out[np.asarray(case.segments().chunk_row)]
    gates = projected[:, case.gate_begin :][:, : taken[0].size].reshape(taken.shape)
    normed = taken / np.sqrt(np.mean(taken**2, axis=-1, keepdims=True) + EPSILON) * weight
    return (normed * gates / (1 + np.exp(-gates))).reshape(len(taken), -1)


def used(case: Case) -> int:
    """Rows of the stream that are not padding; they stand first."""
    last = trees.pieces(case.requests)[-1]
    return last.begin + last.length


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("dtype", OPERATOR)
def test_equals_the_formula(implementation, dtype):
    case = AWKWARD["chunk edges"]
    with jax.enable_x64(dtype == "float64"):
        out, projected, weight = case.operands(jax.random.key(0), jnp.dtype(dtype))
        found = gated_norm(
            out, projected, weight, case.segments(), gate_begin=case.gate_begin, epsilon=EPSILON,
            implementation=implementation,
        )  # fmt: skip
        assert found.dtype == projected.dtype
        assert_close(found[: used(case)], formula(case, out, projected, weight)[: used(case)], OPERATOR[dtype])


@pytest.mark.parametrize("implementation", ANYWHERE)
def test_some_rows_equal_the_same_rows_of_all(implementation):
    case, rows = AWKWARD["chunk edges"], jnp.array([70, 0, 191, 191], jnp.int32)
    out, projected, weight = case.operands(jax.random.key(1), jnp.float32)
    some = gated_norm(
        out, projected, weight, case.segments(), gate_begin=case.gate_begin, rows=rows, epsilon=EPSILON,
        implementation=implementation,
    )  # fmt: skip
    assert_close(some, formula(case, out, projected, weight)[rows], OPERATOR["float32"])


class TestKernel:
    """The Mosaic GPU kernel, interpreted on the CPU."""

    @pytest.fixture(autouse=True)
    def few_programs(self, monkeypatch):
        """Several work items each, and one that has none."""
        monkeypatch.setattr(pallas, "PROGRAMS", 7)

    @staticmethod
    def run(case, operands):
        return pallas.gated_norm(
            *operands, case.segments(), gate_begin=case.gate_begin, epsilon=EPSILON, interpret=True
        )

    @pytest.mark.usefixtures("no_races")
    @pytest.mark.parametrize("name", AWKWARD)
    def test_equals_the_formula(self, name):
        case = AWKWARD[name]
        operands = case.operands(jax.random.key(2))
        found, rows = self.run(case, operands), used(case)
        assert_close(found[:rows], formula(case, *operands)[:rows], OPERATOR["bfloat16"])

    def test_padding_has_no_influence(self):
        case = AWKWARD["chunk edges"]
        out, projected, weight = case.operands(jax.random.key(3))
        padding = (np.asarray(case.segments().stream_rows()) < 0)[:, None, None]
        clean = self.run(case, (out, projected, weight))[: used(case)]
        poisoned = self.run(case, (jnp.where(padding, jnp.nan, out), projected, weight))[: used(case)]
        np.testing.assert_array_equal(np.asarray(clean, np.float32), np.asarray(poisoned, np.float32))

    def test_says_what_it_cannot_do(self):
        case = AWKWARD["one row"]
        with pytest.raises(NotImplementedError, match="bfloat16"):
            self.run(case, case.operands(jax.random.key(0), jnp.float32))
