"""The jobs of a schedule: `JobGraph` is the input, `JobTable` the state.

One job is one pipeline, numbered as in the set. Only `transitions.py` changes the state of a job:

    event                                          from              to
    entered                                        ABSENT, CANCELLED READY; WAITING if it links what is not
                                                                     created; JOINED behind its leader
    the last of its libraries was created          WAITING           READY
    requested                                      READY             ASSIGNED
    not found without its code                     ASSIGNED          WAITING, until that is supplied
    its code is supplied                           WAITING           READY if it waits for nothing else
    finished, failed                               ASSIGNED          CREATED, FAILED
    its leader was created                         JOINED            READY or WAITING
    its leader failed                              JOINED            UNASSIGNABLE
    its leader was cancelled or is unassignable    JOINED            READY or WAITING for the first follower,
                                                                     which leads the others
    excluded, or a library of it was not created   WAITING, READY,   UNASSIGNABLE
    cancelled                                      JOINED            CANCELLED

CREATED, FAILED and UNASSIGNABLE are final.

Guarantees: the number of jobs in each state, and the cost of those that are WAITING or READY, are known
without a scan. Keys are compared in full.
Assumptions: at most 2^31 jobs; a library has a smaller number than its dependents, so links form no circle.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.image import CreateInfoImage
from orchestrator.schedule.costs import DEFAULT_COST_NS, UInt64s, estimated_costs, trusted_keys
from orchestrator.schedule.options import Priority

Int32s = npt.NDArray[np.int32]


class JobGraph(msgspec.Struct, frozen=True, eq=False):
    """What a scheduler knows about the jobs of a set, as arrays; jobs have the order of the set."""

    kinds: npt.NDArray[np.uint8]  # (n,); a batch has jobs of one kind only
    library_start: npt.NDArray[np.int64]  # (n + 1,); where each job's libraries begin in `library_index`
    library_index: Int32s  # each smaller than the number of the job that links it
    costs_ns: npt.NDArray[np.int64] | None = None  # estimated cost of compiling each job
    keys: UInt64s | None = None  # state keys: jobs with one key are the same work
    # The driver's keys as numbers, 0 where one is not known: jobs with one number compile to the same code.
    pipeline_keys: UInt64s | None = None
    hits: npt.NDArray[np.bool_] | None = None  # jobs that a cache is expected to hold
    speculative: npt.NDArray[np.bool_] | None = None  # jobs without their code, tried without it first
    module_start: npt.NDArray[np.int64] | None = None  # (n + 1,); as of libraries
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
        """The pipelines of an image, with what `Device.pipeline_keys` gave for all of them, if it was asked.

        Keys of a kind that do not distinguish code are ignored. For `recorded_ns` see `estimated_costs`.

        Raises:
            ValueError: The number of costs or keys is not that of the pipelines.
        """
        numbers = None
        if pipeline_keys is not None:
            number_of: dict[bytes | None, int] = {None: 0}
            trusted = trusted_keys(image, pipeline_keys)
            numbers = np.array([number_of.setdefault(key, len(number_of)) for key in trusted], np.uint64)
        return cls(
            image.kinds,
            image.library_slot_start,
            image.library_slot_pipeline,
            costs_ns=estimated_costs(image, recorded_ns),
            keys=image.keys,
            pipeline_keys=numbers,
            hits=hits,
            speculative=speculative,
            module_start=image.module_slot_start,
            module_index=image.module_slot_module,
        )


class JobState(enum.IntEnum):
    """State of a job; see the top of the module."""

    WAITING = 0
    READY = 1
    JOINED = 2
    ASSIGNED = 3
    CREATED = 4
    FAILED = 5
    UNASSIGNABLE = 6
    CANCELLED = 7
    ABSENT = 8


# Plain numbers for the hot paths, where an enum's member costs as much as the work.
WAITING, READY, JOINED, ASSIGNED, CREATED, FAILED, UNASSIGNABLE, CANCELLED, ABSENT = map(int, JobState)

COMPILE, HIT, WAVE, FOLLOW = range(4)
"""Lanes. A job is in one: it is to be compiled; a cache is expected to hold it; it is tried without its code;
it follows a leader that was created, and is expected to be in its worker's cache."""

