"""`run_pipelines`: a pipeline set, in parallel, and what it cost.

    Run.of ──> exchange ──> execute: open caches ──> worker 0 ─┐
    (checks)   (schedule)                            worker 1 ─┼─> barrier ─> merge ─> read back ─> destroy
                                                     ...      ─┘

`run_pipelines` is this from one end to the other; a session (session.py) has it beside a caller who submits,
promotes and cancels through the exchange. With a rolling merge (caches.py) workers also rotate their caches
on the way, and a merger merges them into the primary.

The loop of a worker is in its thread, because a hop from trio into a thread and back costs about as much as a
whole warm batch of 64; asking the schedule under a lock costs a few microseconds. trio is only entered again
to wait, or at the end.

Guarantees:
- While the run lasts its caches belong to it: a worker cache is used by its worker until the barrier and by
  the merge after it, never by two at a time; the primary is not touched by anyone else (the caller's hook of
  a rolling merge apart, which may read it).
- A driver call is never abandoned. Cancelled, the run hands out no further batch, waits for the calls in
  flight, and only then merges and destroys. The merge still takes place, so that what was compiled is not
  lost to the primary; then trio.Cancelled goes on to the caller.
- A batch that fails as a whole becomes the outcome of its pipelines, one by one where several were in it, so
  that a good pipeline is not lost to a bad neighbour.
- Nothing that the run made is left behind, however it ends: worker caches, a primary of its own, and
  pipelines that nobody can own any more because the report is lost.
- A pipeline or a call that fails is an outcome. What is raised is misuse, cancellation, or a bug.
Assumptions: one run at a time uses a PreparedPipelines and a primary; one `execute` a `Run`. Driver calls
release the GIL.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    NOT_READY,
    CacheMode,
    CallSplit,
    Device,
    PipelineSource,
    PreparedPipelines,
    is_device,
)
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DriverError, ExternalSynchronizationError, OrchestratorError, unexpected
from orchestrator.run.accounting import CallLog, ThreadMeter, Usage, driver_time_ns
from orchestrator.run.caches import (
    Creator,
    MergedHook,
    PreparedParts,
    RunCaches,
    duplicate_pipeline_keys,
    duplicates,
)
from orchestrator.run.exchange import Exchange
from orchestrator.run.first_error import first_error
from orchestrator.run.options import (
    BARRIER,
    ROLLING,
    RUN_DEFAULTS,
    RunOptions,
    available_workers,
    check_skipped,
    unsteered_schedule,
)
from orchestrator.run.records import (
    INTERVAL_S,
    Barrier,
    Calls,
    Duplicates,
    OutcomeRecorder,
    OutcomeStatus,
    OutcomeTable,
    Progress,
    ProgressCallback,
    RunReport,
    status_code,
    timing_of,
)
from orchestrator.run.steering import SteeredRun, Steering
from orchestrator.schedule import Assignment, Done, JobGraph, Priority, ScheduleOptions, Scheduler, Wait
from orchestrator.schedule.jobs import Int32s

if TYPE_CHECKING:
    from orchestrator.run.supply import SpirvSupply

_MOST_RECORDED: Final = 0.9

_NO_REASONS: Mapping[int, str] = {}


async def execute(
    run: Run,
    exchange: Exchange,
    *,
    watch: Callable[[], Awaitable[None]] | None = None,
    on_progress: ProgressCallback | None = None,
    on_started: Callable[[], None] | None = None,
    on_barrier: Callable[[], None] | None = None,
) -> RunReport:
    """Drive a run to its end.

    Args:
        run: The run.
        exchange: Its schedule.
        watch: Runs beside the workers, up to the barrier.
        on_progress: Called in the trio thread at the start, at most every 100 ms, and at the end.
        on_started: Called in the trio thread when the caches are open, before the first batch.
        on_barrier: Called in the trio thread when all workers have ended well, before the merge.

    Returns:
        The report.

    Raises:
        ValueError: Pipelines are to be kept, and the schedule shares outcomes.
        DriverError: A cache could not be created.
        ExternalSynchronizationError: The caller used one of the caches during the run.
        trio.Cancelled: The surrounding scope was cancelled; what was compiled has been merged.
    """
    if run.keep and exchange.shares_outcomes:
        raise ValueError("a pipeline that shares another one's outcome is not created, so it cannot be kept")
    run.supply_through(exchange)
    run.take_unassignable(exchange.unassignable)
    run.recorder.settled_at_start = len(run.table.reasons)
    limiter = trio.CapacityLimiter(run.worker_count)
    reported = False
    try:
        await trio.to_thread.run_sync(run.caches.open, run.primary_data, run.prepared, limiter=limiter)
        if on_started is not None:
            on_started()
        await _work(run, exchange, limiter, watch, on_progress)
        run.take_unassignable(exchange.unassignable)
        run.take_shared(*exchange.shared)
        if on_barrier is not None:
            on_barrier()
        if on_progress is not None:
            on_progress(run.progress(0, run.barrier_ns))
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
    watch: Callable[[], Awaitable[None]] | None,
    on_progress: ProgressCallback | None,
) -> None:
    """Run the workers up to the barrier."""
    run.workers = [
        Worker(number, run.caches.creator_of(number, run.parts, keep=run.keep), exchange, run.recorder)
        for number in range(run.worker_count)
    ]
    with first_error():
        async with trio.open_nursery() as beside:
            run.started_ns = time.perf_counter_ns()
            async with trio.open_nursery() as nursery:
                for worker in run.workers:
                    nursery.start_soon(worker.run, limiter, name=f"worker {worker.number}")
                if run.supply is not None:
                    beside.start_soon(run.supply.serve)
                if run.caches.rotation is not None and run.caches.policy.rolling:
                    beside.start_soon(run.caches.rotation.serve)
                if watch is not None:
                    beside.start_soon(watch)
                if on_progress is not None:
                    beside.start_soon(_tell, run, exchange, on_progress)
            run.barrier_ns = time.perf_counter_ns()
            beside.cancel_scope.cancel()


async def _tell(run: Run, exchange: Exchange, on_progress: ProgressCallback) -> None:
    """Report progress; the clock is the machine's, so that a mock clock does not flood the callback."""
    last = None
    while True:
        now = time.perf_counter_ns()
        if last is None or now - last >= INTERVAL_S * 1e9 * 0.9:
            last = now
            run.take_shared(*exchange.shared)
            on_progress(run.progress(exchange.in_flight, now))
        await trio.sleep(INTERVAL_S)


