"""What the tests of `Scheduler` share.

Graphs, workers in virtual time, and a check of everything that must hold between two events.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import define, field

from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.simulated import simulated_image
from orchestrator.schedule import Assignment, JobGraph, JobState, Order, Scheduler
from orchestrator.schedule.batches import PRIORITIES, ReadyQueue, bucket_of

HIT_NS = 20_000
QUEUED = {JobState.WAITING, JobState.READY, JobState.PINNED, JobState.JOINED}


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


@define
class Simulated:
    """A run in virtual time.

    Attributes:
        workers: Workers that took part.
        makespan_ns: Until the last worker ended.
        busy_ns: Time of all batches.
        compiled: Jobs that were compiled.
        batches: The jobs of each batch, in the order assigned.
    """

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
) -> Simulated:
    """Let all workers do what they are given; who has nothing asks again whenever a batch ends."""
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
        if not events:
            break
        found.makespan_ns, worker = heapq.heappop(events)
        answer, hit_count, took = held.pop(worker)
        compiles = len(answer.indices) - hit_count
        scheduler.finished(worker, answer, hits=hit_count, compiles=compiles, elapsed_ns=took)
        idle.append(worker)
    assert scheduler.done == scheduler.count
    return found


def assert_consistent(scheduler: Scheduler, lacking: set[int] | frozenset[int] = frozenset()) -> None:
    """Everything that must hold between two events, recomputed from the columns.

    `lacking` are jobs that were not found without their code, which was not supplied.
    """
    table, life = scheduler._table, scheduler._life
    states = [scheduler.state_of(job) for job in range(scheduler.count)]
    for state in JobState:
        assert table.states[state] == states.count(state)
    open_cost = sum(int(table.cost[job]) for job, state in enumerate(states) if state <= JobState.PINNED)
    assert table.open_cost == open_cost
    assert set(scheduler.unassignable) == {
        job for job, state in enumerate(states) if state is JobState.UNASSIGNABLE
    }
    for job, state in enumerate(states):
        libraries = life.links.libraries_of(job)
        missing = [each for each in libraries if states[each] is not JobState.CREATED]
        assert table.waiting[job] == len(missing) + (job in lacking)
        leader = scheduler.leader_of(job)
        if state is JobState.JOINED:
            assert states[leader] in QUEUED - {JobState.JOINED} | {JobState.ASSIGNED}
            if states[leader] is not JobState.ASSIGNED:
                assert table.priority[leader] <= table.priority[job]
        if state in {JobState.READY, JobState.PINNED}:
            assert not missing
            assert job not in lacking
        if state is JobState.WAITING:
            assert missing or job in lacking
            for library in missing:
                assert states[library] in QUEUED | {JobState.ASSIGNED}
        if state in QUEUED:
            for library in missing:
                if states[library] in QUEUED:
                    assert table.priority[library] <= table.priority[job]
                    if scheduler.options.order is Order.COST:
                        # A rank is at least the cost, unless measured times have replaced estimates in it.
                        assert scheduler._reordered or table.rank[job] >= table.cost[job]
                        own = min(table.cost[job], table.rank[job])
                        assert table.rank[library] >= table.cost[library] + own
    ready = {job for job, state in enumerate(states) if state is JobState.READY}
    assert ready <= entries(life.queue) | entries(life.hits) | entries(life.wave)
    pinned = {job for job, state in enumerate(states) if state is JobState.PINNED}
    assert pinned <= set().union(*(entries(queue) for queues in life.duplicates for queue in queues))
    assert life.queue.sinks <= life.queue.repeats
    live = [0] * scheduler.count
    for job, state in enumerate(states):
        if state in QUEUED | {JobState.ASSIGNED}:
            for library in life.links.libraries_of(job):
                live[library] += 1
    queued = [job for job, state in enumerate(states) if state in QUEUED]
    assert all((table.live_dependents[job] > 0) >= (live[job] > 0) for job in queued)


def entries(queue: ReadyQueue) -> set[int]:
    """Job numbers in a ready queue, without entries that are stale for their job's priority or rank."""
    table = queue._table
    return {
        job
        for line, buckets in enumerate(queue._buckets)
        for number, bucket in buckets.items()
        for job in bucket.jobs[bucket.head : bucket.tail].tolist()
        if not queue.repeats or table.priority[job] == line % PRIORITIES
        if not queue.sinks or bucket_of(int(table.rank[job])) + 1 >= number
    }
