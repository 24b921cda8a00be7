"""FIFO scheduler: every job once, libraries first, an end, nothing after cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.schedule import Assignment, Done, FifoScheduler, JobGraph, Scheduler, Wait


def graph(
    kinds: Sequence[int],
    libraries: Mapping[int, Sequence[int]] | None = None,
    unusable: Mapping[int, str] | None = None,
) -> JobGraph:
    libraries = libraries or {}
    linked = [list(libraries.get(job, ())) for job in range(len(kinds))]
    return JobGraph(
        np.array(kinds, np.uint8),
        np.cumsum([0, *map(len, linked)]).astype(np.int64),
        np.array([each for group in linked for each in group], np.int32),
        unusable or {},
    )


def requested(scheduler: Scheduler, worker: int) -> Assignment:
    answer = scheduler.request(worker)
    assert isinstance(answer, Assignment), answer
    return answer


@frozen
class Case:
    kinds: list[int]
    libraries: dict[int, list[int]]
    unusable: dict[int, str]
    failing: set[int]
    workers: int
    limit: int


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
    )


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
    scheduler = FifoScheduler(
        graph(case.kinds, case.libraries, case.unusable), case.workers, limit=case.limit
    )
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
                scheduler.failed(worker, batch, dict.fromkeys(bad, "it failed"))
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
    scheduler = FifoScheduler(graph(case.kinds, case.libraries, case.unusable), 2, limit=case.limit)
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


def test_jobs_come_in_set_order_one_kind_a_batch() -> None:
    scheduler = FifoScheduler(graph([0] * 3 + [1] * 2), 1, limit=2)
    seen = []
    while isinstance(answer := scheduler.request(0), Assignment):
        seen.append(answer.indices.tolist())
        scheduler.finished(0, answer)
    assert [job for batch in seen for job in batch] == [0, 1, 2, 3, 4]
    assert all(max(batch) < 3 or min(batch) >= 3 for batch in seen)


def test_batches_shrink_towards_the_end() -> None:
    scheduler = FifoScheduler(graph([0] * 1000), 2)
    sizes = []
    while isinstance(answer := scheduler.request(0), Assignment):
        sizes.append(len(answer.indices))
        scheduler.finished(0, answer)
    assert sizes[0] == 64
    assert sizes[-8:] == [1] * 8
    assert sizes == sorted(sizes, reverse=True)


def test_a_kind_does_not_wait_for_another() -> None:
    # Job 1 waits for job 0, which is in flight; the job of the other kind does not.
    scheduler = FifoScheduler(graph([0, 0, 1], {1: [0]}), 2)
    first = requested(scheduler, 0)
    assert first.indices.tolist() == [0]
    other = requested(scheduler, 1)
    assert other.indices.tolist() == [2]
    scheduler.finished(1, other)
    assert isinstance(scheduler.request(1), Wait)
    scheduler.finished(0, first)
    assert requested(scheduler, 1).indices.tolist() == [1]


def test_a_failed_library_takes_what_links_it_with_the_root_cause() -> None:
    scheduler = FifoScheduler(graph([0] * 4, {1: [0], 2: [1], 3: []}), 1, limit=1)
    first = requested(scheduler, 0)
    scheduler.failed(0, first, {0: "VK_ERROR_UNKNOWN"})
    assert scheduler.unassignable == {
        1: "links pipeline 0, which was not created: VK_ERROR_UNKNOWN",
        2: "links pipeline 1, which was not created: VK_ERROR_UNKNOWN",
    }
    assert requested(scheduler, 0).indices.tolist() == [3]


def test_misuse_is_an_error() -> None:
    scheduler = FifoScheduler(graph([0, 0]), 2)
    batch = requested(scheduler, 0)
    with pytest.raises(ValueError, match="before its last assignment has ended"):
        scheduler.request(0)
    with pytest.raises(ValueError, match="does not hold"):
        scheduler.finished(1, batch)
    with pytest.raises(ValueError, match="no worker 2"):
        scheduler.request(2)
    with pytest.raises(ValueError, match="not in the assignment"):
        scheduler.failed(0, batch, {1: "not mine"})
    with pytest.raises(ValueError, match="read-only"):
        batch.indices[0] = 1
    scheduler.finished(0, batch)
    with pytest.raises(ValueError, match="does not hold"):
        scheduler.finished(0, batch)


@pytest.mark.parametrize(
    ("jobs", "workers", "limit", "complaint"),
    [
        (graph([0]), 0, 1, "workers"),
        (graph([0]), 1, 0, "limit"),
        (graph([0, 0], {0: [1]}), 1, 1, "does not come before"),
        (graph([0, 0], {1: [1]}), 1, 1, "does not come before"),
        (graph([0], unusable={1: "?"}), 1, 1, "no job 1"),
    ],
)
def test_bad_input_is_refused(jobs: JobGraph, workers: int, limit: int, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        FifoScheduler(jobs, workers, limit=limit)


def test_repr_shows_the_state() -> None:
    scheduler = FifoScheduler(graph([0] * 4, {3: [0]}, {2: "?"}), 1, limit=1)
    assert (
        repr(scheduler)
        == "<FifoScheduler assigning: 3 queued (2 ready), 0 in flight, 0 done, 1 unassignable>"
    )
    batch = requested(scheduler, 0)
    assert (
        repr(scheduler)
        == "<FifoScheduler assigning: 2 queued (1 ready), 1 in flight, 0 done, 1 unassignable>"
    )
    scheduler.cancel()
    scheduler.finished(0, batch)
    assert (
        repr(scheduler)
        == "<FifoScheduler cancelled: 2 queued (2 ready), 0 in flight, 1 done, 1 unassignable>"
    )


def test_an_empty_set_is_done_at_once() -> None:
    assert isinstance(FifoScheduler(graph([]), 3).request(2), Done)


def test_quick_batches_grow_to_the_limit_of_hits_and_slow_ones_end_that() -> None:
    scheduler = FifoScheduler(graph([0] * 4000), 1, limit=4, hit_limit=20)
    sizes = []
    for elapsed_ns in (1_000, 1_000, 1_000, 2_000_000, 5_000_000, 1_000, 0):
        answer = scheduler.request(0)
        assert isinstance(answer, Assignment)
        sizes.append(len(answer.indices))
        scheduler.finished(0, answer, elapsed_ns=elapsed_ns)
    # Doubled after quick ones; kept after one that was neither; small again after a slow one; no time teaches nothing.
    assert sizes == [4, 8, 16, 20, 20, 4, 8]
    last = scheduler.request(0)
    assert isinstance(last, Assignment)
    assert len(last.indices) == 8


def test_batches_that_are_not_full_do_not_make_the_next_ones_larger() -> None:
    scheduler = FifoScheduler(graph([0] * 10), 2, limit=4, hit_limit=64)
    sizes = []
    while isinstance(answer := scheduler.request(0), Assignment):
        sizes.append(len(answer.indices))
        scheduler.finished(0, answer, elapsed_ns=900_000)
    assert max(sizes) == 1


@pytest.mark.parametrize("hits", [True, False])
def test_a_tail_of_hits_is_cut_into_fewer_calls(hits: bool) -> None:
    scheduler = FifoScheduler(graph([0] * 1200), 2, limit=256, hit_limit=256)
    made = 0
    while isinstance(answer := scheduler.request(0), Assignment):
        scheduler.finished(0, answer, hits=len(answer.indices) if hits else 0, elapsed_ns=2_000_000)
        made += 1
        assert len(answer.indices) <= 256
    assert made <= 12 if hits else made >= 40, made