class _Ended(msgspec.Struct, frozen=True, eq=False):
    """What became of a batch.

    Attributes:
        reasons: Why some were not created.
        hits: Those that a cache had.
        elapsed_ns: What it took; of compiles, in the driver.
        missed: Those that were not found without their code; None for none.
    """

    reasons: Mapping[int, str] = _NO_REASONS
    hits: int = 0
    elapsed_ns: int = 0
    missed: Int32s | None = None

    def plus(self, other: _Ended) -> _Ended:
        """Both together."""
        missed = self.missed
        if missed is None:
            missed = other.missed
        elif other.missed is not None:
            missed = np.concatenate((missed, other.missed))
        reasons = {**self.reasons, **other.reasons} if self.reasons or other.reasons else _NO_REASONS
        return _Ended(reasons, self.hits + other.hits, self.elapsed_ns + other.elapsed_ns, missed)


class Worker:
    """One worker of a run.

    Args:
        number: Its number.
        creator: How batches are created, with which cache.
        exchange: Where batches come from.
        recorder: Where outcomes go.

    Attributes:
        log: What it did.
        arrived_ns: When it found that nothing was left, on the clock of time.perf_counter_ns; 0 before.
        waiting_ns: Time in which nothing could be assigned to it, though something was left.
        knows_run_delay: Whether the time on the run queue is known.
        usage: What the kernel did for its thread while it worked.
    """

    def __init__(self, number: int, creator: Creator, exchange: Exchange, recorder: OutcomeRecorder) -> None:
        self.number = number
        self._creator = creator
        self._exchange = exchange
        self._recorder = recorder
        self._split = CallSplit(exchange.call_limit, self._goes_on)
        self.log = CallLog(number)
        self.arrived_ns = 0
        self.waiting_ns = 0
        self.knows_run_delay = True
        self.usage = Usage()

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
        """Work in this thread until nothing can be assigned, now or ever; with the number of changes."""
        ended: Assignment | None = None
        done = _Ended()
        began = Usage.now()
        with ThreadMeter() as meter:
            while True:
                try:
                    trio.from_thread.check_cancelled()
                except trio.Cancelled:
                    self._exchange.cancel()
                    # Done: the batch ended, no other begins.
                    self._exchange.swap(
                        self.number, ended, done.reasons, done.hits, done.elapsed_ns, done.missed
                    )
                    raise
                answer, seen = self._exchange.swap(
                    self.number, ended, done.reasons, done.hits, done.elapsed_ns, done.missed
                )
                if ended is not None and not (isinstance(answer, Assignment) and answer.follows):
                    self._creator.between_batches()
                if not isinstance(answer, Assignment):
                    break
                done = self._create(answer.indices, meter)
                ended = answer
            self.knows_run_delay &= meter.has_run_delay
        self.usage = self.usage.plus(Usage.now(), began)
        if isinstance(answer, Done):
            self.arrived_ns = time.perf_counter_ns()
        return answer, seen

    def _goes_on(self) -> bool:
        """Whether the next call of a batch may be made."""
        try:
            trio.from_thread.check_cancelled()
        except trio.Cancelled:  # it is raised again where the batch ends
            self._exchange.cancel()
        return not self._exchange.cancelled

    def _create(self, indices: Int32s, meter: ThreadMeter) -> _Ended:
        """Create a batch, in as many calls as it takes; none begins after a stop."""
        before = meter.begin()
        try:
            batch = self._creator.create(indices, self._split)
        except ExternalSynchronizationError:
            raise  # a bug of whoever uses the cache beside the run, not a property of the pipelines
        except OrchestratorError as error:
            after = meter.end()
            self.log.note(before, after, None, indices)
            return _Ended(elapsed_ns=after.wall_ns - before.wall_ns).plus(
                self._isolate(indices, error, meter)
            )
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
            return _Ended(*self._recorder.record(indices, batch), elapsed_ns)
        there = np.flatnonzero(~missed)
        if not there.size:
            return _Ended(elapsed_ns=elapsed_ns, missed=indices[missed])
        return _Ended(*self._recorder.record(indices[there], batch.only(there)), elapsed_ns, indices[missed])

    def _isolate(self, indices: Int32s, error: OrchestratorError, meter: ThreadMeter) -> _Ended:
        """A call failed as a whole: find out which of its pipelines is to blame, one call each."""
        if isinstance(error, DriverError) and error.result == ERROR_DEVICE_LOST:
            self._exchange.lose_device(str(error))
        elif len(indices) > 1:
            done = _Ended()
            for place in range(len(indices)):
                if lost := self._exchange.device_lost:
                    return done.plus(_Ended(self._recorder.record_failed_call(indices[place:], lost)))
                if not self._goes_on():
                    break
                done = done.plus(self._create(indices[place : place + 1], meter))
            return done
        return _Ended(self._recorder.record_failed_call(indices, str(error)))


