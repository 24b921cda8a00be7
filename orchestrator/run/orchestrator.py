# Purpose: one run over a pipeline set: open caches, fan the jobs out to workers, join them at a barrier, merge
# the worker caches into the primary, report.
#
#   open caches ──> worker 0 ─┐
#                   worker 1 ─┼─> barrier ──> merge ──> read back ──> destroy what the run made
#                   ...      ─┘
#
# With a rolling merge (rolling.py) workers also retire their caches on the way, and a merger folds them into the primary.
#
# Guarantees:
# - While the run lasts its caches belong to it: a worker cache is used by its worker until the barrier and by
#   the merge after it, never by two at a time; the primary is not touched by anyone else (the caller's hook of a
#   rolling merge apart, which may read it).
# - A driver call is never abandoned. Cancelled, the run hands out no further batch, waits for the calls in
#   flight, and only then merges and destroys. The merge still takes place, so that what was compiled is not
#   lost to the primary; then trio.Cancelled goes on to the caller.
# - Nothing that the run made is left behind, however it ends: worker caches, a primary of its own, and
#   pipelines that nobody can own any more because the report is lost.
# - A pipeline or a call that fails is an outcome. What is raised is misuse, cancellation, or a bug.
#
# Assumptions: one run at a time uses a PreparedPipelines and a primary. Driver calls release the GIL.
"""`run_pipelines`: a pipeline set, in parallel, and what it cost."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

import numpy as np
import trio
from attrs import define, evolve, field

from orchestrator.devices.device import CacheMode, Device, PipelineCache, PreparedPipelines
from orchestrator.errors import DriverError
from orchestrator.run.creation import Creator, OneCache, RotatingCache, TwoLevels
from orchestrator.run.merge import (
    EMPTY_BYTES,
    Duplicates,
    Merged,
    MergeReport,
    RollingReport,
    duplicate_pipeline_keys,
    duplicates,
    merge_into,
    pruned_bytes,
    size_of,
)
from orchestrator.run.outcomes import (
    Barrier,
    OutcomeStatus,
    OutcomeTable,
    RunReport,
    problems,
    status_code,
    timing_of,
)
from orchestrator.run.progress import INTERVAL_S, ProgressCallback, progress_of
from orchestrator.run.rolling import BARRIER, ROLLING, MergedHook, MergePolicy, Rotation
from orchestrator.run.worker import Exchange, Worker
from orchestrator.schedule import FifoScheduler, JobGraph, SchedulerFactory


def available_workers() -> int:
    """Processors that this process may use: the default number of workers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def run_pipelines(
    device: Device,
    prepared: PreparedPipelines,
    *,
    workers: int | None = None,
    mode: CacheMode = CacheMode.PER_WORKER,
    merge: MergePolicy | None = None,
    on_merged: MergedHook | None = None,
    primary: PipelineCache | None = None,
    primary_data: bytes = b"",
    seed_workers_from_primary: bool = True,
    skipped: Mapping[int, str] | None = None,
    scheduler: SchedulerFactory = FifoScheduler,
    keep: bool = False,
    count_duplicate_pipeline_keys: bool = False,
    stop: trio.Event | None = None,
    on_progress: ProgressCallback | None = None,
) -> RunReport:
    """Create all pipelines of a prepared set, and end with what was compiled in the primary cache.

    Args:
        device: The device.
        prepared: What `device.prepare` returned; the caller keeps it open until the run is over.
        workers: Number of workers, one thread each at a time; None for `available_workers`.
        mode: The cache topology. PER_WORKER falls back to unflagged caches where the device has no externally
            synchronized ones, and says so in the report's notes; TWO_LEVEL falls back to PER_WORKER, rolling, where
            the device cannot forbid compiling.
        merge: When worker caches are merged into the primary: `BARRIER` at the end, `ROLLING` also on the way. None
            for ROLLING in mode TWO_LEVEL, whose workers look things up in the primary, and BARRIER in the others.
        on_merged: Called in a thread after each merge on the way, with the primary, which it may read and save; what it
            raises ends the run. The merge at the barrier does not call it: the primary is the caller's then.
        primary: The primary cache. It stays the caller's, who must not use it during the run. None: the run
            makes one from `primary_data`, returns its data as `RunReport.cache_data`, and destroys it.
        primary_data: Initial data for a primary that the run makes.
        seed_workers_from_primary: Create worker caches with the primary's data, so that they hit what it holds.
        skipped: Pipelines to leave out because the device lacks something, by index, with the reason. What
            links one of them is skipped too.
        scheduler: Makes the scheduler; the default is FIFO in the order of the set.
        keep: Keep the pipelines: `RunReport.handles`, owned by the caller. They are destroyed if the run is
            cancelled or raises, because then there is no report.
        count_duplicate_pipeline_keys: Ask the driver for the key of every compiled pipeline after the barrier,
            to count those that two workers compiled. Costs a driver call a pipeline, outside of all timings.
        stop: Ends the run early when set: the batches in flight are waited for, everything is merged, and the
            report is returned with NOT_RUN for the rest. (Cancelling instead loses the report.)
        on_progress: Called in the trio thread at the start, at most every 100 ms, and at the end.

    Returns:
        The report.

    Raises:
        ValueError: Fewer than one worker; a primary together with primary data, or with mode NONE; mode SHARED
            or TWO_LEVEL with an externally synchronized primary; a rolling merge in mode SHARED or NONE, which have
            no worker caches.
        DriverError: A cache could not be created.
        ExternalSynchronizationError: The caller used one of the caches during the run.
        trio.Cancelled: The surrounding scope was cancelled; see the top of the module.
    """
    count = available_workers() if workers is None else workers
    if count < 1:
        raise ValueError(f"workers must be at least 1, not {count}")
    if primary is not None and primary_data:
        raise ValueError("primary and primary_data exclude each other: a cache that exists has its data")
    if mode is CacheMode.NONE and (primary is not None or primary_data):
        raise ValueError("mode none uses no cache, so there is nothing to do with a primary")
    used_by_all = mode in (CacheMode.SHARED, CacheMode.TWO_LEVEL)
    if used_by_all and primary is not None and primary.externally_synchronized:
        raise ValueError(f"mode {mode} needs a primary that is internally synchronized")
    policy = merge or (ROLLING if mode is CacheMode.TWO_LEVEL else BARRIER)
    if policy.rolling and mode in (CacheMode.SHARED, CacheMode.NONE):
        raise ValueError(f"mode {mode} has no worker caches, so there is nothing to merge on the way")

    run = _Run(
        device=device,
        prepared=prepared,
        worker_count=count,
        mode=mode,
        seed=seed_workers_from_primary,
        keep=keep,
        primary=primary,
        policy=policy,
        on_merged=on_merged,
        token=trio.lowlevel.current_trio_token(),
    )
    run.settle(skipped or {}, prepared.unusable)
    exchange = Exchange(scheduler(run.job_graph(), count))
    run.take_unassignable(exchange)
    limiter = trio.CapacityLimiter(count)
    reported = False
    try:
        await trio.to_thread.run_sync(run.open_caches, primary_data, limiter=limiter)
        await _work(run, exchange, limiter, stop, on_progress)
        run.take_unassignable(exchange)
        if on_progress is not None:
            on_progress(progress_of(run.table, in_flight=0, started_ns=run.started_ns, now_ns=run.barrier_ns))
        reported = True
    finally:
        # The calls in flight have returned, for no thread is ever abandoned: nothing uses a cache now.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(run.close, reported, count_duplicate_pipeline_keys, limiter=limiter)
    return run.report(exchange)


