"""A run that its caller steers: it may submit, promote and cancel pipelines, and limit the time of a frame.

    open_session ──> caches, workers ──┐        submit, promote, begin_require ─┐
                                       ├──────  limit_time                      ├──> exchange ──> workers
    finish / close <── merge, report ──┘        begin_cancel ───────────────────┘

`run_pipelines` (execution.py) is a session in which everything is submitted before the first batch.

Guarantees, beside those of a run (workers.py): when what `begin_cancel` gave returns, no driver call for
the cancelled pipelines is in flight. A time limit stops between batches. Leaving the block waits for all
submitted pipelines. Leaving it by an exception, or cancelled, waits only for the calls in flight, merges what
was compiled, and destroys kept pipelines that were not taken. Progress counts submitted pipelines, and ends
at exactly all of them. A lost device is reported once: by `finish` or `close`, else by the block.
Assumptions: a session belongs to the trio thread, where any number of tasks may use it. `take`, `settled`,
`progress`, `is_idle` and `unsettled` may be called from any thread.
Programs have set_session.py, over several of these.
"""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import trio
from attrs import evolve

from orchestrator.devices.device import Device, PipelineSource, PreparedPipelines
from orchestrator.errors import DeviceError
from orchestrator.run.caches import MergedHook
from orchestrator.run.options import NO_WORKER_CACHES, RUN_DEFAULTS, RunOptions, duration_ns
from orchestrator.run.records import (
    INTERVAL_S,
    Hash,
    OutcomeStatus,
    OutcomeTable,
    PipelineOutcome,
    Progress,
    ProgressCallback,
    RunReport,
    SlowInFlight,
    TimeToGo,
    status_code,
)
from orchestrator.run.workers import Run, checked_run, lacking_code
from orchestrator.schedule.jobs import Int32s, JobGraph
from orchestrator.schedule.options import Priority, ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler

Pipelines: TypeAlias = int | Iterable[int]
"""Pipelines of a session: an index, or several."""

_TICK_S: Final = 0.008  # news of each batch would take the interpreter from workers
_AT_ONCE: Final = 1024  # most pipelines that enter at once, because workers wait meanwhile
_NOTHING: Int32s = np.empty(0, np.int32)


class DeviceLostError(DeviceError):
    """VK_ERROR_DEVICE_LOST ended a session: each further call would fail. The device should be closed.

    `report` is the report, with the primary's data if the driver gave it; kept pipelines belong to the
    caller.
    """

    def __init__(self, reason: str, report: RunReport) -> None:
        super().__init__(f"the device was lost: {reason}")
        self.report = report


class _GoneError(trio.ClosedResourceError):
    """Nothing can be submitted, because the device was lost or the session failed; the block raises that."""


class _FailedError(trio.BrokenResourceError):
    """There is no report, because the session failed; the block raises the cause."""