@define(eq=False)
class Run:
    """State of one run. Its blocking methods are called in a thread, one at a time, workers apart.

    Attributes:
        device: The device.
        prepared: The pipelines.
        worker_count: Number of workers.
        keep: Whether to keep the pipelines.
        caches: The caches.
        primary_data: Initial data of a primary that the run makes.
        ask_pipeline_keys: Whether to ask the driver for keys after the barrier.
        later: Most pipelines that may be added later.
        parts: The images: `prepared`, and those that were added.
        recorder: Fills the outcomes.
        workers: The workers, once they exist.
        calls: What each did, after the barrier.
        notes: What a reader of the report must know.
        started_ns: When the first job could be handed out, on the clock of time.perf_counter_ns.
        barrier_ns: When all workers had ended.
        supply: Who gives code that is lacking, where some may be.
    """

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
    notes: list[str] = field(factory=list)
    started_ns: int = 0
    barrier_ns: int = 0
    supply: SpirvSupply | None = None
    duplicate_job_keys: Duplicates = Duplicates(0, 0)  # noqa: RUF009 - frozen
    duplicate_pipeline_keys: Duplicates | None = None

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
        for given, fits, what in (
            (device, is_device(device), "a device, such as open_device gives"),
            (prepared, isinstance(prepared, PreparedPipelines), "what device.prepare(image) gave"),
            (options, isinstance(options, RunOptions), "RunOptions"),
            (
                primary,
                isinstance(primary, PipelineSource | bytes | None),
                "a cache, or its data as bytes, or None",
            ),
        ):
            if not fits:
                raise unexpected(given, what)
        check_skipped(options.skipped, len(prepared.image))
        mode = options.mode
        data = primary if isinstance(primary, bytes) else b""
        cache = None if isinstance(primary, bytes) else primary
        if mode is CacheMode.NONE and (cache is not None or data):
            raise ValueError("mode none uses no cache, so there is nothing to do with a primary")
        if cache is not None and (mode is CacheMode.BINARIES) != isinstance(cache, BinarySource):
            raise ValueError(f"mode {mode} cannot use {cache.name!r} as its primary: it is of another kind")
        if mode is CacheMode.BINARIES and data:
            raise ValueError("mode binaries begins with no data of a pipeline cache")
        used_by_all = mode in (CacheMode.SHARED, CacheMode.TWO_LEVEL)
        if used_by_all and cache is not None and cache.externally_synchronized:
            raise ValueError(f"mode {mode} needs a primary that is internally synchronized")
        count = available_workers() if options.workers is None else options.workers
        caches = RunCaches(
            device=device,
            worker_count=count,
            mode=mode,
            policy=options.merge or (ROLLING if mode is CacheMode.TWO_LEVEL else BARRIER),
            seed=options.seed_workers_from_primary,
            primary=cache,
            on_merged=on_merged,
            token=trio.lowlevel.current_trio_token(),
        )
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

        Args:
            prepared: The image.
            skipped: Pipelines of it to leave out, by their index in it.

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
        """Give what the schedule will not assign its outcome: that of the library which is to blame."""
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
        """Give pipelines that are the same work as others the outcome of those, which were created."""
        new = self.table.status[followers] == status_code(OutcomeStatus.NOT_RUN)
        self.table.status[followers[new]] = self.table.status[leaders[new]]
        self._shared[followers[new]] = True

    def progress(self, in_flight: int, now_ns: int) -> Progress:
        """How far the run is."""
        return self.recorder.progress(in_flight=in_flight, started_ns=self.started_ns, now_ns=now_ns)

    def take_handles(self, settled: Int32s) -> npt.NDArray[np.uint64]:
        """Take over what was kept of pipelines that no worker has any more. Any thread: each once."""
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
        self.duplicate_job_keys = duplicates(table.keys[compiled], workers, driver_ns)
        if self.ask_pipeline_keys and self.device.features.pipeline_binaries:
            known = compiled < len(self.prepared.image)  # of the first image: others have keys of their own
            self.duplicate_pipeline_keys = duplicate_pipeline_keys(
                self.device, self.prepared, compiled[known], workers[known], driver_ns[known]
            )

    def report(self, exchange: Exchange) -> RunReport:
        """The report of a run that came to its end."""
        table = self.table
        calls = Calls.joined(self.calls)
        barrier = Barrier(tuple(worker.arrived_ns for worker in self.workers), self.barrier_ns)
        caches = self.caches
        merge = caches.merge_report(
            compiled=table.counts()[OutcomeStatus.COMPILED],
            barrier_waits_ns=barrier.waits_ns,
            duplicate_job_keys=self.duplicate_job_keys,
            duplicate_pipeline_keys=self.duplicate_pipeline_keys,
        )
        binaries = caches.binaries()
        identifiers = None
        if self.supply is not None and self.parts.identified:
            identifiers = self.supply.record(table)
            self.notes += self.supply.notes
        if exchange.device_lost:
            self.notes.append(f"the device was lost, so nothing more was tried: {exchange.device_lost}")
        if not exchange.cancelled and exchange.out_of_time:
            self.notes.append("the time limit was reached: run again, with the same cache, for what remains")
        if shared := int(np.count_nonzero(self._shared[: len(table)] & (table.worker < 0))):
            self.notes.append(
                f"{shared} pipelines are the same work as another one and share its outcome: "
                "they were not created"
            )
        if len(calls) and not self.device.features.creation_feedback:
            self.notes.append(
                "the device gives no creation feedback: hits are not known and count as compiled, "
                "and driver time is the wall time of the calls"
            )
        if not all(worker.knows_run_delay for worker in self.workers):
            self.notes.append("time on the run queue is not known here: blocked time includes it")
        return RunReport(
            mode=caches.mode,
            workers=self.worker_count,
            pipelines=table,
            calls=calls,
            barrier=barrier,
            merge=merge,
            timing=timing_of(
                calls,
                workers=self.worker_count,
                wall_ns=self.barrier_ns - self.started_ns,
                make_caches_ns=caches.open_ns,
                merge_ns=merge.merge_ns if merge is not None else 0,
                read_back_ns=caches.read_back_ns,
                waiting_ns=sum(worker.waiting_ns for worker in self.workers),
                ending_ns=sum(barrier.waits_ns),
                blocked_without_faults_ns=sum(each.log.blocked_without_faults_ns for each in self.workers),
                **{
                    name: sum(getattr(worker.usage, name) for worker in self.workers)
                    for name in Usage._fields
                },
            ),
            stopped=exchange.cancelled or exchange.out_of_time,
            device_lost=bool(exchange.device_lost),
            notes=(*caches.notes, *self.notes),
            cache_data=caches.data,
            binaries=binaries,
            identifiers=identifiers,
        )


