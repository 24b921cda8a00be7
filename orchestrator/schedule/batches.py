"""Which of the ready jobs make the next batch, and how large it is.

    ReadyQueue    the ready jobs of one lane: a heap for each kind, the most urgent and then the longest first
    Experience    what batches have taught about hits and costs
    batch_limits  the one rule for the size of a batch

Guarantees: no entry of a heap is ever searched for. A job that was promoted, joined another one or was
cancelled leaves a stale entry behind, which is skipped when entries are taken. Estimates are positive
whatever is reported.
"""

from __future__ import annotations

import enum
import heapq
import math
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

import numpy as np
from attrs import field, frozen, validators

from orchestrator.schedule.jobs import ASSIGNED, COMPILE, FOLLOW, HIT, HIT_COST_NS, READY, Int32s, JobTable


class Order(enum.StrEnum):
    """In which order jobs of one priority are assigned.

    COST: The longest chain of links first.
    GIVEN: By number.
    """

    COST = "cost"
    GIVEN = "given"


class Followers(enum.StrEnum):
    """What happens to a follower, a job that is the same work as its leader, once the leader was created.

    CREATE: The leader's worker creates it too, and finds it in its cache: one compile, and every job has its
        own pipeline. Choose it where pipelines are kept, or where each outcome must come from the driver.
        Where followers are compiled all the same, they become ordinary jobs for any worker.
    SHARE: It gets the leader's outcome and is never assigned, unless another job links it as a library.
    SEPARATE: It follows no leader: it is created as if it were other work.
    """

    CREATE = "create"
    SHARE = "share"
    SEPARATE = "separate"


@frozen
class ScheduleOptions:
    """Settings of a `Scheduler`; an impossible value is refused with ValueError, or TypeError.

    Attributes:
        order: In which order jobs are assigned.
        followers: What becomes of duplicates.
        pin_followers: With CREATE, only the leader's worker creates them, because only its cache has the
            code. False where all workers use one cache.
        target_ns: Time to aim at for a batch, nanoseconds. The default suits a run that is steered: an
            urgent job waits no longer than this for a worker. 200 ms suits a cold run that is not, because
            each call costs half a millisecond outside the driver.
        batch_limit: Most jobs in one driver call. A batch is one call; only expected hits that did hit are
            assigned for several calls at once.
        expect_hits: Estimated share of hits before anything was learned, 0..1, among the jobs that
            `JobGraph.hits` does not name.
        capacity: Most jobs that may be queued; `submit` of a session waits beyond it. None: no bound.
        streaming: Whether jobs are entered during the run, and none at the start. Until `close`, a worker is
            told to wait where it would be told that all is done.
        few_for_hits: Whether at most two workers take expected hits at a time, until one of these had to be
            compiled. Drivers look hits up under locks: with 16 workers RADV spends on a hit 13 times what it
            takes alone.
        costs_recorded: Whether the costs of nearly all jobs are recorded compile times. The last batches are
            longer then, because their ends are known.
    """

    order: Order = field(default=Order.COST, converter=Order)
    followers: Followers = field(default=Followers.CREATE, converter=Followers)
    pin_followers: bool = field(default=True, validator=validators.instance_of(bool))
    target_ns: int = field(default=2_000_000, validator=[validators.instance_of(int), validators.ge(1)])
    batch_limit: int = field(default=256, validator=[validators.instance_of(int), validators.ge(1)])
    expect_hits: float = field(default=0.5, validator=[validators.ge(0.0), validators.le(1.0)])
    capacity: int | None = field(
        default=None, validator=validators.optional([validators.instance_of(int), validators.ge(1)])
    )
    streaming: bool = field(default=False, validator=validators.instance_of(bool))
    few_for_hits: bool = field(default=False, validator=validators.instance_of(bool))
    costs_recorded: bool = field(default=False, validator=validators.instance_of(bool))


_MEMORY = 512.0
"""Number of hits and misses that are remembered; older ones fade."""

_ONE_WAY = 0.5
"""Factor on the count of hits after a batch of misses only, and on misses after a batch of hits only."""

_FADE = 0.9
"""Factor on the weight of earlier batches after each batch of compiles."""

_TELLING: Final = 8
"""Batches of compiles after which estimates are known well enough for a deadline."""

