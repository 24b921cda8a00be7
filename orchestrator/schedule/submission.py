# Purpose: how jobs come in: a whole set at the start, or some more while it runs. It is one way for both.
#
#   check ─> columns ─> links (depth) ─> labels ─> same state key ─> same second-level key
#         ─> libraries that are settled ─> length and urgency of libraries ─> what cannot be ─> queue
#
# Guarantees: what is refused with ValueError has changed nothing. O(jobs + links), with array operations but for
# links (one pass in the interpreter) and jobs that are the same as one that is settled.
"""`Submission`: enters jobs into a `Lifecycle`, and the answers to a submission."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.schedule.affinity import Affinity
from orchestrator.schedule.costs import DEFAULT_COST_NS
from orchestrator.schedule.job_table import CANCELLED, FAILED, JOINED, READY, SHARED, UNASSIGNABLE, WAITING
from orchestrator.schedule.key_table import KeyTable
from orchestrator.schedule.lifecycle import Lifecycle
from orchestrator.schedule.links import checked_links
from orchestrator.schedule.scheduler import JobGraph, Priority

_LOST = {
    FAILED: "which was not created",
    UNASSIGNABLE: "which was not created",
    CANCELLED: "which was cancelled",
}


@frozen
class Accepted:
    """Submitted jobs were taken.

    Attributes:
        first: Number of the first; the others follow.
        count: How many.
    """

    first: int
    count: int


@frozen
class Full:
    """Submitted jobs were not taken, none of them: the queue is full. Submit again when some have ended.

    Attributes:
        room: How many would be taken now.
    """

    room: int


class Submission:
    """Enters jobs, and knows their keys.

    Args:
        life: Where they go.
        affinity: Who labels them.
    """

    def __init__(self, life: Lifecycle, affinity: Affinity) -> None:
        self._life = life
        self._affinity = affinity
        self._by_key = KeyTable()
        self._by_pipeline_key = KeyTable()
        self._by_pipeline_key_bytes: dict[bytes, int] = {}

    def add(self, jobs: JobGraph) -> int:
        """Enter jobs; see `CostScheduler.submit`. Returns the number of the first."""
        life, table = self._life, self._life.table
        first = table.count
        check(jobs, first)
        table.extend(len(jobs))
        rows = slice(first, table.count)
        table.kind[rows] = jobs.kinds
        table.cost[rows] = DEFAULT_COST_NS if jobs.costs_ns is None else np.maximum(jobs.costs_ns, 1)
        table.rank[rows] = table.cost[rows]
        table.priority[rows] = Priority.SOON if jobs.priorities is None else jobs.priorities
        if jobs.groups is not None:
            table.group[rows] = jobs.groups
        if jobs.numbers is not None:
            table.number[rows] = jobs.numbers
        table.entered(first)

        edges = life.links.count
        life.links.add(first, jobs.library_start, jobs.library_index)
        links = life.links.edges_from(edges)
        self._affinity.label(first, jobs.module_start, jobs.module_index, links)
        new = np.arange(first, table.count, dtype=np.int32)
        if jobs.keys is not None:
            owners = self._by_key.claim(jobs.keys, new)
            other = owners != new
            life.unite_new(new[other], owners[other])
        if jobs.pipeline_keys is not None:
            self._unite_by_pipeline_key(new, jobs.pipeline_keys)

        if links[0] and first:
            self._meet_the_past(*links, first)
        self._inherit(*links)
        for job, reason in jobs.unusable.items():
            life.reject(job, reason)
        self._enqueue(first)
        return first

    def identify(
        self, jobs: npt.NDArray[np.int32], keys: npt.NDArray[np.uint64] | Sequence[bytes | None]
    ) -> None:
        """Give jobs their second-level key; see `CostScheduler.identify`."""
        if len(jobs) != len(keys):
            raise ValueError(f"{len(jobs)} jobs and {len(keys)} keys")
        if len(jobs) and (int(jobs.min()) < 0 or int(jobs.max()) >= self._life.table.count):
            raise ValueError("there is no such job")
        if len(np.unique(jobs)) != len(jobs):
            raise ValueError("a job is given two keys")
        if isinstance(keys, np.ndarray):
            self._unite_by_pipeline_key(jobs, keys)
            return
        for job, key in zip(jobs.tolist(), keys, strict=True):
            if key is not None:
                owner = self._by_pipeline_key_bytes.setdefault(key, job)
                if owner != job:
                    self._life.unite(job, owner, by_pipeline_key=True)

    @property
    def nbytes(self) -> int:
        """Bytes of the key tables; keys given as bytes come on top."""
        return self._by_key.nbytes + self._by_pipeline_key.nbytes

    def _unite_by_pipeline_key(self, jobs: npt.NDArray[np.int32], keys: npt.NDArray[np.uint64]) -> None:
        known = keys != 0
        jobs = jobs[known]
        owners = self._by_pipeline_key.claim(keys[known], jobs)
        other = owners != jobs
        self._life.unite_new(jobs[other], owners[other], by_pipeline_key=True)

    def _inherit(self, libraries: list[int], linkers: list[int]) -> None:
        """A library is as urgent as what links it, and so long that the whole chain starts in time.

        From the last linker to the first, so that a linker's own length is final when its libraries' is found.
        """
        life, table = self._life, self._life.table
        for library, linker in zip(reversed(libraries), reversed(linkers), strict=True):
            if table.state_at[linker] <= JOINED:
                life.raise_(
                    library, table.priority_at[linker], table.cost_at[library] + table.rank_at[linker]
                )

    def _meet_the_past(self, libraries: list[int], linkers: list[int], first: int) -> None:
        """New jobs link libraries that have had their day."""
        life, table = self._life, self._life.table
        for library, linker in zip(libraries, linkers, strict=True):
            if library >= first:
                continue
            if table.state_at[library] == SHARED:
                life.revive(library)
            if (what := _LOST.get(table.state_at[library])) is not None:
                cause = life.unassignable.get(library) or life.failures.get(library)
                number = table.number_at[library]
                life.reject(linker, f"links pipeline {number}, {what}" + (f": {cause}" if cause else ""))

    def _enqueue(self, first: int) -> None:
        """Queue all jobs from a number on that wait for nothing."""
        table = self._life.table
        rows = slice(first, table.count)
        ready = np.flatnonzero((table.state[rows] == WAITING) & (table.waiting[rows] == 0)) + first
        jobs = ready.astype(np.int32)
        table.move_all(jobs, WAITING, READY)
        self._life.queue.push_all(jobs)


def check(jobs: JobGraph, first: int) -> None:
    """Refuse a graph whose arrays do not fit together.

    Args:
        jobs: The graph.
        first: The number that its first job will have.

    Raises:
        ValueError: What is wrong.
    """
    count = len(jobs)
    for name in ("costs_ns", "keys", "pipeline_keys", "priorities", "groups", "numbers"):
        column = getattr(jobs, name)
        if column is not None and len(column) != count:
            raise ValueError(f"{name} has {len(column)} elements for {count} jobs")
    if jobs.priorities is not None and count and int(jobs.priorities.max()) > Priority.BACKGROUND:
        raise ValueError("priorities holds a number that is no Priority")
    if len(jobs.library_start) != count + 1:
        raise ValueError("library_start does not have one element more than there are jobs")
    if (jobs.module_start is None) != (jobs.module_index is None):
        raise ValueError("module_start and module_index go together")
    if jobs.module_start is not None and jobs.module_index is not None:
        span = int(jobs.module_start[-1]) if len(jobs.module_start) == count + 1 else -1
        if span != len(jobs.module_index):
            raise ValueError("module_start does not span module_index")
    for job in jobs.unusable:
        if not first <= job < first + count:
            raise ValueError(f"there is no job {job}")
    checked_links(first, jobs.library_start, jobs.library_index)