async def run_pipelines(
    device: Device,
    prepared: PreparedPipelines,
    options: RunOptions = RUN_DEFAULTS,
    *,
    primary: PipelineSource | bytes | None = None,
    scheduler: Scheduler | None = None,
    stop: trio.Event | Steering | None = None,
    on_merged: MergedHook | None = None,
    on_progress: ProgressCallback | None = None,
) -> RunReport:
    """Create all pipelines of a prepared set, and end with what was compiled in the primary cache.

    Args:
        device: The device.
        prepared: What `device.prepare` returned; the caller keeps it open until the run is over.
        options: How.
        primary: The primary cache, or in mode BINARIES the source of binaries (`HeldPipelines`). It stays the
            caller's, who must not use it during the run. Or initial data, or None, for one that the run
            makes: its data is returned as `RunReport.cache_data`, and it is destroyed.
        scheduler: A new one over the jobs of the image, for who knows more of them than the image says (see
            `scheduler_of`), or wants to ask it something; `options.schedule` is not looked at then. None for
            one with estimated costs. Where pipelines share the outcome of others that are the same work
            (`Followers.SHARE`), they get that status, no driver time and no worker, for nobody tried.
        stop: Ends the run early when set: the batches in flight are waited for, everything is merged, and the
            report is returned with NOT_RUN for the rest. (Cancelling instead loses the report.)
            A `Steering` may say more.
        on_merged: Called in a thread after each merge on the way, with the primary, which it may read and
            save; what it raises ends the run. The merge at the barrier does not call it: the primary is the
            caller's then.
        on_progress: Called in the trio thread at the start, at most every 100 ms, and at the end.

    Returns:
        The report.

    Raises:
        TypeError: An argument is of another type.
        ValueError: The scheduler is not of so many pipelines or workers; a skipped pipeline does not exist; a
            primary in mode NONE, or of a kind that the mode does not use; mode SHARED or TWO_LEVEL with an
            externally synchronized primary; pipelines are to be kept that would only share an outcome.
        DriverError: A cache could not be created.
        DeviceError: The primary is another device's.
        ExternalSynchronizationError: The caller used one of the caches during the run.
        trio.Cancelled: The surrounding scope was cancelled; see the top of the module.
    """
    run = Run.of(device, prepared, options, primary, on_merged)
    if scheduler is None:
        lacking = lacking_code(prepared)
        warm = isinstance(primary, bytes) and len(primary) > 0
        held = np.ones(len(prepared.image), np.bool_) if warm else None
        settings = options.schedule or unsteered_schedule(options.mode, time_limit_s=options.time_limit_s)
        scheduler = scheduler_of(prepared.image, run.worker_count, settings, held=held, speculative=lacking)
    if (scheduler.count, scheduler.workers) != (len(prepared.image), run.worker_count):
        raise ValueError(
            f"the scheduler is for {scheduler.count} pipelines and {scheduler.workers} workers; "
            f"there are {len(prepared.image)} and {run.worker_count}"
        )
    scheduler.exclude(run.table.reasons)
    scheduler.tells_hits = device.features.creation_feedback
    steering = Steering.of(stop)
    steered = SteeredRun(steering, scheduler, run.table, options.time_limit_s)

    def tell(progress: Progress) -> None:
        counted = steered.counted(progress)
        if on_progress is not None:
            on_progress(counted)

    with steered.steered():
        return await execute(
            run,
            steered.exchange,
            watch=steered.watch,
            on_progress=None if on_progress is None and steering.on_settled is None else tell,
            on_started=steered.begin,
        )