HIT_COST_NS = 5_000
"""Estimated cost of a job in any other lane than COMPILE."""

MANY = 16
"""A shader of so many jobs is worth measuring before the others of them are begun."""

_FEW = 32


class JobTable:
    """Columns of all jobs, each ABSENT at first; one row a job. Only `Transitions` changes them.

    Args:
        jobs: The graph.
        by_cost: Whether jobs have ranks and are expected to hit.
        unites: Whether jobs with equal keys are the same work.
    """

    def __init__(self, jobs: JobGraph, *, by_cost: bool, unites: bool) -> None:
        count = self.count = len(jobs)
        estimates = np.full(count, DEFAULT_COST_NS) if jobs.costs_ns is None else np.maximum(jobs.costs_ns, 1)
        lane = np.full(count, COMPILE, np.uint8)
        if jobs.hits is not None and by_cost:
            lane[jobs.hits] = HIT
        if jobs.speculative is not None:
            lane[jobs.speculative] = WAVE
        shader = np.full(count, -1)
        if by_cost and (lane == COMPILE).any():
            shader = _shaders_of_many(jobs)
        ranks = np.where(lane == COMPILE, estimates, HIT_COST_NS)
        self.states = [0] * len(JobState)  # number of jobs in each
        self.states[ABSENT] = count
        self.open_cost = 0  # cost of all jobs that are WAITING or READY
        self.state = bytearray((ABSENT,)) * count  # `JobState`
        self.kind = bytearray(jobs.kinds.astype(np.uint8).tobytes())
        # `Priority`: its own, or that of the most urgent job that needs it
        self.priority = bytearray((Priority.SOON,)) * count
        if jobs.priorities is not None:
            self.priority = bytearray(jobs.priorities)
        self.lane = bytearray(lane.tobytes())
        self.unwanted = bytearray(count)  # 1: it is queued only because a wanted job links it
        self.cost: list[int] = ranks.tolist()  # estimated, ns
        _raise_firsts(ranks, np.where(lane == COMPILE, shader, -1))
        # what jobs of one priority are ordered by, the highest first
        self.rank: list[int] = ranks.tolist() if by_cost else [0] * count
        self.shader: list[int] = shader.tolist()  # a shader that it shares with at least `MANY` jobs, or -1
        self.estimates = estimates  # first estimate of what compiling costs
        # the same, corrected by what the first of its shader took
        self.corrected = estimates.astype(np.float64)
        self.worker = np.zeros(count, np.int32)  # that was assigned it last
        self.libraries: dict[int, list[int]] = {}  # of each job that has some
        self.dependents: dict[int, list[int]] = {}  # the jobs that link each library, ascending
        self._depth = np.zeros(count, np.int64)
        self._link(jobs)
        self.keys = np.empty(0, np.uint64) if jobs.keys is None else jobs.keys
        self.work = np.arange(count, dtype=np.int32)  # the first job that is the same work
        if unites:
            self._unite(jobs.pipeline_keys)
        # No other job is the same work, links it or is linked by it: nothing follows from what happens to it.
        self.plain = np.bincount(self.work, minlength=count)[self.work] == 1
        for linked in (self.libraries, self.dependents):
            self.plain[list(linked)] = False

    def _link(self, jobs: JobGraph) -> None:
        for job in np.flatnonzero(np.diff(jobs.library_start)).tolist():
            libraries = np.unique(jobs.library_index[jobs.library_start[job] : jobs.library_start[job + 1]])
            self._depth[job] = self._depth[libraries].max() + 1
            self.libraries[job] = libraries.tolist()
            for library in self.libraries[job]:
                self.dependents.setdefault(library, []).append(job)

    def _unite(self, second: UInt64s | None) -> None:
        ordered = np.sort(self.keys)
        if (ordered[1:] == ordered[:-1]).any():
            self.work = self._first_of(self.keys)
        if second is not None and (driver_keys := second[self.work]).any():
            self.work = np.where(driver_keys == 0, self.work, self._first_of(driver_keys))

    def _first_of(self, keys: UInt64s) -> Int32s:
        """The first job with the same key, kind and depth as each: so none does its own library's work."""
        kinds = np.frombuffer(self.kind, np.uint8)
        order = np.lexsort((self._depth, kinds, keys))
        differ = np.ones(len(order), np.bool_)
        differ[1:] = np.logical_or.reduce(
            [column[order[1:]] != column[order[:-1]] for column in (self._depth, kinds, keys)]
        )
        found = np.empty(len(order), np.int32)
        found[order] = order[np.maximum.accumulate(np.where(differ, np.arange(len(order)), 0))]
        return found

    @property
    def states_now(self) -> npt.NDArray[np.uint8]:
        """The column `state` as an array."""
        return np.frombuffer(self.state, np.uint8)

    @property
    def queued(self) -> int:
        """Jobs that are WAITING, READY or JOINED."""
        return self.states[WAITING] + self.states[READY] + self.states[JOINED]

    def move(self, job: int, state: int) -> None:
        """Change the state of one job."""
        old = self.state[job]
        self.states[old] -= 1
        self.states[state] += 1
        self.state[job] = state
        if old <= READY < state:
            self.open_cost -= self.cost[job]
        elif state <= READY < old:
            self.open_cost += self.cost[job]

    def move_all(self, jobs: Int32s, state: int) -> None:
        """Change the state of jobs, which all have the same one."""
        if len(jobs) < _FEW:
            for job in jobs.tolist():
                self.move(job, state)
            return
        old = self.state[int(jobs[0])]
        self.states[old] -= len(jobs)
        self.states[state] += len(jobs)
        self.states_now[jobs] = state
        if (old <= READY) != (state <= READY):
            cost = sum(map(self.cost.__getitem__, jobs.tolist()))
            self.open_cost += cost if state <= READY else -cost

    def set_cost(self, job: int, cost: int) -> None:
        """Change the cost of a job."""
        if self.state[job] <= READY:
            self.open_cost += cost - self.cost[job]
        self.cost[job] = cost


