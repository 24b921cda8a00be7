"""The jobs of a schedule, in columns: `JobGraph` is the input, `JobTable` the state.

One job is one pipeline, numbered as in the set. Only `JobTable` changes the state of a job:

    event                                          from                     to
    entered                                        ABSENT, CANCELLED        WAITING; READY if it waits for
                                                                            nothing; JOINED behind its leader
    the last of its libraries was created          WAITING                  READY; PINNED for a duplicate
    requested                                      READY, PINNED            ASSIGNED
    not found without its code                     ASSIGNED                 WAITING, until that is supplied
    its code is supplied                           WAITING                  READY if it waits for nothing else
    finished, failed                               ASSIGNED                 CREATED, FAILED
    its leader was created                         JOINED                   SHARED; WAITING or PINNED where it
                                                                            is created too (a duplicate)
    its leader failed                              JOINED                   UNASSIGNABLE
    its leader was cancelled or is unassignable    JOINED                   WAITING or READY for the first
                                                                            follower, which leads the others
    excluded, or a library of it was not created   WAITING, READY, PINNED,  UNASSIGNABLE
    cancelled                                      JOINED                   CANCELLED

CREATED, SHARED, FAILED and UNASSIGNABLE are final.

Guarantees: the number of jobs in each state, and the cost of those that are WAITING, READY or PINNED, are
known without a scan. Each edge between a job and a library is walked a bounded number of times. Keys are
compared in full.
Assumptions: at most 2^31 jobs; a library has a smaller number than its dependents, so links form no circle.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import CreateInfoImage, row
from orchestrator.schedule.costs import UInt64s, estimated_costs, proven_keys, trusted_keys

Int32s = npt.NDArray[np.int32]
_Number = TypeVar("_Number", bound=np.generic)


class Priority(enum.IntEnum):
    """How urgent a job is; more urgent jobs are assigned first.

    NOW: A caller waits for it.
    SOON: The default.
    BACKGROUND: Assigned when nothing else is left.
    """

    NOW = 0
    SOON = 1
    BACKGROUND = 2


class JobGraph(msgspec.Struct, frozen=True, eq=False):
    """What a scheduler knows about the jobs of a set, as arrays; jobs are numbered in the order of the set.

    Attributes:
        kinds: Kind of each job, shape (n,), uint8; a batch holds jobs of one kind only.
        library_start: Where each job's entries in `library_index` begin, shape (n + 1,), int64.
        library_index: The libraries that each job links, shape (l,), int32, each smaller than the job's own
            number (so that the graph has no cycle).
        costs_ns: Estimated cost of compiling each job, shape (n,), nanoseconds.
        keys: State key of each job, shape (n,), uint64: jobs with one key are the same work.
        pipeline_keys: Second-level key of each job, shape (n,), uint64; 0 where it is not known. Jobs with
            one such key compile to the same code.
        proven_keys: Jobs whose second-level key is proven, shape (n,), bool: only those share an outcome
            (`Followers.SHARE`). None: the caller vouches for all.
        hits: Jobs that a cache is expected to hold, shape (n,), bool.
        speculative: Jobs without their code, which are tried without it first, shape (n,), bool.
        module_start: Where each job's entries in `module_index` begin, shape (n + 1,), int64.
        module_index: The shader modules of each job, shape (m,), int32.
        priorities: `Priority` of each job, shape (n,), uint8.
    """

    kinds: npt.NDArray[np.uint8]
    library_start: npt.NDArray[np.int64]
    library_index: Int32s
    costs_ns: npt.NDArray[np.int64] | None = None
    keys: UInt64s | None = None
    pipeline_keys: UInt64s | None = None
    proven_keys: npt.NDArray[np.bool_] | None = None
    hits: npt.NDArray[np.bool_] | None = None
    speculative: npt.NDArray[np.bool_] | None = None
    module_start: npt.NDArray[np.int64] | None = None
    module_index: Int32s | None = None
    priorities: npt.NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self.kinds)

    @classmethod
    def of_image(
        cls,
        image: CreateInfoImage,
        *,
        recorded_ns: npt.NDArray[np.int64] | None = None,
        hits: npt.NDArray[np.bool_] | None = None,
        speculative: npt.NDArray[np.bool_] | None = None,
        pipeline_keys: Sequence[bytes | None] | None = None,
    ) -> JobGraph:
        """The pipelines of an image.

        Args:
            image: The image, which is only read.
            recorded_ns: Recorded cost of each pipeline, shape (n,), nanoseconds; 0 where it is to be
                estimated.
            hits: Pipelines that a cache is expected to hold, shape (n,).
            speculative: Pipelines without their code, shape (n,).
            pipeline_keys: What `Device.pipeline_keys` gave for all pipelines (vkGetPipelineKeyKHR), if it was
                asked. Keys of a kind that do not distinguish code are ignored.

        Raises:
            ValueError: The number of costs or keys is not that of the pipelines.
        """
        numbers = proven = None
        if pipeline_keys is not None:
            if len(pipeline_keys) != len(image):
                raise ValueError(
                    f"pipeline_keys has {len(pipeline_keys)} elements for {len(image)} pipelines"
                )
            number_of: dict[bytes, int] = {}
            numbers = np.array(
                [
                    0 if key is None else number_of.setdefault(key, len(number_of) + 1)
                    for key in trusted_keys(image, pipeline_keys)
                ],
                np.uint64,
            )
            proven = proven_keys(image, pipeline_keys)
        return cls(
            image.kinds,
            image.library_slot_start,
            image.library_slot_pipeline,
            costs_ns=estimated_costs(image, recorded_ns),
            keys=image.keys,
            pipeline_keys=numbers,
            proven_keys=proven,
            hits=hits,
            speculative=speculative,
            module_start=image.module_slot_start,
            module_index=image.module_slot_module,
        )

    def check(self) -> None:
        """Refuse arrays that do not fit together.

        Raises:
            ValueError: What is wrong.
        """
        count = len(self)
        names = "costs_ns keys pipeline_keys proven_keys hits speculative priorities"
        for name in names.split():
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise ValueError(f"{name} has {len(column)} elements for {count} jobs")
        if self.priorities is not None and count and int(self.priorities.max()) > Priority.BACKGROUND:
            raise ValueError("priorities holds a number that is no Priority")
        if len(self.library_start) != count + 1:
            raise ValueError("library_start does not have one element more than there are jobs")
        if (self.module_start is None) != (self.module_index is None):
            raise ValueError("module_start and module_index go together")
        if self.module_start is not None and self.module_index is not None:
            span = int(self.module_start[-1]) if len(self.module_start) == count + 1 else -1
            if span != len(self.module_index):
                raise ValueError("module_start does not span module_index")


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
    ABSENT = 10


# Plain numbers for the hot paths, where an enum's member costs as much as the work.
(
    WAITING,
    READY,
    PINNED,
    JOINED,
    ASSIGNED,
    CREATED,
    SHARED,
    FAILED,
    UNASSIGNABLE,
    CANCELLED,
    ABSENT,
) = map(int, JobState)

DUPLICATE = 1
"""Flag: a follower that is created after its leader, and is expected to hit."""
UNWANTED = 2
"""Flag: it was not entered by itself, or was cancelled; it is queued only because a wanted job links it."""
BY_PIPELINE_KEY = 4
"""Flag: it joined by its second-level key."""
CHAINED = 8
"""Flag: it is in the chain of a leader, though it may have been cancelled since."""
HIT = 16
"""Flag: a cache is expected to hold it."""
SPECULATIVE = 32
"""Flag: it is tried without its code first."""

_COLUMNS: dict[str, tuple[type[np.generic], int]] = {
    "state": (np.uint8, ABSENT),
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
    "live_dependents": (np.int32, 0),
}


KEEPS_GIL = 500
"""Up to so many jobs are gone through one by one. numpy releases the GIL for more elements, and for any
number of them where it indexes by an array, sorts or searches. Other workers would then queue for the GIL,
and those that got it for the schedule's lock."""


