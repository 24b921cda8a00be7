"""A run that its caller steers while it goes on: what comes first, what a frame may take, what is dropped.

    open_session ──> caches, workers ──┐        submit, promote, require ─┐
                                       ├──────  limit_time, run_for       ├──> exchange ──> workers
    finish / close <── merge, report ──┘        cancel_* ─────────────────┘

It is the run of `run_pipelines` (execution.py) with a streamed schedule: pipelines are queued as they are
submitted.

Guarantees, beside those of a run:
- What `cancel_jobs`, `cancel_group` and `cancel_all` name has come to rest when they return: no driver call
  is about it, so no cache is in use for it.
- A time limit stops between batches. What is left stays queued for the next one, and its order may be changed
  in between.
- `submit` waits where the queue is full, and takes what it is given in order.
- Leaving the block waits for what was submitted. Leaving it by an exception, or cancelled, does not: the
  calls in flight are waited for, what was compiled is merged, and what was kept and not taken is destroyed.
  What ends the block, the caller's exception or that of a worker, comes out as itself.
Assumptions: a session belongs to the trio thread; any number of tasks may use it there.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import trio
from attrs import evolve, field, frozen

from orchestrator.devices.device import Device, PipelineSource, PreparedPipelines
from orchestrator.run.caches import MergedHook
from orchestrator.run.exchange import Exchange
from orchestrator.run.execution import Run, execute
from orchestrator.run.options import NO_WORKER_CACHES, RUN_DEFAULTS, RunOptions
from orchestrator.run.records import PipelineOutcome, Progress, ProgressCallback, RunReport
from orchestrator.schedule import JobGraph, Priority, ScheduleOptions, Scheduler


@frozen
class Remainder:
    """What a time limit left over.

    Attributes:
        queued: Pipelines that were submitted and have not begun.
        in_flight: Pipelines in a driver call.
        estimated_ns: What the queued ones are estimated to take, one after another.
    """

    queued: int
    in_flight: int
    estimated_ns: int

    @property
    def done(self) -> bool:
        """Whether nothing is left."""
        return not self.queued and not self.in_flight


class Waitable(Protocol):
    """What a ticket needs of its session."""

    async def wait(self, what: npt.NDArray[np.int32]) -> tuple[PipelineOutcome, ...]:
        """Wait until pipelines are settled."""

    def unsettled(self, what: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Those of some pipelines that are queued or in flight."""


@frozen(eq=False)
class PipelineTicket:
    """Pipelines that were submitted together. Belongs to the trio thread.

    Attributes:
        indices: The pipelines, ascending, shape (n,), int32.
    """

    _session: Waitable = field(repr=False)
    indices: npt.NDArray[np.int32] = field(repr=False)

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.indices)

    @property
    def done(self) -> bool:
        """Whether all of them have an outcome, or were cancelled."""
        return not len(self._session.unsettled(self.indices))

    async def wait(self) -> tuple[PipelineOutcome, ...]:
        """What became of each, once all have an outcome, or were cancelled, or the session has ended."""
        return await self._session.wait(self.indices)


Pipelines: TypeAlias = PipelineTicket | int | Iterable[int]
"""Pipelines of an image: a ticket, one index, or several."""

NO_GROUP = -1
"""Group of what is in none."""


def checked_pipelines(count: int, pipelines: Pipelines) -> npt.NDArray[np.int32]:
    """Indices of pipelines, ascending, none twice.

    Args:
        count: Number of pipelines that there are.
        pipelines: Which of them.

    Raises:
        ValueError: There is no such pipeline.
    """
    if isinstance(pipelines, PipelineTicket):
        return pipelines.indices
    given = [pipelines] if isinstance(pipelines, int) else pipelines
    wide = given if isinstance(given, np.ndarray) else np.asarray(list(given))
    if wide.size and (wide.dtype.kind not in "iu" or int(wide.min()) < 0 or int(wide.max()) >= count):
        raise ValueError(f"pipelines are numbers from 0 to {count - 1}")
    return np.unique(wide).astype(np.int32)


def checked_group(group: int | None) -> int:
    """A group's number; `NO_GROUP` for None.

    Raises:
        ValueError: It is no such number.
    """
    if group is None:
        return NO_GROUP
    if not 0 <= group < 2**31:
        raise ValueError(f"a group is a number from 0 to 2^31 - 1, not {group}")
    return group


Int32s = npt.NDArray[np.int32]

_AT_ONCE = 1024
"""Most pipelines that enter at once: a worker that wants its next batch waits meanwhile."""


