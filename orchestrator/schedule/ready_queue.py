"""`ReadyQueue`: ready jobs, the longest first.

The jobs that could be assigned now, by urgency, kind and length, longest first.

line = one kind at one priority ──> 256 buckets by length, 8 an octave ──> a first-in-first-out queue each

A bucket spans 9 %: jobs in one bucket are "equally long", and keep the order in which they came (for those
that come together, that is by length too). So entering and taking a job are O(1), where a heap takes O(log
n) and several times the memory; a line's longest bucket is the top bit of one integer.

Guarantees: an entry is never searched for. A job that was promoted, joined another one or was cancelled
leaves its entry behind; whoever takes entries skips those whose job has another state by now. A job may
have two entries (after its promotion); the first one taken counts.

`Budget`: time that workers may still be given.

"at most 2 s", "4 ms a frame": how long each worker may still be handed work.

The scheduler has no clock: a budget is spent by what batches are believed to take when they are assigned,
and corrected by what they took when they end. A batch cannot be stopped, so a budget is kept between
batches.

Guarantees: a batch is handed out only where it is believed to fit, except that the first batch of a budget
may be one job that does not fit, if nothing else is in flight: or jobs longer than a frame would never run.

`Experience`: what batches have taught.

How many jobs to put into a batch: as many as are believed to take the time that is aimed at. What is
believed is learned, for each kind apart (and for followers of a job that was compiled, which should hit),
from how batches went:

time of a job = p x hit time + (1 - p) x its cost x scale p          share of hits: a count of hits and
misses, older ones fading hit time   of batches that hit in full, averaged scale      measured over believed
cost of what was compiled, older ones fading

So a warm run goes from batches of a few to the largest within eight batches, and a cold one to single jobs
after one. Towards the end a batch is at most a fraction of each worker's share of what is left.

Guarantees: pure arithmetic; estimates are positive whatever is reported.
"""

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


class Budget:
    """What is left for each worker.

    Args:
        workers: Number of workers.

    Attributes:
        fresh: Whether nothing was handed out under it.
    """

    def __init__(self, workers: int) -> None:
        self.fresh = False
        self._limit = math.inf
        self._spent = [0.0] * workers

    def set(self, limit_ns: int | None, in_flight_ns: list[float]) -> None:
        """Begin a new budget.

        Args:
            limit_ns: Time for each worker; None: no limit.
            in_flight_ns: What each worker's batch in flight is believed to take, which is charged to it.
        """
        self._limit = math.inf if limit_ns is None else float(limit_ns)
        self._spent = list(in_flight_ns)
        self.fresh = limit_ns is not None and limit_ns > 0

    @property
    def limited(self) -> bool:
        """Whether there is a limit."""
        return self._limit != math.inf

    def left(self, worker: int) -> float:
        """What is left for a worker, nanoseconds."""
        return self._limit - self._spent[worker]

    def leave(self, worker: int, time_ns: float) -> None:
        """Leave a worker so much of the budget, whatever it has spent; where there is no limit, nothing changes."""
        if self.limited:
            self._spent[worker] = self._limit - time_ns

    def spend(self, worker: int, time_ns: float) -> None:
        """A worker was assigned a batch that is believed to take this long."""
        self._spent[worker] += time_ns
        self.fresh = False

    def correct(self, worker: int, believed_ns: float, elapsed_ns: int) -> None:
        """A batch has ended and took this long; 0 where that is not known."""
        if elapsed_ns > 0:
            self._spent[worker] += elapsed_ns - believed_ns


SHARES = 4
"""Towards the end, a batch is at most 1/SHARES of each worker's share of what is left."""

_MEMORY = 512.0
"""Hits and misses that count; beyond it older ones fade."""

_ONE_WAY = 0.5
"""What remains of hits after a batch of misses only, and the other way round."""

_FADE = 0.9
"""What remains of the weight of earlier batches when another one was compiled."""

_FIRST_HIT_NS = 5_000.0
"""A hit, before one was seen: a call from the interpreter and the driver's lookup."""


