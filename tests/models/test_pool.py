"""What layers keep of a round: the rows they are told to, in the places they are told."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from flide_jax.layout.growth import NOT_KEPT, GrowthMetadata
from flide_jax.models.pool import KeyPages, StateSlots, bytes_of
from pallas_kernels.fork_attention.metadata import PAGE_ROWS

NOTHING = GrowthMetadata(
    page_table=np.zeros(2, np.int32),
    cached_begin=np.zeros(5, np.int32),
    cached_end=np.zeros(5, np.int32),
    kept_page=np.arange(NOT_KEPT, NOT_KEPT + 5, dtype=np.int32),
    kept_row=np.zeros(5, np.int32),
    window_rows=np.full((2, 3), -1, np.int32),
    window_slot=np.arange(NOT_KEPT, NOT_KEPT + 2, dtype=np.int32),
)


def pages() -> KeyPages:
    shape = (3, PAGE_ROWS, 2, 4)
    return KeyPages(key=jnp.full(shape, 7.0), value=jnp.full(shape, 8.0))


def rows(seed: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal((5, 2, 4)), jnp.float32)


def test_keys_and_values_go_to_their_rows():
    growth = dataclasses.replace(
        NOTHING,
        kept_page=np.array([2, NOT_KEPT + 1, 0, 0, NOT_KEPT + 4], np.int32),
        kept_row=np.array([63, 1, 0, 5, 1], np.int32),
    )
    key, value = rows(0), rows(1)
    found = jax.jit(KeyPages.keep)(pages(), key, value, growth)
    for before, after, given in ((pages().key, found.key, key), (pages().value, found.value, value)):
        expected = np.array(before)
        for row, place in ((0, (2, 63)), (2, (0, 0)), (3, (0, 5))):
            expected[place] = given[row]
        np.testing.assert_array_equal(after, expected)


def test_windows_come_from_the_stream_and_from_other_windows():
    slots = StateSlots(
        states=jnp.zeros((3, 1, 1, 1)), windows=jnp.arange(3 * 3 * 2, dtype=jnp.float32).reshape(3, 3, 2)
    )
    projected = jnp.asarray(np.random.default_rng(2).standard_normal((5, 4)), jnp.float32)
    growth = dataclasses.replace(
        NOTHING,
        window_rows=np.array([[5 + 4, 5 + 5, 2], [-1, 0, 1]], np.int32),
        window_slot=np.array([2, 0], np.int32),
    )
    found = np.asarray(jax.jit(StateSlots.keep_windows)(slots, projected, growth).windows)
    window = np.asarray(slots.windows)
    np.testing.assert_array_equal(found[2], [window[1, 1], window[1, 2], projected[2, :2]])
    np.testing.assert_array_equal(found[0], [[0, 0], projected[0, :2], projected[1, :2]])
    np.testing.assert_array_equal(found[1], window[1])
    np.testing.assert_array_equal(slots.keep_windows(projected, NOTHING).windows, window)


def test_bytes():
    slots = StateSlots(states=jnp.zeros((3, 2, 4, 4)), windows=jnp.zeros((3, 3, 5), jnp.bfloat16))
    assert bytes_of((pages(), slots, pages())) == (2 * 2 * 3 * PAGE_ROWS * 8 * 4, 3 * 32 * 4 + 45 * 2)
