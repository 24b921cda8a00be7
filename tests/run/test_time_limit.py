"""Runs that stop between batches when their time is over, and runs whose duplicates share an outcome."""

from __future__ import annotations

import time
from functools import partial

import pytest

from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.schedule.options import Order, ScheduleOptions
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
