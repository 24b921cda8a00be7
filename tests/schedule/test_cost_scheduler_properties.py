# Purpose: whatever happens in whatever order, the promises hold: nothing twice, libraries first, urgent first, an
# end, quiet when it says quiet.
"""Property test of `CostScheduler`: random events against what is promised."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.schedule import (
    Accepted,
    Assignment,
    Cancellation,
    CostScheduler,
    Done,
    Followers,
    Full,
    JobState,
    Paused,
    Priority,
    ScheduleOptions,
    Wait,
)
from tests.schedule.machine import QUEUED, assert_consistent, job_graph, jobs_of

FINAL = {
    JobState.CREATED,
    JobState.SHARED,
    JobState.FAILED,
    JobState.UNASSIGNABLE,
    JobState.CANCELLED,
}


class Schedule(RuleBasedStateMachine):
    """A scheduler, and what the test knows about its jobs."""

    @initialize(
        workers=st.integers(1, 4),
        followers=st.sampled_from(Followers),
        pinned=st.booleans(),
        affinity=st.booleans(),
        limit=st.sampled_from([1, 3, 256]),
        aim=st.sampled_from([1, 10**6, 10**12]),
        expect=st.sampled_from([0.0, 0.5, 1.0]),
        capacity=st.sampled_from([None, 8]),
    )
    def begin(
        self,
        workers: int,
        followers: Followers,
        pinned: bool,
        affinity: bool,
        limit: int,
        aim: int,
        expect: float,
        capacity: int | None,
    ) -> None:
        self.options = ScheduleOptions(
            followers=followers,
            pin_followers=pinned,
            affinity=affinity,
            batch_limit=limit,
            target_ns=aim,
            expect_hits=expect,
            capacity=capacity,
            streaming=True,
        )
        self.scheduler = CostScheduler(job_graph(0), workers, self.options)
        self.in_flight: dict[int, Assignment] = {}
        self.keys: list[int] = []
        self.pipeline_keys: dict[int, int] = {}
        self.libraries: list[set[int]] = []
        self.assigned: dict[int, int] = {}
        self.cancellations: list[tuple[Cancellation, set[int]]] = []
        self.limited = False
        self.settled: list[int] = []

    @rule(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        first = len(self.keys)
        count = data.draw(st.integers(0, 6))
        numbers = range(first, first + count)

        def any_of(values: st.SearchStrategy[int]) -> list[int]:
            return data.draw(st.lists(values, min_size=count, max_size=count))

        libraries = {
            place: data.draw(st.lists(st.integers(0, job - 1), max_size=3))
            for place, job in enumerate(numbers)
            if job and data.draw(st.booleans())
        }
        keys = any_of(st.integers(0, 5))
        pipeline_keys = any_of(st.integers(0, 3)) if data.draw(st.booleans()) else [0] * count
        graph = job_graph(
            count,
            kinds=any_of(st.integers(0, 1)),
            libraries=libraries,
            modules={place: data.draw(st.lists(st.integers(0, 3), max_size=2)) for place in range(count)},
            costs=any_of(st.sampled_from([0, 1, 10**3, 10**6, 10**9])),
            keys=keys,
            pipeline_keys=pipeline_keys,
            priorities=any_of(st.integers(0, 2)),
            groups=any_of(st.integers(0, 2)),
            unusable={job: "unusable" for job in numbers if data.draw(st.integers(0, 9)) == 0},
        )
        room = None if self.options.capacity is None else self.options.capacity - self.scheduler.queued
        answer = self.scheduler.submit(graph)
        if room is not None and count > room:
            assert answer == Full(max(0, room))
            return
        assert answer == Accepted(first, count)
        self.keys += keys
        self.libraries += [set(libraries.get(place, ())) for place in range(count)]
        self.pipeline_keys |= {first + place: key for place, key in enumerate(pipeline_keys) if key}

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def identify(self, data: st.DataObject) -> None:
        unknown = [job for job in range(len(self.keys)) if job not in self.pipeline_keys]
        jobs = data.draw(st.lists(st.sampled_from(unknown), unique=True, max_size=4)) if unknown else []
        keys = [data.draw(st.integers(1, 3)) for _ in jobs]
        self.scheduler.identify(np.array(jobs, np.int32), np.array(keys, np.uint64))
        self.pipeline_keys |= dict(zip(jobs, keys, strict=True))

    @rule(data=st.data())
    def request(self, data: st.DataObject) -> None:
        idle = [each for each in range(self.scheduler._workers) if each not in self.in_flight]
        if not idle:
            return
        worker = data.draw(st.sampled_from(idle))
        scheduler = self.scheduler
        before = [scheduler.state_of(job) for job in range(scheduler.count)]
        urgent = [
            int(scheduler._table.priority[job]) for job, state in enumerate(before) if state is JobState.READY
        ]
        answer = scheduler.request(worker)
        if not isinstance(answer, Assignment):
            assert not urgent or self.limited, "a worker idles while a job is ready"
            assert isinstance(answer, (Wait, Paused)), "the stream is open, so there is no end"
            return
        self.in_flight[worker] = answer
        jobs = jobs_of(answer)
        assert 1 <= len(jobs) <= self.options.batch_limit
        assert len(set(jobs)) == len(jobs)
        for job in jobs:
            assert job not in self.assigned, "assigned twice"
            self.assigned[job] = worker
            assert before[job] in {JobState.READY, JobState.PINNED}
            assert scheduler._table.kind[job] == answer.kind
            assert all(before[each] is JobState.CREATED for each in self.libraries[job])
            leader = scheduler.leader_of(job)
            if leader != job:
                assert before[leader] is JobState.CREATED, "the same work twice at a time"
                if self.options.pin_followers:
                    assert self.assigned[leader] == worker, "compiled again by another worker"
            if before[job] is JobState.READY and not self.limited:
                assert scheduler._table.priority[job] == min(urgent), "something more urgent was ready"

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.in_flight)))
        assignment = self.in_flight.pop(worker)
        jobs = jobs_of(assignment)
        failed = data.draw(st.sets(st.sampled_from(jobs), max_size=2))
        hits = data.draw(st.integers(0, len(jobs)))
        told = {"hits": hits, "compiles": len(jobs) - hits, "elapsed_ns": data.draw(st.integers(0, 10**9))}
        if failed:
            self.scheduler.failed(worker, assignment, dict.fromkeys(failed, "refused"), **told)
        else:
            self.scheduler.finished(worker, assignment, **told)
        for job in jobs:
            expected = JobState.FAILED if job in failed else JobState.CREATED
            assert self.scheduler.state_of(job) is expected

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), priority=st.sampled_from(Priority))
    def promote(self, data: st.DataObject, priority: Priority) -> None:
        job = data.draw(st.integers(0, len(self.keys) - 1))
        before = self.scheduler._table.priority[job]
        self.scheduler.promote([job], priority)
        if self.scheduler.state_of(job) in QUEUED:
            assert self.scheduler._table.priority[job] == min(before, priority)

    @rule(limit=st.sampled_from([None, 0, 1, 10**6, 10**10]))
    def budget(self, limit: int | None) -> None:
        self.scheduler.budget(limit)
        self.limited = limit is not None

    @precondition(lambda self: self.keys)
    @rule(data=st.data(), what=st.sampled_from(["jobs", "group", "all"]))
    def cancel(self, data: st.DataObject, what: str) -> None:
        scheduler = self.scheduler
        if what == "jobs":
            asked = data.draw(st.sets(st.integers(0, len(self.keys) - 1), max_size=4))
            cancellation = scheduler.cancel_jobs(asked)
        elif what == "group":
            group = data.draw(st.integers(0, 2))
            asked = set(np.flatnonzero(scheduler._table.group[: scheduler.count] == group).tolist())
            cancellation = scheduler.cancel_group(group)
        else:
            asked = set(range(len(self.keys)))
            cancellation = scheduler.cancel_all()
            assert not scheduler.queued
        in_flight = {job for job in asked if scheduler.state_of(job) is JobState.ASSIGNED}
        for job in asked:
            if scheduler.state_of(job) in QUEUED:
                linkers = [other for other, linked in enumerate(self.libraries) if job in linked]
                assert any(scheduler.state_of(each) in QUEUED for each in linkers), "cancelled, and unwanted"
        self.cancellations.append((cancellation, in_flight))

    @rule()
    def take_settled(self) -> None:
        self.settled += self.scheduler.take_settled().tolist()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        assert_consistent(scheduler)
        assert scheduler.in_flight == sum(len(each.indices) for each in self.in_flight.values())
        assert {int(job) for job in scheduler.remaining()} == {
            job for job in range(scheduler.count) if scheduler.state_of(job) in QUEUED
        }
        for cancellation, asked in self.cancellations:
            busy = {job for each in self.in_flight.values() for job in jobs_of(each)}
            assert cancellation.quiet == (not asked & busy)
        if not self.in_flight and scheduler.queued:
            states = {scheduler.state_of(job) for job in range(scheduler.count)}
            assert states & {JobState.READY, JobState.PINNED}, "jobs wait for each other"

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        scheduler.budget(None)
        scheduler.close()
        for worker, assignment in self.in_flight.items():
            scheduler.finished(worker, assignment)
        working = True
        while working:
            working = False
            for worker in range(scheduler._workers):
                answer = scheduler.request(worker)
                if isinstance(answer, Assignment):
                    scheduler.finished(worker, answer)
                    working = True
        assert all(scheduler.request(each) == Done() for each in range(scheduler._workers))
        assert_consistent(scheduler)
        states = [scheduler.state_of(job) for job in range(scheduler.count)]
        assert set(states) <= FINAL
        self.take_settled()
        # A job is settled once, or twice where it was shared first and created later.
        assert set(self.settled) == set(range(scheduler.count))
        table = scheduler._table
        for work in set(self.keys):
            same = [job for job, key in enumerate(self.keys) if key == work]
            # Real keys imply kind and libraries; these are random, and only jobs alike in that are united.
            alike = len({(table.kind_at[job], table.depth_at[job]) for job in same}) == 1
            leaders = {scheduler.leader_of(job) for job in same}
            if alike and not self.pipeline_keys:
                created = [job for job in leaders if states[job] is JobState.CREATED]
                assert len(created) <= 1, "one piece of work was compiled twice"


TestSchedule = Schedule.TestCase
TestSchedule.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