async def _work(
    run: _Run,
    exchange: Exchange,
    limiter: trio.CapacityLimiter,
    stop: trio.Event | None,
    on_progress: ProgressCallback | None,
) -> None:
    """Run the workers up to the barrier."""
    run.workers = [
        Worker(number, run.creator_of(number), exchange, run.table) for number in range(run.worker_count)
    ]
    errors: list[Exception] = []
    try:
        async with trio.open_nursery() as beside:
            run.started_ns = time.perf_counter_ns()
            async with trio.open_nursery() as nursery:
                for worker in run.workers:
                    nursery.start_soon(worker.run, limiter, name=f"worker {worker.number}")
                if run.rotation is not None and run.policy.rolling:
                    beside.start_soon(run.rotation.serve)
                if stop is not None:
                    beside.start_soon(_watch, stop, exchange)
                if on_progress is not None:
                    beside.start_soon(_tell, run, exchange, on_progress)
            run.barrier_ns = time.perf_counter_ns()
            beside.cancel_scope.cancel()
    except ExceptionGroup as group:
        errors = _leaves(group)
    if errors:
        # A bug shows in every worker at once: the first error is the one to raise, as itself.
        for other in errors[1:]:
            errors[0].add_note(f"beside it, another worker raised {other!r}")
        raise errors[0]


