"""Parameters as fewer arrays: the same values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flide_jax.models import qwen3_5
from flide_jax.models.packing import Packing
from flide_jax.models.params import initialise
from pallas_kernels import Rows
from tests.models.support import tiny_model

CONFIG = tiny_model("untied", "float32").config
ABSTRACT = qwen3_5.abstract(CONFIG, labels=4, dtype=np.dtype(np.float32))


def plain(tree):
    """With arrays in place of rows of larger ones."""
    return jax.tree.map(
        lambda leaf: leaf.read() if isinstance(leaf, Rows) else leaf, tree, is_leaf=lambda x: isinstance(x, Rows)
    )


@pytest.mark.parametrize("join_rows", [False, True])
def test_what_is_packed_is_unpacked_with_every_bit(join_rows):
    packing = Packing.of(ABSTRACT, join_rows=join_rows)
    tree = initialise(ABSTRACT, jax.random.key(0))
    expected = jax.tree.map(np.asarray, jax.tree.map(jnp.copy, tree))
    packed = packing.pack(tree)
    assert [(x.shape, x.dtype) for x in packed] == [(x.shape, x.dtype) for x in packing.shapes]
    for unpack in (packing.unpack, jax.jit(packing.unpack)):
        found = plain(unpack(packed))
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_vectors_of_one_length_are_one_array():
    leaves = jax.tree.leaves(ABSTRACT)
    vectors = [x for x in leaves if len(x.shape) == 1]
    arrays = Packing.of(ABSTRACT, join_rows=False).arrays
    assert len(arrays) == len(leaves) - len(vectors) + len({(x.shape, x.dtype) for x in vectors}) < len(leaves)
    assert max(map(len, arrays)) > 2


def test_matrices_of_one_width_are_one_array():
    matrices = [x for x in jax.tree.leaves(ABSTRACT) if x.read_as_rows]
    apart, joined = (len(Packing.of(ABSTRACT, join_rows=join).arrays) for join in (False, True))
    assert joined == apart - len(matrices) + len({(x.shape[1], x.dtype) for x in matrices}) < apart


def test_there_is_never_room_for_two_of_a_joined_matrix():
    tree = initialise(ABSTRACT, jax.random.key(0))
    Packing.of(ABSTRACT, join_rows=True).pack(tree)
    for spec, leaf in zip(jax.tree.leaves(ABSTRACT), jax.tree.leaves(tree), strict=True):
        assert leaf.is_deleted() or not spec.read_as_rows
