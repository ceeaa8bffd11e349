"""Parameters as fewer arrays: the same values."""

import jax
import numpy as np
import pytest

from flide_jax.models.packing import Packing
from tests.models.support import tiny_model


@pytest.fixture
def tree():
    return tiny_model("untied", "float32").params


def test_what_is_packed_is_unpacked_with_every_bit(tree):
    packing = Packing.of(tree)
    packed = packing.pack(tree)
    assert [(x.shape, x.dtype) for x in packed] == [(x.shape, x.dtype) for x in packing.shapes(tree)]
    for unpack in (packing.unpack, jax.jit(packing.unpack)):
        found = unpack(packed)
        assert jax.tree.structure(found) == jax.tree.structure(tree)
        jax.tree.map(np.testing.assert_array_equal, found, tree)


def test_there_is_one_stack_for_each_shape_of_vectors(tree):
    leaves = jax.tree.leaves(tree)
    vectors = [x for x in leaves if x.ndim == 1]
    stacks = Packing.of(tree).stacks
    assert len(stacks) == len(leaves) - len(vectors) + len({(x.shape, x.dtype) for x in vectors}) < len(leaves)
    assert max(map(len, stacks)) > 2
