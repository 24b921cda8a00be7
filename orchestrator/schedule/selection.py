# Purpose: take a batch from a line of the ready queue: the longest jobs first, those that suit the worker before
# others, as many as fit into the time.
#
# Two ways to the same end: `few` goes job by job, for batches of one or a few; `many` takes slices of a bucket
# with array operations, for large ones. Both remove what they take and what is stale, and keep the order of the
# rest.
#
# Guarantees: a job is taken if it is ready, and is ASSIGNED from then on. Where the first job may take any
# time, and none is asked to suit, a batch holds at least one job if the line does.
"""`Selector`: batches from a line of the ready queue."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.schedule.affinity import WINDOW, Affinity
from orchestrator.schedule.job_table import ASSIGNED, JobTable
from orchestrator.schedule.ready_queue import BUCKETS, ReadyQueue, bucket_of

Int32s = npt.NDArray[np.int32]

FLOORS = tuple(2.0 ** (10 + number / 8) for number in range(BUCKETS))
"""Shortest job of each bucket, nanoseconds."""

_NONE = np.empty(0, np.int32)
_FEW = 6


@frozen
class Limits:
    """What a batch may hold. A job is believed to take base_ns + slope x its cost.

    Attributes:
        base_ns: See above.
        slope: See above.
        time_ns: Time to aim at: what comes after the first job has to fit into it.
        most_ns: Time that the first job has to fit into; not less than time_ns.
        size: Most jobs.
    """

    base_ns: float
    slope: float
    time_ns: float
    most_ns: float
    size: int


class Selector:
    """Takes batches for workers.

    Args:
        table: The jobs.
        affinity: Who suits whom.
    """

    def __init__(self, table: JobTable, affinity: Affinity) -> None:
        self._table = table
        self._affinity = affinity

    def take(self, queue: ReadyQueue, line: int, worker: int, limits: Limits, *, picky: bool) -> Int32s:
        """Take a batch; empty where nothing fits, or suits.

        Args:
            queue: The queue.
            line: The line in it.
            worker: Who it is for.
            limits: What it may hold.
            picky: Whether to take only jobs that suit the worker.
        """
        mask = queue.masks[line]
        if not mask:
            return _NONE
        first_ns = limits.base_ns + limits.slope * FLOORS[mask.bit_length() - 1]
        if limits.size >= _FEW and limits.time_ns >= _FEW * first_ns:
            jobs = self._many(queue, line, worker, limits, picky=picky)
            if len(jobs):
                return jobs
        chosen = self._few(queue, line, worker, limits, picky=picky)
        return np.array(chosen, np.int32) if chosen else _NONE

    def shortest(self, queue: ReadyQueue, line: int, worker: int) -> Int32s:
        """Take one job of the shortest bucket; empty where the line has none."""
        while mask := queue.masks[line]:
            number = (mask & -mask).bit_length() - 1
            bucket = queue.bucket(line, number)
            while bucket.head < bucket.tail:
                job = bucket.at[bucket.head]
                bucket.head += 1
                if self._table.state_at[job] == queue.state:
                    self._assign(job, worker)
                    return np.array([job], np.int32)
            queue.empty(line, number)
        return _NONE

    def _assign(self, job: int, worker: int) -> None:
        self._table.move(job, ASSIGNED)
        self._table.worker_at[job] = worker

    def _few(self, queue: ReadyQueue, line: int, worker: int, limits: Limits, *, picky: bool) -> list[int]:
        state_at, cost_at, ready = self._table.state_at, self._table.cost_at, queue.state
        chosen: list[int] = []
        left_ns = limits.time_ns
        passed = 0
        mask = queue.masks[line]
        more = True
        while mask and more:
            number = mask.bit_length() - 1
            mask ^= 1 << number
            bucket = queue.bucket(line, number)
            at, position, tail = bucket.at, bucket.head, bucket.tail
            while position < tail:
                job = at[position]
                position += 1
                if state_at[job] != ready:
                    bucket.remove(position - 1)
                    continue
                time_ns = limits.base_ns + limits.slope * cost_at[job]
                if chosen and time_ns > left_ns:
                    more = False
                    break
                if not chosen and time_ns > limits.most_ns:
                    passed += 1
                    if passed >= WINDOW:
                        # Enough was tried: go on where all are short enough for certain.
                        fitting = int((limits.most_ns - limits.base_ns) / max(limits.slope, 1e-9))
                        mask &= (1 << bucket_of(fitting)) - 1
                        break
                    continue
                if picky and not self._affinity.suits(job, worker):
                    passed += 1
                    if passed >= WINDOW:
                        more = False
                        break
                    continue
                bucket.remove(position - 1)
                self._assign(job, worker)
                chosen.append(job)
                left_ns -= time_ns
                if len(chosen) == limits.size or left_ns <= 0:
                    more = False
                    break
            if bucket.head == bucket.tail:
                queue.empty(line, number)
        return chosen

    def _many(self, queue: ReadyQueue, line: int, worker: int, limits: Limits, *, picky: bool) -> Int32s:
        table = self._table
        # Who is choosy looks at more.
        wanted = 4 * limits.size + WINDOW if picky else limits.size
        while queue.masks[line]:
            seen, segments = self._front(queue, line, wanted)
            gone = table.state[seen] != queue.state
            places = np.flatnonzero(~gone)
            if queue.repeats:
                places = places[np.sort(np.unique(seen[places], return_index=True)[1])]
            ready = len(places)
            if picky:
                places = places[self._affinity.suiting(seen[places], worker)]
            places = places[: limits.size]
            ends_ns = np.cumsum(limits.base_ns + limits.slope * table.cost[seen[places]])
            number = int(np.searchsorted(ends_ns, limits.time_ns, "right"))
            if not number and len(places) and ends_ns[0] <= limits.most_ns:
                number = 1
            places = places[:number]
            gone[places] = True
            self._remove(queue, line, seen, segments, gone)
            if number:
                taken = seen[places]
                table.move_all(taken, queue.state, ASSIGNED)
                table.worker[taken] = worker
                return taken
            if ready:
                break
        return _NONE

    def _front(self, queue: ReadyQueue, line: int, wanted: int) -> tuple[Int32s, list[tuple[int, int]]]:
        """The first entries of a line, and the buckets that they are from, each with the number of them."""
        parts: list[Int32s] = []
        segments: list[tuple[int, int]] = []
        mask = queue.masks[line]
        while mask and wanted > 0:
            number = mask.bit_length() - 1
            mask ^= 1 << number
            bucket = queue.bucket(line, number)
            size = min(bucket.tail - bucket.head, wanted)
            parts.append(bucket.jobs[bucket.head : bucket.head + size])
            segments.append((number, size))
            wanted -= size
        return np.concatenate(parts), segments

    def _remove(
        self,
        queue: ReadyQueue,
        line: int,
        seen: Int32s,
        segments: list[tuple[int, int]],
        gone: npt.NDArray[np.bool_],
    ) -> None:
        """Take entries that `_front` gave out of their buckets."""
        ends = np.cumsum([size for _, size in segments])
        counts = np.append(0, np.cumsum(gone))[ends].tolist()
        begin = before = 0
        for (number, size), count in zip(segments, counts, strict=True):
            bucket = queue.bucket(line, number)
            end = begin + size
            if count - before == size:
                bucket.head += size
                if bucket.head == bucket.tail:
                    queue.empty(line, number)
            elif count != before:
                bucket.replace_front(size, seen[begin:end][~gone[begin:end]])
            begin, before = end, count
