"""The cost scheduler, one promise at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from orchestrator.schedule.jobs import JobGraph, JobState
from orchestrator.schedule.options import Order, Priority, ScheduleOptions
from orchestrator.schedule.scheduler import Assignment, Done, Paused, Scheduler, Wait
from tests.schedule.machine import drain, in_state, job_graph, jobs_of, requested

MS = 1_000_000
ONE = ScheduleOptions(batch_limit=1)
STREAM = ScheduleOptions(batch_limit=1, streaming=True)


def some(jobs: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([*jobs], np.int32)


# --- order


@pytest.mark.parametrize(
    ("graph", "options", "order"),
    [
        # The longest comes first, and equal ones keep the order of the set.
        (job_graph(6, costs=[3000, 900_000, 40_000, 900 * MS, 7 * MS, 1000]), ONE, [3, 4, 1, 2, 0, 5]),
        (job_graph(50), None, [*range(50)]),
        # A library is as long as the chain that begins with it, and as urgent as what links it.
        (job_graph(4, libraries={3: [0]}, costs=[MS, 50 * MS, 60 * MS, 100 * MS]), ONE, [0, 3, 2, 1]),
        (job_graph(3, libraries={2: [0]}, costs=[1, 50 * MS, 1], priorities=[2, 1, 0]), ONE, [0, 2, 1]),
        # Kinds do not wait for each other.
        (job_graph(4, kinds=[0, 0, 1, 1], costs=[MS, 9 * MS, 5 * MS, 20 * MS]), ONE, [3, 1, 2, 0]),
        # The given order, one kind a batch, whatever they cost.
        (
            job_graph(5, kinds=[0, 0, 0, 1, 1], costs=[MS, 1000 * MS, 10 * MS, 100 * MS, 1]),
            ScheduleOptions(order=Order.GIVEN, batch_limit=2, hit_share=1.0),
            [0, 1, 2, 3, 4],
        ),
    ],
)
def test_the_order_of_jobs(graph: JobGraph, options: ScheduleOptions | None, order: list[int]) -> None:
    assert drain(Scheduler(graph, 1, options)) == order


# --- the same work


def test_a_library_without_code_is_as_urgent_as_what_became_urgent_meanwhile() -> None:
    graph = job_graph(2, libraries={1: [0]}, speculative=[True, False], priorities=[2, 2])
    scheduler = Scheduler(graph, 1, ONE)
    library = requested(scheduler, 0)
    scheduler.promote([1], Priority.NOW)
    scheduler.finished(0, library, missed=some([0]))
    assert scheduler.priority_of(0) is Priority.NOW


def test_a_follower_whose_code_came_late_is_created_where_its_leader_was_compiled() -> None:
    scheduler = Scheduler(job_graph(3, keys=[7, 7, 9], speculative=[False, True, False]), 2, ONE)
    leader, other = requested(scheduler, 0), requested(scheduler, 1)
    assert (jobs_of(leader), jobs_of(other)) == ([0], [2])
    scheduler.finished(0, leader, compiles=1)
    scheduler.finished(1, other, compiles=1)
    follower = requested(scheduler, 0)
    assert jobs_of(follower) == [1]
    scheduler.finished(0, follower, missed=some([1]))
    scheduler.supplied([1])
    assert scheduler.request(1) == Wait()
    again = requested(scheduler, 0)
    assert jobs_of(again) == [1]
    assert again.follows
    scheduler.finished(0, again, hits=1)
    assert scheduler.request(1) == Done()


@pytest.mark.parametrize("second", [False, True])
def test_the_same_work_is_done_once(second: bool) -> None:
    keys = [7, 8, 7, 7, 9]
    graph = job_graph(5, keys=None if second else keys, pipeline_keys=keys if second else None)
    scheduler = Scheduler(graph, 2, ONE)
    first = requested(scheduler, 0)
    assert jobs_of(first) == [0]
    assert [jobs_of(requested(scheduler, 1))] == [[1]]
    scheduler.finished(0, first, compiles=1, elapsed_ns=5 * MS)
    assert drain(scheduler) == [2, 3, 4]


def test_a_follower_goes_to_the_worker_whose_cache_has_it() -> None:
    scheduler = Scheduler(job_graph(2, keys=[1, 1]), 2)
    batch = requested(scheduler, 1)
    assert scheduler.request(0) == Wait()
    scheduler.finished(1, batch, compiles=1)
    assert scheduler.request(0) == Wait()
    assert jobs_of(requested(scheduler, 1)) == [1]


def test_with_one_cache_any_worker_creates_a_follower() -> None:
    scheduler = Scheduler(job_graph(2, keys=[1, 1]), 2, ScheduleOptions(pin_followers=False))
    scheduler.finished(1, requested(scheduler, 1), compiles=1)
    assert jobs_of(requested(scheduler, 0)) == [1]


def test_a_failure_is_the_outcome_of_all_that_is_the_same() -> None:
    graph = job_graph(4, keys=[1, 1, 2, 3], libraries={2: [1]})
    scheduler = Scheduler(graph, 1, ONE)
    batch = requested(scheduler, 0)
    scheduler.finished(0, batch, {0: "VK_ERROR_UNKNOWN"}, compiles=1)
    assert scheduler.unassignable == {
        1: "is the same work as pipeline 0000000000000001, which was not created: VK_ERROR_UNKNOWN",
        2: "links pipeline 0000000000000001, which was not created: is the same work as pipeline "
        "0000000000000001, which was not created: VK_ERROR_UNKNOWN",
    }
    assert drain(scheduler) == [3]


def test_a_follower_that_comes_while_its_leader_is_in_flight_still_saves() -> None:
    scheduler = Scheduler(job_graph(4, pipeline_keys=[1, 2, 1, 0]), 1, STREAM)
    scheduler.enter(some([0]), Priority.SOON)
    batch = requested(scheduler, 0)
    scheduler.enter(some([1, 2, 3]), Priority.SOON)
    assert scheduler.state_of(2) is JobState.JOINED
    scheduler.finished(0, batch, compiles=1)
    assert drain(scheduler) == [2, 1, 3]


def test_separate_jobs_follow_nobody() -> None:
    options = ScheduleOptions(unites=False, batch_limit=1)
    scheduler = Scheduler(job_graph(3, keys=[1, 1, 1], pipeline_keys=[2, 2, 2]), 2, options)
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert [jobs_of(each) for each in batches] == [[0], [1]]


def test_a_leader_that_was_cancelled_comes_again_behind_who_does_its_work() -> None:
    scheduler = Scheduler(job_graph(3, keys=[1, 1, 1]), 1, STREAM)
    scheduler.enter(some([0, 1, 2]), Priority.SOON)
    scheduler.cancel_jobs([0])
    scheduler.enter(some([0]), Priority.NOW)
    assert scheduler.leader_of(0) == scheduler.leader_of(2) == 1
    scheduler.cancel_jobs([1, 2])
    assert scheduler.leader_of(0) == 0
    scheduler.enter(some([1, 2]), Priority.SOON)
    assert sorted(drain(scheduler)) == [0, 1, 2]


# --- steering


def test_promoting_takes_along_what_is_waited_for() -> None:
    graph = job_graph(5, keys=[1, 2, 3, 4, 1], libraries={3: [1]}, priorities=[2, 2, 1, 2, 2])
    scheduler = Scheduler(graph, 1, ONE)
    assert scheduler.promote([3, 4], Priority.NOW) == 4
    # The library of 3; the leader of 4, and 4 after it, which hits; 3; and then the rest.
    assert drain(scheduler) == [1, 0, 4, 3, 2]
    assert scheduler.promote([3], Priority.NOW) == 0


def test_a_deadline_stops_between_batches_and_the_next_goes_on() -> None:
    options = ScheduleOptions(hit_share=0.0, target_ns=1)
    scheduler = Scheduler(job_graph(10, costs=[4 * MS] * 10), 1, options)
    scheduler.set_deadline(10 * MS)
    order: list[int] = []
    while isinstance(answer := scheduler.request(0, 4 * MS * len(order)), Assignment):
        order += jobs_of(answer)
        scheduler.finished(0, answer, compiles=1, elapsed_ns=4 * MS)
    assert answer == Paused()
    assert isinstance(answer, Done)
    assert order == [0, 1]
    assert scheduler.remaining().tolist() == list(range(2, 10))
    scheduler.set_deadline(20 * MS)
    assert scheduler.request(0, 20 * MS) == Paused()
    scheduler.set_deadline(None)
    assert drain(scheduler) == list(range(2, 10))


def test_a_deadline_takes_what_fits_and_one_job_that_does_not() -> None:
    options = ScheduleOptions(hit_share=0.0, batch_limit=1)
    scheduler = Scheduler(job_graph(4, costs=[80 * MS, 3 * MS, 20 * MS, 1 * MS]), 2, options)
    scheduler.set_deadline(4 * MS)
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert [jobs_of(each) for each in batches] == [[1], [3]]
    for worker, batch in enumerate(batches):
        scheduler.finished(worker, batch)
    assert scheduler.request(0, 1 * MS) == Paused()
    # A frame is shorter than all that is left: one job of the shortest runs all the same, and only one.
    scheduler.set_deadline(8 * MS)
    assert jobs_of(requested(scheduler, 0, 4 * MS)) == [2]
    assert scheduler.request(1, 4 * MS) == Paused()


def test_a_deadline_goes_by_the_clock_and_not_by_what_was_estimated() -> None:
    options = ScheduleOptions(hit_share=0.0, batch_limit=1)
    scheduler = Scheduler(job_graph(40, costs=[4 * MS] * 40), 1, options)
    scheduler.set_deadline(10 * MS + MS // 2)
    begun = 0
    # Each takes a quarter of the estimate.
    while isinstance(answer := scheduler.request(0, begun * MS), Assignment):
        begun += 1
        scheduler.finished(0, answer, compiles=1, elapsed_ns=1 * MS)
    assert answer == Paused()
    assert begun == 10


def sizes_of_hits(scheduler: Scheduler, limit_ns: int) -> list[int]:
    """Sizes of the batches of one worker that all hit, with so much time from the start of each."""
    sizes = []
    while scheduler.queued:
        scheduler.set_deadline(limit_ns)
        batch = requested(scheduler, 0)
        sizes.append(len(batch.indices))
        scheduler.finished(0, batch, hits=sizes[-1], elapsed_ns=5_000 * sizes[-1])
    return sizes


@pytest.mark.parametrize("hits", [None, [True] * 600], ids=["any", "expected"])
@pytest.mark.parametrize(("limit_ns", "most"), [(4 * MS, 8), (200 * MS, 20)])
def test_under_a_deadline_hits_come_in_batches_that_may_turn_out_to_be_compiles(
    hits: list[bool] | None, limit_ns: int, most: int
) -> None:
    sizes = sizes_of_hits(Scheduler(job_graph(600, costs=[MS // 5] * 600, hits=hits), 1), limit_ns)
    assert sizes[0] == 1
    assert max(sizes) == most
    assert sizes.count(most) > len(sizes) // 2


def test_under_a_deadline_what_takes_longer_is_created_alone_though_all_hit() -> None:
    graph = job_graph(50, costs=[5000 * MS] * 50)
    assert sizes_of_hits(Scheduler(graph, 1), 4000 * MS) == [1] * 50


def test_what_is_exempt_begins_after_the_deadline() -> None:
    graph = job_graph(3, priorities=[1, 0, 2], costs=[MS] * 3)
    scheduler = Scheduler(graph, 1, ScheduleOptions(hit_share=0.0))
    scheduler.set_deadline(5)
    assert scheduler.request(0, 5) == Paused()
    scheduler.exempt(Priority.NOW)
    batch = requested(scheduler, 0, 99 * MS)
    assert jobs_of(batch) == [1]
    scheduler.finished(0, batch)
    assert scheduler.request(0, 99 * MS) == Paused()
    scheduler.exempt(None)
    assert scheduler.request(0, 4 * MS) == Paused()


def test_the_one_job_of_a_short_time_is_not_one_that_was_cancelled() -> None:
    # So many long ones that the shorter ones, which are gone, are not come to before
    # the shortest is looked for.
    costs = [*[80 * MS] * 40, *[20 * MS] * 5]
    options = ScheduleOptions(hit_share=0.0, batch_limit=1)
    scheduler = Scheduler(job_graph(45, costs=costs), 1, options)
    assert scheduler.cancel_jobs(range(40, 45)).cancelled == 5
    scheduler.set_deadline(4 * MS)
    assert jobs_of(requested(scheduler, 0)) == [0]
    assert scheduler.queued == 39


def test_the_job_that_may_overrun_a_deadline_does_not_begin_beside_another() -> None:
    options = ScheduleOptions(hit_share=0.0, batch_limit=1)
    scheduler = Scheduler(job_graph(3, costs=[5 * MS] * 3), 2, options)
    batch = requested(scheduler, 0)
    scheduler.set_deadline(4 * MS)
    assert scheduler.request(1, 1 * MS) == Paused()
    scheduler.finished(0, batch, compiles=1, elapsed_ns=2 * MS)
    batch = requested(scheduler, 1, 2 * MS)
    assert scheduler.request(0, 2 * MS) == Paused()
    scheduler.finished(1, batch, compiles=1, elapsed_ns=5 * MS)
    assert scheduler.request(1, 3 * MS) == Paused(), "only the first under a deadline may overrun it"


def test_a_stream_ends_when_it_is_closed() -> None:
    scheduler = Scheduler(job_graph(4, libraries={3: [2]}), 1, STREAM)
    assert scheduler.request(0) == Wait()
    scheduler.enter(some([0, 1]), Priority.SOON)
    batch = requested(scheduler, 0)
    scheduler.enter(some([3]), Priority.SOON)
    assert scheduler.queued == 3, "the library comes along"
    scheduler.close()
    scheduler.finished(0, batch)
    assert drain(scheduler) == [2, 1, 3]
    assert scheduler.request(0) == Done()
    with pytest.raises(ValueError, match="stream"):
        scheduler.enter(some([0]), Priority.SOON)


def test_what_is_excluded_is_so_whenever_it_comes() -> None:
    scheduler = Scheduler(job_graph(4, libraries={1: [0], 3: [2]}), 1, STREAM)
    scheduler.enter(some([0, 1]), Priority.SOON)
    scheduler.exclude({0: "bad", 2: "worse"})
    assert scheduler.unassignable == {0: "bad", 1: "links pipeline 0, which was not created: bad"}
    scheduler.enter(some([3]), Priority.SOON)
    assert scheduler.unassignable[3] == "links pipeline 2, which was not created: worse"
    assert not scheduler.queued


def test_cancelling_says_when_it_is_quiet() -> None:
    scheduler = Scheduler(job_graph(6), 2, ScheduleOptions(batch_limit=2, streaming=True))
    for job in range(6):
        scheduler.enter(some([job]), Priority.SOON)
    scheduler.close()
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert [jobs_of(each) for each in batches] == [[0], [1]]
    cancellation = scheduler.cancel_jobs([0, 2, 4])
    assert cancellation.cancelled == 2
    assert cancellation.pending == {0}
    quiet = [cancellation.quiet]
    for worker in (1, 0):
        scheduler.finished(worker, batches[worker])
        quiet.append(cancellation.quiet)
    assert quiet == [False, False, True]
    assert drain(scheduler) == [3, 5]
    assert scheduler.cancel_jobs(range(6)).quiet


# --- misuse


@pytest.mark.parametrize(
    ("misuse", "match"),
    [
        (lambda: Scheduler(job_graph(1), 0), "workers"),
        (lambda: Scheduler(job_graph(2), 1).exclude({2: ""}), "no job 2"),
        (lambda: Scheduler(job_graph(2), 1).state_of(2), "no job 2"),
        (lambda: Scheduler(job_graph(2), 1).promote([-1], Priority.NOW), "no job -1"),
        (lambda: Scheduler(job_graph(2), 1).cancel_jobs([2]), "no job 2"),
        (lambda: Scheduler(job_graph(2), 1).request(1), "no worker 1"),
    ],
)
def test_misuse_is_an_error(misuse: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        misuse()


def test_a_worker_ends_what_it_holds() -> None:
    scheduler = Scheduler(job_graph(20), 2, ONE)
    mine, other = requested(scheduler, 0), requested(scheduler, 1)
    with pytest.raises(ValueError, match="before its last assignment"):
        scheduler.request(0)
    with pytest.raises(ValueError, match="does not hold"):
        scheduler.finished(0, other)
    with pytest.raises(ValueError, match="not in the assignment"):
        scheduler.finished(0, mine, {19: "?"})
    scheduler.finished(0, mine)
    assert in_state(scheduler, JobState.CREATED) == 1


@pytest.mark.parametrize("name", ["target_ns", "batch_limit"])
def test_what_counts_is_a_whole_number(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        ScheduleOptions(**{name: 2.5})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=name):
        ScheduleOptions(**{name: 0})  # type: ignore[arg-type]


# --- size


@pytest.mark.parametrize("size", [1, 64], ids=["one by one", "many at a time"])
def test_what_comes_again_is_no_more_urgent_than_it_is_asked_for_now(size: int) -> None:
    options = ScheduleOptions(streaming=True, batch_limit=size, target_ns=size * 10**9)
    scheduler = Scheduler(job_graph(2, kinds=[0, 0], costs=[1, 10**6]), 1, options)
    scheduler.enter(np.array([1], np.int32), Priority.NOW)
    scheduler.cancel_jobs([1])
    scheduler.enter(np.array([1], np.int32), Priority.SOON)
    scheduler.enter(np.array([0], np.int32), Priority.NOW)
    answer = scheduler.request(0, 0)
    assert isinstance(answer, Assignment)
    assert answer.indices.tolist() == [0]


def test_what_is_cancelled_and_entered_in_each_frame_takes_no_more_room() -> None:
    scheduler = Scheduler(job_graph(100), 1, ScheduleOptions(streaming=True))
    jobs = np.arange(100, dtype=np.int32)

    def frames(number: int) -> int:
        for _ in range(number):
            scheduler.enter(jobs, Priority.BACKGROUND)
            scheduler.cancel_jobs(jobs)
            assert scheduler.take_settled().tolist() == jobs.tolist()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = frames(5)
        assert frames(15) <= few + 20_000
    finally:
        tracemalloc.stop()
    scheduler.enter(jobs, Priority.SOON)
    assert sorted(drain(scheduler)) == jobs.tolist()


# --- expected hits


def test_two_workers_take_expected_hits_and_all_take_compiles() -> None:
    graph = job_graph(40, hits=[job < 37 for job in range(40)], costs=[10**6] * 40)
    scheduler = Scheduler(graph, 6, ScheduleOptions(few_for_hits=True, batch_limit=4))
    given = [scheduler.request(worker) for worker in range(6)]
    first = [int(each.indices[0]) for each in given if isinstance(each, Assignment)]
    assert len([job for job in first if job < 37]) == 2
    assert sorted(job for job in first if job >= 37) == [37, 38, 39]
    assert scheduler.satisfied


def test_all_workers_are_needed_once_an_expected_hit_was_compiled() -> None:
    scheduler = Scheduler(job_graph(400, hits=[True] * 400), 6, ScheduleOptions(few_for_hits=True))
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert scheduler.request(2) == Wait()
    told = [scheduler.satisfied]
    scheduler.finished(0, batches[0], compiles=len(batches[0].indices), elapsed_ns=10**9)
    assert [*told, scheduler.satisfied] == [True, False]
    assert isinstance(scheduler.request(2), Assignment)


def test_who_finds_enough_taking_hits_waits_and_is_not_out_of_time() -> None:
    graph = job_graph(60, hits=[True] * 60)
    scheduler = Scheduler(graph, 4, ScheduleOptions(few_for_hits=True, hit_share=1.0))
    scheduler.set_deadline(8 * 3600e9)
    answers = [scheduler.request(worker, now_ns=1_000_000) for worker in range(4)]
    assert [type(each) for each in answers] == [Assignment, Assignment, Wait, Wait]


def test_an_empty_set_is_done_at_once() -> None:
    assert Scheduler(job_graph(0), 3).request(2) == Done()
