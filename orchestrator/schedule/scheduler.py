"""`Scheduler` decides which worker compiles which jobs, and when. A pure machine: events in, assignments out.

It assigns the most urgent jobs first, and of those the longest (or the next in the given order). It does no
work twice, fits batches to the work that is left, and stops when asked.

    jobs.py          the jobs, their states, and what is the same work
    transitions.py   what an event does to a job, and what follows from it for others
    batches.py       which ready jobs make a batch
    costs.py         what a job is estimated to cost

Answers to `request`:

    cancelled, or nothing queued and no stream open                     ──> Done
    the deadline has passed, or nothing fits into the time that is left ──> Paused
    a follower for this worker, else a job to be tried without its
    code, else a job to compile, else an expected hit                   ──> Assignment, most urgent first
    otherwise                                                           ──> Wait

Ready jobs wait in queues that all workers share, so no worker has to steal from another.

Guarantees: a job is assigned at most once, and only after all libraries that it links were created. A job
that can no longer be assigned is in `unassignable`, with the reason, as soon as the event that caused it
returns. After `cancel` nothing more is assigned. The same events give the same answers.
Assumptions: not thread-safe; the caller holds a lock (run/exchange.py) and wakes waiting workers. There is no
clock: `request` is told the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.schedule.batches import Entry, Experience, ReadyQueue, batch_limits
from orchestrator.schedule.jobs import (
    ABSENT,
    ASSIGNED,
    CANCELLED,
    COMPILE,
    FOLLOW,
    HIT,
    HIT_COST_NS,
    JOINED,
    READY,
    WAVE,
    Int32s,
    JobGraph,
    JobState,
)
from orchestrator.schedule.options import Priority, ScheduleOptions
from orchestrator.schedule.transitions import Transitions

_HIT_TEAM: Final = 2

_FAR_OFF: Final = 2.0
"""An estimate that is wrong by this factor is corrected for all jobs of that shader."""

_TRUSTED: Final = 0.75
"""Expected hits and followers are believed in while at least this share of them does hit."""


class Assignment(msgspec.Struct, frozen=True, eq=False):
    """A batch for one worker."""

    indices: Int32s  # the jobs, (k,), k >= 1, all of one kind, in the order to create them; read-only
    kind: int
    follows: bool  # they are duplicates of what this worker compiled, and hit in its own source


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be assigned now; ask again after another worker's batch has ended."""


class Done(msgspec.Struct, frozen=True):
    """Nothing will be assigned any more, to any worker."""


class Paused(Done, frozen=True):
    """The time is over: this worker gets nothing more under this deadline. Jobs may be left."""


class Cancellation(msgspec.Struct, eq=False):
    """What a call of `cancel_jobs` did. The scheduler updates it; the caller reads it under the same lock."""

    cancelled: int = 0  # jobs that will not be assigned any more
    pending: set[int] = msgspec.field(default_factory=set)  # workers whose batch holds one of the jobs

    @property
    def quiet(self) -> bool:
        """Whether none of the jobs is in flight: no driver call for them uses a cache any more."""
        return not self.pending


_WAIT: Final = Wait()
_DONE: Final = Done()
_PAUSED: Final = Paused()