def lacking_code(prepared: PreparedPipelines) -> npt.NDArray[np.bool_] | None:
    """Pipelines without their code, shape (n,), which are tried without it first; None for none."""
    return None if prepared.identified is None else prepared.identified.lacking


def scheduler_of(
    image: CreateInfoImage,
    workers: int,
    options: ScheduleOptions,
    *,
    recorded_ns: npt.NDArray[np.int64] | None = None,
    held: npt.NDArray[np.bool_] | None = None,
    speculative: npt.NDArray[np.bool_] | None = None,
    pipeline_keys: Sequence[bytes | None] | None = None,
    priority: Priority = Priority.SOON,
) -> Scheduler:
    """The scheduler of a run that nobody steers: what `compile_set` and benchmarks give to `run_pipelines`.

    Args:
        image: The pipelines.
        workers: Number of workers.
        options: Settings, such as `unsteered_schedule` gives.
        recorded_ns: Recorded cost of each pipeline, shape (n,), nanoseconds; 0 where there is none.
        held: Pipelines that the cache of the run is expected to hold, shape (n,); None for none.
        speculative: Pipelines whose code is lacking (`lacking_code`): all of them are tried without it first,
            and what was not found goes by its cost.
        pipeline_keys: What `Device.pipeline_keys` gave for all pipelines, if it was asked.
        priority: How urgent all of them are at first.

    Raises:
        ValueError: There are not as many costs or keys as pipelines.
    """
    jobs = JobGraph.of_image(
        image, recorded_ns=recorded_ns, hits=held, speculative=speculative, pipeline_keys=pipeline_keys
    )
    if priority is not Priority.SOON:
        jobs = msgspec.structs.replace(jobs, priorities=np.full(len(image), priority, np.uint8))
    if recorded_ns is not None and np.count_nonzero(recorded_ns) >= _MOST_RECORDED * len(image):
        options = evolve(options, costs_recorded=True)
    return Scheduler(jobs, workers, options)
