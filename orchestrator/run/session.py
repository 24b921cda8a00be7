# Purpose: a run that its caller steers while it goes on: what is needed first, what a frame may take, what is needed no more.
#
#   open_session ──> caches, workers ──┐        submit, promote, require ─┐
#                                      ├──────  budget, run_for           ├──> exchange ──> workers
#   finish / close <── merge, report ──┘        cancel_* ─────────────────┘
#
# It is the run of `run_pipelines` (execution.py); only the schedule is another one (steered_schedule.py).
#
# Guarantees, beside those of a run:
# - What `cancel_jobs`, `cancel_group` and `cancel_all` name has come to rest when they return: no driver call is about it, so no
#   cache is in use for it.
# - A budget stops between batches. What is left stays queued for the next one, and its order may be changed in between.
# - `submit` waits where the queue is full, and takes what it is given in order.
# - Leaving the block waits for what was submitted. Leaving it by an exception, or cancelled, does not: the calls in flight are
#   waited for, what was compiled is merged, and what was kept and not taken is destroyed.
#
# Assumptions: a session belongs to the trio thread; any number of tasks may use it there.
"""`PipelineSession`: a run that is steered while it goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import trio

from orchestrator.run.execution import Run, execute
from orchestrator.run.outcomes import OutcomeStatus, RunReport
from orchestrator.run.progress import Progress, ProgressCallback
from orchestrator.run.steered_exchange import SteeredExchange
from orchestrator.run.steered_schedule import SteeredSchedule
from orchestrator.run.tickets import (
    PipelineOutcome,
    Pipelines,
    PipelineTicket,
    Remainder,
    checked_group,
    checked_pipelines,
)
from orchestrator.schedule import Priority

Int32s = npt.NDArray[np.int32]

_STATUSES = tuple(OutcomeStatus)


class PipelineSession:
    """A run that is steered; made by `open_session`. Belongs to the trio thread.

    It owns its caches, and the pipelines that it keeps until they are taken or reported.
    """

    def __init__(self, run: Run, schedule: SteeredSchedule) -> None:
        """Wrap a run; only `open_session` does this."""
        self._run = run
        self._exchange = SteeredExchange(schedule, self._take_news)
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

        One that is queued becomes at least so urgent; one that was created or failed is left alone; one that was cancelled is
        queued again. Producers of one priority are served in their order. Cancelled while it waits, what was taken stays.

        Args:
            pipelines: The pipelines.
            priority: How urgent they are.
            group: A number of the caller's, at least 0, by which they can be cancelled; a pipeline is in the group that it
                was last submitted with.

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
                    taken = schedule.fitting(rest)
                    schedule.enter(rest[:taken], priority, number)
                    rest = rest[taken:]
                if not len(rest):
                    return PipelineTicket(self, asked)
                if taken == 0:
                    await self._until(lambda schedule: schedule.room != 0)
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
            room = schedule.room
            if room is not None and int(np.count_nonzero(schedule.absent(asked))) > room:
                raise trio.WouldBlock
            schedule.enter(asked, priority, number)
        return PipelineTicket(self, asked)

    async def require(self, pipeline: int) -> PipelineOutcome:
        """Wait until a pipeline is there, before everything else: submit or promote it, or join it if it is in flight.

        It passes a full queue, and while somebody waits here what is due NOW passes a budget that is used up too.

        Raises:
            ValueError: There is no such pipeline.
            trio.ClosedResourceError: The session is closed, or its device was lost.
        """
        asked = checked_pipelines(len(self._run.table), pipeline)
        self._check_open()
        with self._exchange.steering() as schedule:
            schedule.enter(asked, Priority.NOW)
            self._required += 1
            schedule.spare(True)
        try:
            (outcome,) = await self.wait(asked)
        finally:
            with self._exchange.steering() as schedule:
                self._required -= 1
                schedule.spare(self._required > 0)
        return outcome

    def promote(self, pipelines: Pipelines, priority: Priority) -> int:
        """Make pipelines that are queued at least so urgent, with what they wait for.

        One that is in flight or settled stays as it is, one that was not submitted is left alone. Nothing becomes less urgent.

        Returns:
            How many became more urgent, what they wait for included.

        Raises:
            ValueError: There is no such pipeline.
        """
        asked = checked_pipelines(len(self._run.table), pipelines)
        with self._exchange.steering() as schedule:
            return schedule.promote(asked, priority)

    # --- time

    def budget(self, seconds: float | None) -> None:
        """Let batches begin for so long from now, in the place of what was said before.

        A batch begins where it is believed to end in time; where nothing does, one pipeline all the same, if nothing else is in
        flight, so that a pipeline that takes longer than a frame gets its turn.

        Args:
            seconds: 0 stops after the batches in flight; None or infinity: without end, as a session begins.

        Raises:
            ValueError: It is negative.
        """
        if seconds is not None and not seconds >= 0:
            raise ValueError(f"a budget of {seconds} s is negative")
        with self._exchange.steering() as schedule:
            schedule.budget(None if seconds is None or seconds == math.inf else round(seconds * 1e9))

    async def run_for(self, seconds: float) -> Remainder:
        """Spend so much of a frame: set a budget, and come back when it is over, or before if nothing is left to do.

        A batch that has begun goes on beside the caller; it is not waited for, or one long pipeline would hold the frame.

        Returns:
            What is left, for the next budget.

        Raises:
            ValueError: It is negative.
        """
        self.budget(seconds)
        with trio.move_on_after(seconds):
            await self._until(lambda schedule: schedule.at_rest)
        return self.remainder

    # --- cancelling

    async def cancel_jobs(self, pipelines: Pipelines) -> int:
        """Cancel those of some pipelines that are queued, and wait for those that are in flight.

        What others link is created all the same. When this returns nothing uses a cache for any other of them; cancelled itself,
        it returns early, but nothing more of them begins.

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
        """Wait until pipelines are settled: created, failed, skipped or cancelled, never submitted, or the session has ended.

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
        table = self._run.table
        status = _STATUSES[int(table.status[index])]
        handle = 0 if table.handles is None else int(table.handles[index])
        key = int(self._run.prepared.image.keys[index])
        return PipelineOutcome(index, key, status, table.reasons.get(index, ""), handle)

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
            Their handles, in ascending order of the indices, shape (n,), 0 where there is none (yet), or it was taken before.

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
        """Create everything that was submitted, whatever the budget, and end the session: merge, and report.

        Raises:
            trio.BrokenResourceError: The session failed; its block raises the cause.
        """
        self._closing = True
        with self._exchange.steering() as schedule:
            schedule.budget(None)
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
            news, reasons = schedule.take_news()
            self._run.take_unassignable(reasons)
            self._run.take_shared(*schedule.shared())
        settled = news.tolist()
        for event, pending in self._waiting.items():
            pending.difference_update(settled)
            if not pending:
                event.set()
        self._lot.unpark_all()

    async def _until(self, condition: Callable[[SteeredSchedule], bool]) -> None:
        """Wait until something holds of the schedule, or the session has ended."""
        await trio.lowlevel.checkpoint()
        with self._exchange.listening():
            while not self._ended.is_set():
                with self._exchange.looking() as schedule:
                    if condition(schedule):
                        return
                await self._lot.park()

    async def _cancel(self, choose: Callable[[SteeredSchedule], Int32s]) -> int:
        with self._exchange.steering() as schedule:
            cancellation = schedule.cancel_jobs(choose(schedule))
        await self._until(lambda _: cancellation.quiet)
        return cancellation.cancelled

    def _check_open(self) -> None:
        if self.closed or self._exchange.cancelled:
            lost = self._exchange.device_lost
            raise trio.ClosedResourceError(
                f"the device was lost: {lost}" if lost else "the session is closed"
            )
