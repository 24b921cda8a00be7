"""What the tests of `Scheduler` share."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import define, field

from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.simulated import simulated_image
from orchestrator.schedule.jobs import JobGraph, JobState
from orchestrator.schedule.scheduler import Assignment, Scheduler

HIT_NS = 20_000
QUEUED = {JobState.WAITING, JobState.READY, JobState.JOINED}


def job_graph(
    count: int,
    *,
    kinds: Sequence[int] | None = None,
    libraries: Mapping[int, Sequence[int]] | None = None,
    modules: Mapping[int, Sequence[int]] | None = None,
    costs: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    pipeline_keys: Sequence[int] | None = None,
    priorities: Sequence[int] | None = None,
    hits: Sequence[bool] | None = None,
    speculative: Sequence[bool] | None = None,
) -> JobGraph:
    """A graph from plain values; `libraries` and `modules` go by position, and hold numbers."""
    linked = [list((libraries or {}).get(job, ())) for job in range(count)]
    staged = [list((modules or {}).get(job, ())) for job in range(count)]
    return JobGraph(
        np.array(kinds if kinds is not None else [0] * count, np.uint8),
        np.cumsum([0, *map(len, linked)]).astype(np.int64),
        np.array([each for group in linked for each in group], np.int32),
        hits=None if hits is None else np.array(hits, np.bool_),
        speculative=None if speculative is None else np.array(speculative, np.bool_),
        costs_ns=None if costs is None else np.array(costs, np.int64),
        keys=None if keys is None else np.array(keys, np.uint64),
        pipeline_keys=None if pipeline_keys is None else np.array(pipeline_keys, np.uint64),
        module_start=None if modules is None else np.cumsum([0, *map(len, staged)]).astype(np.int64),
        module_index=None
        if modules is None
        else np.array([each for group in staged for each in group], np.int32),
        priorities=None if priorities is None else np.array(priorities, np.uint8),
    )


def image_of(modules: Sequence[Sequence[int]], libraries: Sequence[Sequence[int]] = ()) -> CreateInfoImage:
    """An image whose pipelines have these modules and libraries."""
    return simulated_image(
        range(len(modules)), modules=dict(enumerate(modules)), libraries=dict(enumerate(libraries))
    )


def requested(scheduler: Scheduler, worker: int, now_ns: int = 0) -> Assignment:
    """The assignment that a worker gets now."""
    answer = scheduler.request(worker, now_ns)
    assert isinstance(answer, Assignment), answer
    return answer


def jobs_of(assignment: Assignment) -> list[int]:
    """The jobs of an assignment."""
    return [int(each) for each in assignment.indices]


def drain(scheduler: Scheduler, worker: int = 0) -> list[int]:
    """Let one worker do all that it is given, at no cost; returns the jobs in the order assigned."""
    order = []
    while isinstance(answer := scheduler.request(worker), Assignment):
        order += jobs_of(answer)
        scheduler.finished(worker, answer)
    return order


def in_state(scheduler: Scheduler, state: JobState) -> int:
    """How many jobs are in a state."""
    return sum(scheduler.state_of(job) is state for job in range(scheduler.count))


@define
class Simulated:
    """A run in virtual time."""

    workers: int
    makespan_ns: int = 0
    busy_ns: int = 0
    compiled: int = 0
    batches: list[list[int]] = field(factory=list)

    @property
    def idle_share(self) -> float:
        """Share of the workers' time in which they had nothing to do."""
        return 1 - self.busy_ns / (self.makespan_ns * self.workers)


def simulate(
    scheduler: Scheduler,
    true_ns: npt.NDArray[np.int64],
    hits: Callable[[int, int], bool] = lambda job, worker: False,
    watch: Callable[[int], None] = lambda now_ns: None,
) -> Simulated:
    """Let all workers do what they are given; who has nothing asks again whenever a batch ends.

    `watch` is called with the time after each request and before the end of a batch.
    """
    found = Simulated(scheduler.workers)
    events: list[tuple[int, int]] = []
    held: dict[int, tuple[Assignment, int, int]] = {}
    idle = list(range(scheduler.workers))
    while True:
        for worker in [*idle]:
            answer = scheduler.request(worker)
            if not isinstance(answer, Assignment):
                continue
            idle.remove(worker)
            jobs = jobs_of(answer)
            hit = [hits(job, worker) for job in jobs]
            took = sum(HIT_NS if each else int(true_ns[job]) for job, each in zip(jobs, hit, strict=True))
            held[worker] = answer, sum(hit), took
            heapq.heappush(events, (found.makespan_ns + took, worker))
            found.batches.append(jobs)
            found.compiled += len(jobs) - sum(hit)
            found.busy_ns += took
            watch(found.makespan_ns)
        if not events:
            break
        watch(events[0][0])
        found.makespan_ns, worker = heapq.heappop(events)
        answer, hit_count, took = held.pop(worker)
        compiles = len(answer.indices) - hit_count
        scheduler.finished(worker, answer, hits=hit_count, compiles=compiles, elapsed_ns=took)
        idle.append(worker)
    assert in_state(scheduler, JobState.CREATED) == scheduler.count
    return found


def assert_consistent(
    scheduler: Scheduler,
    libraries: Mapping[int, Iterable[int]],
    lacking: Iterable[int] = (),
) -> None:
    """What must hold between two events."""
    states = [scheduler.state_of(job) for job in range(scheduler.count)]
    assert scheduler.queued == sum(map(states.count, QUEUED))
    assert scheduler.in_flight == states.count(JobState.ASSIGNED)
    assert set(scheduler.unassignable) == {
        job for job, state in enumerate(states) if state is JobState.UNASSIGNABLE
    }
    assert set(scheduler.remaining().tolist()) == {job for job, state in enumerate(states) if state in QUEUED}
    for job, state in enumerate(states):
        missing = [each for each in libraries.get(job, ()) if states[each] is not JobState.CREATED]
        leader = scheduler.leader_of(job)
        if state is JobState.JOINED:
            assert states[leader] in {JobState.WAITING, JobState.READY, JobState.ASSIGNED}
            if states[leader] is not JobState.ASSIGNED:
                assert scheduler.priority_of(leader) <= scheduler.priority_of(job)
        if state is JobState.READY:
            assert not missing
            assert job not in lacking
        if state is JobState.WAITING:
            assert missing or job in lacking
        if state in QUEUED:
            for library in missing:
                assert states[library] in QUEUED | {JobState.ASSIGNED}
                if states[library] in QUEUED:
                    assert scheduler.priority_of(library) <= scheduler.priority_of(job)
