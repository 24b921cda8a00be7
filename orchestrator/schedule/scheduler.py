"""`Scheduler` decides which worker compiles which jobs, and when. A pure machine: events in, assignments out.

It assigns the most urgent jobs first, and of those the longest (or the next in the given order). It does no
work twice, fits batches to the work that is left, and stops when asked.

    Lifecycle    what an event does to a job, and what follows from it for others (jobs.py has the states)
    HitTeam      how many workers take expected hits at a time
    batches.py   which ready jobs make a batch
    costs.py     what a job is estimated to cost

Answers to `request`:

    cancelled, or nothing queued and no stream open                    ──> Done
    the deadline has passed, or nothing fits into the time that is left ──> Paused
    a duplicate for this worker, else a job to be tried without its
    code, else a ready job                                              ──> Assignment, most urgent first
    otherwise                                                           ──> Wait

Ready jobs wait in queues that all workers share, so no worker has to steal from another: a free worker takes
what is left, even where it suits another worker better.

Guarantees: a job is assigned at most once, and only after all libraries that it links were created. A job
that can no longer be assigned is in `unassignable`, with the reason, as soon as the event that caused it
returns. After `cancel` nothing more is assigned. The same events give the same answers.
Assumptions: not thread-safe; the caller holds a lock (run/exchange.py) and wakes waiting workers. There is no
clock: `request` is told the time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import field, frozen, validators

from orchestrator.devices.image import span_of
from orchestrator.schedule.batches import (
    FLOORS,
    MOST_HIT,
    PRIORITIES,
    SHARES,
    SHORT,
    Affinity,
    Experience,
    Experiences,
    Limits,
    ReadyQueue,
    Selector,
    bucket_of,
)
from orchestrator.schedule.costs import DEFAULT_COST_NS, UInt64s
from orchestrator.schedule.jobs import (
    ABSENT,
    ASSIGNED,
    BY_PIPELINE_KEY,
    CANCELLED,
    CHAINED,
    CREATED,
    DUPLICATE,
    FAILED,
    HIT,
    JOINED,
    KEEPS_GIL,
    PINNED,
    READY,
    SHARED,
    SPECULATIVE,
    UNASSIGNABLE,
    UNWANTED,
    WAITING,
    Int32s,
    JobGraph,
    JobState,
    JobTable,
    KeyTable,
    Links,
    Priority,
    gather,
)

_FIRST_TEAM: Final = 2
_WORTH_DOUBLING: Final = 1.25
"""Twice as many workers must be so many times as quick to be worth their share of the processors."""
_JUDGED_BATCHES: Final = 2
"""Batches of each worker from which a number of workers is judged."""


class HitTeam:
    """How many workers take expected hits at a time. Not thread-safe.

    A hit takes microseconds, and drivers look it up under locks, some under one for the process. With 16
    workers RADV spends on a hit 13 times what it takes alone, NVIDIA 14 to 52 times
    (benchmarks/results/16-cores-h200-machine/hits-by-workers.jsonl). So two workers begin, and their number
    doubles as long as that raises the rate of all together. Compiles scale with workers: from the first
    compile on, all workers may take these jobs.

    Args:
        workers: Number of all workers.
        few: Whether few begin; otherwise all may take hits from the start.

    Attributes:
        most: How many workers may take hits at a time.
        in_flight: How many have some.
    """

    def __init__(self, workers: int, *, few: bool) -> None:
        self.workers = workers
        self.most = min(_FIRST_TEAM, workers) if few else workers
        self._best = self.most
        self._open = self.most < workers
        self.in_flight = 0
        self._best_rate = 0.0
        self._begin()

    def _begin(self) -> None:
        # A batch that began with fewer workers says nothing about the new number.
        self._ignored = self.in_flight
        self._batches = 0
        self._hits = 0
        self._elapsed_ns = 0

    @property
    def has_room(self) -> bool:
        """Whether one more worker may take hits."""
        return self.in_flight < self.most

    def joined(self) -> None:
        """A worker was given hits."""
        self.in_flight += 1

    def left(self, hits: int, compiles: int, elapsed_ns: int) -> None:
        """A worker has ended a batch of expected hits, with so many hits and compiles, in `elapsed_ns`."""
        self.in_flight -= 1
        if not self._open:
            return
        if compiles:
            self.most, self._open = self.workers, False
            return
        if self._ignored:
            self._ignored -= 1
            return
        self._batches += 1
        self._hits += hits
        self._elapsed_ns += elapsed_ns
        if self._batches >= _JUDGED_BATCHES * self.most:
            self._judge()

    def _judge(self) -> None:
        """Go on with more workers, or with the fastest number."""
        rate = self.most * self._hits / max(self._elapsed_ns, 1)
        if rate > _WORTH_DOUBLING * self._best_rate:
            self._best_rate, self._best = rate, self.most
            if self.most < self.workers:
                self.most = min(2 * self.most, self.workers)
                self._begin()
                return
        self.most, self._open = self._best, False


HIT_COST_NS = 5_000
"""Estimated cost of creating a pipeline that a cache holds."""

_CALLS_OF_HITS: Final = 8
"""Most driver calls in one batch of expected hits: with many workers, a request costs more than a call."""

_LEAST_NS: Final = 250_000
"""No batch of hits is shorter than this: a call costs as much as dozens of hits."""
_TURN_NS: Final = 60_000
"""Nor is it shorter than this times the workers: between two calls each holds the GIL so long (estimated)."""

_ANSWER_NS: Final = 1_500_000
"""Least time of a batch of compiles towards the end, times the number of workers: with 16, 24 ms. Between
two calls a worker holds the GIL for 250 us. To hand it over takes as long, and up to 700 us if many wait."""

_LEAST_ANSWERS: Final = 0.5
"""Part of that least time which remains at the very end, where estimates are exact: each worker then asks at
most once more."""

_UNENDED: Final = 0.3
"""Part of the jobs in flight that counts as left. Half of them are, if all estimates hold."""

_MISS_NS: Final = 10_000_000
_LEAST_HITS: Final = 8
"""Under a deadline a batch of which nearly all should hit ends in time even if all are compiled and take
`_MISS_NS` each, or holds `_LEAST_HITS`: a cache may hold only what comes first."""

_LONG_NS: Final = 750_000
_LONG_WORKERS: Final = 16
_FIRST_COMPILES: Final = 8
_JUDGED_COMPILES: Final = 8
"""Compiles are long if they take on average `_LONG_NS` times the number of workers, of which `_LONG_WORKERS`
are counted at least: 12 ms, as long as 27 answers of 450 us. A call of its own for each label then costs less
than it saves (benchmarks/results/2-cores/scheduling.md). The first `_FIRST_COMPILES` are not judged, nor any
after `_JUDGED_COMPILES` for each worker."""

_FAR_OFF: Final = 2.0
"""An estimate that is wrong by this factor is corrected for all jobs of that label."""

_TRUSTED: Final = 0.75
"""Expected hits keep their own queue while at least this share of them does hit."""


class Assignment(msgspec.Struct, frozen=True, eq=False):
    """A batch for one worker.

    Attributes:
        indices: The jobs, shape (k,), k >= 1, int32, all of one kind, in the order to create them; read-only.
        kind: Their kind.
        follows: Whether they are duplicates of what this worker compiled, and hit in its own source.
    """

    indices: Int32s
    kind: int
    follows: bool


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be assigned now; ask again after another worker's batch has ended."""


class Done(msgspec.Struct, frozen=True):
    """Nothing will be assigned any more, to any worker."""


