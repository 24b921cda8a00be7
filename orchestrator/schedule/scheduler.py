"""The `Scheduler` Protocol and the values that cross it.

The interface between what decides who compiles what (this room) and what does it (run). A scheduler is a
state machine: events go in (a worker asks, a batch ended, the run is cancelled), decisions come out (a
batch, wait, done). It can be tested, replayed and replaced without a thread or a driver.

Guarantees of every implementation: - Each job is assigned at most once; a job is assigned only after all
libraries it links were created. - A job that can no longer be assigned (a library of it failed, or it was
unusable from the start) is in `unassignable`, with the reason, from the event on that made it so. - After
`cancel` nothing more is assigned. Once nothing can be assigned and nothing is in flight, every request is
answered with Done.

Assumptions: not thread-safe: the caller holds a lock, or calls from one thread. No clock, no I/O; the same
events give the same decisions.

`ScheduleOptions`: the settings of `CostScheduler`.

What a caller may decide about `CostScheduler`, in one frozen value, so that a run can name it in its report
and two runs can be compared.

Guarantees: an impossible value is refused when it is made.

`ScheduleStatistics`: what a schedule did so far.

What a schedule did, as a value for a report.

Guarantees: a snapshot; it does not change with the schedule.

`Cancellation`: what was cancelled, and whether it has come to rest.

The answer to "is nothing of it in flight any more?", which a caller needs before it frees what the jobs
use: a driver call cannot be stopped, so a cancelled job may still be inside one.

Guarantees: `quiet` turns true with the event that ends the last batch, and stays true.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen, validators

from orchestrator.schedule.job_table import JobState


class Priority(enum.IntEnum):
    """How urgent a job is; whatever is more urgent is assigned first.

    NOW: Somebody waits for it.
    SOON: The usual.
    BACKGROUND: When nothing else is left.
    """

    NOW = 0
    SOON = 1
    BACKGROUND = 2


@frozen(eq=False)
class JobGraph:
    """What a scheduler knows about a set's jobs, as arrays; jobs are numbered 0..n-1 in the order of the set.

    Only kinds and libraries bind every scheduler; the rest is for those that make use of it.

    Attributes:
        kinds: Kind of each job, shape (n,), uint8; a batch holds jobs of one kind only.
        library_start: Where each job's entries in `library_index` begin, shape (n + 1,), int64.
        library_index: The libraries that each job links, shape (l,), int32, each smaller than the job's own
            number (so that the graph has no cycle).
        unusable: Jobs that must not be assigned, with the reason.
        costs_ns: What each job is believed to cost if it has to be compiled, shape (n,), nanoseconds.
        keys: State key of each job, shape (n,), uint64: jobs with one key are the same work.
        pipeline_keys: Second-level key of each job (vkGetPipelineKeyKHR, folded to 64 bits), shape (n,),
            uint64; 0 where it is not known. Jobs with one such key compile to the same code.
        module_start: Where each job's entries in `module_index` begin, shape (n + 1,), int64.
        module_index: The shader modules of each job, shape (m,), int32.
        priorities: `Priority` of each job, shape (n,), uint8.
        groups: A number of the caller's for each job, shape (n,), int32, by which jobs can be cancelled.
        numbers: What reasons call each job, shape (n,), int32; its own number where not given.
    """

    kinds: npt.NDArray[np.uint8]
    library_start: npt.NDArray[np.int64]
    library_index: npt.NDArray[np.int32]
    unusable: Mapping[int, str] = field(factory=dict)
    costs_ns: npt.NDArray[np.int64] | None = None
    keys: npt.NDArray[np.uint64] | None = None
    pipeline_keys: npt.NDArray[np.uint64] | None = None
    module_start: npt.NDArray[np.int64] | None = None
    module_index: npt.NDArray[np.int32] | None = None
    priorities: npt.NDArray[np.uint8] | None = None
    groups: npt.NDArray[np.int32] | None = None
    numbers: npt.NDArray[np.int32] | None = None

    def __len__(self) -> int:
        """Number of jobs."""
        return len(self.kinds)


@frozen(eq=False)
class Assignment:
    """A batch for one worker.

    Attributes:
        indices: The jobs, shape (k,), k >= 1, int32, all of one kind, in the order to create them; read-only.
        kind: Their kind.
    """

    indices: npt.NDArray[np.int32]
    kind: int


@frozen
class Wait:
    """Nothing can be assigned now; ask again after another worker's batch has ended."""


@frozen
class Done:
    """Nothing will be assigned any more, to any worker."""


@frozen
class Paused(Done):
    """The budget is used up. Nothing will be assigned to this worker until the caller gives a new one.

    To a worker it is the end, as `Done` is; jobs may be left, and a worker that asks under a new budget gets
    them.
    """


