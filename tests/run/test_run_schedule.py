"""Runs and their schedule: duplicates by their leader's worker, ends at a time limit, what is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest
import trio
import trio.testing

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.errors import DeviceError
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.schedule.jobs import JobGraph
from orchestrator.schedule.options import ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler
from tests.run.support import check_sums, prepared_set, without


async def test_pipelines_with_one_pipeline_key_are_compiled_once() -> None:
    # The keys are not this driver's own. Where it does not tell hits, they are believed all the same.
    device = SimulatedDevice(without(creation_feedback=False))
    image = simulated_image(range(200))
    prepared = device.prepare(image)
    keys = [b"key %d" % (index // 2) for index in range(200)]
    scheduler = Scheduler(JobGraph.of_image(image, pipeline_keys=keys), 4)
    report = await run_pipelines(device, prepared, RunOptions(workers=4), scheduler=scheduler)
    check_sums(report)
    for index in range(0, 200, 2):
        # The second of a pair was created by the worker of the first, and after it.
        assert report.pipelines.worker[index] == report.pipelines.worker[index + 1]
    device.close()


@pytest.mark.parametrize("there", [0, 150, 300])
async def test_all_workers_end_where_few_take_the_hits(there: int) -> None:
    # With a primary that holds all, half, or nothing of what it is expected to hold.
    device = SimulatedDevice()
    prepared = prepared_set(device, 300, {200: [3]})
    held = prepared_set(device, there)
    primary = (await run_pipelines(device, held, RunOptions(workers=2))).cache_data if there else b""
    scheduler = Scheduler(
        JobGraph.of_image(prepared.image, hits=np.ones(300, np.bool_)),
        8,
        ScheduleOptions(few_for_hits=True, batch_limit=16, pin_followers=False),
    )
    options = RunOptions(workers=8, mode=CacheMode.SHARED)
    report = await run_pipelines(device, prepared, options, primary=primary, scheduler=scheduler)
    check_sums(report)
    assert (report.cache_hits, report.compiled) == (there, 300 - there)
    device.close()


@pytest.mark.parametrize("limit_s", [0.0, 0.0005])
async def test_all_workers_are_sent_away_when_the_time_is_over(limit_s: float) -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device, 300)
    primary = (await run_pipelines(device, prepared, RunOptions(workers=2))).cache_data
    hits = JobGraph.of_image(prepared.image, hits=np.ones(300, np.bool_))
    scheduler = Scheduler(hits, 8, ScheduleOptions(few_for_hits=True, batch_limit=1, pin_followers=False))
    options = RunOptions(workers=8, mode=CacheMode.SHARED, time_limit_s=limit_s)
    with trio.fail_after(60):
        report = await run_pipelines(device, prepared, options, primary=primary, scheduler=scheduler)
    assert report.compiled == 0
    assert report.stopped or limit_s
    device.close()


async def test_a_scheduler_of_another_run_is_refused() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device, 10)
    for count, workers in ((9, 2), (10, 3)):
        scheduler = Scheduler(JobGraph.of_image(simulated_image(range(count))), workers)
        with pytest.raises(ValueError, match="there are 10 and 2"):
            await run_pipelines(device, prepared, RunOptions(workers=2), scheduler=scheduler)


async def test_a_primary_of_another_device_is_named() -> None:
    device, other = SimulatedDevice(), SimulatedDevice()
    theirs = other.create_pipeline_cache(name="theirs")
    with pytest.raises(DeviceError, match=r"primary of this run: .*'theirs' belongs to another device"):
        await run_pipelines(device, prepared_set(device), RunOptions(), primary=theirs)
    assert not theirs.destroyed


async def test_batches_in_flight_at_the_end_of_the_time_are_not_lost() -> None:
    device = SimulatedDevice(SimulatedOptions(on_compile=lambda _key: time.sleep(0.01)))
    prepared = prepared_set(device, 300)
    primary = device.create_pipeline_cache()
    first = await run_pipelines(device, prepared, RunOptions(workers=2, time_limit_s=0.05), primary=primary)
    check_sums(first)
    counts = first.counts()
    assert counts[OutcomeStatus.NOT_RUN] > 0
    assert counts[OutcomeStatus.NOT_RUN] + counts[OutcomeStatus.COMPILED] == 300
    # Running again is resuming: what was compiled hits, the rest is compiled.
    second = await run_pipelines(device, prepared, RunOptions(workers=2), primary=primary)
    assert second.cache_hits == first.compiled
    assert second.compiled == counts[OutcomeStatus.NOT_RUN]
    assert set(device.compile_counts.values()) == {1}
