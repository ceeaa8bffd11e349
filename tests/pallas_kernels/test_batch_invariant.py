"""The ops where a row's bits may depend on nothing beside it, and the implementations that refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flide_jax.layout.ranges import in_chunk_rows
from pallas_kernels import trees
from pallas_kernels.fork_attention import pallas, reference, triton, xla
from pallas_kernels.fork_attention.api import CachedKeys, fork_attention
from pallas_kernels.fork_attention.xla_chunks import fork_attention_in_chunks
from pallas_kernels.matmul import reference as matmul_reference
from pallas_kernels.matmul import xla as matmul_xla
from pallas_kernels.matmul.api import matmul
from pallas_kernels.segmented_gdn import reference as gdn_reference
from pallas_kernels.segmented_gdn import triton as gdn_triton
from pallas_kernels.segmented_gdn import xla as gdn_xla
from pallas_kernels.trees import Request
from tests.tolerances import OPERATOR, assert_close


def bits(x) -> np.ndarray:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


@pytest.mark.parametrize("epilogue", ["none", "residual", "swiglu"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_number_of_rows_changes_no_bit_of_a_product(dtype, epilogue):
    """From 1 to 300 rows, each row at several places of a block."""
    rng = np.random.default_rng(0)
    x, weight, residual = (jnp.asarray(rng.standard_normal(s), dtype) for s in ((300, 96), (66, 96), (300, 66)))

    @jax.jit
    def product(x, residual):
        addend = residual if epilogue == "residual" else None
        return matmul(x, weight, residual=addend, swiglu=epilogue == "swiglu", batch_invariant=True)

    whole = bits(product(x, residual))
    for begin, end in ((0, 1), (299, 300), (5, 7), (1, 64), (0, 65), (63, 128), (17, 150), (1, 300)):
        np.testing.assert_array_equal(bits(product(x[begin:end], residual[begin:end])), whole[begin:end])


def test_the_reference_of_the_product_has_one_order():
    rng = np.random.default_rng(1)
    x, weight = (jnp.asarray(rng.standard_normal(shape), "float32") for shape in ((40, 32), (24, 32)))
    product = jax.jit(lambda x: matmul(x, weight, batch_invariant=True, implementation="reference"))
    whole = bits(product(x))
    for begin, end in ((0, 1), (3, 5), (7, 40)):
        np.testing.assert_array_equal(bits(product(x[begin:end])), whole[begin:end])


def in_chunks(requests, *, chunks: int | None = None, heads=(4, 2, 64), seed=0, dtype="float32"):
    """Query, key and value in chunk rows, their spans, and the rows of each piece."""
    rows = trees.stream_rows(requests)
    segments = trees.segments(requests, rows, chunks=chunks)
    spans = in_chunk_rows(trees.key_spans(requests, rows), segments)
    operands = [np.zeros((rows, count, heads[2])) for count in (heads[0], heads[1], heads[1])]
    where = []
    for piece in trees.pieces(requests):
        here = slice(piece.begin, piece.begin + piece.length)
        # A piece is known by its length and its state's: the same one has the same rows in every round.
        rng = np.random.default_rng([seed, piece.length, 0 if piece.parent is None else piece.parent.length])
        for operand in operands:
            operand[here] = rng.standard_normal(operand[here].shape)
        where.append(segments.chunk_row[here])
    moved = [segments.in_chunk_rows(jnp.asarray(operand, dtype)) for operand in operands]
    return moved, spans, where


def test_attention_in_chunks_equals_the_equation():
    with jax.enable_x64(True):
        requests = [Request(70, [5, 66]), Request(1, [1]), Request(130, [3, 64, 1])]
        operands, spans, where = in_chunks(requests, chunks=20, dtype="float64")
        found = fork_attention(*operands, spans, scale=0.125, batch_invariant=True)
        expected = reference.fork_attention(*operands, spans, scale=0.125)
        assert_close(found, expected, OPERATOR["float64"])
        padding = np.setdiff1d(np.arange(20 * 64), np.concatenate(where))
        assert not np.asarray(found)[padding].any()


def test_a_row_of_a_chunk_that_sees_what_is_not_finite():
    requests = [Request(3, [2]), Request(70, [5])]
    (query, key, value), spans, where = in_chunks(requests)
    for broken in (np.nan, np.inf):
        found = np.asarray(
            fork_attention_in_chunks(query, key, value.at[where[0][1], 0, 3].set(broken), spans, scale=0.125)
        )
        clean = np.asarray(fork_attention_in_chunks(query, key, value, spans, scale=0.125))
        assert np.isnan(found[np.concatenate([where[0][1:], where[2]])]).any(axis=(1, 2)).all()
        others = np.concatenate([where[0][:1], where[1], where[3]])
        np.testing.assert_array_equal(found[others], clean[others])


LONE = [Request(70, [37])]
ROUND = [Request(5, [3, 9]), Request(70, [66, 37, 1]), Request(130, [64])]


@pytest.mark.parametrize("heads", [(4, 1, 64), (4, 2, 64)], ids=["tiles of 32 rows", "tiles of 64 rows"])
def test_the_kernel_gives_a_piece_its_bits_wherever_it_stands(heads):
    found = []
    for requests, chunks in ((LONE, 3), (ROUND, 14)):
        operands, spans, where = in_chunks(requests, chunks=chunks, heads=heads, dtype="bfloat16")
        options = {"scale": 0.125, "batch_invariant": True, "interpret": True}
        out = bits(jax.block_until_ready(pallas.fork_attention(*operands, spans, **options)))
        pieces = {
            (piece.length, piece.parent and piece.parent.length): n for n, piece in enumerate(trees.pieces(requests))
        }
        found.append([out[where[pieces[piece]]] for piece in ((70, None), (37, 70))])
    for lone, among in zip(*found, strict=True):
        np.testing.assert_array_equal(lone, among)


def test_the_kernel_does_not_split_keys(monkeypatch):
    """However few tiles there are; and without being asked it does."""
    operands, spans, _ = in_chunks(LONE, heads=(4, 1, 64), dtype="bfloat16")
    seen = []
    monkeypatch.setattr(pallas.units, "unit_table", lambda *_, splits, **__: seen.append(splits) or 1 / 0)
    monkeypatch.setattr(pallas, "_splits", lambda *_: 2)
    for batch_invariant in (True, False):
        with pytest.raises(ZeroDivisionError):
            options = {"scale": 0.125, "batch_invariant": batch_invariant, "interpret": True}
            pallas.fork_attention.__wrapped__(*operands, spans, **options)  # not what was traced before
    assert seen == [1, 2]


def test_a_tile_of_two_chunks_is_refused():
    operands, spans, _ = in_chunks(LONE, heads=(3, 3, 64), dtype="bfloat16")
    with pytest.raises(NotImplementedError, match="at most 64 rows, not with 128 of 1 heads"):
        pallas.fork_attention(*operands, spans, scale=0.125, batch_invariant=True, interpret=True)


@pytest.mark.parametrize("module", [reference, triton])
def test_attention_that_cannot_promise_it(module):
    operands, spans, _ = in_chunks(LONE)
    with pytest.raises(NotImplementedError, match="fork_attention by (reference|triton) has no batch-invariant form"):
        module.fork_attention(*operands, spans, scale=0.125, batch_invariant=True)


def test_attention_of_other_rows_is_a_wrong_call():
    (query, key, value), spans, _ = in_chunks(LONE)
    options = {"scale": 0.125, "batch_invariant": True}
    with pytest.raises(ValueError, match="all rows of whole chunks of 64, not 5 queries of 192 rows"):
        fork_attention(query[:5], key, value, jax.tree.map(lambda column: column[:5], spans), **options)
    pages = jnp.zeros((1, 64, 2, 64), key.dtype)
    column = np.zeros(192, np.int32)
    with pytest.raises(ValueError, match="cached keys stand in pages"):
        fork_attention(query, key, value, spans, cached=CachedKeys(pages, pages, column[:1], column, column), **options)


def recur(module):
    segments = trees.segments([Request(5, [3])], 64)
    rows = 64 * segments.chunk_length.size
    wide, gate = jnp.zeros((rows, 1, 16)), jnp.zeros((rows, 1))
    states = jnp.zeros((1, 1, 16, 16))
    return module.segmented_gdn(wide, wide, wide, gate, gate, states, segments, scale=1.0, batch_invariant=True)


@pytest.mark.parametrize("module", [gdn_reference, gdn_triton])
def test_recurrence_that_cannot_promise_it(module):
    with pytest.raises(NotImplementedError, match="segmented_gdn by (reference|triton) has no batch-invariant form"):
        recur(module)


def test_what_is_so_on_a_cpu_only(monkeypatch):
    """Elsewhere the products in these are a library's."""
    card = type("Card", (), {"platform": "cuda", "device_kind": "NVIDIA H200"})()
    operands, spans, _ = in_chunks(LONE)
    calls = {
        "matmul": lambda: matmul_xla.matmul(operands[0][:, 0], operands[1][:, 0], batch_invariant=True),
        "fork_attention": lambda: xla.fork_attention(*operands, spans, scale=0.125, batch_invariant=True),
        "segmented_gdn": lambda: recur(gdn_xla),
    }
    monkeypatch.setattr("pallas_kernels.dispatch._device", lambda: card)
    for op, call in calls.items():
        with pytest.raises(
            NotImplementedError, match=f"{op} by xla has a batch-invariant form for a CPU only, not for"
        ):
            call()
    assert matmul_reference.matmul(*2 * [jnp.ones((2, 2))], batch_invariant=True).shape == (2, 2)