def _shaders_of_many(jobs: JobGraph) -> npt.NDArray[np.int64]:
    """For each job the rarest module that it shares, as a number; -1 below `MANY` jobs."""
    count = len(jobs)
    if jobs.module_start is None or jobs.module_index is None or not len(jobs.module_index):
        return np.full(count, -1)
    users = np.bincount(jobs.module_index)
    number = jobs.module_index.astype(np.int64)
    alone = np.int64(1) << 62
    weights = np.where(users[number] > 1, (users[number] << 31) | number, alone)
    rarest = np.full(count, alone)
    some = np.flatnonzero(np.diff(jobs.module_start))
    rarest[some] = np.minimum.reduceat(weights, jobs.module_start[some])
    _, shader, sizes = np.unique(rarest, return_inverse=True, return_counts=True)
    return np.where((sizes[shader] >= MANY) & (rarest != alone), shader, -1)


def _raise_firsts(ranks: npt.NDArray[np.int64], shader: npt.NDArray[np.int64]) -> None:
    """Order the longest job of each shader of many as if it took as long as all of them: it tells of all."""
    jobs = np.flatnonzero(shader >= 0)
    jobs = jobs[np.lexsort((-ranks[jobs], shader[jobs]))]
    if len(jobs):
        begins = np.flatnonzero(np.diff(shader[jobs], prepend=-1))
        ranks[jobs[begins]] = np.add.reduceat(ranks[jobs], begins)