class Scheduler(Protocol):
    """Decides who compiles what, when. See the top of the module for what is guaranteed."""

    @property
    def queued(self) -> int:
        """Jobs that are still to be assigned, those that wait for a library included."""

    @property
    def in_flight(self) -> int:
        """Jobs that are assigned and not ended."""

    @property
    def done(self) -> int:
        """Jobs that were assigned and have ended, well or badly."""

    @property
    def unassignable(self) -> Mapping[int, str]:
        """Jobs that will never be assigned, by number, with the reason. Grows; do not change it."""

    def request(self, worker: int) -> Assignment | Wait | Done:
        """A worker asks for work.

        Raises:
            ValueError: The worker's last assignment has not ended, or there is no such worker.
        """

    def finished(
        self, worker: int, assignment: Assignment, *, hits: int = 0, compiles: int = 0, elapsed_ns: int = 0
    ) -> None:
        """A worker's assignment ended and all its jobs were created.

        Args:
            worker: The worker.
            assignment: What it was assigned.
            hits: How many of its jobs a cache had.
            compiles: How many were compiled.
            elapsed_ns: How long the batch took; 0 where the caller does not know, and nothing is learned then.

        Raises:
            ValueError: It is not what the worker was assigned last.
        """

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
        """A worker's assignment ended and some of its jobs were not created.

        Args:
            worker: The worker.
            assignment: What it was assigned.
            reasons: The jobs that were not created, by number, with the reason; the others were.
            hits: As in `finished`.
            compiles: As in `finished`.
            elapsed_ns: As in `finished`.

        Raises:
            ValueError: It is not what the worker was assigned last, or a reason is for another job.
        """

    def cancel(self) -> None:
        """Assign nothing more. Assignments in flight still end by `finished` or `failed`. Idempotent."""


@runtime_checkable
class SharesOutcomes(Protocol):
    """A scheduler that may give a job the outcome of another one, which is the same work, and never assign it."""

    @property
    def shares_outcomes(self) -> bool:
        """Whether it does."""

    def shared(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The jobs that have another one's outcome now, ascending, and for each the job whose it is."""


SchedulerFactory = Callable[[JobGraph, int], Scheduler]
"""Makes a scheduler for a set's jobs and a number of workers."""


class Followers(enum.StrEnum):
    """What becomes of a job that is the same work as another one (its leader), once the leader was created.

    CREATE: It is created too, by the leader's worker, whose cache has it by then: one compile, and every job has
        a pipeline of its own. Right where pipelines are kept, or outcomes are wanted from the driver.
    SHARE: It gets the leader's outcome and is never assigned, unless another job links it as a library.
    """

    CREATE = "create"
    SHARE = "share"


@frozen
class ScheduleOptions:
    """Settings of `CostScheduler`.

    Attributes:
        followers: What becomes of duplicates.
        pin_followers: With CREATE, only the leader's worker creates them, because only its cache has the code.
            False where all workers use one cache.
        affinity: Whether jobs that share a module or a library prefer one worker. Even so, a worker never idles
            and a long job never waits for the sake of it.
        target_ns: Time to aim at for a batch, nanoseconds. The default is for those who steer while it runs: what
            is urgent waits no longer than that for a worker. A cold run that nobody steers does well with 200 ms, for
            a call costs half a millisecond beside the driver.
        batch_limit: Largest batch.
        expect_hits: Share of jobs believed to hit before anything was learned, 0..1.
        capacity: Most jobs that may be queued; `submit` answers `Full` beyond it. None: no bound.
        streaming: Whether jobs may still be submitted: workers are told to wait, not that all is done, until
            `close` is called.
    """

    followers: Followers = Followers.CREATE
    pin_followers: bool = True
    affinity: bool = True
    target_ns: int = field(default=2_000_000, validator=validators.ge(1))
    batch_limit: int = field(default=256, validator=validators.ge(1))
    expect_hits: float = field(default=0.5, validator=[validators.ge(0.0), validators.le(1.0)])
    capacity: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    streaming: bool = False


@frozen
class ScheduleStatistics:
    """What a schedule did so far.

    Attributes:
        states: Number of jobs in each state.
        saved_by_key: Compiles saved because another job had the same state key.
        saved_by_pipeline_key: Compiles saved because another job had the same second-level key.
        saved_ns: What those compiles would have cost, as far as is believed, nanoseconds.
        at_home: Jobs that went to the worker that was assigned their label first.
        moved: Jobs that share code and went elsewhere.
        hit_shares: For each kind, share of jobs believed to hit.
        cost_scales: For each kind, measured over believed cost of compiles.
        nbytes: Bytes that all jobs take.
    """

    states: dict[JobState, int]
    saved_by_key: int
    saved_by_pipeline_key: int
    saved_ns: int
    at_home: int
    moved: int
    hit_shares: dict[int, float]
    cost_scales: dict[int, float]
    nbytes: int


@define(eq=False)
class Cancellation:
    """What a call to cancel did. The scheduler changes it; the caller reads it, under the scheduler's lock.

    Attributes:
        cancelled: Jobs that will not be assigned any more because of it.
        kept: Jobs that are created all the same, because a job that is not cancelled links them.
        pending: Workers with a batch that holds one of the jobs asked for.
    """

    cancelled: int = 0
    kept: int = 0
    pending: set[int] = field(factory=set)

    @property
    def quiet(self) -> bool:
        """Whether none of the jobs is in flight: nothing uses a cache on their behalf any more."""
        return not self.pending


class Cancellations:
    """Those that are not quiet yet."""

    def __init__(self) -> None:
        self._loud: list[Cancellation] = []

    def watch(self, cancellation: Cancellation) -> Cancellation:
        """Keep one up to date from now on; returns it."""
        if cancellation.pending:
            self._loud.append(cancellation)
        return cancellation

    def ended(self, worker: int) -> None:
        """A worker's batch has ended."""
        if self._loud:
            for each in self._loud:
                each.pending.discard(worker)
            self._loud = [each for each in self._loud if each.pending]
