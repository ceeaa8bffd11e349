"""Pages of keys and values: who holds each, and how many of its rows are written. Numbers only, no array of keys."""

import numpy as np
from jaxtyping import Int32

from pallas_kernels.fork_attention.metadata import PAGE_ROWS

type PageList = Int32[np.ndarray, " entries"]


class Pages:
    """`count` pages, each held by any number of checkpoints.

    A page's rows are written once, from the first on: `claim` says who may write behind those that are. So a page that
    two checkpoints share holds the same rows for both, whatever stands in it behind them.
    """

    def __init__(self, count: int) -> None:
        self._holders = np.zeros(count, np.int32)
        self._written = np.zeros(count, np.int32)
        self._names = np.zeros(count, np.int64)
        self._named = 0
        self._free = list(range(count - 1, -1, -1))

    @property
    def total(self) -> int:
        """All pages."""
        return self._holders.size

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self, count: int) -> PageList:
        """Pages that nobody held, each now held once and without a row. Raises ValueError: there are not so many."""
        if count > self.free:
            raise ValueError(f"{count} pages are wanted, {self.free} are free")
        taken = np.array([self._free.pop() for _ in range(count)], np.int32)
        self._holders[taken] = 1
        self._written[taken] = 0
        self._names[taken] = np.arange(self._named, self._named + count)
        self._named += count
        return taken

    def name(self, page: int) -> int:
        """A number that a page has as long as it is held, and that no page had before or will have again."""
        return int(self._names[page])

    def is_held(self, page: int) -> bool:
        """Whether anybody holds it."""
        return bool(self._holders[page])

    def hold(self, pages: PageList) -> None:
        """One more holder of each; a page stands in a list once."""
        self._holders[pages] += 1

    def drop(self, pages: PageList) -> None:
        """One holder fewer of each; those without any are free."""
        self._holders[pages] -= 1
        self._free += pages[self._holders[pages] == 0].tolist()

    def claim(self, page: int, begin: int, end: int) -> bool:
        """Take rows `begin` to `end` of a page for whoever is to write them, if those before `begin` are written."""
        if self._written[page] != begin:
            return False
        self._written[page] = end
        return True

    def take_back(self, page: int, begin: int) -> None:
        """The rows from `begin` on were claimed last, and nothing that counts has been written there."""
        self._written[page] = begin


def rows_in_pages(rows: int) -> list[int]:
    """How many of so many rows stand in each of the pages that hold them."""
    return [min(PAGE_ROWS, rows - begin) for begin in range(0, rows, PAGE_ROWS)]


def pages_for(rows: int) -> int:
    """How many pages hold so many rows."""
    return -(-rows // PAGE_ROWS)
