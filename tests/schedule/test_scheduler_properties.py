"""Whatever happens in whatever order, what is promised holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.schedule.jobs import JobState
from orchestrator.schedule.options import Order, Priority, ScheduleOptions
from orchestrator.schedule.scheduler import Assignment, Cancellation, Done, Paused, Scheduler, Wait
from tests.campaigns import tries
from tests.schedule.machine import QUEUED, assert_consistent, drain, in_state, job_graph, jobs_of

FINAL = {JobState.CREATED, JobState.FAILED, JobState.UNASSIGNABLE, JobState.CANCELLED}
GONE = {JobState.CANCELLED, JobState.ABSENT}

OPTIONS = st.builds(
    ScheduleOptions,
    order=st.sampled_from(Order),
    unites=st.booleans(),
    pin_followers=st.booleans(),
    batch_limit=st.sampled_from([1, 3, 256]),
    target_ns=st.sampled_from([1, 10**6, 10**12]),
    hit_share=st.sampled_from([0.0, 0.5, 1.0]),
    streaming=st.just(True),
    few_for_hits=st.booleans(),
    costs_recorded=st.booleans(),
)


class Schedule(RuleBasedStateMachine):
    """A scheduler, and what the test knows about its jobs."""

    @initialize(options=OPTIONS, workers=st.integers(1, 4), tells_hits=st.booleans(), data=st.data())
    def begin(self, options: ScheduleOptions, workers: int, tells_hits: bool, data: st.DataObject) -> None:
        self.options = options
        self.count = count = data.draw(st.integers(1, 24))

        def any_of(values: st.SearchStrategy[Any]) -> list[Any]:
            return data.draw(st.lists(values, min_size=count, max_size=count))

        self.libraries = {
            job: set(data.draw(st.lists(st.integers(0, job - 1), max_size=3)))
            for job in range(1, count)
            if data.draw(st.integers(0, 2)) == 0
        }
        self.kinds, self.keys = any_of(st.integers(0, 1)), any_of(st.integers(0, 5))
        self.pipeline_keys = any_of(st.integers(0, 3)) if data.draw(st.booleans()) else [0] * count
        self.hits = any_of(st.booleans()) if data.draw(st.booleans()) else [False] * count
        self.tried = any_of(st.booleans()) if data.draw(st.booleans()) else [False] * count
        graph = job_graph(
            count,
            kinds=self.kinds,
            libraries={job: sorted(each) for job, each in self.libraries.items()},
            modules={job: data.draw(st.lists(st.integers(0, 1), max_size=2)) for job in range(count)},
            costs=any_of(st.sampled_from([0, 1, 10**3, 10**6, 10**9])),
            keys=self.keys,
            pipeline_keys=self.pipeline_keys,
            hits=self.hits,
            speculative=self.tried,
        )
        self.lacking: set[int] = set()
        self.scheduler = Scheduler(graph, workers, options)
        self.scheduler.tells_hits = tells_hits
        excluded = {job for job in range(count) if data.draw(st.integers(0, 9)) == 0}
        self.scheduler.exclude(dict.fromkeys(excluded, "unusable"))
        self.in_flight: dict[int, Assignment] = {}
        self.entered: set[int] = set()
        self.assigned: dict[int, int] = {}
        self.cancellations: list[tuple[Cancellation, set[int]]] = []
        self.now_ns = 0
        self.deadline_ns: float | None = None
        self.settled: set[int] = set()
        if data.draw(st.integers(0, 3)):  # else rules alone enter jobs, of which few come to a worker
            self.scheduler.enter(np.arange(count, dtype=np.int32), Priority.SOON)
            self.entered |= set(range(count))

    def states(self) -> list[JobState]:
        return [self.scheduler.state_of(job) for job in range(self.count)]

    @rule(data=st.data(), priority=st.sampled_from(Priority))
    def enter(self, data: st.DataObject, priority: Priority) -> None:
        asked = sorted(data.draw(st.sets(st.integers(0, self.count - 1), max_size=8)))
        before = self.states()
        self.scheduler.enter(np.array(asked, np.int32), priority)
        self.entered |= set(asked)
        after = self.states()
        for job in asked:
            if before[job] in FINAL - {JobState.CANCELLED}:
                assert after[job] is before[job], "what was settled is left alone"
                continue
            assert after[job] not in GONE
            if after[job] in QUEUED:
                assert self.scheduler.priority_of(job) <= priority
        for job, linked in self.libraries.items():
            if after[job] in QUEUED:
                assert not {after[each] for each in linked} & GONE, "its library is not there"

    @rule(data=st.data())
    def request(self, data: st.DataObject) -> None:
        idle = [each for each in range(self.scheduler.workers) if each not in self.in_flight]
        if not idle:
            return
        worker = data.draw(st.sampled_from(idle))
        scheduler, before = self.scheduler, self.states()
        # Followers may be another worker's, and few workers may take expected hits.
        ready = [
            job
            for job, state in enumerate(before)
            if state is JobState.READY and scheduler.leader_of(job) == job
            if not (self.options.few_for_hits and self.hits[job])
        ]
        urgent = min((scheduler.priority_of(job) for job in ready), default=None)
        satisfied = scheduler.satisfied
        answer = scheduler.request(worker, self.now_ns)
        if not isinstance(answer, Assignment):
            assert urgent is None or self.deadline_ns is not None, "a worker idles while a job is ready"
            assert isinstance(answer, (Wait, Paused)), "the stream is open, so there is no end"
            return
        assert not satisfied, "it was given something, though enough workers take hits"
        in_time = self.deadline_ns is None or self.now_ns < self.deadline_ns
        assert in_time or scheduler.exempts, "after the deadline"
        self.in_flight[worker] = answer
        jobs = jobs_of(answer)
        assert 1 <= len(jobs) == len(set(jobs)) <= self.options.batch_limit
        for job in jobs:
            assert job not in self.assigned, "assigned twice"
            self.assigned[job] = worker
            assert before[job] is JobState.READY
            assert self.kinds[job] == answer.kind
            assert all(before[each] is JobState.CREATED for each in self.libraries.get(job, ()))
            leader = scheduler.leader_of(job)
            if leader != job:
                assert before[leader] is JobState.CREATED, "the same work twice at a time"
                if self.options.pin_followers:
                    assert self.assigned[leader] == worker, "compiled again by another worker"
            if urgent is not None and self.deadline_ns is None:
                assert scheduler.priority_of(job) <= urgent, "something more urgent was ready"

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.in_flight)))
        assignment = self.in_flight.pop(worker)
        jobs = jobs_of(assignment)
        tried = [job for job in jobs if self.tried[job]]
        missed = data.draw(st.sets(st.sampled_from(tried))) if tried else set()
        failed = data.draw(st.sets(st.sampled_from(jobs), max_size=2)) - missed
        hits = data.draw(st.integers(0, len(jobs) - len(missed)))
        self.scheduler.finished(
            worker,
            assignment,
            dict.fromkeys(failed, "refused"),
            hits=hits,
            compiles=len(jobs) - len(missed) - hits,
            elapsed_ns=data.draw(st.integers(0, 10**9)),
            missed=np.array(sorted(missed), np.int32) if missed else None,
        )
        for _, asked in self.cancellations:
            asked -= missed  # should they be assigned again, it is not what was cancelled
        for job in missed:
            del self.assigned[job]
            self.tried[job] = False
            left = {JobState.WAITING, JobState.UNASSIGNABLE, JobState.CANCELLED}
            assert self.scheduler.state_of(job) in left
        self.lacking |= missed
        for job in set(jobs) - missed:
            expected = JobState.FAILED if job in failed else JobState.CREATED
            assert self.scheduler.state_of(job) is expected

    @rule(data=st.data(), turns=st.integers(1, 12))
    def work(self, data: st.DataObject, turns: int) -> None:
        """What workers do most of the time; rules alone rarely come to a second batch."""
        for _ in range(turns):
            self.request(data)
            if data.draw(st.integers(0, 3)) and self.in_flight:
                self.end(data)

    @precondition(lambda self: self.lacking)
    @rule(data=st.data())
    def supply(self, data: st.DataObject) -> None:
        jobs = data.draw(st.sets(st.sampled_from(sorted(self.lacking)), min_size=1))
        self.lacking -= jobs
        self.scheduler.supplied(jobs)

    @precondition(lambda self: self.lacking)
    @rule(data=st.data())
    def lose_code(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.lacking)))
        queued = self.scheduler.state_of(job) in QUEUED
        self.scheduler.exclude({job: "there is no code"})
        assert not queued or self.scheduler.state_of(job) is JobState.UNASSIGNABLE

    @rule(data=st.data(), priority=st.sampled_from(Priority))
    def promote(self, data: st.DataObject, priority: Priority) -> None:
        job = data.draw(st.integers(0, self.count - 1))
        before = self.scheduler.priority_of(job)
        self.scheduler.promote([job], priority)
        if self.scheduler.state_of(job) in QUEUED:
            assert self.scheduler.priority_of(job) == min(before, priority)

    @rule(limit=st.sampled_from([None, 0, 1, 10**6, 10**10]), exempt=st.sampled_from([None, *Priority]))
    def limit(self, limit: int | None, exempt: Priority | None) -> None:
        self.deadline_ns = None if limit is None else self.now_ns + limit
        self.scheduler.set_deadline(self.deadline_ns)
        self.scheduler.exempt(exempt)

    @rule(passed=st.sampled_from([1, 10**6]))
    def wait(self, passed: int) -> None:
        self.now_ns += passed

    @rule(data=st.data(), what=st.sampled_from(["jobs", "all"]))
    def cancel(self, data: st.DataObject, what: str) -> None:
        scheduler = self.scheduler
        if what == "jobs":
            asked = data.draw(st.sets(st.integers(0, self.count - 1), max_size=4))
        else:
            asked = set(range(self.count))
        cancellation = scheduler.cancel_jobs(asked)
        assert scheduler.queued == 0 or what != "all"
        states = self.states()
        for job in asked:
            if states[job] in QUEUED:
                linkers = [other for other, linked in self.libraries.items() if job in linked]
                assert any(states[each] in QUEUED for each in linkers), "cancelled, and unwanted"
        # A library that nobody asked for goes along; it is waited for where it is in flight.
        workers = {self.assigned[job] for job in asked if states[job] is JobState.ASSIGNED}
        assert workers <= cancellation.pending
        in_flight = {job for worker in cancellation.pending for job in jobs_of(self.in_flight[worker])}
        self.cancellations.append((cancellation, in_flight))

    @rule()
    def take_settled(self) -> None:
        settled = set(self.scheduler.take_settled().tolist())
        assert {self.scheduler.state_of(job) for job in settled} <= FINAL
        self.settled |= settled

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        assert_consistent(scheduler, self.libraries, self.lacking)
        busy = {job for each in self.in_flight.values() for job in jobs_of(each)}
        assert scheduler.in_flight == len(busy)
        for cancellation, asked in self.cancellations:
            assert cancellation.quiet == (not asked & busy)
        if not self.in_flight and scheduler.queued and not self.lacking:
            assert in_state(scheduler, JobState.READY), "jobs wait for each other"

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        scheduler.set_deadline(None)
        scheduler.close()
        scheduler.supplied(self.lacking)
        for worker, assignment in self.in_flight.items():
            scheduler.finished(worker, assignment)
        while True:
            done = [drain(scheduler, worker) for worker in range(scheduler.workers)]
            if not any(done):
                break
        assert all(scheduler.request(each) == Done() for each in range(scheduler.workers))
        assert_consistent(scheduler, self.libraries)
        states = self.states()
        assert set(states) <= FINAL | {JobState.ABSENT}
        settled = {job for job, state in enumerate(states) if state in FINAL}
        assert self.entered <= settled
        self.take_settled()
        assert self.settled >= settled


TestSchedule = Schedule.TestCase
TestSchedule.settings = settings(
    max_examples=tries(40, 400), stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)


@given(st.data())
def test_what_is_lost_is_told_with_its_reason_and_all_else_is_assigned(data: st.DataObject) -> None:
    kinds = sorted(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=40)))
    jobs = range(len(kinds))
    libraries = {
        job: data.draw(st.lists(st.integers(0, job - 1), max_size=4))
        for job in jobs[1:]
        if data.draw(st.booleans())
    }
    some = st.sets(st.sampled_from(jobs), max_size=5)
    unusable, failing = {job: f"{job} is unusable" for job in data.draw(some)}, data.draw(some)
    order = data.draw(st.sampled_from(Order))
    scheduler = Scheduler(
        job_graph(len(kinds), kinds=kinds, libraries=libraries), 1, ScheduleOptions(order=order)
    )
    scheduler.exclude(unusable)
    assigned: list[int] = []
    while isinstance(answer := scheduler.request(0), Assignment):
        assigned += jobs_of(answer)
        bad = failing & set(jobs_of(answer))
        scheduler.finished(0, answer, dict.fromkeys(bad, "it failed"))
    lost: set[int] = set()
    for job in jobs:
        if job in unusable or (lost | failing) & set(libraries.get(job, ())):
            lost.add(job)
    assert sorted(assigned) == sorted(set(jobs) - lost)
    assert set(scheduler.unassignable) == lost
    assert {job: scheduler.unassignable[job] for job in unusable} == unusable
    scheduler.cancel()
    assert scheduler.request(0) == Done()
