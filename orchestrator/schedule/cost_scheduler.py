"""`Lifecycle`: transitions of jobs and what follows from them.

What an event does to jobs: the transitions of job_table.py, with all that follows from one for others (a
library that was created releases its linkers, a leader settles its followers, a lost library takes its
linkers with it).

Singleflight: jobs that are the same work form a chain behind the one that does it, their leader. `unite`
joins two chains, whatever either is doing. Who waits for whom cannot form a circle: a job waits for its
libraries, which are less deep than it, or for its leader, which is as deep (others are never united) and
itself waits for libraries only.

Guarantees: every queued job is, at any time, ready, or waits for a library or a leader that is queued or
assigned; so when nothing is ready and nothing assigned, nothing is queued. Cost of an event: O(jobs that it
changes), except `raise_`, which may walk up the same libraries once for each level of urgency or length.

`Affinity`: labels of jobs and homes of labels.

Jobs that share code prefer one worker, so that its private cache can hit.

Each job gets at most one label: the rarest shader module that it shares with another job (what is shared by
few is what a cache can make the most of; a vertex shader that everything shares says nothing), else the
first library that it links. The first worker that is assigned a job of a label is the label's home. A
worker takes, of jobs that are about equally urgent and long, those at home with it or not at home anywhere.

Why it costs no balance: a preference only orders jobs inside a window, and never leaves a worker without
one: where nothing in the window suits it takes the first. What it passes over must be short: its length
times SHORT at most each worker's share of what is left. So the longest job starts first whoever's it is,
and towards the end, when even a short job is a good part of what is left, the preference is off.

`Submission`: enters jobs into a `Lifecycle`, and the answers to a submission.

How jobs come in: a whole set at the start, or some more while it runs. It is one way for both.

check ─> columns ─> links (depth) ─> labels ─> same state key ─> same second-level key ─> libraries that are
settled ─> length and urgency of libraries ─> what cannot be ─> queue

Guarantees: what is refused with ValueError has changed nothing. O(jobs + links), with array operations but
for links (one pass in the interpreter) and jobs that are the same as one that is settled.

`Selector`: batches from a line of the ready queue.

Take a batch from a line of the ready queue: the longest jobs first, those that suit the worker before
others, as many as fit into the time.

Two ways to the same end: `few` goes job by job, for batches of one or a few; `many` takes slices of a
bucket with array operations, for large ones. Both remove what they take and what is stale, and keep the
order of the rest.

Guarantees: a job is taken if it is ready, and is ASSIGNED from then on. Where the first job may take any
time, and none is asked to suit, a batch holds at least one job if the line does.

`JobQueries`: what a scheduler's jobs are doing.

What can be asked of a `CostScheduler` without changing it: states, leaders, what is left.

Guarantees: nothing here assigns or settles a job. All but `take_settled` may be asked any number of times.

Assumptions: those of the machine: not thread-safe.

`CostScheduler`: longest first, nothing twice, steered while it runs.

The scheduler that leaves nothing for last: the longest job first, nothing compiled twice, batches of the
right size, urgent work first, and a stop whenever it is asked for. This module takes the events; what each
of its parts does, and why, stands at its top:

submission.py      jobs come in                lifecycle.py    transitions, singleflight, cancelling
job_table.py       states, columns             links.py        libraries ready_queue.py     order by
urgency, length    selection.py    which jobs make a batch affinity.py        who prefers what
batching.py     how large a batch is budget.py          when to stop                costs.py        what a
job is believed to cost job_queries.py     what can be asked

Answers to `request`:

cancelled, or nothing queued and no stream open ──> Done budget used up, or nothing fits into the rest
──> Paused (a Done) an echo of this worker, else a ready job         ──> Assignment, most urgent first,
longest first otherwise                                        ──> Wait: for a batch in flight, or for
`submit`, `promote`

"Stealing at the tail" needs no step of its own: ready jobs are not handed to workers ahead of time, so a
worker that is free takes what is left, whoever it suited better.

Guarantees: those of Scheduler, and those of the parts. The machine is deterministic.

Assumptions: not thread-safe; whoever calls `submit`, `promote`, `budget`, `identify` or `close` wakes the
workers that wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.schedule.costs import DEFAULT_COST_NS
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
    JobState,
    JobTable,
    KeyTable,
    Links,
    checked_links,
)
from orchestrator.schedule.ready_queue import (
    BUCKETS,
    PRIORITIES,
    SHARES,
    Bucket,
    Budget,
    Experience,
    Experiences,
    ReadyQueue,
    bucket_of,
)
from orchestrator.schedule.scheduler import (
    Assignment,
    Cancellation,
    Cancellations,
    Done,
    Followers,
    JobGraph,
    Paused,
    Priority,
    ScheduleOptions,
    ScheduleStatistics,
    Wait,
)

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


WINDOW = 32
"""How many ready jobs a worker looks at for one that suits it. With 8 workers, (7/8)^32 = 1 % find none."""

SHORT = 8
"""A job may be passed over if it is at most this part of a worker's share of what is left."""

