# Purpose: everything that the scheduler remembers of a job, in columns, and the one place where a job changes
# its state.
#
# States, and the events that lead from one to another:
#
#   event                                          from                     to
#   ---------------------------------------------  -----------------------  -------------------------------------
#   submitted, or identified                       -                        WAITING; READY if it links nothing
#   ... and the same work is there already         WAITING, READY           JOINED (behind its leader)
#   the last of its libraries was created          WAITING                  READY; PINNED for an echo
#   request                                        READY, PINNED            ASSIGNED
#   finished, failed                               ASSIGNED                 CREATED, FAILED
#   its leader was created                         JOINED                   SHARED; or, where it is to be created
#                                                                           too (an echo), WAITING or PINNED
#   its leader failed                              JOINED                   UNASSIGNABLE
#   its leader was cancelled or is unassignable    JOINED                   WAITING, READY for one of the
#                                                                           followers, which leads the others
#   a new job links it                             SHARED                   WAITING, PINNED
#   unusable, or a library of it was not created   WAITING, READY, PINNED,  UNASSIGNABLE
#   cancelled                                          JOINED               CANCELLED
#
# CREATED, FAILED, UNASSIGNABLE and CANCELLED are final.
#
# Guarantees: the number of jobs in each state, and the cost of those that are WAITING, READY or PINNED, are
# known at any time without a scan. Columns take 82 bytes a job.
# Assumptions: at most 2^31 jobs. A memoryview beside each column, because reading one element of an array
# through it takes a third of the time.
"""`JobTable`: the columns of all jobs."""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]


class JobState(enum.IntEnum):
    """State of a job; see the top of the module."""

    WAITING = 0
    READY = 1
    PINNED = 2
    JOINED = 3
    ASSIGNED = 4
    CREATED = 5
    SHARED = 6
    FAILED = 7
    UNASSIGNABLE = 8
    CANCELLED = 9


# Plain numbers for the hot paths, where an enum's member costs as much as the work.
WAITING, READY, PINNED, JOINED, ASSIGNED, CREATED, SHARED, FAILED, UNASSIGNABLE, CANCELLED = map(
    int, JobState
)

ECHO = 1
"""Flag: a follower that is created after its leader, and is expected to hit."""
UNWANTED = 2
"""Flag: cancelled, and kept only because a job that is not links it."""
BY_PIPELINE_KEY = 4
"""Flag: it joined by its second-level key."""

_COLUMNS: dict[str, tuple[type[np.generic], int]] = {
    "state": (np.uint8, WAITING),
    "kind": (np.uint8, 0),
    "priority": (np.uint8, 0),
    "flags": (np.uint8, 0),
    "cost": (np.int64, 0),
    "rank": (np.int64, 0),
    "waiting": (np.int32, 0),
    "depth": (np.int32, 0),
    "leader": (np.int32, 0),
    "next_follower": (np.int32, -1),
    "last_follower": (np.int32, 0),
    "label": (np.int32, -1),
    "group": (np.int32, -1),
    "worker": (np.int32, -1),
    "live_linkers": (np.int32, 0),
    "first_edge": (np.int32, -1),
    "number": (np.int32, 0),
    "library_start": (np.int32, 0),
    "library_count": (np.int32, 0),
}