class Scheduler:
    """The machine; see the top of the module. Not thread-safe.

    Without `ScheduleOptions.streaming` all jobs are queued at once. Workers are numbered from 0. Where the
    caller does not know which jobs hit (`tells_hits`), followers are assumed to hit.

    Raises:
        ValueError: There is no worker.
    """

    def __init__(self, jobs: JobGraph, workers: int, options: ScheduleOptions | None = None) -> None:
        if workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        self.options = options if options is not None else ScheduleOptions()
        self.workers = workers
        self.tells_hits = True
        self._jobs = Transitions(jobs, workers, self.options)
        self._table = self._jobs.table
        self._compiles: dict[int, Experience] = {}
        self._others = {lane: Experience(1.0, 8.0) for lane in (HIT, WAVE, FOLLOW)}
        self._measured_shaders: set[int] = set()
        self._firsts: dict[int, tuple[int, int]] = {}
        self._hit_takers = _HIT_TEAM if self.options.few_for_hits else workers
        self._taking_hits = 0
        self._deadline_ns = math.inf
        self._fresh_deadline = False
        self._owes = False
        self._exempt = 0
        self._cancellations: list[Cancellation] = []
        self._assigned: list[Assignment | None] = [None] * workers
        self._lanes = [COMPILE] * workers
        self._costs = [0] * workers
        self.spent_ns = 0  # time of all batches that ended
        self.open = self.options.streaming  # jobs may still be entered
        # Jobs that were entered and will never be assigned, with the reason.
        self.unassignable: Mapping[int, str] = self._jobs.unassignable
        self._cancelled = False
        if not self.open:
            self._jobs.enter(np.arange(self.count, dtype=np.int32))

    # --- jobs in

    def enter(self, jobs: Int32s, priority: Priority) -> None:
        """Queue jobs, with the libraries that they link; raise queued ones to the priority.

        A job that was created or failed stays as it is; a cancelled one is queued again. A library that was
        not entered by itself is cancelled with the last job that links it.

        Jobs are ascending, none twice.

        Raises:
            ValueError: The stream is not open.
        """
        if not self.open:
            raise ValueError("nothing can be entered: the stream was not opened, or was closed")
        table = self._table
        absent = self.absent(jobs)
        new = set(jobs[absent].tolist())
        for job in self._with_libraries(new, lambda library: table.state[library] >= CANCELLED) - new:
            table.priority[job] = Priority.BACKGROUND
            table.unwanted[job] = 1
            new.add(job)
        for job in jobs.tolist():
            table.unwanted[job] = 0
        for job in jobs[absent].tolist():
            table.priority[job] = priority
        if new:
            self._jobs.enter(np.array(sorted(new), np.int32))
        self.promote(jobs[~absent].tolist(), priority)

    def close(self) -> None:
        """Nothing more will be entered. Idempotent."""
        self.open = False

    def exclude(self, reasons: Mapping[int, str]) -> None:
        """Never assign some jobs, queued or not, which cannot be created, nor their dependents.

        Raises:
            ValueError: There is no such job.
        """
        for job in reasons:
            self._checked(job)
        self._jobs.exclude(reasons)

    # --- state

    @property
    def count(self) -> int:
        """Number of jobs that may be entered."""
        return self._table.count

    @property
    def queued(self) -> int:
        """Jobs neither assigned nor settled, ready or waiting for a library or a leader."""
        return self._table.queued

    @property
    def satisfied(self) -> bool:
        """Whether only expected hits are queued, and as many workers as may take them have some."""
        jobs, table = self._jobs, self._table
        only_hits = bool(jobs.hits) and not (jobs.compiles or jobs.wave)
        return self._taking_hits >= self._hit_takers and only_hits and table.queued == table.states[READY]

    @property
    def in_flight(self) -> int:
        """Number of assigned jobs."""
        return self._table.states[ASSIGNED]

    @property
    def entered(self) -> int:
        """Jobs that were entered and not cancelled, with the libraries that came along."""
        states = self._table.states
        return self._table.count - states[ABSENT] - states[CANCELLED]

    def estimated_ns(self, jobs: Int32s | None = None) -> int:
        """First estimate, in nanoseconds, of compiling some jobs, or all that were entered, in any state."""
        chosen = self._table.states_now < CANCELLED if jobs is None else jobs
        return int(self._table.estimates[chosen].sum())

    def final(self, jobs: Int32s) -> Int32s:
        """The jobs among some whose state does not change any more."""
        state = self._table.states_now[jobs]
        return jobs[(state > ASSIGNED) & (state < CANCELLED)]

    @property
    def exempts(self) -> bool:
        """Whether some jobs are assigned even after the deadline."""
        return self._exempt > 0

    def costs(self) -> tuple[float, float, dict[Assignment, float]]:
        """Estimated costs of the jobs that are over, and of those that are queued, and of each assignment.

        They count relative to each other: `spent_ns` is what those that are over took.
        """
        table, states = self._table, self._table.states_now
        compiles = (np.frombuffer(table.lane, np.uint8) == COMPILE) & (states != JOINED)
        costs = np.where(compiles, table.corrected, HIT_COST_NS)
        over, queued = (states > ASSIGNED) & (states < CANCELLED), states <= JOINED
        return (
            float(costs[over].sum()),
            float(costs[queued].sum()),
            {each: float(costs[each.indices].sum()) for each in self.assigned},
        )

    @property
    def assigned(self) -> list[Assignment]:
        """The assignments in flight."""
        return [each for each in self._assigned if each is not None]

    def state_of(self, job: int) -> JobState:
        """State of a job."""
        return JobState(self._table.state[self._checked(job)])

    def priority_of(self, job: int) -> Priority:
        """Priority of a job: its own, or that of the most urgent job that needs it."""
        return Priority(self._table.priority[self._checked(job)])

    def leader_of(self, job: int) -> int:
        """The job that does the work of a job: itself, or its leader."""
        return self._jobs.leaders.get(self._checked(job), job)

    def absent(self, jobs: Int32s) -> npt.NDArray[np.bool_]:
        """Which of some jobs were never entered, or were cancelled."""
        return self._table.states_now[jobs] >= CANCELLED

    def unsettled(self, jobs: Int32s) -> Int32s:
        """The jobs among some that are queued or in flight."""
        return jobs[self._table.states_now[jobs] <= ASSIGNED]

    def take_settled(self) -> Int32s:
        """Jobs that were created, lost or cancelled since the last call, and still are; ascending."""
        jobs = np.unique(np.array(self._jobs.settled, np.int32))
        self._jobs.settled.clear()
        return jobs[self._table.states_now[jobs] > ASSIGNED]

    def remaining(self) -> Int32s:
        """Jobs that are queued, the most urgent first, then by number."""
        jobs = np.flatnonzero(self._table.states_now <= JOINED).astype(np.int32)
        return jobs[np.argsort(np.frombuffer(self._table.priority, np.uint8)[jobs], kind="stable")]

    def in_order(self, jobs: Int32s) -> npt.NDArray[np.int64]:
        """Places of jobs, the most urgent first, shape (n,)."""
        ranks = [-self._table.rank[job] for job in jobs.tolist()]
        return np.lexsort((ranks, np.frombuffer(self._table.priority, np.uint8)[jobs]))

    # --- workers

    def request(self, worker: int, now_ns: float = 0) -> Assignment | Wait | Done:
        """A worker asks for work, now on the clock of the deadline; see the top of the module.

        Raises:
            ValueError: The worker's last assignment has not ended, or there is no such worker.
        """
        if self._assigned_to(worker) is not None:
            raise ValueError(f"worker {worker} asks for work before its last assignment has ended")
        if self._cancelled:
            return _DONE
        if not self._table.queued:
            return _WAIT if self.open else _DONE
        left_ns = self._deadline_ns - now_ns
        in_time = left_ns > 0 or (self._owes and not self.in_flight)
        if not (in_time or self._exempt):
            return _PAUSED
        heads = self._heads(worker)
        for entry, _, queue, kind in heads:
            is_exempt = -entry[0] < self._exempt
            if in_time or is_exempt:
                cost = self._table.open_cost
                jobs = self._take(queue, kind, math.inf if is_exempt else left_ns)
                if jobs:
                    return self._assign(worker, queue.lane, kind, jobs, cost - self._table.open_cost)
        # A ready job that was not taken did not fit into the time that is left.
        return _PAUSED if heads and left_ns != math.inf else _WAIT

    def _heads(self, worker: int) -> list[tuple[Entry, int, ReadyQueue, int]]:
        """Where a worker may take jobs: entry, lane, queue and kind, by priority, lane, rank and number."""
        jobs = self._jobs
        queues = [jobs.followers[worker if self.options.pin_followers else 0], jobs.wave, jobs.compiles]
        if self._taking_hits < self._hit_takers:
            queues.append(jobs.hits)
        return sorted(
            (
                (entry, place, queue, kind)
                for place, queue in enumerate(queues)
                for entry, kind in queue.heads()
            ),
            key=lambda each: (-each[0][0], each[1], -each[0][1], -each[0][2]),
        )

    def _take(self, queue: ReadyQueue, kind: int, left_ns: float) -> list[int]:
        experience = self._experience_of(queue.lane, kind)
        takers = min(self._hit_takers, self.workers) if queue.lane == HIT else self.workers
        limits = batch_limits(
            self._table, queue.lane, experience, self.options, self.workers, takers, left_ns
        )
        jobs = queue.take(kind, limits, self._goes_alone)
        if not jobs and self._fresh_deadline and not self.in_flight:
            jobs = queue.take_shortest(kind)
        return jobs

    def _goes_alone(self, job: int) -> bool:
        """Whether a job has a shader of many pipelines of which none was measured.

        The size of a shader says little about its compile time: one took 12 times the estimate, and a batch
        of 86 of its permutations 1.7 s, when all else was done after 1.4 s.
        """
        shader = self._table.shader[job]
        return shader >= 0 and shader not in self._measured_shaders

    def _assign(self, worker: int, lane: int, kind: int, jobs: list[int], cost: int) -> Assignment:
        indices = np.array(jobs, np.int32)
        indices.flags.writeable = False
        self._table.worker[indices] = worker
        self._lanes[worker], self._costs[worker] = lane, cost
        self._taking_hits += lane == HIT
        self._fresh_deadline = self._owes = False
        follows = lane == FOLLOW and self.options.pin_followers
        self._assigned[worker] = assignment = Assignment(indices, kind, follows)
        return assignment

    def _experience_of(self, lane: int, kind: int) -> Experience:
        if lane != COMPILE:
            return self._others[lane]
        found = self._compiles.get(kind)
        if found is None:
            found = self._compiles[kind] = Experience(self.options.hit_share)
        return found

    def finished(
        self,
        worker: int,
        assignment: Assignment,
        reasons: Mapping[int, str] | None = None,
        *,
        hits: int = 0,
        compiles: int = 0,
        elapsed_ns: int = 0,
        missed: Int32s | None = None,
    ) -> None:
        """A worker's assignment ended. Its jobs were created, except those in `reasons` and `missed`.

        Args:
            worker: The worker.
            assignment: Its assignment.
            reasons: The jobs that failed, by number, with the reason.
            hits: How many jobs were cache hits.
            compiles: How many were compiled.
            elapsed_ns: Time of the batch; 0 where it is not known, and then nothing is learned from it.
            missed: Speculative jobs that the driver did not find; each waits until it is `supplied` or
                excluded.

        Raises:
            ValueError: It is not the worker's last assignment, or a reason is for a job outside it.
        """
        if self._assigned_to(worker) is not assignment:
            raise ValueError(f"worker {worker} ends an assignment that it does not hold")
        created, reasons = assignment.indices, reasons or {}
        lost = set(reasons)
        if lost and not lost.issubset(created.tolist()):
            raise ValueError("a reason is given for a job that is not in the assignment")
        if missed is not None:
            lost.update(missed.tolist())
        if lost:
            created = created[~np.isin(created, list(lost))]
        self._assigned[worker] = None
        self.spent_ns += elapsed_ns
        self._learn(worker, assignment, hits, compiles, elapsed_ns)
        for each in self._cancellations:
            each.pending.discard(worker)
        self._cancellations = [each for each in self._cancellations if each.pending]
        self._jobs.failed(reasons)
        if missed is not None:
            self._jobs.missed(missed)
        if len(created):
            self._jobs.created(created)
        self._judge_lane(self._lanes[worker], compiles)

    def _judge_lane(self, lane: int, compiles: int) -> None:
        """Believe in expected hits, or in followers, no longer than they hit."""
        if lane == HIT:
            self._taking_hits -= 1
            if compiles:  # which scale with workers, as hits do not
                self._hit_takers = self.workers
        if lane in (HIT, FOLLOW) and self._others[lane].hit_share < _TRUSTED:
            if lane == HIT:
                self._jobs.demote_hits()
            elif self.tells_hits:
                self._jobs.distrust_followers()

    def _learn(self, worker: int, assignment: Assignment, hits: int, compiles: int, elapsed_ns: int) -> None:
        lane, cost, jobs = self._lanes[worker], self._costs[worker], assignment.indices.tolist()
        experience = self._experience_of(lane, assignment.kind)
        libraries = self._table.libraries
        if lane == FOLLOW and libraries and any(job in libraries for job in jobs):
            return  # for jobs that link libraries, drivers report no hits, or those of the libraries
        if lane == COMPILE and len(jobs) == compiles == 1 and elapsed_ns > 0 and self._goes_alone(jobs[0]):
            self._firsts[self._table.shader[jobs[0]]] = jobs[0], elapsed_ns
            if experience.told:
                cost = self._measure_shaders(experience.scale, cost)
        experience.learn(len(jobs), cost, hits, compiles, elapsed_ns)

    def _measure_shaders(self, scale: float, cost: int) -> int:
        """Correct the estimates of shaders by their first compiles, where these are far off.

        The corrected estimate of the latest job is returned, so that one shader does not distort what is
        learned of a kind.
        """
        table, shaders = self._table, np.array(self._table.shader)
        for shader, (job, elapsed_ns) in self._firsts.items():
            self._measured_shaders.add(shader)
            cost = int(table.estimates[job])
            factor = elapsed_ns / (scale * cost)
            if not 1 / _FAR_OFF <= factor <= _FAR_OFF:
                self._jobs.correct(np.flatnonzero(shaders == shader).astype(np.int32), factor)
                cost = max(1, round(cost * factor))
        self._firsts.clear()
        return cost

    def supplied(self, jobs: Iterable[int]) -> None:
        """The code of `missed` jobs has arrived: each is assigned once more, a follower as such."""
        self._jobs.supplied(jobs)

    # --- steering

    def promote(self, jobs: Iterable[int], priority: Priority) -> int:
        """Raise queued jobs, and what they wait for, to a priority; how many became more urgent in all."""
        return self._jobs.raise_all([(self._checked(int(job)), 0) for job in jobs], priority)

    def set_deadline(self, deadline_ns: float | None, *, at_least_one: bool = False) -> None:
        """Assign work until a deadline on the clock of `request`, which replaces any earlier one.

        A worker gets a batch that is estimated to end in time, else `Paused`. The first batch under a
        deadline may overrun it by one job if nothing else is in flight, because otherwise a job longer than a
        frame would never run. With `at_least_one` it begins even if its request comes after the deadline.
        """
        self._deadline_ns = math.inf if deadline_ns is None else deadline_ns
        self._fresh_deadline = deadline_ns is not None
        self._owes = at_least_one

    def exempt(self, priority: Priority | None) -> None:
        """Exempt jobs of at least this priority from the deadline; None: no job."""
        self._exempt = 0 if priority is None else priority + 1

    def cancel(self) -> None:
        """Assign nothing more. Jobs in flight still end; queued jobs stay queued. Idempotent."""
        self._cancelled = True

    def cancel_jobs(self, jobs: Iterable[int]) -> Cancellation:
        """Cancel queued jobs, and libraries that no other job needs.

        A job that others link is still created, unless they are cancelled too. A job in flight still ends;
        `Cancellation.quiet` says when. If a leader is cancelled, its first follower leads.
        """
        table, cancellation = self._table, Cancellation()
        named = {job for job in map(int, jobs) if table.state[self._checked(job)] <= ASSIGNED}
        named = self._with_libraries(
            named, lambda library: bool(table.unwanted[library]) and table.state[library] <= ASSIGNED
        )
        for job in sorted(named, reverse=True):  # dependents before their libraries
            if table.state[job] == ASSIGNED:
                cancellation.pending.add(int(table.worker[job]))
                table.unwanted[job] = 1
            elif table.state[job] <= JOINED and self._jobs.is_needed(job):
                table.unwanted[job] = 1
            elif table.state[job] <= JOINED:
                cancellation.cancelled += self._jobs.drop(job, CANCELLED)
        if cancellation.pending:
            self._cancellations.append(cancellation)
        return cancellation

    def __repr__(self) -> str:
        states = ", ".join(
            f"{number} {state.name.lower()}" for state in JobState if (number := self._table.states[state])
        )
        return f"<Scheduler{' cancelled' if self._cancelled else ''}: {states or 'no jobs'}>"

    # --- inside

    def _with_libraries(self, jobs: set[int], wanted: Callable[[int], bool]) -> set[int]:
        """Jobs with their libraries, and those of these, that are wanted."""
        found, pending = set(jobs), [*jobs] if self._table.libraries else []
        while pending:
            for library in self._table.libraries.get(pending.pop(), ()):
                if library not in found and wanted(library):
                    found.add(library)
                    pending.append(library)
        return found

    def _checked(self, job: int) -> int:
        if not 0 <= job < self._table.count:
            raise ValueError(f"there is no job {job}")
        return job

    def _assigned_to(self, worker: int) -> Assignment | None:
        if not 0 <= worker < self.workers:
            raise ValueError(f"there is no worker {worker}; workers are 0..{self.workers - 1}")
        return self._assigned[worker]