class PipelineSession:
    """A run that is steered; made by `open_session`. Belongs to the trio thread.

    It owns its caches, and the pipelines that it keeps until they are taken or reported.
    """

    def __init__(self, run: Run, scheduler: Scheduler) -> None:
        """Wrap a run; only `open_session` does this."""
        self._run = run
        self._capacity = scheduler.options.capacity
        self._exchange = Exchange(scheduler, self._take_news)
        self._lot = trio.lowlevel.ParkingLot()
        self._waiting: dict[trio.Event, set[int]] = {}
        self._producers = {priority: trio.Lock() for priority in Priority}
        self._required = 0
        self._closing = False
        self._ended = trio.Event()
        self._report: RunReport | None = None

    # --- pipelines in

    async def submit(
        self, pipelines: Pipelines, *, priority: Priority = Priority.SOON, group: int | None = None
    ) -> PipelineTicket:
        """Queue pipelines, with the libraries that they link; wait for room where the queue is full.

        One that is queued becomes at least so urgent; one that was created or failed is left alone; one that
        was cancelled is queued again. Producers of one priority are served in their order. Cancelled while it
        waits, what was taken stays.

        Args:
            pipelines: The pipelines.
            priority: How urgent they are.
            group: A number of the caller's, at least 0, by which they can be cancelled; a pipeline is in the
                group that it was last submitted with.

        Raises:
            ValueError: There is no such pipeline, or group.
            trio.ClosedResourceError: The session is closed, or its device was lost.
        """
        asked = checked_pipelines(len(self._run.table), pipelines)
        number = checked_group(group)
        async with self._producers[priority]:
            rest = asked
            while True:
                self._check_open()
                with self._exchange.steering() as schedule:
                    taken = self._fitting(schedule, rest)
                    schedule.enter(rest[:taken], priority, number)
                    rest = rest[taken:]
                if not len(rest):
                    return PipelineTicket(self, asked)
                if taken == 0:
                    await self._until(lambda schedule: self._room(schedule) != 0)
                else:
                    await trio.lowlevel.checkpoint()

    def submit_nowait(
        self, pipelines: Pipelines, *, priority: Priority = Priority.SOON, group: int | None = None
    ) -> PipelineTicket:
        """Queue pipelines as `submit` does, all of them or none.

        Raises:
            trio.WouldBlock: There is not room for all of them.
            ValueError: There is no such pipeline, or group.
            trio.ClosedResourceError: The session is closed, or its device was lost.
        """
        asked = checked_pipelines(len(self._run.table), pipelines)
        number = checked_group(group)
        self._check_open()
        with self._exchange.steering() as schedule:
            room = self._room(schedule)
            if room is not None and int(np.count_nonzero(schedule.absent(asked))) > room:
                raise trio.WouldBlock
            schedule.enter(asked, priority, number)
        return PipelineTicket(self, asked)

    async def require(self, pipeline: int) -> PipelineOutcome:
        """Wait until a pipeline is there, before everything else.

        It is submitted or promoted, or joined if it is in flight. It passes a full queue, and while somebody
        waits here what is due NOW passes a time limit that is over too.

        Raises:
            ValueError: There is no such pipeline.
            trio.ClosedResourceError: The session is closed, or its device was lost.
        """
        asked = checked_pipelines(len(self._run.table), pipeline)
        self._check_open()
        with self._exchange.steering() as schedule:
            schedule.enter(asked, Priority.NOW)
            self._required += 1
            schedule.exempt(Priority.NOW)
        try:
            (outcome,) = await self.wait(asked)
        finally:
            with self._exchange.steering() as schedule:
                self._required -= 1
                schedule.exempt(Priority.NOW if self._required else None)
        return outcome

    def promote(self, pipelines: Pipelines, priority: Priority) -> int:
        """Make pipelines that are queued at least so urgent, with what they wait for.

        One that is in flight or settled stays as it is, one that was not submitted is left alone. Nothing
        becomes less urgent.

        Returns:
            How many became more urgent, what they wait for included.

        Raises:
            ValueError: There is no such pipeline.
        """
        asked = checked_pipelines(len(self._run.table), pipelines)
        with self._exchange.steering() as schedule:
            return schedule.promote(asked.tolist(), priority)

    # --- time

    def limit_time(self, seconds: float | None) -> None:
        """Let batches begin for so long from now, in the place of what was said before.

        A batch begins where it is estimated to end in time; where nothing does, one pipeline all the same, if
        nothing else is in flight, so that a pipeline that takes longer than a frame gets its turn.

        Args:
            seconds: 0 stops after the batches in flight; None or infinity: without end, as a session begins.

        Raises:
            ValueError: It is negative.
        """
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"a time limit of {seconds} s is negative")
        self._exchange.limit_time(None if seconds is None or seconds == math.inf else round(seconds * 1e9))

    async def run_for(self, seconds: float) -> Remainder:
        """Set a time limit, and come back when it is over, or before if nothing is left to do.

        A batch that has begun goes on beside the caller; it is not waited for, or one long pipeline would
        hold the frame.

        Returns:
            What is left, for the next time limit.

        Raises:
            ValueError: It is negative.
        """
        self.limit_time(seconds)
        with trio.move_on_after(seconds):
            await self._until(lambda _: self._exchange.at_rest)
        return self.remainder

    # --- cancelling

    async def cancel_jobs(self, pipelines: Pipelines) -> int:
        """Cancel those of some pipelines that are queued, and wait for those that are in flight.

        What others link is created all the same. When this returns nothing uses a cache for any other of
        them; cancelled itself, it returns early, but nothing more of them begins.

        Returns:
            How many were cancelled, libraries that only they needed included.

        Raises:
            ValueError: There is no such pipeline.
        """
        asked = checked_pipelines(len(self._run.table), pipelines)
        return await self._cancel(lambda _: asked)

    async def cancel_group(self, group: int) -> int:
        """Cancel the pipelines of a group as `cancel_jobs` does, such as those of a level that is left.

        Raises:
            ValueError: It is negative.
        """
        number = checked_group(group)
        return await self._cancel(lambda schedule: schedule.members(number))

    async def cancel_all(self) -> int:
        """Cancel everything that was submitted as `cancel_jobs` does; more may be submitted."""
        return await self._cancel(lambda schedule: schedule.members(None))

    # --- looking

    async def wait(self, what: Pipelines) -> tuple[PipelineOutcome, ...]:
        """Wait until pipelines are settled, or the session has ended.

        Settled is what was created, failed, skipped or cancelled, or never submitted.

        Raises:
            ValueError: There is no such pipeline.
        """
        asked = checked_pipelines(len(self._run.table), what)
        await trio.lowlevel.checkpoint()
        event = trio.Event()
        with self._exchange.listening():
            pending = set(self.unsettled(asked).tolist())
            if pending and not self._ended.is_set():
                self._waiting[event] = pending
                try:
                    await event.wait()
                finally:
                    del self._waiting[event]
        self._take_news()
        return tuple(self.outcome_of(index) for index in asked.tolist())

    def unsettled(self, what: Pipelines) -> Int32s:
        """Those of some pipelines that are queued or in flight."""
        asked = checked_pipelines(len(self._run.table), what)
        with self._exchange.looking() as schedule:
            return schedule.unsettled(asked)

    def outcome_of(self, index: int) -> PipelineOutcome:
        """What became of a pipeline so far."""
        return self._run.table.row(index)

    def remaining(self) -> Int32s:
        """Pipelines that were submitted and have not begun, the most urgent first."""
        with self._exchange.looking() as schedule:
            return schedule.remaining()

    @property
    def remainder(self) -> Remainder:
        """How much is left."""
        with self._exchange.looking() as schedule:
            return Remainder(schedule.queued, schedule.in_flight, schedule.remaining_ns)

    @property
    def progress(self) -> Progress:
        """How far the session is; the total is that of the prepared set, submitted or not."""
        self._take_news()
        return self._run.progress(self._exchange.in_flight, time.perf_counter_ns())

    def take_handles(self, pipelines: Pipelines) -> npt.NDArray[np.uint64]:
        """Take pipelines that were kept: they are the caller's from now on.

        They are not in the report, and are not destroyed with a session that fails.

        Returns:
            Their handles, in ascending order of the indices, shape (n,), 0 where there is none (yet), or it
            was taken before.

        Raises:
            ValueError: The session keeps no pipelines, or there is no such pipeline.
        """
        asked = checked_pipelines(len(self._run.table), pipelines)
        handles = self._run.table.handles
        if handles is None:
            raise ValueError("the session keeps no pipelines: open it with keep=True")
        with self._exchange.looking() as schedule:
            settled = np.setdiff1d(asked, schedule.unsettled(asked))
        taken = np.zeros(len(asked), np.uint64)
        taken[np.isin(asked, settled)] = handles[settled]
        handles[settled] = 0
        return taken

    # --- the end

    @property
    def closed(self) -> bool:
        """Whether nothing can be submitted any more."""
        return self._closing or self._ended.is_set()

    @property
    def report(self) -> RunReport | None:
        """The report, once the session has ended well."""
        return self._report

    async def finish(self) -> RunReport:
        """Create all that was submitted, whatever the time limit; then merge, report and end the session.

        Raises:
            trio.BrokenResourceError: The session failed; its block raises the cause.
        """
        self._closing = True
        self._exchange.limit_time(None)
        with self._exchange.steering() as schedule:
            schedule.close()
        return await self._end()

    async def close(self) -> RunReport:
        """End the session after the batches in flight: merge, and report; what was queued is NOT_RUN.

        Raises:
            trio.BrokenResourceError: The session failed; its block raises the cause.
        """
        self._closing = True
        if not self._ended.is_set():
            self._exchange.cancel()
        return await self._end()

    # --- inside

    async def serve(
        self,
        on_progress: ProgressCallback | None,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Run the workers to their end, and the report; only `open_session` does this, once."""
        try:
            self._report = await execute(
                self._run,
                self._exchange,
                on_progress=on_progress,
                on_started=task_status.started,
                on_barrier=self._take_news,
            )
        finally:
            self._ended.set()
            self._take_news()
            for event in self._waiting:
                event.set()

    async def _end(self) -> RunReport:
        await self._ended.wait()
        if self._report is None:
            raise trio.BrokenResourceError("the session failed; its block raises the cause")
        return self._report

    def _take_news(self) -> None:
        """Give outcomes that follow from others, and wake who waits. Runs in the trio thread."""
        with self._exchange.looking() as schedule:
            news = schedule.take_settled()
            lost = schedule.unassignable
            self._run.take_unassignable({each: lost[each] for each in news.tolist() if each in lost})
            self._run.take_shared(*schedule.shared())
        settled = news.tolist()
        for event, pending in self._waiting.items():
            pending.difference_update(settled)
            if not pending:
                event.set()
        self._lot.unpark_all()

    async def _until(self, condition: Callable[[Scheduler], bool]) -> None:
        """Wait until something holds of the schedule, or the session has ended."""
        await trio.lowlevel.checkpoint()
        with self._exchange.listening():
            while not self._ended.is_set():
                with self._exchange.looking() as schedule:
                    if condition(schedule):
                        return
                await self._lot.park()

    async def _cancel(self, choose: Callable[[Scheduler], Int32s]) -> int:
        with self._exchange.steering() as schedule:
            cancellation = schedule.cancel_jobs(choose(schedule))
        await self._until(lambda _: cancellation.quiet)
        return cancellation.cancelled

    def _room(self, schedule: Scheduler) -> int | None:
        """How many more may be queued; None: any number."""
        return None if self._capacity is None else max(0, self._capacity - schedule.queued)

    def _fitting(self, schedule: Scheduler, pipelines: Int32s) -> int:
        """How many of some pipelines, from the first on, can be submitted at once now."""
        room = self._room(schedule)
        most = _AT_ONCE if room is None else min(room, _AT_ONCE)
        return int(np.searchsorted(np.cumsum(schedule.absent(pipelines)), most, "right"))

    def _check_open(self) -> None:
        if self.closed or self._exchange.cancelled:
            lost = self._exchange.device_lost
            raise trio.ClosedResourceError(
                f"the device was lost: {lost}" if lost else "the session is closed"
            )


@asynccontextmanager
async def open_session(
    device: Device,
    prepared: PreparedPipelines,
    options: RunOptions = RUN_DEFAULTS,
    *,
    primary: PipelineSource | bytes | None = None,
    costs_ns: npt.NDArray[np.int64] | None = None,
    pipeline_keys: Sequence[bytes | None] | None = None,
    on_merged: MergedHook | None = None,
    on_progress: ProgressCallback | None = None,
) -> AsyncIterator[PipelineSession]:
    """Open the caches, start the workers, and give what steers them; nothing is created unless submitted.

    Args:
        device: As in `run_pipelines`, like all that is not described here.
        prepared: Everything that may be submitted; the caller keeps it open until the block is left.
        options: How. Of `schedule`, the capacity makes `submit` wait beyond so many queued pipelines;
            libraries that come along are let in. With a time limit of 0 it begins with nothing; see
            `PipelineSession.limit_time`.
        primary: The primary cache, which stays the caller's, or initial data for one that the session makes.
        costs_ns: Recorded cost of each pipeline, shape (n,), nanoseconds, 0 where there is none.
        pipeline_keys: What `Device.pipeline_keys` gave for all pipelines, if it was asked.
        on_merged: Called in a thread after each merge on the way.
        on_progress: Called in the trio thread at the start, at most every 100 ms, and at the end.

    Yields:
        The session.

    Raises:
        ValueError: As from `run_pipelines`; there are not as many costs as pipelines.
        DriverError: A cache could not be created.
        ExternalSynchronizationError: The caller used one of the caches during the session.
    """
    run = Run.of(device, prepared, options, primary, on_merged)
    schedule = options.schedule or ScheduleOptions(pin_followers=options.mode not in NO_WORKER_CACHES)
    jobs = JobGraph.of_image(prepared.image, recorded_ns=costs_ns, pipeline_keys=pipeline_keys)
    scheduler = Scheduler(jobs, run.worker_count, evolve(schedule, streaming=True))
    scheduler.exclude(run.table.reasons)
    session = PipelineSession(run, scheduler)
    if options.time_limit_s is not None:
        session.limit_time(options.time_limit_s)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(session.serve, on_progress)
            yield session
            if not session.closed:
                await session.finish()
    except BaseExceptionGroup as group:
        # The caller's own exception, or that of a worker, as itself.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from None
        raise
