"""Images that come into a session later: later numbers, one schedule, one report; beside busy workers too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from orchestrator.devices.device import Device
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import open_session
from orchestrator.run.session_thread import start_session
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.drivers import each_driver
from tests.run.support import MODES_WITH_CACHE, ONE, check_sums, hits_of, recorded, report_of

LIMIT_S = 60.0


@pytest.mark.parametrize("mode", [*MODES_WITH_CACHE, CacheMode.NONE])
async def test_what_comes_later_has_the_same_workers_caches_and_report(mode: CacheMode) -> None:
    device = SimulatedDevice()
    first = device.prepare(simulated_image(range(100), libraries={50: [3], 51: [50]}))
    # 40 keys are those of the first image: the same work.
    second = device.prepare(simulated_image(range(60, 200), libraries={160: [67], 190: [160, 68]}))
    third = device.prepare(simulated_image(range(300, 310)))
    async with open_session(device, first, RunOptions(workers=3, mode=mode, keep=True)) as session:
        early = await session.submit(range(100))
        numbers = session.add(second, skipped={5: "not wanted"})
        assert numbers == range(100, 240)
        ticket = await session.submit(numbers)
        assert session.add(third) == range(240, 250)
        assert (await session.require(245)).created
        outcomes = await ticket.wait()
        assert [each.index for each in outcomes if not each.created] == [105]
        assert outcomes[5].reason == "not wanted"
        await early.wait()
        assert (session.progress.total, session.progress.done) == (241, 241)
        assert session.progress.cost_share == 1.0
        handles = session.take(ticket)
        # A library belongs to what was prepared.
        assert np.flatnonzero(handles == 0).tolist() == [5, 7, 8, 100]
        device.destroy_pipelines(handles)
    report = report_of(session)
    assert len(report) == 250
    assert report.counts()[OutcomeStatus.NOT_RUN] == 9
    assert report.counts()[OutcomeStatus.SKIPPED] == 1
    if mode is not CacheMode.NONE:
        # 65 is left out, but was in the first image.
        assert len(device.compile_counts) == 201
        assert set(device.compile_counts.values()) == {1}
        assert report.cache_data is not None
        assert await hits_of(report.cache_data, 200) == 200
    assert report.pipelines.keys.tolist() == [*range(100), *range(60, 200), *range(300, 310)]
    assert report.pipelines.handles is not None
    device.destroy_pipelines(report.pipelines.handles)
    for each in (first, second, third):
        each.close()
    assert (device.live_caches, device.live_pipelines) == (0, 0)


async def test_libraries_and_failures_of_what_comes_later() -> None:
    _, device = recorded()
    first = device.prepare(simulated_image(range(10)))
    later = device.prepare(simulated_image(range(100, 110), libraries={104: [101], 109: [104]}))
    async with open_session(device, first, RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        session.add(later, skipped={1: "no such feature"})
        ticket = await session.submit([14, 19, 15], group=7)
        session.limit_time(None)
        linked, created, last = await ticket.wait()
        assert created.created
        for each in (linked, last):
            assert each.status is OutcomeStatus.SKIPPED
            assert "no such feature" in each.reason
        await session.submit(0)
        assert await session.cancel(group=7) == 0
    check_sums(report_of(session))


@each_driver
def test_levels_of_a_real_set(driver: str, open_driver_device: Callable[[str], Device]) -> None:
    """The sample in two halves, each with the libraries that it links: what both hold hits in the second."""
    device = open_driver_device(driver)
    with PipelineSet.open(sample_path()) as source:
        pipelines = source.pipelines[::3]
        halves = [
            device.prepare(build_image(source, part, device.capabilities).image)
            for part in (pipelines[: len(pipelines) // 2], pipelines[len(pipelines) // 2 :])
        ]
        with start_session((device, halves[0]), RunOptions(workers=2, keep=True)) as session:
            first = session.submit(range(len(halves[0].image)))
            numbers = session.add(halves[1]).result(LIMIT_S)
            second = session.submit(numbers)
            assert all(each.created for each in (*first.result(LIMIT_S), *second.result(LIMIT_S)))
            handles = session.take(second)
        assert np.count_nonzero(handles) > len(numbers) // 2
        device.destroy_pipelines(handles)
    report = session.ended.result()
    assert not report.failed
    assert len(report) == sum(len(each.image) for each in halves)
    assert report.pipelines.handles is not None
    device.destroy_pipelines(report.pipelines.handles)
