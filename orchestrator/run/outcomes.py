# Purpose: what became of each pipeline of a run, and the report of the run as a whole.
#
# Guarantees:
# - Every pipeline has exactly one status; the counts sum to the size of the set.
# - A cache hit is a hit because the driver's creation feedback says so (VALID and
#   APPLICATION_PIPELINE_CACHE_HIT), never because it was quick. Without feedback nothing counts as a hit, with one
#   exception: a pipeline that has no stages of its own and only links libraries is made of what they are, and
#   drivers that link without compiling give no feedback for it; it is a hit where all its libraries were hits.
# - OutcomeTable is written by several threads at a time without a lock: each writes the elements of its own
#   batch, and no pipeline is in two batches.
"""Outcomes per pipeline, and `RunReport`."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CacheMode,
    CreationBatch,
)
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.registry import registry
from orchestrator.run.accounting import CreationCall
from orchestrator.run.merge import MergeReport

_HIT = FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT


class OutcomeStatus(enum.StrEnum):
    """What became of a pipeline.

    COMPILED: created, and the application's cache did not hold it (or the driver does not say).
    CACHE_HIT: created from the application's cache, by creation feedback.
    SKIPPED: never handed to the driver, because the device lacks something that it needs.
    FAILED: the driver refused it, or it could not be prepared, or a library of it failed.
    NOT_RUN: the run was stopped before its turn.
    """

    COMPILED = "compiled"
    CACHE_HIT = "cache_hit"
    SKIPPED = "skipped"
    FAILED = "failed"
    NOT_RUN = "not_run"


_STATUSES = tuple(OutcomeStatus)
_CODE = {status: np.uint8(code) for code, status in enumerate(_STATUSES)}
_KINDS = tuple(PipelineKind)
_CACHE_HIT = _CODE[OutcomeStatus.CACHE_HIT]
_NO_REASONS: Mapping[int, str] = {}


def status_code(status: OutcomeStatus) -> int:
    """Number that stands for a status in arrays: its position in `OutcomeStatus`."""
    return int(_CODE[status])


@frozen
class PipelineProblem:
    """A pipeline that was not created, and why.

    Attributes:
        index: Its number in the image.
        key: Its hash in the set.
        reason: The cause; for a refusal of the driver, the name of the VkResult.
    """

    index: int
    key: int
    reason: str


class OutcomeTable:
    """Outcomes of a run while it runs; see the top of the module for its use by threads.

    Args:
        image: The pipelines.
        keep: Whether to hold the pipeline handles that batches return.

    Attributes:
        status: `status_code` of each pipeline, shape (n,), uint8.
        driver_ns: Driver time of each, shape (n,), uint64; 0 before `attribute`.
        worker: Who created it, shape (n,), int32; -1 where nobody tried, and before `attribute`.
        handles: Pipeline handles, shape (n,), uint64, or None.
        reasons: Why a pipeline was skipped or failed, by index.
        settled_at_start: Pipelines whose outcome was known before anything ran.
    """

    def __init__(self, image: CreateInfoImage, *, keep: bool = False) -> None:
        count = len(image)
        self.status = np.full(count, _CODE[OutcomeStatus.NOT_RUN], np.uint8)
        self.driver_ns = np.zeros(count, np.uint64)
        self.worker = np.full(count, -1, np.int32)
        # Not np.zeros, whose memory is found page by page, during the run.
        self.handles = np.full(count, 0, np.uint64) if keep else None
        self._status_bytes = self.status.data
        self._handle_bytes = self.handles.data.cast("B") if self.handles is not None and count else None
        self.reasons: dict[int, str] = {}
        self.settled_at_start = 0
        # Pipelines that link libraries and have no stages of their own.
        self._image = image
        self._links = np.flatnonzero(
            (np.diff(image.library_slot_start) > 0) & (np.diff(image.module_slot_start) == 0)
        )

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.status)

    def counts(self) -> dict[OutcomeStatus, int]:
        """Pipelines of each status; every status has an entry."""
        return _counts(self.status)

    def settle(self, status: OutcomeStatus, reasons: Mapping[int, str]) -> None:
        """Give pipelines an outcome without a driver call."""
        for index, reason in reasons.items():
            self.reasons[index] = reason
            self.status[index] = _CODE[status]

    def record(self, indices: npt.NDArray[np.int32], batch: CreationBatch) -> tuple[Mapping[int, str], int]:
        """Take a batch's results; what they cost comes later, with `attribute`.

        Returns:
            The pipelines that were not created, with the reason; and how many of the others were cache hits.
        """
        span = batch.span
        if span is not None and batch.all_hits and batch.all_created:  # the path of a warm run
            # Bytes: numpy would give the interpreter away for more than 500 elements.
            self._status_bytes[span] = _CACHE_HIT.tobytes() * len(indices)
            if self._handle_bytes is not None:
                self._handle_bytes[span.start * 8 : span.stop * 8] = batch.handles.data.cast("B")
            return _NO_REASONS, len(indices)
        where = indices if span is None else span  # a slice costs a tenth of an index array
        if self.handles is not None:
            self.handles[where] = batch.handles
        flags = batch.feedback_flags
        # Usually all of a batch are hits, or none is, and one pass over the flags says so.
        if int(np.bitwise_and.reduce(flags)) & _HIT == _HIT:
            self.status[where] = _CACHE_HIT
            if batch.all_created:
                return _NO_REASONS, len(indices)
        elif not int(np.bitwise_or.reduce(flags)) & FEEDBACK_APPLICATION_CACHE_HIT:
            self.status[where] = _CODE[OutcomeStatus.COMPILED]
        else:
            hit = (flags & np.uint32(_HIT)) == _HIT
            self.status[where] = np.where(hit, _CACHE_HIT, _CODE[OutcomeStatus.COMPILED])
        if self._links.size:
            self.status[self._only_linked(indices, batch)] = _CACHE_HIT
        reasons = {
            int(indices[place]): _refusal(int(batch.results[place]))
            for place in np.flatnonzero(batch.results != SUCCESS)
        }
        self.settle(OutcomeStatus.FAILED, reasons)
        return reasons, int(np.count_nonzero(self.status[where] == _CACHE_HIT))

    def _only_linked(self, indices: npt.NDArray[np.int32], batch: CreationBatch) -> list[int]:
        """Pipelines of a batch that are links without feedback and whose libraries were all hits."""
        silent = (batch.feedback_flags & np.uint32(FEEDBACK_VALID)) == 0
        return [
            index
            for index in indices[silent & np.isin(indices, self._links)].tolist()
            if (self.status[list(self._image.libraries_of(index))] == _CACHE_HIT).all()
        ]

    def record_failed_call(self, indices: npt.NDArray[np.int32], reason: str) -> dict[int, str]:
        """Take a call that failed as a whole: all its pipelines failed. Returns them with the reason."""
        reasons = {int(index): reason for index in indices}
        self.settle(OutcomeStatus.FAILED, reasons)
        return reasons

    def attribute(
        self,
        worker: int,
        calls: Sequence[CreationCall],
        durations_ns: Sequence[npt.NDArray[np.uint64]],
    ) -> None:
        """Give the pipelines of a worker's calls their worker and their driver time, after the barrier.

        Args:
            worker: The worker.
            calls: Its calls, in the order made.
            durations_ns: Driver time of the pipelines of each, in the order of its indices.
        """
        if calls:
            indices = np.concatenate([call.indices for call in calls])
            self.worker[indices] = worker
            # A pipeline stands twice where a failed call was made again; the last cost is the one that counts.
            self.driver_ns[indices] = np.concatenate(durations_ns)


def _refusal(result: int) -> str:
    if result == PIPELINE_COMPILE_REQUIRED:
        return (
            "VK_PIPELINE_COMPILE_REQUIRED: its create info forbids compiling, and the cache does not hold it"
        )
    return registry().result_name(result)


def _counts(status: npt.NDArray[np.uint8]) -> dict[OutcomeStatus, int]:
    numbers = np.bincount(status, minlength=len(_STATUSES))
    return {each: int(numbers[code]) for code, each in enumerate(_STATUSES)}


@frozen
class RunTiming:
    """Totals of a run, nanoseconds.

    Attributes:
        open_ns: Making the primary (where the run makes it) and the worker caches, before the first job.
        wall_ns: From the first job submitted to the end of the barrier.
        merge_ns: Merging the worker caches.
        read_back_ns: Reading the primary's data, where the run does.
        driver_ns: Sum over all calls of the driver's own time.
        cpu_ns: Sum over all calls of the threads' CPU time.
        blocked_ns: Sum over all calls of the time asleep inside the driver.
        run_delay_ns: Sum over all calls of the time runnable but not scheduled.
        overhead_ns: wall x workers - driver: everything that is not the driver, idle workers included. Negative
            only where the driver's clock is not the machine's (a simulated device on a virtual clock).
    """

    open_ns: int
    wall_ns: int
    merge_ns: int
    read_back_ns: int
    driver_ns: int
    cpu_ns: int
    blocked_ns: int
    run_delay_ns: int
    overhead_ns: int


@frozen
class Barrier:
    """The point where all workers have ended.

    Attributes:
        arrivals_ns: When each worker arrived, on the clock of time.perf_counter_ns.
        end_ns: When the last had arrived and the run went on.
    """

    arrivals_ns: tuple[int, ...]
    end_ns: int

    @property
    def waits_ns(self) -> tuple[int, ...]:
        """How long each worker waited."""
        return tuple(self.end_ns - each for each in self.arrivals_ns)


@frozen(eq=False)
class RunReport:
    """What a run did and what it cost. A value: it refers to no cache and no device.

    Attributes:
        mode: The cache topology.
        workers: Number of workers.
        keys: Hash of each pipeline in the set, shape (n,), uint64.
        kinds: Kind of each, as a position in `PipelineKind`, shape (n,), uint8.
        status: `status_code` of each, shape (n,), uint8.
        driver_ns: Driver time of each, shape (n,), uint64.
        worker: Who created it, shape (n,), int32; -1 where nobody tried.
        skipped: The skipped pipelines, ascending.
        failed: The failed pipelines, ascending.
        calls: Every call, worker by worker, in the order made.
        barrier: The barrier.
        merge: The merge; None in mode NONE.
        timing: Totals.
        stopped: Whether the run was stopped before its end, so that pipelines may be NOT_RUN.
        notes: What a reader of the figures must know, such as a fallback.
        cache_data: The primary's data where the run made the primary itself; None where it did not, or where the
            driver would not give it (see `notes`).
        handles: Pipelines that the caller asked to keep and now owns, shape (n,), uint64, else None.
    """

    mode: CacheMode
    workers: int
    keys: npt.NDArray[np.uint64] = field(repr=False)
    kinds: npt.NDArray[np.uint8] = field(repr=False)
    status: npt.NDArray[np.uint8] = field(repr=False)
    driver_ns: npt.NDArray[np.uint64] = field(repr=False)
    worker: npt.NDArray[np.int32] = field(repr=False)
    skipped: tuple[PipelineProblem, ...] = field(repr=False)
    failed: tuple[PipelineProblem, ...] = field(repr=False)
    calls: tuple[CreationCall, ...] = field(repr=False)
    barrier: Barrier = field(repr=False)
    merge: MergeReport | None
    timing: RunTiming
    stopped: bool
    notes: tuple[str, ...]
    cache_data: bytes | None = field(repr=False)
    handles: npt.NDArray[np.uint64] | None = field(repr=False)

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.status)

    def status_of(self, index: int) -> OutcomeStatus:
        """Status of one pipeline."""
        return _STATUSES[int(self.status[index])]

    def counts(self, kind: PipelineKind | None = None) -> dict[OutcomeStatus, int]:
        """Pipelines of each status, of one kind or of all; every status has an entry."""
        if kind is None:
            return _counts(self.status)
        return _counts(self.status[self.kinds == _KINDS.index(kind)])

    @property
    def compiled(self) -> int:
        """Pipelines created by compiling."""
        return self.counts()[OutcomeStatus.COMPILED]

    @property
    def cache_hits(self) -> int:
        """Pipelines created from the application's cache."""
        return self.counts()[OutcomeStatus.CACHE_HIT]


def problems(
    image: CreateInfoImage, table: OutcomeTable, status: OutcomeStatus
) -> tuple[PipelineProblem, ...]:
    """The pipelines of one status, ascending, each with its reason."""
    return tuple(
        PipelineProblem(int(index), int(image.keys[index]), table.reasons[int(index)])
        for index in np.flatnonzero(table.status == _CODE[status])
    )


def timing_of(
    calls: tuple[CreationCall, ...],
    *,
    workers: int,
    open_ns: int,
    wall_ns: int,
    merge_ns: int,
    read_back_ns: int,
) -> RunTiming:
    """Sum up the calls of a run."""
    driver_ns = sum(call.driver_ns for call in calls)
    return RunTiming(
        open_ns=open_ns,
        wall_ns=wall_ns,
        merge_ns=merge_ns,
        read_back_ns=read_back_ns,
        driver_ns=driver_ns,
        cpu_ns=sum(call.cpu_ns for call in calls),
        blocked_ns=sum(call.blocked_ns for call in calls),
        run_delay_ns=sum(call.run_delay_ns for call in calls),
        overhead_ns=wall_ns * workers - driver_ns,
    )
