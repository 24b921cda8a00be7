# Purpose: jobs that share code prefer one worker, so that its private cache can hit.
#
# Each job gets at most one label: the rarest shader module that it shares with another job (what is shared by few
# is what a cache can make the most of; a vertex shader that everything shares says nothing), else the first
# library that it links. The first worker that is assigned a job of a label is the label's home. A worker takes, of
# jobs that are about equally urgent and long, those at home with it or not at home anywhere.
#
# Why it costs no balance: a preference only orders jobs inside a window, and never leaves a worker without one:
# where nothing in the window suits it takes the first. What it passes over must be short: its length times
# SHORT at most each worker's share of what is left. So the longest job starts first whoever's it is, and towards
# the end, when even a short job is a good part of what is left, the preference is off.
"""`Affinity`: labels of jobs and homes of labels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from orchestrator.schedule.job_table import JobTable

Int32s = npt.NDArray[np.int32]

WINDOW = 32
"""How many ready jobs a worker looks at for one that suits it. With 8 workers, (7/8)^32 = 1 % find none."""

SHORT = 8
"""A job may be passed over if it is at most this part of a worker's share of what is left."""

MOST_HIT = 0.9
"""Share of hits from which on there is no preference: the caches have the code, whoever's they are."""

_NOBODY = -1


class Affinity:
    """Labels and homes.

    Args:
        table: The jobs; their column `label` is written here.
        enabled: Whether there is any preference.

    Attributes:
        at_home: Jobs that were assigned to the home of their label, the first of a label not counted.
        moved: Jobs that were assigned elsewhere.
    """

    def __init__(self, table: JobTable, *, enabled: bool) -> None:
        self._table = table
        self.enabled = enabled
        self.at_home = 0
        self.moved = 0
        self._users = np.zeros(0, np.int64)
        # Modules have even labels, libraries odd ones.
        self._home = np.zeros(0, np.int32)
        self.home_at: memoryview[int] = self._home.data
        self._labelled = False

    def label(
        self,
        first: int,
        module_start: npt.NDArray[np.int64] | None,
        module_index: Int32s | None,
        libraries: tuple[list[int], list[int]],
    ) -> None:
        """Label new jobs.

        Args:
            first: Number of the first new job.
            module_start: Where each job's modules begin, shape (n + 1,), or None where modules are not known.
            module_index: The modules.
            libraries: Libraries and linkers of their links.
        """
        if not self.enabled:
            return
        label_at = self._table.label_at
        highest = -1
        if module_start is not None and module_index is not None and len(module_index):
            self._table.label[first : self._table.count] = self._module_labels(module_start, module_index)
            highest = 2 * int(module_index.max())
        for library, linker in zip(*libraries, strict=True):
            if label_at[linker] < 0:
                label_at[linker] = 2 * library + 1
                highest = max(highest, 2 * library + 1)
        if highest >= 0:
            self._labelled = True
            self._make_room(highest + 1)

    @property
    def active(self) -> bool:
        """Whether any job has a label."""
        return self._labelled

    def suits(self, job: int, worker: int) -> bool:
        """Whether a job is at home with a worker, or nowhere."""
        label = self._table.label_at[job]
        return label < 0 or self.home_at[label] in (worker, _NOBODY)

    def suiting(self, jobs: Int32s, worker: int) -> npt.NDArray[np.bool_]:
        """Which of many jobs are at home with a worker, or nowhere."""
        labels = self._table.label[jobs]
        home = self._home[labels]
        return np.asarray((labels < 0) | (home == worker) | (home == _NOBODY))

    def assigned(self, job: int, worker: int) -> None:
        """A job was assigned."""
        home_at = self.home_at
        own = 2 * job + 1
        if own < len(home_at):
            home_at[own] = worker
        label = self._table.label_at[job]
        if label >= 0:
            home = home_at[label]
            if home == _NOBODY:
                home_at[label] = worker
            elif home == worker:
                self.at_home += 1
            else:
                self.moved += 1

    def assigned_all(self, jobs: Int32s, worker: int) -> None:
        """Many jobs were assigned."""
        own = 2 * jobs.astype(np.int64) + 1
        self._home[own[own < len(self._home)]] = worker
        labels = self._table.label[jobs]
        labels = labels[labels >= 0]
        if len(labels):
            home = self._home[labels]
            new = home == _NOBODY
            at_home = int(np.count_nonzero(home == worker))
            self.at_home += at_home
            self.moved += len(labels) - at_home - int(np.count_nonzero(new))
            self._home[labels[new]] = worker

    @property
    def nbytes(self) -> int:
        """Bytes of homes and counts."""
        return self._users.nbytes + self._home.nbytes

    def _module_labels(self, start: npt.NDArray[np.int64], index: Int32s) -> Int32s:
        """The rarest module of each job that others use as well, as a label; -1 where there is none."""
        users = np.bincount(index, minlength=len(self._users))
        users[: len(self._users)] += self._users
        self._users = users
        unshared = np.int64(1) << 62
        number = index.astype(np.int64)
        weight = np.where(users[number] > 1, (users[number] << 31) | number, unshared)
        labels = np.full(len(start) - 1, -1, np.int32)
        some = np.flatnonzero(np.diff(start))
        rarest = np.minimum.reduceat(weight, start[some])
        shared = rarest != unshared
        labels[some[shared]] = 2 * (rarest[shared] & ((1 << 31) - 1))
        return labels

    def _make_room(self, size: int) -> None:
        if size > len(self._home):
            home = np.full(max(size, len(self._home) * 3 // 2), _NOBODY, np.int32)
            home[: len(self._home)] = self._home
            self._home = home
            self.home_at = home.data
