"""Property test of `Scheduler`: whatever happens in whatever order, what is promised holds.

Nothing twice, libraries first, urgent first, an end, quiet when it says quiet.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from orchestrator.schedule import (
    Assignment,
    Cancellation,
    Done,
    Followers,
    JobState,
    Order,
    Paused,
    Priority,
    ScheduleOptions,
    Scheduler,
    Wait,
)
from orchestrator.schedule.jobs import HIT, SPECULATIVE, UNWANTED
from orchestrator.schedule.scheduler import _CALLS_OF_HITS
from tests.schedule.machine import QUEUED, assert_consistent, job_graph, jobs_of

FINAL = {JobState.CREATED, JobState.SHARED, JobState.FAILED, JobState.UNASSIGNABLE, JobState.CANCELLED}


GONE = {JobState.CANCELLED, JobState.ABSENT}


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
        order=st.sampled_from(Order),
        tells_hits=st.booleans(),
        few=st.booleans(),
        data=st.data(),
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
        order: Order,
        tells_hits: bool,
        few: bool,
        data: st.DataObject,
    ) -> None:
        self.options = ScheduleOptions(
            order=order,
            followers=followers,
            pin_followers=pinned,
            affinity=affinity,
            batch_limit=limit,
            target_ns=aim,
            expect_hits=expect,
            streaming=True,
            few_for_hits=few,
        )
        count = data.draw(st.integers(1, 24))

        def any_of(values: st.SearchStrategy[Any]) -> list[Any]:
            return data.draw(st.lists(values, min_size=count, max_size=count))

        libraries = {
            job: data.draw(st.lists(st.integers(0, job - 1), max_size=3))
            for job in range(1, count)
            if data.draw(st.integers(0, 2)) == 0
        }
        self.keys = any_of(st.integers(0, 5))
        self.pipeline_keys = any_of(st.integers(0, 3)) if data.draw(st.booleans()) else [0] * count
        self.libraries = [set(libraries.get(job, ())) for job in range(count)]
        graph = job_graph(
            count,
            kinds=any_of(st.integers(0, 1)),
            libraries=libraries,
            modules={job: data.draw(st.lists(st.integers(0, 3), max_size=2)) for job in range(count)},
            costs=any_of(st.sampled_from([0, 1, 10**3, 10**6, 10**9])),
            keys=self.keys,
            pipeline_keys=self.pipeline_keys,
            hits=any_of(st.booleans()) if data.draw(st.booleans()) else None,
            speculative=any_of(st.booleans()) if data.draw(st.booleans()) else None,
        )
        self.lacking: set[int] = set()
        self.scheduler = Scheduler(graph, workers, self.options)
        self.scheduler.tells_hits = tells_hits
        self.excluded = {job for job in range(count) if data.draw(st.integers(0, 9)) == 0}
        self.scheduler.exclude(dict.fromkeys(self.excluded, "unusable"))
        self.in_flight: dict[int, Assignment] = {}
        self.entered: set[int] = set()
        self.assigned: dict[int, int] = {}
        self.cancellations: list[tuple[Cancellation, set[int]]] = []
        self.now_ns = 0
        self.deadline_ns: float | None = None
        self.settled: set[int] = set()
        if data.draw(st.integers(0, 3)):  # else rules alone enter jobs, of which few come to a worker
            self.scheduler.enter(np.arange(count, dtype=np.int32), Priority.SOON, 0)
            self.entered |= set(range(count))

    @rule(data=st.data(), priority=st.sampled_from(Priority), group=st.integers(-1, 2))
    def enter(self, data: st.DataObject, priority: Priority, group: int) -> None:
        asked = sorted(data.draw(st.sets(st.integers(0, len(self.keys) - 1), max_size=8)))
        scheduler = self.scheduler
        before = [scheduler.state_of(job) for job in range(scheduler.count)]
        scheduler.enter(np.array(asked, np.int32), priority, group)
        self.entered |= set(asked)
        for job in asked:
            if before[job] in FINAL - {JobState.CANCELLED}:
                assert scheduler.state_of(job) is before[job], "what was settled is left alone"
                continue
            assert scheduler.state_of(job) not in GONE
            assert job in scheduler.members(None if group < 0 else group)
            if scheduler.state_of(job) in QUEUED:
                assert scheduler._table.priority[job] <= priority
        for job, linked in enumerate(self.libraries):
            if scheduler.state_of(job) in QUEUED:
                assert not {scheduler.state_of(each) for each in linked} & GONE, "its library is not there"

    @rule(data=st.data())
    def request(self, data: st.DataObject) -> None:
        idle = [each for each in range(self.scheduler.workers) if each not in self.in_flight]
        if not idle:
            return
        worker = data.draw(st.sampled_from(idle))
        scheduler = self.scheduler
        before = [scheduler.state_of(job) for job in range(scheduler.count)]
        flags = scheduler._table.flags.copy()
        enough = not scheduler._team.has_room
        assert not enough or self.options.few_for_hits, "without that option all may take hits"
        urgent = [
            int(scheduler._table.priority[job])
            for job, state in enumerate(before)
            if state is JobState.READY and not (enough and flags[job] & (HIT | SPECULATIVE) == HIT)
        ]
        satisfied = scheduler.satisfied
        tried = {
            int(scheduler._table.priority[job])
            for job, state in enumerate(before)
            if state is JobState.READY and flags[job] & SPECULATIVE
        }
        told = scheduler.unneeded(worker)
        answer = scheduler.request(worker, self.now_ns)
        assert told != Done(), "the stream is open, so there is no end"
        compiles = [
            job
            for job, state in enumerate(before)
            if state is JobState.READY and flags[job] & (HIT | SPECULATIVE) != HIT
        ]
        assert told is None or not compiles, "it is told to wait while a compile is ready"
        if not isinstance(answer, Assignment):
            assert not urgent or self.deadline_ns is not None, "a worker idles while a job is ready"
            assert isinstance(answer, (Wait, Paused)), "the stream is open, so there is no end"
            return
        assert not satisfied, "it was given something, though enough workers take hits"
        exempt = scheduler.exempts
        assert self.deadline_ns is None or self.now_ns < self.deadline_ns or exempt, "after the deadline"
        self.in_flight[worker] = answer
        jobs = jobs_of(answer)
        calls = _CALLS_OF_HITS if all(flags[job] & (HIT | SPECULATIVE) for job in jobs) else 1
        assert 1 <= len(jobs) <= self.options.batch_limit * calls
        assert len(set(jobs)) == len(jobs)
        for job in jobs:
            assert job not in self.assigned, "assigned twice"
            self.assigned[job] = worker
            # Whose caller tells hits, it may learn from misses that keys are wrong, and doubt them before.
            doubted = scheduler.tells_hits and before[job] is JobState.JOINED
            assert doubted or before[job] in {JobState.READY, JobState.PINNED}
            assert scheduler._table.kind[job] == answer.kind
            assert all(before[each] is JobState.CREATED for each in self.libraries[job])
            leader = scheduler.leader_of(job)
            follows = leader != job and self.options.followers is not Followers.SEPARATE
            if follows and not scheduler.tells_hits:
                assert before[leader] is JobState.CREATED, "the same work twice at a time"
                # One by second-level key may go to an idle worker until such a key was seen to hit.
                if self.options.pin_followers and self.keys[leader] == self.keys[job]:
                    assert self.assigned[leader] == worker, "compiled again by another worker"
            if before[job] is JobState.READY and self.deadline_ns is None:
                assert scheduler._table.priority[job] == min(urgent), "something more urgent was ready"
                assert flags[job] & SPECULATIVE or min(urgent) not in tried, "a compile went before a try"

    @precondition(lambda self: self.scheduler._affinity.active)
    @rule(data=st.data(), took_ns=st.integers(1, 10**10))
    def compiles_are_long(self, data: st.DataObject, took_ns: int) -> None:
        """Jobs get another order, as after a long compile."""
        job = data.draw(st.integers(0, self.scheduler.count - 1))
        self.scheduler._alone.append((job, took_ns))
        self.scheduler._affinity.measures_all = data.draw(st.booleans())
        self.scheduler._reorder()

    @precondition(lambda self: self.in_flight)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.in_flight)))
        assignment = self.in_flight.pop(worker)
        jobs = jobs_of(assignment)
        flags = self.scheduler._table.flags.copy()
        tried = [job for job in jobs if flags[job] & SPECULATIVE]
        missed = data.draw(st.sets(st.sampled_from(tried))) if tried else set()
        failed = data.draw(st.sets(st.sampled_from(jobs), max_size=2)) - missed
        hits = data.draw(st.integers(0, len(jobs) - len(missed)))
        compiles = len(jobs) - len(missed) - hits
        elapsed_ns = data.draw(st.integers(0, 10**9))
        if failed or missed:
            self.scheduler.finished(
                worker,
                assignment,
                dict.fromkeys(failed, "refused"),
                hits=hits,
                compiles=compiles,
                elapsed_ns=elapsed_ns,
                missed=np.array(sorted(missed), np.int32) if missed else None,
            )
        else:
            self.scheduler.finished(worker, assignment, hits=hits, compiles=compiles, elapsed_ns=elapsed_ns)
        for _, asked in self.cancellations:
            asked -= missed  # should they be assigned again, it is not what was cancelled
        for job in missed:
            del self.assigned[job]
            # One that was cancelled meanwhile is gone, unless another job links it; so is
            # what links one that failed.
            left = {JobState.WAITING, JobState.UNASSIGNABLE}
            if flags[job] & UNWANTED:
                left.add(JobState.CANCELLED)
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
            ends = data.draw(st.integers(0, 3))
            if ends and self.in_flight:
                self.end(data)

    @precondition(lambda self: self.lacking)
    @rule(data=st.data())
    def supply(self, data: st.DataObject) -> None:
        jobs = data.draw(st.sets(st.sampled_from(sorted(self.lacking)), min_size=1))
        self.lacking -= jobs
        self.scheduler.supplied(jobs)
        for job in jobs:
            assert not self.scheduler._table.flags[job] & SPECULATIVE, "what was supplied is tried again"

    @precondition(lambda self: self.lacking)
    @rule(data=st.data())
    def lose_code(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.lacking)))
        queued = self.scheduler.state_of(job) in QUEUED
        self.scheduler.exclude({job: "there is no code"})
        self.excluded.add(job)
        assert not queued or self.scheduler.state_of(job) is JobState.UNASSIGNABLE

    @rule(data=st.data(), priority=st.sampled_from(Priority))
    def promote(self, data: st.DataObject, priority: Priority) -> None:
        job = data.draw(st.integers(0, len(self.keys) - 1))
        before = self.scheduler._table.priority[job]
        self.scheduler.promote([job], priority)
        if self.scheduler.state_of(job) in QUEUED:
            assert self.scheduler._table.priority[job] == min(before, priority)

    @rule(limit=st.sampled_from([None, 0, 1, 10**6, 10**10]), exempt=st.sampled_from([None, *Priority]))
    def limit(self, limit: int | None, exempt: Priority | None) -> None:
        self.deadline_ns = None if limit is None else self.now_ns + limit
        self.scheduler.set_deadline(self.deadline_ns)
        self.scheduler.exempt(exempt)

    @rule(passed=st.sampled_from([1, 10**6]))
    def wait(self, passed: int) -> None:
        self.now_ns += passed

    @rule(data=st.data(), what=st.sampled_from(["jobs", "group", "all"]))
    def cancel(self, data: st.DataObject, what: str) -> None:
        scheduler = self.scheduler
        if what == "jobs":
            asked = data.draw(st.sets(st.integers(0, len(self.keys) - 1), max_size=4))
        else:
            asked = set(scheduler.members(data.draw(st.integers(0, 2)) if what == "group" else None).tolist())
        # What nobody asked for goes along; where it is in flight, it is waited for.
        unwanted = {job for job in range(scheduler.count) if scheduler._table.flags[job] & UNWANTED}
        named = set(asked)
        for job in reversed(range(scheduler.count)):
            if job in named and scheduler.state_of(job) in QUEUED | {JobState.ASSIGNED}:
                named |= self.libraries[job] & unwanted
        cancellation = scheduler.cancel_jobs(asked)
        assert scheduler.queued == 0 or what != "all"
        in_flight = {job for job in named if scheduler.state_of(job) is JobState.ASSIGNED}
        for job in asked:
            if scheduler.state_of(job) in QUEUED:
                linkers = [other for other, linked in enumerate(self.libraries) if job in linked]
                assert any(scheduler.state_of(each) in QUEUED for each in linkers), "cancelled, and unwanted"
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
        assert_consistent(scheduler, self.lacking)
        assert scheduler.in_flight == sum(len(each.indices) for each in self.in_flight.values())
        assert {int(job) for job in scheduler.remaining()} == {
            job for job in range(scheduler.count) if scheduler.state_of(job) in QUEUED
        }
        for cancellation, asked in self.cancellations:
            busy = {job for each in self.in_flight.values() for job in jobs_of(each)}
            assert cancellation.quiet == (not asked & busy)
        if not self.in_flight and scheduler.queued and not self.lacking:
            states = {scheduler.state_of(job) for job in range(scheduler.count)}
            assert states & {JobState.READY, JobState.PINNED}, "jobs wait for each other"

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        scheduler = self.scheduler
        scheduler.set_deadline(None)
        scheduler.close()
        scheduler.supplied(self.lacking)
        for worker, assignment in self.in_flight.items():
            scheduler.finished(worker, assignment)
        working = True
        while working:
            working = False
            for worker in range(scheduler.workers):
                answer = scheduler.request(worker)
                if isinstance(answer, Assignment):
                    scheduler.finished(worker, answer)
                    working = True
        assert all(scheduler.request(each) == Done() for each in range(scheduler.workers))
        assert_consistent(scheduler)
        states = [scheduler.state_of(job) for job in range(scheduler.count)]
        assert set(states) <= FINAL | {JobState.ABSENT}
        assert self.entered <= {job for job, state in enumerate(states) if state in FINAL}
        self.take_settled()
        assert self.settled >= {job for job, state in enumerate(states) if state in FINAL}
        table = scheduler._table
        for work in set(self.keys):
            same = [job for job, key in enumerate(self.keys) if key == work]
            # Real keys imply kind and libraries; these are random, and only jobs alike in that are united.
            alike = len({(table.kind_at[job], table.depth_at[job]) for job in same}) == 1
            leaders = {scheduler.leader_of(job) for job in same}
            if alike and not any(self.pipeline_keys) and self.options.followers is not Followers.SEPARATE:
                created = [job for job in leaders if states[job] is JobState.CREATED]
                assert len(created) <= 1, "one piece of work was compiled twice"


TestSchedule = Schedule.TestCase
TestSchedule.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
