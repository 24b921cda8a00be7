# Purpose: the plain scheduler: first in, first out, in the order of the set, in batches of one kind whose
# size shrinks towards the end ("guided" self-scheduling), so that the workers arrive at the barrier together. Batches
# that end at once, because all of it was in a cache, are followed by larger ones, and shrink less: a tail of hits is
# short anyway, and each call costs as much as dozens of them.
#
# How: one array of job numbers holds a queue for each kind. Jobs without libraries are queued at the start,
# in set order; a job that links libraries is queued when the last of them was created. Kinds are served in
# their order, but nothing waits between two kinds: a worker that finds graphics empty takes compute.
#
# Guarantees: those of Scheduler. A request costs O(1) (a slice of the queue, no copy), the end of a batch
# O(jobs that link its libraries); nothing is kept per job but array elements.
# Assumptions: libraries have smaller numbers than what links them (JobGraph).
"""`FifoScheduler`: set order, guided batch size, libraries first."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from orchestrator.schedule.scheduler import Assignment, Done, JobGraph, Wait

DEFAULT_BATCH_LIMIT = 64
"""Largest batch while pipelines compile: 64 at a millisecond or two each are a tenth of a second."""

DEFAULT_HIT_LIMIT = 256
"""Largest batch while they are found in a cache, at one to two microseconds each. A larger one would leave the interpreter
less time still, and a stop or an idle worker waiting longer where it turns out to hold what must be compiled."""

SHARES_PER_WORKER = 4
"""A batch is at most the remaining jobs divided by this many shares for each worker: a short tail."""

SHARES_OF_HITS = 1
"""The same, while pipelines are found in a cache."""

LEAST_HITS = 128
"""No batch gets smaller for the sake of the tail while pipelines are found in a cache: 0.1 to 0.3 ms."""

_QUICK_NS = 1_000_000  # a batch that took less is followed by one of twice the size
_SLOW_NS = 4_000_000  # one that took more by one of the usual size
_WAIT = Wait()
_DONE = Done()


class FifoScheduler:
    """First in, first out, in set order; see the top of the module. Not thread-safe.

    Args:
        jobs: The jobs.
        workers: Number of workers, numbered 0..workers-1.
        limit: Largest batch, at least 1.
        hit_limit: Largest batch that quick ones may grow to; `limit` where it is less. None: a limit that was given is
            the limit for all; with the default one it is DEFAULT_HIT_LIMIT.

    Raises:
        ValueError: A number is out of range, or a job links a library that does not come before it.
    """

    def __init__(
        self,
        jobs: JobGraph,
        workers: int,
        *,
        limit: int = DEFAULT_BATCH_LIMIT,
        hit_limit: int | None = None,
    ) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        self._limit = self._size = limit
        if hit_limit is None:
            hit_limit = DEFAULT_HIT_LIMIT if limit == DEFAULT_BATCH_LIMIT else limit
        self._hit_limit = max(limit, hit_limit)
        self._workers = workers
        self._hits = False
        self._assigned: list[Assignment | None] = [None] * workers
        self._in_flight = 0
        self._done = 0
        self._cancelled = False
        self._unassignable: dict[int, str] = {}

        count = len(jobs)
        self._kinds = jobs.kinds
        self._link(jobs)

        # One region of the queue for each kind, as large as the kind: a job enters its region once.
        kind_count = int(jobs.kinds.max()) + 1 if count else 0
        sizes = np.bincount(jobs.kinds, minlength=kind_count)
        starts = np.concatenate(([0], np.cumsum(sizes)))
        self._queue = np.empty(count, np.int32)
        self._head = [int(each) for each in starts[:-1]]
        self._tail = list(self._head)
        self._queued = count
        self._reject(jobs.unusable)
        ready = self._waiting_for == 0
        if self._unassignable:
            ready[list(self._unassignable)] = False
        self._enqueue(np.flatnonzero(ready).astype(np.int32))

    def _link(self, jobs: JobGraph) -> None:
        """Turn "job links libraries" into "library is linked by jobs", and count what each job waits for."""
        count = len(jobs)
        linker = np.repeat(np.arange(count, dtype=np.int64), np.diff(jobs.library_start))
        library = jobs.library_index.astype(np.int64)
        if len(linker) != len(library):
            raise ValueError("library_start does not span library_index")
        if np.any(library >= linker) or np.any(library < 0):
            raise ValueError("a job links a library that does not come before it")
        # A job may name a library twice; it waits for it once.
        pairs = np.unique(library * max(count, 1) + linker)
        library, linker = np.divmod(pairs, max(count, 1))
        self._linkers = linker.astype(np.int32)
        self._linker_start = np.searchsorted(library, np.arange(count + 1))
        self._waiting_for = np.bincount(linker, minlength=count).astype(np.int32)
        self._has_libraries = len(pairs) > 0

    @property
    def queued(self) -> int:
        """Jobs that are still to be assigned, those that wait for a library included."""
        return self._queued

    @property
    def in_flight(self) -> int:
        """Jobs that are assigned and not ended."""
        return self._in_flight

    @property
    def done(self) -> int:
        """Jobs that were assigned and have ended, well or badly."""
        return self._done

    @property
    def unassignable(self) -> Mapping[int, str]:
        """Jobs that will never be assigned, by number, with the reason."""
        return self._unassignable

    def request(self, worker: int) -> Assignment | Wait | Done:
        """A worker asks for work; see `Scheduler.request`."""
        if self._assigned_to(worker) is not None:
            raise ValueError(f"worker {worker} asks for work before its last assignment has ended")
        if self._cancelled or not self._queued:
            return _DONE
        for kind, head in enumerate(self._head):
            ready = self._tail[kind] - head
            if ready:
                break
        else:
            # Every queued job waits for a library. It is in flight: a failed one would have taken the job
            # with it, and a queued one would be ready or wait for another, down to one that is in flight.
            return _WAIT
        least, shares = (LEAST_HITS, SHARES_OF_HITS) if self._hits else (1, SHARES_PER_WORKER)
        size = min(ready, self._size, max(least, self._queued // (shares * self._workers)))
        indices = self._queue[head : head + size]
        indices.flags.writeable = False
        self._head[kind] = head + size
        self._queued -= size
        self._in_flight += size
        assignment = Assignment(indices, kind)
        self._assigned[worker] = assignment
        return assignment

    def finished(
        self,
        worker: int,
        assignment: Assignment,
        *,
        hits: int = 0,
        compiles: int = 0,  # noqa: ARG002 - what is not a hit
        elapsed_ns: int = 0,
    ) -> None:
        """A worker's assignment ended and all its jobs were created; see `Scheduler.finished`."""
        self._end(worker, assignment)
        self._hits = hits == len(assignment.indices)
        if elapsed_ns > _SLOW_NS:
            self._size = self._limit
        elif 0 < elapsed_ns < _QUICK_NS and len(assignment.indices) >= self._size:
            self._size = min(2 * self._size, self._hit_limit)
        if self._has_libraries:
            self._release(assignment.indices)

    def failed(
        self,
        worker: int,
        assignment: Assignment,
        reasons: Mapping[int, str],
        *,
        hits: int = 0,  # noqa: ARG002
        compiles: int = 0,  # noqa: ARG002
        elapsed_ns: int = 0,  # noqa: ARG002
    ) -> None:
        """A worker's assignment ended and some jobs were not created; see `Scheduler.failed`."""
        indices = assignment.indices
        bad = np.fromiter(reasons, np.int32, len(reasons))
        if not np.isin(bad, indices).all():
            raise ValueError("a reason is given for a job that is not in the assignment")
        self._end(worker, assignment)
        if self._has_libraries:
            for index, reason in reasons.items():
                self._reject_linkers(index, reason)
            self._release(indices[~np.isin(indices, bad)])

    def cancel(self) -> None:
        """Assign nothing more; see `Scheduler.cancel`."""
        self._cancelled = True

    def __repr__(self) -> str:
        state = "cancelled" if self._cancelled else "done" if not self._queued else "assigning"
        ready = sum(self._tail) - sum(self._head)
        return (
            f"<FifoScheduler {state}: {self._queued} queued ({ready} ready), {self._in_flight} in flight, "
            f"{self._done} done, {len(self._unassignable)} unassignable>"
        )

    def _assigned_to(self, worker: int) -> Assignment | None:
        if not 0 <= worker < len(self._assigned):
            raise ValueError(f"there is no worker {worker}; workers are 0..{len(self._assigned) - 1}")
        return self._assigned[worker]

    def _end(self, worker: int, assignment: Assignment) -> None:
        if self._assigned_to(worker) is not assignment:
            raise ValueError(f"worker {worker} ends an assignment that it does not hold")
        self._assigned[worker] = None
        self._in_flight -= len(assignment.indices)
        self._done += len(assignment.indices)

    def _enqueue(self, indices: npt.NDArray[np.int32]) -> None:
        """Queue jobs that became ready, given in ascending order."""
        kinds = self._kinds[indices]
        for kind in range(len(self._head)):
            chosen = indices[kinds == kind]
            tail = self._tail[kind]
            self._queue[tail : tail + len(chosen)] = chosen
            self._tail[kind] = tail + len(chosen)

    def _linkers_of(self, index: int) -> npt.NDArray[np.int32]:
        return self._linkers[self._linker_start[index] : self._linker_start[index + 1]]

    def _release(self, created: npt.NDArray[np.int32]) -> None:
        """Libraries were created: queue the jobs that waited for nothing else."""
        linked = [self._linkers_of(int(index)) for index in created]
        linkers = np.concatenate(linked) if linked else np.empty(0, np.int32)
        if not len(linkers):
            return
        np.subtract.at(self._waiting_for, linkers, 1)
        ready = np.unique(linkers)
        # An unassignable job never gets here with zero: the library that failed keeps its count above it,
        # except where the job itself is unusable.
        ready = ready[self._waiting_for[ready] == 0]
        if self._unassignable:
            ready = ready[[int(index) not in self._unassignable for index in ready]]
        self._enqueue(ready)

    def _reject(self, reasons: Mapping[int, str]) -> None:
        """Take jobs out that were not assigned yet, with all that links them."""
        for index, reason in reasons.items():
            if not 0 <= index < len(self._kinds):
                raise ValueError(f"there is no job {index}")
            if index not in self._unassignable:
                self._queued -= 1
            # An unusable job keeps its own reason, whatever its libraries say.
            self._unassignable[index] = reason
            self._reject_linkers(index, reason)

    def _reject_linkers(self, index: int, cause: str) -> None:
        """A library was not created: neither is what links it, directly or through other libraries."""
        pending = [index]
        while pending:
            library = pending.pop()
            for linker in self._linkers_of(library):
                job = int(linker)
                if job not in self._unassignable:
                    # The root cause only: a long chain must not give a long text.
                    self._unassignable[job] = f"links pipeline {library}, which was not created: {cause}"
                    self._queued -= 1
                    pending.append(job)
