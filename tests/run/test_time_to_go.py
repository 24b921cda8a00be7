"""The time to go follows from what jobs cost, and is not told before that is known.

`recorded_runs.csv` has what RADV took for each pipeline of three sets, and its estimates. The runs are done
again in virtual time.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.devices.modes import CacheMode
from orchestrator.run.options import unsteered_schedule
from orchestrator.run.records import TimeToGo
from orchestrator.schedule.options import ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler
from tests.schedule.machine import job_graph, requested, simulate

SECOND = 1_000_000_000
OPTIONS = ScheduleOptions(target_ns=1, hit_share=0.0)
SLOW = 10
"""A driver so many times slower than the one that was recorded, so that the runs take 20 s to a minute."""

_LOOK_NS = SECOND // 3


@frozen
class Recorded:
    kinds: list[int]
    estimates_ns: list[int]
    modules: dict[int, list[int]]
    took_ns: list[int]


@cache
def recorded(name: str) -> Recorded:
    with (Path(__file__).parent / "recorded_runs.csv").open() as file:
        rows = [each for each in csv.DictReader(file) if each["set"] == name]
    return Recorded(
        [int(each["kind"]) for each in rows],
        [int(each["estimate_us"]) * 1000 for each in rows],
        {job: list(map(int, each["modules"].split())) for job, each in enumerate(rows)},
        [max(1, SLOW * 1000 * int(each["took_us"])) for each in rows],
    )


def told(run: Recorded, workers: int, held: list[bool], known: list[int] | None) -> list[tuple[float, float]]:
    """The time to go and the truth, seconds, whenever something happened after 10 % of the work."""
    graph = job_graph(
        len(held), kinds=run.kinds, modules=run.modules, costs=known or run.estimates_ns, hits=held
    )
    scheduler = Scheduler(graph, workers, unsteered_schedule(CacheMode.PER_WORKER))
    to_go = TimeToGo(scheduler, workers, trusted=known is not None)
    seen: list[tuple[int, float | None]] = []

    def watch(now_ns: int) -> None:
        if not seen or now_ns - seen[-1][0] >= _LOOK_NS:
            seen.append((now_ns, to_go.eta_s(now_ns)))

    took = np.array(run.took_ns, np.int64)
    end = simulate(scheduler, took, lambda job, _: held[job], watch).makespan_ns
    late = [(eta, (end - now) / SECOND) for now, eta in seen if 0.1 * end <= now <= end - SECOND]
    assert all(eta is not None for eta, _ in late)
    return [(eta, truth) for eta, truth in late if eta is not None]


def worst(pairs: list[tuple[float, float]]) -> float:
    return max((max(eta / truth, truth / max(eta, 1e-9)) for eta, truth in pairs), default=1.0)


def most_rise(pairs: list[tuple[float, float]]) -> float:
    etas = [eta for eta, _ in pairs]
    return max((later / max(min(etas[: at + 1]), 1.0) for at, later in enumerate(etas)), default=1.0)


shares = st.sampled_from([0.0, 0.3, 0.5, 0.8])
seeds = st.integers(0, 1 << 20)


@settings(max_examples=12)
@given(st.sampled_from(["sascha", "sample", "placebo"]), st.sampled_from([1, 2, 4]), shares, seeds)
def test_recorded_times_tell_it_within_a_factor_of_one_and_a_half(
    name: str, workers: int, share: float, seed: int
) -> None:
    """Also where a part is found in the cache, as in a run that goes on, and each time is 40 % off."""
    run, random = recorded(name), np.random.default_rng(seed)
    held = (random.random(len(run.kinds)) < share).tolist()
    known = [max(1, round(each * random.uniform(0.7, 1.4))) for each in run.took_ns]
    pairs = told(run, workers, held, known)
    assert worst(pairs) <= 1.5
    assert most_rise(pairs) <= 1.5


@pytest.mark.parametrize("name", ["sascha", "placebo"])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_first_run_tells_it_by_estimates(name: str, workers: int) -> None:
    run = recorded(name)
    pairs = told(run, workers, [False] * len(run.kinds), None)
    assert worst(pairs) <= 1.75
    assert sum(worst([each]) <= 1.5 for each in pairs) >= 0.9 * len(pairs)
    assert most_rise(pairs) <= 1.5


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
