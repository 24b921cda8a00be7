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
from attrs import define, field

from orchestrator.devices.device import CacheMode, Device, PipelineCache, PreparedPipelines
from orchestrator.run.exchange import Exchange
from orchestrator.run.merge import Duplicates, duplicate_pipeline_keys, duplicates
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
from orchestrator.run.rolling import BARRIER, ROLLING, MergedHook, MergePolicy
from orchestrator.run.run_caches import RunCaches
from orchestrator.run.worker import Worker
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

    caches = RunCaches(
        device=device,
        worker_count=count,
        mode=mode,
        policy=policy,
        seed=seed_workers_from_primary,
        primary=primary,
        on_merged=on_merged,
        token=trio.lowlevel.current_trio_token(),
    )
    run = _Run(device, prepared, count, keep, caches)
    run.settle(skipped or {}, prepared.unusable)
    exchange = Exchange(scheduler(run.job_graph(), count))
    run.take_unassignable(exchange)
    limiter = trio.CapacityLimiter(count)
    reported = False
    try:
        await trio.to_thread.run_sync(caches.open, primary_data, limiter=limiter)
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
        Worker(number, run.caches.creator_of(number, run.prepared, keep=run.keep), exchange, run.table)
        for number in range(run.worker_count)
    ]
    errors: list[Exception] = []
    try:
        async with trio.open_nursery() as beside:
            run.started_ns = time.perf_counter_ns()
            async with trio.open_nursery() as nursery:
                for worker in run.workers:
                    nursery.start_soon(worker.run, limiter, name=f"worker {worker.number}")
                if run.caches.rotation is not None and run.caches.policy.rolling:
                    beside.start_soon(run.caches.rotation.serve)
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
    keep: bool
    caches: RunCaches
    table: OutcomeTable = field(init=False)
    workers: list[Worker] = field(factory=list)
    notes: list[str] = field(factory=list)
    started_ns: int = 0
    barrier_ns: int = 0
    duplicate_job_keys: Duplicates = Duplicates(0, 0)  # noqa: RUF009 - frozen
    duplicate_pipeline_keys: Duplicates | None = None

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

    # --- after the barrier

    def close(self, reported: bool, ask_pipeline_keys: bool) -> None:
        """Merge, read back where there will be a report, and destroy what the run made. Blocking."""
        try:
            if self.workers:
                self.caches.merge()
            for worker in self.workers:
                self.table.attribute(worker.number, worker.calls, worker.durations_ns)
            if reported:
                self._count_duplicates(ask_pipeline_keys)
                self.caches.read_back()
        except BaseException:
            reported = False
            raise
        finally:
            self.caches.destroy()
            if self.table.handles is not None and not reported:
                self.device.destroy_pipelines(self.table.handles)

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
        caches = self.caches
        merge = caches.merge_report(
            compiled=table.counts()[OutcomeStatus.COMPILED],
            barrier_waits_ns=barrier.waits_ns,
            duplicate_job_keys=self.duplicate_job_keys,
            duplicate_pipeline_keys=self.duplicate_pipeline_keys,
        )
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
            mode=caches.mode,
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
                open_ns=caches.open_ns,
                wall_ns=self.barrier_ns - self.started_ns,
                merge_ns=merge.merge_ns if merge is not None else 0,
                read_back_ns=caches.read_back_ns,
            ),
            stopped=exchange.cancelled,
            notes=(*caches.notes, *self.notes),
            cache_data=caches.data,
            handles=table.handles,
        )