class Experience:
    """What the batches of one kind of work have taught.

    Args:
        expect_hits: Believed share of hits at the start, 0..1.
        weight: How many jobs that belief is worth.

    Attributes:
        tried: Whether a batch has ended.
    """

    __slots__ = ("_believed", "_hit_ns", "_hits", "_measured", "_misses", "_seen_hit", "tried")

    def __init__(self, expect_hits: float, weight: float = 1.0) -> None:
        self._hits = expect_hits * weight
        self._misses = (1.0 - expect_hits) * weight
        self._hit_ns = _FIRST_HIT_NS
        self._seen_hit = False
        self._measured = 0.0
        self._believed = 0.0
        self.tried = False

    @property
    def hit_share(self) -> float:
        """Share of jobs believed to hit."""
        return self._hits / (self._hits + self._misses)

    @property
    def scale(self) -> float:
        """Measured over believed cost of compiles; 1 before any was measured."""
        return self._measured / self._believed if self._believed else 1.0

    @property
    def learned(self) -> bool:
        """Whether what a job takes was measured, and is not only believed."""
        return self._measured > 0 or self._seen_hit

    def line(self) -> tuple[float, float]:
        """Believed time of a job is a + b x its cost: (a, b), nanoseconds and a factor, a > 0."""
        share = self.hit_share
        return max(1.0, share * self._hit_ns), (1.0 - share) * self.scale

    def learn(self, jobs: int, cost_ns: int, hits: int, compiles: int, elapsed_ns: int) -> None:
        """A batch ended.

        Args:
            jobs: Its jobs.
            cost_ns: Their believed cost if all were compiled.
            hits: How many hit.
            compiles: How many were compiled.
            elapsed_ns: What it took; 0 where that is not known.
        """
        self.tried = True
        if hits or compiles:
            # A batch that went all one way says more than its number of jobs.
            if not compiles:
                self._misses *= _ONE_WAY
            elif not hits:
                self._hits *= _ONE_WAY
            self._hits += hits
            self._misses += compiles
            if (total := self._hits + self._misses) > _MEMORY:
                self._hits *= _MEMORY / total
                self._misses *= _MEMORY / total
        if elapsed_ns <= 0:
            return
        if hits == jobs:
            sample = elapsed_ns / jobs
            self._hit_ns = (self._hit_ns + sample) / 2 if self._seen_hit else sample
            self._seen_hit = True
        elif compiles:
            # What the hits of a mixed batch took is known well enough; the rest is what was compiled.
            spent = max(elapsed_ns - hits * self._hit_ns, 1.0)
            self._measured = self._measured * _FADE + spent
            self._believed = self._believed * _FADE + max(cost_ns * compiles / jobs, 1.0)


class Experiences:
    """What is known of each kind of work.

    Args:
        expect_hits: Believed share of hits at the start.

    Attributes:
        echoes: Of followers that are created after their leader, of any kind.
    """

    def __init__(self, expect_hits: float) -> None:
        self._expect_hits = expect_hits
        self._by_kind: dict[int, Experience] = {}
        self.echoes = Experience(1.0, 8.0)

    def of(self, kind: int) -> Experience:
        """What is known of a kind."""
        found = self._by_kind.get(kind)
        if found is None:
            found = self._by_kind[kind] = Experience(self._expect_hits)
        return found

    @property
    def learned(self) -> bool:
        """Whether what jobs take was measured for each kind that was begun."""
        return bool(self._by_kind) and all(each.learned for each in list(self._by_kind.values()))

    def items(self) -> list[tuple[int, Experience]]:
        """All kinds of which something was asked, ascending."""
        return sorted(self._by_kind.items())

    def mean_line(self) -> tuple[float, float]:
        """Believed time of a job of any kind, as `Experience.line`."""
        lines = [each.line() for each in list(self._by_kind.values())] or [
            Experience(self._expect_hits).line()
        ]
        return sum(base for base, _ in lines) / len(lines), sum(slope for _, slope in lines) / len(lines)
