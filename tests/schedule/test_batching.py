"""Batch sizes learn from how batches went, and shrink towards the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.schedule import CostScheduler, ScheduleOptions
from orchestrator.schedule.ready_queue import Experience
from tests.schedule.machine import job_graph, jobs_of, requested


def sizes(
    scheduler: CostScheduler, *, hit: bool, hit_ns: int = 1_000, compile_ns: int = 5_000_000
) -> list[int]:
    found = []
    while scheduler.queued:
        batch = requested(scheduler, 0)
        size = len(jobs_of(batch))
        found.append(size)
        scheduler.finished(
            0,
            batch,
            hits=size if hit else 0,
            compiles=0 if hit else size,
            elapsed_ns=size * (hit_ns if hit else compile_ns),
        )
    return found


def test_batches_grow_where_pipelines_hit() -> None:
    found = sizes(CostScheduler(job_graph(20_000, costs=[5_000_000] * 20_000), 2), hit=True)
    assert found[0] <= 2
    assert max(found[:8]) == 256
    assert found[-1] == 1
    # Once large they stay so until the end nears.
    assert min(found[8:40]) == 256


def test_batches_are_single_where_pipelines_compile() -> None:
    found = sizes(CostScheduler(job_graph(300, costs=[5_000_000] * 300), 2), hit=False)
    assert set(found) == {1}


def test_batches_aim_at_the_time_asked_for() -> None:
    options = ScheduleOptions(target_ns=40_000_000, expect_hits=0.0)
    # Costs are believed to be a tenth of what they are; the first job shows it, before a batch is cut by that belief.
    scheduler = CostScheduler(job_graph(3000, costs=[500_000] * 3000), 1, options)
    found = sizes(scheduler, hit=False, compile_ns=5_000_000)
    assert found[0] == 1
    assert set(found[1:20]) <= {7, 8}
    assert scheduler.statistics.cost_scales[0] == pytest.approx(10, rel=0.01)


def test_kinds_learn_apart() -> None:
    kinds = [0] * 2000 + [1] * 2000
    scheduler = CostScheduler(job_graph(4000, kinds=kinds, costs=[5_000_000] * 4000), 1)
    largest = {0: 0, 1: 0}
    while scheduler.queued:
        batch = requested(scheduler, 0)
        size = len(jobs_of(batch))
        largest[batch.kind] = max(largest[batch.kind], size)
        told = {"hits": size} if batch.kind else {"compiles": size}
        scheduler.finished(0, batch, **told, elapsed_ns=size * (1_000 if batch.kind else 5_000_000))
    assert largest[1] == 256
    assert largest[0] <= 2


def test_the_time_of_a_hit_is_averaged() -> None:
    # All is believed to hit, so what remains is believed to take the time of a hit each.
    scheduler = CostScheduler(job_graph(20_000), 1, ScheduleOptions(expect_hits=1.0))
    remaining = []
    for hit_ns in (1_000, 3_000, 4_000):
        batch = requested(scheduler, 0)
        size = len(batch.indices)
        scheduler.finished(0, batch, hits=size, elapsed_ns=size * hit_ns)
        remaining.append(scheduler.remaining_ns / scheduler.queued)
    # The first is taken as it is; after it, half of what was believed and half of what was seen.
    assert remaining == pytest.approx([1_000, 2_000, 3_000])


@given(
    st.lists(
        st.tuples(st.integers(1, 300), st.integers(0, 10**12), st.integers(0, 300), st.integers(0, 10**12)),
        max_size=50,
    )
)
def test_estimates_stay_positive(batches: list[tuple[int, int, int, int]]) -> None:
    experience = Experience(0.5)
    for jobs, cost, hits, elapsed in batches:
        experience.learn(jobs, cost, min(hits, jobs), jobs - min(hits, jobs), elapsed)
        base, slope = experience.line()
        assert np.isfinite([base, slope]).all()
        assert base >= 1
        assert slope >= 0
        assert 0 <= experience.hit_share <= 1
