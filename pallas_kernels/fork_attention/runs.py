"""Which keys a tile of query rows meets, as runs of key rows, computed on the device from the rows' spans.

A tile is a run of query rows of any branches and requests. The keys that all of its rows see, as whole blocks, are
its cores: they need no mask. Questions of a request stand in tiles together and load the state's cores once for all
rows of a tile, where texts of their own would load them once for each; every row still multiplies with all of them, so
what a fork saves beyond that is the state's own rows, which run once. What remains at both ends of a core, and the
spans that the rows do not share, are put one after the other in strips of few keys and cut into blocks anew: a state's
last keys and a branch's first ones share a block, so a short question meets few keys that it does not see.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32

from pallas_kernels.fork_attention.metadata import PAGE_ROWS, CachedKeys, KeySpans

# Rows that one copy brings into a masked block, and at whose multiples they begin. The copy engine asks for multiples
# of eight, which would take twice as many copies to save one key block in forty.
STRIP = 16
# Rows of two requests in one tile see keys that are far apart. A smaller gap costs less than another run.
LEAST_GAP = 2 * STRIP
_NEVER = np.int32(np.iinfo(np.int32).max)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TileRuns:
    """The key lists of all tiles, each a list of unmasked keys, then one of masked keys.

    A list is made of runs: its positions up to `end` (and from the end of the run before) are the key rows
    `position + shift`. Sources are the cached keys, if there are any, then the state's and the own ones: axis S. The
    unmasked list has one run of each, in whole blocks; the masked one has two of each, in whole strips: axis `runs`.
    Runs may be empty. Cached key rows are those of `CachedKeys`; a core of them begins at a page.

    In the positions of the masked list each row sees one span of each source, `visible_begin` to `visible_end`. A row
    that sees nothing at all has the span [-1, 0) of the first source: it may be in a core, and must not show it.

    Two rows in one tile that see the keys [3, 210) and [3, 211) of a state and the own keys [211, 212) and [211, 213),
    with blocks of 64:

        unmasked  positions 0 to 192 are the keys 16 to 208: end 192, shift 16
        masked    0 to 16 are the keys 0 to 16, 16 to 32 the keys 208 to 224, and 32 to 48 again these as own keys:
                  end 16, 32, 48, 48 and shift 0, 192, 176, -; the rows see 3 to 18 and 3 to 19 of it (the state's
                  keys), 35 to 36 and 35 to 37 (their own)
    """

    core_shift: Int32[Array | np.ndarray, "S tiles"]
    core_end: Int32[Array | np.ndarray, "S tiles"]
    masked_shift: Int32[Array | np.ndarray, "runs tiles"]
    masked_end: Int32[Array | np.ndarray, "runs tiles"]
    visible_begin: Int32[Array | np.ndarray, "S tiles rows"]
    visible_end: Int32[Array | np.ndarray, "S tiles rows"]

    def cores(self, block: int) -> Int32[Array | np.ndarray, " tiles"]:
        """Unmasked blocks of each tile."""
        return self.core_end[-1] // block

    def blocks(self, block: int) -> Int32[Array | np.ndarray, " tiles"]:
        """All blocks of each tile."""
        return self.cores(block) + (self.masked_end[-1] + block - 1) // block

    def pairs(self, block: int) -> int:
        """How many pairs of a row and a key all tiles multiply, hidden ones included."""
        return int(np.asarray(self.blocks(block)).sum()) * block * self.visible_begin.shape[-1]


def tile_runs(spans: KeySpans, cached: CachedKeys | None, *, rows: int, block: int) -> TileRuns:
    """Key lists of tiles of `rows` query rows each, with blocks of `block` keys."""
    columns = [(spans.state_begin, spans.state_end, STRIP), (spans.own_begin, spans.own_end, STRIP)]
    if cached is not None:
        columns.insert(0, (cached.begin, cached.end, PAGE_ROWS))
    sources = [(_of_tiles(begin, rows), _of_tiles(end, rows)) for begin, end, _ in columns]
    idle = functools.reduce(jnp.logical_and, [end <= begin for begin, end in sources])
    hulls = _hulls(sources, idle)

    core_shift, core_end, masked_shift, masked_end, visible_begin, visible_end = ([] for _ in range(6))
    core_position = masked_position = jnp.zeros(sources[0][0].shape[0], jnp.int32)
    for (begin, end), hull, (_, _, alignment) in zip(sources, hulls, columns, strict=True):
        core_begin = _up(hull.last_begin, alignment)
        core_keys = jnp.where(hull.end > 0, jnp.maximum(hull.first_end - core_begin, 0) // block * block, 0)
        has_core = core_keys > 0
        core_shift.append(core_begin - core_position)
        core_position = core_position + core_keys
        core_end.append(core_position)

        # Two runs: before and after the core or, without one, the keys of rows like the first, and of the others.
        run_begins = hull.begin, jnp.where(has_core, core_begin + core_keys, hull.others_begin)
        run_ends = jnp.where(has_core, core_begin, hull.end), jnp.where(has_core, hull.end, hull.others_end)
        for run_begin, run_end in zip(run_begins, run_ends, strict=True):
            masked_shift.append(run_begin - masked_position)
            masked_position = masked_position + run_end - run_begin
            masked_end.append(masked_position)
        before, after = (shift[:, None] for shift in masked_shift[-2:])
        is_other = (begin != begin[:, :1]) & (hull.others_end > 0)[:, None]
        sees = end > begin
        visible_begin.append(jnp.where(sees, begin - jnp.where(is_other, after, before), 0))
        visible_end.append(jnp.where(sees, end - jnp.where(is_other | has_core[:, None], after, before), 0))
    visible_begin[0] = jnp.where(idle, -1, visible_begin[0])
    lists = (core_shift, core_end, masked_shift, masked_end, visible_begin, visible_end)
    return TileRuns(*(jnp.stack(columns) for columns in lists))


class _Hull(NamedTuple):
    """Of the spans of one source in each tile, int32 [tiles] each; hulls are whole strips, [0, 0) if there is none."""

    begin: Array  # of the rows whose span begins as the first row's: those of one request
    end: Array
    others_begin: Array  # of the other rows, if their keys are far from those
    others_end: Array
    last_begin: Array  # what all rows see that see anything lies between the last begin and the first end
    first_end: Array


def _hulls(
    sources: Sequence[tuple[Int32[Array, "tiles rows"], Int32[Array, "tiles rows"]]], idle: Bool[Array, "tiles rows"]
) -> list[_Hull]:
    """The hulls of each source. All are found in one launch: as many least values of columns."""
    columns = []
    for begin, end in sources:
        alike, sees = begin == begin[:, :1], end > begin
        for member in (sees & alike, sees & ~alike):
            columns += [jnp.where(member, begin, _NEVER), jnp.where(member, -end, 0)]
        columns += [jnp.where(idle, _NEVER, -begin), jnp.where(idle, _NEVER, end)]
    least = jax.lax.reduce(
        tuple(columns), len(columns) * (_NEVER,), lambda x, y: tuple(map(jax.lax.min, x, y)), dimensions=(1,)
    )

    hulls = []
    for n in range(0, len(columns), 6):
        first, last, others_first, others_last = least[n], -least[n + 1], least[n + 2], -least[n + 3]
        gap = jnp.maximum(others_first - last, first - others_last)
        near = (last > 0) & (others_last > 0) & (gap < LEAST_GAP)
        first, last = (
            jnp.where(near, jnp.minimum(first, others_first), first),
            jnp.where(near, jnp.maximum(last, others_last), last),
        )
        others_last = jnp.where(near, 0, others_last)
        hulls.append(_Hull(*_strips(first, last), *_strips(others_first, others_last), -least[n + 4], least[n + 5]))
    return hulls


def _strips(first: Int32[Array, " tiles"], last: Int32[Array, " tiles"]) -> tuple[Array, Array]:
    """The strips that hold the keys [first, last); [0, 0) if last is 0."""
    return jnp.where(last > 0, first // STRIP * STRIP, 0), _up(last, STRIP)


def _of_tiles(column: Int32[Array | np.ndarray, " N"], rows: int) -> Int32[Array, "tiles rows"]:
    """Rows beyond the last see nothing."""
    return jnp.pad(jnp.asarray(column), (0, -column.shape[0] % rows)).reshape(-1, rows)


def _up(x: Int32[Array, " tiles"], multiple: int) -> Int32[Array, " tiles"]:
    return (x + multiple - 1) // multiple * multiple
