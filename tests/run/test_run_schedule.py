"""Runs and their schedule: everything once, duplicates by their leader's worker, good pipelines not lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from orchestrator.devices.device import CreationBatch
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.errors import DeviceError
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.schedule.jobs import JobGraph
from orchestrator.schedule.options import ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler
from tests.run.support import MODES_WITH_CACHE, check_sums, prepared_set, without

WHAT = "create_pipelines"


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


class StoppedDevice(SimulatedDevice):
    """Something is called in the middle of a call, counted from 1."""

    def __init__(self, at_call: int, stop: Callable[[], object]) -> None:
        super().__init__()
        self.at_call, self.stop, self.made = at_call, stop, 0

    def _create(self, *given: Any, **more: Any) -> CreationBatch:
        self.made += 1
        if self.made == self.at_call:
            self.stop()
        return super()._create(*given, **more)


async def test_a_primary_of_another_device_is_named() -> None:
    device, other = SimulatedDevice(), SimulatedDevice()
    theirs = other.create_pipeline_cache(name="theirs")
    with pytest.raises(DeviceError, match=r"primary of this run: .*'theirs' belongs to another device"):
        await run_pipelines(device, prepared_set(device), RunOptions(), primary=theirs)
    assert not theirs.destroyed


@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
async def test_what_was_not_begun_at_a_stop_was_not_run(mode: CacheMode) -> None:
    first = SimulatedDevice()
    data = (await run_pipelines(first, prepared_set(first), RunOptions(workers=2))).cache_data
    stop = trio.Event()

    async def stop_now() -> None:
        stop.set()
        await trio.testing.wait_all_tasks_blocked()

    device = StoppedDevice(20, lambda: trio.from_thread.run(stop_now))
    options = RunOptions(
        workers=1, mode=mode, keep=True, schedule=ScheduleOptions(batch_limit=8, target_ns=10**9)
    )
    report = await run_pipelines(device, prepared_set(device), options, primary=data, stop=stop)
    assert device.made == 20
    check_sums(report)
    made = report.counts()[OutcomeStatus.CACHE_HIT]
    assert made == sum(each.pipelines for each in device.calls() if each.operation == WHAT)
    assert report.counts()[OutcomeStatus.NOT_RUN] == 300 - made
    assert report.calls.sizes.sum() == made
    assert device.live_pipelines == made
    handles = report.pipelines.handles
    assert handles is not None
    assert np.count_nonzero(handles) == made
    device.destroy_pipelines(handles)
    device.close()
