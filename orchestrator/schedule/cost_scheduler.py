# Purpose: the scheduler that leaves nothing for last: the longest job first, nothing compiled twice, batches of the
# right size, urgent work first, and a stop whenever it is asked for. This module takes the events; what each of
# its parts does, and why, stands at its top:
#
#   submission.py      jobs come in                lifecycle.py    transitions, singleflight, cancelling
#   job_table.py       states, columns             links.py        libraries
#   ready_queue.py     order by urgency, length    selection.py    which jobs make a batch
#   affinity.py        who prefers what            batching.py     how large a batch is
#   budget.py          when to stop                costs.py        what a job is believed to cost
#   job_queries.py     what can be asked
#
# Answers to `request`:
#
#   cancelled, or nothing queued and no stream open ──> Done
#   budget used up, or nothing fits into the rest    ──> Paused (a Done)
#   an echo of this worker, else a ready job         ──> Assignment, most urgent first, longest first
#   otherwise                                        ──> Wait: for a batch in flight, or for `submit`, `promote`
#
# "Stealing at the tail" needs no step of its own: ready jobs are not handed to workers ahead of time, so a worker
# that is free takes what is left, whoever it suited better.
#
# Guarantees: those of Scheduler, and those of the parts. The machine is deterministic.
# Assumptions: not thread-safe; whoever calls `submit`, `promote`, `budget`, `identify` or `close` wakes the workers that
# wait.
"""`CostScheduler`: longest first, nothing twice, steered while it runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from orchestrator.schedule.affinity import MOST_HIT, SHORT, Affinity
from orchestrator.schedule.batching import SHARES, Experience, Experiences
from orchestrator.schedule.budget import Budget
from orchestrator.schedule.cancellation import Cancellation, Cancellations
from orchestrator.schedule.job_queries import JobQueries
from orchestrator.schedule.job_table import ASSIGNED, UNWANTED, JobState
from orchestrator.schedule.lifecycle import Lifecycle
from orchestrator.schedule.options import Followers, ScheduleOptions
from orchestrator.schedule.ready_queue import PRIORITIES, ReadyQueue
from orchestrator.schedule.scheduler import Assignment, Done, JobGraph, Paused, Priority, Wait
from orchestrator.schedule.selection import FLOORS, Limits, Selector
from orchestrator.schedule.statistics import ScheduleStatistics
from orchestrator.schedule.submission import Accepted, Full, Submission

Int32s = npt.NDArray[np.int32]

_WAIT = Wait()
_DONE = Done()
_PAUSED = Paused()


class CostScheduler(JobQueries):
    """A state machine; see the top of the module. Not thread-safe.

    Args:
        jobs: The jobs that are there at the start; more may be submitted where the options say so.
        workers: Number of workers, numbered 0..workers-1.
        options: Settings.

    Raises:
        ValueError: A number is out of range, arrays do not fit together, or a job links a library that does
            not come before it.
    """

    def __init__(self, jobs: JobGraph, workers: int, options: ScheduleOptions | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self._options = options if options is not None else ScheduleOptions()
        self._workers = workers
        super().__init__(Lifecycle(self._options, workers))
        self._affinity = Affinity(self._table, enabled=self._options.affinity and workers > 1)
        self._submission = Submission(self._life, self._affinity)
        self._selector = Selector(self._table, self._affinity)
        self._experiences = Experiences(self._options.expect_hits)
        self._budget = Budget(workers)
        self._spared = 0
        self._cancellations = Cancellations()
        self._assigned: list[Assignment | None] = [None] * workers
        self._believed_ns = [0.0] * workers
        self._learning: list[tuple[Experience, int]] = [(self._experiences.echoes, 0)] * workers
        self._open = self._options.streaming
        self._cancelled = False
        self._submission.add(jobs)

    # --- jobs in

    def submit(self, jobs: JobGraph) -> Accepted | Full:
        """Add jobs, all or none.

        Args:
            jobs: The jobs. They get the numbers from `count` on; `library_index` and `unusable` speak of such
                numbers, so that earlier jobs can be linked.

        Raises:
            ValueError: The stream is not open, there are more jobs than ever fit, or what the constructor raises.
        """
        if not self._open:
            raise ValueError("nothing can be submitted: the stream was not opened, or was closed")
        capacity = self._options.capacity
        if capacity is not None:
            if len(jobs) > capacity:
                raise ValueError(f"{len(jobs)} jobs at once never fit into a capacity of {capacity}")
            if (room := max(0, capacity - self.queued)) < len(jobs):
                return Full(room)
        return Accepted(self._submission.add(jobs), len(jobs))

    def close(self) -> None:
        """Nothing more will be submitted. Idempotent."""
        self._open = False

    def identify(self, jobs: Int32s, keys: npt.NDArray[np.uint64] | Sequence[bytes | None]) -> None:
        """Give jobs the second-level key that they turned out to have.

        A job that is not assigned yet joins the one with the same key; for one that is, it is too late.

        Args:
            jobs: The jobs, shape (n,).
            keys: Key of each: bytes, exactly as vkGetPipelineKeyKHR gives them, None where there is none; or
                64-bit numbers, 0 where there is none. One kind of key per scheduler.

        Raises:
            ValueError: There is no such job, or the lengths differ.
        """
        self._submission.identify(jobs, keys)

    # --- state

    @property
    def shares_outcomes(self) -> bool:
        """Whether followers get their leader's outcome and are not created."""
        return self._options.followers is Followers.SHARE

    @property
    def remaining_ns(self) -> int:
        """What the remaining jobs are believed to take, one after another, nanoseconds."""
        base, slope = self._experiences.mean_line()
        return int(base * self.queued + slope * self._table.open_cost)

    @property
    def learned(self) -> bool:
        """Whether `remaining_ns` rests on what jobs took in this run, for each kind that was begun."""
        return self._experiences.learned

    @property
    def flights(self) -> list[tuple[Assignment, float]]:
        """What workers are doing, with what that is believed to take, nanoseconds; may be read beside the workers."""
        found = []
        for worker, assignment in enumerate(self._assigned):
            if assignment is not None:
                experience, cost = self._learning[worker]
                base, slope = experience.line()
                found.append((assignment, base * len(assignment.indices) + slope * cost))
        return found

    @property
    def statistics(self) -> ScheduleStatistics:
        """What was done so far."""
        life, table = self._life, self._table
        nbytes = table.nbytes + life.links.nbytes + self._affinity.nbytes + self._submission.nbytes
        nbytes += sum(queue.nbytes for queue in (life.queue, *life.echoes))
        return ScheduleStatistics(
            {state: table.states[state] for state in JobState},
            life.saved[0],
            life.saved[1],
            life.saved_ns,
            self._affinity.at_home,
            self._affinity.moved,
            {kind: each.hit_share for kind, each in self._experiences.items()},
            {kind: each.scale for kind, each in self._experiences.items()},
            nbytes + life.settled.jobs.nbytes,
        )

    # --- workers

    def request(self, worker: int) -> Assignment | Wait | Done:
        """A worker asks for work; see `Scheduler.request` and the top of the module."""
        if self._assigned_to(worker) is not None:
            raise ValueError(f"worker {worker} asks for work before its last assignment has ended")
        if self._cancelled:
            return _DONE
        if not self._table.queued:
            return _WAIT if self._open else _DONE
        priorities = PRIORITIES if self._budget.left(worker) > 0 else self._spared
        if not priorities:
            return _PAUSED
        echoes = self._life.echoes[worker if self._options.pin_followers else 0]
        for priority in range(priorities):
            for queue in (echoes, self._life.queue):
                for line in queue.lines(priority) if queue.open else ():
                    jobs = self._take(queue, line, worker)
                    if len(jobs):
                        return self._assign(worker, jobs, queue)
        # What is ready and was not taken did not fit into what is left of the budget.
        if self._budget.limited and (echoes.open or self._life.queue.open):
            return _PAUSED
        return _WAIT

    def finished(
        self, worker: int, assignment: Assignment, *, hits: int = 0, compiles: int = 0, elapsed_ns: int = 0
    ) -> None:
        """A worker's assignment ended and all its jobs were created; see `Scheduler.finished`."""
        self._end(worker, assignment, hits, compiles, elapsed_ns)
        self._life.created(assignment.indices, compiled=compiles > 0 or not hits)

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
        """A worker's assignment ended and some jobs were not created; see `Scheduler.failed`."""
        bad = np.fromiter(reasons, np.int32, len(reasons))
        if not np.isin(bad, assignment.indices).all():
            raise ValueError("a reason is given for a job that is not in the assignment")
        self._end(worker, assignment, hits, compiles, elapsed_ns)
        self._life.failed(reasons)
        created = assignment.indices[~np.isin(assignment.indices, bad)]
        self._life.created(created, compiled=compiles > 0 or not hits)

    # --- steering

    def promote(self, jobs: Iterable[int], priority: Priority) -> int:
        """Make jobs at least so urgent, with the libraries and the leaders that they wait for.

        A job in flight or settled stays as it is.

        Returns:
            How many became more urgent, those that they wait for included.
        """
        return sum(self._life.raise_(self._checked(job), priority) for job in jobs)

    def budget(self, limit_ns: int | None) -> None:
        """Begin a new budget in the place of the last: "2 s from now", "4 ms for this frame".

        Each worker is handed work as long as that is believed to end in time; then it gets `Paused`. Batches in
        flight count against it. The first batch of a budget may overrun it by one job, if nothing else is in
        flight, so that every job gets its turn. What is left is `remaining`; the next budget goes on with it.

        Args:
            limit_ns: Time for each worker from now on, nanoseconds; 0 hands out nothing; None lifts the limit.

        Raises:
            ValueError: It is negative.
        """
        if limit_ns is not None and limit_ns < 0:
            raise ValueError(f"a budget of {limit_ns} ns is negative")
        self._budget.set(limit_ns, list(self._believed_ns))

    def leave(self, worker: int, time_ns: int) -> None:
        """Leave a worker so much of the budget: for a caller with a clock, which also sees what is not spent in batches."""
        self._budget.leave(worker, time_ns)

    def spare(self, priority: Priority | None) -> None:
        """Hand out jobs that are at least so urgent whatever the budget says; None: no job."""
        self._spared = 0 if priority is None else priority + 1

    def want(self, jobs: Iterable[int]) -> None:
        """Take the cancelling of jobs back that are queued all the same, because others link them."""
        for job in jobs:
            self._table.flags_at[self._checked(job)] &= ~UNWANTED & 0xFF

    def cancel(self) -> None:
        """Assign nothing more; see `Scheduler.cancel`. What is queued stays so, for `remaining`."""
        self._cancelled = True

    def cancel_all(self) -> Cancellation:
        """Cancel every job that is queued; more may be submitted."""
        return self._cancel(np.flatnonzero(self._table.state[: self._table.count] <= ASSIGNED))

    def cancel_group(self, group: int) -> Cancellation:
        """Cancel the queued jobs of a group."""
        table = self._table
        return self._cancel(
            np.flatnonzero((table.group[: table.count] == group) & (table.state[: table.count] <= ASSIGNED))
        )

    def cancel_jobs(self, jobs: Iterable[int]) -> Cancellation:
        """Cancel those of the jobs that are queued.

        One that others link is created all the same, unless they are cancelled too. One that is in flight ends
        as it would; the answer says when. One that others follow hands the work over to them.
        """
        return self._cancel(np.array(sorted({self._checked(job) for job in jobs}), np.int64))

    def __repr__(self) -> str:
        states = ", ".join(
            f"{number} {state.name.lower()}" for state in JobState if (number := self._table.states[state])
        )
        return f"<CostScheduler{' cancelled' if self._cancelled else ''}: {states or 'no jobs'}>"

    # --- inside

    def _take(self, queue: ReadyQueue, line: int, worker: int) -> Int32s:
        """A batch from a line that has entries, or nothing where its jobs do not fit into the budget."""
        echo = queue is not self._life.queue
        experience = self._experiences.echoes if echo else self._experiences.of(line // PRIORITIES)
        base, slope = experience.line()
        table, shares = self._table, SHARES * self._workers
        left_ns = math.inf if line % PRIORITIES < self._spared else self._budget.left(worker)
        time_ns = min(self._options.target_ns, left_ns)
        size = self._options.batch_limit
        if not echo:
            # Only this worker can create its echoes, so there is nothing to be shared out.
            time_ns = min(time_ns, (base * table.queued + slope * table.open_cost) / shares)
            size = min(size, max(1, table.queued // shares))
            if not experience.tried and experience.hit_share < MOST_HIT:
                # How far off the costs are is not known yet, and whoever cuts the first batch pays for it.
                size = 1
        limits = Limits(base, slope, time_ns, left_ns, size)
        # Where everything hits as it is, nothing is to be gained from who does it.
        picky = not echo and self._affinity.active and experience.hit_share < MOST_HIT
        if picky:
            longest_ns = FLOORS[queue.masks[line].bit_length() - 1]
            picky = longest_ns * SHORT * self._workers <= table.open_cost
        jobs = self._selector.take(queue, line, worker, limits, picky=picky)
        if not len(jobs) and picky:
            jobs = self._selector.take(queue, line, worker, limits, picky=False)
        if not len(jobs) and self._budget.fresh and not self.in_flight:
            jobs = self._selector.shortest(queue, line, worker)
        return jobs

    def _assign(self, worker: int, jobs: Int32s, queue: ReadyQueue) -> Assignment:
        table = self._table
        first = int(jobs[0])
        kind = table.kind_at[first]
        experience = self._experiences.of(kind) if queue is self._life.queue else self._experiences.echoes
        cost = table.cost_at[first] if len(jobs) == 1 else int(table.cost[jobs].sum())
        if self._affinity.active and experience.hit_share < MOST_HIT:
            if len(jobs) == 1:
                self._affinity.assigned(first, worker)
            else:
                self._affinity.assigned_all(jobs, worker)
        base, slope = experience.line()
        self._learning[worker] = (experience, cost)
        self._believed_ns[worker] = believed = base * len(jobs) + slope * cost
        self._budget.spend(worker, believed)
        jobs.flags.writeable = False
        self._assigned[worker] = assignment = Assignment(jobs, kind)
        return assignment

    def _end(self, worker: int, assignment: Assignment, hits: int, compiles: int, elapsed_ns: int) -> None:
        if self._assigned_to(worker) is not assignment:
            raise ValueError(f"worker {worker} ends an assignment that it does not hold")
        self._assigned[worker] = None
        experience, cost = self._learning[worker]
        experience.learn(len(assignment.indices), cost, hits, compiles, elapsed_ns)
        self._budget.correct(worker, self._believed_ns[worker], elapsed_ns)
        self._believed_ns[worker] = 0.0
        self._cancellations.ended(worker)

    def _cancel(self, jobs: npt.NDArray[np.int64]) -> Cancellation:
        cancellation = Cancellation()
        self._life.cancel(reversed(jobs.tolist()), cancellation)
        return self._cancellations.watch(cancellation)

    def _assigned_to(self, worker: int) -> Assignment | None:
        if not 0 <= worker < self._workers:
            raise ValueError(f"there is no worker {worker}; workers are 0..{self._workers - 1}")
        return self._assigned[worker]