MOST_HIT = 0.9
"""Share of hits from which on there is no preference: the caches have the code, whoever's they are."""

_NOBODY = -1


class Affinity:
    """Labels and homes.

    Args:
        table: The jobs; their column `label` is written here.
        enabled: Whether there is any preference.

    Attributes:
        at_home: Jobs that were assigned to the home of their label, the first of a label not counted.
        moved: Jobs that were assigned elsewhere.
    """

    def __init__(self, table: JobTable, *, enabled: bool) -> None:
        self._table = table
        self.enabled = enabled
        self.at_home = 0
        self.moved = 0
        self._users = np.zeros(0, np.int64)
        # Modules have even labels, libraries odd ones.
        self._home = np.zeros(0, np.int32)
        self.home_at: memoryview[int] = self._home.data
        self._labelled = False

    def label(
        self,
        first: int,
        module_start: npt.NDArray[np.int64] | None,
        module_index: Int32s | None,
        libraries: tuple[list[int], list[int]],
    ) -> None:
        """Label new jobs.

        Args:
            first: Number of the first new job.
            module_start: Where each job's modules begin, shape (n + 1,), or None where modules are not known.
            module_index: The modules.
            libraries: Libraries and linkers of their links.
        """
        if not self.enabled:
            return
        label_at = self._table.label_at
        highest = -1
        if module_start is not None and module_index is not None and len(module_index):
            self._table.label[first : self._table.count] = self._module_labels(module_start, module_index)
            highest = 2 * int(module_index.max())
        for library, linker in zip(*libraries, strict=True):
            if label_at[linker] < 0:
                label_at[linker] = 2 * library + 1
                highest = max(highest, 2 * library + 1)
        if highest >= 0:
            self._labelled = True
            self._make_room(highest + 1)

    @property
    def active(self) -> bool:
        """Whether any job has a label."""
        return self._labelled

    def suits(self, job: int, worker: int) -> bool:
        """Whether a job is at home with a worker, or nowhere."""
        label = self._table.label_at[job]
        return label < 0 or self.home_at[label] in (worker, _NOBODY)

    def suiting(self, jobs: Int32s, worker: int) -> npt.NDArray[np.bool_]:
        """Which of many jobs are at home with a worker, or nowhere."""
        labels = self._table.label[jobs]
        home = self._home[labels]
        return np.asarray((labels < 0) | (home == worker) | (home == _NOBODY))

    def assigned(self, job: int, worker: int) -> None:
        """A job was assigned."""
        home_at = self.home_at
        own = 2 * job + 1
        if own < len(home_at):
            home_at[own] = worker
        label = self._table.label_at[job]
        if label >= 0:
            home = home_at[label]
            if home == _NOBODY:
                home_at[label] = worker
            elif home == worker:
                self.at_home += 1
            else:
                self.moved += 1

    def assigned_all(self, jobs: Int32s, worker: int) -> None:
        """Many jobs were assigned."""
        own = 2 * jobs.astype(np.int64) + 1
        self._home[own[own < len(self._home)]] = worker
        labels = self._table.label[jobs]
        labels = labels[labels >= 0]
        if len(labels):
            home = self._home[labels]
            new = home == _NOBODY
            at_home = int(np.count_nonzero(home == worker))
            self.at_home += at_home
            self.moved += len(labels) - at_home - int(np.count_nonzero(new))
            self._home[labels[new]] = worker

    @property
    def nbytes(self) -> int:
        """Bytes of homes and counts."""
        return self._users.nbytes + self._home.nbytes

    def _module_labels(self, start: npt.NDArray[np.int64], index: Int32s) -> Int32s:
        """The rarest module of each job that others use as well, as a label; -1 where there is none."""
        users = np.bincount(index, minlength=len(self._users))
        users[: len(self._users)] += self._users
        self._users = users
        unshared = np.int64(1) << 62
        number = index.astype(np.int64)
        weight = np.where(users[number] > 1, (users[number] << 31) | number, unshared)
        labels = np.full(len(start) - 1, -1, np.int32)
        some = np.flatnonzero(np.diff(start))
        rarest = np.minimum.reduceat(weight, start[some])
        shared = rarest != unshared
        labels[some[shared]] = 2 * (rarest[shared] & ((1 << 31) - 1))
        return labels

    def _make_room(self, size: int) -> None:
        if size > len(self._home):
            home = np.full(max(size, len(self._home) * 3 // 2), _NOBODY, np.int32)
            home[: len(self._home)] = self._home
            self._home = home
            self.home_at = home.data


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


class JobQueries:
    """The jobs of a scheduler, to look at.

    Args:
        life: The jobs.
    """

    def __init__(self, life: Lifecycle) -> None:
        self._life = life
        self._table = life.table

    @property
    def count(self) -> int:
        """Jobs that were ever submitted."""
        return self._table.count

    @property
    def queued(self) -> int:
        """Jobs that are neither assigned nor settled: ready, or waiting for a library or a leader."""
        return self._table.queued

    @property
    def in_flight(self) -> int:
        """Jobs that are assigned and not ended."""
        return self._table.states[ASSIGNED]

    @property
    def done(self) -> int:
        """Jobs that were assigned and have ended, well or badly."""
        return self._table.states[CREATED] + self._table.states[FAILED]

    @property
    def unassignable(self) -> Mapping[int, str]:
        """Jobs that will never be assigned, by number, with the reason."""
        return self._life.unassignable

    def state_of(self, job: int) -> JobState:
        """State of a job."""
        return JobState(self._table.state_at[self._checked(job)])

    def states_of(self, jobs: Int32s) -> npt.NDArray[np.uint8]:
        """`JobState` of many jobs, shape (n,)."""
        return self._table.state[: self._table.count][jobs]

    def leader_of(self, job: int) -> int:
        """The job that does the work of a job: itself, or the one that it joined."""
        return self._table.find(self._checked(job))

    def shared(self) -> tuple[Int32s, Int32s]:
        """Jobs that have the outcome of another one, ascending, and their leaders."""
        table = self._table
        if not table.states[SHARED]:
            return np.empty(0, np.int32), np.empty(0, np.int32)
        jobs = np.flatnonzero(table.state[: table.count] == SHARED).astype(np.int32)
        return jobs, table.find_all(jobs)

    def take_settled(self) -> Int32s:
        """Jobs that were settled since the last call, in that order: ask `state_of` for how.

        A job stands twice where it shared its leader's outcome first and was created itself later.
        """
        settled = self._life.settled
        jobs = settled.jobs[settled.head : settled.tail].copy()
        settled.head = settled.tail = 0
        return jobs

    def remaining(self) -> Int32s:
        """Jobs that are queued, the most urgent first, then by number."""
        table = self._table
        jobs = np.flatnonzero(table.state[: table.count] <= JOINED).astype(np.int32)
        return jobs[np.argsort(table.priority[jobs], kind="stable")]

    def _checked(self, job: int) -> int:
        if not 0 <= job < self._table.count:
            raise ValueError(f"there is no job {job}")
        return job


_WAIT = Wait()
_DONE = Done()
_PAUSED = Paused()


class CostScheduler(JobQueries):
    """A state machine; see the top of the module. Not thread-safe.

    Args:
        jobs: The jobs that are there at the start; more may be submitted where the options say so.
        workers: Number of workers, numbered 0..workers-1.
        options: Settings.

    Raises:
        ValueError: A number is out of range, arrays do not fit together, or a job links a library that does
            not come before it.
    """

    def __init__(self, jobs: JobGraph, workers: int, options: ScheduleOptions | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self._options = options if options is not None else ScheduleOptions()
        self._workers = workers
        super().__init__(Lifecycle(self._options, workers))
        self._affinity = Affinity(self._table, enabled=self._options.affinity and workers > 1)
        self._submission = Submission(self._life, self._affinity)
        self._selector = Selector(self._table, self._affinity)
        self._experiences = Experiences(self._options.expect_hits)
        self._budget = Budget(workers)
        self._spared = 0
        self._cancellations = Cancellations()
        self._assigned: list[Assignment | None] = [None] * workers
        self._believed_ns = [0.0] * workers
        self._learning: list[tuple[Experience, int]] = [(self._experiences.echoes, 0)] * workers
        self._open = self._options.streaming
        self._cancelled = False
        self._submission.add(jobs)

    # --- jobs in

    def submit(self, jobs: JobGraph) -> Accepted | Full:
        """Add jobs, all or none.

        Args:
            jobs: The jobs. They get the numbers from `count` on; `library_index` and `unusable` speak of such
                numbers, so that earlier jobs can be linked.

        Raises:
            ValueError: The stream is not open, there are more jobs than ever fit, or what the constructor raises.
        """
        if not self._open:
            raise ValueError("nothing can be submitted: the stream was not opened, or was closed")
        capacity = self._options.capacity
        if capacity is not None:
            if len(jobs) > capacity:
                raise ValueError(f"{len(jobs)} jobs at once never fit into a capacity of {capacity}")
            if (room := max(0, capacity - self.queued)) < len(jobs):
                return Full(room)
        return Accepted(self._submission.add(jobs), len(jobs))

    def close(self) -> None:
        """Nothing more will be submitted. Idempotent."""
        self._open = False

    def identify(self, jobs: Int32s, keys: npt.NDArray[np.uint64] | Sequence[bytes | None]) -> None:
        """Give jobs the second-level key that they turned out to have.

        A job that is not assigned yet joins the one with the same key; for one that is, it is too late.

        Args:
            jobs: The jobs, shape (n,).
            keys: Key of each: bytes, exactly as vkGetPipelineKeyKHR gives them, None where there is none; or
                64-bit numbers, 0 where there is none. One kind of key per scheduler.

        Raises:
            ValueError: There is no such job, or the lengths differ.
        """
        self._submission.identify(jobs, keys)

    # --- state

    @property
    def shares_outcomes(self) -> bool:
        """Whether followers get their leader's outcome and are not created."""
        return self._options.followers is Followers.SHARE

    @property
    def remaining_ns(self) -> int:
        """What the remaining jobs are believed to take, one after another, nanoseconds."""
        base, slope = self._experiences.mean_line()
        return int(base * self.queued + slope * self._table.open_cost)

    @property
    def learned(self) -> bool:
        """Whether `remaining_ns` rests on what jobs took in this run, for each kind that was begun."""
        return self._experiences.learned

    @property
    def flights(self) -> list[tuple[Assignment, float]]:
        """What workers are doing, with what that is believed to take, nanoseconds; may be read beside the workers."""
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
        life, table = self._life, self._table
        nbytes = table.nbytes + life.links.nbytes + self._affinity.nbytes + self._submission.nbytes
        nbytes += sum(queue.nbytes for queue in (life.queue, *life.echoes))
        return ScheduleStatistics(
            {state: table.states[state] for state in JobState},
            life.saved[0],
            life.saved[1],
            life.saved_ns,
            self._affinity.at_home,
            self._affinity.moved,
            {kind: each.hit_share for kind, each in self._experiences.items()},
            {kind: each.scale for kind, each in self._experiences.items()},
            nbytes + life.settled.jobs.nbytes,
        )

    # --- workers

    def request(self, worker: int) -> Assignment | Wait | Done:
        """A worker asks for work; see `Scheduler.request` and the top of the module."""
        if self._assigned_to(worker) is not None:
            raise ValueError(f"worker {worker} asks for work before its last assignment has ended")
        if self._cancelled:
            return _DONE
        if not self._table.queued:
            return _WAIT if self._open else _DONE
        priorities = PRIORITIES if self._budget.left(worker) > 0 else self._spared
        if not priorities:
            return _PAUSED
        echoes = self._life.echoes[worker if self._options.pin_followers else 0]
        for priority in range(priorities):
            for queue in (echoes, self._life.queue):
                for line in queue.lines(priority) if queue.open else ():
                    jobs = self._take(queue, line, worker)
                    if len(jobs):
                        return self._assign(worker, jobs, queue)
        # What is ready and was not taken did not fit into what is left of the budget.
        if self._budget.limited and (echoes.open or self._life.queue.open):
            return _PAUSED
        return _WAIT

    def finished(
        self, worker: int, assignment: Assignment, *, hits: int = 0, compiles: int = 0, elapsed_ns: int = 0
    ) -> None:
        """A worker's assignment ended and all its jobs were created; see `Scheduler.finished`."""
        self._end(worker, assignment, hits, compiles, elapsed_ns)
        self._life.created(assignment.indices, compiled=compiles > 0 or not hits)

    def failed(
        self,
        worker: int,
        assignment: Assignment,
        reasons: Mapping[int, str],
        *,
        hits: int = 0,
        compiles: int = 0,
        elapsed_ns: int = 0,
    ) -> None:
        """A worker's assignment ended and some jobs were not created; see `Scheduler.failed`."""
        bad = np.fromiter(reasons, np.int32, len(reasons))
        if not np.isin(bad, assignment.indices).all():
            raise ValueError("a reason is given for a job that is not in the assignment")
        self._end(worker, assignment, hits, compiles, elapsed_ns)
        self._life.failed(reasons)
        created = assignment.indices[~np.isin(assignment.indices, bad)]
        self._life.created(created, compiled=compiles > 0 or not hits)

    # --- steering

    def promote(self, jobs: Iterable[int], priority: Priority) -> int:
        """Make jobs at least so urgent, with the libraries and the leaders that they wait for.

        A job in flight or settled stays as it is.

        Returns:
            How many became more urgent, those that they wait for included.
        """
        return sum(self._life.raise_(self._checked(job), priority) for job in jobs)

    def budget(self, limit_ns: int | None) -> None:
        """Begin a new budget in the place of the last: "2 s from now", "4 ms for this frame".

        Each worker is handed work as long as that is believed to end in time; then it gets `Paused`. Batches in
        flight count against it. The first batch of a budget may overrun it by one job, if nothing else is in
        flight, so that every job gets its turn. What is left is `remaining`; the next budget goes on with it.

        Args:
            limit_ns: Time for each worker from now on, nanoseconds; 0 hands out nothing; None lifts the limit.

        Raises:
            ValueError: It is negative.
        """
        if limit_ns is not None and limit_ns < 0:
            raise ValueError(f"a budget of {limit_ns} ns is negative")
        self._budget.set(limit_ns, list(self._believed_ns))

    def leave(self, worker: int, time_ns: int) -> None:
        """Leave a worker so much of the budget: for a caller with a clock, which also sees what is not spent in batches."""
        self._budget.leave(worker, time_ns)

    def spare(self, priority: Priority | None) -> None:
        """Hand out jobs that are at least so urgent whatever the budget says; None: no job."""
        self._spared = 0 if priority is None else priority + 1

    def want(self, jobs: Iterable[int]) -> None:
        """Take the cancelling of jobs back that are queued all the same, because others link them."""
        for job in jobs:
            self._table.flags_at[self._checked(job)] &= ~UNWANTED & 0xFF

    def cancel(self) -> None:
        """Assign nothing more; see `Scheduler.cancel`. What is queued stays so, for `remaining`."""
        self._cancelled = True

    def cancel_all(self) -> Cancellation:
        """Cancel every job that is queued; more may be submitted."""
        return self._cancel(np.flatnonzero(self._table.state[: self._table.count] <= ASSIGNED))

    def cancel_group(self, group: int) -> Cancellation:
        """Cancel the queued jobs of a group."""
        table = self._table
        return self._cancel(
            np.flatnonzero((table.group[: table.count] == group) & (table.state[: table.count] <= ASSIGNED))
        )

    def cancel_jobs(self, jobs: Iterable[int]) -> Cancellation:
        """Cancel those of the jobs that are queued.

        One that others link is created all the same, unless they are cancelled too. One that is in flight ends
        as it would; the answer says when. One that others follow hands the work over to them.
        """
        return self._cancel(np.array(sorted({self._checked(job) for job in jobs}), np.int64))

    def __repr__(self) -> str:
        states = ", ".join(
            f"{number} {state.name.lower()}" for state in JobState if (number := self._table.states[state])
        )
        return f"<CostScheduler{' cancelled' if self._cancelled else ''}: {states or 'no jobs'}>"

    # --- inside

    def _take(self, queue: ReadyQueue, line: int, worker: int) -> Int32s:
        """A batch from a line that has entries, or nothing where its jobs do not fit into the budget."""
        echo = queue is not self._life.queue
        experience = self._experiences.echoes if echo else self._experiences.of(line // PRIORITIES)
        base, slope = experience.line()
        table, shares = self._table, SHARES * self._workers
        left_ns = math.inf if line % PRIORITIES < self._spared else self._budget.left(worker)
        time_ns = min(self._options.target_ns, left_ns)
        size = self._options.batch_limit
        if not echo:
            # Only this worker can create its echoes, so there is nothing to be shared out.
            time_ns = min(time_ns, (base * table.queued + slope * table.open_cost) / shares)
            size = min(size, max(1, table.queued // shares))
            if not experience.tried and experience.hit_share < MOST_HIT:
                # How far off the costs are is not known yet, and whoever cuts the first batch pays for it.
                size = 1
        limits = Limits(base, slope, time_ns, left_ns, size)
        # Where everything hits as it is, nothing is to be gained from who does it.
        picky = not echo and self._affinity.active and experience.hit_share < MOST_HIT
        if picky:
            longest_ns = FLOORS[queue.masks[line].bit_length() - 1]
            picky = longest_ns * SHORT * self._workers <= table.open_cost
        jobs = self._selector.take(queue, line, worker, limits, picky=picky)
        if not len(jobs) and picky:
            jobs = self._selector.take(queue, line, worker, limits, picky=False)
        if not len(jobs) and self._budget.fresh and not self.in_flight:
            jobs = self._selector.shortest(queue, line, worker)
        return jobs

    def _assign(self, worker: int, jobs: Int32s, queue: ReadyQueue) -> Assignment:
        table = self._table
        first = int(jobs[0])
        kind = table.kind_at[first]
        experience = self._experiences.of(kind) if queue is self._life.queue else self._experiences.echoes
        cost = table.cost_at[first] if len(jobs) == 1 else int(table.cost[jobs].sum())
        if self._affinity.active and experience.hit_share < MOST_HIT:
            if len(jobs) == 1:
                self._affinity.assigned(first, worker)
            else:
                self._affinity.assigned_all(jobs, worker)
        base, slope = experience.line()
        self._learning[worker] = (experience, cost)
        self._believed_ns[worker] = believed = base * len(jobs) + slope * cost
        self._budget.spend(worker, believed)
        jobs.flags.writeable = False
        self._assigned[worker] = assignment = Assignment(jobs, kind)
        return assignment

    def _end(self, worker: int, assignment: Assignment, hits: int, compiles: int, elapsed_ns: int) -> None:
        if self._assigned_to(worker) is not assignment:
            raise ValueError(f"worker {worker} ends an assignment that it does not hold")
        self._assigned[worker] = None
        experience, cost = self._learning[worker]
        experience.learn(len(assignment.indices), cost, hits, compiles, elapsed_ns)
        self._budget.correct(worker, self._believed_ns[worker], elapsed_ns)
        self._believed_ns[worker] = 0.0
        self._cancellations.ended(worker)

    def _cancel(self, jobs: npt.NDArray[np.int64]) -> Cancellation:
        cancellation = Cancellation()
        self._life.cancel(reversed(jobs.tolist()), cancellation)
        return self._cancellations.watch(cancellation)

    def _assigned_to(self, worker: int) -> Assignment | None:
        if not 0 <= worker < self._workers:
            raise ValueError(f"there is no worker {worker}; workers are 0..{self._workers - 1}")
        return self._assigned[worker]
