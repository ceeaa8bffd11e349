"""The Mosaic GPU kernel of the segmented convolution, interpreted on the CPU."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import trees
from pallas_kernels.segmented_conv import pallas, reference
from pallas_kernels.segmented_conv.cases import AWKWARD, HEAD_DIM, Case
from pallas_kernels.trees import Request
from tests.tolerances import OPERATOR, assert_close


@pytest.fixture(autouse=True)
def few_programs(monkeypatch):
    """Several work items each, and one that has none."""
    monkeypatch.setattr(pallas, "PROGRAMS", 7)


def used_rows(case: Case) -> int:
    """Chunk rows of used chunks, which stand first."""
    return 64 * int(np.sum(case.segments().chunk_length > 0))


def interpreted(case: Case, operands):
    return called(pallas.segmented_conv, case, operands, interpret=True)


def called(function, case: Case, operands, **options):
    mixed, write_logit, decay_input, *windows, weights = operands
    return function(
        mixed,
        write_logit,
        decay_input,
        weights,
        jnp.asarray(case.predecessors()),
        case.segments(),
        windows=windows[0] if windows else None,
        key_heads=case.key_heads,
        key_dim=HEAD_DIM,
        **options,
    )


@pytest.mark.usefixtures("no_races")
@pytest.mark.parametrize("name", AWKWARD)
def test_equals_the_reference(name):
    case = AWKWARD[name]
    *rows, weights = case.operands(jax.random.key(0))
    found = interpreted(case, (*rows, weights))
    in_float32 = (x.astype(jnp.float32) for x in rows)
    expected = called(reference.segmented_conv, case, (*in_float32, weights))
    for field in dataclasses.fields(found):
        ours, theirs = (np.asarray(getattr(x, field.name), np.float32) for x in (found, expected))
        assert_close(ours[: used_rows(case)], theirs[: used_rows(case)], OPERATOR["bfloat16"])


@pytest.mark.filterwarnings("ignore:.* encountered in :RuntimeWarning")
@pytest.mark.parametrize("poison", [np.nan, np.inf, 1e30])
def test_rows_of_others_have_no_influence(poison):
    case = Case([Request(70, [5, 66]), Request(40, [9])], key_heads=1, value_heads=1)
    operands = case.operands(jax.random.key(1))
    mine = np.zeros(case.rows, bool)
    chunk_row = np.asarray(case.segments().chunk_row)
    for piece in trees.pieces(case.requests):
        mine[piece.begin : piece.begin + piece.length] = piece.slot == 0
    clean = interpreted(case, operands)
    poisoned = interpreted(
        case, [jnp.where(mine[:, None], x, poison).astype(x.dtype) for x in operands[:3]] + [operands[3]]
    )
    for field in dataclasses.fields(clean):
        before, after = (np.asarray(getattr(x, field.name), np.float32)[chunk_row[mine]] for x in (clean, poisoned))
        np.testing.assert_array_equal(before, after)


def test_padding_rows_of_used_chunks_are_zero():
    case = AWKWARD["chunk edges"]
    found = interpreted(case, case.operands(jax.random.key(2)))
    padding = np.asarray(case.segments().stream_rows())[: used_rows(case)] < 0
    assert padding.any()
    for field in dataclasses.fields(found):
        assert not np.asarray(getattr(found, field.name), np.float32)[: used_rows(case)][padding].any()


def test_says_what_it_cannot_do():
    case = AWKWARD["one row"]
    with pytest.raises(NotImplementedError, match="bfloat16"):
        interpreted(case, case.operands(jax.random.key(0), jnp.dtype(jnp.float32)))
    mixed, write_logit, decay_input, weights = case.operands(jax.random.key(0))
    one_tap, none = dataclasses.replace(weights, taps=weights.taps[-1:]), jnp.zeros((case.rows, 0), jnp.int32)
    with pytest.raises(NotImplementedError, match="not heads of 128 and 128, 1 taps"):
        pallas.segmented_conv(
            mixed, write_logit, decay_input, one_tap, none, case.segments(), key_heads=1, key_dim=HEAD_DIM
        )