class Paused(Done, frozen=True):
    """The time is over: this worker gets nothing more under this deadline. Jobs may be left."""


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
        Followers that are compiled all the same become ordinary jobs for any worker. Until a follower by
        second-level key was seen to hit, an idle worker may take one.
    SHARE: It gets the leader's outcome and is never assigned, unless another job links it as a library.
    SEPARATE: It follows no leader: it is created as if it were other work.
    """

    CREATE = "create"
    SHARE = "share"
    SEPARATE = "separate"


def _second_keys(jobs: JobGraph, followers: Followers) -> UInt64s | None:
    """The second-level keys that make jobs followers: only proven ones where followers are not created."""
    keys = jobs.pipeline_keys
    if keys is None or jobs.proven_keys is None or followers is not Followers.SHARE:
        return keys
    return np.where(jobs.proven_keys, keys, np.uint64(0))


@frozen
class ScheduleOptions:
    """Settings of a `Scheduler`; an impossible value is refused with ValueError, or TypeError.

    Attributes:
        order: In which order jobs are assigned.
        followers: What becomes of duplicates.
        pin_followers: With CREATE, only the leader's worker creates them, because only its cache has the
            code. False where all workers use one cache.
        affinity: Whether jobs that share a module or a library prefer one worker. A preference never makes a
            worker idle or a long job wait. Without effect in the given order.
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
        few_for_hits: Whether few workers begin with expected hits; see `HitTeam`.
        costs_recorded: Whether the costs of nearly all jobs are recorded compile times. Once these prove
            true, the last batches are cut by cost and not by number of jobs.
    """

    order: Order = field(default=Order.COST, converter=Order)
    followers: Followers = field(default=Followers.CREATE, converter=Followers)
    pin_followers: bool = field(default=True, validator=validators.instance_of(bool))
    affinity: bool = field(default=True, validator=validators.instance_of(bool))
    target_ns: int = field(default=2_000_000, validator=[validators.instance_of(int), validators.ge(1)])
    batch_limit: int = field(default=256, validator=[validators.instance_of(int), validators.ge(1)])
    expect_hits: float = field(default=0.5, validator=[validators.ge(0.0), validators.le(1.0)])
    capacity: int | None = field(
        default=None, validator=validators.optional([validators.instance_of(int), validators.ge(1)])
    )
    streaming: bool = field(default=False, validator=validators.instance_of(bool))
    few_for_hits: bool = field(default=False, validator=validators.instance_of(bool))
    costs_recorded: bool = field(default=False, validator=validators.instance_of(bool))


class ScheduleStatistics(msgspec.Struct, frozen=True):
    """What a schedule did so far; a snapshot.

    Attributes:
        states: Number of jobs in each state.
        saved_by_key: Followers by state key whose leader was created, so that they should hit.
        saved_by_pipeline_key: Followers by second-level key whose leader was created.
        saved_ns: Estimated cost of compiling all these followers, nanoseconds.
        at_home: Jobs that share code and went to the worker that got their label first.
        moved: Jobs that share code and went elsewhere.
    """

    states: dict[JobState, int]
    saved_by_key: int
    saved_by_pipeline_key: int
    saved_ns: int
    at_home: int
    moved: int


class Cancellation(msgspec.Struct, eq=False):
    """What a call of `cancel_jobs` did. The scheduler updates it; the caller reads it under the same lock.

    A driver call cannot be stopped, so a cancelled job may still be in one. `quiet` turns true when the last
    such batch ends, and stays true.

    Attributes:
        cancelled: Number of jobs that will not be assigned any more.
        kept: Number of jobs that are created all the same, because a job that is not cancelled links them.
        pending: Workers whose batch holds one of the given jobs.
    """

    cancelled: int = 0
    kept: int = 0
    pending: set[int] = msgspec.field(default_factory=set)

    @property
    def quiet(self) -> bool:
        """Whether none of the jobs is in flight: no driver call for them uses a cache any more."""
        return not self.pending


class Lifecycle:
    """The jobs of a scheduler and the queues they are in.

    Jobs that are the same work form a chain behind the job that does it, their leader. `unite` joins two
    chains in any state. No two jobs can wait for each other: a job waits for its libraries, which have a
    smaller depth, or for its leader, which has the same depth and waits for libraries only.

    Guarantees: every queued job is ready, or waits for code, or for a library or a leader that is queued or
    assigned. So when no job is ready, assigned, or without its code, none is queued. An event costs O(jobs
    that it changes). Only `raise_` may visit a library more than once, for each priority or rank it gets.

    Args:
        jobs: All jobs that there may be.
        workers: Number of workers.
        options: The scheduler's options.

    Attributes:
        table: The jobs.
        links: Their links.
        queue: Ready jobs that any worker may take.
        hits: Ready jobs that a cache is expected to hold.
        wave: Ready jobs that are tried without their code.
        duplicates: Ready duplicates by state key, and by second-level key: one queue for each worker, or one
            for all where they are not pinned.
        costs: Estimated cost of compiling each job, nanoseconds.
        excluded: Jobs that cannot be created, with the reason.
        unassignable: Jobs that were entered and will never be assigned, with the reason.
        failures: Jobs that were assigned and not created, with the reason.
        saved: Compiles saved by state key, and by second-level key.
        saved_ns: Estimated cost of the saved compiles.
    """

    def __init__(self, jobs: JobGraph, workers: int, options: ScheduleOptions) -> None:
        jobs.check()
        self.table = table = JobTable(len(jobs))
        self.links = Links(table, jobs.library_start, jobs.library_index)
        self.queue = ReadyQueue(table, READY)
        self.hits = ReadyQueue(table, READY, HIT_COST_NS)
        self.wave = ReadyQueue(table, READY, HIT_COST_NS)
        self._pinned = options.pin_followers
        queues = workers if self._pinned else 1
        self.duplicates = tuple([ReadyQueue(table, PINNED) for _ in range(queues)] for _ in range(2))
        self._create_followers = options.followers is not Followers.SHARE
        self._by_cost = options.order is Order.COST
        separate = options.followers is Followers.SEPARATE
        self._keys = [
            (keys, KeyTable(), second)
            for keys, second in ((jobs.keys, False), (_second_keys(jobs, options.followers), True))
            if keys is not None and not separate
        ]
        self.costs: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._settled: list[Int32s] = []
        self._settled_alone: list[int] = []
        self.excluded: dict[int, str] = {}
        self.unassignable: dict[int, str] = {}
        self.failures: dict[int, str] = {}
        self.saved: tuple[int, int] = (0, 0)
        self.saved_ns = 0
        self._joined_any = False
        self._trusts = [True, True]
        self._state_keys = jobs.keys
        self._followers = options.followers
        self._describe(jobs, 0)

    def extend(self, jobs: JobGraph) -> int:
        """Add jobs without entering them; returns the number of the first.

        Raises:
            ValueError: The graph is invalid, or it has no keys and earlier jobs have. Nothing was added.
        """
        jobs.check()
        if jobs.keys is None and any(not second for _, _, second in self._keys):
            raise ValueError("the jobs have no keys, and those before them have")
        table, first = self.table, self.table.count
        table.extend(len(jobs))
        self.links.extend(table, jobs.library_start, jobs.library_index, first)
        for place, (keys, known, second) in enumerate(self._keys):
            more = _second_keys(jobs, self._followers) if second else jobs.keys
            if more is None:
                more = np.zeros(len(jobs), np.uint64)
            elif second and len(keys):  # the numbers mean something in this graph only; 0 is no key
                more = np.where(more == 0, more, more + keys.max())
            self._keys[place] = (np.concatenate((keys, more)), known, second)
        if self._state_keys is not None and jobs.keys is not None:
            self._state_keys = np.concatenate((self._state_keys, jobs.keys))
        self._describe(jobs, first)
        return first

    def _describe(self, jobs: JobGraph, first: int) -> None:
        """Fill the columns of the jobs from `first` on."""
        table, count = self.table, len(jobs)
        costs = np.full(count, DEFAULT_COST_NS) if jobs.costs_ns is None else np.maximum(jobs.costs_ns, 1)
        self.costs = np.concatenate((self.costs, costs))
        table.kind[first:] = jobs.kinds
        table.cost[first:] = costs
        table.priority[first:] = Priority.SOON if jobs.priorities is None else jobs.priorities
        if jobs.hits is not None and self._by_cost:
            table.flags[first:][jobs.hits] = HIT
            table.cost[first:][jobs.hits] = HIT_COST_NS
        if jobs.speculative is not None:
            table.flags[first:][jobs.speculative] = SPECULATIVE
            table.cost[first:][jobs.speculative] = HIT_COST_NS
        if self._by_cost:
            table.rank[first:] = table.cost[first:]

    @property
    def _queues(self) -> tuple[ReadyQueue, ...]:
        return self.queue, self.hits, self.wave, *self.duplicates[0], *self.duplicates[1]

    # --- jobs in

    def enter(self, jobs: Int32s) -> None:
        """Queue jobs that are ABSENT or CANCELLED.

        Args:
            jobs: The jobs, ascending, with those of their libraries that are ABSENT or CANCELLED. The table
                has their priorities and groups.
        """
        table = self.table
        again = jobs[table.state[jobs] == CANCELLED]
        new = jobs if not len(again) else jobs[table.state[jobs] == ABSENT]
        if len(again):
            table.flags[again] &= CHAINED | HIT | SPECULATIVE | UNWANTED
            table.cost[again] = self.costs[again]
            hits = again[table.flags[again] & (HIT | SPECULATIVE) > 0]
            table.cost[hits] = HIT_COST_NS
            table.rank[again] = table.cost[again] if self._by_cost else 0
            table.move_all(again, CANCELLED, WAITING)
            # The queues may still hold their old entries.
            for queue in self._queues:
                queue.repeats = True
                if queue.entries > 2 * table.count:
                    queue.drop_stale()
        table.move_all(new, ABSENT, WAITING)
        libraries, dependents = self.links.edges_of(jobs)
        np.add.at(table.live_dependents, libraries, 1)
        for keys, known, second in self._keys:
            if self._trusts[second]:
                self._claim(new, keys, known, by_pipeline_key=second)
        for job in again.tolist():
            self._rejoin(job)
        if len(libraries):
            self._meet_the_lost(libraries, dependents)
            self._inherit(libraries, dependents)
        if self.excluded:
            for job in jobs.tolist():
                if (reason := self.excluded.get(job)) is not None:
                    self.reject(job, reason)
        ready = jobs[(table.state[jobs] == WAITING) & (table.waiting[jobs] == 0)]
        table.move_all(ready, WAITING, READY)
        self._push_ready(ready)

    def _push_ready(self, jobs: Int32s) -> None:
        """Put READY jobs into their queues."""
        flags = self.table.flags[jobs]
        for queue, flag in ((self.hits, HIT), (self.wave, SPECULATIVE)):
            chosen = flags & flag > 0
            if chosen.any():
                queue.push_all(jobs[chosen])
        self.queue.push_all(jobs[flags & (HIT | SPECULATIVE) == 0])

    def _claim(self, jobs: Int32s, keys: UInt64s, known: KeyTable, *, by_pipeline_key: bool) -> None:
        """Unite jobs that are entered for the first time with earlier jobs of the same key."""
        if by_pipeline_key:
            jobs = jobs[keys[jobs] != 0]
        owners = known.claim(keys[jobs], jobs)
        other = owners != jobs
        if other.any():
            self._unite_new(jobs[other], owners[other], by_pipeline_key=by_pipeline_key)

    def _rejoin(self, job: int) -> None:
        """A cancelled job is entered again: another job may do its work by now."""
        table = self.table
        leader = table.find(job)
        if leader == job:
            return
        if not self._trusts[bool(table.flags_at[job] & BY_PIPELINE_KEY)]:
            table.leader_at[job] = job
        elif table.flags_at[job] & CHAINED:
            # It is still in its leader's chain.
            table.move(job, JOINED)
            self.raise_(leader, table.priority_at[job], table.rank_at[job])
        else:
            table.leader_at[job] = job
            self.unite(job, leader)

    def _inherit(self, libraries: Int32s, dependents: Int32s) -> None:
        """Give libraries the priority of their dependents, and the rank of the whole chain of links.

        It goes from the last dependent to the first, so that each dependent has its final rank when it passes
        it on to its libraries.
        """
        table = self.table
        for library, job in zip(reversed(libraries.tolist()), reversed(dependents.tolist()), strict=True):
            if table.state_at[job] <= JOINED:
                self.raise_(library, table.priority_at[job], table.cost_at[library] + table.rank_at[job])

    def _outlast(self, jobs: Int32s) -> None:
        """The cost of jobs, ascending, has grown: so have the ranks of the chains that begin with them."""
        table = self.table
        if not self.links.count:
            return
        for library in reversed(jobs[self.links.dependents[jobs] > 0].tolist()):
            for job in self.links.dependents_of(library):
                if table.state_at[job] <= JOINED:
                    self.raise_(library, table.priority_at[job], table.cost_at[library] + table.rank_at[job])

    def _meet_the_lost(self, libraries: Int32s, dependents: Int32s) -> None:
        """Jobs link libraries that were not created."""
        states = self.table.state[libraries]
        lost = (states == FAILED) | (states == UNASSIGNABLE)
        for library, job in zip(libraries[lost].tolist(), dependents[lost].tolist(), strict=True):
            cause = self.unassignable.get(library) or self.failures[library]
            self.reject(job, f"links pipeline {library}, which was not created: {cause}")

    def demote_hits(self) -> None:
        """The caches do not hold the expected hits: these jobs become ordinary jobs."""
        table = self.table
        jobs = np.flatnonzero(table.flags & HIT).astype(np.int32)
        table.flags[jobs] &= ~HIT & 0xFF
        state = table.state[jobs]
        plain = (table.flags[jobs] & DUPLICATE == 0) & ((state <= JOINED) | (state == ABSENT))
        jobs, state = jobs[plain], state[plain]
        queued = jobs[state <= READY]
        table.open_cost += int((self.costs[queued] - table.cost[queued]).sum())
        table.cost[jobs] = self.costs[jobs]
        table.rank[jobs] = np.maximum(table.rank[jobs], table.cost[jobs])
        self.hits = ReadyQueue(table, READY, HIT_COST_NS)
        self.queue.repeats = True
        self.queue.push_all(jobs[state == READY])
        self._outlast(jobs[state <= JOINED])
        self._inherit(*self.links.edges_of(jobs[state <= JOINED]))
        for job in jobs[state == JOINED].tolist():
            self.raise_(table.find(job), table.priority_at[job], table.rank_at[job])

    def distrust(self, *, by_pipeline_key: bool) -> None:
        """Followers by one kind of key did not hit: they become ordinary jobs, which any worker may take.

        They do not wait for their leader any more.
        """
        table = self.table
        if not self._trusts[by_pipeline_key]:
            return
        self._trusts[by_pipeline_key] = False
        followed = (table.flags & DUPLICATE > 0) & (table.state <= PINNED)
        told = table.flags & BY_PIPELINE_KEY > 0
        if by_pipeline_key and self._state_keys is not None:
            # A job may follow, by its state key, a job that follows a leader by its second-level key. It then
            # has that leader, but another state key.
            told |= (
                self._state_keys != self._state_keys[table.find_all(np.arange(table.count, dtype=np.int32))]
            )
        self._follow_no_more(np.flatnonzero(followed & (told == by_pipeline_key)).astype(np.int32))
        leads = (table.next_follower >= 0) & (table.state <= ASSIGNED)
        for leader in np.flatnonzero(leads).tolist():
            if table.leader_at[leader] == leader:
                self._let_go(leader, by_pipeline_key=by_pipeline_key)

    def doubt(self, least: int) -> bool:
        """Make the longest follower by second-level key an ordinary job, if there are `least` such followers.

        Where its leader was not created yet, the follower keeps its place in the chain, which then skips it.

        Returns:
            Whether there was one.
        """
        if not (self._create_followers and self._joined_any and self._trusts[1]):
            return False
        table = self.table
        waits = (table.state == PINNED) | ((table.state == JOINED) & (table.waiting == 0))
        jobs = np.flatnonzero(waits & (table.flags & BY_PIPELINE_KEY > 0)).astype(np.int32)
        if len(jobs) < least:
            return False
        place = int(np.argmax(self.costs[jobs]))
        if table.state_at[int(jobs[place])] == PINNED:
            self._follow_no_more(jobs[place : place + 1])
        else:
            self.queue.repeats = self.hits.repeats = self.wave.repeats = True
            self._make_ready(int(jobs[place]))
        return True

    def _follow_no_more(self, jobs: Int32s) -> None:
        """Make followers whose leader was created ordinary jobs."""
        table = self.table
        costs = np.where(table.flags[jobs] & (HIT | SPECULATIVE) > 0, HIT_COST_NS, self.costs[jobs])
        table.open_cost += int((costs - table.cost[jobs]).sum())
        table.flags[jobs] &= ~DUPLICATE & 0xFF
        table.cost[jobs] = costs
        table.worker[jobs] = -1
        if self._by_cost:
            table.rank[jobs] = np.maximum(table.rank[jobs], table.cost[jobs])
        ready = jobs[table.state[jobs] == PINNED]
        table.move_all(ready, PINNED, READY)
        for queue in self._queues:
            queue.repeats = True  # a job that was ready before it joined still has its old entry
        self._push_ready(ready)
        self._outlast(jobs)
        self._inherit(*self.links.edges_of(jobs))

    def _let_go(self, leader: int, *, by_pipeline_key: bool) -> None:
        """Free the followers of a leader by one kind of key: those that wait for nothing else are ready."""
        table, keys = self.table, self._state_keys
        stay: list[int] = []
        let: list[int] = []
        for job in self._take_followers(leader):
            told = bool(table.flags_at[job] & BY_PIPELINE_KEY)
            (let if told == by_pipeline_key else stay).append(job)
        owners = {} if keys is None else {int(keys[job]): job for job in reversed(let)}
        behind: dict[int, list[int]] = {}
        for job in stay:
            own = leader if keys is None or keys[job] == keys[leader] else owners.get(int(keys[job]), leader)
            table.leader_at[job] = own
            behind.setdefault(own, []).append(job)
        for job in let:
            table.leader_at[job] = job
        for own, jobs in behind.items():
            self._chain(own, jobs)
        for job in let:
            self._queue_if_ready(job)

    # --- the same work

    def unite(self, job: int, other: int, *, by_pipeline_key: bool = False) -> None:
        """Make one of two jobs, which are the same work, follow the other.

        Nothing happens where both were already assigned, or where their kind or depth differs.
        """
        table = self.table
        state_at = table.state_at
        mine, theirs = table.find(job), table.find(other)
        if mine == theirs:
            return
        if table.kind_at[mine] != table.kind_at[theirs] or table.depth_at[mine] != table.depth_at[theirs]:
            return
        if state_at[mine] > READY:
            mine, theirs = theirs, mine
            if state_at[mine] > READY:
                return
        joined = [mine, *self._take_followers(mine)]
        if by_pipeline_key:
            table.flags_at[mine] |= BY_PIPELINE_KEY
        state = state_at[theirs]
        if state in (UNASSIGNABLE, CANCELLED):
            # It will not do the work, so `mine` does; later jobs with its key find `mine` through it.
            table.leader_at[theirs] = mine
            self._chain(mine, joined[1:])
            return
        for each in joined:
            table.leader_at[each] = theirs
        if state == CREATED:
            for each in joined:
                # A job that shares the outcome may release a library that is itself in `joined`.
                if state_at[each] <= JOINED:
                    self._follow(each, theirs)
        elif state == FAILED:
            for each in joined:
                self.reject(each, _same_work(theirs, self.failures[theirs]))
        else:
            table.move(mine, JOINED)
            self._chain(theirs, joined)
            for each in joined:
                self.raise_(theirs, table.priority_at[each], table.rank_at[each])

    def _unite_new(self, jobs: Int32s, owners: Int32s, *, by_pipeline_key: bool) -> None:
        """Unite many jobs, none of them queued yet, with the owners of their keys."""
        table = self.table
        roots = table.find_all(owners)
        states = table.state[roots]
        # The common case, for all at once: a job without followers joins one that is queued or assigned.
        simple = (states == WAITING) | (states == READY) | (states == ASSIGNED)
        simple &= (table.state[jobs] == WAITING) & (table.last_follower[jobs] == jobs)
        simple &= (table.kind[jobs] == table.kind[roots]) & (table.depth[jobs] == table.depth[roots])
        simple &= (table.leader[jobs] == jobs) & (roots != jobs)
        simple &= ~np.isin(jobs, roots)
        order = np.argsort(roots[simple], kind="stable")
        followers, leaders = jobs[simple][order], roots[simple][order]
        if len(followers):
            self._joined_any = True
            table.flags[followers] |= CHAINED | BY_PIPELINE_KEY if by_pipeline_key else CHAINED
            table.move_all(followers, WAITING, JOINED)
            table.leader[followers] = leaders
            last = np.flatnonzero(np.append(leaders[1:] != leaders[:-1], True))
            begin = np.concatenate(([0], last[:-1] + 1))
            following = np.append(followers[1:], -1).astype(np.int32)
            following[last] = -1
            table.next_follower[followers] = following
            table.next_follower[table.last_follower[leaders[last]]] = followers[begin]
            table.last_follower[leaders[last]] = followers[last]
            urgent = (table.priority[followers] < table.priority[leaders]) | (
                table.rank[followers] > table.rank[leaders]
            )
            for job, leader in zip(followers[urgent].tolist(), leaders[urgent].tolist(), strict=True):
                self.raise_(leader, table.priority_at[job], table.rank_at[job])
        for job, owner in zip(jobs[~simple].tolist(), owners[~simple].tolist(), strict=True):
            self.unite(job, owner, by_pipeline_key=by_pipeline_key)

    def _chain(self, leader: int, followers: Iterable[int]) -> None:
        """Put followers behind a leader."""
        table = self.table
        last = table.last_follower_at[leader]
        for job in followers:
            table.next_follower_at[last] = job
            table.flags_at[job] |= CHAINED
            last = job
            self._joined_any = True
        table.next_follower_at[last] = -1
        table.last_follower_at[leader] = last

    def _take_followers(self, leader: int) -> list[int]:
        """The jobs that follow a leader; it has none from now on."""
        table = self.table
        found = []
        job = self._unchain(leader)
        while job >= 0:
            if table.state_at[job] == JOINED:
                found.append(job)
            job = self._unchain(job)
        return found

    def _unchain(self, job: int) -> int:
        """Take a job out of its chain; returns the job that was behind it, or -1."""
        table = self.table
        following = table.next_follower_at[job]
        table.next_follower_at[job] = -1
        table.last_follower_at[job] = job
        table.flags_at[job] &= ~CHAINED & 0xFF
        return following

    def _follow(self, job: int, leader: int) -> None:
        """The leader of a job was created before."""
        table = self.table
        second = bool(table.flags_at[job] & BY_PIPELINE_KEY)
        self.saved = (self.saved[0] + (not second), self.saved[1] + second)
        self.saved_ns += table.cost_at[job]
        if not self._create_followers and not self._is_library(job):
            table.move(job, SHARED)
            self._settled_alone.append(job)
            self._give_up_libraries(job)
            return
        table.move(job, JOINED)
        table.flags_at[job] |= DUPLICATE
        table.cost_at[job] = min(table.cost_at[job], HIT_COST_NS)
        table.worker_at[job] = table.worker_at[leader]
        self._queue_if_ready(job)

    def _is_library(self, job: int) -> bool:
        return bool(self.links.count and self.links.dependents[job])

    def _follow_all(self, jobs: Int32s, worker: int, saved: bool) -> None:
        """The leaders of many jobs were created, all by one worker: `_follow` for each, at once."""
        table = self.table
        if saved:
            second = int(np.count_nonzero(table.flags[jobs] & BY_PIPELINE_KEY))
            self.saved = (self.saved[0] + len(jobs) - second, self.saved[1] + second)
            self.saved_ns += int(gather(table.cost, jobs).sum())
        shared = jobs[:0]
        if not self._create_followers:
            sharing = self.links.dependents[jobs] == 0 if self.links.count else np.ones(len(jobs), np.bool_)
            shared, jobs = jobs[sharing], jobs[~sharing]
            table.move_all(shared, JOINED, SHARED)
            self._settled.append(shared)
        table.flags[jobs] |= DUPLICATE
        table.cost[jobs] = np.minimum(table.cost[jobs], HIT_COST_NS)
        table.worker[jobs] = worker
        ready = table.waiting[jobs] == 0
        table.move_all(jobs[ready], JOINED, PINNED)
        table.move_all(jobs[~ready], JOINED, WAITING)
        ready = jobs[ready]
        by_second = table.flags[ready] & BY_PIPELINE_KEY > 0
        for queues, some in zip(self.duplicates, (ready[~by_second], ready[by_second]), strict=True):
            queues[worker if self._pinned else 0].push_all(some)
        # Last, because it may cancel one of the jobs above.
        for job in shared.tolist() if self.links.count else ():
            self._give_up_libraries(job)

    def _queue_if_ready(self, job: int) -> None:
        """Queue a job that follows no leader any more, or whose leader was created."""
        if self.table.waiting_at[job]:
            self.table.move(job, WAITING)
        else:
            self._make_ready(job)

    def _make_ready(self, job: int) -> None:
        self.table.move(job, PINNED if self.table.flags_at[job] & DUPLICATE else READY)
        self._queue_of(job).push(job)

    def _queue_of(self, job: int) -> ReadyQueue:
        table = self.table
        if table.state_at[job] == READY:
            flags = table.flags_at[job]
            return self.wave if flags & SPECULATIVE else self.hits if flags & HIT else self.queue
        by_second = bool(table.flags_at[job] & BY_PIPELINE_KEY)
        return self.duplicates[by_second][table.worker_at[job] if self._pinned else 0]

    # --- the ends of batches

    def correct(self, jobs: Int32s, factor: float) -> None:
        """Multiply the first estimates of jobs by a factor.

        Jobs that do not wait for a compile keep their estimate. So do jobs that link libraries, because the
        ranks of the libraries would have to change too.
        """
        table = self.table
        states = gather(table.state, jobs)
        there = ((states == WAITING) | (states == READY)) & (gather(table.depth, jobs) == 0)
        there &= gather(table.flags, jobs) & (HIT | SPECULATIVE) == 0
        jobs, states = jobs[there], states[there]
        costs = np.maximum(np.rint(gather(self.costs, jobs) * factor), 1).astype(np.int64)
        more = costs - gather(table.cost, jobs)
        table.open_cost += int(more.sum())
        cost_at, rank_at = table.cost_at, table.rank_at
        for job, cost, added in zip(jobs.tolist(), costs.tolist(), more.tolist(), strict=True):
            cost_at[job] = cost
            rank_at[job] += added if self._by_cost else 0
        if self._by_cost:
            self.queue.repeats = True  # the queue still holds their old entries
            self.queue.push_all(jobs[states == READY])

    def longest_first(self, jobs: Int32s) -> Int32s:
        """Jobs by their first estimates."""
        costs = gather(self.costs, jobs)
        if len(jobs) > KEEPS_GIL:
            return jobs[np.argsort(-costs, kind="stable")]
        longest = sorted(zip(costs.tolist(), jobs.tolist(), strict=True), key=lambda each: -each[0])
        return np.array([job for _, job in longest], np.int32)

    def reorder(self, jobs: Int32s, factors: npt.NDArray[np.float64] | float) -> None:
        """Order those jobs that wait for a compile by their first estimates, each times its factor.

        Args:
            jobs: The jobs, the longest first.
            factors: That of each, or of all.
        """
        table, rank_at = self.table, self.table.rank_at
        ranks = np.maximum(np.rint(gather(self.costs, jobs) * factors), 1).astype(np.int64)
        states = gather(table.state, jobs)
        there = (states <= JOINED) & (gather(table.flags, jobs) & (HIT | SPECULATIVE | DUPLICATE) == 0)
        jobs, states = jobs[there], states[there]
        for job, rank in zip(jobs.tolist(), ranks[there].tolist(), strict=True):
            rank_at[job] = rank
        self.queue.repeats = self.queue.sinks = True
        self.queue.push_all(jobs[states == READY])
        if self.links.count:
            jobs = np.sort(jobs)
            self._outlast(jobs)
            self._inherit(*self.links.edges_of(jobs))

    def created(self, jobs: Int32s, *, compiled: bool) -> None:
        """Assigned jobs were created. Unless one of them was compiled, their followers saved nothing."""
        table = self.table
        span = span_of(jobs) if len(jobs) else None
        if span is None:
            table.move_all(jobs, ASSIGNED, CREATED)
        else:
            table.move_row(span, ASSIGNED, CREATED)
        self._settled.append(jobs)  # no copy: its page faults would keep other workers waiting
        if self._joined_any:
            followers: list[int] = []
            for leader in jobs[gather(table.next_follower, jobs) >= 0].tolist():
                if table.leader_at[leader] == leader:
                    followers += self._take_followers(leader)
            if followers:
                self._follow_all(np.array(followers, np.int32), table.worker_at[int(jobs[0])], compiled)
        if self.links.count:
            ready: list[int] = []
            for library in jobs[gather(self.links.dependents, jobs) > 0].tolist():
                for job in self.links.dependents_of(library):
                    table.waiting_at[job] -= 1
                    if not table.waiting_at[job] and table.state_at[job] == WAITING:
                        ready.append(job)
            # In the order of the set, whichever library was created last.
            for job in sorted(ready):
                self._make_ready(job)

    def missed(self, jobs: Int32s) -> None:
        """The driver did not find assigned jobs without their code: they wait for it as ordinary jobs."""
        table = self.table
        table.flags[jobs] &= ~(SPECULATIVE | DUPLICATE) & 0xFF
        table.cost[jobs] = self.costs[jobs]
        table.worker[jobs] = -1
        table.waiting[jobs] += 1
        if self._by_cost:
            table.rank[jobs] = np.maximum(table.rank[jobs], table.cost[jobs])
        table.move_all(jobs, ASSIGNED, WAITING)
        self._outlast(jobs)
        for leader in jobs[table.next_follower[jobs] >= 0].tolist():
            follower = table.next_follower_at[leader] if table.leader_at[leader] == leader else -1
            while follower >= 0:  # a job that joined while it was in flight may be more urgent
                if table.state_at[follower] == JOINED:
                    self.raise_(leader, table.priority_at[follower], table.rank_at[follower])
                follower = table.next_follower_at[follower]
        # These were cancelled in flight.
        unwanted = (table.flags[jobs] & UNWANTED > 0) & (table.live_dependents[jobs] == 0)
        for job in jobs[unwanted].tolist():
            self._drop(job, CANCELLED)

    def supplied(self, jobs: Iterable[int]) -> None:
        """The code that jobs wait for has arrived."""
        table = self.table
        for job in jobs:
            table.waiting_at[job] -= 1
            if not table.waiting_at[job] and table.state_at[job] == WAITING:
                self._make_ready(job)

    def failed(self, reasons: Mapping[int, str]) -> None:
        """Assigned jobs were not created: neither are their followers and dependents."""
        table = self.table
        for job, reason in reasons.items():
            table.move(job, FAILED)
            self._settled_alone.append(job)
            self.failures[job] = reason
            if table.leader_at[job] == job:
                for follower in self._take_followers(job):
                    self.reject(follower, _same_work(job, reason))
            self._reject_dependents(job, reason)

    def reject(self, job: int, reason: str) -> None:
        """Never assign a queued job and its dependents. Its first follower becomes the leader."""
        if self.table.state_at[job] <= JOINED:
            self._drop(job, UNASSIGNABLE)
            self.unassignable[job] = reason
            self._reject_dependents(job, reason)

    def _reject_dependents(self, lost: int, cause: str) -> None:
        pending = [lost]
        while pending:
            library = pending.pop()
            for job in self.links.dependents_of(library):
                if self.table.state_at[job] <= JOINED:
                    self._drop(job, UNASSIGNABLE)
                    # Only the root cause, so that a long chain does not give a long text.
                    own = self.excluded.get(job)
                    self.unassignable[job] = (
                        own or f"links pipeline {library}, which was not created: {cause}"
                    )
                    pending.append(job)

    def take_settled(self) -> Int32s:
        """Jobs that were created, shared, lost or cancelled since the last call; in any order."""
        alone = np.array(self._settled_alone, np.int32)
        jobs = np.concatenate((alone, *self._settled))
        self._settled, self._settled_alone = [], []
        return jobs

    # --- what a caller may ask for

    def raise_(self, job: int, priority: int, rank: int = 0) -> int:
        """Give a job and all it waits for at least this priority and rank; returns how many more urgent."""
        table = self.table
        raised = 0
        pending = [(job, rank)]
        while pending:
            job, rank = pending.pop()
            state = table.state_at[job]
            more_urgent = priority < table.priority_at[job]
            longer = self._by_cost and rank > table.rank_at[job]
            if state > JOINED or not (more_urgent or longer):
                continue
            place = (table.priority_at[job], bucket_of(table.rank_at[job]))
            if more_urgent:
                table.priority_at[job] = priority
                raised += 1
            if longer:
                table.rank_at[job] = rank
            if state in (READY, PINNED):
                if place != (table.priority_at[job], bucket_of(table.rank_at[job])):
                    queue = self._queue_of(job)
                    queue.repeats = True
                    queue.push(job)
            elif state == JOINED:
                pending.append((table.find(job), table.rank_at[job]))
            if table.waiting_at[job]:
                below = table.rank_at[job]
                pending.extend((each, table.cost_at[each] + below) for each in self.links.libraries_of(job))
        return raised

    def cancel(self, jobs: Iterable[int], cancellation: Cancellation) -> None:
        """Cancel jobs, given in descending order, so that dependents come before their libraries."""
        table = self.table
        for job in jobs:
            state = table.state_at[job]
            if state == ASSIGNED:
                cancellation.pending.add(table.worker_at[job])
                table.flags_at[job] |= UNWANTED
            elif state <= JOINED:
                if table.live_dependents_at[job]:
                    cancellation.kept += not table.flags_at[job] & UNWANTED
                    table.flags_at[job] |= UNWANTED
                else:
                    cancellation.cancelled += self._drop(job, CANCELLED)

    def _drop(self, job: int, state: int) -> int:
        """Remove a queued job, and libraries that only it needed; returns how many jobs were removed."""
        table = self.table
        # A former follower still points to the rest of its leader's chain, which it does not lead.
        leads = table.leader_at[job] == job and table.next_follower_at[job] >= 0
        table.move(job, state)
        self._settled_alone.append(job)
        if leads:
            self._hand_over(job)
        return 1 + self._give_up_libraries(job)

    def _give_up_libraries(self, job: int) -> int:
        """A job does not need its libraries any more: cancel unwanted ones; returns how many."""
        table = self.table
        dropped = 0
        for library in self.links.libraries_of(job):
            table.live_dependents_at[library] -= 1
            if (
                not table.live_dependents_at[library]
                and table.flags_at[library] & UNWANTED
                and table.state_at[library] <= JOINED
            ):
                dropped += self._drop(library, CANCELLED)
        return dropped

    def _hand_over(self, leader: int) -> None:
        """A leader will not do the work: its first follower leads."""
        table = self.table
        last = table.last_follower_at[leader]
        job = self._unchain(leader)
        while job >= 0 and table.state_at[job] != JOINED:
            job = self._unchain(job)
        if job < 0:
            return
        table.leader_at[leader] = job
        table.leader_at[job] = job
        table.last_follower_at[job] = last
        table.flags_at[job] &= ~(BY_PIPELINE_KEY | CHAINED) & 0xFF
        # If it was ready before it joined, a queue still holds its old entry.
        self.queue.repeats = self.hits.repeats = self.wave.repeats = True
        self._queue_if_ready(job)
        self.raise_(job, table.priority_at[leader], table.rank_at[leader])


def _same_work(number: int, cause: str) -> str:
    return f"is the same work as pipeline {number}, which was not created: {cause}"


_WAIT: Final = Wait()
_DONE: Final = Done()
_PAUSED: Final = Paused()


class Scheduler:
    """The machine; see the top of the module. Not thread-safe.

    Args:
        jobs: All jobs that may be entered. Without `ScheduleOptions.streaming` they are queued at once.
        workers: Number of workers, numbered 0..workers-1.
        options: Settings.

    Attributes:
        options: The settings.
        workers: Number of workers.
        tells_hits: Whether the caller knows which jobs hit. Otherwise followers are assumed to hit.

    Raises:
        ValueError: A number is out of range, arrays do not fit together, or a job links a library that does
            not come before it.
    """

    def __init__(self, jobs: JobGraph, workers: int, options: ScheduleOptions | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self.options = options if options is not None else ScheduleOptions()
        self.workers = workers
        self.tells_hits = True
        self._life = Lifecycle(jobs, workers, self.options)
        self._table = self._life.table
        self._prefers = self.options.affinity and self.options.order is Order.COST and workers > 1
        self._affinity = Affinity(self._table, jobs if self._prefers else None, self._life.links)
        self._selector = Selector(self._table, self._affinity)
        self._experiences = Experiences(self.options.expect_hits)
        self._team = HitTeam(workers, few=self.options.few_for_hits)
        self._deadline_ns = math.inf
        self._fresh_deadline = False
        self._owes = False
        self._exempt = 0
        self._loud: list[Cancellation] = []
        self._assigned: list[Assignment | None] = [None] * workers
        self._learning: list[tuple[Experience, int]] = [(self._experiences.hits, 0)] * workers
        self._open = self.options.streaming
        self._cancelled = False
        self._compiles = 0
        self._compiled_ns = 0
        self._may_reorder = self._prefers and not (self._open or self.options.costs_recorded)
        self._reordered = False
        self._long_ns = _LONG_NS * max(workers, _LONG_WORKERS)
        self._alone: list[tuple[int, int]] = []
        if not self._open:
            self._life.enter(np.arange(self.count, dtype=np.int32))

    # --- jobs in

    def enter(self, jobs: Int32s, priority: Priority, group: int = -1) -> None:
        """Queue jobs, with the libraries that they link; raise queued ones to the priority.

        A job that was created or failed stays as it is; a cancelled one is queued again. A library that was
        not entered by itself is cancelled with the last job that links it.

        Args:
            jobs: The jobs, ascending, none twice.
            priority: How urgent they are.
            group: A number of the caller's, see `members`; a later one replaces it. -1 leaves queued jobs in
                theirs.

        Raises:
            ValueError: The stream is not open.
        """
        if not self._open:
            raise ValueError("nothing can be entered: the stream was not opened, or was closed")
        table = self._table
        absent = self.absent(jobs)
        there = jobs[~absent]
        new = level = jobs[absent]
        while len(level := self._libraries_of(level)):
            level = level[self.absent(level) & ~np.isin(level, new)]
            new = np.union1d(new, level).astype(np.int32)
        if len(new):
            table.priority[new] = Priority.BACKGROUND
            table.group[new] = -1
            table.flags[new] |= UNWANTED
            table.priority[jobs[absent]] = priority
        if group >= 0:
            table.group[jobs] = group
        table.flags[jobs] &= ~UNWANTED & 0xFF
        if len(new):
            self._life.enter(new)
        self.promote(there, priority)

    def extend(self, jobs: JobGraph) -> int:
        """Add jobs that may be entered later, numbered after the others; returns the number of the first.

        Takes O(all jobs). No job changes its state.

        Raises:
            ValueError: The stream is not open, or the graph does not fit.
        """
        if not self._open:
            raise ValueError("no jobs can be added: the stream was not opened, or was closed")
        first = self._life.extend(jobs)
        self._affinity.extend(jobs if self._prefers else None, self._life.links, first)
        return first

    def close(self) -> None:
        """Nothing more will be entered. Idempotent."""
        self._open = False

    def exclude(self, reasons: Mapping[int, str]) -> None:
        """Never assign some jobs, which cannot be created, nor their dependents.

        Args:
            reasons: The jobs, queued or not, with the reason.

        Raises:
            ValueError: There is no such job.
        """
        for job in reasons:
            self._checked(job)
        self._life.excluded.update(reasons)
        for job, reason in reasons.items():
            self._life.reject(job, reason)

    # --- state

    @property
    def count(self) -> int:
        """Number of jobs that may be entered."""
        return self._table.count

    @property
    def queued(self) -> int:
        """Jobs that are neither assigned nor settled: ready, or waiting for a library or a leader."""
        return self._table.queued

    @property
    def satisfied(self) -> bool:
        """Whether only expected hits are queued, and as many workers as may take them have some."""
        return not self._team.has_room and self._has_only_hits

    def unneeded(self, worker: int) -> Wait | Done | None:
        """Whether a worker without a batch need not `request` one: told at once, and nothing is assigned.

        Returns:
            Done if nothing is left for anybody. Wait if only expected hits are queued, and enough workers
            before it are free for them; not under a deadline, after which all are sent away. Else None.
        """
        if self._cancelled or not (self._table.queued or self._open):
            return _DONE
        if self._deadline_ns != math.inf or not self._has_only_hits:
            return None
        compiling = sum(each is not None for each in self._assigned) - self._team.in_flight
        return _WAIT if worker >= self._team.most + compiling else None

    @property
    def _has_only_hits(self) -> bool:
        life, table = self._life, self._table
        only_hits = life.hits.open and not (life.queue.open or life.wave.open)
        return bool(only_hits) and table.queued == table.states[READY]

    @property
    def in_flight(self) -> int:
        """Number of assigned jobs."""
        return self._table.states[ASSIGNED]

    @property
    def done(self) -> int:
        """Number of jobs that were created or failed."""
        return self._table.states[CREATED] + self._table.states[FAILED]

    @property
    def entered(self) -> int:
        """Jobs that were entered and not cancelled, with the libraries that came along."""
        states = self._table.states
        return self._table.count - states[ABSENT] - states[CANCELLED]

    def estimated_ns(self, jobs: Int32s | None = None) -> int:
        """First estimate, in nanoseconds, of compiling some jobs, or all that were entered, in any state."""
        chosen = self._table.state < CANCELLED if jobs is None else jobs
        return int(self._life.costs[chosen].sum())

    def final(self, jobs: Int32s) -> Int32s:
        """The jobs among some whose state does not change any more."""
        state = self._table.state[jobs]
        return jobs[(state > ASSIGNED) & (state < CANCELLED)]

    @property
    def unassignable(self) -> Mapping[int, str]:
        """Jobs that were entered and will never be assigned, with the reason. Live and read-only."""
        return self._life.unassignable

    @property
    def open(self) -> bool:
        """Whether jobs may still be entered."""
        return self._open

    @property
    def shares_outcomes(self) -> bool:
        """Whether followers get their leader's outcome without being created."""
        return self.options.followers is Followers.SHARE

    @property
    def exempts(self) -> bool:
        """Whether some jobs are assigned even after the deadline."""
        return self._exempt > 0

    @property
    def remaining_ns(self) -> int:
        """Estimated time of all remaining jobs on one worker, nanoseconds."""
        table, queued, cost = self._table, self._table.queued, self._table.open_cost
        total = 0.0
        if self._life.hits.open or self._life.wave.open:
            hits = np.flatnonzero((table.state <= READY) & (table.flags & (HIT | SPECULATIVE) > 0))
            base, slope = self._experiences.hits.line()
            hit_cost = int(table.cost[hits].sum())
            total = base * len(hits) + slope * hit_cost
            queued, cost = queued - len(hits), cost - hit_cost
        base, slope = self._experiences.mean_line()
        return int(total + base * queued + slope * cost)

    @property
    def learned(self) -> bool:
        """Whether `remaining_ns` rests on times of this run, for each kind that was begun."""
        return self._experiences.learned

    @property
    def flights(self) -> list[tuple[Assignment, float]]:
        """Assignments in flight, each with its estimated time, nanoseconds. May be read without the lock."""
        found = []
        for worker, assignment in enumerate(self._assigned):
            if assignment is not None:
                experience, cost = self._learning[worker]
                base, slope = experience.line()
                found.append((assignment, base * len(assignment.indices) + slope * cost))
        return found

    @property
    def statistics(self) -> ScheduleStatistics:
        """What was done so far."""
        life, affinity = self._life, self._affinity
        states = {state: self._table.states[state] for state in JobState}
        return ScheduleStatistics(states, *life.saved, life.saved_ns, affinity.at_home, affinity.moved)

    def state_of(self, job: int) -> JobState:
        """State of a job."""
        return JobState(self._table.state_at[self._checked(job)])

    def leader_of(self, job: int) -> int:
        """The job that does the work of a job: itself, or its leader."""
        return self._table.find(self._checked(job))

    def absent(self, jobs: Int32s) -> npt.NDArray[np.bool_]:
        """Which of some jobs were never entered, or were cancelled."""
        return self._table.state[jobs] >= CANCELLED

    def unsettled(self, jobs: Int32s) -> Int32s:
        """The jobs among some that are queued or in flight."""
        return jobs[self._table.state[jobs] <= ASSIGNED]

    def members(self, group: int | None) -> Int32s:
        """Entered jobs of a group that were not cancelled, ascending; None: of all groups and none."""
        there = self._table.state < CANCELLED
        if group is not None:
            there &= self._table.group == group
        return np.flatnonzero(there).astype(np.int32)

    def shared(self) -> tuple[Int32s, Int32s]:
        """Jobs that share their leader's outcome, ascending, and their leaders."""
        table = self._table
        if not table.states[SHARED]:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        jobs = np.flatnonzero(table.state == SHARED).astype(np.int32)
        return jobs, table.find_all(jobs)

    def take_settled(self) -> Int32s:
        """Jobs that were created, shared, lost or cancelled since the last call, and still are; ascending."""
        jobs = np.unique(self._life.take_settled())
        return jobs[self._table.state[jobs] > ASSIGNED]

    def remaining(self) -> Int32s:
        """Jobs that are queued, the most urgent first, then by number."""
        table = self._table
        jobs = np.flatnonzero(table.state <= JOINED).astype(np.int32)
        return jobs[np.argsort(table.priority[jobs], kind="stable")]

    # --- workers

    def request(self, worker: int, now_ns: float = 0) -> Assignment | Wait | Done:
        """A worker asks for work; see the top of the module.

        Args:
            worker: The worker.
            now_ns: Now, on the clock of the deadline; without effect where there is no deadline.

        Raises:
            ValueError: The worker's last assignment has not ended, or there is no such worker.
        """
        if self._assigned_to(worker) is not None:
            raise ValueError(f"worker {worker} asks for work before its last assignment has ended")
        if self._cancelled:
            return _DONE
        if not self._table.queued:
            return _WAIT if self._open else _DONE
        left_ns = self._deadline_ns - now_ns
        owes = self._owes and not self.in_flight
        priorities = PRIORITIES if left_ns > 0 or owes else self._exempt
        if not priorities:
            return _PAUSED
        life, experience = self._life, self._experiences.followers[1]
        found = self._choose(worker, priorities, left_ns)
        if found is None and self.tells_hits and not experience.proven and life.doubt(self.workers):
            # It is not known yet whether followers by second-level key hit. Rather than idle, the worker
            # takes one as an ordinary job.
            found = self._choose(worker, priorities, left_ns)
        if found is not None:
            return found
        # A ready job that was not taken did not fit into the time that is left.
        ready = life.queue.open or (life.hits.open and self._team.has_room) or life.wave.open
        if left_ns != math.inf and (any(self._duplicates(worker)) or ready):
            return _PAUSED
        return _WAIT

    def _duplicates(self, worker: int) -> list[ReadyQueue]:
        """Queues of followers for a worker that have entries."""
        place = worker if self.options.pin_followers else 0
        return [each[place] for each in self._life.duplicates if each[place].open]

    def _choose(self, worker: int, priorities: int, left_ns: float) -> Assignment | None:
        """The most urgent batch for a worker, followers first; None where nothing is ready or fits."""
        open_cost, duplicates = self._table.open_cost, self._duplicates(worker)
        for priority in range(priorities):
            first = [*duplicates, self._life.wave] if self._life.wave.open else duplicates
            lines = [(queue, line) for queue in first for line in queue.lines(priority)]
            for queue, line in (*lines, *self._lines(priority)):
                experience = self._experience_of(queue, line)
                jobs = self._take(queue, line, worker, left_ns)
                if len(jobs):
                    return self._assign(worker, jobs, experience, open_cost - self._table.open_cost)
        return None

    def finished(
        self,
        worker: int,
        assignment: Assignment,
        reasons: Mapping[int, str] | None = None,
        *,
        hits: int = 0,
        compiles: int = 0,
        elapsed_ns: int = 0,
        missed: Int32s | None = None,
    ) -> None:
        """A worker's assignment ended. Its jobs were created, except those in `reasons` and `missed`.

        Args:
            worker: The worker.
            assignment: Its assignment.
            reasons: The jobs that failed, by number, with the reason.
            hits: How many jobs were cache hits.
            compiles: How many were compiled.
            elapsed_ns: Time of the batch; 0 where it is not known, and then nothing is learned from it.
            missed: Speculative jobs that the driver did not find; each waits until it is `supplied` or
                excluded.

        Raises:
            ValueError: It is not the worker's last assignment, or a reason is for a job outside it.
        """
        created = assignment.indices
        if missed is not None:
            created = created[~np.isin(created, missed)]
        if reasons:
            bad = np.isin(created, np.fromiter(reasons, np.int32, len(reasons)))
            if np.count_nonzero(bad) != len(reasons):
                raise ValueError("a reason is given for a job that is not in the assignment")
            created = created[~bad]
        if self._assigned_to(worker) is not assignment:
            raise ValueError(f"worker {worker} ends an assignment that it does not hold")
        self._assigned[worker] = None
        experience, cost = self._learning[worker]
        if experience is self._experiences.hits:
            self._team.left(hits, compiles, elapsed_ns)
        follows = experience in self._experiences.followers
        # For jobs that link libraries, drivers report no hits, or those of the libraries.
        judged = not follows or self._life.links.lacks(assignment.indices)
        if judged:
            if elapsed_ns > 0 and not follows and self._affinity.active and compiles == len(created) > 0:
                cost = self._correct(created, cost, experience, elapsed_ns)
            experience.learn(len(assignment.indices), cost, hits, compiles, elapsed_ns)
        if self._loud:
            for each in self._loud:
                each.pending.discard(worker)
            self._loud = [each for each in self._loud if each.pending]
        if reasons:
            self._life.failed(reasons)
        if missed is not None:
            self._life.missed(missed)
        self._life.created(created, compiled=compiles > 0 or not hits)
        if experience.hit_share < _TRUSTED:
            if experience is self._experiences.hits:
                self._life.demote_hits()
            elif follows and self.tells_hits:
                self._life.distrust(by_pipeline_key=experience is self._experiences.followers[1])

    def _correct(self, jobs: Int32s, cost: int, experience: Experience, elapsed_ns: int) -> int:
        """Correct the estimates of a label by the measured time of its jobs, where that is far off.

        Returns:
            The corrected estimate of the jobs, so that one label does not distort what is learned of a kind;
            else `cost`.
        """
        if self._may_reorder:
            self._order_by_labels(jobs, elapsed_ns)
        factor = self._affinity.measured(jobs)
        if factor is None:
            return cost
        first = int(gather(self._life.costs, jobs).sum())
        measured = elapsed_ns / (experience.scale * first)
        if not 1 / _FAR_OFF <= measured / factor <= _FAR_OFF:
            factor = measured
            self._life.correct(self._affinity.corrected(int(jobs[0]), factor), factor)
        return int(first * factor)

    def _order_by_labels(self, jobs: Int32s, elapsed_ns: int) -> None:
        """Jobs were compiled. Where compiles are long, measure each label soon and order all others by it."""
        number = len(jobs)
        self._compiles = compiles = self._compiles + number
        self._compiled_ns = compiled_ns = self._compiled_ns + elapsed_ns
        if number == 1:
            self._alone.append((int(jobs[0]), elapsed_ns))
        # Under a deadline short jobs are to fill the time that is left.
        long = compiled_ns >= self._long_ns * compiles and self._deadline_ns == math.inf
        if not (long or self._reordered):
            self._may_reorder = compiles < _JUDGED_COMPILES * self.workers
        elif compiles >= _FIRST_COMPILES:
            self._affinity.measures_all = long
            self._reorder()

    def _reorder(self) -> None:
        """Order jobs by what was measured of their labels: first all that are queued, then who gets news."""
        affinity, life = self._affinity, self._life
        news = [job for job, took_ns in self._alone if affinity.tell(job, took_ns / int(life.costs[job]))]
        self._alone.clear()
        if not self._reordered:
            self._reordered = True
            jobs = life.longest_first(np.flatnonzero(self._table.state <= JOINED).astype(np.int32))
            life.reorder(jobs, affinity.order(jobs))
        else:
            for job in news:
                life.reorder(life.longest_first(affinity.peers(job)), affinity.told_of(job))

    def supplied(self, jobs: Iterable[int]) -> None:
        """The code of `missed` jobs has arrived: each is assigned once more, by its cost."""
        self._life.supplied(jobs)

    def in_order(self, jobs: Int32s) -> npt.NDArray[np.int64]:
        """Places of jobs, the most urgent first, shape (n,)."""
        return np.lexsort((-self._table.rank[jobs], self._table.priority[jobs]))

    # --- steering

    def promote(self, jobs: Iterable[int], priority: Priority) -> int:
        """Raise queued jobs to a priority, with the libraries and the leaders that they wait for.

        Returns:
            How many jobs became more urgent, libraries and leaders included.
        """
        return sum(self._life.raise_(self._checked(int(job)), priority) for job in jobs)

    def set_deadline(self, deadline_ns: float | None, *, at_least_one: bool = False) -> None:
        """Assign work until a deadline, which replaces any earlier one.

        A worker gets a batch that is estimated to end in time, else `Paused`. The first batch under a
        deadline may overrun it by one job if nothing else is in flight, because otherwise a job longer than a
        frame would never run.

        Args:
            deadline_ns: On the clock of `request`; None: no deadline.
            at_least_one: Whether one batch begins even if the first request comes after the deadline, as it
                may where another process set it.
        """
        self._deadline_ns = math.inf if deadline_ns is None else deadline_ns
        self._fresh_deadline = deadline_ns is not None
        self._owes = at_least_one

    def exempt(self, priority: Priority | None) -> None:
        """Exempt jobs of at least this priority from the deadline; None: no job."""
        self._exempt = 0 if priority is None else priority + 1

    def cancel(self) -> None:
        """Assign nothing more. Jobs in flight still end; queued jobs stay queued. Idempotent."""
        self._cancelled = True

    def cancel_jobs(self, jobs: Iterable[int]) -> Cancellation:
        """Cancel queued jobs, and libraries that no other job needs.

        A job that others link is still created, unless they are cancelled too. A job in flight still ends;
        `Cancellation.quiet` says when. If a leader is cancelled, its first follower leads.
        """
        table = self._table
        given = (
            jobs if isinstance(jobs, np.ndarray) else np.array([self._checked(job) for job in jobs], np.int32)
        )
        named = level = self.unsettled(np.unique(given))
        while len(level := self._libraries_of(level)):
            level = self.unsettled(level[(table.flags[level] & UNWANTED > 0) & ~np.isin(level, named)])
            named = np.union1d(named, level).astype(np.int32)
        cancellation = Cancellation()
        self._life.cancel(reversed(named.tolist()), cancellation)
        if cancellation.pending:
            self._loud.append(cancellation)
        return cancellation

    def __repr__(self) -> str:
        states = ", ".join(
            f"{number} {state.name.lower()}" for state in JobState if (number := self._table.states[state])
        )
        return f"<Scheduler{' cancelled' if self._cancelled else ''}: {states or 'no jobs'}>"

    # --- inside

    def _lines(self, priority: int) -> list[tuple[ReadyQueue, int]]:
        """Lines of a priority that any worker may take from, the line with the longest job first."""
        queue, hits = self._life.queue, self._life.hits
        takes_hits = hits.open and self._team.has_room
        if not (queue.open and takes_hits):
            only = hits if takes_hits else queue
            return [(only, line) for line in only.lines(priority)]
        lines = [(each, line) for each in (queue, hits) for line in each.lines(priority)]
        return sorted(lines, key=lambda each: -each[0].masks[each[1]].bit_length())

    def _experience_of(self, queue: ReadyQueue, line: int) -> Experience:
        if queue is self._life.queue:
            return self._experiences.of(line // PRIORITIES)
        if queue is self._life.hits:
            return self._experiences.hits
        if queue is self._life.wave:
            return self._experiences.wave
        return self._experiences.followers[queue in self._life.duplicates[1]]

    def _take(self, queue: ReadyQueue, line: int, worker: int, left_ns: float) -> Int32s:
        """A batch from a line that has entries; empty where no job fits into the time left."""
        experience = self._experience_of(queue, line)
        base, slope = experience.line()
        table, workers = self._table, self.workers
        if line % PRIORITIES < self._exempt:
            left_ns = math.inf
        time_ns: float = self.options.target_ns
        size = self.options.batch_limit
        picky = cautious = False
        adjacent = queue is self._life.hits or queue is self._life.wave
        share = max(1, table.queued // workers)
        if adjacent and experience.tried:
            if experience.proven:
                least_ns = max(_LEAST_NS, _TURN_NS * workers)
                whole = min(size * _CALLS_OF_HITS, max(share, int(least_ns / base)))
                size = whole - whole % size if whole > size else whole  # a remainder would need its own call
            else:
                size = min(size, share)
        elif queue is self._life.queue or adjacent:
            shares = SHARES * workers
            left_all_ns = base * table.queued + slope * table.open_cost
            # Bounded by the measured time of a compile too, because estimates may be far off.
            answers_ns = _ANSWER_NS * workers
            unended = table.queued + int(_UNENDED * table.states[ASSIGNED])
            few = min(size, table.queued, max(1, unended // workers), int(answers_ns / experience.compile_ns))
            most, size = size, min(size, max(1, table.queued // shares))
            if self.options.costs_recorded and experience.exact and not adjacent:
                left_each_ns = max(left_all_ns / workers, _LEAST_ANSWERS * answers_ns)
                size, time_ns = most, min(time_ns, max(left_all_ns / shares, min(answers_ns, left_each_ns)))
            elif adjacent or few <= size:
                time_ns = min(time_ns, left_all_ns / shares)
            else:
                size, time_ns = few, min(time_ns, (few + 0.5) * left_all_ns / table.queued)
            if not experience.tried and experience.hit_share < MOST_HIT:
                # The error of the estimates is not known yet, so the first batch is one job.
                size = 1
            # Where nearly everything hits, affinity gains nothing.
            if not adjacent and self._affinity.active and experience.hit_share < MOST_HIT:
                cautious = True
                longest_ns = FLOORS[queue.masks[line].bit_length() - 1]
                # Ranks are measured times once jobs were reordered, and estimates before.
                open_ns = table.open_cost * (slope if self._reordered else 1.0)
                picky = longest_ns * SHORT * workers <= open_ns
        else:  # followers: one worker creates them while others may be idle
            size = min(size, share if experience.proven else 1)
        if left_ns < math.inf and queue in (self._life.queue, self._life.hits) and not experience.told:
            # A batch whose estimate is far off overruns a time limit by all its jobs.
            size = min(size, self._most_untold(experience, left_ns))
        limits = Limits(base, slope, min(time_ns, left_ns), left_ns, size, picky, adjacent, cautious)
        jobs = self._selector.take(queue, line, worker, limits)
        if not len(jobs) and picky:
            jobs = self._selector.take(queue, line, worker, limits._replace(picky=False, adjacent=False))
        if not len(jobs) and self._fresh_deadline and not self.in_flight:
            jobs = self._selector.shortest(queue, line, worker)
        return jobs

    def _most_untold(self, experience: Experience, left_ns: float) -> int:
        """Most jobs of a batch under a deadline, where it is not known how far off estimates are."""
        if not experience.proven:
            return 1
        compiles = left_ns * self._table.queued / max(self._table.open_cost, 1)
        return max(1, int(min(experience.remembered_hits, max(_LEAST_HITS, left_ns / _MISS_NS), compiles)))

    def _assign(self, worker: int, jobs: Int32s, experience: Experience, cost: int) -> Assignment:
        table = self._table
        first = int(jobs[0])
        if self._affinity.active and experience.hit_share < MOST_HIT:
            for job in jobs.tolist():
                self._affinity.assigned(job, worker)
        self._learning[worker] = (experience, cost)
        if experience is self._experiences.hits:
            self._team.joined()
        self._fresh_deadline = self._owes = False
        jobs.flags.writeable = False
        follows = self.options.pin_followers and bool(table.flags_at[first] & DUPLICATE)
        self._assigned[worker] = assignment = Assignment(jobs, table.kind_at[first], follows)
        return assignment

    def _libraries_of(self, jobs: Int32s) -> Int32s:
        return np.unique(self._life.links.edges_of(jobs)[0]) if self._life.links.count else jobs[:0]

    def _checked(self, job: int) -> int:
        if not 0 <= job < self._table.count:
            raise ValueError(f"there is no job {job}")
        return job

    def _assigned_to(self, worker: int) -> Assignment | None:
        if not 0 <= worker < self.workers:
            raise ValueError(f"there is no worker {worker}; workers are 0..{self.workers - 1}")
        return self._assigned[worker]
