"""Which key blocks a tile of query rows meets, computed on the device from the rows' spans.

A tile is a run of query rows of any branches and requests. Its rows' state spans have a hull, and inside it a core
that every row sees whole; so have its own spans. Blocks of keys inside a core need no mask. All questions of a
request share the state's keys as one dense list of such blocks: that is the whole saving of a fork.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32

from pallas_kernels.fork_attention.metadata import KeySpans

# Rows at which a block of keys may begin: the copy engine moves groups of eight rows.
ALIGNMENT = 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TileTable:
    """The block lists of all tiles.

    A hull is cut into blocks from `hull_begin` (a multiple of ALIGNMENT) on. Blocks `core_begin` to `core_end` of it
    lie in the core; the others up to `blocks` need the mask. Axis 1 is (state, own).
    """

    hull_begin: Int32[jax.Array | np.ndarray, "tiles 2"]
    core_begin: Int32[jax.Array | np.ndarray, "tiles 2"]
    core_end: Int32[jax.Array | np.ndarray, "tiles 2"]
    blocks: Int32[jax.Array | np.ndarray, "tiles 2"]

    def packed(self) -> Int32[Array, "tiles 8"]:
        """hull_begin, core_begin, core_end, blocks, each of (state, own): for a kernel that reads scalars."""
        return jnp.concatenate(jax.tree.leaves(self), axis=1)


def tile_table(spans: KeySpans, *, rows: int, block: int) -> TileTable:
    """Block lists of tiles of `rows` query rows each, with blocks of `block` keys.

    Two rows in one tile, `rows` = 2 and `block` = 64, that see [3, 200) and [3, 201) of a state:

        hull [3, 201), core [3, 200), hull_begin 0, blocks 4: [0, 64) masked, [64, 128) core, [128, 192) core, the
        last masked; core_begin 1, core_end 3.
    """
    begin = _of_tiles(jnp.stack([jnp.asarray(spans.state_begin), jnp.asarray(spans.own_begin)], axis=-1), rows)
    end = _of_tiles(jnp.stack([jnp.asarray(spans.state_end), jnp.asarray(spans.own_end)], axis=-1), rows)
    sees = end > begin
    first = jnp.min(begin, axis=1, where=sees, initial=jnp.iinfo(jnp.int32).max)
    last = jnp.max(end, axis=1, where=sees, initial=0)
    hull_begin = jnp.where(last > 0, first // ALIGNMENT * ALIGNMENT, 0)
    blocks = -(-(last - hull_begin) // block)

    # Empty spans shrink the core to nothing: a row that sees none of these keys must not meet them unmasked.
    core_first, core_last = jnp.max(begin, axis=1), jnp.min(end, axis=1)
    core_begin = -(-(core_first - hull_begin) // block)
    core_end = (core_last - hull_begin) // block
    empty = core_end <= core_begin
    return TileTable(
        hull_begin=hull_begin,
        core_begin=jnp.where(empty, 0, core_begin),
        core_end=jnp.where(empty, 0, core_end),
        blocks=blocks,
    )


def _of_tiles(columns: Int32[Array, "N 2"], rows: int) -> Int32[Array, "tiles rows 2"]:
    """Rows beyond the last see nothing."""
    return jnp.pad(columns, ((0, -columns.shape[0] % rows), (0, 0))).reshape(-1, rows, 2)
