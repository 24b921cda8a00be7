"""In either order: every job once, libraries first, an end, nothing after cancel; jobs as given."""

from __future__ import annotations

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.schedule import Assignment, Done, Order, ScheduleOptions, Scheduler, Wait
from tests.schedule.machine import drain, job_graph, jobs_of, requested


def given_order(batch_limit: int = 64, expect_hits: float = 1.0) -> ScheduleOptions:
    return ScheduleOptions(order=Order.GIVEN, batch_limit=batch_limit, expect_hits=expect_hits)


@frozen
class Case:
    kinds: list[int]
    libraries: dict[int, list[int]]
    unusable: dict[int, str]
    failing: set[int]
    workers: int
    limit: int
    order: Order


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = sorted(draw(st.lists(st.integers(0, 2), max_size=40)))
    jobs = range(len(kinds))
    libraries = {
        job: draw(st.lists(st.integers(0, job - 1), max_size=4))
        for job in jobs
        if job and draw(st.booleans())
    }
    some = st.sets(st.sampled_from(jobs), max_size=5) if kinds else st.just(set[int]())
    return Case(
        kinds,
        libraries,
        {job: f"job {job} is unusable" for job in draw(some)},
        draw(some),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 8)),
        draw(st.sampled_from(Order)),
    )


def scheduler_of(case: Case, workers: int) -> Scheduler:
    graph = job_graph(len(case.kinds), kinds=case.kinds, libraries=case.libraries)
    scheduler = Scheduler(graph, workers, ScheduleOptions(order=case.order, batch_limit=case.limit))
    scheduler.exclude(case.unusable)
    return scheduler


def lost(case: Case) -> set[int]:
    """Jobs that cannot be assigned: unusable, or with a library that is not created."""
    never: set[int] = set()
    for job in range(len(case.kinds)):
        uncreated = never | case.failing
        if job in case.unusable or any(each in uncreated for each in case.libraries.get(job, ())):
            never.add(job)
    return never


@given(cases(), st.data())
def test_any_interleaving_assigns_each_job_once_after_its_libraries(case: Case, data: st.DataObject) -> None:
    scheduler = scheduler_of(case, case.workers)
    held: dict[int, Assignment] = {}
    created: set[int] = set()
    assigned: list[int] = []
    ended: set[int] = set()
    while len(ended) < case.workers:
        worker = data.draw(st.sampled_from([each for each in range(case.workers) if each not in ended]))
        if worker in held:
            batch = held.pop(worker)
            jobs = set(batch.indices.tolist())
            bad = jobs & case.failing
            if bad:
                scheduler.finished(worker, batch, dict.fromkeys(bad, "it failed"))
            else:
                scheduler.finished(worker, batch)
            created |= jobs - bad
            continue
        answer = scheduler.request(worker)
        if isinstance(answer, Wait):
            assert held, "every worker waits and nothing is in flight: the run would hang"
        elif isinstance(answer, Done):
            ended.add(worker)
        else:
            jobs = answer.indices.tolist()
            assert 1 <= len(jobs) <= case.limit
            assert {case.kinds[job] for job in jobs} == {answer.kind}
            for job in jobs:
                assert set(case.libraries.get(job, ())) <= created
            assigned += jobs
            held[worker] = answer
        assert scheduler.in_flight == sum(len(batch.indices) for batch in held.values())
        assert scheduler.queued + scheduler.in_flight + scheduler.done + len(scheduler.unassignable) == len(
            case.kinds
        )
    never = lost(case)
    assert sorted(assigned) == sorted(set(range(len(case.kinds))) - never)
    assert set(scheduler.unassignable) == never
    for job, reason in case.unusable.items():
        assert scheduler.unassignable[job] == reason


@given(cases(), st.integers(0, 10))
def test_nothing_is_assigned_after_cancel(case: Case, before: int) -> None:
    scheduler = scheduler_of(case, 2)
    for _ in range(before):
        answer = scheduler.request(0)
        if not isinstance(answer, Assignment):
            break
        scheduler.finished(0, answer)
    in_flight = scheduler.request(0)
    scheduler.cancel()
    assert isinstance(scheduler.request(1), Done)
    if isinstance(in_flight, Assignment):
        scheduler.finished(0, in_flight)
    assert scheduler.in_flight == 0
    assert isinstance(scheduler.request(0), Done)


