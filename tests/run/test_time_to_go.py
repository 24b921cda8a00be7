"""The time to go follows from what jobs cost, and is not told before that is known."""

from __future__ import annotations

import pytest

from orchestrator.run.records import TimeToGo
from orchestrator.schedule.options import ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler
from tests.schedule.machine import job_graph, requested

SECOND = 1_000_000_000
OPTIONS = ScheduleOptions(target_ns=1, expect_hits=0.0)


def scheduler_of(costs_s: list[float], workers: int) -> Scheduler:
    costs = [round(each * SECOND) for each in costs_s]
    return Scheduler(job_graph(len(costs), costs=costs), workers, OPTIONS)


def test_recorded_costs_say_it_before_the_first_job() -> None:
    scheduler = scheduler_of([1.0] * 10, 2)
    assert TimeToGo(scheduler, 2, trusted=True).eta_s(0) == pytest.approx(5.0)
    assert TimeToGo(scheduler, 2).eta_s(0) is None


def test_what_is_in_flight_counts_by_what_is_left_of_it() -> None:
    scheduler = scheduler_of([8.0, 2.0, 2.0], 2)
    found = TimeToGo(scheduler, 2, trusted=True)
    first, second = requested(scheduler, 0), requested(scheduler, 1)
    assert (len(first.indices), len(second.indices)) == (1, 1)
    assert found.eta_s(0) == pytest.approx(8.0)
    assert found.eta_s(SECOND) == pytest.approx(7.0)
    scheduler.finished(1, second, compiles=1, elapsed_ns=2 * SECOND)
    third = requested(scheduler, 1)
    assert found.eta_s(2 * SECOND) == pytest.approx(6.0)
    scheduler.finished(1, third, compiles=1, elapsed_ns=2 * SECOND)
    assert found.eta_s(5 * SECOND) == pytest.approx(3.0)


def test_a_last_job_that_takes_much_longer_than_believed_is_not_known() -> None:
    scheduler = scheduler_of([1.0], 1)
    found = TimeToGo(scheduler, 1, trusted=True)
    requested(scheduler, 0)
    assert found.eta_s(0) == pytest.approx(1.0)
    assert found.eta_s(SECOND + SECOND // 2) == 0.0
    assert found.eta_s(2 * SECOND) is None
