"""Rounds from lists of lengths: the texts in them, and what is counted of them."""

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import segmented_gdn, trees
from pallas_kernels.fork_attention.runs import tile_runs
from pallas_kernels.segmented_gdn.cases import Case, text_alone
from pallas_kernels.trees import Request
from tests.tolerances import assert_close

REQUESTS = [Request(70, [3, 66]), Request(5, [2])]


def test_texts_are_states_and_branches_in_order():
    first, second, third = trees.texts(REQUESTS)
    assert first.tolist() == [*range(70), 75, 76, 77]
    assert second.tolist() == [*range(70), *range(78, 144)]
    assert third.tolist() == [*range(70, 75), 144, 145]


def test_pairs_are_those_of_the_mask_and_of_whole_blocks():
    rows = trees.stream_rows(REQUESTS)
    spans = trees.key_spans(REQUESTS, rows)
    assert spans.pairs() == np.asarray(spans.visible(rows)).sum()
    runs = tile_runs(spans, None, rows=16, block=32)
    assert runs.pairs(32) == 16 * 32 * sum(np.asarray(runs.blocks(32)).tolist()) > spans.pairs()


def test_chunks_of_a_segment():
    segments = trees.segments_of_capacity(REQUESTS)
    assert [segments.rows_of_chunks(piece) for piece in range(5)] == [[64, 6], [5], [3], [64, 2], [2]]


def test_a_text_alone_is_what_it_is_in_the_round():
    case = Case(REQUESTS, key_heads=1, value_heads=1)
    segments, operands = case.segments(), case.operands(jax.random.key(0), jnp.float32)
    whole = run(case, operands, segments)
    for text in trees.texts(REQUESTS):
        alone = run(case, *text_alone(operands, segments, text))
        assert_close(alone[: text.size], whole[segments.chunk_row[text]], 1e-5)


def run(case: Case, operands, segments) -> np.ndarray:
    segments = jax.tree.map(jnp.asarray, segments)
    slots = jnp.zeros((segments.slots, case.value_heads, 128, 128))
    in_one_program = jax.jit(segmented_gdn, static_argnames=("scale", "implementation"))
    out, _ = in_one_program(*map(jnp.asarray, operands), slots, segments, scale=case.scale, implementation="xla")
    return np.asarray(out)
