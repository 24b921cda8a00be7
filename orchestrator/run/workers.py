"""The workers of a run, from opened caches to the report.

    Run.execute: open caches ──> worker 0 ─┐
                                 worker 1 ─┼─> barrier ─> merge ─> read back ─> destroy ─> report
                                 ...      ─┘

A worker's loop is in its thread, because a hop from trio into a thread and back costs as much as a whole warm
batch of 64. trio is entered again only to wait.

Guarantees: one worker uses a worker cache until the barrier, and the merge afterwards; nobody else touches
the primary (the hook of a rolling merge may read it). A driver call is never abandoned: cancelled, the
run hands out no further batch, waits for the calls in flight, merges and destroys, then raises
trio.Cancelled. A batch that fails as a whole is tried again one by one. A pipeline or a call that fails
is an outcome; misuse, cancellation and bugs are raised. However the run ends, worker caches, a primary of
its own, and kept pipelines without a report are destroyed.
Assumptions: one run at a time uses a PreparedPipelines and a primary. Driver calls release the GIL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import trio

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    NOT_READY,
    Device,
    PipelineSource,
    PreparedPipelines,
)
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import (
    DeviceError,
    DriverError,
    ExternalSynchronizationError,
    OrchestratorError,
    expect,
)
from orchestrator.run.accounting import CallLog, ThreadMeter, driver_time_ns
from orchestrator.run.caches import Creator, MergedHook, RunCaches
from orchestrator.run.exchange import BatchResult, Exchange
from orchestrator.run.first_error import first_error
from orchestrator.run.options import BARRIER, ROLLING, RunOptions, available_workers
from orchestrator.run.records import (
    Barrier,
    Calls,
    OutcomeRecorder,
    OutcomeStatus,
    OutcomeTable,
    RunReport,
    Timing,
    status_code,
)
from orchestrator.run.statistics import StatisticsSource
from orchestrator.schedule.jobs import Int32s
from orchestrator.schedule.scheduler import Assignment, Done, Scheduler, Wait

if TYPE_CHECKING:
    from orchestrator.run.identification import SpirvSupply


class Worker:
    """One worker of a run."""

    def __init__(self, number: int, creator: Creator, exchange: Exchange, recorder: OutcomeRecorder) -> None:
        self.number = number
        self._creator = creator
        self._exchange = exchange
        self._recorder = recorder
        self.log = CallLog(number)
        self.arrived_ns = 0
        self.knows_run_delay = True

    async def run(self, limiter: trio.CapacityLimiter) -> None:
        """Work until nothing is left.

        Raises:
            trio.Cancelled: Between two batches.
            ExternalSynchronizationError: The caller uses the cache at the same time.
        """
        while True:
            answer, seen = await trio.to_thread.run_sync(self._stint, limiter=limiter)
            if not isinstance(answer, Wait):
                return
            with trio.move_on_after(self._creator.due_in_s()) as waited:
                await self._exchange.wait_changed(seen)
            if waited.cancelled_caught:
                await trio.to_thread.run_sync(self._creator.between_batches, limiter=limiter)

    def _stint(self) -> tuple[Wait | Done, int]:
        ended: Assignment | None = None
        result: BatchResult | None = None
        with ThreadMeter() as meter:
            while True:
                try:
                    trio.from_thread.check_cancelled()
                except trio.Cancelled:
                    self._exchange.cancel()
                    self._exchange.swap(self.number, ended, result)  # the batch ended, no other begins
                    raise
                answer, seen = self._exchange.swap(self.number, ended, result)
                if ended is not None and not (isinstance(answer, Assignment) and answer.follows):
                    self._creator.between_batches()
                if not isinstance(answer, Assignment):
                    break
                ended, result = answer, self._create(answer.indices, meter)
            self.knows_run_delay &= meter.has_run_delay
        self.arrived_ns = time.perf_counter_ns()
        return answer, seen

    def _goes_on(self) -> bool:
        try:
            trio.from_thread.check_cancelled()
        except trio.Cancelled:  # it is raised again where the batch ends
            self._exchange.cancel()
        return not self._exchange.cancelled

    def _create(self, indices: Int32s, meter: ThreadMeter) -> BatchResult:
        before = meter.begin()
        try:
            batch = self._creator.create(indices)
        except ExternalSynchronizationError:
            raise  # a bug of whoever uses the cache beside the run, not a property of the pipelines
        except OrchestratorError as error:
            after = meter.end()
            self.log.note(before, after, None, indices)
            return self._isolate(indices, error, meter)
        after = meter.end()
        if (batch.results == ERROR_DEVICE_LOST).any():
            self._exchange.lose_device("a pipeline's result was VK_ERROR_DEVICE_LOST")
        if self._exchange.cancelled and (batch.results == NOT_READY).any():  # what follows a lost device
            there = np.flatnonzero(batch.results != NOT_READY)
            indices, batch = indices[there], batch.only(there)
        self.log.note(before, after, batch, indices)
        elapsed_ns = after.wall_ns - before.wall_ns
        if not batch.all_hits:  # without what this thread waited for the GIL: no job is longer for that
            times_ns = driver_time_ns(batch.feedback_flags, batch.durations_ns, elapsed_ns)
            elapsed_ns = min(elapsed_ns, sum(times_ns.tolist()))
        missed = self._creator.missed(indices, batch)
        if missed is None:
            return BatchResult(*self._recorder.record(indices, batch), elapsed_ns)
        recorded = self._recorder.record(indices[~missed], batch.only(np.flatnonzero(~missed)))
        return BatchResult(*recorded, elapsed_ns, indices[missed])

    def _isolate(self, indices: Int32s, error: OrchestratorError, meter: ThreadMeter) -> BatchResult:
        reason = str(error)
        if isinstance(error, DriverError) and error.result == ERROR_DEVICE_LOST:
            self._exchange.lose_device(reason)
        elif len(indices) > 1:
            results: list[BatchResult] = []
            for place in range(len(indices)):
                if lost := self._exchange.device_lost:
                    results.append(BatchResult(self._recorder.record_failed_call(indices[place:], lost)))
                if not self._goes_on():
                    break
                results.append(self._create(indices[place : place + 1], meter))
            return _together(results)
        return BatchResult(self._recorder.record_failed_call(indices, reason))


def _together(results: Sequence[BatchResult]) -> BatchResult:
    missed = [each.missed for each in results if each.missed is not None]
    return BatchResult(
        {index: reason for each in results for index, reason in each.reasons.items()},
        sum(each.hits for each in results),
        sum(each.elapsed_ns for each in results),
        np.concatenate(missed) if missed else None,
    )


class Run:
    """State of one run. Its blocking methods are called in a thread, one at a time, workers apart.

    The arguments are those of `run_pipelines`, which `checked_run` has checked.
    """

    def __init__(
        self,
        device: Device,
        prepared: PreparedPipelines,
        options: RunOptions,
        primary: PipelineSource | bytes | None,
        scheduler: Scheduler,
        on_merged: MergedHook | None,
    ) -> None:
        self.device = device
        self.exchange = Exchange(scheduler)
        self.worker_count = scheduler.workers
        self.supply: SpirvSupply | None = None
        self._prepared = prepared
        self._recorder = OutcomeRecorder(
            prepared.image,
            keep=options.keep,
            expect_hits=options.expect_hits,
            has_cache=options.mode is not CacheMode.NONE,
        )
        self._taking = threading.Lock()
        self._workers: list[Worker] = []
        self._calls: list[Calls] = []
        self._started_ns = self._barrier_ns = 0
        self._primary_data = primary if isinstance(primary, bytes) else b""
        self._caches = RunCaches(
            device=device,
            worker_count=scheduler.workers,
            mode=options.mode,
            policy=options.merge or (ROLLING if options.mode is CacheMode.TWO_LEVEL else BARRIER),
            keep=options.keep,
            expect_hits=options.expect_hits,
            primary=None if isinstance(primary, bytes) else primary,
            on_merged=on_merged,
            token=trio.lowlevel.current_trio_token(),
        )
        self.table.settle(OutcomeStatus.FAILED, prepared.unusable)
        scheduler.tells_hits = device.features.creation_feedback
        scheduler.exclude(self.table.reasons)
        if prepared.identified is not None:
            from orchestrator.run.identification import SpirvSupply  # most runs have all code

            self.supply = SpirvSupply(device, prepared, self.exchange, self.table.settle)
            self.exchange.on_missed, self.exchange.on_steered = self.supply.take, self.supply.reorder

    @property
    def table(self) -> OutcomeTable:
        """The outcomes."""
        return self._recorder.table

    # --- beside the workers

    def take_inferred(self, lost: Mapping[int, str]) -> None:
        """Set outcomes that follow from those of others.

        `lost` are jobs that will not be assigned, with the reason: they fare as the library to blame.
        """
        failed, skipped, not_run = map(
            status_code, (OutcomeStatus.FAILED, OutcomeStatus.SKIPPED, OutcomeStatus.NOT_RUN)
        )
        status = self.table.status
        # A library has a smaller number than what links it, so its outcome is there first.
        for index, reason in sorted(lost.items()):
            # By the status, which is set last: another thread may be here, too, and counts it afterwards.
            if status[index] == not_run:
                libraries = status[list(self._prepared.image.libraries_of(index))].tolist()
                is_skipped = skipped in libraries and failed not in libraries
                outcome = OutcomeStatus.SKIPPED if is_skipped else OutcomeStatus.FAILED
                self.table.settle(outcome, {index: reason})

    def take_handles(self, settled: Int32s) -> npt.NDArray[np.uint64]:
        """Take over kept pipelines that no worker has any more. Any thread: each once."""
        handles = self.table.handles
        if handles is None:
            return np.zeros(len(settled), np.uint64)
        with self._taking:
            taken = handles[settled]
            # No other: one that was cancelled may have been submitted again, and be recorded just now.
            handles[settled[taken != 0]] = 0
        return taken

    # --- from the caches to the report

    async def execute(
        self,
        beside: Sequence[Callable[[], Awaitable[None]]],
        *,
        on_started: Callable[[], None],
        on_barrier: Callable[[], None],
    ) -> RunReport:
        """Drive the run to its end.

        Tasks `beside` the workers are cancelled at the barrier. `on_started` is called when the caches are
        open, before the first batch, `on_barrier` when the last worker has ended.

        Raises:
            DriverError: A cache could not be created.
            ExternalSynchronizationError: The caller used one of the caches during the run.
            trio.Cancelled: The surrounding scope was cancelled; what was compiled has been merged.
        """
        caches, limiter, reported = self._caches, trio.CapacityLimiter(self.worker_count), False
        try:
            await trio.to_thread.run_sync(caches.open, self._primary_data, self._prepared, limiter=limiter)
            # In mode BINARIES a hit is what was made from stored ones.
            is_told = caches.mode is CacheMode.BINARIES
            self._recorder.believes_hits = is_told or caches.primary_is_filled
            on_started()
            await self._work(limiter, beside)
            self.take_inferred(self.exchange.scheduler.unassignable)
            on_barrier()
            reported = True
        finally:
            # The calls in flight have returned, for no thread is ever abandoned: nothing uses a cache now.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._close, reported, limiter=limiter)
        return self._report()

    async def _work(
        self, limiter: trio.CapacityLimiter, beside: Sequence[Callable[[], Awaitable[None]]]
    ) -> None:
        self._workers = [
            Worker(number, creator, self.exchange, self._recorder)
            for number, creator in enumerate(self._caches.creators)
        ]
        with first_error():
            async with trio.open_nursery() as others:
                self._started_ns = time.perf_counter_ns()
                for each in beside:
                    others.start_soon(each)
                async with trio.open_nursery() as merger:
                    if self.supply is not None:
                        merger.start_soon(self.supply.serve)
                    if self._caches.serves:
                        merger.start_soon(self._caches.serve)
                    async with trio.open_nursery() as nursery:
                        for worker in self._workers:
                            nursery.start_soon(worker.run, limiter, name=f"worker {worker.number}")
                    self._barrier_ns = time.perf_counter_ns()
                    merger.cancel_scope.cancel()
                await self._keep_compiled(limiter)
                others.cancel_scope.cancel()

    async def _keep_compiled(self, limiter: trio.CapacityLimiter) -> None:
        """Merge, and compile into one cache what the driver did not merge."""
        caches = self._caches
        await trio.to_thread.run_sync(self._merge, limiter=limiter)
        if caches.unmerged:
            is_compiled = self.table.status == status_code(OutcomeStatus.COMPILED)
            compiled = np.flatnonzero(is_compiled & (self.table.worker >= 0)).astype(np.int32)
            await trio.to_thread.run_sync(caches.compile_again, compiled, self._is_stopped, limiter=limiter)

    def _is_stopped(self) -> bool:
        trio.from_thread.check_cancelled()
        return self.exchange.cancelled

    def _merge(self) -> None:
        """Merge, once, and work out what calls cost. Blocking."""
        if self._workers and not self._calls:
            self._caches.merge()
            for worker in self._workers:
                calls, durations_ns = worker.log.work_out()
                self._recorder.attribute(calls, durations_ns)
                self._calls.append(calls)

    def _close(self, reported: bool) -> None:
        """Merge, read back where there will be a report, and destroy what the run made. Blocking."""
        try:
            self._merge()
            if reported:
                self._caches.read_back()
        except BaseException:
            reported = False
            raise
        finally:
            self._caches.destroy()
            if not reported:
                self.device.destroy_pipelines(self.take_handles(np.arange(len(self.table), dtype=np.int32)))

    def _report(self) -> RunReport:
        table, caches, exchange = self.table, self._caches, self.exchange
        calls = Calls.joined(self._calls)
        barrier = Barrier(tuple(worker.arrived_ns for worker in self._workers), self._barrier_ns)
        merge = caches.merge_report(table.counts()[OutcomeStatus.COMPILED])
        binaries, identifiers, supply_notes = caches.binaries(), None, list[str]()
        if self.supply is not None:
            identifiers, supply_notes = self.supply.record(table), self.supply.notes
        return RunReport(
            mode=caches.mode,
            workers=self.worker_count,
            pipelines=table,
            calls=calls,
            barrier=barrier,
            merge=merge,
            timing=Timing.of(
                calls,
                wall_ns=self._barrier_ns - self._started_ns,
                make_caches_ns=caches.open_ns,
                merge_ns=merge.merge_ns if merge is not None else 0,
                read_back_ns=caches.read_back_ns,
            ),
            stopped=exchange.cancelled or exchange.out_of_time,
            device_lost=bool(exchange.device_lost),
            notes=(*caches.notes, *supply_notes, *self._notes(len(calls))),
            cache_data=caches.data,
            binaries=binaries,
            identifiers=identifiers,
        )

    def _notes(self, calls: int) -> list[str]:
        exchange = self.exchange
        notes = {
            f"the device was lost, so nothing more was tried: {exchange.device_lost}": exchange.device_lost,
            "the time limit was reached: run again, with the same cache, for what remains": (
                exchange.out_of_time and not exchange.cancelled
            ),
            f"creation feedback says that {self._recorder.disbelieved} pipelines came from a cache that held "
            "none: they count as compiled": self._recorder.disbelieved,
            "the device gives no creation feedback: hits are not known and count as compiled, and driver "
            "time is the wall time of the calls": calls and not self.device.features.creation_feedback,
            "time on the run queue is not known here: blocked time includes it": not all(
                worker.knows_run_delay for worker in self._workers
            ),
        }
        return [note for note, holds in notes.items() if holds]


def lacking_code(prepared: PreparedPipelines) -> npt.NDArray[np.bool_] | None:
    """Pipelines without their code, shape (n,), which are tried without it first; None for none."""
    return None if prepared.identified is None else prepared.identified.lacking


def checked_run(
    device: Device, prepared: PreparedPipelines, options: RunOptions, primary: PipelineSource | bytes | None
) -> int:
    """Check the arguments of `run_pipelines`, and raise what it says; returns the number of workers."""
    expect(device, Device, "a device, such as open_device gives")
    expect(prepared, PreparedPipelines, "what device.prepare(image) gave")
    expect(options, RunOptions, "RunOptions")
    expect(primary, (PipelineSource, bytes, type(None)), "a cache, or its data as bytes, or None")
    mode = options.mode
    if options.expect_hits and not device.features.compile_required:
        raise DeviceError(
            f"{device.identity.device_name} cannot forbid compiling, so nothing shows what was found: the "
            "driver lacks pipelineCreationCacheControl, or its keys depend on it"
        )
    if mode is CacheMode.NONE and not (primary in (None, b"") or isinstance(primary, StatisticsSource)):
        raise ValueError("mode none uses no cache, so there is nothing to do with a primary")
    if mode is CacheMode.BINARIES and isinstance(primary, bytes) and primary:
        raise ValueError("mode binaries begins with no data of a pipeline cache")
    if isinstance(primary, PipelineSource):
        if (mode is CacheMode.BINARIES) != isinstance(primary, BinarySource):
            raise ValueError(f"mode {mode} cannot use {primary.name!r} as its primary: it is of another kind")
        if mode in (CacheMode.SHARED, CacheMode.TWO_LEVEL) and primary.externally_synchronized:
            raise ValueError(f"mode {mode} needs a primary that is internally synchronized")
    return available_workers() if options.workers is None else options.workers
