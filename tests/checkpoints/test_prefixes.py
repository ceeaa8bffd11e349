"""Hashes of the beginnings of texts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flide_jax.checkpoints.prefixes import PrefixHash

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300).map(lambda x: np.array(x, np.int32))


@given(TOKENS, st.integers(1, 300))
def test_a_beginning_has_the_hash_that_it_has_alone(tokens, length):
    hashes = PrefixHash()
    np.testing.assert_array_equal(hashes(tokens)[:length], hashes(tokens[:length]))


@given(TOKENS, st.data())
def test_every_token_counts_and_so_does_its_place(tokens, data):
    hashes = PrefixHash()
    place = data.draw(st.integers(0, tokens.size - 1))
    changed = tokens.copy()
    changed[place] ^= 1
    before, after = hashes(tokens), hashes(changed)
    np.testing.assert_array_equal(before[:place], after[:place])
    assert (before[place:] != after[place:]).all()
    if tokens[0] != tokens[-1]:
        assert hashes(tokens[::-1].copy())[-1] != before[-1]


def test_zeros_count():
    assert len(set(PrefixHash()(np.zeros(100, np.int32)).tolist())) == 100