MOST_HIT = 0.9
"""From this share of hits on, nearly everything hits."""


class Experience:
    """What the batches of one kind of work have taught: the estimated time of a job is a + b x its cost.

        a = share of hits x time of a hit               b = (1 - share of hits) x scale

    The share comes from counts of hits and misses, the time of a hit from batches without a miss, and the
    scale is measured over estimated cost of compiles. Older batches fade. So a warm run goes from small
    batches to the largest within eight batches, and a cold run goes to single jobs after one.

    Args:
        expect_hits: Estimated share of hits at the start, 0..1.
        weight: How many jobs that estimate is worth.
    """

    def __init__(self, expect_hits: float, weight: float = 1.0) -> None:
        self._hits = expect_hits * weight
        self._misses = (1.0 - expect_hits) * weight
        self._hit_ns = float(HIT_COST_NS)
        self._seen_hit = False
        self._measured = self._estimated = self._compiled = 0.0
        self._batches = 0
        self.tried = False

    @property
    def hit_share(self) -> float:
        """Estimated share of jobs that hit."""
        return self._hits / (self._hits + self._misses)

    @property
    def remembered_hits(self) -> float:
        """Number of hits that are remembered, with those that the estimate at the start is worth."""
        return self._hits

    @property
    def scale(self) -> float:
        """Measured over estimated cost of compiles; 1 before any was measured."""
        return self._measured / self._estimated if self._estimated else 1.0

    @property
    def compile_ns(self) -> float:
        """Measured time of a compile, nanoseconds; infinite before any was measured."""
        return self._measured / self._compiled if self._compiled else math.inf

    @property
    def told(self) -> bool:
        """Whether enough batches with compiles were measured to say how far off estimates are."""
        return self._batches >= _TELLING

    @property
    def proven(self) -> bool:
        """Whether a batch has ended, and nearly all hit."""
        return self.tried and self.hit_share >= MOST_HIT

    @property
    def learned(self) -> bool:
        """Whether any time was measured."""
        return self._measured > 0 or self._seen_hit

    def line(self) -> tuple[float, float]:
        """Estimated time of a job is a + b x its cost: (a, b), nanoseconds and a factor, a > 0."""
        share = self.hit_share
        return max(1.0, share * self._hit_ns), (1.0 - share) * self.scale

    def learn(self, jobs: int, cost_ns: int, hits: int, compiles: int, elapsed_ns: int) -> None:
        """A batch ended.

        Args:
            jobs: Number of its jobs.
            cost_ns: Their estimated cost if all were compiled.
            hits: How many hit.
            compiles: How many were compiled.
            elapsed_ns: Time of the batch; 0 where it is not known.
        """
        self.tried = True
        if hits or compiles:
            # A batch of only hits or only misses says more than its number of jobs.
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
            # The time of the hits in a mixed batch is known well enough; compiles took the rest.
            self._batches += 1
            self._measured = self._measured * _FADE + max(elapsed_ns - hits * self._hit_ns, 1.0)
            self._compiled = self._compiled * _FADE + compiles
            self._estimated = self._estimated * _FADE + max(cost_ns * compiles / jobs, 1.0)


@frozen
class Limits:
    """What a batch may hold. A job is estimated to take base_ns + slope x its cost.

    Attributes:
        base_ns: See above.
        slope: See above.
        size: Most jobs.
        time_ns: Time that the whole batch must fit into, unless it is a single job.
        most_ns: Time that the first job must fit into; not less than time_ns.
    """

    base_ns: float
    slope: float
    size: int
    time_ns: float
    most_ns: float


_SHARES: Final = 4
"""A batch is at most 1/SHARES of each worker's share of what is left, which is the usual rule of guided
self-scheduling; more only where that is shorter than an answer is worth."""

_ANSWER_NS: Final = 1_500_000
"""Least time of a batch of compiles, times the number of workers: with 16, 24 ms. Between two calls a worker
holds the GIL for 250 us. To hand it over takes as long, and up to 700 us if many wait."""

_HIT_ANSWER_NS: Final = 60_000
"""The same for a batch of hits."""

_UNENDED: Final = 0.3
"""Part of the jobs in flight that counts as left. Half of them are, if all estimates hold."""