def gather(column: npt.NDArray[_Number], jobs: Int32s) -> npt.NDArray[_Number]:
    """`column[jobs]`, but up to `KEEPS_GIL` jobs without releasing the GIL."""
    if len(jobs) > KEEPS_GIL:
        return column[jobs]
    at = column.data
    return np.array([at[job] for job in jobs.tolist()], column.dtype)


class JobTable:
    """Columns of all jobs, each ABSENT and its own leader at first.

    Each column `x` is an array, and `x_at` a memoryview of it for single elements, which reads one three
    times as fast. Large batches of consecutive jobs are changed through it too, as bytes.

    Args:
        count: Number of jobs.

    Attributes:
        count: Number of jobs.
        states: Number of jobs in each `JobState`.
        open_cost: Cost of all jobs that are WAITING, READY or PINNED, nanoseconds.
        state: `JobState`.
        kind: Kind.
        priority: `Priority`, its own or that of the most urgent job that needs it.
        flags: DUPLICATE, UNWANTED, BY_PIPELINE_KEY, CHAINED, HIT, SPECULATIVE.
        cost: Estimated cost, nanoseconds.
        rank: What jobs are ordered by: cost of the longest chain of links that begins with it; 0 for the
            given order.
        waiting: Number of linked libraries that were not created yet, plus one while it waits for code.
        depth: Length of the longest chain of libraries below it.
        leader: The job that it joined, itself where it leads; follow it until a job leads itself.
        next_follower: Next job that follows the same leader, or -1.
        last_follower: For a leader, the end of its chain, itself where it has no followers.
        label: What it shares with other jobs, for affinity, or -1.
        group: The caller's number.
        worker: The worker that was assigned it, or will be if it is a duplicate; or -1.
        live_dependents: Jobs that link it and are queued.
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
    live_dependents: Int32s
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
    worker_at: memoryview[int]
    live_dependents_at: memoryview[int]

    def __init__(self, count: int) -> None:
        self.count = 0
        self.states = [0] * len(JobState)
        self.open_cost = 0
        self.extend(count)

    def extend(self, number: int) -> None:
        """Add jobs after the others. It replaces all columns, so callers must not keep references to them."""
        first, self.count = self.count, self.count + number
        for name, (kind, default) in _COLUMNS.items():
            column = np.full(self.count, default, kind)
            if first:
                column[:first] = getattr(self, name)
            setattr(self, name, column)
            setattr(self, f"{name}_at", column.data)
        self.leader[first:] = self.last_follower[first:] = row(first, self.count)
        self.states[ABSENT] += number

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
        """Change the state of many jobs, which all have the state `old`."""
        number = len(jobs)
        self.states[old] -= number
        self.states[state] += number
        if number > KEEPS_GIL:
            self.state[jobs] = state
        else:
            for job in jobs.tolist():
                self.state_at[job] = state
        if old <= PINNED < state:
            self.open_cost -= int(gather(self.cost, jobs).sum())
        elif state <= PINNED < old:
            self.open_cost += int(gather(self.cost, jobs).sum())

    def move_row(self, span: slice, old: int, state: int) -> None:
        """`move_all` for consecutive jobs; the caller updates `open_cost`."""
        number = span.stop - span.start
        self.states[old] -= number
        self.states[state] += number
        self.state_at[span] = bytes((state,)) * number

    def find(self, job: int) -> int:
        """The leader of a job. Compresses the path for the next call."""
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


class Links:
    """Edges between the jobs of a table and their libraries; a library that a job names twice has one edge.

    Args:
        table: The jobs; their columns `waiting` and `depth` are written here.
        start: Where each job's libraries begin in `index`, shape (n + 1,).
        index: The libraries, job numbers.

    Attributes:
        count: Number of edges.
        library: Library of each edge, ascending by dependent, shape (count,).
        dependent: Dependent of each edge.
        dependents: How many jobs link each job, shape (n,); empty where nothing is linked.

    Raises:
        ValueError: A library does not come before its dependent, or the arrays do not fit.
    """

    def __init__(self, table: JobTable, start: npt.NDArray[np.int64], index: Int32s) -> None:
        self.count = 0
        self.library = self.dependent = self.dependents = np.empty(0, np.int32)
        self.extend(table, start, index, 0)

    def extend(self, table: JobTable, start: npt.NDArray[np.int64], index: Int32s, first: int) -> None:
        """Add the edges of the jobs from `first` on, which are numbered from 0 in the arrays.

        Raises:
            ValueError: As when it is made.
        """
        size = table.count - first
        dependent = np.repeat(np.arange(size, dtype=np.int64), np.diff(start))
        if len(dependent) != len(index):
            raise ValueError("library_start does not span library_index")
        library = index.astype(np.int64)
        if np.any(library >= dependent) or np.any(library < 0):
            raise ValueError("a job links a library that does not come before it")
        if not len(index) and not self.count:
            return
        dependent, library = np.divmod(np.unique(dependent * size + library), size)
        new_library, new_dependent = (library + first).astype(np.int32), (dependent + first).astype(np.int32)
        table.waiting[first:] = np.bincount(dependent, minlength=size)
        self.library = np.concatenate((self.library, new_library))
        self.dependent = np.concatenate((self.dependent, new_dependent))
        self.count = len(self.library)
        self.dependents = np.bincount(self.library, minlength=table.count).astype(np.int32)
        self._library_start = _starts(np.bincount(self.dependent, minlength=table.count).astype(np.int32))
        self._dependent_start = _starts(self.dependents)
        by_library = self.dependent[np.argsort(self.library, kind="stable")]
        self._library_at: memoryview[int] = self.library.data
        self._dependent_at: memoryview[int] = by_library.data
        depth_at = table.depth_at
        for below, above in zip(new_library.tolist(), new_dependent.tolist(), strict=True):
            if depth_at[below] >= depth_at[above]:
                depth_at[above] = depth_at[below] + 1

    def dependents_of(self, library: int) -> list[int]:
        """The jobs that link a library."""
        if not self.count:
            return []
        start = self._dependent_start.data
        return self._dependent_at[start[library] : start[library + 1]].tolist()

    def libraries_of(self, job: int) -> list[int]:
        """The libraries that a job links."""
        if not self.count:
            return []
        start = self._library_start.data
        return self._library_at[start[job] : start[job + 1]].tolist()

    def lacks(self, jobs: Int32s) -> bool:
        """Whether none of some jobs links a library."""
        return not self.count or bool((self._library_start[jobs + 1] == self._library_start[jobs]).all())

    def edges_of(self, jobs: Int32s) -> tuple[Int32s, Int32s]:
        """Libraries and dependents of all edges of some jobs, in the order of the jobs."""
        if not self.count:
            return self.library, self.dependent
        begin = self._library_start[jobs]
        lengths = self._library_start[jobs + 1] - begin
        places = np.arange(int(lengths.sum())) + np.repeat(begin - np.cumsum(lengths) + lengths, lengths)
        return self.library[places], self.dependent[places]


def _starts(counts: Int32s) -> Int32s:
    return np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SMALLEST = 16  # places of an empty table


class KeyTable:
    """A map from 64-bit keys to the first job that claimed each; no key is ever removed.

    Two arrays with open addressing and linear probing, at most half full. They take 24 to 64 bytes per entry,
    where a dictionary of a million integers takes a hundred. The place of a key is the top of its product
    with 2^64 / golden ratio (Fibonacci hashing), so that consecutive keys spread too. Insertion tries one
    place for all keys at once; where several keys want one place, one wins and the others try the next.
    Expected O(1) per key. The first keys, if all differ, are only entered when others come: most runs claim
    once.
    """

    def __init__(self) -> None:
        self._used = 0
        self._first: tuple[UInt64s, Int32s] | None = None
        self._resize(_SMALLEST)

    def __len__(self) -> int:
        """Number of keys."""
        return self._used if self._first is None else len(self._first[0])

    def claim(self, keys: UInt64s, jobs: Int32s) -> Int32s:
        """Enter jobs under their keys, unless a job is there already.

        Args:
            keys: Shape (n,).
            jobs: The job of each, shape (n,).

        Returns:
            The job that owns each key, shape (n,): the job itself, or one that claimed it earlier.
        """
        if not len(self):
            ascending = np.sort(keys)
            if (ascending[1:] != ascending[:-1]).all():
                self._first = keys, jobs
                return jobs
        if self._first is not None:
            held, self._first = self._first, None
            self._claim_distinct(*held)
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        owners = self._claim_distinct(distinct, jobs[first])
        return owners[inverse.reshape(-1)]

    @property
    def nbytes(self) -> int:
        """Bytes that the table takes."""
        first = () if self._first is None else self._first
        return self._keys.nbytes + self._jobs.nbytes + sum(each.nbytes for each in first)

    def _claim_distinct(self, keys: UInt64s, jobs: Int32s) -> Int32s:
        while 2 * (self._used + len(keys)) > len(self._keys):
            self._grow(self._used + len(keys))
        owners = np.empty(len(keys), np.int32)
        left = np.arange(len(keys))
        places = self._places(keys)
        while len(left):
            free = self._jobs[places] < 0
            if free.any():
                # Of several new keys at one place one stays; reading them back below tells which.
                self._keys[places[free]] = keys[left[free]]
                self._jobs[places[free]] = -2
            mine = self._keys[places] == keys[left]
            new = mine & free
            self._jobs[places[new]] = jobs[left[new]]
            self._used += int(np.count_nonzero(new))
            owners[left[mine]] = self._jobs[places[mine]]
            left, places = left[~mine], (places[~mine] + 1) & self._mask
        return owners

    def _places(self, keys: UInt64s) -> npt.NDArray[np.int64]:
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
