# Purpose: the schedule of a session: of an image that is known as a whole, the pipelines that were submitted so far. It speaks
# in indices of the image to the workers and to the session, and in numbers of jobs, which grow by submission, to the
# machine behind it.
#
#   enter(indices) ──> those that are not there yet, with the libraries that they link ──> machine.submit
#                 └──> those that are: as urgent as they are asked for now
#   request        ──> jobs ──> indices;  no time left ──> Wait, where a run would end: there may be a new budget
#
# A cancelled pipeline can be entered again; it is a new job then. A library that nobody asked for by itself goes when the last of
# what links it was cancelled.
#
# Guarantees: a pipeline is one job at a time, so it is never in two batches. What was created is never created again.
# Assumptions: not thread-safe: called under the lock of the exchange.
"""`SteeredSchedule`: a `CostScheduler` over the submitted part of an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import evolve

from orchestrator.devices.image import CreateInfoImage
from orchestrator.run.tickets import NO_GROUP
from orchestrator.run.time_limits import Deadline
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
