"""Which of the ready jobs make the next batch, and how large it is.

    ReadyQueue    the ready jobs of one lane: a list for each kind, the most urgent and then the longest last
    Experience    what batches have taught about hits and costs
    batch_limits  the one rule for the size of a batch

Guarantees: no entry of a queue is ever searched for. A job that was promoted, joined another one or was
cancelled leaves a stale entry behind, which is skipped when entries are taken. Estimates are positive.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

import numpy as np
from attrs import frozen

from orchestrator.schedule.jobs import ASSIGNED, COMPILE, FOLLOW, HIT, HIT_COST_NS, READY, Int32s, JobTable
from orchestrator.schedule.options import ScheduleOptions

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
        hit_share: Estimated share of hits at the start, 0..1.
        weight: How many jobs that estimate is worth.
    """

    def __init__(self, hit_share: float, weight: float = 1.0) -> None:
        self.hits = hit_share * weight  # that are remembered, with those that the estimate is worth
        self._misses = (1.0 - hit_share) * weight
        self._hit_ns = float(HIT_COST_NS)
        self._seen_hit = False
        self._measured = self._estimated = self._compiled = 0.0
        self._batches = 0
        self.tried = False  # a batch has ended

    @property
    def hit_share(self) -> float:
        """Estimated share of jobs that hit."""
        return self.hits / (self.hits + self._misses)

    @property
    def scale(self) -> float:
        """Measured over estimated cost of compiles; 1 before any was measured."""
        return self._measured / self._estimated if self._estimated else 1.0

    @property
    def compile_ns(self) -> float:
        """Measured time of a compile; infinite before any was measured."""
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
        """A batch of so many jobs ended, of this cost if all were compiled; 0 ns: the time is not known."""
        self.tried = True
        if hits or compiles:
            # A batch of only hits or only misses says more than its number of jobs.
            if not compiles:
                self._misses *= _ONE_WAY
            elif not hits:
                self.hits *= _ONE_WAY
            self.hits += hits
            self._misses += compiles
            if (total := self.hits + self._misses) > _MEMORY:
                self.hits *= _MEMORY / total
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
    """What a batch may hold. A job is estimated to take base_ns + slope x its cost."""

    base_ns: float
    slope: float
    size: int  # most jobs
    time_ns: float  # that the whole batch must fit into, unless it is a single job
    most_ns: float  # that the first job must fit into; not less than time_ns


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
    """The size of the next batch of a lane, of which so many of the workers may take jobs at a time.

    A batch is a part of one worker's share of the jobs that are left, but not so short that workers spend
    their time on asking, and never longer than `target_ns` or the time until the deadline. Before one batch
    of its lane has ended, nothing is known, and it holds one job, unless it is expected to hit.
    """
    base, slope = experience.line()
    queued = table.queued
    share = (queued + _UNENDED * table.states[ASSIGNED]) / takers
    if lane == COMPILE:
        answer = _ANSWER_NS * workers / experience.compile_ns
    else:
        answer = _HIT_ANSWER_NS * workers / base
    if experience.tried or (experience.hit_share >= MOST_HIT and lane != FOLLOW):
        # Where all hit, jobs are alike, so that workers may take all their share at once.
        parts = 1 if experience.proven and lane != COMPILE else _SHARES
        least = answer / 2 if options.costs_recorded else 0
        size = max(queued / (parts * takers), min(answer, max(share, least)))
    else:
        size = 1
    if lane in (COMPILE, HIT) and left_ns < math.inf and not experience.told:
        size = min(size, _most_untold(table, experience, left_ns))
    size = max(1, min(int(size), options.batch_limit))
    mean_ns = base + slope * table.open_cost / queued
    time_ns = min(options.target_ns, (size + 0.5) * mean_ns)
    return Limits(base, slope, size, min(time_ns, left_ns), left_ns)


def _most_untold(table: JobTable, experience: Experience, left_ns: float) -> float:
    """Most jobs of a batch under a deadline, where it is not known how far off estimates are."""
    if not experience.proven:
        return 1
    compiles = left_ns * table.queued / max(table.open_cost, 1)
    return min(experience.hits, max(_LEAST_HITS, left_ns / _MISS_NS), compiles)


Entry = tuple[int, int, int]
"""Priority below zero, rank, and number below zero of a job: the best is the greatest."""


