"""What growing states leave on the device for later rounds, layer by layer: keys in pages, states and windows in slots.

A round takes the whole pool and returns it with its own rows and slots written. It is written in place where the caller
donates it. Nothing here says whose a page or a slot is: the round's `GrowthMetadata` does.
"""

import math

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from flide_jax.layout.growth import GrowthMetadata
from flide_jax.models.params import Param
from pallas_kernels import CachedKeys


@struct.dataclass
class KeyPages:
    """Of an attention layer. Values are finite: see `CachedKeys`."""

    key: Param  # [pages, PAGE_ROWS, KV, D]
    value: Param  # [pages, PAGE_ROWS, KV, D]

    def cached(self, growth: GrowthMetadata) -> CachedKeys:
        """The rows that a round resumes."""
        return CachedKeys(
            key=self.key,
            value=self.value,
            table=growth.page_table,
            begin=growth.cached_begin,
            end=growth.cached_end,
        )

    def keep(self, key: Float[Array, "T KV D"], value: Float[Array, "T KV D"], growth: GrowthMetadata) -> "KeyPages":
        """With the rows of a round that are kept; their values are finite, as `rotary_norm` leaves them."""
        place = jnp.asarray(growth.kept_page), jnp.asarray(growth.kept_row)

        def written(pages: Array, rows: Array) -> Array:
            return pages.at[place].set(rows, mode="drop", unique_indices=True)

        return KeyPages(key=written(self.key, key), value=written(self.value, value))


@struct.dataclass
class StateSlots:
    """Of a Gated DeltaNet layer; states in float32 at least, windows in the dtype of the projected rows."""

    states: Param  # [slots, nv, dv, dk]
    windows: Param  # [slots, taps - 1, conv channels]

    def keep_windows(self, projected: Float[Array, "T width"], growth: GrowthMetadata) -> "StateSlots":
        """With the last rows before each saved position; a window goes on from another where its state does."""
        stream_rows, (_, earlier, channels) = projected.shape[0], self.windows.shape
        rows = jnp.asarray(growth.window_rows).reshape(-1, 1)
        in_stream = projected[jnp.clip(rows[:, 0], 0, stream_rows - 1), :channels]
        in_window = self.windows.reshape(-1, channels)[jnp.maximum(rows[:, 0] - stream_rows, 0)]
        found = jnp.where(rows < 0, 0, jnp.where(rows < stream_rows, in_stream, in_window))
        windows = self.windows.at[jnp.asarray(growth.window_slot)].set(
            found.reshape(-1, earlier, channels), mode="drop", unique_indices=True
        )
        return StateSlots(states=self.states, windows=windows)


type LayerPool = KeyPages | StateSlots
type Pool = tuple[LayerPool, ...]


def bytes_of(pool: Pool) -> tuple[int, int]:
    """Bytes of all pages, and of all slots; of arrays or their shapes and dtypes."""
    pages, slots = (
        sum(
            math.prod(leaf.shape) * leaf.dtype.itemsize
            for layer in pool
            if isinstance(layer, kind)
            for leaf in jax.tree.leaves(layer)
        )
        for kind in (KeyPages, StateSlots)
    )
    return pages, slots
