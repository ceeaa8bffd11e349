"""Pages of one store that hold the same rows as pages of another, so that these need not be copied again."""

from collections.abc import Sequence

import numpy as np

from flide_jax.checkpoints.pages import PageList, Pages


class Twins:
    """By the names of pages of one store: their twins in another, `there`. Rows of a twin are never written again."""

    def __init__(self, there: Pages) -> None:
        self._there = there
        # Name here -> page and name there, and how many rows they have in common.
        self._found: dict[int, tuple[int, int, int]] = {}

    def add(self, names: Sequence[int], pages: PageList, rows: Sequence[int]) -> None:
        """Pages with these names hold the first `rows` rows of those pages there."""
        for name, page, own_rows in zip(names, pages.tolist(), rows, strict=True):
            self._found[name] = page, self._there.name(page), own_rows
        if len(self._found) > 2 * self._there.total:
            # One for each page there is enough: without the others a page may be copied once more.
            last = {found[0]: (name, found) for name, found in self._found.items() if self._is_there(found)}
            self._found = dict(last.values())

    def find(self, names: Sequence[int], rows: Sequence[int]) -> PageList:
        """The twins that hold so many rows of each page, -1 where there is none."""
        twins = [self._found.get(name) for name in names]
        return np.array(
            [
                twin[0] if twin is not None and twin[2] >= own_rows and self._is_there(twin) else -1
                for twin, own_rows in zip(twins, rows, strict=True)
            ],
            np.int32,
        )

    def clear(self) -> None:
        """Forget all."""
        self._found.clear()

    def _is_there(self, found: tuple[int, int, int]) -> bool:
        page, name, _ = found
        return self._there.is_held(page) and self._there.name(page) == name
