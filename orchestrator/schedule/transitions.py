"""What an event does to a job, and what follows from it for others; the states are those of jobs.py.

Jobs that are the same work have one owner, which is compiled. The others follow it: they wait until it was
created, and are then created from its worker's cache. No two jobs wait for each other: a job waits for its
libraries, or for an owner of the same depth that waits for libraries only.

Guarantees: every queued job is ready, or waits for code, or for a library or an owner that is queued or
assigned. So when no job is ready, assigned, or without its code, none is queued.
Assumptions: not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from orchestrator.schedule.batches import ReadyQueue
from orchestrator.schedule.jobs import (
    ABSENT,
    CANCELLED,
    COMPILE,
    CREATED,
    FAILED,
    FOLLOW,
    HIT,
    HIT_COST_NS,
    JOINED,
    READY,
    UNASSIGNABLE,
    WAITING,
    WAVE,
    Int32s,
    JobGraph,
    JobTable,
)
from orchestrator.schedule.options import Order, ScheduleOptions

_FEW = 32
"""So many jobs are queued one by one."""


class Transitions:
    """The jobs of a scheduler, and the queues of those that are ready."""

    def __init__(self, jobs: JobGraph, workers: int, options: ScheduleOptions) -> None:
        self._options = options
        self._by_cost = options.order is Order.COST
        self.table = table = JobTable(jobs, by_cost=self._by_cost, unites=options.unites)
        self.compiles = ReadyQueue(table, COMPILE)  # to be compiled
        self.hits = ReadyQueue(table, HIT)  # that a cache is expected to hold
        self.wave = ReadyQueue(table, WAVE)  # to be tried without their code
        # One queue for each worker, or one for all where followers are not pinned.
        self.followers = [ReadyQueue(table, FOLLOW) for _ in range(workers if options.pin_followers else 1)]
        self.excluded: dict[int, str] = {}  # jobs that cannot be created, with the reason
        self.unassignable: dict[int, str] = {}  # jobs that were entered and will never be assigned
        self._causes: dict[int, str] = {}  # why a job that failed or is unassignable is so, links left out
        self.leaders: dict[int, int] = {}  # the job that each follower follows
        self.settled: list[int] = []  # created, lost or cancelled jobs; the caller clears it
        self._joined: dict[int, dict[int, None]] = {}  # by leader, in the order in which they joined
        self._owners: dict[int, int] = {}  # by work; the first job of a work where it is not here
        self._lacking: set[int] = set()  # without their code
        self._trusts_followers = True

    # --- jobs in

    def enter(self, jobs: Int32s) -> None:
        """Queue jobs that are ABSENT or CANCELLED, ascending, with such libraries of theirs."""
        table = self.table
        plain = table.plain[jobs] & (table.states_now[jobs] == ABSENT)
        if self.excluded:
            plain &= ~np.isin(jobs, [*self.excluded])
        simple = jobs[plain]
        if len(simple):
            table.move_all(simple, READY)
            self._push_all(simple.tolist())
        others = jobs[~plain].tolist()
        # What is lost gives its libraries up, which must be kept for jobs that come with it.
        lost = [(job, *why) for job in others if (why := self._enter(job)) is not None]
        for each in lost:
            self.reject(*each)
        for job in reversed(others):
            self._raise_libraries(job)

    def _enter(self, job: int) -> tuple[str, str] | None:
        """Queue a job; why it will not be created, if so, and the root of that."""
        table = self.table
        if table.state[job] == CANCELLED:
            self._set_lane(job, COMPILE if table.lane[job] == FOLLOW else table.lane[job])
            table.rank[job] = table.cost[job] if self._by_cost else 0
        table.move(job, WAITING)
        if (reason := self.excluded.get(job)) is not None:
            return reason, reason
        for library in self._libraries_of(job):
            if table.state[library] in (FAILED, UNASSIGNABLE):
                cause = self._causes[library]
                return self._links_lost(library, cause), cause
        work = int(table.work[job])
        owner = self._owners.get(work, work)
        state = table.state[owner]
        if owner == job or not self._trusts_followers or state in (UNASSIGNABLE, CANCELLED, ABSENT):
            self._owners[work] = job
            self._release(job)
        elif state == FAILED:
            return (reason := self._same_work(owner, self._causes[owner])), reason
        else:
            self._join(job, owner)
        return None

    def _join(self, job: int, owner: int) -> None:
        """Let a job follow the owner of its work."""
        table = self.table
        self.leaders[job] = owner
        if table.state[owner] == CREATED:
            self._follow(job)
            return
        table.move(job, JOINED)
        self._joined.setdefault(owner, {})[job] = None
        self.raise_(owner, table.priority[job], table.rank[job])

    def _follow(self, job: int) -> None:
        """The leader of a queued job was created."""
        table, leader = self.table, self.leaders[job]
        self._set_lane(job, FOLLOW)
        table.worker[job] = table.worker[leader]
        self._release(job)

    def _release(self, job: int) -> None:
        """Queue a job that waits for no leader."""
        state = WAITING if self._is_blocked(job) else READY
        self.table.move(job, state)
        if state == READY:
            self._queue_of(job).push(job)

    def _is_blocked(self, job: int) -> bool:
        state = self.table.state
        return job in self._lacking or any(state[each] != CREATED for each in self._libraries_of(job))

    def _libraries_of(self, job: int) -> list[int]:
        return self.table.libraries.get(job, [])

    def _queue_of(self, job: int) -> ReadyQueue:
        lane = self.table.lane[job]
        if lane == FOLLOW:
            return self.followers[int(self.table.worker[job]) if self._options.pin_followers else 0]
        return (self.compiles, self.hits, self.wave)[lane]

    def _push_all(self, jobs: list[int]) -> None:
        """Queue ready jobs."""
        if len(jobs) < _FEW:
            for job in jobs:
                self._queue_of(job).push(job)
            return
        numbers = np.array(jobs, np.int32)
        lanes = np.frombuffer(self.table.lane, np.uint8)[numbers]
        for queue in (self.compiles, self.hits, self.wave):
            queue.push_all(numbers[lanes == queue.lane])
        for job in numbers[lanes == FOLLOW].tolist():
            self._queue_of(job).push(job)

    def _set_lane(self, job: int, lane: int) -> None:
        table = self.table
        table.lane[job] = lane
        table.set_cost(job, int(table.estimates[job]) if lane == COMPILE else HIT_COST_NS)
        if self._by_cost:
            table.rank[job] = max(table.rank[job], table.cost[job])

    def compile_after_all(self, jobs: Iterable[int]) -> None:
        """Jobs are not expected to hit any more."""
        table = self.table
        for job in jobs:
            self._set_lane(job, COMPILE)
            if table.state[job] == READY:
                self.compiles.push(job)
            elif table.state[job] == JOINED:
                self.raise_(self.leaders[job], table.priority[job], table.rank[job])
            if table.state[job] <= JOINED:
                self._raise_libraries(job)

    def demote_hits(self) -> None:
        """The caches do not hold the expected hits: these jobs become ordinary jobs."""
        self.compile_after_all(self._open_in(HIT))

    def distrust_followers(self) -> None:
        """Followers did not hit: they become ordinary jobs, which any worker may take."""
        self._trusts_followers = False
        missing = self._open_in(FOLLOW)
        for job in missing:
            self.leaders.pop(job, None)
        self.compile_after_all(missing)
        for joined in [*self._joined.values()]:
            for job in joined:
                del self.leaders[job]
                self._release(job)
        self._joined.clear()

    def _open_in(self, lane: int) -> list[int]:
        lanes, states = np.frombuffer(self.table.lane, np.uint8), self.table.states_now
        jobs: list[int] = np.flatnonzero(
            (lanes == lane) & ((states <= JOINED) | (states >= CANCELLED))
        ).tolist()
        return jobs

    # --- the ends of batches

    def created(self, jobs: Int32s) -> None:
        """Assigned jobs were created."""
        table = self.table
        table.move_all(jobs, CREATED)
        numbers = jobs.tolist()
        self.settled += numbers
        if self._joined:
            for leader in numbers:
                for job in self._joined.pop(leader, ()):
                    self._follow(job)
        if table.dependents:
            freed = {each for library in numbers for each in table.dependents.get(library, ())}
            for job in sorted(freed):
                self._try_ready(job)

    def _try_ready(self, job: int) -> None:
        if self.table.state[job] == WAITING and not self._is_blocked(job):
            self._release(job)

    def missed(self, jobs: Int32s) -> None:
        """The driver did not find assigned jobs without their code: they wait for it.

        Followers stay so: with its code, a follower is found in the cache that its leader was compiled into.
        """
        table = self.table
        numbers: list[int] = jobs.tolist()
        self._lacking.update(numbers)
        for job in numbers:
            table.move(job, WAITING)
        self.compile_after_all([job for job in numbers if table.lane[job] != FOLLOW])
        for job in numbers:
            for follower in self._joined.get(job, ()):  # it may have become more urgent meanwhile
                self.raise_(job, table.priority[follower], table.rank[follower])
            for dependent in table.dependents.get(job, ()):
                self._raise_libraries(dependent)
            if table.unwanted[job] and not self.is_needed(job):  # it was cancelled in flight
                self.drop(job, CANCELLED)

    def supplied(self, jobs: Iterable[int]) -> None:
        """The code that jobs wait for has arrived."""
        for job in jobs:
            self._lacking.discard(job)
            self._try_ready(job)

    def failed(self, reasons: Mapping[int, str]) -> None:
        """Assigned jobs were not created: neither are their followers and dependents."""
        for job, reason in reasons.items():
            self.table.move(job, FAILED)
            self.settled.append(job)
            self._causes[job] = reason
            for follower in self._joined.pop(job, ()):
                self.reject(follower, self._same_work(job, reason))
            for lost in self._lost_with(job, reason):
                self.reject(*lost)

    def reject(self, job: int, reason: str, cause: str | None = None) -> None:
        """Never assign a queued job and its dependents; `cause` is the root of another reason."""
        pending = [(job, reason, cause or reason)]
        while pending:
            job, reason, cause = pending.pop()
            if self.table.state[job] <= JOINED:
                self.drop(job, UNASSIGNABLE)
                self.unassignable[job], self._causes[job] = reason, cause
                pending += self._lost_with(job, cause)

    def _lost_with(self, library: int, cause: str) -> list[tuple[int, str, str]]:
        """The dependents of a library that is not created, each with its reason and the root of that."""
        return [
            (job, self.excluded.get(job) or self._links_lost(library, cause), self.excluded.get(job) or cause)
            for job in self.table.dependents.get(library, ())
        ]

    # --- what a caller may ask for

    def raise_(self, job: int, priority: int, rank: int = 0) -> int:
        """Give a job and all it waits for at least this priority and rank; returns how many more urgent."""
        return self.raise_all([(job, rank)], priority)

    def raise_all(self, pending: list[tuple[int, int]], priority: int) -> int:
        """As `raise_`, for several jobs with a rank each."""
        table, raised, ready = self.table, 0, []
        while pending:
            job, rank = pending.pop()
            state = table.state[job]
            more_urgent = priority < table.priority[job]
            longer = self._by_cost and rank > table.rank[job]
            if state > JOINED or not (more_urgent or longer):
                continue
            raised += more_urgent
            table.priority[job] = min(priority, table.priority[job])
            if longer:
                table.rank[job] = rank
            if state == READY:
                ready.append(job)
                continue
            if state == JOINED:
                pending.append((self.leaders[job], table.rank[job]))
            pending += [(each, table.cost[each] + table.rank[job]) for each in self._libraries_of(job)]
        self._push_all(ready)
        return raised

    def _raise_libraries(self, job: int) -> None:
        table = self.table
        if table.state[job] <= JOINED:
            for library in self._libraries_of(job):
                self.raise_(library, table.priority[job], table.cost[library] + table.rank[job])

    def is_needed(self, job: int) -> bool:
        """Whether a queued job links a job."""
        return any(self.table.state[each] <= JOINED for each in self.table.dependents.get(job, ()))

    def drop(self, job: int, state: int) -> int:
        """Remove a queued job, and libraries that only it needed; returns how many jobs were removed."""
        table = self.table
        if table.state[job] == JOINED:
            self._joined.get(self.leaders.pop(job), {}).pop(job, None)
        table.move(job, state)
        self.settled.append(job)
        heirs = [*self._joined.pop(job, ())]
        if heirs:
            self._inherit(job, heirs)
        return 1 + self._give_up_libraries(job)

    def _inherit(self, leader: int, followers: list[int]) -> None:
        """A leader will not do the work: its first follower leads the others."""
        table, heir = self.table, followers[0]
        self._owners[int(table.work[heir])] = heir
        del self.leaders[heir]
        if len(followers) > 1:
            self._joined[heir] = dict.fromkeys(followers[1:])
            self.leaders.update(dict.fromkeys(followers[1:], heir))
        self._release(heir)
        self.raise_(heir, table.priority[leader], table.rank[leader])

    def _give_up_libraries(self, job: int) -> int:
        """A job does not need its libraries any more: cancel unwanted ones; returns how many."""
        dropped = 0
        for library in self._libraries_of(job):
            if (
                self.table.unwanted[library]
                and self.table.state[library] <= JOINED
                and not self.is_needed(library)
            ):
                dropped += self.drop(library, CANCELLED)
        return dropped

    def correct(self, jobs: Int32s, factor: float) -> None:
        """Multiply the first estimates of those jobs by a factor that wait for a compile and link nothing."""
        table = self.table
        table.corrected[jobs] = table.estimates[jobs] * factor
        for job in jobs.tolist():
            if table.state[job] > READY or table.lane[job] != COMPILE or job in table.libraries:
                continue
            before = table.cost[job]
            table.set_cost(job, max(1, round(int(table.estimates[job]) * factor)))
            if self._by_cost:
                table.rank[job] += table.cost[job] - before
                if table.state[job] == READY:
                    self.compiles.push(job)

    def exclude(self, reasons: Mapping[int, str]) -> None:
        """Never assign some jobs, which cannot be created, nor their dependents."""
        self.excluded.update(reasons)
        for job, reason in reasons.items():
            self.reject(job, reason)

    def _same_work(self, job: int, cause: str) -> str:
        return f"is the same work as pipeline {self._named(job)}, which was not created: {cause}"

    def _links_lost(self, library: int, cause: str) -> str:
        return f"links pipeline {self._named(library)}, which was not created: {cause}"

    def _named(self, job: int) -> str:
        keys = self.table.keys
        return f"{int(keys[job]):016x}" if len(keys) else str(job)
