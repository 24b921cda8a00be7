"""Runs that stop between batches when their time is over, and runs whose duplicates share an outcome."""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import pytest

from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, Progress
from orchestrator.schedule.jobs import JobGraph
from orchestrator.schedule.options import Followers, Order, ScheduleOptions
from orchestrator.schedule.scheduler import Scheduler
from tests.run.support import check_sums, prepared_set


@pytest.mark.parametrize("order", Order)
async def test_a_run_without_time_does_nothing_and_the_next_goes_on(order: Order) -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    run = partial(run_pipelines, device, prepared)
    schedule = ScheduleOptions(order=order)
    report = await run(RunOptions(workers=2, schedule=schedule, time_limit_s=0))
    check_sums(report)
    assert report.counts()[OutcomeStatus.NOT_RUN] == 300
    assert report.stopped
    assert any("time limit" in note for note in report.notes)
    again = await run(RunOptions(workers=2, schedule=schedule, time_limit_s=3600))
    assert again.compiled == 300
    assert not again.stopped
    assert not any("time limit" in note for note in again.notes)
    device.close()


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


def sharing_image(count: int, same: int) -> CreateInfoImage:
    """Pipelines of which so many neighbours have one module each, so that their keys can be true."""
    return simulated_image(range(count), modules={index: [index // same] for index in range(count)})


def sharing(count: int, same: int, workers: int) -> tuple[SimulatedDevice, Scheduler]:
    """Pipelines of which so many neighbours have one pipeline key each."""
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(out_of_memory=frozenset({3}))))
    keys = [b"key %d" % (index // same) for index in range(count)]
    jobs = JobGraph.of_image(sharing_image(count, same), pipeline_keys=keys)
    return device, Scheduler(jobs, workers, ScheduleOptions(followers=Followers.SHARE))


async def test_followers_share_their_leaders_outcome() -> None:
    device, scheduler = sharing(90, 3, 3)
    seen: list[Progress] = []
    report = await run_pipelines(
        device,
        device.prepare(sharing_image(90, 3)),
        RunOptions(workers=3),
        scheduler=scheduler,
        on_progress=seen.append,
    )
    check_sums(report)
    created = np.concatenate([call.indices for call in report.calls])
    assert len(created) == 30
    followers = np.setdiff1d(np.arange(90), created)
    assert (report.pipelines.worker[followers] == -1).all()
    assert (report.pipelines.driver_ns[followers] == 0).all()
    # All of three have one outcome, the failed three included.
    assert (report.pipelines.status.reshape(30, 3) == report.pipelines.status[::3, None]).all()
    assert [each.index for each in report.failed] == [3, 4, 5]
    assert sum("is the same work as pipeline" in each.reason for each in report.failed) == 2
    assert report.compiled == 87
    assert seen[-1].done == 90
    assert any("58 pipelines are the same work" in note for note in report.notes)
    assert report.merge is not None
    assert report.merge.duplicate_job_keys.keys == 0
    device.close()


async def test_what_shares_an_outcome_cannot_be_kept() -> None:
    device, scheduler = sharing(9, 3, 2)
    prepared = device.prepare(simulated_image(range(9)))
    with pytest.raises(ValueError, match="cannot be kept"):
        await run_pipelines(device, prepared, RunOptions(workers=2, keep=True), scheduler=scheduler)
    assert device.live_caches == 0
