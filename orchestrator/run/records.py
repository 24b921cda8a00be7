"""Outcomes per pipeline, and `RunReport`.

What became of each pipeline of a run, and the report of the run as a whole.

Guarantees: - Every pipeline has exactly one status; the counts sum to the size of the set. - A cache hit is
a hit because the driver's creation feedback says so (VALID and APPLICATION_PIPELINE_CACHE_HIT), never
because it was quick. Without feedback nothing counts as a hit, with one exception: a pipeline that has no
stages of its own and only links libraries is made of what they are, and drivers that link without compiling
give no feedback for it; it is a hit where all its libraries were hits. - OutcomeTable is written by several
threads at a time without a lock: each writes the elements of its own batch, and no pipeline is in two
batches.

`CompileReport`: what compiling a set did.

The report of the main job: what became of every pipeline of a set, over all its groups of recorded
features, and what it cost.

Guarantees: every pipeline of the set is counted once. One that several applications with different features
used is compiled for each; it then counts as the worst that happened to it: failed before not run, compiled,
hit, skipped.

Progress of a run.

How far a run is, in numbers that never lie: the total is fixed from the start, what was skipped counts from
the start, done never falls, and there is no estimate before there is something to base it on.

Guarantees: a Progress is a value; making one reads the outcome table and holds no lock.

Outcomes and progress of a compile over all its groups.

Counts what became of a set's pipelines while its groups are compiled one after the other, for the progress
that a person watches and the report at the end.

Guarantees: the total is fixed before the first pipeline; `done` never falls; every outcome is kept once a
group.

Assumptions: one thread.

`TimeToGo`: when a run will have ended.

How long a run will still take, by what its jobs cost and not by how many they are: ten pipelines of a
millisecond say nothing about one of half a minute.

time to go = the longer of   (what is queued + what is left of the batches in flight) / workers what is left
of the longest batch in flight

Guarantees: None where nothing is known: before anything was measured, unless costs were recorded; and where
all that is left is in flight and takes much longer than was believed.

Assumptions: asked some times a second: a batch is taken to have begun when it was first seen. It may be
asked beside the workers: what it reads are single numbers, and one that is a moment old does no harm.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import astuple, define, evolve, field, frozen

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CacheMode,
    CreationBatch,
    DeviceFeatures,
    DeviceIdentity,
    PipelineExecutables,
)
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.registry import registry
from orchestrator.run.accounting import CreationCall
from orchestrator.run.merge import MergeReport
from orchestrator.schedule import Assignment, CostScheduler
from orchestrator.sets.groups import FeatureGroup
from orchestrator.sets.image.builder import BuiltImage
from orchestrator.sets.jobs import PipelineJob
from orchestrator.sets.records import Damage
from orchestrator.stores.cache_file import LoadResult
from orchestrator.stores.saving import SaveReason

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


_WORST_FIRST: Final = (
    OutcomeStatus.FAILED,
    OutcomeStatus.NOT_RUN,
    OutcomeStatus.COMPILED,
    OutcomeStatus.CACHE_HIT,
    OutcomeStatus.SKIPPED,
)


@frozen
class Outcome:
    """What became of one pipeline.

    Attributes:
        job: Which.
        status: What.
        reason: Why it was skipped or failed, else "".
        driver_ns: Driver time, over all groups.
    """

    job: PipelineJob
    status: OutcomeStatus
    reason: str = ""
    driver_ns: int = 0


@frozen
class GroupSummary:
    """A group of pipelines and the device that it was compiled on.

    Attributes:
        group: The group, with what the device was opened as.
        pipelines: How many of its pipelines went to the driver.
        cache_file: Where they are kept, or None.
    """

    group: FeatureGroup
    pipelines: int
    cache_file: Path | None = None


@frozen
class SetSummary:
    """What was compiled.

    Attributes:
        name: Where it came from.
        counts: Pipelines of each kind.
        content_hash: Hash over the names of all records.
        applications: Names of the applications it was recorded from, "" where one has none.
        groups: The groups that were compiled, each on a device opened for it.
        damage: Records that cannot be read.
    """

    name: str
    counts: Mapping[PipelineKind, int]
    content_hash: int
    applications: tuple[str, ...]
    groups: tuple[GroupSummary, ...]
    damage: tuple[Damage, ...]

    @property
    def unique(self) -> int:
        """Number of pipelines."""
        return sum(self.counts.values())


@frozen
class CacheSave:
    """One save of the cache file.

    Attributes:
        reason: Why then.
        saved_bytes: Bytes of the file that was written, 0 where none was.
        bytes_before: Driver's data that was there before and was merged with ours, 0 for none.
        bytes_after: Driver's data that is there now, where it is known.
        merged_with_others: Whether what was there came from another process, and not from this run.
        skipped: Why nothing was written, or "".
        error: Why it failed, or "".
        locked_out: Whether it was skipped because another process did not finish saving in time.
        note: What a reader should know, such as a driver that does not merge, or "".
    """

    reason: SaveReason
    saved_bytes: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    merged_with_others: bool = False
    skipped: str = ""
    error: str = ""
    locked_out: bool = False
    note: str = ""


@frozen
class CacheFileSummary:
    """What became of the cache file.

    Attributes:
        path: Where it is, or None where the mode keeps none.
        loaded: What became of it at the start.
        loaded_bytes: Bytes of driver data that were loaded.
        saved_bytes: Bytes of the file as it was written last, 0 where this job wrote none.
        not_saved: Why the last save wrote nothing, or "".
        error: Why the last save failed, or "".
        saves: Each save, those on the way included.
    """

    path: Path | None
    loaded: LoadResult | None = None
    loaded_bytes: int = 0
    saved_bytes: int = 0
    not_saved: str = ""
    error: str = ""
    saves: tuple[CacheSave, ...] = ()


@frozen
class CompileTiming:
    """Where the time went, nanoseconds.

    Attributes:
        open_ns: Opening the device (all groups).
        prepare_ns: Decoding the set into create infos, and creating layouts, render passes and modules.
        wall_ns: From the first job submitted to the end of the barrier (sum over the groups).
        driver_ns: The driver's own time in pipeline creation.
        cpu_ns: CPU time of the workers' calls.
        blocked_ns: Time asleep inside the driver.
        run_delay_ns: Time runnable but not scheduled.
        merge_ns: Merging worker caches.
        cache_load_ns: Reading the cache file and creating the primary.
        cache_save_ns: Reading the primary back and writing the file.
        overhead_ns: wall x workers - driver.
    """

    open_ns: int
    prepare_ns: int
    wall_ns: int
    driver_ns: int
    cpu_ns: int
    blocked_ns: int
    run_delay_ns: int
    merge_ns: int
    cache_load_ns: int
    cache_save_ns: int
    overhead_ns: int


@frozen
class Savings:
    """Compiles that were not made, because the same one was made before in the same run.

    Attributes:
        by_state_key: Pipelines with the state key of another one.
        by_pipeline_key: Pipelines with the driver's key of another one, each state key once.
        driver_ns: What their leaders took, less what finding them took: about what they would have cost.
        keys_asked: Pipelines whose key the driver was asked for.
        keys_ns: What asking took.
    """

    by_state_key: int = 0
    by_pipeline_key: int = 0
    driver_ns: int = 0
    keys_asked: int = 0
    keys_ns: int = 0

    @classmethod
    def total(cls, parts: Iterable[Savings]) -> Savings:
        """Those of several runs together."""
        return cls(*(sum(each) for each in zip(*map(astuple, parts), strict=True)))


@frozen
class Stage:
    """A part of the job that is not pipeline creation, for timelines.

    Attributes:
        name: What: "open", "read", "prepare", "pipeline_keys", "cache_load", "cache_save".
        start_ns: When it began, on the clock of time.perf_counter_ns.
        duration_ns: How long it took.
    """

    name: str
    start_ns: int
    duration_ns: int


@frozen
class InspectedPipeline:
    """What the driver said about a pipeline's code.

    Attributes:
        job: Which.
        found: What it said.
    """

    job: PipelineJob
    found: PipelineExecutables


@frozen(eq=False)
class CompileReport:
    """What compiling a set did. A value.

    Attributes:
        identity: The device.
        features: What it offers to an orchestrator.
        set: What was compiled.
        mode: The cache topology.
        workers: Number of workers.
        outcomes: One entry a pipeline, in the order of the set.
        runs: The report of each group's run; its indices are those of the group's image.
        cache_file: What became of the cache file.
        timing: Where the time went.
        stopped: Whether it was stopped before its end.
        notes: What a reader must know.
        stages: What took time beside the runs, in the order in which it ended.
        inspected: What the driver said about each created pipeline's code, where it was asked, by group.
        savings: Compiles that were not made, because the same one was.
        out_of_time: Whether it was stopped because its time budget was used up.
    """

    identity: DeviceIdentity
    features: DeviceFeatures
    set: SetSummary
    mode: CacheMode
    workers: int
    outcomes: tuple[Outcome, ...] = field(repr=False)
    runs: tuple[RunReport, ...] = field(repr=False)
    cache_file: CacheFileSummary
    timing: CompileTiming
    stopped: bool
    notes: tuple[str, ...]
    stages: tuple[Stage, ...] = field(default=(), repr=False)
    inspected: tuple[InspectedPipeline, ...] = field(default=(), repr=False)
    savings: Savings = Savings()
    out_of_time: bool = False

    def counts(self, kind: PipelineKind | None = None) -> dict[OutcomeStatus, int]:
        """Pipelines of each status, of one kind or of all; every status has an entry."""
        counts = dict.fromkeys(OutcomeStatus, 0)
        for each in self.outcomes:
            if kind is None or each.job.kind is kind:
                counts[each.status] += 1
        return counts

    def of_status(self, status: OutcomeStatus) -> tuple[Outcome, ...]:
        """The pipelines of one status, in the order of the set."""
        return tuple(each for each in self.outcomes if each.status is status)


def combine(jobs: Iterable[PipelineJob], outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """One outcome a pipeline, from those of all groups; a pipeline without one was not run.

    Args:
        jobs: All pipelines, in the order of the set.
        outcomes: Outcomes of groups, in any order, several a pipeline.
    """
    worst: dict[PipelineJob, Outcome] = {}
    for each in outcomes:
        known = worst.get(each.job)
        if known is None:
            worst[each.job] = each
            continue
        first, second = sorted((known, each), key=lambda outcome: _WORST_FIRST.index(outcome.status))
        worst[each.job] = Outcome(
            first.job, first.status, first.reason, driver_ns=first.driver_ns + second.driver_ns
        )
    return tuple(worst.get(job) or Outcome(job, OutcomeStatus.NOT_RUN) for job in jobs)


def timing_of_runs(runs: Sequence[RunReport], spent_ns: Mapping[str, int]) -> CompileTiming:
    """Sum up the runs of all groups, and what was spent around them.

    Args:
        runs: Reports of the groups.
        spent_ns: Time by name: "open_ns", "prepare_ns", "cache_load_ns", "cache_save_ns".
    """

    def total(name: str) -> int:
        return sum(int(getattr(run.timing, name)) for run in runs)

    return CompileTiming(
        open_ns=spent_ns.get("open_ns", 0),
        prepare_ns=spent_ns.get("prepare_ns", 0),
        wall_ns=total("wall_ns"),
        driver_ns=total("driver_ns"),
        cpu_ns=total("cpu_ns"),
        blocked_ns=total("blocked_ns"),
        run_delay_ns=total("run_delay_ns"),
        merge_ns=total("merge_ns"),
        cache_load_ns=spent_ns.get("cache_load_ns", 0),
        cache_save_ns=spent_ns.get("cache_save_ns", 0),
        overhead_ns=total("overhead_ns"),
    )


INTERVAL_S = 0.1
"""Least time between two reports, seconds; the last one comes whenever the run ends."""

_ETA_AFTER_S = 0.5


@frozen
class Progress:
    """How far a run is.

    Attributes:
        total: Pipelines of the set; fixed from the start.
        done: Those with an outcome: compiled + hits + failed + skipped.
        compiled: Created by compiling.
        hits: Created from the application's cache, by creation feedback.
        failed: Not created, the unusable ones from the start included.
        skipped: Not handed to the driver because the device lacks something; known from the start.
        in_flight: In a driver call now.
        started_ns: When the first job was submitted, on the clock of time.perf_counter_ns.
        elapsed_s: Seconds since then.
        rate: Pipelines a second that were handed to the driver and came back, over the whole run.
        eta_s: Seconds to go at that rate; None until it is known.
    """

    total: int
    done: int
    compiled: int
    hits: int
    failed: int
    skipped: int
    in_flight: int
    started_ns: int
    elapsed_s: float
    rate: float
    eta_s: float | None


ProgressCallback = Callable[[Progress], None]
"""Called in the trio thread; must not block."""


def progress_of(table: OutcomeTable, *, in_flight: int, started_ns: int, now_ns: int) -> Progress:
    """Progress as the outcome table shows it now.

    Args:
        table: The run's outcomes so far.
        in_flight: Pipelines in a driver call.
        started_ns: When the first job was submitted.
        now_ns: Now, on the same clock.
    """
    counts = table.counts()
    compiled, hits = counts[OutcomeStatus.COMPILED], counts[OutcomeStatus.CACHE_HIT]
    failed, skipped = counts[OutcomeStatus.FAILED], counts[OutcomeStatus.SKIPPED]
    total = len(table)
    done = compiled + hits + failed + skipped
    elapsed = max(0, now_ns - started_ns) / 1e9
    # What had its outcome before anything ran says nothing about the speed.
    returned = done - table.settled_at_start
    rate = returned / elapsed if elapsed > 0 else 0.0
    eta: float | None = None
    if done == total:
        eta = 0.0
    elif returned > 0 and elapsed >= _ETA_AFTER_S:
        eta = (total - done) / rate
    return Progress(
        total=total,
        done=done,
        compiled=compiled,
        hits=hits,
        failed=failed,
        skipped=skipped,
        in_flight=in_flight,
        started_ns=started_ns,
        elapsed_s=elapsed,
        rate=rate,
        eta_s=eta,
    )


@frozen
class CompileProgress:
    """How far a compile is. The total is fixed from the start and `done` never falls.

    Attributes:
        total: Pipelines to create, those of each group counted.
        done: Those with an outcome.
        compiled: Created by compiling.
        hits: Created from the cache, by creation feedback.
        failed: Not created.
        skipped: Not handed to the driver; known once a group was prepared.
        in_flight: In a driver call now.
        elapsed_s: Seconds since the first job of the current group.
        rate: Pipelines a second in the current group.
        eta_s: Seconds to go, or None until it is known.
    """

    total: int
    done: int
    compiled: int
    hits: int
    failed: int
    skipped: int
    in_flight: int
    elapsed_s: float
    rate: float
    eta_s: float | None


@define(eq=False)
class Tally:
    """What became of pipelines so far.

    Attributes:
        total: Pipelines to create, those of each group counted.
        outcomes: What became of them, group by group.
        runs: The report of each group's run.
    """

    total: int = 0
    outcomes: list[Outcome] = field(factory=list)
    runs: list[RunReport] = field(factory=list)
    _finished: CompileProgress = CompileProgress(0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, None)

    def leave_out(self, outcomes: Sequence[Outcome]) -> None:
        """Count pipelines that are not handed to the driver in this run: skipped or failed."""
        self.outcomes += outcomes
        skipped = sum(each.status is OutcomeStatus.SKIPPED for each in outcomes)
        before = self._finished
        self._finished = evolve(
            before,
            done=before.done + len(outcomes),
            skipped=before.skipped + skipped,
            failed=before.failed + len(outcomes) - skipped,
        )

    def take_run(self, report: RunReport) -> None:
        """Count what a group's run did."""
        reasons = {each.index: each.reason for each in (*report.skipped, *report.failed)}
        for index in range(len(report)):
            job = PipelineJob(int(report.keys[index]), _KINDS[int(report.kinds[index])])
            self.outcomes.append(
                Outcome(job, report.status_of(index), reasons.get(index, ""), int(report.driver_ns[index]))
            )
        counts = report.counts()
        before = self._finished
        self._finished = evolve(
            before,
            done=before.done + len(report) - counts[OutcomeStatus.NOT_RUN],
            compiled=before.compiled + counts[OutcomeStatus.COMPILED],
            hits=before.hits + counts[OutcomeStatus.CACHE_HIT],
            failed=before.failed + counts[OutcomeStatus.FAILED],
            skipped=before.skipped + counts[OutcomeStatus.SKIPPED],
        )
        self.runs.append(report)

    def during(self, progress: Progress) -> CompileProgress:
        """Progress over all groups while one of them runs."""
        before = self._finished
        rest = self.total - before.done - progress.total
        eta = progress.eta_s
        if eta is not None and rest > 0:  # groups to come: at the rate of this one
            eta = eta + rest / progress.rate if progress.rate else None
        return CompileProgress(
            total=self.total,
            done=before.done + progress.done,
            compiled=before.compiled + progress.compiled,
            hits=before.hits + progress.hits,
            failed=before.failed + progress.failed,
            skipped=before.skipped + progress.skipped,
            in_flight=progress.in_flight,
            elapsed_s=progress.elapsed_s,
            rate=progress.rate,
            eta_s=eta,
        )


