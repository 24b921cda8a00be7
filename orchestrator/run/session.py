"""`PipelineTicket`, `PipelineOutcome` and `Remainder`.

What a session hands to its caller: a ticket for what was submitted, what became of a pipeline, and what is
left.

Guarantees: outcomes and remainders are values. A ticket only refers to its session, and may be dropped at
any time.

`SteeredSchedule`: a `CostScheduler` over the submitted part of an image.

The schedule of a session: of an image that is known as a whole, the pipelines that were submitted so far.
It speaks in indices of the image to the workers and to the session, and in numbers of jobs, which grow by
submission, to the machine behind it.

enter(indices) ──> those that are not there yet, with the libraries that they link ──> machine.submit └──>
those that are: as urgent as they are asked for now request        ──> jobs ──> indices;  no time left ──>
Wait, where a run would end: there may be a new budget

A cancelled pipeline can be entered again; it is a new job then. A library that nobody asked for by itself
goes when the last of what links it was cancelled.

Guarantees: a pipeline is one job at a time, so it is never in two batches. What was created is never
created again.

Assumptions: not thread-safe: called under the lock of the exchange.

`SteeredExchange`: an exchange that a caller may steer.

The exchange of a session: what a caller does to the schedule happens under the lock that the workers take
for a batch, and whoever it concerns is woken.

caller:  with steering() ──> change ──> workers that wait ask again worker:  swap ──> its batch has ended
──> workers that hoped for that ask again; who listens is told, in the trio thread

Guarantees: no change is missed by who listens. A worker that waits is not woken by what gives it no work:
each time costs a change of threads, and with many workers those add up to more than a frame has.

Assumptions: all but `swap`, `cancel` and `lose_device` belong to the trio thread.

`PipelineSession`: a run that is steered while it goes on.

A run that its caller steers while it goes on: what is needed first, what a frame may take, what is needed
no more.

open_session ──> caches, workers ──┐        submit, promote, require ─┐ ├──────  budget, run_for
├──> exchange ──> workers finish / close <── merge, report ──┘        cancel_* ─────────────────┘

It is the run of `run_pipelines` (execution.py); only the schedule is another one (steered_schedule.py).

Guarantees, beside those of a run: - What `cancel_jobs`, `cancel_group` and `cancel_all` name has come to
rest when they return: no driver call is about it, so no cache is in use for it. - A budget stops between
batches. What is left stays queued for the next one, and its order may be changed in between. - `submit`
waits where the queue is full, and takes what it is given in order. - Leaving the block waits for what was
submitted. Leaving it by an exception, or cancelled, does not: the calls in flight are waited for, what was
compiled is merged, and what was kept and not taken is destroyed.

Assumptions: a session belongs to the trio thread; any number of tasks may use it there.

`open_session`: a run that is steered while it goes on, for the time of a block.

How a session comes to be and ends: a run beside the caller's block, in a nursery of its own.

Guarantees: those at the top of session.py. What ends the block, the caller's exception or that of a worker,
comes out as itself.

Assumptions: those of `run_pipelines`, whose arguments these are, with the schedule's own in the place of a
scheduler.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import trio
from attrs import evolve, field, frozen

from orchestrator.devices.device import Device, PipelineCache, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.run.caches import MergedHook
from orchestrator.run.exchange import Deadline, Exchange
from orchestrator.run.execution import Run, execute
from orchestrator.run.options import NO_WORKER_CACHES, RUN_DEFAULTS, RunOptions
from orchestrator.run.records import PipelineOutcome, Progress, ProgressCallback, RunReport
from orchestrator.schedule import (
    Assignment,
    Cancellation,
    CostScheduler,
    Done,
    JobGraph,
    JobState,
    Paused,
    Priority,
    ScheduleOptions,
    Wait,
)
from orchestrator.schedule.graphs import believed_costs


@frozen
class Remainder:
    """What a budget left over.

    Attributes:
        queued: Pipelines that were submitted and have not begun.
        in_flight: Pipelines in a driver call.
        believed_ns: What the queued ones are believed to take, one after another.
    """

    queued: int
    in_flight: int
    believed_ns: int

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
        """Wait until all of them have an outcome, or were cancelled, or the session has ended; returns what became of each."""
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

_WAIT = Wait()
_NO_JOBS = JobGraph(np.zeros(0, np.uint8), np.zeros(1, np.int64), np.zeros(0, np.int32))

_AT_ONCE = 1024
"""Most pipelines that enter at once: a worker that wants its next batch waits meanwhile."""


class SteeredSchedule:
    """What of an image was submitted, and what comes next. See `Scheduler`, and the top of the module.

    Args:
        image: The pipelines.
        workers: Number of workers.
        options: Settings; `capacity` is that of the session, and the stream is open whatever they say.
        costs_ns: What each pipeline is believed to cost, shape (n,), nanoseconds.
        reasons: Pipelines that cannot be created, with the reason.
        pipeline_keys: What `Device.pipeline_keys` gave for all pipelines, if it was asked.
        deadline: Until when work may begin.

    Attributes:
        capacity: Most pipelines that may be queued; None: no bound.
    """

    def __init__(
        self,
        image: CreateInfoImage,
        workers: int,
        options: ScheduleOptions,
        costs_ns: npt.NDArray[np.int64],
        reasons: Mapping[int, str],
        pipeline_keys: Sequence[bytes | None] | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self.capacity = options.capacity
        self._image = image
        self._workers = workers
        self._costs_ns = costs_ns
        self._reasons = dict(reasons)
        self._pipeline_keys = pipeline_keys
        self._deadline = deadline if deadline is not None else Deadline()
        self._machine = CostScheduler(_NO_JOBS, workers, evolve(options, streaming=True, capacity=None))
        count = len(image)
        self._index_of: Int32s = np.empty(count, np.int32)
        self._job_of = np.full(count, -1, np.int32)
        self._entered = np.zeros(count, np.bool_)
        self._wanted = np.zeros(count, np.bool_)
        self._group = np.full(count, NO_GROUP, np.int32)
        self._given: list[Assignment | None] = [None] * workers
        self._news: list[Int32s] = []
        self._sparing = False
        # Workers that asked in vain since there was something new for them, and those for which the end of a batch is something new.
        self._resting: set[int] = set()
        self._hoping: set[int] = set()
        self._roused = False

    # --- the session's side

    @property
    def room(self) -> int | None:
        """How many more may be queued; None: any number."""
        return None if self.capacity is None else max(0, self.capacity - self._machine.queued)

    def fitting(self, indices: Int32s) -> int:
        """How many of some pipelines, from the first on, can be submitted at once now."""
        room = self.room
        most = _AT_ONCE if room is None else min(room, _AT_ONCE)
        return int(np.searchsorted(np.cumsum(self.absent(indices)), most, "right"))

    def absent(self, indices: Int32s) -> npt.NDArray[np.bool_]:
        """Which of some pipelines would be new jobs."""
        self._settle()
        return ~self._entered[indices]

    def enter(self, indices: Int32s, priority: Priority, group: int = NO_GROUP) -> None:
        """Submit pipelines, with the libraries that they link; make those that are queued at least so urgent.

        Args:
            indices: The pipelines, ascending, none twice.
            priority: How urgent they are.
            group: A number of the caller's, by which they can be cancelled; the last one counts.
        """
        self._settle()
        there = indices[self._entered[indices]]
        new = self._missing(indices)
        if len(new):
            self._submit(new, np.isin(new, indices), priority)
        self._machine.promote(self._job_of[there].tolist(), priority)
        self._machine.want(self._job_of[there[~self._wanted[there]]].tolist())
        self._wanted[indices] = True
        self._group[indices] = group

    def promote(self, indices: Int32s, priority: Priority) -> int:
        """Make pipelines that are queued at least so urgent; returns how many changed, what they wait for included."""
        self._settle()
        return self._machine.promote(self._job_of[indices[self._entered[indices]]].tolist(), priority)

    def cancel_jobs(self, indices: Int32s) -> Cancellation:
        """Cancel pipelines, and the libraries that nobody else wants."""
        self._settle()
        named = self.unsettled(indices[self._entered[indices]])
        self._wanted[named] = False
        level, all_named = named, named
        while len(level):
            libraries = self._libraries_of(level)
            level = libraries[
                self._entered[libraries] & ~self._wanted[libraries] & ~np.isin(libraries, all_named)
            ]
            all_named = np.union1d(all_named, level).astype(np.int32)
        cancellation = self._machine.cancel_jobs(self._job_of[all_named].tolist())
        self._settle()
        return cancellation

    def members(self, group: int | None) -> Int32s:
        """The pipelines of a group that were submitted and not cancelled, or of all groups and none."""
        self._settle()
        chosen = self._entered if group is None else self._entered & (self._group == group)
        return np.flatnonzero(chosen).astype(np.int32)

    def budget(self, limit_ns: int | None) -> None:
        """Let work begin for so long from now; None: for ever."""
        self._deadline.begin(limit_ns)
        self._machine.budget(limit_ns)

    def spare(self, urgent: bool) -> None:
        """Whether what is to be there now begins whatever the budget says."""
        self._sparing = urgent
        self._machine.spare(Priority.NOW if urgent else None)

    def close(self) -> None:
        """Nothing more will be submitted."""
        self._machine.close()

    def remaining(self) -> Int32s:
        """Pipelines that are queued, the most urgent first."""
        return self._index_of[self._machine.remaining()]

    @property
    def remaining_ns(self) -> int:
        """What they are believed to take, one after another."""
        return self._machine.remaining_ns

    def unsettled(self, indices: Int32s) -> Int32s:
        """Those of some pipelines that are queued or in flight."""
        jobs = self._job_of[indices]
        there, jobs = indices[jobs >= 0], jobs[jobs >= 0]
        return there[self._machine.states_of(jobs) <= JobState.ASSIGNED]

    def take_news(self) -> tuple[Int32s, dict[int, str]]:
        """Pipelines that were settled since the last call and still are, and why some will not be created."""
        self._settle()
        if not self._news:
            return np.empty(0, np.int32), {}
        news = np.unique(np.concatenate(self._news)).astype(np.int32)
        self._news = []
        jobs = self._job_of[news]
        states = self._machine.states_of(jobs)
        lost = states == JobState.UNASSIGNABLE
        reasons = {
            index: self._machine.unassignable[job]
            for index, job in zip(news[lost].tolist(), jobs[lost].tolist(), strict=True)
        }
        return news[states > JobState.ASSIGNED], reasons

    @property
    def at_rest(self) -> bool:
        """Whether nothing is in flight, and no worker gets anything unless something new happens."""
        return len(self._resting) == self._workers and not self.in_flight

    def rouse(self) -> None:
        """Something happened that may give work to any worker."""
        self._resting.clear()
        self._hoping.clear()
        self._roused = True

    def take_roused(self) -> bool:
        """Whether workers that wait should ask again."""
        roused, self._roused = self._roused, False
        return roused

    # --- the workers' side: `Scheduler`

    def request(self, worker: int) -> Assignment | Wait | Done:
        """A worker asks for work; it waits where the time is over, for there may be more."""
        machine = self._machine
        left_ns = self._deadline.left_ns
        if left_ns is not None:
            machine.leave(worker, left_ns)
        answer = machine.request(worker)
        if isinstance(answer, Assignment):
            self._resting.discard(worker)
            self._hoping.discard(worker)
            self._given[worker] = answer
            indices = self._index_of[answer.indices]
            indices.flags.writeable = False
            return Assignment(indices, answer.kind)
        self._resting.add(worker)
        if isinstance(answer, Paused):
            if self._sparing:
                self._hoping.add(worker)
            return _WAIT
        if machine.queued:
            self._hoping.add(worker)
        return answer

    def finished(
        self, worker: int, assignment: Assignment, *, hits: int = 0, compiles: int = 0, elapsed_ns: int = 0
    ) -> None:
        """A worker's assignment ended and all was created; see `Scheduler.finished`."""
        given = self._end(worker, assignment)
        self._machine.finished(worker, given, hits=hits, compiles=compiles, elapsed_ns=elapsed_ns)

    def failed(
        self,
        worker: int,
        assignment: Assignment,
        reasons: Mapping[int, str],
        *,
        hits: int = 0,
        compiles: int = 0,
        elapsed_ns: int = 0,
    ) -> None:
        """A worker's assignment ended and some was not created; see `Scheduler.failed`."""
        given = self._end(worker, assignment)
        by_job = {int(self._job_of[index]): reason for index, reason in reasons.items()}
        self._machine.failed(worker, given, by_job, hits=hits, compiles=compiles, elapsed_ns=elapsed_ns)

    def cancel(self) -> None:
        """Assign nothing more."""
        self._machine.cancel()
        self.rouse()

    @property
    def queued(self) -> int:
        """Pipelines that are queued."""
        return self._machine.queued

    @property
    def in_flight(self) -> int:
        """Pipelines in a driver call."""
        return self._machine.in_flight

    @property
    def done(self) -> int:
        """Pipelines that were assigned and have ended."""
        return self._machine.done

    @property
    def unassignable(self) -> Mapping[int, str]:
        """Pipelines that will not be assigned, with the reason."""
        found = {}
        for job, reason in self._machine.unassignable.items():
            index = int(self._index_of[job])
            if self._job_of[index] == job:
                found[index] = reason
        return found

    @property
    def shares_outcomes(self) -> bool:
        """Whether pipelines may get the outcome of others."""
        return self._machine.shares_outcomes

    def shared(self) -> tuple[Int32s, Int32s]:
        """Pipelines that have the outcome of others, and those others."""
        followers, leaders = self._machine.shared()
        return self._index_of[followers], self._index_of[leaders]

    def __repr__(self) -> str:
        return f"<SteeredSchedule of {len(self._image)}: {self._machine!r}>"

    # --- inside

    def _settle(self) -> None:
        """Take in what the machine has settled: what was cancelled may be entered again."""
        jobs = self._machine.take_settled()
        if len(jobs):
            indices = self._index_of[jobs]
            current = self._job_of[indices] == jobs
            indices, jobs = indices[current], jobs[current]
            cancelled = indices[self._machine.states_of(jobs) == JobState.CANCELLED]
            self._entered[cancelled] = False
            self._wanted[cancelled] = False
            self._news.append(indices)

    def _end(self, worker: int, assignment: Assignment) -> Assignment:
        given, self._given[worker] = self._given[worker], None
        # Who rests rests on, except those that hoped for the end of a batch.
        if self._hoping:
            self._resting -= self._hoping
            self._hoping.clear()
            self._roused = True
        return assignment if given is None else given

    def _missing(self, indices: Int32s) -> Int32s:
        """Those of some pipelines that are no jobs, and what they link that is none either, ascending."""
        new = level = indices[~self._entered[indices]]
        while len(level):
            libraries = self._libraries_of(level)
            level = libraries[~self._entered[libraries] & ~np.isin(libraries, new)]
            if len(level):
                new = np.union1d(new, level).astype(np.int32)
        return new

    def _libraries_of(self, indices: Int32s) -> Int32s:
        image = self._image
        if not len(image.library_slot_pipeline):
            return indices[:0]
        return np.unique(_rows(image.library_slot_start, image.library_slot_pipeline, indices)[1]).astype(
            np.int32
        )

    def _submit(self, new: Int32s, asked: npt.NDArray[np.bool_], priority: Priority) -> None:
        image, machine = self._image, self._machine
        first = machine.count
        jobs = np.arange(first, first + len(new), dtype=np.int32)
        if first + len(new) > len(self._index_of):
            self._index_of = np.resize(self._index_of, 2 * (first + len(new)))
        self._index_of[jobs] = new
        self._job_of[new] = jobs
        self._entered[new] = True
        self._group[new] = NO_GROUP
        library_start, libraries = _rows(image.library_slot_start, image.library_slot_pipeline, new)
        module_start, modules = _rows(image.module_slot_start, image.module_slot_module, new)
        machine.submit(
            JobGraph(
                image.kinds[new],
                library_start,
                self._job_of[libraries],
                {
                    job: self._reasons[index]
                    for job, index in zip(jobs.tolist(), new.tolist(), strict=True)
                    if index in self._reasons
                }
                if self._reasons
                else {},
                costs_ns=self._costs_ns[new],
                keys=image.keys[new],
                module_start=module_start,
                module_index=modules,
                # A library becomes as urgent as what links it, by that.
                priorities=np.where(asked, priority, Priority.BACKGROUND).astype(np.uint8),
                numbers=new,
            )
        )
        if self._pipeline_keys is not None:
            machine.identify(jobs, [self._pipeline_keys[index] for index in new.tolist()])
        # Nobody asked for these by themselves: they are there as long as something links them.
        machine.cancel_jobs(jobs[~asked].tolist())


