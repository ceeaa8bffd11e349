"""The product on the card: every tile against float64, and the bits of a row among any others."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.matmul import pallas
from pallas_kernels.matmul.cases import AWKWARD, CASES, PROJECTIONS, Case, caller
from pallas_kernels.matmul.pallas_plan import LEAST_COLUMNS, TILES, Tile
from tests.device.comparing import bits, check, exact, ten_times

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]

EDGES = {f"{rows} rows": Case(rows, 192, 128, residual=True) for rows in (1, 17, 63, 64, 65, 127)}


@pytest.mark.parametrize("name", {**AWKWARD, **CASES, **EDGES})
def test_equals_float64_and_ten_times_itself(name):
    case = {**AWKWARD, **CASES, **EDGES}[name]
    operands = case.operands(jax.random.key(0))
    check(ten_times(caller(case, "pallas"), *operands), exact(caller(case, "xla"), *operands))


@pytest.mark.parametrize("epilogue", ["none", "residual", "swiglu"])
@pytest.mark.parametrize("depth", [64, 128, 192, 256])
def test_few_blocks_of_depth(depth, epilogue):
    """In each tile: loops over so few may be unrolled."""
    case = Case(200, depth, 320, residual=epilogue == "residual", swiglu=epilogue == "swiglu")
    x, weight, *residual = operands = case.operands(jax.random.key(3))
    expected = exact(caller(case, "xla"), *operands)
    for tile in TILES:
        if not case.swiglu or tile.columns > LEAST_COLUMNS:
            addend = residual[0] if residual else None
            found = pallas.matmul(x, weight, residual=addend, swiglu=case.swiglu, tile=tile)
            check(found, expected)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_no_tile_and_no_number_of_rows_changes_a_bit(name):
    """Rows of a long round, the same rows alone and moved, in the chosen tile and in each there is, five times."""
    case = dataclasses.replace(PROJECTIONS[name], rows=2688)
    x, weight, *residual = case.operands(jax.random.key(1))

    def product(rows: slice, tile: Tile | None = None) -> np.ndarray:
        addend = residual[0][rows] if residual else None
        return bits(pallas.matmul(x[rows], weight, residual=addend, swiglu=case.swiglu, tile=tile))

    whole = product(slice(None))
    for rows in (slice(0, 64), slice(133, 133 + 64), slice(7, 391), slice(1, 2688), slice(2600, 2601)):
        np.testing.assert_array_equal(product(rows), whole[rows], f"{rows}")
    for tile in TILES:
        if case.swiglu and tile.columns == LEAST_COLUMNS:
            continue
        for _ in range(5):
            np.testing.assert_array_equal(product(slice(None), tile), whole, f"{tile}")


@pytest.mark.parametrize("name", ["4B in", "4B down", "4B gate_up"])
def test_a_nan_stays_in_its_row(name):
    case = dataclasses.replace(PROJECTIONS[name], rows=384)
    x, *others = case.operands(jax.random.key(2))
    call = jax.jit(caller(case, "pallas"))
    clean, found = bits(call(x, *others)), call(x.at[130, 77].set(jnp.nan), *others)
    assert np.isnan(np.asarray(found[130], np.float32)).all()
    rows = np.arange(case.rows) != 130
    np.testing.assert_array_equal(bits(found)[rows], clean[rows])
