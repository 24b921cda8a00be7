"""Few workers take expected hits, and more as long as that is quicker."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
import pytest

from orchestrator.schedule import Assignment, Done, JobState, ScheduleOptions, Scheduler, Wait
from orchestrator.schedule.scheduler import HitTeam
from tests.schedule.machine import job_graph, jobs_of, requested

WORKERS = 16


def settled_size(hit_ns: Callable[[int], float], workers: int = WORKERS, batches: int = 200) -> int:
    """How many workers are left in a team whose hits take so long when so many take them."""
    team = HitTeam(workers, few=True)
    in_flight: list[tuple[float, int]] = []
    now_ns = 0.0
    for number in range(batches):
        while team.has_room:
            team.joined()
            heapq.heappush(in_flight, (now_ns + 100 * hit_ns(team.most), number))
        now_ns, _ = heapq.heappop(in_flight)
        team.left(100, 0, round(100 * hit_ns(team.most)))
    return team.most


@pytest.mark.parametrize(
    ("hit_ns", "expected"),
    [
        (lambda among: 5_000, WORKERS),  # nobody waits for another
        (lambda among: 5_000 * among, 2),  # one lock for all
        (lambda among: 5_000 * (1 if among <= 4 else among), 4),
        (lambda among: 8_000 * among**3, 2),  # waiting costs more than the work
    ],
)
def test_as_many_take_hits_as_are_quickest(hit_ns: Callable[[int], float], expected: int) -> None:
    assert settled_size(hit_ns) == expected


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_team_is_no_larger_than_the_workers(workers: int) -> None:
    assert settled_size(lambda among: 5_000, workers) == workers


def test_a_compile_lets_all_workers_in() -> None:
    team = HitTeam(WORKERS, few=True)
    team.joined()
    assert team.most == 2
    team.left(99, 1, 3_000_000)
    assert team.most == WORKERS


def test_without_the_option_all_workers_take_hits() -> None:
    team = HitTeam(WORKERS, few=False)
    for _ in range(WORKERS):
        assert team.has_room
        team.joined()
    assert not team.has_room


def test_who_is_not_needed_for_hits_compiles_meanwhile() -> None:
    graph = job_graph(40, hits=[job < 37 for job in range(40)], costs=[10**6] * 40)
    scheduler = Scheduler(graph, 6, ScheduleOptions(few_for_hits=True, batch_limit=4))
    given = [scheduler.request(worker) for worker in range(6)]
    first = [int(each.indices[0]) for each in given if isinstance(each, Assignment)]
    assert len([job for job in first if job < 37]) == 2
    assert sorted(job for job in first if job >= 37) == [37, 38, 39]
    assert scheduler.satisfied


def test_who_may_get_hits_is_not_told_that_it_is_not_needed() -> None:
    graph = job_graph(302, hits=[job > 1 for job in range(302)], costs=[10**9] * 2 + [10**6] * 300)
    scheduler = Scheduler(graph, 8, ScheduleOptions(few_for_hits=True, pin_followers=False))
    assert scheduler.unneeded(7) is None  # it may get a compile
    assert [jobs_of(requested(scheduler, worker)) for worker in (0, 1)] == [[0], [1]]
    # Both compile for long, so two others take the hits.
    assert [scheduler.unneeded(worker) for worker in (2, 3)] == [None, None]
    assert scheduler.unneeded(4) == Wait()
    scheduler.set_deadline(10**9)
    assert scheduler.unneeded(4) is None  # after it, all are sent away
    scheduler.cancel()
    assert scheduler.unneeded(4) == Done()


def test_workers_that_are_not_needed_are_told_so_until_hits_turn_out_to_be_compiles() -> None:
    scheduler = Scheduler(job_graph(400, hits=[True] * 400), 6, ScheduleOptions(few_for_hits=True))
    first, second = scheduler.request(0), scheduler.request(1)
    assert isinstance(first, Assignment)
    assert isinstance(second, Assignment)
    told = [scheduler.satisfied]
    assert not isinstance(scheduler.request(2), Assignment)
    scheduler.finished(0, first, hits=0, compiles=len(first.indices), elapsed_ns=10**9)
    told.append(scheduler.satisfied)
    assert told == [True, False]
    assert isinstance(scheduler.request(2), Assignment)


def test_all_end_where_few_take_the_hits() -> None:
    scheduler = Scheduler(job_graph(300, hits=[True] * 300), 4, ScheduleOptions(few_for_hits=True))
    while True:
        answers = {worker: scheduler.request(worker) for worker in range(4)}
        given = {worker: each for worker, each in answers.items() if isinstance(each, Assignment)}
        if not given:
            break
        for worker, each in given.items():
            scheduler.finished(worker, each, hits=len(each.indices), elapsed_ns=1_000 * len(each.indices))
    assert all(each == Done() for each in answers.values())
    assert all(scheduler.state_of(job) is JobState.CREATED for job in np.arange(300).tolist())


def test_who_finds_the_team_full_waits_for_it_and_is_not_out_of_time() -> None:
    graph = job_graph(60, hits=[True] * 60)
    scheduler = Scheduler(graph, 4, ScheduleOptions(few_for_hits=True, expect_hits=1.0))
    scheduler.set_deadline(8 * 3600e9)
    answers = [scheduler.request(worker, now_ns=1_000_000) for worker in range(4)]
    assert [type(each) for each in answers] == [Assignment, Assignment, Wait, Wait]