class JobTable:
    """Columns of all jobs. Each column `x` is an array, and `x_at` the same memory for single elements.

    Attributes:
        count: Number of jobs.
        states: Number of jobs in each `JobState`.
        open_cost: Cost of all jobs that are WAITING, READY or PINNED, nanoseconds.
        state: `JobState`.
        kind: Kind.
        priority: `Priority`, its own or that of the most urgent job that needs it.
        flags: ECHO, UNWANTED, BY_PIPELINE_KEY.
        cost: Believed cost, nanoseconds.
        rank: Cost of the longest chain of links that begins with the job: what it is ordered by.
        waiting: Libraries that it links and that were not created yet.
        depth: Length of the longest chain of libraries below it.
        leader: The job that it joined, itself where it leads; to be followed to its end.
        next_follower: Next job that follows the same leader, or -1.
        last_follower: Of a leader: end of that chain, itself where nobody follows.
        label: What it shares with other jobs, for affinity, or -1.
        group: The caller's number.
        worker: Who was assigned it; of an echo, who will be; or -1.
        live_linkers: Jobs that link it and are queued.
        first_edge: First link to it, or -1.
        number: What the caller calls it, for messages; its own number unless it says otherwise.
        library_start: Its first link to a library.
        library_count: Number of its links to libraries.
    """

    state: npt.NDArray[np.uint8]
    kind: npt.NDArray[np.uint8]
    priority: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    cost: npt.NDArray[np.int64]
    rank: npt.NDArray[np.int64]
    waiting: Int32s
    depth: Int32s
    leader: Int32s
    next_follower: Int32s
    last_follower: Int32s
    label: Int32s
    group: Int32s
    worker: Int32s
    live_linkers: Int32s
    first_edge: Int32s
    number: Int32s
    library_start: Int32s
    library_count: Int32s
    state_at: memoryview[int]
    kind_at: memoryview[int]
    priority_at: memoryview[int]
    flags_at: memoryview[int]
    cost_at: memoryview[int]
    rank_at: memoryview[int]
    waiting_at: memoryview[int]
    depth_at: memoryview[int]
    leader_at: memoryview[int]
    next_follower_at: memoryview[int]
    last_follower_at: memoryview[int]
    label_at: memoryview[int]
    group_at: memoryview[int]
    worker_at: memoryview[int]
    live_linkers_at: memoryview[int]
    first_edge_at: memoryview[int]
    number_at: memoryview[int]
    library_start_at: memoryview[int]
    library_count_at: memoryview[int]

    def __init__(self) -> None:
        """Make an empty table."""
        self.count = 0
        self.states = [0] * len(JobState)
        self.open_cost = 0
        self._resize(0)

    def extend(self, number: int) -> int:
        """Add jobs, each WAITING and its own leader; returns the number of the first.

        The caller fills their columns and then calls `entered`.
        """
        first = self.count
        needed = first + number
        if needed > len(self.state):
            # The first jobs take exactly their room; those that are streamed, half as much again.
            self._resize(needed if not first else max(needed, first + first // 2))
        self.count = needed
        own = np.arange(first, needed, dtype=np.int32)
        self.leader[first:needed] = own
        self.last_follower[first:needed] = own
        self.number[first:needed] = own
        return first

    def entered(self, first: int) -> None:
        """Count jobs that `extend` gave, from `first` on, as WAITING; their costs are known now."""
        self.states[WAITING] += self.count - first
        self.open_cost += int(self.cost[first : self.count].sum())

    @property
    def queued(self) -> int:
        """Jobs that are WAITING, READY, PINNED or JOINED."""
        states = self.states
        return states[WAITING] + states[READY] + states[PINNED] + states[JOINED]

    def move(self, job: int, state: int) -> None:
        """Change the state of one job."""
        old = self.state_at[job]
        self.states[old] -= 1
        self.states[state] += 1
        self.state_at[job] = state
        if old <= PINNED < state:
            self.open_cost -= self.cost_at[job]
        elif state <= PINNED < old:
            self.open_cost += self.cost_at[job]

    def move_all(self, jobs: Int32s, old: int, state: int) -> None:
        """Change the state of many jobs that are all in one state."""
        if len(jobs) == 1:
            self.move(int(jobs[0]), state)
            return
        number = len(jobs)
        self.states[old] -= number
        self.states[state] += number
        self.state[jobs] = state
        if old <= PINNED < state:
            self.open_cost -= int(self.cost[jobs].sum())
        elif state <= PINNED < old:
            self.open_cost += int(self.cost[jobs].sum())

    def find(self, job: int) -> int:
        """The leader of a job. Shortens the way for the next time."""
        leader_at = self.leader_at
        leader = leader_at[job]
        while (above := leader_at[leader]) != leader:
            leader_at[job] = above
            job, leader = leader, above
        return leader

    def find_all(self, jobs: Int32s) -> Int32s:
        """The leaders of many jobs."""
        leaders = self.leader[jobs]
        while (differ := (above := self.leader[leaders]) != leaders).any():
            leaders = np.where(differ, above, leaders)
        return leaders

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return sum(getattr(self, name).nbytes for name in _COLUMNS)

    def _resize(self, capacity: int) -> None:
        for name, (kind, default) in _COLUMNS.items():
            column = np.full(capacity, default, kind)
            if self.count:
                column[: self.count] = getattr(self, name)[: self.count]
            setattr(self, name, column)
            setattr(self, f"{name}_at", column.data)
