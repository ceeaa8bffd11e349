"""The product: every implementation against numpy in float64, and what the bits of a row may depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.matmul import pallas, pallas_plan
from pallas_kernels.matmul.api import matmul
from pallas_kernels.matmul.cases import AWKWARD, CASES, Case, caller
from pallas_kernels.matmul.pallas_plan import BLOCK, LEAST_COLUMNS, TILES, Plan, Shape, Tile, suitable_tile
from pallas_kernels.mosaic import sigmoid
from tests.pallas_kernels import ANYWHERE
from tests.tolerances import OPERATOR, assert_close

EPILOGUES = ("none", "residual", "swiglu")


def formula(case: Case, x, weight, residual=None) -> np.ndarray:
    """In float64."""
    product = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    if case.swiglu:
        gate, up = np.split(product, 2, axis=1)
        return gate / (1 + np.exp(-gate)) * up
    return product if residual is None else np.asarray(residual, np.float64) + product


def blocks_that_cancel(case: Case) -> tuple[jax.Array, ...]:
    """Operands whose sums within a block of K are exact in float32 while sums of blocks are not.

    The interpreter leaves the order within a block to numpy. The fourth block takes the first away again, and what was
    rounded meanwhile is left.
    """
    rng = np.random.default_rng(5)
    x, weight = (rng.integers(-8, 9, (rows, case.depth)).astype(np.float32) for rows in (case.rows, case.columns))
    first, fourth = slice(0, BLOCK), slice(3 * BLOCK, 4 * BLOCK)
    x[:, fourth], weight[:, fourth] = -x[:, first], weight[:, first]
    x, weight = x * np.repeat([2.0**19, 1, 1, 2.0**19, 1, 1], BLOCK), weight / 64
    residual = rng.standard_normal((case.rows, case.columns))
    return tuple(jnp.asarray(operand, jnp.bfloat16) for operand in (x, weight, residual)[: 2 + case.residual])


def in_order(case: Case, x, weight, residual=None, *, order=range(6)) -> jax.Array:
    """The product as float32 sums of blocks in this order."""
    x, weight = (np.asarray(operand, np.float32) for operand in (x, weight))
    sums = np.zeros((case.rows, case.columns), np.float32)
    for block in order:
        depth = slice(block * BLOCK, (block + 1) * BLOCK)
        sums = sums + x[:, depth] @ weight[:, depth].T
    if case.swiglu:
        gate, up = jnp.split(jnp.asarray(sums), 2, axis=1)
        sums = gate * sigmoid(gate) * up
    return jnp.asarray(sums if residual is None else np.asarray(residual, np.float32) + sums).astype(jnp.bfloat16)


def bits(x) -> np.ndarray:
    return np.asarray(x).view(np.uint16)


@pytest.mark.parametrize("implementation", ANYWHERE)
@pytest.mark.parametrize("dtype", OPERATOR)
@pytest.mark.parametrize("name", ["a tile and a half", "residual", "swiglu"])
def test_equals_the_formula(implementation, dtype, name):
    case = AWKWARD[name]
    with jax.enable_x64(dtype == "float64"):
        operands = case.operands(jax.random.key(0), jnp.dtype(dtype))
        found = caller(case, implementation)(*operands)
        assert found.dtype == operands[0].dtype
        assert_close(found, formula(case, *operands), OPERATOR[dtype])


@pytest.mark.parametrize("swiglu", [False, True])
def test_the_result_is_rounded_once(swiglu):
    """bfloat16 to its last bit, but where a float32 sum stands on the edge between two values."""
    case = Case(64, 512, 128, residual=not swiglu, swiglu=swiglu)
    operands = case.operands(jax.random.key(1))
    exact = jnp.asarray(formula(case, *operands), jnp.float32).astype(jnp.bfloat16)
    for implementation in ANYWHERE:
        assert np.mean(bits(caller(case, implementation)(*operands)) == bits(exact)) > 0.99, implementation


def test_the_reference_sums_a_row_alike_among_any_rows():
    case = Case(5, 256, 64)
    x, weight = case.operands(jax.random.key(2), jnp.float32)
    whole = matmul(x, weight, implementation="reference")
    alone = [matmul(row[None], weight, implementation="reference") for row in x]
    np.testing.assert_array_equal(whole, np.concatenate(alone))


@pytest.mark.filterwarnings("ignore:.* encountered in matmul:RuntimeWarning")
@pytest.mark.parametrize("implementation", ANYWHERE)
def test_a_nan_stays_in_its_row(implementation):
    x, weight = AWKWARD["a tile"].operands(jax.random.key(3))
    found = matmul(x.at[17, 5].set(jnp.nan), weight, implementation=implementation)
    assert np.isnan(np.asarray(found[17], np.float32)).all()
    others = np.arange(len(x)) != 17
    np.testing.assert_array_equal(bits(found)[others], bits(matmul(x, weight, implementation=implementation))[others])


def test_refuses_epilogues_that_there_are_not():
    x, weight, residual = AWKWARD["residual"].operands(jax.random.key(0))
    with pytest.raises(ValueError, match="not both"):
        matmul(x, weight, residual=residual, swiglu=True)
    with pytest.raises(ValueError, match="191 rows of weight"):
        matmul(x, weight[1:], swiglu=True)


class TestKernel:
    """The Mosaic GPU kernel, interpreted on the CPU."""

    @pytest.fixture(autouse=True)
    def few_programs(self, monkeypatch):
        """Some make several tiles, some one less; bands of tiles are cut."""
        monkeypatch.setattr(pallas_plan, "MULTIPROCESSORS", 3)
        monkeypatch.setattr(pallas_plan, "GROUP", 4)

    @staticmethod
    def run(case, operands, tile=None):
        x, weight, *residual = operands
        return pallas.matmul(
            x, weight, residual=residual[0] if residual else None, swiglu=case.swiglu, tile=tile, interpret=True
        )

    @pytest.mark.usefixtures("no_races")
    @pytest.mark.parametrize("name", AWKWARD)
    def test_equals_the_formula(self, name):
        case = AWKWARD[name]
        operands = case.operands(jax.random.key(4))
        found = self.run(case, operands)
        assert found.dtype == jnp.bfloat16
        assert_close(found, formula(case, *operands), OPERATOR["bfloat16"])

    @pytest.mark.usefixtures("no_races")
    @pytest.mark.parametrize("epilogue", EPILOGUES)
    def test_no_tile_and_no_number_of_rows_changes_a_bit(self, epilogue):
        """Blocks of K are added in their order, in every tile, wherever a row stands."""
        case = Case(320, 6 * BLOCK, 320, residual=epilogue == "residual", swiglu=epilogue == "swiglu")
        x, weight, *residual = blocks_that_cancel(case)
        whole = bits(in_order(case, x, weight, *residual))
        assert np.mean(whole != bits(in_order(case, x, weight, *residual, order=(0, 3, 1, 2, 4, 5)))) > 0.1
        for tile in TILES:
            if not case.swiglu or tile.columns > LEAST_COLUMNS:
                np.testing.assert_array_equal(bits(self.run(case, (x, weight, *residual), tile)), whole, repr(tile))
        for few in (slice(133, 133 + 64), slice(7, 207)):
            operands = x[few], weight, *(rows[few] for rows in residual)
            np.testing.assert_array_equal(bits(self.run(case, operands)), whole[few], repr(few))

    # The interpreter multiplies with numpy, which warns of what is being tried here.
    @pytest.mark.filterwarnings("ignore:.* encountered in matmul:RuntimeWarning")
    @pytest.mark.parametrize("epilogue", EPILOGUES)
    def test_a_nan_stays_in_its_row(self, epilogue):
        case = Case(192, 128, 256, residual=epilogue == "residual", swiglu=epilogue == "swiglu")
        x, *others = case.operands(jax.random.key(6))
        clean = bits(self.run(case, (x, *others)))
        found = self.run(case, (x.at[130, 77].set(jnp.nan), *others))
        assert np.isnan(np.asarray(found[130], np.float32)).all()
        rows = np.arange(case.rows) != 130
        np.testing.assert_array_equal(bits(found)[rows], clean[rows])

    def test_says_what_it_cannot_do(self):
        x, weight = Case(64, 96, 64).operands(jax.random.key(0))
        with pytest.raises(NotImplementedError, match="not float32 and float32"):
            self.run(Case(64, 96, 64), (x.astype(jnp.float32), weight.astype(jnp.float32)))
        with pytest.raises(NotImplementedError, match="K in 64s and columns in 32s, not 96 and 64"):
            self.run(Case(64, 96, 64), (x, weight))
        with pytest.raises(NotImplementedError, match="not 64 and 40"):
            self.run(Case(64, 64, 40), Case(64, 64, 40).operands(jax.random.key(0)))
        with pytest.raises(NotImplementedError, match="columns in 64s, not 64 and 96"):
            self.run(Case(64, 64, 96), Case(64, 64, 96, residual=True).operands(jax.random.key(0)))


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("tiles", [(1, 1), (5, 7), (12, 3), (25, 4), (61, 10)])
def test_every_tile_is_made_once(tile, tiles):
    down, across = tiles
    shape = Shape(down * tile.rows, across * tile.columns, 64, False, False)
    plan = Plan(shape, tile)
    assert plan.tiles == tiles
    places = jax.vmap(plan.place)(jnp.arange(plan.items, dtype=jnp.int32))
    assert sorted(zip(*(place.tolist() for place in places), strict=True)) == [
        (row, column) for row in range(down) for column in range(across)
    ]


@pytest.mark.parametrize("tile", [tile for tile in TILES if tile.rows == 64 and tile.columns > 64])
@pytest.mark.parametrize("depth", [64, 128, 192, 9216])
def test_a_ring_holds_what_warpgroups_beside_each_other_wait_for(tile, depth):
    plan = Plan(Shape(256, 1024, depth, False, True), tile)
    assert plan.across == 2 and plan.pieces < plan.stages <= plan.steps


@pytest.mark.parametrize("name", CASES)
def test_the_tile_of_a_projection_fills_the_card(name):
    """Four blocks in flight or more, and at least half of the multiprocessors where the result has as many tiles."""
    case = CASES[name]
    shape = Shape(case.rows, case.columns // (1 + case.swiglu), case.depth, case.swiglu, case.residual)
    plan = Plan(shape, suitable_tile(shape))
    assert plan.stages >= 4
    smallest = Plan(shape, Tile(64, 128 if case.swiglu else 64))
    assert plan.programs >= min(smallest.items, pallas_plan.MULTIPROCESSORS // 2)