class PipelineSession:
    """A run that is steered; made by `open_session`. Belongs to the trio thread.

    It owns its caches, and the pipelines that it keeps until they are taken or reported.
    """

    def __init__(self, run: Run, *, trusted: bool = False) -> None:
        self.exchange = run.exchange
        self._run = run
        self._required = 0
        self._closing = False
        self._ended = trio.Event()
        self.report: RunReport | None = None  # once the session has ended without failure
        self._told_lost = False
        self._limit_ns: int | None = None
        self._to_go = TimeToGo(run.exchange.scheduler, run.worker_count, trusted=trusted)
        # Where tasks wait for a condition, how many do, and how many of them want news at once.
        self._lot = trio.lowlevel.ParkingLot()
        self._listeners = self._urgent = 0
        self._changed, self._hurry = trio.Event(), trio.Event()
        # The following are under the lock, because any thread may read them.
        self._news_lock = threading.RLock()
        self._fresh: list[Int32s] = []
        self._counts = np.zeros(len(OutcomeStatus), np.int64)
        self._done_ns = self._total_ns = 0
        self._stale_total = True
        self._begun_ns = 0

    @property
    def table(self) -> OutcomeTable:
        """The outcomes so far, one row for each pipeline."""
        return self._run.table

    # --- pipelines in

    async def submit(self, pipelines: Pipelines, *, priority: Priority = Priority.SOON) -> None:
        """Queue pipelines, with the libraries that they link.

        Queued pipelines are raised to the priority; created or failed ones stay as they are; cancelled ones
        are queued again. If the call is cancelled, pipelines that were already queued stay so.

        Raises:
            trio.ClosedResourceError: The session is closed, or its device was lost.
        """
        asked = _chosen(pipelines)
        for first in range(0, max(1, len(asked)), _AT_ONCE):
            # Whoever waits for what was cancelled sees that before it is queued again.
            await trio.lowlevel.checkpoint()
            self._check_open()
            with self.exchange.steering() as schedule:
                self._enter(schedule, asked[first : first + _AT_ONCE], priority)

    def begin_require(self, pipeline: int) -> Callable[[], Awaitable[PipelineOutcome]]:
        """Queue a pipeline before all others; returns what waits for it, which must be called.

        A call in flight is waited for. While a task waits here, no time limit stops pipelines with priority
        NOW.

        Raises:
            trio.ClosedResourceError: The session is closed, or its device was lost.
        """
        asked = _chosen(pipeline)
        self._check_open()
        with self.exchange.steering() as schedule:
            self._enter(schedule, asked, Priority.NOW)
            self._required += 1
            schedule.exempt(Priority.NOW)

        async def outcome() -> PipelineOutcome:
            try:
                (found,) = await self._settled(asked, urgent=True)
            finally:
                with self.exchange.steering() as schedule:
                    self._required -= 1
                    schedule.exempt(Priority.NOW if self._required else None)
            return found

        return outcome

    def promote(self, pipelines: Pipelines, priority: Priority) -> int:
        """Raise queued pipelines, and those that they wait for, to a priority; returns how many rose."""
        asked = _chosen(pipelines)
        with self.exchange.steering() as schedule:
            return schedule.promote(asked.tolist(), priority)

    # --- time

    def limit_time(self, seconds: float | None) -> None:
        """Set how long batches may begin from now on; 0: no more, None: no limit. An earlier one ends.

        A batch begins if it is estimated to end in time. If none does, and nothing is in flight, one pipeline
        begins all the same, so that a pipeline that takes longer than a frame gets its turn. Once the session
        finishes there is no limit, and none is set.

        Raises:
            ValueError: It is negative, or no number.
        """
        limit_ns = duration_ns(seconds)
        if not self._closing:
            self.exchange.limit_time(limit_ns)
            self._limit_ns = limit_ns

    # --- cancelling

    def begin_cancel(self, pipelines: Pipelines | None = None) -> Callable[[], Awaitable[int]]:
        """Cancel queued pipelines (None: all); returns what waits until none of them is in flight.

        Libraries that others link are still created. No driver call for the other pipelines begins after the
        return. All may be submitted again. The number of those that were cancelled includes libraries that
        only they needed.
        """
        chosen = np.arange(len(self.table), dtype=np.int32) if pipelines is None else _chosen(pipelines)
        with self.exchange.steering() as schedule:
            cancellation = schedule.cancel_jobs(chosen.tolist())
            self._stale_total = True
        self._lot.unpark_all()  # whoever waits for them, before they are submitted again

        async def cancelled() -> int:
            await self._until(lambda _: cancellation.quiet)
            return cancellation.cancelled

        return cancelled

    # --- looking

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or in the driver."""
        with self.exchange.looking() as schedule:
            return _is_idle(schedule)

    async def idle(self) -> None:
        """Wait until nothing is queued or in the driver, or the session has ended."""
        await self._until(_is_idle, urgent=False)

    async def wait(self, what: Pipelines) -> tuple[PipelineOutcome, ...]:
        """Wait until pipelines are settled, or the session has ended.

        A pipeline is settled that was created, failed, skipped or cancelled, or never submitted.
        """
        return await self._settled(_chosen(what), urgent=False)

    def unsettled(self, what: Pipelines) -> Int32s:
        """The pipelines among some that are queued or in flight."""
        asked = _chosen(what)
        with self.exchange.looking() as schedule:
            return schedule.unsettled(asked)

    @property
    def progress(self) -> Progress:
        """Progress over the submitted pipelines. Under a time limit `eta_s` goes by the rate so far."""
        with self._news_lock:
            self._gather()
            return self._progress()

    def settled(self) -> Int32s:
        """The pipelines that got their outcome since the last call."""
        with self._news_lock:
            self._gather()
            fresh, self._fresh = self._fresh, []
        return np.unique(np.concatenate(fresh)) if fresh else _NOTHING

    def take(self, pipelines: Pipelines) -> npt.NDArray[np.uint64]:
        """Take kept pipelines, which belong to the caller from now on, also where the session fails.

        Returns their handles, in ascending order of the indices, shape (n,), uint64; 0 where there is none
        yet, or it was taken before.

        Raises:
            ValueError: The session keeps no pipelines.
        """
        asked = _chosen(pipelines)
        if self.table.handles is None:
            raise ValueError("the session keeps no pipelines: open it with keep=True")
        with self.exchange.looking() as schedule:
            there = ~np.isin(asked, schedule.unsettled(asked))
        taken = np.zeros(len(asked), np.uint64)
        taken[there] = self._run.take_handles(asked[there])
        return taken

    # --- the end

    @property
    def closed(self) -> bool:
        """Whether nothing can be submitted any more."""
        return self._closing or self._ended.is_set()

    async def finish(self) -> RunReport:
        """Create all submitted pipelines, without a time limit; then merge, report and end the session.

        Raises:
            DeviceLostError: The device was lost; raised once.
            trio.BrokenResourceError: The session failed; its block raises the cause.
        """
        self._closing = True
        self._limit_ns = None
        self.exchange.limit_time(None)
        with self.exchange.steering() as schedule:
            schedule.close()
        return await self._end()

    async def close(self) -> RunReport:
        """End the session after the batches in flight: merge and report; queued pipelines are NOT_RUN.

        Raises:
            DeviceLostError: As from `finish`, like trio.BrokenResourceError.
        """
        self._closing = True
        if not self._ended.is_set():
            self.exchange.cancel()
        return await self._end()

    async def leave(self) -> None:
        """End the block: finish submitted pipelines, unless the session was closed before."""
        if not self.closed:
            await self.finish()
        elif self.exchange.device_lost and not self._told_lost:
            await self._end()

    async def _end(self) -> RunReport:
        await self._ended.wait()
        if self.report is None:
            raise _FailedError("the session failed; its block raises the cause")
        if self.exchange.device_lost and not self._told_lost:
            self._told_lost = True
            raise DeviceLostError(self.exchange.device_lost, self.report)
        return self.report

    # --- the run of `open_session` and `run_pipelines`

    async def serve(
        self,
        on_started: Callable[[], None],
        on_progress: Callable[[], None] | None = None,
        beside: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> RunReport:
        """Run the workers, and tasks beside them, to their end and make the report; once.

        `on_started` is called when the caches are open, `on_progress` at the start, at most every 100 ms, and
        at the end.
        """

        def started() -> None:
            on_started()
            if self.exchange.scheduler.queued:
                self._begun_ns = self._begun_ns or time.perf_counter_ns()

        def at_barrier() -> None:
            self._gather()
            if on_progress is not None:
                on_progress()

        async def report_progress() -> None:
            while on_progress is not None:
                on_progress()
                await trio.sleep(INTERVAL_S)

        try:
            self.report = await self._run.execute(
                (self._spread_news, report_progress, *beside), on_started=started, on_barrier=at_barrier
            )
        finally:
            self._ended.set()
            self._gather()
            self._lot.unpark_all()
        return self.report

    # --- news

    async def _spread_news(self) -> None:
        """Beside the workers: wake waiting tasks, at most every tick unless one needs its news at once."""
        while True:
            await self._changed.wait()
            self._changed = trio.Event()
            if not self._listeners:
                continue
            self.exchange.on_change = self._changed.set  # before looking, so that no change is missed
            self._gather()
            self._lot.unpark_all()
            if not self._urgent:
                self._hurry = trio.Event()
                with trio.move_on_after(_TICK_S):
                    await self._hurry.wait()

    @contextmanager
    def _listening(self, *, urgent: bool) -> Iterator[None]:
        self._listeners += 1
        self._urgent += urgent
        self._changed.set()
        if urgent:
            self._hurry.set()
        try:
            yield
        finally:
            self._listeners -= 1
            self._urgent -= urgent

    async def _until(self, condition: Callable[[Scheduler], bool], *, urgent: bool = True) -> None:
        """Wait until a condition on the schedule holds, or the session has ended."""
        await trio.lowlevel.checkpoint()
        with self._listening(urgent=urgent):
            while not self._ended.is_set():
                with self.exchange.looking() as schedule:
                    if condition(schedule):
                        return
                await self._lot.park()

    async def _settled(self, asked: Int32s, *, urgent: bool) -> tuple[PipelineOutcome, ...]:
        pending = asked

        def is_settled(schedule: Scheduler) -> bool:
            nonlocal pending  # a pipeline that was cancelled is settled, though it may be submitted again
            pending = schedule.unsettled(pending)
            return not len(pending)

        await self._until(is_settled, urgent=urgent)
        self._gather()
        return tuple(map(self.table.row, asked.tolist()))

    def _gather(self) -> None:
        """Set outcomes that follow from others, and count new ones. Any thread."""
        with self._news_lock, self.exchange.looking() as schedule:
            news = schedule.take_settled()
            if not len(news):
                return
            lost = schedule.unassignable
            lost = {each: lost[each] for each in news.tolist() if each in lost}
            self._run.take_inferred(lost)
            final = schedule.final(news)
            self._stale_total |= len(final) < len(news)  # a library was cancelled with what links it
            status = self.table.status[final]
            ran = status != status_code(OutcomeStatus.NOT_RUN)  # the schedule ends a cut batch as a whole
            self._fresh.append(final[ran])
            self._counts += np.bincount(status[ran], minlength=len(self._counts))
            self._done_ns += schedule.estimated_ns(final[ran])

    def _progress(self) -> Progress:
        """Progress by the outcomes gathered so far; under the lock of the news."""
        with self.exchange.looking() as schedule:
            now_ns = time.perf_counter_ns()  # here: the first may have been submitted while this waited
            total, in_flight, queued = schedule.entered, schedule.in_flight, schedule.queued
            if self._stale_total:
                self._stale_total, self._total_ns = False, schedule.estimated_ns()
            done = int(self._counts.sum())
            elapsed_s = (now_ns - self._begun_ns) / 1e9 if self._begun_ns else 0.0
            eta_s: float | None = 0.0
            if queued and self._limit_ns is not None:
                known = self._limit_ns and self._done_ns
                eta_s = elapsed_s * (self._total_ns - self._done_ns) / self._done_ns if known else None
            elif done != total:
                eta_s = self._to_go.eta_s(now_ns)
            found = self._to_go.slowest(now_ns)
        counts = dict(zip(OutcomeStatus, self._counts.tolist(), strict=True))
        compiled, hits = counts[OutcomeStatus.COMPILED], counts[OutcomeStatus.CACHE_HIT]
        slowest = None
        if found is not None:
            assignment, age_ns = found
            first, count = self.table.row(int(assignment.indices[0])), len(assignment.indices)
            slowest = SlowInFlight(Hash(first.key), first.kind, count, round(age_ns / 1e9, 1))
        return Progress(
            total=total,
            done=done,
            compiled=compiled,
            hits=hits,
            failed=counts[OutcomeStatus.FAILED],
            skipped=counts[OutcomeStatus.SKIPPED],
            in_flight=in_flight,
            started_ns=self._begun_ns,
            elapsed_s=elapsed_s,
            rate=(compiled + hits) / elapsed_s if elapsed_s else 0.0,
            eta_s=eta_s,
            total_ns=self._total_ns,
            done_ns=self._done_ns,
            slowest=slowest,
        )

    # --- inside

    def _enter(self, schedule: Scheduler, pipelines: Int32s, priority: Priority) -> None:
        schedule.enter(pipelines, priority)
        self._stale_total = True
        self._begun_ns = self._begun_ns or time.perf_counter_ns()

    def _check_open(self) -> None:
        if lost := self.exchange.device_lost:
            raise _GoneError(f"the device was lost: {lost}")
        if self._closing:
            raise trio.ClosedResourceError("the session is closed")
        if self._ended.is_set() or self.exchange.cancelled:
            raise _GoneError("the session failed or was cancelled; its block raises the cause")


def _chosen(pipelines: Pipelines) -> Int32s:
    """Indices of pipelines, ascending and distinct."""
    given = pipelines if isinstance(pipelines, Iterable) else [pipelines]
    return np.unique(np.asarray(given if isinstance(given, np.ndarray) else list(given), np.int32))


def _is_idle(schedule: Scheduler) -> bool:
    return not (schedule.queued or schedule.in_flight)


@asynccontextmanager
async def open_session(
    device: Device,
    prepared: PreparedPipelines,
    options: RunOptions = RUN_DEFAULTS,
    *,
    primary: PipelineSource | bytes | None = None,
    scheduler: Scheduler | None = None,
    on_merged: MergedHook | None = None,
    on_progress: ProgressCallback | None = None,
) -> AsyncIterator[PipelineSession]:
    """Open the caches and start the workers; only submitted pipelines are created.

    The arguments are those of `run_pipelines`, with a scheduler that streams. `prepared` stays open until the
    block is left; with a time limit of 0 no batch begins before `PipelineSession.limit_time`.

    Raises:
        DeviceLostError: The device was lost, and neither `finish` nor `close` raised it. Else as
            `run_pipelines`.
    """
    workers = checked_run(device, prepared, options, primary)
    if scheduler is None:
        schedule = options.schedule or ScheduleOptions(pin_followers=options.mode not in NO_WORKER_CACHES)
        jobs = JobGraph.of_image(prepared.image, speculative=lacking_code(prepared))
        scheduler = Scheduler(jobs, workers, evolve(schedule, streaming=True))
    run = Run(device, prepared, options, primary, scheduler, on_merged)
    session = PipelineSession(run, trusted=scheduler.options.costs_recorded)
    if options.time_limit_s is not None:
        session.limit_time(options.time_limit_s)

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        tell = None if on_progress is None else lambda: on_progress(session.progress)
        await session.serve(task_status.started, tell)

    alone: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve)
            try:
                yield session
            except* (_GoneError, _FailedError):
                pass  # the end raises it, once, with the report where there is one
            with suppress(_FailedError):  # `serve` raises the cause
                await session.leave()
    except BaseExceptionGroup as group:
        if len(group.exceptions) > 1:
            raise
        (alone,) = group.exceptions
    if alone is not None:  # not while the group is handled, which would replace its context
        raise alone