_CALLS_OF_HITS: Final = 8
"""Most driver calls in one batch of expected hits: with many workers, a request costs more than a call."""

_MISS_NS: Final = 10_000_000
_LEAST_HITS: Final = 8
"""Under a deadline a batch of which nearly all should hit ends in time even if all are compiled and take
`_MISS_NS` each, or holds `_LEAST_HITS`: a cache may hold only what comes first."""


def batch_limits(
    table: JobTable,
    lane: int,
    experience: Experience,
    options: ScheduleOptions,
    workers: int,
    takers: int,
    left_ns: float,
) -> Limits:
    """The size of the next batch.

    A batch is a part of one worker's share of the jobs that are left, but not so short that workers spend
    their time on asking, and never longer than `target_ns`. Before one batch of its lane has ended, nothing
    is known, and it holds one job, unless it is expected to hit.

    Args:
        table: The jobs.
        lane: The lane of the batch.
        experience: What is known of its jobs.
        options: The scheduler's options.
        workers: Number of workers.
        takers: How many of them may take jobs of the lane at a time.
        left_ns: Time until the deadline.
    """
    base, slope = experience.line()
    queued, limit = table.queued, options.batch_limit
    share = (queued + _UNENDED * table.states[ASSIGNED]) / takers
    if lane == COMPILE:
        answer = _ANSWER_NS * workers / experience.compile_ns
    else:
        answer = _HIT_ANSWER_NS * workers / base
    if lane == HIT and experience.proven:
        limit *= _CALLS_OF_HITS
    if experience.tried or (experience.hit_share >= MOST_HIT and lane != FOLLOW):
        # Where all hit, jobs are alike, so that workers may take all their share at once.
        parts = 1 if experience.proven and lane != COMPILE else _SHARES
        least = answer / 2 if options.costs_recorded else 0
        size = max(queued / (parts * takers), min(answer, max(share, least)))
    else:
        size = 1
    if lane in (COMPILE, HIT) and left_ns < math.inf and not experience.told:
        size = min(size, _most_untold(table, experience, left_ns))
    size = max(1, min(int(size), limit))
    if size > options.batch_limit:
        size -= size % options.batch_limit  # the rest would be a call of its own
    mean_ns = base + slope * table.open_cost / queued
    time_ns = min(options.target_ns, (size + 0.5) * mean_ns)
    return Limits(base, slope, size, min(time_ns, left_ns), left_ns)


def _most_untold(table: JobTable, experience: Experience, left_ns: float) -> float:
    """Most jobs of a batch under a deadline, where it is not known how far off estimates are."""
    if not experience.proven:
        return 1
    compiles = left_ns * table.queued / max(table.open_cost, 1)
    return min(experience.remembered_hits, max(_LEAST_HITS, left_ns / _MISS_NS), compiles)


Entry = tuple[int, int, int]
"""Priority, rank below zero, and number of a job."""