def _leaves(group: ExceptionGroup[Exception]) -> list[Exception]:
    """The exceptions of nested groups."""
    return [
        leaf
        for each in group.exceptions
        for leaf in (_leaves(each) if isinstance(each, ExceptionGroup) else [each])
    ]


async def _watch(stop: trio.Event, exchange: Exchange) -> None:
    await stop.wait()
    exchange.cancel()


async def _tell(run: _Run, exchange: Exchange, on_progress: ProgressCallback) -> None:
    """Report progress; the clock is the machine's, so that a mock clock does not flood the callback."""
    last = None
    while True:
        now = time.perf_counter_ns()
        if last is None or now - last >= INTERVAL_S * 1e9 * 0.9:
            last = now
            on_progress(
                progress_of(run.table, in_flight=exchange.in_flight, started_ns=run.started_ns, now_ns=now)
            )
        await trio.sleep(INTERVAL_S)


@define(eq=False)
class _Run:
    """State of one run. Its blocking methods are called in a thread, one at a time, workers apart."""

    device: Device
    prepared: PreparedPipelines
    worker_count: int
    mode: CacheMode
    seed: bool
    keep: bool
    primary: PipelineCache | None
    policy: MergePolicy
    on_merged: MergedHook | None
    token: trio.lowlevel.TrioToken
    rotation: Rotation | None = None
    seed_data: bytes = b""
    own_primary: PipelineCache | None = None
    worker_caches: list[PipelineCache] = field(factory=list)
    table: OutcomeTable = field(init=False)
    workers: list[Worker] = field(factory=list)
    notes: list[str] = field(factory=list)
    flagged: bool = False
    seed_bytes: int = 0
    primary_bytes_before: int = 0
    open_ns: int = 0
    started_ns: int = 0
    barrier_ns: int = 0
    read_back_ns: int = 0
    merged: Merged | None = None
    duplicate_job_keys: Duplicates = Duplicates(0, 0)  # noqa: RUF009 - frozen
    duplicate_pipeline_keys: Duplicates | None = None
    cache_data: bytes | None = None

    def __attrs_post_init__(self) -> None:
        self.table = OutcomeTable(self.prepared.image, keep=self.keep)

    # --- before the workers

    def settle(self, skipped: Mapping[int, str], unusable: Mapping[int, str]) -> None:
        """Give the outcomes that are known before anything runs."""
        self.table.settle(OutcomeStatus.FAILED, unusable)
        self.table.settle(OutcomeStatus.SKIPPED, skipped)

    def job_graph(self) -> JobGraph:
        """The set as the scheduler sees it."""
        image = self.prepared.image
        return JobGraph(
            image.kinds, image.library_slot_start, image.library_slot_pipeline, dict(self.table.reasons)
        )

    def take_unassignable(self, exchange: Exchange) -> None:
        """Give what the scheduler will not assign its outcome: that of the library which is to blame."""
        image = self.prepared.image
        failed, skip = status_code(OutcomeStatus.FAILED), status_code(OutcomeStatus.SKIPPED)
        at_start = not self.workers
        # A library has a smaller number than what links it, so its outcome is there first.
        for index, reason in sorted(exchange.unassignable.items()):
            if index in self.table.reasons:
                continue
            libraries = [int(self.table.status[each]) for each in image.libraries_of(index)]
            blame = skip if skip in libraries and failed not in libraries else failed
            status = OutcomeStatus.SKIPPED if blame == skip else OutcomeStatus.FAILED
            self.table.settle(status, {index: reason})
        if at_start:
            self.table.settled_at_start = len(self.table.reasons)

    def open_caches(self, primary_data: bytes) -> None:
        """Make the caches. Blocking."""
        if self.mode is CacheMode.NONE:
            return
        started = time.perf_counter_ns()
        if self.primary is None:
            self.primary = self.own_primary = self._create_primary(primary_data)
        self.primary_bytes_before = size_of(self.device, self.primary, self.notes)
        if self.mode is not CacheMode.SHARED:
            self._open_worker_caches(self.primary)
            self._begin_rotation(self.primary)
        self.open_ns = time.perf_counter_ns() - started

    def _open_worker_caches(self, primary: PipelineCache) -> None:
        if self.mode is CacheMode.TWO_LEVEL and not self.device.features.compile_required:
            self.notes.append(
                "the device cannot forbid compiling (FAIL_ON_PIPELINE_COMPILE_REQUIRED), so nothing can be looked up "
                "in the primary: worker caches start with what it holds, as in mode per-worker"
            )
        flagged = self.flagged = self.mode is not CacheMode.PER_WORKER_INTERNAL
        if flagged and not self.device.features.externally_synchronized_caches:
            flagged = self.flagged = False
            self.notes.append(
                "the device has no externally synchronized caches (pipelineCreationCacheControl): worker caches "
                "are internally synchronized, as in mode per-worker-internal"
            )
        if self.seed and not self.looks_up and self.primary_bytes_before > EMPTY_BYTES:
            self.seed_data = self._read(primary) or b""
        self.seed_bytes = len(self.seed_data)
        for number in range(self.worker_count):
            self.worker_caches.append(self._create_cache(self.seed_data, f"worker {number}", flagged=flagged))

    @property
    def looks_up(self) -> bool:
        """Whether workers look pipelines up in the primary before they compile."""
        return self.mode is CacheMode.TWO_LEVEL and self.device.features.compile_required

    def _begin_rotation(self, primary: PipelineCache) -> None:
        """Hand the worker caches to a rotation, where they may change during the run."""
        if not (self.policy.rolling or self.looks_up):
            return
        self.rotation = Rotation(
            self.device,
            primary,
            self.policy,
            self.worker_caches,
            self._make_fresh,
            self.token,
            seed_bytes=self.seed_bytes,
            primary_bytes=self.primary_bytes_before,
            looked_up=self.looks_up,
            on_merged=self.on_merged,
        )
        self.worker_caches = []

    def _make_fresh(self, name: str) -> PipelineCache:
        return self.device.create_pipeline_cache(
            self.seed_data, externally_synchronized=self.flagged, name=name
        )

    def _create_primary(self, data: bytes) -> PipelineCache:
        if self.looks_up and self.device.features.internally_synchronized_merge:
            try:
                return self.device.create_pipeline_cache(
                    data, internally_synchronized_merge=True, name="primary"
                )
            except DriverError as refused:
                self.notes.append(
                    f"primary: the driver refused the data, or to synchronize merges itself ({refused})"
                )
        return self._create_cache(data, "primary", flagged=False)

    def _create_cache(self, data: bytes, name: str, *, flagged: bool) -> PipelineCache:
        try:
            return self.device.create_pipeline_cache(data, externally_synchronized=flagged, name=name)
        except DriverError as refused:
            if not data:
                raise
            self.notes.append(f"{name}: the driver refused the initial data ({refused}); it starts empty")
            return self.device.create_pipeline_cache(externally_synchronized=flagged, name=name)

    def _read(self, cache: PipelineCache) -> bytes | None:
        try:
            return self.device.pipeline_cache_data(cache).data
        except DriverError as refused:
            self.notes.append(f"{cache.name} could not be read back: {refused}")
            return None

    def creator_of(self, number: int) -> Creator:
        """How a worker creates its batches."""
        rotation, primary = self.rotation, self.primary
        if rotation is None or primary is None:
            cache = self.worker_caches[number] if self.worker_caches else primary
            return OneCache(self.device, self.prepared, cache, keep=self.keep)
        if self.looks_up:
            return TwoLevels(self.device, self.prepared, rotation, number, primary, keep=self.keep)
        return RotatingCache(self.device, self.prepared, rotation, number, keep=self.keep)

    # --- after the barrier

    def close(self, reported: bool, ask_pipeline_keys: bool) -> None:
        """Merge, read back where there will be a report, and destroy what the run made. Blocking."""
        try:
            if self.primary is not None and self.workers:
                self._merge(self.primary)
            for worker in self.workers:
                self.table.attribute(worker.number, worker.calls, worker.durations_ns)
            if reported:
                self._count_duplicates(ask_pipeline_keys)
                if self.own_primary is not None:
                    started = time.perf_counter_ns()
                    self.cache_data = self._read(self.own_primary)
                    self.read_back_ns = time.perf_counter_ns() - started
        except BaseException:
            reported = False
            raise
        finally:
            if self.rotation is not None:
                self.rotation.destroy()
            for cache in self.worker_caches:
                self.device.destroy_pipeline_cache(cache)
            if self.own_primary is not None:
                self.device.destroy_pipeline_cache(self.own_primary)
            if self.table.handles is not None and not reported:
                self.device.destroy_pipelines(self.table.handles)

    def _merge(self, primary: PipelineCache) -> None:
        if self.rotation is not None:
            self.rotation.finish()
        caches = self.worker_caches if self.rotation is None else self.rotation.current_caches()
        merged = merge_into(self.device, primary, caches, seed_bytes=self.seed_bytes)
        if not caches:
            merged = Merged((), self.primary_bytes_before, merged.after, 0, merged.warnings)
        self.merged = merged

    def _count_duplicates(self, ask_pipeline_keys: bool) -> None:
        table, image = self.table, self.prepared.image
        compiled = np.flatnonzero(table.status == status_code(OutcomeStatus.COMPILED)).astype(np.int32)
        workers, driver_ns = table.worker[compiled], table.driver_ns[compiled]
        self.duplicate_job_keys = duplicates(image.keys[compiled], workers, driver_ns)
        if ask_pipeline_keys and self.device.features.pipeline_binaries:
            self.duplicate_pipeline_keys = duplicate_pipeline_keys(
                self.device, self.prepared, compiled, workers, driver_ns
            )

    def report(self, exchange: Exchange) -> RunReport:
        """The report of a run that came to its end."""
        table, image = self.table, self.prepared.image
        calls = tuple(call for worker in self.workers for call in worker.calls)
        barrier = Barrier(tuple(worker.arrived_ns for worker in self.workers), self.barrier_ns)
        merge = self._merge_report(barrier)
        if exchange.device_lost:
            self.notes.append(f"the device was lost, so nothing more was tried: {exchange.device_lost}")
        if calls and not self.device.features.creation_feedback:
            self.notes.append(
                "the device gives no creation feedback: hits are not known and count as compiled, and driver time "
                "is the wall time of the calls"
            )
        if not all(worker.knows_run_delay for worker in self.workers):
            self.notes.append("time on the run queue is not known here: blocked time includes it")
        return RunReport(
            mode=self.mode,
            workers=self.worker_count,
            keys=image.keys,
            kinds=image.kinds,
            status=table.status,
            driver_ns=table.driver_ns,
            worker=table.worker,
            skipped=problems(image, table, OutcomeStatus.SKIPPED),
            failed=problems(image, table, OutcomeStatus.FAILED),
            calls=calls,
            barrier=barrier,
            merge=merge,
            timing=timing_of(
                calls,
                workers=self.worker_count,
                open_ns=self.open_ns,
                wall_ns=self.barrier_ns - self.started_ns,
                merge_ns=merge.merge_ns if merge is not None else 0,
                read_back_ns=self.read_back_ns,
            ),
            stopped=exchange.cancelled,
            notes=tuple(self.notes),
            cache_data=self.cache_data,
            handles=table.handles,
        )

    def _merge_report(self, barrier: Barrier) -> MergeReport | None:
        merged = self.merged
        if merged is None:
            return None
        warnings = list(merged.warnings)
        rolling: RollingReport | None = None
        folded: tuple[int, ...] = ()
        if self.rotation is not None:
            rolling = self.rotation.report()
            warnings += self.rotation.few_warnings()
            # Between its first and its last merge the primary was one thing; the figures below are those of all.
            folded = self.rotation.folded_bytes()
            merged = evolve(merged, before=self.primary_bytes_before)
        compiled = self.table.counts()[OutcomeStatus.COMPILED]
        if compiled and max((merged.after, *merged.source_bytes, *folded)) <= EMPTY_BYTES:
            warnings.append(
                f"the driver's cache keeps nothing: {compiled} pipelines were compiled, and all caches hold only "
                "their header; saving it will not make the next run faster"
            )
        return MergeReport(
            source_bytes=merged.source_bytes,
            seed_bytes=self.seed_bytes,
            primary_bytes_before=merged.before,
            primary_bytes_after=merged.after,
            pruned_bytes=pruned_bytes(merged, folded) if merged.source_bytes else 0,
            duplicate_job_keys=self.duplicate_job_keys,
            duplicate_pipeline_keys=self.duplicate_pipeline_keys,
            barrier_wait_ns=barrier.waits_ns,
            merge_ns=merged.merge_ns,
            warnings=tuple(warnings),
            rolling=rolling,
            started_ns=merged.started_ns,
        )
