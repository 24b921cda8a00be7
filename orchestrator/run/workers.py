"""The workers of a run, from opened caches to the report.

    execute: open caches ──> worker 0 ─┐
                             worker 1 ─┼─> barrier ─> merge ─> read back ─> destroy ─> report
                             ...      ─┘

A worker's loop is in its thread, because a hop from trio into a thread and back costs as much as a whole warm
batch of 64; asking the schedule under a lock costs microseconds. trio is entered again only to wait.

Guarantees:
- During the run its caches belong to it: one worker uses a worker cache until the barrier, and the merge
  afterwards; nobody else touches the primary (the hook of a rolling merge may read it).
- A driver call is never abandoned. Cancelled, the run hands out no further batch, waits for the calls in
  flight, then merges and destroys; then trio.Cancelled goes on to the caller.
- A batch that fails as a whole is tried again one by one, so a good pipeline is not lost to a bad neighbour.
- However the run ends, it leaves nothing: worker caches, a primary of its own, and kept pipelines without a
  report are destroyed.
- A pipeline or a call that fails is an outcome. Misuse, cancellation and bugs are raised.
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
from attrs import define, field

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    NOT_READY,
    CacheMode,
    CallSplit,
    Device,
    PipelineSource,
    PreparedPipelines,
)
from orchestrator.errors import DriverError, ExternalSynchronizationError, OrchestratorError, unexpected
from orchestrator.run.accounting import USAGE, CallLog, ThreadMeter, driver_time_ns, usage_now
from orchestrator.run.caches import (
    Creator,
    MergedHook,
    PreparedParts,
    RunCaches,
    duplicate_pipeline_keys,
    duplicates,
)
from orchestrator.run.exchange import BatchResult, Exchange
from orchestrator.run.first_error import first_error
from orchestrator.run.options import BARRIER, ROLLING, RunOptions, available_workers, check_skipped
from orchestrator.run.records import (
    Barrier,
    Calls,
    Duplicates,
    OutcomeRecorder,
    OutcomeStatus,
    OutcomeTable,
    RunReport,
    Timing,
    status_code,
    timing_of,
)
from orchestrator.schedule import Assignment, Done, Wait
from orchestrator.schedule.jobs import Int32s

if TYPE_CHECKING:
    from orchestrator.run.supply import SpirvSupply


class Worker:
    """One worker of a run."""

    def __init__(self, number: int, creator: Creator, exchange: Exchange, recorder: OutcomeRecorder) -> None:
        self.number = number
        self._creator = creator
        self._exchange = exchange
        self._recorder = recorder
        self._split = CallSplit(exchange.scheduler.options.batch_limit, self._goes_on)
        self.log = CallLog(number)
        self.arrived_ns = 0
        self.waiting_ns = 0
        self.knows_run_delay = True
        self.usage = np.zeros(len(USAGE), np.int64)

    async def run(self, limiter: trio.CapacityLimiter) -> None:
        """Work until nothing is left.

        Raises:
            trio.Cancelled: Between two batches.
            ExternalSynchronizationError: The caller uses the cache at the same time.
        """
        while True:
            answer, seen = self._exchange.unneeded(self.number)
            if answer is None:
                answer, seen = await trio.to_thread.run_sync(
                    self._stint, abandon_on_cancel=False, limiter=limiter
                )
            if not isinstance(answer, Wait):
                self.arrived_ns = self.arrived_ns or time.perf_counter_ns()
                return
            began_ns = time.perf_counter_ns()
            with trio.move_on_after(self._creator.due_in_s()) as waited:
                await self._exchange.wait_changed(seen)
            if waited.cancelled_caught:
                self._creator.between_batches()
            self.waiting_ns += time.perf_counter_ns() - began_ns

    def _stint(self) -> tuple[Wait | Done, int]:
        ended: Assignment | None = None
        result: BatchResult | None = None
        began = usage_now()
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
        self.usage += usage_now() - began
        if isinstance(answer, Done):
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
            batch = self._creator.create(indices, self._split)
        except ExternalSynchronizationError:
            raise  # a bug of whoever uses the cache beside the run, not a property of the pipelines
        except OrchestratorError as error:
            after = meter.end()
            self.log.note(before, after, None, indices)
            return self._isolate(indices, error, meter)
        after = meter.end()
        if not batch.all_created and (batch.results == ERROR_DEVICE_LOST).any():
            self._exchange.lose_device("a pipeline's result was VK_ERROR_DEVICE_LOST")
        if self._exchange.cancelled and (batch.results == NOT_READY).any():
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
        there = np.flatnonzero(~missed)
        if not there.size:
            return BatchResult(elapsed_ns=elapsed_ns, missed=indices[missed])
        recorded = self._recorder.record(indices[there], batch.only(there))
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


@define(eq=False)
class Run:
    """State of one run. Its blocking methods are called in a thread, one at a time, workers apart."""

    device: Device
    prepared: PreparedPipelines
    worker_count: int
    keep: bool
    caches: RunCaches
    primary_data: bytes = b""
    ask_pipeline_keys: bool = False
    later: int = 0
    recorder: OutcomeRecorder = field(init=False)
    parts: PreparedParts = field(init=False)
    _shared: npt.NDArray[np.bool_] = field(init=False, repr=False)
    _taking: threading.Lock = field(factory=threading.Lock, init=False, repr=False)
    workers: list[Worker] = field(factory=list)
    calls: list[Calls] = field(factory=list)
    started_ns: int = 0
    barrier_ns: int = 0
    supply: SpirvSupply | None = None
    _duplicate_jobs: Duplicates = Duplicates(0, 0)  # noqa: RUF009 - frozen
    _duplicate_keys: Duplicates | None = None

    def __attrs_post_init__(self) -> None:
        self.parts = PreparedParts(self.prepared)
        self.recorder = OutcomeRecorder(
            self.prepared.image,
            keep=self.keep,
            later=self.later,
            libraries_of=self.parts.libraries_of,
        )
        self._shared = np.zeros(len(self.table) + self.later, np.bool_)

    @classmethod
    def of(
        cls,
        device: Device,
        prepared: PreparedPipelines,
        options: RunOptions,
        primary: PipelineSource | bytes | None,
        on_merged: MergedHook | None,
        *,
        later: int = 0,
    ) -> Run:
        """A run by the arguments of `run_pipelines`, with the outcomes that are known before anything runs.

        At most `later` pipelines may be added. Raises TypeError and ValueError as `run_pipelines` does.
        """
        _check_arguments(device, prepared, options, primary)
        mode = options.mode
        count = available_workers() if options.workers is None else options.workers
        caches = RunCaches(
            device=device,
            worker_count=count,
            mode=mode,
            policy=options.merge or (ROLLING if mode is CacheMode.TWO_LEVEL else BARRIER),
            seed=options.seed_workers_from_primary,
            primary=None if isinstance(primary, bytes) else primary,
            on_merged=on_merged,
            token=trio.lowlevel.current_trio_token(),
        )
        data = primary if isinstance(primary, bytes) else b""
        keys = options.count_duplicate_pipeline_keys
        run = cls(device, prepared, count, options.keep, caches, data, keys, later)
        run.table.settle(OutcomeStatus.FAILED, prepared.unusable)
        run.table.settle(OutcomeStatus.SKIPPED, options.skipped)
        return run

    @property
    def table(self) -> OutcomeTable:
        """The outcomes."""
        return self.recorder.table

    # --- before and beside the workers

    def add(self, prepared: PreparedPipelines, skipped: Mapping[int, str]) -> range:
        """Number the pipelines of another image behind the others; outcomes are known so far as at the start.

        Raises:
            TypeError: See `check_skipped`.
            ValueError: There is no room for so many, or see `check_skipped`.
        """
        count = len(prepared.image)
        check_skipped(skipped, count)
        if len(self.table) + count > len(self._shared):
            raise ValueError(f"a session holds at most {self.later} pipelines that come later")
        first = self.parts.add(prepared)
        self.recorder.extend(prepared.image)
        for status, reasons in ((OutcomeStatus.FAILED, prepared.unusable), (OutcomeStatus.SKIPPED, skipped)):
            self.table.settle(status, {first + index: reason for index, reason in reasons.items()})
        return range(first, first + count)

    def supply_through(self, exchange: Exchange) -> None:
        """Let code that turns out to be lacking be asked for."""
        if self.parts.identified or self.later:
            from orchestrator.run.supply import SpirvSupply

            def settle(status: OutcomeStatus, reasons: Mapping[int, str]) -> None:
                self.table.settle(status, reasons)  # another image replaces the table

            self.supply = SpirvSupply(self.device, self.parts, exchange, settle)
            exchange.on_missed, exchange.on_steered = self.supply.take, self.supply.reorder

    def take_unassignable(self, reasons: Mapping[int, str]) -> None:
        """Give jobs that will not be assigned their outcome: that of the library which is to blame."""
        failed, skipped = status_code(OutcomeStatus.FAILED), status_code(OutcomeStatus.SKIPPED)
        # A library has a smaller number than what links it, so its outcome is there first.
        for index, reason in sorted(reasons.items()):
            # By the status, which is set last: another thread may be here, too, and counts it afterwards.
            if self.table.status[index] != status_code(OutcomeStatus.NOT_RUN):
                continue
            libraries = self.table.status[self.parts.libraries_of(index)].tolist()
            is_skipped = skipped in libraries and failed not in libraries
            self.table.settle(OutcomeStatus.SKIPPED if is_skipped else OutcomeStatus.FAILED, {index: reason})

    def take_shared(self, followers: Int32s, leaders: Int32s) -> None:
        """Give pipelines that share the outcome of others that outcome."""
        new = self.table.status[followers] == status_code(OutcomeStatus.NOT_RUN)
        self.table.status[followers[new]] = self.table.status[leaders[new]]
        self._shared[followers[new]] = True

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

    # --- after the barrier

    def close(self, reported: bool) -> None:
        """Merge, read back where there will be a report, and destroy what the run made. Blocking."""
        try:
            if self.workers:
                self.caches.merge()
            for worker in self.workers:
                calls, durations_ns = worker.log.work_out()
                self.recorder.attribute(calls, durations_ns)
                self.calls.append(calls)
            if reported:
                self._count_duplicates()
                self.caches.read_back()
        except BaseException:
            reported = False
            raise
        finally:
            self.caches.destroy()
            if not reported:
                self.device.destroy_pipelines(self.take_handles(np.arange(len(self.table), dtype=np.int32)))

    def _count_duplicates(self) -> None:
        table = self.table
        compiled = np.flatnonzero(
            (table.status == status_code(OutcomeStatus.COMPILED)) & (table.worker >= 0)
        ).astype(np.int32)
        workers, driver_ns = table.worker[compiled], table.driver_ns[compiled]
        self._duplicate_jobs = duplicates(table.keys[compiled], workers, driver_ns)
        if self.ask_pipeline_keys and self.device.features.pipeline_binaries:
            known = compiled < len(self.prepared.image)  # of the first image: others have keys of their own
            self._duplicate_keys = duplicate_pipeline_keys(
                self.device, self.prepared, compiled[known], workers[known], driver_ns[known]
            )

    def report(self, exchange: Exchange) -> RunReport:
        """The report of a run that came to its end."""
        table, caches = self.table, self.caches
        calls = Calls.joined(self.calls)
        barrier = Barrier(tuple(worker.arrived_ns for worker in self.workers), self.barrier_ns)
        merge = caches.merge_report(
            compiled=table.counts()[OutcomeStatus.COMPILED],
            barrier_waits_ns=barrier.waits_ns,
            duplicate_job_keys=self._duplicate_jobs,
            duplicate_pipeline_keys=self._duplicate_keys,
        )
        binaries, identifiers, supply_notes = caches.binaries(), None, list[str]()
        if self.supply is not None and self.parts.identified:
            identifiers, supply_notes = self.supply.record(table), self.supply.notes
        merge_ns = merge.merge_ns if merge is not None else 0
        return RunReport(
            mode=caches.mode,
            workers=self.worker_count,
            pipelines=table,
            calls=calls,
            barrier=barrier,
            merge=merge,
            timing=self._timing(calls, sum(barrier.waits_ns), merge_ns),
            stopped=exchange.cancelled or exchange.out_of_time,
            device_lost=bool(exchange.device_lost),
            notes=(*caches.notes, *supply_notes, *self._notes(exchange, len(calls))),
            cache_data=caches.data,
            binaries=binaries,
            identifiers=identifiers,
        )

    def _timing(self, calls: Calls, ending_ns: int, merge_ns: int) -> Timing:
        usage = np.sum([np.zeros(len(USAGE), np.int64), *(worker.usage for worker in self.workers)], axis=0)
        return timing_of(
            calls,
            workers=self.worker_count,
            wall_ns=self.barrier_ns - self.started_ns,
            make_caches_ns=self.caches.open_ns,
            merge_ns=merge_ns,
            read_back_ns=self.caches.read_back_ns,
            waiting_ns=sum(worker.waiting_ns for worker in self.workers),
            ending_ns=ending_ns,
            blocked_without_faults_ns=sum(each.log.blocked_without_faults_ns for each in self.workers),
            **dict(zip(USAGE, usage.tolist(), strict=True)),
        )

    def _notes(self, exchange: Exchange, calls: int) -> list[str]:
        notes = []
        if exchange.device_lost:
            notes.append(f"the device was lost, so nothing more was tried: {exchange.device_lost}")
        if not exchange.cancelled and exchange.out_of_time:
            notes.append("the time limit was reached: run again, with the same cache, for what remains")
        if shared := int(np.count_nonzero(self._shared[: len(self.table)] & (self.table.worker < 0))):
            notes.append(
                f"{shared} pipelines are the same work as another one and share its outcome: "
                "they were not created"
            )
        if calls and not self.device.features.creation_feedback:
            notes.append(
                "the device gives no creation feedback: hits are not known and count as compiled, "
                "and driver time is the wall time of the calls"
            )
        if not all(worker.knows_run_delay for worker in self.workers):
            notes.append("time on the run queue is not known here: blocked time includes it")
        return notes


def lacking_code(prepared: PreparedPipelines) -> npt.NDArray[np.bool_] | None:
    """Pipelines without their code, shape (n,), which are tried without it first; None for none."""
    return None if prepared.identified is None else prepared.identified.lacking


def _check_arguments(
    device: object, prepared: object, options: object, primary: PipelineSource | bytes | None
) -> None:
    if not isinstance(device, Device):
        raise unexpected(device, "a device, such as open_device gives")
    if not isinstance(prepared, PreparedPipelines):
        raise unexpected(prepared, "what device.prepare(image) gave")
    if not isinstance(options, RunOptions):
        raise unexpected(options, "RunOptions")
    if not isinstance(primary, PipelineSource | bytes | None):
        raise unexpected(primary, "a cache, or its data as bytes, or None")
    check_skipped(options.skipped, len(prepared.image))
    mode = options.mode
    if mode is CacheMode.NONE and primary not in (None, b""):
        raise ValueError("mode none uses no cache, so there is nothing to do with a primary")
    if isinstance(primary, bytes | None):
        if mode is CacheMode.BINARIES and primary:
            raise ValueError("mode binaries begins with no data of a pipeline cache")
        return
    if (mode is CacheMode.BINARIES) != isinstance(primary, BinarySource):
        raise ValueError(f"mode {mode} cannot use {primary.name!r} as its primary: it is of another kind")
    if mode in (CacheMode.SHARED, CacheMode.TWO_LEVEL) and primary.externally_synchronized:
        raise ValueError(f"mode {mode} needs a primary that is internally synchronized")


async def execute(
    run: Run,
    exchange: Exchange,
    beside: Sequence[Callable[[], Awaitable[None]]] = (),
    *,
    on_started: Callable[[], None],
    on_barrier: Callable[[], None],
) -> RunReport:
    """Drive a run to its end.

    Raises:
        ValueError: Pipelines are to be kept, and the schedule shares outcomes.
        DriverError: A cache could not be created.
        ExternalSynchronizationError: The caller used one of the caches during the run.
        trio.Cancelled: The surrounding scope was cancelled; what was compiled has been merged.
    """
    scheduler = exchange.scheduler
    if run.keep and scheduler.shares_outcomes:
        raise ValueError("a pipeline that shares another one's outcome is not created, so it cannot be kept")
    run.supply_through(exchange)
    limiter = trio.CapacityLimiter(run.worker_count)
    reported = False
    try:
        await trio.to_thread.run_sync(run.caches.open, run.primary_data, run.prepared, limiter=limiter)
        on_started()
        await _work(run, exchange, limiter, beside)
        run.take_unassignable(scheduler.unassignable)
        run.take_shared(*scheduler.shared())
        on_barrier()
        reported = True
    finally:
        # The calls in flight have returned, for no thread is ever abandoned: nothing uses a cache now.
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(run.close, reported, limiter=limiter)
    return run.report(exchange)


async def _work(
    run: Run,
    exchange: Exchange,
    limiter: trio.CapacityLimiter,
    beside: Sequence[Callable[[], Awaitable[None]]],
) -> None:
    run.workers = [
        Worker(number, run.caches.creator_of(number, run.parts, keep=run.keep), exchange, run.recorder)
        for number in range(run.worker_count)
    ]
    with first_error():
        async with trio.open_nursery() as others:
            run.started_ns = time.perf_counter_ns()
            async with trio.open_nursery() as nursery:
                for worker in run.workers:
                    nursery.start_soon(worker.run, limiter, name=f"worker {worker.number}")
                if run.supply is not None:
                    others.start_soon(run.supply.serve)
                if run.caches.rotation is not None and run.caches.policy.rolling:
                    others.start_soon(run.caches.rotation.serve)
                for each in beside:
                    others.start_soon(each)
            run.barrier_ns = time.perf_counter_ns()
            others.cancel_scope.cancel()
