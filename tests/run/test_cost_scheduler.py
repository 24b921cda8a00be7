"""Runs under the cost scheduler: everything once, duplicates by their leader's worker, good pipelines not lost."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.devices.device import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run import OutcomeStatus, RunOptions, run_pipelines
from orchestrator.schedule import (
    Assignment,
    CostScheduler,
    JobGraph,
    ScheduleOptions,
    SchedulerFactory,
    cost_first,
)
from tests.run.support import MODES_WITH_CACHE, RefusingDevice, check_sums, hits_of, prepared_set


def recorded(make: SchedulerFactory, into: list[CostScheduler]) -> SchedulerFactory:
    """A factory whose schedulers can be asked afterwards."""

    def factory(graph: JobGraph, workers: int) -> CostScheduler:
        made = make(graph, workers)
        assert isinstance(made, CostScheduler)
        into.append(made)
        return made

    return factory


@pytest.mark.parametrize("mode", [*MODES_WITH_CACHE, CacheMode.NONE])
async def test_everything_is_created_once(mode: CacheMode) -> None:
    device = SimulatedDevice()
    libraries = {200: [3, 4], 201: [3], 210: [200]}
    prepared = prepared_set(device, 300, libraries)
    report = await run_pipelines(
        device, prepared, RunOptions(workers=4, mode=mode), scheduler=cost_first(prepared.image)
    )
    check_sums(report)
    assert report.compiled == 300
    created = np.concatenate([call.indices for call in report.calls])
    assert sorted(created.tolist()) == list(range(300))
    if mode is not CacheMode.NONE:
        assert report.cache_data is not None
        assert await hits_of(report.cache_data) == 300
    device.close()


async def test_a_refused_pipeline_does_not_take_its_batch_with_it() -> None:
    device = RefusingDevice({7: -13, 150: -13})
    prepared = prepared_set(device, 300, {200: [7]})
    options = ScheduleOptions(expect_hits=1.0)
    report = await run_pipelines(
        device, prepared, RunOptions(workers=2), scheduler=cost_first(prepared.image, options=options)
    )
    check_sums(report)
    assert [each.index for each in report.failed] == [7, 150, 200]
    assert "links pipeline 7" in report.failed[2].reason


async def test_pipelines_with_one_pipeline_key_are_compiled_once() -> None:
    device = SimulatedDevice()
    image = simulated_image(range(200))
    prepared = device.prepare(image)
    keys = [b"key %d" % (index // 2) for index in range(200)]
    schedulers: list[CostScheduler] = []

    report = await run_pipelines(
        device,
        prepared,
        RunOptions(workers=4),
        scheduler=recorded(cost_first(image, pipeline_keys=keys), schedulers),
    )
    check_sums(report)
    (scheduler,) = schedulers
    assert scheduler.statistics.saved_by_pipeline_key == 100
    for index in range(0, 200, 2):
        # The second of a pair was created by the worker of the first, and after it.
        assert report.pipelines.worker[index] == report.pipelines.worker[index + 1]
    device.close()


async def test_a_run_teaches_the_scheduler_that_it_hits() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    cold = await run_pipelines(device, prepared, RunOptions(workers=2))
    assert cold.cache_data is not None
    schedulers: list[CostScheduler] = []
    warm = await run_pipelines(
        device,
        prepared,
        RunOptions(workers=2),
        primary=cold.cache_data,
        scheduler=recorded(cost_first(prepared.image), schedulers),
    )
    assert warm.counts()[OutcomeStatus.CACHE_HIT] == 300
    assert all(share > 0.9 for share in schedulers[0].statistics.hit_shares.values())
    device.close()


def test_the_costs_of_an_image_must_fit() -> None:
    with pytest.raises(ValueError, match="2 elements for 3 pipelines"):
        cost_first(simulated_image(range(3)), costs_ns=np.zeros(2, np.int64))


def test_recorded_costs_come_before_estimates() -> None:
    image = simulated_image(range(3))
    graph = JobGraph(image.kinds, image.library_slot_start, image.library_slot_pipeline)
    scheduler = cost_first(image, costs_ns=np.array([0, 10, 10**9], np.int64))(graph, 1)
    order = []
    while isinstance(answer := scheduler.request(0), Assignment):
        order += answer.indices.tolist()
        scheduler.finished(0, answer)
    assert order == [2, 0, 1]
