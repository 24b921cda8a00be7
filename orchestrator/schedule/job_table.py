"""`JobTable`: the columns of all jobs.

Everything that the scheduler remembers of a job, in columns, and the one place where a job changes its
state.

States, and the events that lead from one to another:

event                                          from                     to
---------------------------------------------  -----------------------
------------------------------------- submitted, or identified                       -
WAITING; READY if it links nothing ... and the same work is there already         WAITING, READY
JOINED (behind its leader) the last of its libraries was created          WAITING                  READY;
PINNED for an echo request                                        READY, PINNED            ASSIGNED
finished, failed                               ASSIGNED                 CREATED, FAILED its leader was
created                         JOINED                   SHARED; or, where it is to be created too (an
echo), WAITING or PINNED its leader failed                              JOINED
UNASSIGNABLE its leader was cancelled or is unassignable    JOINED                   WAITING, READY for one
of the followers, which leads the others a new job links it                             SHARED
WAITING, PINNED unusable, or a library of it was not created   WAITING, READY, PINNED,  UNASSIGNABLE
cancelled                                          JOINED               CANCELLED

CREATED, FAILED, UNASSIGNABLE and CANCELLED are final.

Guarantees: the number of jobs in each state, and the cost of those that are WAITING, READY or PINNED, are
known at any time without a scan. Columns take 82 bytes a job.

Assumptions: at most 2^31 jobs. A memoryview beside each column, because reading one element of an array
through it takes a third of the time.

`Links`: the edges between linkers and libraries.

Which job links which library. Each link is an edge with three numbers; the edges of a linker stand side by
side, those of a library are chained, so that jobs which are streamed in can link libraries that are there.

Guarantees: a job that names a library twice has one edge. An edge is walked a bounded number of times (when
it is entered, when its library was created or is lost, when its linker is cancelled): all in all O(edges).

Assumptions: a library has a smaller number than its linker, so the links form no circle.

`KeyTable`: from 64-bit keys to job numbers.

Which job was the first with a key. A hash table in two arrays, filled and asked for many keys at once,
because a dictionary of a million integers takes a hundred bytes an entry and this takes 24 to 64.

How: open addressing, linear probing, at most half full. The place of a key is the top of its product with
2^64 / golden ratio (Fibonacci hashing), so that keys that count upwards spread too. A round of insertion
tries one place for all keys at once; where several want one place, the array assignment lets one of them
win, and the others go on to the next place.

Guarantees: exact: a key is compared in full. The first job that claims a key keeps it. Expected O(1) a key;
no key is ever removed.

`possibly_same`: who is worth asking the driver about.

Which pipelines might turn out to be the same work, before the driver is asked: those that share their kind,
all of their shader modules and all of their libraries with another one. A driver's key for a pipeline is
made of its code and of the state that the code depends on, so pipelines of different code have different
keys, and asking is spared.

Guarantees: pure; O(pipelines + module slots), without a loop in the interpreter. Different pipelines may be
told alike by accident of a 64-bit hash, which costs a question. What this misses is compiled twice, as
without a second level: pipelines whose modules differ in their bytes and not to the driver.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import CreateInfoImage

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


class Links:
    """Edges between the jobs of a table.

    Args:
        table: The jobs; their columns `first_edge`, `library_start`, `library_count`, `waiting`,
            `live_linkers` and `depth` are written here.
    """

    def __init__(self, table: JobTable) -> None:
        self._table = table
        self.count = 0
        self._library = np.empty(0, np.int32)
        self._linker = np.empty(0, np.int32)
        self._next = np.empty(0, np.int32)
        self._take_views()

    def add(self, first: int, start: npt.NDArray[np.int64], index: Int32s) -> None:
        """Enter the links of new jobs.

        Args:
            first: Number of the first new job; the others follow.
            start: Where each job's libraries begin in `index`, shape (n + 1,).
            index: The libraries, job numbers.

        Raises:
            ValueError: A library does not come before its linker, or the arrays do not fit.
        """
        table = self._table
        linker, library = checked_links(first, start, index)
        number = len(library)
        if not number:
            return
        edges = self._extend(library, linker)
        table.library_count[first : table.count] = np.bincount(linker - first, minlength=table.count - first)
        table.library_start[first : table.count] = edges + np.concatenate(
            ([0], np.cumsum(table.library_count[first : table.count - 1]))
        )

        order = np.argsort(library, kind="stable")
        ordered = library[order]
        last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))
        begin = np.concatenate(([0], last[:-1] + 1))
        own = (order + edges).astype(np.int32)
        following = np.append(own[1:], -1).astype(np.int32)
        following[last] = table.first_edge[ordered[last]]
        self._next[own] = following
        table.first_edge[ordered[last]] = own[begin]
        table.live_linkers[ordered[last]] += (last - begin + 1).astype(np.int32)

        missing = table.state[library] != CREATED
        table.waiting[first : table.count] = np.bincount(
            linker[missing] - first, minlength=table.count - first
        )
        depth_at = table.depth_at
        for below, above in zip(library.tolist(), linker.tolist(), strict=True):
            if depth_at[below] >= depth_at[above]:
                depth_at[above] = depth_at[below] + 1

    def linkers_of(self, library: int) -> Iterator[int]:
        """The jobs that link a library."""
        edge = self._table.first_edge_at[library]
        while edge >= 0:
            yield self._linker_at[edge]
            edge = self._next_at[edge]

    def libraries_of(self, linker: int) -> list[int]:
        """The libraries that a job links."""
        start = self._table.library_start_at[linker]
        return self._library_at[start : start + self._table.library_count_at[linker]].tolist()

    def edges_from(self, edge: int) -> tuple[list[int], list[int]]:
        """Libraries and linkers of all edges from a number on, in ascending order of their linkers."""
        return self._library[edge : self.count].tolist(), self._linker[edge : self.count].tolist()

    @property
    def nbytes(self) -> int:
        """Bytes of all edges."""
        return self._library.nbytes + self._linker.nbytes + self._next.nbytes

    def _extend(self, library: Int32s, linker: Int32s) -> int:
        edges, needed = self.count, self.count + len(library)
        if needed > len(self._library):
            capacity = needed if not edges else max(needed, edges + edges // 2)
            for name in ("_library", "_linker", "_next"):
                column = np.empty(capacity, np.int32)
                column[:edges] = getattr(self, name)[:edges]
                setattr(self, name, column)
            self._take_views()
        self._library[edges:needed] = library
        self._linker[edges:needed] = linker
        self.count = needed
        return edges

    def _take_views(self) -> None:
        self._library_at: memoryview[int] = self._library.data
        self._linker_at: memoryview[int] = self._linker.data
        self._next_at: memoryview[int] = self._next.data


def checked_links(first: int, start: npt.NDArray[np.int64], index: Int32s) -> tuple[Int32s, Int32s]:
    """Linker and library of each link, ascending, none twice; changes nothing.

    Raises:
        ValueError: See `Links.add`.
    """
    number = len(start) - 1
    linker = np.repeat(np.arange(first, first + number, dtype=np.int64), np.diff(start))
    if len(linker) != len(index):
        raise ValueError("library_start does not span library_index")
    library = index.astype(np.int64)
    if np.any(library >= linker) or np.any(library < 0):
        raise ValueError("a job links a library that does not come before it")
    size = first + number
    pairs = np.unique(linker * size + library) if size else linker
    linker, library = np.divmod(pairs, max(size, 1))
    return linker.astype(np.int32), library.astype(np.int32)


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SMALLEST = 16


class KeyTable:
    """A map from uint64 to job numbers; see the top of the module."""

    def __init__(self) -> None:
        """Make an empty table."""
        self._used = 0
        self._resize(_SMALLEST)

    def __len__(self) -> int:
        """Number of keys."""
        return self._used

    def claim(self, keys: npt.NDArray[np.uint64], jobs: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Enter jobs under their keys, unless a job is there already.

        Args:
            keys: Shape (n,).
            jobs: The job of each, shape (n,).

        Returns:
            Who has the key, shape (n,): the job itself, an earlier one, or an earlier one of this call.
        """
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        owners = self._claim_distinct(distinct, jobs[first])
        return owners[inverse.reshape(-1)]

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        return self._keys.nbytes + self._jobs.nbytes

    def _claim_distinct(
        self, keys: npt.NDArray[np.uint64], jobs: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32]:
        while 2 * (self._used + len(keys)) > len(self._keys):
            self._grow(self._used + len(keys))
        owners = np.empty(len(keys), np.int32)
        left = np.arange(len(keys))
        places = self._places(keys)
        while len(left):
            free = self._jobs[places] < 0
            if free.any():
                # Of several new keys at one place one stays; all are read back below, and see whether it is theirs.
                self._keys[places[free]] = keys[left[free]]
                self._jobs[places[free]] = -2
            mine = self._keys[places] == keys[left]
            new = mine & free
            self._jobs[places[new]] = jobs[left[new]]
            self._used += int(np.count_nonzero(new))
            owners[left[mine]] = self._jobs[places[mine]]
            left, places = left[~mine], (places[~mine] + 1) & self._mask
        return owners

    def _places(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return ((keys * _GOLDEN) >> self._shift).astype(np.int64)

    def _grow(self, needed: int) -> None:
        keys, jobs = self._keys, self._jobs
        size = len(keys)
        while size < 2 * needed:
            size *= 2
        self._resize(size)
        held = jobs >= 0
        self._used = 0
        self._claim_distinct(keys[held], jobs[held])

    def _resize(self, size: int) -> None:
        self._keys = np.zeros(size, np.uint64)
        self._jobs = np.full(size, -1, np.int32)
        self._mask = size - 1
        self._shift = np.uint64(64 - (size.bit_length() - 1))


UInt64s = npt.NDArray[np.uint64]

_LIBRARY = np.uint64(1) << np.uint64(40)
_KIND = np.uint64(1) << np.uint64(41)


def possibly_same(image: CreateInfoImage) -> npt.NDArray[np.bool_]:
    """Pipelines that may have the same pipeline key as another one of the image, shape (n,)."""
    code = (
        _mixed(image.kinds.astype(np.uint64) + _KIND)
        + _sums(image.module_slot_start, image.module_slot_module.astype(np.uint64))
        + _sums(image.library_slot_start, image.library_slot_pipeline.astype(np.uint64) + _LIBRARY)
    )
    _, numbers, counts = np.unique(code, return_inverse=True, return_counts=True)
    return np.asarray(counts[numbers] > 1)


def _sums(start: npt.NDArray[np.int64], values: UInt64s) -> UInt64s:
    """Sum of the mixed values of each row of a ragged array: the order does not count, how often does."""
    ends = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_mixed(values), dtype=np.uint64)))
    return np.asarray(ends[start[1:]] - ends[start[:-1]])


def _mixed(values: UInt64s) -> UInt64s:
    """The values spread over 64 bits (the finalizer of splitmix64)."""
    mixed = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