def _rows(start: npt.NDArray[np.int64], values: Int32s, rows: Int32s) -> tuple[npt.NDArray[np.int64], Int32s]:
    """Some rows of a ragged array: where each begins, with the end, and their values."""
    begin = start[rows]
    lengths = start[rows + 1] - begin
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    places = np.arange(ends[-1]) + np.repeat(begin - ends[:-1], lengths)
    return ends, values[places].astype(np.int32)


class SteeredExchange(Exchange):
    """The schedule of a session, shared by its workers and its caller.

    Args:
        schedule: The schedule; nobody else may use it from now on.
        on_change: Called in the trio thread after changes while somebody listens.
    """

    def __init__(self, schedule: SteeredSchedule, on_change: Callable[[], None]) -> None:
        super().__init__(schedule)
        self._schedule = schedule
        self._on_change = on_change
        self._listeners = 0

    @contextmanager
    def looking(self) -> Iterator[SteeredSchedule]:
        """Hold the lock, to ask something."""
        with self._lock:
            yield self._schedule

    @contextmanager
    def steering(self) -> Iterator[SteeredSchedule]:
        """Hold the lock, to change something; workers that wait ask again afterwards."""
        with self._lock:
            yield self._schedule
            self._schedule.rouse()
            self._changed()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Be told of changes by `on_change`. Look at the schedule only after entering this."""
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1

    def swap(
        self,
        worker: int,
        ended: Assignment | None,
        reasons: Mapping[int, str],
        hits: int = 0,
        elapsed_ns: int = 0,
    ) -> tuple[Assignment | Wait | Done, int]:
        """End an assignment and ask for the next, as `Exchange.swap`; that nothing is left to do is a change as well."""
        answer, seen = super().swap(worker, ended, reasons, hits, elapsed_ns)
        if self._listeners and isinstance(answer, Wait) and self._schedule.at_rest:
            self._token.run_sync_soon(self._on_change, idempotent=True)
        return answer, seen

    def _changed(self) -> None:
        self._changes += 1
        if self._schedule.take_roused() and self._waiting:
            self._token.run_sync_soon(self._lot.unpark_all, idempotent=True)
        if self._listeners:
            self._token.run_sync_soon(self._on_change, idempotent=True)


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


@asynccontextmanager
async def open_session(
    device: Device,
    prepared: PreparedPipelines,
    options: RunOptions = RUN_DEFAULTS,
    *,
    primary: PipelineCache | bytes | None = None,
    costs_ns: npt.NDArray[np.int64] | None = None,
    pipeline_keys: Sequence[bytes | None] | None = None,
    on_merged: MergedHook | None = None,
    on_progress: ProgressCallback | None = None,
) -> AsyncIterator[PipelineSession]:
    """Open the caches, start the workers, and give what steers them. Nothing is created before it is submitted.

    Args:
        device: As in `run_pipelines`, like all that is not described here.
        prepared: Everything that may be submitted; the caller keeps it open until the block is left.
        options: How. Of `schedule`, the capacity makes `submit` wait beyond so many queued pipelines; libraries that
            come along are let in. With a time limit of 0 it begins with nothing; see `PipelineSession.budget`.
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
    costs = believed_costs(prepared.image, costs_ns)
    session = PipelineSession(
        run,
        SteeredSchedule(prepared.image, run.worker_count, schedule, costs, run.table.reasons, pipeline_keys),
    )
    if options.time_limit_s is not None:
        session.budget(options.time_limit_s)
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