class ReadyQueue:
    """The ready jobs of one lane.

    Args:
        table: The jobs.
        lane: Their lane.
    """

    def __init__(self, table: JobTable, lane: int) -> None:
        self._table = table
        self.lane = lane
        self._heaps: dict[int, list[Entry]] = {}
        self._sorted: set[int] = set()

    def __bool__(self) -> bool:
        """Whether there are entries, stale ones included."""
        return any(self._heaps.values())

    def push(self, job: int) -> None:
        """Enter a ready job, or enter it again with another priority or rank."""
        table = self._table
        kind = table.kind[job]
        heap = self._heaps.setdefault(kind, [])
        if len(heap) > 2 * table.count:
            heap[:] = sorted({each for each in heap if self._is_live(each)})
        heapq.heappush(heap, (table.priority[job], -table.rank[job], job))
        self._sorted.discard(kind)

    def push_all(self, jobs: Int32s) -> None:
        """Enter many ready jobs."""
        table = self._table
        kinds = np.frombuffer(table.kind, np.uint8)[jobs]
        for kind in np.unique(kinds).tolist():
            some = jobs[kinds == kind]
            priorities = np.frombuffer(table.priority, np.uint8)[some].tolist()
            numbers = some.tolist()
            heap = self._heaps.setdefault(kind, [])
            heap += zip(priorities, [-table.rank[job] for job in numbers], numbers, strict=True)
            heap.sort()
            self._sorted.add(kind)

    def _is_live(self, entry: Entry) -> bool:
        priority, rank, job = entry
        table = self._table
        return (
            table.state[job] == READY
            and table.lane[job] == self.lane
            and table.priority[job] == priority
            and table.rank[job] == -rank
        )

    def heads(self) -> list[tuple[Entry, int]]:
        """The first entry of each kind that has one, and the kind."""
        found = []
        for kind, heap in self._heaps.items():
            while heap and not self._is_live(heap[0]):
                self._pop(kind)
            if heap:
                found.append((heap[0], kind))
        return found

    def take(self, kind: int, limits: Limits, alone: Callable[[int], bool]) -> list[int]:
        """Take a batch of a kind whose head is live; its jobs become ASSIGNED. Empty where none fits.

        Args:
            kind: The kind.
            limits: What it may hold.
            alone: Whether a job must be a batch by itself.
        """
        heap, table = self._heaps[kind], self._table
        if self.lane != COMPILE:
            return self._take_equal(kind, limits)
        priority, _, first = heap[0]
        if limits.base_ns + limits.slope * table.cost[first] > limits.most_ns:
            return self._take_fitting(heap, limits)
        jobs: list[int] = []
        left_ns = limits.time_ns
        while heap and len(jobs) < limits.size and left_ns > 0:
            if not self._is_live(heap[0]):
                self._pop(kind)
                continue
            job = heap[0][2]
            time_ns = limits.base_ns + limits.slope * table.cost[job]
            goes_alone = alone(job)
            if jobs and (goes_alone or time_ns > left_ns or heap[0][0] != priority):
                break
            self._pop(kind)
            table.move(job, ASSIGNED)
            jobs.append(job)
            left_ns = 0.0 if goes_alone else left_ns - time_ns
        return jobs

    def _pop(self, kind: int) -> Entry:
        self._sorted.discard(kind)
        return heapq.heappop(self._heaps[kind])

    def _take_equal(self, kind: int, limits: Limits) -> list[int]:
        """Take jobs of equal cost. A sorted list is a heap, so that a large batch is its beginning."""
        heap, table = self._heaps[kind], self._table
        each_ns = limits.base_ns + limits.slope * HIT_COST_NS
        if each_ns > limits.most_ns:
            return []
        size = max(1, min(limits.size, int(limits.time_ns / each_ns)))
        priority = heap[0][0]
        if size == 1:
            jobs = [self._pop(kind)[2]]
        else:
            if kind not in self._sorted:
                heap.sort()
                self._sorted.add(kind)
            end = min(size, bisect_left(heap, (priority + 1,)))
            jobs = list(dict.fromkeys([each[2] for each in heap[:end]]))
            del heap[:end]
        numbers = np.array(jobs, np.int32)
        is_live = (table.states_now[numbers] == READY) & (
            np.frombuffer(table.lane, np.uint8)[numbers] == self.lane
        )
        is_live &= np.frombuffer(table.priority, np.uint8)[numbers] == priority
        table.move_all(numbers[is_live], ASSIGNED)
        found: list[int] = numbers[is_live].tolist()
        return found

    def _take_fitting(self, heap: list[Entry], limits: Limits) -> list[int]:
        """Take the first job that ends before the deadline, though longer ones are left."""
        table = self._table
        most = (limits.most_ns - limits.base_ns) / max(limits.slope, 1e-9)
        fitting = min(
            (each for each in heap if table.cost[each[2]] <= most and self._is_live(each)), default=None
        )
        return self._take_one(fitting)

    def take_shortest(self, kind: int) -> list[int]:
        """Take the shortest of the most urgent jobs of a kind whose head is live."""
        heap = self._heaps[kind]
        urgent = (each for each in heap if each[0] == heap[0][0] and self._is_live(each))
        return self._take_one(min(urgent, key=lambda each: self._table.cost[each[2]], default=None))

    def _take_one(self, entry: Entry | None) -> list[int]:
        if entry is None:
            return []
        self._table.move(entry[2], ASSIGNED)  # which makes its entry stale
        return [entry[2]]