def problem_outcomes(built: BuiltImage) -> tuple[Outcome, ...]:
    """Outcomes of the pipelines that did not get into an image."""
    return tuple(
        Outcome(
            each.job,
            OutcomeStatus.SKIPPED if each.unsupported else OutcomeStatus.FAILED,
            each.reason,
        )
        for each in built.problems
    )


_AFTER_NS = 500_000_000
_OVERDUE = 1.5
_OVERDUE_NS = 200_000_000


@define(eq=False)
class TimeToGo:
    """Follows a scheduler.

    Attributes:
        scheduler: The scheduler.
        workers: Number of workers.
        trusted: Whether costs were recorded, so that they can be believed from the start.
    """

    scheduler: CostScheduler
    workers: int
    trusted: bool = False
    _first_ns: int | None = field(default=None, init=False)
    _seen: dict[int, tuple[Assignment, int]] = field(factory=dict, init=False)

    def eta_s(self, now_ns: int) -> float | None:
        """Seconds to go, or None where that is not known.

        Args:
            now_ns: Now, on any one clock.
        """
        scheduler = self.scheduler
        if self._first_ns is None:
            self._first_ns = now_ns
        flights = scheduler.flights
        # The assignment is kept too, so that its id is not given to another one.
        seen = {id(each): self._seen.get(id(each), (each, now_ns)) for each, _ in flights}
        self._seen = seen
        if not self.trusted and (not scheduler.learned or now_ns - self._first_ns < _AFTER_NS):
            return None
        queued_ns = scheduler.remaining_ns
        left = [believed - (now_ns - seen[id(each)][1]) for each, believed in flights]
        overdue = any(
            -rest > (_OVERDUE - 1.0) * believed + _OVERDUE_NS
            for rest, (_, believed) in zip(left, flights, strict=True)
        )
        if overdue and not queued_ns:
            return None
        in_flight = [max(0.0, each) for each in left]
        total = (queued_ns + sum(in_flight)) / self.workers
        return max(total, max(in_flight, default=0.0)) / 1e9