def test_jobs_come_as_given_one_kind_a_batch_whatever_they_cost() -> None:
    graph = job_graph(5, kinds=[0, 0, 0, 1, 1], costs=[10**6, 10**9, 10**7, 10**8, 1])
    scheduler = Scheduler(graph, 1, given_order(2))
    assert drain(scheduler) == [0, 1, 2, 3, 4]


def test_modules_and_what_links_a_job_do_not_change_the_given_order() -> None:
    modules = {job: [job % 2] for job in range(40)}
    costs = [1000 * (40 - job) for job in range(40)]
    graph = job_graph(40, costs=costs, modules=modules, libraries={39: [20]})
    scheduler = Scheduler(graph, 2, given_order(1, 0.0))
    order = []
    for step in range(40):
        batch = requested(scheduler, step % 2)
        order += jobs_of(batch)
        scheduler.finished(step % 2, batch, compiles=1, elapsed_ns=1000)
    assert order == list(range(40))


def test_batches_shrink_towards_the_end() -> None:
    scheduler = Scheduler(job_graph(1000, costs=[5_000_000] * 1000), 2, given_order())
    sizes = []
    while isinstance(answer := scheduler.request(0), Assignment):
        sizes.append(len(answer.indices))
        scheduler.finished(0, answer, hits=sizes[-1], elapsed_ns=1000 * sizes[-1])
    assert sizes[0] == 64
    assert sizes[-8:] == [1] * 8
    assert sizes == sorted(sizes, reverse=True)


def test_many_workers_leave_each_other_time_to_ask_at_the_end() -> None:
    # 16 workers: 24 ms a batch, so 12 jobs of 1.9 ms; but never more than a worker's share of what is left,
    # part of what the others are at included.
    scheduler = Scheduler(job_graph(1600, costs=[5_000_000] * 1600), 16, ScheduleOptions(target_ns=10**8))
    left, batches = 1600, list[tuple[int, int]]()
    while isinstance(answer := scheduler.request(0), Assignment):
        batches.append((left, len(answer.indices)))
        left -= len(answer.indices)
        scheduler.finished(0, answer, compiles=batches[-1][1], elapsed_ns=1_900_000 * batches[-1][1])
    late = [(left, size) for left, size in batches[1:] if left < 64 * 8]
    assert late
    assert all(size == max(1, min(12, left // 16)) for left, size in late), late


def test_a_kind_does_not_wait_for_another() -> None:
    # Job 1 waits for job 0, which is in flight; the job of the other kind does not.
    scheduler = Scheduler(job_graph(3, kinds=[0, 0, 1], libraries={1: [0]}), 2, given_order())
    first = requested(scheduler, 0)
    assert jobs_of(first) == [0]
    other = requested(scheduler, 1)
    assert jobs_of(other) == [2]
    scheduler.finished(1, other)
    assert scheduler.request(1) == Wait()
    scheduler.finished(0, first)
    assert jobs_of(requested(scheduler, 1)) == [1]


def test_a_failed_library_takes_what_links_it_with_the_root_cause() -> None:
    scheduler = Scheduler(job_graph(4, libraries={1: [0], 2: [1], 3: []}), 1, given_order(1))
    first = requested(scheduler, 0)
    scheduler.finished(0, first, {0: "VK_ERROR_UNKNOWN"})
    assert scheduler.unassignable == {
        1: "links pipeline 0, which was not created: VK_ERROR_UNKNOWN",
        2: "links pipeline 1, which was not created: VK_ERROR_UNKNOWN",
    }
    assert jobs_of(requested(scheduler, 0)) == [3]


def test_an_assignment_is_read_only() -> None:
    batch = requested(Scheduler(job_graph(2), 1), 0)
    with pytest.raises(ValueError, match="read-only"):
        batch.indices[0] = 1


def test_an_empty_set_is_done_at_once() -> None:
    assert Scheduler(job_graph(0), 3).request(2) == Done()
