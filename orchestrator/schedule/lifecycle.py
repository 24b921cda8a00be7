# Purpose: what an event does to jobs: the transitions of job_table.py, with all that follows from one for others
# (a library that was created releases its linkers, a leader settles its followers, a lost library takes its
# linkers with it).
#
# Singleflight: jobs that are the same work form a chain behind the one that does it, their leader. `unite` joins
# two chains, whatever either is doing. Who waits for whom cannot form a circle: a job waits for its libraries,
# which are less deep than it, or for its leader, which is as deep (others are never united) and itself waits for
# libraries only.
#
# Guarantees: every queued job is, at any time, ready, or waits for a library or a leader that is queued or
# assigned; so when nothing is ready and nothing assigned, nothing is queued. Cost of an event: O(jobs that it
# changes), except `raise_`, which may walk up the same libraries once for each level of urgency or length.
"""`Lifecycle`: transitions of jobs and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from orchestrator.schedule.cancellation import Cancellation
from orchestrator.schedule.job_table import (
    ASSIGNED,
    BY_PIPELINE_KEY,
    CANCELLED,
    CREATED,
    ECHO,
    FAILED,
    JOINED,
    PINNED,
    READY,
    SHARED,
    UNASSIGNABLE,
    UNWANTED,
    WAITING,
    JobTable,
)
from orchestrator.schedule.links import Links
from orchestrator.schedule.options import Followers, ScheduleOptions
from orchestrator.schedule.ready_queue import Bucket, ReadyQueue, bucket_of

Int32s = npt.NDArray[np.int32]

ECHO_COST_NS = 5_000
"""Believed cost of creating what a cache has."""


class Lifecycle:
    """The jobs and the queues they are in.

    Args:
        options: The scheduler's options.
        workers: Number of workers.

    Attributes:
        table: The jobs.
        links: Their links.
        queue: Ready jobs that any worker may take.
        echoes: Ready echoes, by worker; one queue for all where they are not pinned.
        settled: Jobs in the order in which they reached a state that does not change by itself any more.
        unassignable: Why jobs will never be assigned.
        failures: Why jobs that were assigned were not created.
        saved: Compiles saved by state key, and by second-level key.
        saved_ns: Their believed cost.
    """

    def __init__(self, options: ScheduleOptions, workers: int) -> None:
        self.table = JobTable()
        self.links = Links(self.table)
        self.queue = ReadyQueue(self.table, READY)
        self._pinned = options.pin_followers
        self.echoes = [ReadyQueue(self.table, PINNED) for _ in range(workers if self._pinned else 1)]
        self._create_followers = options.followers is Followers.CREATE
        self.settled = Bucket()
        self.unassignable: dict[int, str] = {}
        self.failures: dict[int, str] = {}
        self.saved = [0, 0]
        self.saved_ns = 0
        self._joined_any = False

    # --- the same work

    def unite(self, job: int, other: int, *, by_pipeline_key: bool = False) -> None:
        """Two jobs are the same work: the first follows the second, or the other way round.

        Nothing happens where both are under way already, or where they cannot be the same (kind, depth).
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
            # It did not get to do the work: the others do, and who asks for its key from now on finds them.
            table.leader_at[theirs] = mine
            self._chain(mine, joined[1:])
            return
        for each in joined:
            table.leader_at[each] = theirs
        if state == CREATED:
            for each in joined:
                # One that shares the outcome may give up a library that is among them.
                if state_at[each] <= JOINED:
                    self._follow(each, theirs, saved=True)
        elif state == FAILED:
            for each in joined:
                self.reject(each, _same_work(table.number_at[theirs], self.failures[theirs]))
        else:
            table.move(mine, JOINED)
            self._chain(theirs, joined)
            for each in joined:
                self.raise_(theirs, table.priority_at[each], table.rank_at[each])

    def unite_new(self, jobs: Int32s, owners: Int32s, *, by_pipeline_key: bool = False) -> None:
        """Unite many jobs, none of them queued yet, with those that had their key before."""
        table = self.table
        roots = table.find_all(owners)
        states = table.state[roots]
        # The common case at once: a job that nobody follows joins one that is to be done or being done.
        simple = (states == WAITING) | (states == READY) | (states == ASSIGNED)
        simple &= (table.state[jobs] == WAITING) & (table.last_follower[jobs] == jobs)
        simple &= (table.kind[jobs] == table.kind[roots]) & (table.depth[jobs] == table.depth[roots])
        simple &= (table.leader[jobs] == jobs) & (roots != jobs)
        simple &= ~np.isin(jobs, roots)
        order = np.argsort(roots[simple], kind="stable")
        followers, leaders = jobs[simple][order], roots[simple][order]
        if len(followers):
            self._joined_any = True
            if by_pipeline_key:
                table.flags[followers] |= BY_PIPELINE_KEY
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
            last = job
            self._joined_any = True
        table.next_follower_at[last] = -1
        table.last_follower_at[leader] = last

    def _take_followers(self, leader: int) -> list[int]:
        """The jobs that follow a leader; it has none from now on."""
        table = self.table
        found = []
        job = table.next_follower_at[leader]
        while job >= 0:
            if table.state_at[job] == JOINED:
                found.append(job)
            job = table.next_follower_at[job]
        table.next_follower_at[leader] = -1
        table.last_follower_at[leader] = leader
        return found

    def _follow(self, job: int, leader: int, *, saved: bool) -> None:
        """The leader of a job was created."""
        table = self.table
        if saved:
            self.saved[bool(table.flags_at[job] & BY_PIPELINE_KEY)] += 1
            self.saved_ns += table.cost_at[job]
        if not self._create_followers and table.first_edge_at[job] < 0:
            table.move(job, SHARED)
            self.settled.push(job)
            self._give_up_libraries(job)
            return
        table.move(job, JOINED)
        table.flags_at[job] |= ECHO
        table.cost_at[job] = min(table.cost_at[job], ECHO_COST_NS)
        table.worker_at[job] = table.worker_at[leader]
        self._queue_if_ready(job)

    def _follow_all(self, jobs: Int32s, worker: int, saved: bool) -> None:
        """The leaders of many jobs were created, all by one worker: `_follow` for each, at once."""
        table = self.table
        if saved:
            second = int(np.count_nonzero(table.flags[jobs] & BY_PIPELINE_KEY))
            self.saved[0] += len(jobs) - second
            self.saved[1] += second
            self.saved_ns += int(table.cost[jobs].sum())
        shared = jobs[:0]
        if not self._create_followers:
            sharing = table.first_edge[jobs] < 0
            shared, jobs = jobs[sharing], jobs[~sharing]
            table.move_all(shared, JOINED, SHARED)
            self.settled.push_all(shared)
        table.flags[jobs] |= ECHO
        table.cost[jobs] = np.minimum(table.cost[jobs], ECHO_COST_NS)
        table.worker[jobs] = worker
        ready = table.waiting[jobs] == 0
        table.move_all(jobs[ready], JOINED, PINNED)
        table.move_all(jobs[~ready], JOINED, WAITING)
        self.echoes[worker if self._pinned else 0].push_all(jobs[ready])
        # Last, for it may cancel one of those above.
        for job in shared[table.library_count[shared] > 0].tolist():
            self._give_up_libraries(job)

    def _queue_if_ready(self, job: int) -> None:
        """A job leads now, or is to be created after its leader."""
        if self.table.waiting_at[job]:
            self.table.move(job, WAITING)
        else:
            self._make_ready(job)

    def _make_ready(self, job: int) -> None:
        self.table.move(job, PINNED if self.table.flags_at[job] & ECHO else READY)
        self._queue_of(job).push(job)

    def _queue_of(self, job: int) -> ReadyQueue:
        if self.table.state_at[job] == READY:
            return self.queue
        return self.echoes[self.table.worker_at[job] if self._pinned else 0]

    # --- the ends of batches

    def created(self, jobs: Int32s, *, compiled: bool) -> None:
        """Assigned jobs were created; where none was compiled, for all hit, their followers saved nothing."""
        table = self.table
        table.move_all(jobs, ASSIGNED, CREATED)
        self.settled.push_all(jobs)
        if self._joined_any:
            followers: list[int] = []
            for leader in jobs[table.next_follower[jobs] >= 0].tolist():
                if table.leader_at[leader] == leader:
                    followers += self._take_followers(leader)
            if followers:
                self._follow_all(np.array(followers, np.int32), table.worker_at[int(jobs[0])], compiled)
        if self.links.count:
            for library in jobs[table.first_edge[jobs] >= 0].tolist():
                for linker in self.links.linkers_of(library):
                    table.waiting_at[linker] -= 1
                    if not table.waiting_at[linker] and table.state_at[linker] == WAITING:
                        self._make_ready(linker)

    def failed(self, reasons: Mapping[int, str]) -> None:
        """Assigned jobs were not created: neither is what is the same, or links them."""
        table = self.table
        for job, reason in reasons.items():
            table.move(job, FAILED)
            self.settled.push(job)
            self.failures[job] = reason
            if table.leader_at[job] == job:
                for follower in self._take_followers(job):
                    self.reject(follower, _same_work(table.number_at[job], reason))
            self._reject_linkers(job, reason)

    def reject(self, job: int, reason: str) -> None:
        """A queued job will never be assigned, nor will what links it. Its followers go on without it."""
        if self.table.state_at[job] <= JOINED:
            self._drop(job, UNASSIGNABLE)
            self.unassignable[job] = reason
            self._reject_linkers(job, reason)

    def _reject_linkers(self, lost: int, cause: str) -> None:
        pending = [lost]
        while pending:
            library = pending.pop()
            for linker in list(self.links.linkers_of(library)):
                if self.table.state_at[linker] <= JOINED:
                    self._drop(linker, UNASSIGNABLE)
                    # The root cause only: a long chain must not give a long text.
                    number = self.table.number_at[library]
                    self.unassignable[linker] = f"links pipeline {number}, which was not created: {cause}"
                    pending.append(linker)

    def revive(self, job: int) -> None:
        """A job that shared its leader's outcome is needed itself, because another one links it."""
        table = self.table
        if table.state_at[job] != SHARED:
            return
        self._follow(job, table.find(job), saved=False)
        # It gave its libraries up when it was settled; some may have been cancelled since.
        for library in self.links.libraries_of(job):
            table.live_linkers_at[library] += 1
            if table.state_at[library] == CANCELLED:
                self.reject(job, f"links pipeline {table.number_at[library]}, which was cancelled")

    # --- what a caller may ask for

    def raise_(self, job: int, priority: int, rank: int = 0) -> int:
        """Make a job, and what it waits for, so urgent and long; returns how many became more urgent."""
        table = self.table
        raised = 0
        pending = [(job, rank)]
        while pending:
            job, rank = pending.pop()
            state = table.state_at[job]
            more_urgent = priority < table.priority_at[job]
            longer = rank > table.rank_at[job]
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
        """Cancel jobs, given in descending order, so that linkers come before their libraries."""
        table = self.table
        for job in jobs:
            state = table.state_at[job]
            if state == ASSIGNED:
                cancellation.pending.add(table.worker_at[job])
            elif state <= JOINED:
                if table.live_linkers_at[job]:
                    cancellation.kept += not table.flags_at[job] & UNWANTED
                    table.flags_at[job] |= UNWANTED
                else:
                    cancellation.cancelled += self._drop(job, CANCELLED)

    def _drop(self, job: int, state: int) -> int:
        """Take a queued job out, and libraries that only it kept; returns how many that are."""
        table = self.table
        # A job that followed has the rest of that chain behind it still; it is not its own.
        leads = table.leader_at[job] == job and table.next_follower_at[job] >= 0
        table.move(job, state)
        self.settled.push(job)
        if leads:
            self._hand_over(job)
        return 1 + self._give_up_libraries(job)

    def _give_up_libraries(self, job: int) -> int:
        """A job needs its libraries no more: cancel those that nobody wants now; returns how many."""
        table = self.table
        dropped = 0
        for library in self.links.libraries_of(job) if table.library_count_at[job] else ():
            table.live_linkers_at[library] -= 1
            if (
                not table.live_linkers_at[library]
                and table.flags_at[library] & UNWANTED
                and table.state_at[library] <= JOINED
            ):
                dropped += self._drop(library, CANCELLED)
        return dropped

    def _hand_over(self, leader: int) -> None:
        """A leader will not do the work: the first of its followers does."""
        table = self.table
        job, last = table.next_follower_at[leader], table.last_follower_at[leader]
        table.next_follower_at[leader] = -1
        table.last_follower_at[leader] = leader
        while job >= 0 and table.state_at[job] != JOINED:
            job = table.next_follower_at[job]
        if job < 0:
            return
        table.leader_at[leader] = job
        table.leader_at[job] = job
        table.last_follower_at[job] = last
        table.flags_at[job] &= ~BY_PIPELINE_KEY & 0xFF
        # It may have been queued before it joined: then its old entry is there still.
        self.queue.repeats = True
        self._queue_if_ready(job)
        self.raise_(job, table.priority_at[leader], table.rank_at[leader])


def _same_work(number: int, cause: str) -> str:
    return f"is the same work as pipeline {number}, which was not created: {cause}"
