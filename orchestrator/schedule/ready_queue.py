# Purpose: the jobs that could be assigned now, by urgency, kind and length, longest first.
#
#   line = one kind at one priority ──> 256 buckets by length, 8 an octave ──> a first-in-first-out queue each
#
# A bucket spans 9 %: jobs in one bucket are "equally long", and keep the order in which they came (for those that
# come together, that is by length too). So entering and taking a job are O(1), where a heap takes O(log n) and
# several times the memory; a line's longest bucket is the top bit of one integer.
#
# Guarantees: an entry is never searched for. A job that was promoted, joined another one or was cancelled leaves
# its entry behind; whoever takes entries skips those whose job has another state by now. A job may have two entries (after
# its promotion); the first one taken counts.
"""`ReadyQueue`: ready jobs, the longest first."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from orchestrator.schedule.job_table import JobTable

Int32s = npt.NDArray[np.int32]

PRIORITIES = 3
BUCKETS = 256
_LINES = sum(1 << (kind * PRIORITIES) for kind in range(256))  # a kind is one byte
_PER_OCTAVE = 8
_FIRST_OCTAVE = 10  # 1 us; 32 octaves on, 73 minutes
_SMALLEST = 4
_FEW = 4  # up to here one by one is faster


def bucket_of(rank: int) -> int:
    """Bucket of a length, nanoseconds."""
    if rank <= 1 << _FIRST_OCTAVE:
        return 0
    return min(BUCKETS - 1, int((math.log2(rank) - _FIRST_OCTAVE) * _PER_OCTAVE))


def buckets_of(ranks: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Buckets of many lengths, nanoseconds."""
    octaves = np.log2(np.maximum(ranks, 1)) - _FIRST_OCTAVE
    places: npt.NDArray[np.int64] = np.clip(octaves * _PER_OCTAVE, 0, BUCKETS - 1).astype(np.int64)
    return places


class Bucket:
    """A queue of job numbers in one array.

    Attributes:
        jobs: The array; entries are jobs[head:tail].
        at: The same memory, for single elements.
        head: First entry.
        tail: One behind the last entry.
    """

    __slots__ = ("at", "head", "jobs", "tail")

    def __init__(self) -> None:
        self.jobs: Int32s = np.empty(0, np.int32)
        self.at: memoryview[int] = self.jobs.data
        self.head = 0
        self.tail = 0

    def push(self, job: int) -> None:
        """Enter a job."""
        if self.tail == len(self.at):
            self._make_room(1)
        self.at[self.tail] = job
        self.tail += 1

    def push_all(self, jobs: Int32s) -> None:
        """Enter many jobs."""
        tail = self.tail + len(jobs)
        if tail > len(self.at):
            self._make_room(len(jobs))
            tail = self.tail + len(jobs)
        self.jobs[self.tail : tail] = jobs
        self.tail = tail

    def remove(self, position: int) -> None:
        """Take an entry out; those before it move up by one place."""
        head = self.head
        if position != head:
            self.jobs[head + 1 : position + 1] = self.jobs[head:position]
        self.head = head + 1

    def replace_front(self, number: int, rest: Int32s) -> None:
        """Put `rest` in the place of the first `number` entries; it is not longer."""
        self.head += number - len(rest)
        self.jobs[self.head : self.head + len(rest)] = rest

    def _make_room(self, number: int) -> None:
        held = self.tail - self.head
        size = max(_SMALLEST, held + number, 2 * held if self.tail else 0)
        jobs = np.empty(size, np.int32)
        jobs[:held] = self.jobs[self.head : self.tail]
        self.jobs = jobs
        self.at = jobs.data
        self.head, self.tail = 0, held


class ReadyQueue:
    """The ready jobs of a table, or some of them.

    Args:
        table: The jobs.
        state: State of the jobs that are in it; an entry whose job has another state is stale.

    Attributes:
        state: See above.
        masks: For each line, the buckets that have entries, as bits. A line is kind * PRIORITIES + priority.
        open: The lines that have entries, as bits.
        repeats: Whether a job may have two entries; set by who enters one again.
    """

    def __init__(self, table: JobTable, state: int) -> None:
        self._table = table
        self.state = state
        self.masks: list[int] = []
        self.open = 0
        self.repeats = False
        self._buckets: list[dict[int, Bucket]] = []

    def lines(self, priority: int) -> list[int]:
        """The lines of a priority that have entries, the one with the longest job first."""
        found = self.open & (_LINES << priority)
        if not found & (found - 1):
            return [found.bit_length() - 1] if found else []
        lines = [line for line in range(priority, len(self.masks), PRIORITIES) if self.masks[line]]
        return sorted(lines, key=lambda line: -self.masks[line].bit_length())

    def bucket(self, line: int, number: int) -> Bucket:
        """A bucket whose bit is set."""
        return self._buckets[line][number]

    def empty(self, line: int, number: int) -> None:
        """A bucket has no entries any more."""
        self.masks[line] &= ~(1 << number)
        if not self.masks[line]:
            self.open &= ~(1 << line)
        del self._buckets[line][number]

    def push(self, job: int) -> None:
        """Enter a job of that state."""
        table = self._table
        line = table.kind_at[job] * PRIORITIES + table.priority_at[job]
        self._open(line, bucket_of(table.rank_at[job])).push(job)

    def push_all(self, jobs: Int32s) -> None:
        """Enter many jobs of that state."""
        if len(jobs) <= _FEW:
            for job in jobs.tolist():
                self.push(job)
            return
        table = self._table
        ranks = table.rank[jobs]
        # Exactly by length among those that come together; in their own order where that is equal.
        order = np.argsort(-ranks, kind="stable")
        jobs = jobs[order]
        places = (table.kind[jobs].astype(np.int64) * PRIORITIES + table.priority[jobs]) * BUCKETS
        places += buckets_of(ranks[order])
        order = np.argsort(places, kind="stable")
        jobs, places = jobs[order], places[order]
        ends = np.flatnonzero(np.append(places[1:] != places[:-1], True)) + 1
        begin = 0
        for end in ends.tolist():
            line, number = divmod(int(places[begin]), BUCKETS)
            self._open(line, number).push_all(jobs[begin:end])
            begin = end

    @property
    def nbytes(self) -> int:
        """Bytes of all entries."""
        return sum(bucket.jobs.nbytes for line in self._buckets for bucket in line.values())

    def _open(self, line: int, number: int) -> Bucket:
        while line >= len(self.masks):
            self.masks.extend([0] * PRIORITIES)
            self._buckets.extend({} for _ in range(PRIORITIES))
        found = self._buckets[line].get(number)
        if found is None:
            found = self._buckets[line][number] = Bucket()
            self.masks[line] |= 1 << number
            self.open |= 1 << line
        return found
