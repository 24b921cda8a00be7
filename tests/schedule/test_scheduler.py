"""The cost scheduler, one promise at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest

from orchestrator.schedule import (
    Assignment,
    Done,
    Followers,
    JobGraph,
    JobState,
    Paused,
    Priority,
    ScheduleOptions,
    Scheduler,
    Wait,
)
from tests.schedule.machine import assert_consistent, drain, job_graph, jobs_of, requested, simulate

MS = 1_000_000
ONE = ScheduleOptions(batch_limit=1)
STREAM = ScheduleOptions(batch_limit=1, streaming=True)
SHARING = ScheduleOptions(followers=Followers.SHARE, streaming=True)


def some(jobs: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([*jobs], np.int32)


# --- order


def test_the_longest_comes_first() -> None:
    costs = [3, 900, 40, 900_000, 7_000, 1]
    scheduler = Scheduler(job_graph(6, costs=[each * 1000 for each in costs]), 1, ONE)
    assert drain(scheduler) == [3, 4, 1, 2, 0, 5]


def test_a_job_may_take_hours() -> None:
    costs = [MS, *[10**shift for shift in range(12, 19)]]
    assert drain(Scheduler(job_graph(8, costs=costs), 1)) == [*range(7, 0, -1), 0]


def test_equal_jobs_keep_the_order_of_the_set() -> None:
    assert drain(Scheduler(job_graph(50), 1)) == list(range(50))


def test_a_library_is_as_long_as_the_chain_that_begins_with_it() -> None:
    graph = job_graph(4, libraries={3: [0]}, costs=[1 * MS, 50 * MS, 60 * MS, 100 * MS])
    assert drain(Scheduler(graph, 1, ONE)) == [0, 3, 2, 1]


def test_a_library_is_as_urgent_as_what_links_it() -> None:
    graph = job_graph(3, libraries={2: [0]}, costs=[1, 50 * MS, 1], priorities=[2, 1, 0])
    assert drain(Scheduler(graph, 1, ONE)) == [0, 2, 1]


def test_kinds_do_not_wait_for_each_other() -> None:
    graph = job_graph(4, kinds=[0, 0, 1, 1], costs=[1 * MS, 9 * MS, 5 * MS, 20 * MS])
    assert drain(Scheduler(graph, 1, ONE)) == [3, 1, 2, 0]


def test_costs_that_were_recorded_and_prove_true_cut_the_last_batches() -> None:
    """Most jobs are short then: 16 workers that take them one by one wait for each other's answers."""
    costs = (np.random.default_rng(1).lognormal(0, 2.0, 3000) * MS).astype(np.int64) + 1
    wrong = np.random.default_rng(2).permutation(costs)
    bound = max(int(costs.max()), int(costs.sum()) // 16)

    def batches(estimated: np.ndarray, recorded: bool) -> int:
        options = ScheduleOptions(expect_hits=0.0, target_ns=200 * MS, costs_recorded=recorded)
        scheduler = Scheduler(job_graph(3000, costs=estimated.tolist()), 16, options)
        found = simulate(scheduler, costs)
        assert found.makespan_ns <= 1.05 * bound or estimated is wrong
        return len(found.batches)

    assert batches(costs, recorded=True) < 0.7 * batches(costs, recorded=False)
    # What is said to be recorded and is not so is not believed.
    assert batches(wrong, recorded=True) == batches(wrong, recorded=False)


@pytest.mark.parametrize("workers", [2, 8])
def test_nothing_is_left_for_last(workers: int) -> None:
    costs = (np.random.default_rng(workers).lognormal(0, 1.5, 1000) * MS).astype(np.int64)
    graph = job_graph(
        1000, costs=costs.tolist(), modules={job: [job % 100, 100 + job % 7] for job in range(1000)}
    )
    bound = max(int(costs.max()), int(costs.sum()) // workers)
    assert simulate(Scheduler(graph, workers), costs).makespan_ns <= 1.03 * bound


def test_a_job_that_became_longer_is_in_one_batch_once() -> None:
    # Jobs of a length of their own each, so that a batch is of several buckets.
    options = ScheduleOptions(streaming=True, expect_hits=1.0)
    costs = [*(1 << (10 + job % 30) for job in range(2000)), 1 << 22]
    scheduler = Scheduler(job_graph(2001, libraries={2000: [10, 11, 12]}, costs=costs), 1, options)
    scheduler.enter(some(range(2000)), Priority.SOON)
    scheduler.enter(some([2000]), Priority.SOON)
    scheduler.close()
    order = drain(scheduler)
    assert sorted(order) == list(range(2001))


# --- the same work


@pytest.mark.parametrize("followers", [Followers.CREATE, Followers.SHARE])
@pytest.mark.parametrize("second", [False, True])
def test_the_same_work_is_done_once(followers: Followers, second: bool) -> None:
    keys = [7, 8, 7, 7, 9]
    graph = job_graph(5, keys=None if second else keys, pipeline_keys=keys if second else None)
    scheduler = Scheduler(graph, 2, ScheduleOptions(followers=followers, batch_limit=1))
    first = requested(scheduler, 0)
    assert jobs_of(first) == [0]
    assert [jobs_of(requested(scheduler, 1))] == [[1]]
    scheduler.finished(0, first, compiles=1, elapsed_ns=5 * MS)
    rest = drain(scheduler)
    if followers is Followers.CREATE:
        assert rest == [2, 3, 4]
    else:
        assert rest == [4]
        assert scheduler.state_of(2) is JobState.SHARED
        assert scheduler.leader_of(2) == 0
    statistics = scheduler.statistics
    saved = (statistics.saved_by_key, statistics.saved_by_pipeline_key)
    assert saved == ((0, 2) if second else (2, 0))
    assert statistics.saved_ns == 2 * 2 * MS


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


def test_hits_save_nothing() -> None:
    scheduler = Scheduler(job_graph(2, keys=[1, 1]), 1)
    scheduler.finished(0, requested(scheduler, 0), hits=1, elapsed_ns=1000)
    assert scheduler.statistics.saved_by_key == 0


def test_a_later_request_for_what_is_done_is_settled_at_once() -> None:
    scheduler = Scheduler(job_graph(2, keys=[5, 5]), 1, SHARING)
    scheduler.enter(some([0]), Priority.SOON)
    drain(scheduler)
    scheduler.enter(some([1]), Priority.SOON)
    assert scheduler.state_of(1) is JobState.SHARED
    assert scheduler.take_settled().tolist() == [0, 1]


def test_what_others_may_link_does_not_share_an_outcome() -> None:
    scheduler = Scheduler(job_graph(3, keys=[5, 5, 6], libraries={2: [1]}), 1, SHARING)
    for job in range(3):
        scheduler.enter(some([job]), Priority.SOON)
        assert drain(scheduler) == [job]


def test_a_failure_is_the_outcome_of_all_that_is_the_same() -> None:
    graph = job_graph(4, keys=[1, 1, 2, 3], libraries={2: [1]})
    scheduler = Scheduler(graph, 1, ONE)
    batch = requested(scheduler, 0)
    scheduler.finished(0, batch, {0: "VK_ERROR_UNKNOWN"}, compiles=1)
    assert scheduler.unassignable == {
        1: "is the same work as pipeline 0, which was not created: VK_ERROR_UNKNOWN",
        2: "links pipeline 1, which was not created: is the same work as pipeline 0, which was not created: "
        "VK_ERROR_UNKNOWN",
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
    assert scheduler.statistics.saved_by_pipeline_key == 1


def test_what_cannot_be_the_same_is_not_united() -> None:
    # A job cannot be the same as its own library, whatever their keys say; else both would wait for ever.
    scheduler = Scheduler(job_graph(2, keys=[1, 1], libraries={1: [0]}), 1)
    assert drain(scheduler) == [0, 1]


def test_a_follower_that_shares_may_give_up_a_library_that_follows_too() -> None:
    # 0 leads 1, a library that nobody wants but 3; 2 leads 3, which shares its outcome and needs 1 no more.
    graph = job_graph(4, keys=[1, 1, 2, 2], libraries={2: [0], 3: [1]})
    scheduler = Scheduler(graph, 1, ScheduleOptions(followers=Followers.SHARE, batch_limit=1))
    assert scheduler.cancel_jobs([1]).kept == 1
    assert drain(scheduler) == [0, 1, 2]
    assert scheduler.state_of(3) is JobState.SHARED


def test_followers_that_share_give_up_libraries_that_nobody_else_wants() -> None:
    # 3 is the same work as 2 and has a library of its own, 1, which was cancelled and is kept for its sake.
    graph = job_graph(
        4, keys=[1, 2, 3, 3], libraries={2: [0], 3: [1]}, costs=[50 * MS, 1 * MS, 50 * MS, 1 * MS]
    )
    scheduler = Scheduler(graph, 1, ScheduleOptions(followers=Followers.SHARE, batch_limit=1))
    assert scheduler.cancel_jobs([1]).kept == 1
    assert drain(scheduler) == [0, 2]
    assert scheduler.state_of(3) is JobState.SHARED
    assert scheduler.state_of(1) is JobState.CANCELLED
    assert_consistent(scheduler)


def test_what_turns_out_the_same_when_both_are_in_flight_stays_apart() -> None:
    # Job 2 has the state key of the one and the driver's key of the other.
    graph = job_graph(4, keys=[1, 2, 1, 3], pipeline_keys=[0, 7, 7, 0])
    scheduler = Scheduler(graph, 2, STREAM)
    scheduler.enter(some([0, 1]), Priority.SOON)
    batches = [requested(scheduler, worker) for worker in range(2)]
    scheduler.enter(some([2, 3]), Priority.SOON)
    assert [scheduler.leader_of(job) for job in range(3)] == [0, 1, 0]
    assert scheduler.in_flight == 2
    assert_consistent(scheduler)
    for worker, batch in enumerate(batches):
        scheduler.finished(worker, batch, compiles=1)
    assert scheduler.statistics.saved_by_key == 1
    assert scheduler.statistics.saved_by_pipeline_key == 0
    assert drain(scheduler, 0) == [2, 3]
    assert_consistent(scheduler)


@pytest.mark.parametrize("second", [False, True])
def test_what_turns_out_the_same_as_one_in_flight_follows_that(second: bool) -> None:
    # Job 2 has a key of each kind: that of 0, which is in flight, and that of 1, which is
    # queued and follows then too.
    keys, pipeline_keys = ([1, 2, 1], [0, 7, 7]) if second else ([1, 2, 2], [7, 0, 7])
    scheduler = Scheduler(job_graph(3, keys=keys, pipeline_keys=pipeline_keys), 1, STREAM)
    scheduler.enter(some([0, 1]), Priority.SOON)
    batch = requested(scheduler, 0)
    assert jobs_of(batch) == [0]
    scheduler.enter(some([2]), Priority.SOON)
    assert [scheduler.leader_of(job) for job in range(3)] == [0, 0, 0]
    assert scheduler.state_of(1) is scheduler.state_of(2) is JobState.JOINED
    assert_consistent(scheduler)
    scheduler.finished(0, batch, compiles=1)
    assert sorted(drain(scheduler)) == [1, 2]
    assert scheduler.statistics.saved_by_key + scheduler.statistics.saved_by_pipeline_key == 2


def test_one_that_others_follow_takes_them_along_behind_another() -> None:
    # 2 follows 1 by its state, and 1 is found to be the same work as 0.
    scheduler = Scheduler(job_graph(3, keys=[1, 2, 2], pipeline_keys=[7, 7, 0]), 1, STREAM)
    scheduler.enter(some([0]), Priority.SOON)
    scheduler.enter(some([1, 2]), Priority.SOON)
    assert [scheduler.leader_of(job) for job in range(3)] == [0, 0, 0]
    assert_consistent(scheduler)
    assert drain(scheduler) == [0, 2, 1]


def test_one_that_others_follow_keeps_them_where_the_same_work_was_cancelled() -> None:
    scheduler = Scheduler(job_graph(3, keys=[1, 2, 2], pipeline_keys=[7, 7, 0]), 1, STREAM)
    scheduler.enter(some([0]), Priority.SOON)
    scheduler.cancel_jobs([0])
    scheduler.enter(some([1, 2]), Priority.SOON)
    assert scheduler.leader_of(2) == 1
    assert_consistent(scheduler)
    assert drain(scheduler) == [1, 2]


def test_what_was_lost_while_it_came_follows_nobody() -> None:
    # 3 is the same work as 0, which failed; 4 and 5 link it: they are lost before their own key is looked at.
    graph = job_graph(
        6, keys=[1, 2, 3, 1, 5, 6], pipeline_keys=[0, 0, 7, 0, 7, 7], libraries={2: [1], 4: [3], 5: [3]}
    )
    scheduler = Scheduler(graph, 1, STREAM)
    scheduler.enter(some([0]), Priority.SOON)
    scheduler.finished(0, requested(scheduler, 0), {0: "no"}, compiles=1)
    scheduler.enter(some([2]), Priority.SOON)
    scheduler.enter(some([4, 5]), Priority.SOON)
    assert sorted(scheduler.unassignable) == [3, 4, 5]
    assert scheduler.queued == 2
    assert_consistent(scheduler)
    assert drain(scheduler) == [1, 2]


def test_no_pipeline_key_is_no_key() -> None:
    scheduler = Scheduler(job_graph(4, pipeline_keys=[7, 0, 7, 0]), 1, ONE)
    assert [scheduler.leader_of(job) for job in range(4)] == [0, 1, 0, 3]
    assert drain(scheduler) == [0, 2, 1, 3]
    assert scheduler.statistics.saved_by_pipeline_key == 1


def test_separate_jobs_follow_nobody() -> None:
    options = ScheduleOptions(followers=Followers.SEPARATE, batch_limit=1)
    scheduler = Scheduler(job_graph(3, keys=[1, 1, 1], pipeline_keys=[2, 2, 2]), 2, options)
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert [jobs_of(each) for each in batches] == [[0], [1]]
    assert scheduler.statistics.saved_by_key == 0


def test_a_follower_that_was_cancelled_comes_again_behind_its_leader() -> None:
    scheduler = Scheduler(job_graph(3, keys=[1, 1, 1]), 1, STREAM)
    scheduler.enter(some([0, 1, 2]), Priority.SOON)
    batch = requested(scheduler, 0)
    for _ in range(2):
        assert scheduler.cancel_jobs([1]).cancelled == 1
        scheduler.enter(some([1]), Priority.SOON)
        assert scheduler.state_of(1) is JobState.JOINED
        assert_consistent(scheduler)
    scheduler.finished(0, batch, compiles=1)
    assert drain(scheduler) == [1, 2]
    assert scheduler.statistics.saved_by_key == 2


def test_a_leader_that_was_cancelled_comes_again_behind_who_does_its_work() -> None:
    scheduler = Scheduler(job_graph(3, keys=[1, 1, 1]), 1, STREAM)
    scheduler.enter(some([0, 1, 2]), Priority.SOON)
    scheduler.cancel_jobs([0])
    scheduler.enter(some([0]), Priority.NOW)
    assert [scheduler.leader_of(job) for job in range(3)] == [1, 1, 1]
    assert_consistent(scheduler)
    scheduler.cancel_jobs([1, 2])
    assert_consistent(scheduler)
    assert scheduler.leader_of(0) == 0
    scheduler.enter(some([1, 2]), Priority.SOON)
    assert sorted(drain(scheduler)) == [0, 1, 2]
    assert scheduler.statistics.saved_by_key == 2


# --- affinity


def shared_modules(affinity: bool) -> tuple[Scheduler, list[set[int]]]:
    rng = np.random.default_rng(1)
    modules = {job: [int(rng.integers(0, 60)), 1000] for job in range(1200)}
    options = ScheduleOptions(affinity=affinity, expect_hits=0.0)
    scheduler = Scheduler(job_graph(1200, costs=[5 * MS] * 1200, modules=modules), 4, options)
    found: list[set[int]] = [set() for _ in range(4)]
    for _ in range(280):
        batches = [requested(scheduler, worker) for worker in range(4)]
        for worker, batch in enumerate(batches):
            found[worker] |= {modules[job][0] for job in jobs_of(batch)}
            scheduler.finished(worker, batch, compiles=len(batch.indices), elapsed_ns=5 * MS)
    return scheduler, found


def test_jobs_that_share_a_module_prefer_one_worker() -> None:
    scheduler, found = shared_modules(affinity=True)
    # 60 modules, each with one home; some work moves near the end.
    assert sum(map(len, found)) < 130
    assert scheduler.statistics.at_home > 4 * scheduler.statistics.moved


def test_affinity_can_be_turned_off() -> None:
    scheduler, found = shared_modules(affinity=False)
    assert sum(map(len, found)) > 200
    assert scheduler.statistics.at_home == 0


def test_a_worker_does_not_idle_for_the_sake_of_affinity() -> None:
    graph = job_graph(40, costs=[5 * MS] * 40, modules={job: [0] for job in range(40)})
    scheduler = Scheduler(graph, 4)
    for worker in range(4):
        requested(scheduler, worker)
    assert scheduler.in_flight >= 4


def test_a_long_job_does_not_wait_for_its_home() -> None:
    costs = [4 * MS, 100 * MS, 90 * MS, *[1 * MS] * 30]
    graph = job_graph(33, costs=costs, modules={job: [0] for job in range(3)})
    scheduler = Scheduler(graph, 2, ONE)
    assert jobs_of(requested(scheduler, 0)) == [1]
    assert jobs_of(requested(scheduler, 1)) == [2]


def homes(shared: str, batch_limit: int = 1) -> Scheduler:
    """Two workers have created a long job each, 0 and 1; the short jobs 2 and 3 may share something with one.

    With "library" and "module" 2 is at home with worker 0, and 3 with worker 1. With "new module" 3 has a
    module that nothing was created of yet.
    """
    links: dict[int, Sequence[int]] | None = {2: [0], 3: [1]} if shared == "library" else None
    staged: dict[int, Sequence[int]] | None = None
    if shared == "module":
        # The first module has the number 0, which must be as good as any other.
        staged = {0: [0], 1: [1], 2: [0], 3: [1]}
    elif shared == "new module":
        staged = {0: [0], 2: [0], 3: [2], 4: [2]}
    # What is in the background is there so that much is left, and short jobs may be passed over.
    costs = [8 * MS, 8 * MS, 1 * MS, 1 * MS, *[1 * MS] * 100]
    priorities = [Priority.NOW] * 4 + [Priority.BACKGROUND] * 100
    graph = job_graph(104, libraries=links, modules=staged, costs=costs, priorities=priorities)
    options = ScheduleOptions(expect_hits=0.0, batch_limit=batch_limit)
    scheduler = Scheduler(graph, 2, options)
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert [jobs_of(each) for each in batches] == [[0], [1]]
    for worker, batch in enumerate(batches):
        scheduler.finished(worker, batch, compiles=1, elapsed_ns=8 * MS)
    return scheduler


@pytest.mark.parametrize("shared", ["library", "module"])
def test_a_worker_takes_what_is_at_home_with_it(shared: str) -> None:
    scheduler = homes(shared)
    assert jobs_of(requested(scheduler, 1)) == [3]
    assert jobs_of(requested(scheduler, 0)) == [2]
    assert (scheduler.statistics.at_home, scheduler.statistics.moved) == (2, 0)


def test_what_is_at_home_nowhere_suits_everybody() -> None:
    assert jobs_of(requested(homes("nothing"), 1)) == [2]
    scheduler = homes("new module")
    assert jobs_of(requested(scheduler, 1)) == [3]
    assert (scheduler.statistics.at_home, scheduler.statistics.moved) == (0, 0)


def test_libraries_that_were_created_in_one_batch_are_a_home_each() -> None:
    # 0 is there to be measured, so that batches of more than one are cut after it;
    # libraries 1..4 and their linkers.
    links = {5: [1], 6: [2], 7: [3], 8: [4]}
    costs = [30 * MS, *[4 * MS] * 4, *[1 * MS] * 4, *[1 * MS] * 400]
    priorities = [Priority.NOW] * 9 + [Priority.BACKGROUND] * 400
    graph = job_graph(409, libraries=links, costs=costs, priorities=priorities)
    scheduler = Scheduler(graph, 2, ScheduleOptions(expect_hits=0.0, target_ns=10 * MS))
    scheduler.finished(0, requested(scheduler, 0), compiles=1, elapsed_ns=30 * MS)
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert [jobs_of(each) for each in batches] == [[1, 2], [3, 4]]
    for worker, batch in enumerate(batches):
        scheduler.finished(worker, batch, compiles=2, elapsed_ns=8 * MS)
    assert jobs_of(requested(scheduler, 1)) == [7, 8]
    assert jobs_of(requested(scheduler, 0)) == [5, 6]
    assert (scheduler.statistics.at_home, scheduler.statistics.moved) == (4, 0)


def test_large_batches_are_of_what_is_at_home_too() -> None:
    # Short jobs of two modules in turn, after a long one of each, so many that a batch holds more than a few.
    modules = {job: [job % 2] for job in range(402)}
    costs = [9 * MS, 8 * MS, *[100_000] * 400]
    scheduler = Scheduler(job_graph(402, costs=costs, modules=modules), 2, ScheduleOptions(expect_hits=0.0))
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert [jobs_of(each) for each in batches] == [[0], [1]]
    for worker, cost in ((0, 9 * MS), (1, 8 * MS)):
        scheduler.finished(worker, batches[worker], compiles=1, elapsed_ns=cost)
    batch = jobs_of(requested(scheduler, 1))
    assert len(batch) > 6
    assert {job % 2 for job in batch} == {1}
    assert scheduler.statistics.at_home == len(batch)


# --- steering


def test_promoting_takes_along_what_is_waited_for() -> None:
    graph = job_graph(5, keys=[1, 2, 3, 4, 1], libraries={3: [1]}, priorities=[2, 2, 1, 2, 2])
    scheduler = Scheduler(graph, 1, ONE)
    assert scheduler.promote([3, 4], Priority.NOW) == 4
    # The library of 3; the leader of 4, and 4 after it, which hits; 3; and then the rest.
    assert drain(scheduler) == [1, 0, 4, 3, 2]
    assert scheduler.promote([3], Priority.NOW) == 0


def test_a_deadline_stops_between_batches_and_the_next_goes_on() -> None:
    options = ScheduleOptions(expect_hits=0.0, target_ns=1)
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
    assert scheduler.remaining_ns == pytest.approx(32 * MS, rel=0.01)
    scheduler.set_deadline(20 * MS)
    assert scheduler.request(0, 20 * MS) == Paused()
    scheduler.set_deadline(None)
    assert drain(scheduler) == list(range(2, 10))


def test_a_deadline_takes_what_fits_and_one_job_that_does_not() -> None:
    options = ScheduleOptions(expect_hits=0.0, batch_limit=1)
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
    options = ScheduleOptions(expect_hits=0.0, batch_limit=1)
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


def test_what_is_cancelled_and_entered_in_each_frame_takes_no_more_room() -> None:
    scheduler = Scheduler(job_graph(100), 1, ScheduleOptions(streaming=True))
    jobs = np.arange(100, dtype=np.int32)
    for _ in range(50):
        scheduler.enter(jobs, Priority.BACKGROUND)
        assert scheduler._life.queue.entries <= 300
        scheduler.cancel_jobs(jobs)
    scheduler.enter(jobs, Priority.SOON)
    assert sorted(drain(scheduler)) == jobs.tolist()


def test_what_is_exempt_begins_after_the_deadline() -> None:
    graph = job_graph(3, priorities=[1, 0, 2], costs=[MS] * 3)
    scheduler = Scheduler(graph, 1, ScheduleOptions(expect_hits=0.0))
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
    options = ScheduleOptions(expect_hits=0.0, batch_limit=1)
    scheduler = Scheduler(job_graph(45, costs=costs), 1, options)
    assert scheduler.cancel_jobs(range(40, 45)).cancelled == 5
    scheduler.set_deadline(4 * MS)
    assert jobs_of(requested(scheduler, 0)) == [0]
    assert scheduler.queued == 39


def test_the_job_that_may_overrun_a_deadline_does_not_begin_beside_another() -> None:
    options = ScheduleOptions(expect_hits=0.0, batch_limit=1)
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


def test_a_job_that_comes_again_is_in_a_batch_once() -> None:
    scheduler = Scheduler(job_graph(40), 1, ScheduleOptions(streaming=True, expect_hits=1.0, batch_limit=64))
    for _ in range(2):
        scheduler.enter(some(range(40)), Priority.SOON)
        scheduler.cancel_jobs(range(40))
    scheduler.enter(some(range(40)), Priority.SOON)
    assert drain(scheduler) == list(range(40))


def test_what_is_excluded_is_so_whenever_it_comes() -> None:
    scheduler = Scheduler(job_graph(4, libraries={1: [0], 3: [2]}), 1, STREAM)
    scheduler.enter(some([0, 1]), Priority.SOON)
    scheduler.exclude({0: "bad", 2: "worse"})
    assert scheduler.unassignable == {0: "bad", 1: "links pipeline 0, which was not created: bad"}
    scheduler.enter(some([3]), Priority.SOON)
    assert scheduler.unassignable[3] == "links pipeline 2, which was not created: worse"
    assert not scheduler.queued


def test_what_comes_after_its_library_failed_is_not_assigned() -> None:
    scheduler = Scheduler(job_graph(2, libraries={1: [0]}), 1, STREAM)
    scheduler.enter(some([0]), Priority.SOON)
    scheduler.finished(0, requested(scheduler, 0), {0: "no"}, compiles=1)
    scheduler.enter(some([1]), Priority.SOON)
    assert scheduler.unassignable == {1: "links pipeline 0, which was not created: no"}
    assert scheduler.take_settled().tolist() == [0, 1]


def test_cancelling_says_when_it_is_quiet() -> None:
    scheduler = Scheduler(job_graph(6), 2, ScheduleOptions(batch_limit=2, streaming=True))
    for job in range(6):
        scheduler.enter(some([job]), Priority.SOON, group=1 + job % 2)
    scheduler.close()
    batches = [requested(scheduler, worker) for worker in range(2)]
    assert [jobs_of(each) for each in batches] == [[0], [1]]
    cancellation = scheduler.cancel_jobs(scheduler.members(1))
    assert cancellation.cancelled == 2
    assert cancellation.pending == {0}
    quiet = [cancellation.quiet]
    for worker in (1, 0):
        scheduler.finished(worker, batches[worker])
        quiet.append(cancellation.quiet)
    assert quiet == [False, False, True]
    assert drain(scheduler) == [3, 5]
    assert scheduler.cancel_jobs(scheduler.members(None)).quiet


def test_a_cancelled_library_is_kept_while_somebody_links_it() -> None:
    scheduler = Scheduler(job_graph(3, libraries={1: [0], 2: [0]}), 1)
    assert scheduler.cancel_jobs([0]).kept == 1
    assert scheduler.cancel_jobs([1]).cancelled == 1
    # The last that links it goes, and the library with it.
    assert scheduler.cancel_jobs([2]).cancelled == 2
    assert scheduler.request(0) == Done()


def test_a_cancelled_leader_hands_over() -> None:
    scheduler = Scheduler(job_graph(4, keys=[1, 1, 1, 2]), 1, ONE)
    scheduler.cancel_jobs([0, 1])
    assert scheduler.leader_of(0) == 2
    assert drain(scheduler) == [3, 2]


def test_after_cancel_nothing_is_assigned_and_what_remains_is_known() -> None:
    scheduler = Scheduler(job_graph(9, priorities=[1] * 8 + [0]), 2, ONE)
    batch = requested(scheduler, 0)
    scheduler.cancel()
    assert scheduler.request(1) == Done()
    scheduler.finished(0, batch)
    assert scheduler.request(0) == Done()
    assert scheduler.remaining().tolist() == list(range(8))


# --- misuse


@pytest.mark.parametrize(
    ("misuse", "match"),
    [
        (lambda: Scheduler(job_graph(1), 0), "workers"),
        (lambda: Scheduler(job_graph(2, libraries={0: [1]}), 1), "come before"),
        (lambda: Scheduler(job_graph(2, costs=[1]), 1), "costs_ns has 1 elements"),
        (lambda: Scheduler(job_graph(2, priorities=[0, 3]), 1), "no Priority"),
        (lambda: Scheduler(job_graph(2, hits=[True]), 1), "hits has 1 elements"),
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
    assert scheduler.done == 1


def test_what_is_refused_changes_nothing() -> None:
    scheduler = Scheduler(job_graph(3), 1)
    with pytest.raises(ValueError, match="no job 3"):
        scheduler.exclude({0: "bad", 3: "?"})
    assert drain(scheduler) == [0, 1, 2]


@pytest.mark.parametrize("name", ["target_ns", "batch_limit", "capacity"])
def test_what_counts_is_a_whole_number(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        ScheduleOptions(**{name: 2.5})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=name):
        ScheduleOptions(**{name: 0})  # type: ignore[arg-type]


# --- size


def test_a_job_takes_less_than_400_bytes() -> None:
    count = 5_000
    rng = np.random.default_rng(0)
    graph = JobGraph(
        np.zeros(count, np.uint8),
        np.arange(count + 1, dtype=np.int64) // 2 - (np.arange(count + 1) // 2 > 0),
        np.zeros(count // 2 - 1, np.int32),
        costs_ns=rng.integers(1, 10**9, count),
        keys=rng.integers(0, count, count).astype(np.uint64),
        pipeline_keys=rng.integers(1, count, count).astype(np.uint64),
        module_start=np.arange(count + 1, dtype=np.int64),
        module_index=rng.integers(0, count, count).astype(np.int32),
    )
    tracemalloc.start()
    try:
        scheduler = Scheduler(graph, 8)
        assert tracemalloc.get_traced_memory()[0] <= 400 * count
        for worker in range(8):
            drain(scheduler, worker)
        assert tracemalloc.get_traced_memory()[0] <= 400 * count
    finally:
        tracemalloc.stop()


def test_what_is_settled_takes_space_until_it_is_taken() -> None:
    scheduler = Scheduler(job_graph(1000), 1, STREAM)
    scheduler.enter(some(range(1000)), Priority.SOON)
    scheduler.cancel_jobs(range(1000))
    assert len(scheduler._life._settled_alone) == 1000
    assert scheduler.take_settled().tolist() == list(range(1000))
    assert not scheduler._life._settled_alone


@pytest.mark.parametrize("size", [1, 64], ids=["one by one", "many at a time"])
def test_what_comes_again_is_no_more_urgent_than_it_is_asked_for_now(size: int) -> None:
    options = ScheduleOptions(streaming=True, batch_limit=size, target_ns=size * 10**9)
    scheduler = Scheduler(job_graph(2, kinds=[0, 0], costs=[1, 10**6]), 1, options)
    scheduler.enter(np.array([1], np.int32), Priority.NOW, 0)
    scheduler.cancel_jobs([1])
    scheduler.enter(np.array([1], np.int32), Priority.SOON, 0)
    scheduler.enter(np.array([0], np.int32), Priority.NOW, 0)
    answer = scheduler.request(0, 0)
    assert isinstance(answer, Assignment)
    assert answer.indices.tolist() == [0]