class ReadyQueue:
    """The ready jobs of one lane of a table."""

    def __init__(self, table: JobTable, lane: int) -> None:
        self._table = table
        self.lane = lane
        self._entries: dict[int, list[Entry]] = {}  # by kind, in order

    def __bool__(self) -> bool:
        """Whether there are entries, stale ones included."""
        return any(self._entries.values())

    def push(self, job: int) -> None:
        """Enter a ready job, or enter it again with another priority or rank."""
        table = self._table
        entries = self._entries.setdefault(table.kind[job], [])
        if len(entries) > 2 * table.count:
            entries[:] = sorted({each for each in entries if self._is_live(each)})
        insort(entries, (-table.priority[job], table.rank[job], -job))

    def push_all(self, jobs: Int32s) -> None:
        """Enter many ready jobs."""
        table = self._table
        kinds = np.frombuffer(table.kind, np.uint8)[jobs]
        for kind in np.unique(kinds).tolist():
            some = jobs[kinds == kind]
            priorities = (-np.frombuffer(table.priority, np.uint8)[some].astype(np.int16)).tolist()
            ranks = [table.rank[job] for job in some.tolist()]
            entries = self._entries.setdefault(kind, [])
            entries += zip(priorities, ranks, (-some).tolist(), strict=True)
            entries.sort()

    def _is_live(self, entry: Entry) -> bool:
        table, job = self._table, -entry[2]
        return (
            table.state[job] == READY
            and table.lane[job] == self.lane
            and table.priority[job] == -entry[0]
            and table.rank[job] == entry[1]
        )

    def heads(self) -> list[tuple[Entry, int]]:
        """The best entry of each kind that has one, and the kind."""
        found = []
        for kind, entries in self._entries.items():
            while entries and not self._is_live(entries[-1]):
                entries.pop()
            if entries:
                found.append((entries[-1], kind))
        return found

    def take(self, kind: int, limits: Limits, goes_alone: Callable[[int], bool]) -> list[int]:
        """Take a batch of a kind whose best entry is live; its jobs become ASSIGNED. [] where none fits."""
        entries, table = self._entries[kind], self._table
        if self.lane != COMPILE:
            return self._take_equal(entries, limits)
        urgency, _, first = entries[-1]
        if limits.base_ns + limits.slope * table.cost[-first] > limits.most_ns:
            # The first job that ends before the deadline, though longer ones are left.
            most = (limits.most_ns - limits.base_ns) / max(limits.slope, 1e-9)
            return self._take_one(
                next(
                    (
                        each
                        for each in reversed(entries)
                        if table.cost[-each[2]] <= most and self._is_live(each)
                    ),
                    None,
                )
            )
        jobs: list[int] = []
        left_ns = limits.time_ns
        while entries and len(jobs) < limits.size and left_ns > 0:
            if not self._is_live(entries[-1]):
                entries.pop()
                continue
            job = -entries[-1][2]
            time_ns = limits.base_ns + limits.slope * table.cost[job]
            is_alone = goes_alone(job)
            if jobs and (is_alone or time_ns > left_ns or entries[-1][0] != urgency):
                break
            entries.pop()
            table.move(job, ASSIGNED)
            jobs.append(job)
            left_ns = 0.0 if is_alone else left_ns - time_ns
        return jobs

    def _take_equal(self, entries: list[Entry], limits: Limits) -> list[int]:
        """Take jobs of equal cost: the end of the list."""
        table = self._table
        each_ns = limits.base_ns + limits.slope * HIT_COST_NS
        if each_ns > limits.most_ns:
            return []
        size = max(1, min(limits.size, int(limits.time_ns / each_ns)))
        urgency = entries[-1][0]
        begin = max(len(entries) - size, bisect_left(entries, (urgency,)))
        jobs = np.array(list(dict.fromkeys([-each[2] for each in reversed(entries[begin:])])), np.int32)
        del entries[begin:]
        is_live = (table.states_now[jobs] == READY) & (np.frombuffer(table.lane, np.uint8)[jobs] == self.lane)
        is_live &= np.frombuffer(table.priority, np.uint8)[jobs] == -urgency
        table.move_all(jobs[is_live], ASSIGNED)
        found: list[int] = jobs[is_live].tolist()
        return found

    def take_shortest(self, kind: int) -> list[int]:
        """Take the shortest of the most urgent jobs of a kind whose best entry is live."""
        entries = self._entries[kind]
        urgent = [each for each in reversed(entries) if each[0] == entries[-1][0] and self._is_live(each)]
        return self._take_one(min(urgent, key=lambda each: self._table.cost[-each[2]], default=None))

    def _take_one(self, entry: Entry | None) -> list[int]:
        if entry is None:
            return []
        self._table.move(-entry[2], ASSIGNED)  # which makes its entry stale
        return [-entry[2]]
