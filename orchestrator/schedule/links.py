# Purpose: which job links which library. Each link is an edge with three numbers; the edges of a linker stand side
# by side, those of a library are chained, so that jobs which are streamed in can link libraries that are there.
#
# Guarantees: a job that names a library twice has one edge. An edge is walked a bounded number of times (when it
# is entered, when its library was created or is lost, when its linker is cancelled): all in all O(edges).
# Assumptions: a library has a smaller number than its linker, so the links form no circle.
"""`Links`: the edges between linkers and libraries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from orchestrator.schedule.job_table import CREATED, JobTable

Int32s = npt.NDArray[np.int32]


class Links:
    """Edges between the jobs of a table.

    Args:
        table: The jobs; their columns `first_edge`, `library_start`, `library_count`, `waiting`,
            `live_linkers` and `depth` are written here.
    """

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self.count = 0
        self._library = np.empty(0, np.int32)
        self._linker = np.empty(0, np.int32)
        self._next = np.empty(0, np.int32)
        self._take_views()

    def add(self, first: int, start: npt.NDArray[np.int64], index: Int32s) -> None:
        """Enter the links of new jobs.

        Args:
            first: Number of the first new job; the others follow.
            start: Where each job's libraries begin in `index`, shape (n + 1,).
            index: The libraries, job numbers.

        Raises:
            ValueError: A library does not come before its linker, or the arrays do not fit.
        """
        table = self._table
        linker, library = checked_links(first, start, index)
        number = len(library)
        if not number:
            return
        edges = self._extend(library, linker)
        table.library_count[first : table.count] = np.bincount(linker - first, minlength=table.count - first)
        table.library_start[first : table.count] = edges + np.concatenate(
            ([0], np.cumsum(table.library_count[first : table.count - 1]))
        )

        order = np.argsort(library, kind="stable")
        ordered = library[order]
        last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
        begin = np.concatenate(([0], last[:-1] + 1))
        own = (order + edges).astype(np.int32)
        following = np.append(own[1:], -1).astype(np.int32)
        following[last] = table.first_edge[ordered[last]]
        self._next[own] = following
        table.first_edge[ordered[last]] = own[begin]
        table.live_linkers[ordered[last]] += (last - begin + 1).astype(np.int32)

        missing = table.state[library] != CREATED
        table.waiting[first : table.count] = np.bincount(
            linker[missing] - first, minlength=table.count - first
        )
        depth_at = table.depth_at
        for below, above in zip(library.tolist(), linker.tolist(), strict=True):
            if depth_at[below] >= depth_at[above]:
                depth_at[above] = depth_at[below] + 1

    def linkers_of(self, library: int) -> Iterator[int]:
        """The jobs that link a library."""
        edge = self._table.first_edge_at[library]
        while edge >= 0:
            yield self._linker_at[edge]
            edge = self._next_at[edge]

    def libraries_of(self, linker: int) -> list[int]:
        """The libraries that a job links."""
        start = self._table.library_start_at[linker]
        return self._library_at[start : start + self._table.library_count_at[linker]].tolist()

    def edges_from(self, edge: int) -> tuple[list[int], list[int]]:
        """Libraries and linkers of all edges from a number on, in ascending order of their linkers."""
        return self._library[edge : self.count].tolist(), self._linker[edge : self.count].tolist()

    @property
    def nbytes(self) -> int:
        """Bytes of all edges."""
        return self._library.nbytes + self._linker.nbytes + self._next.nbytes

    def _extend(self, library: Int32s, linker: Int32s) -> int:
        edges, needed = self.count, self.count + len(library)
        if needed > len(self._library):
            capacity = needed if not edges else max(needed, edges + edges // 2)
            for name in ("_library", "_linker", "_next"):
                column = np.empty(capacity, np.int32)
                column[:edges] = getattr(self, name)[:edges]
                setattr(self, name, column)
            self._take_views()
        self._library[edges:needed] = library
        self._linker[edges:needed] = linker
        self.count = needed
        return edges

    def _take_views(self) -> None:
        self._library_at: memoryview[int] = self._library.data
        self._linker_at: memoryview[int] = self._linker.data
        self._next_at: memoryview[int] = self._next.data


def checked_links(first: int, start: npt.NDArray[np.int64], index: Int32s) -> tuple[Int32s, Int32s]:
    """Linker and library of each link, ascending, none twice; changes nothing.

    Raises:
        ValueError: See `Links.add`.
    """
    number = len(start) - 1
    linker = np.repeat(np.arange(first, first + number, dtype=np.int64), np.diff(start))
    if len(linker) != len(index):
        raise ValueError("library_start does not span library_index")
    library = index.astype(np.int64)
    if np.any(library >= linker) or np.any(library < 0):
        raise ValueError("a job links a library that does not come before it")
    size = first + number
    pairs = np.unique(linker * size + library) if size else linker
    linker, library = np.divmod(pairs, max(size, 1))
    return linker.astype(np.int32), library.astype(np.int32)
