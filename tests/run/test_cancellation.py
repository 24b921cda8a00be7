"""F7, cancellation: at every step, in a call, while waiting; nothing in use, nothing leaked, nothing lost."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, Progress, RunReport
from tests.campaigns import STRIDE
from tests.run.cancel_storm import Moment
from tests.run.support import MODES_WITH_CACHE, check_sums, hits_of, prepared_set, recorded

MOST_STEPS = 400


@pytest.mark.parametrize("mode", list(CacheMode))
async def test_cancelled_at_every_step(mode: CacheMode, mock_clock: trio.testing.MockClock) -> None:
    # The clock stands still: nothing here may depend on time, and progress must not be waited for.
    cancelled = completed = 0
    for steps in range(1, MOST_STEPS, STRIDE):
        device = SimulatedDevice()
        without = mode in (CacheMode.NONE, CacheMode.BINARIES)
        primary = None if without else device.create_pipeline_cache()
        caches = device.live_caches
        # Each pipeline links the first, so that workers also are cancelled while they wait.
        image = simulated_image(range(30), libraries={index: [0] for index in range(1, 30)})
        prepared = device.prepare(image)
        report: RunReport | None = None
        seen: list[Progress] = []
        with Moment(in_step=steps):
            report = await run_pipelines(
                device,
                prepared,
                RunOptions(workers=2, mode=mode, keep=True),
                primary=primary,
                stop=trio.Event(),
                on_progress=seen.append,
            )
        created = set(device.compile_counts)
        assert device.live_caches == caches
        if primary is not None:
            # Nothing that was compiled is lost, and the primary is free again.
            data = device.pipeline_cache_data(primary).data
            fresh = SimulatedDevice()
            kept = await run_pipelines(
                fresh, fresh.prepare(image), RunOptions(workers=1, mode=CacheMode.SHARED), primary=data
            )
            assert kept.cache_hits == len(created)
            device.destroy_pipeline_cache(primary)
        if report is not None:
            assert report.pipelines.handles is not None
            device.destroy_pipelines(report.pipelines.handles)
        prepared.close()
        assert device.live_pipelines == 0
        if report is None:
            cancelled += 1
            continue
        check_sums(report)
        assert report.compiled == 30
        completed += 1
        if completed == 3:
            break
    assert cancelled >= 10 // STRIDE
    assert completed == 3, "the run never got through"


@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
async def test_a_call_in_flight_is_waited_for(mode: CacheMode) -> None:
    recorder, device = recorded(hold=40)
    primary = device.create_pipeline_cache()
    # All after the held one link it, so that the other worker cannot finish the set meanwhile.
    prepared = prepared_set(device, 100, libraries={index: [40] for index in range(41, 100)})
    ended = False

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def run() -> None:
            nonlocal ended
            with scope:
                await run_pipelines(device, prepared, RunOptions(workers=2, mode=mode), primary=primary)
            ended = True

        nursery.start_soon(run)
        await recorder.entered.wait()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not ended
        assert device.live_caches == (1 if mode is CacheMode.SHARED else 3), "the primary, and one a worker"
        assert 40 not in device.compile_counts
        recorder.open.set()
    assert scope.cancelled_caught
    assert device.live_caches == 1
    assert device.compile_counts[40] == 1
    assert max(device.compile_counts) == 40, "a batch was handed out after the cancellation"
    data = device.pipeline_cache_data(primary).data
    assert await hits_of(data, 100) == len(device.compile_counts)


@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
async def test_stopping_gives_a_report(mode: CacheMode) -> None:
    recorder, device = recorded(hold=40)
    prepared = prepared_set(device, 100)
    stop = trio.Event()
    reports: list[RunReport] = []

    async def run() -> None:
        reports.append(await run_pipelines(device, prepared, RunOptions(workers=1, mode=mode), stop=stop))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await recorder.entered.wait()
        stop.set()
        await trio.testing.wait_all_tasks_blocked()
        recorder.open.set()
    (report,) = reports
    check_sums(report)
    assert report.stopped
    counts = report.counts()
    assert counts[OutcomeStatus.NOT_RUN] == 100 - len(device.compile_counts) > 0
    assert counts[OutcomeStatus.COMPILED] == len(device.compile_counts) > 40
    assert report.cache_data is not None
    assert await hits_of(report.cache_data, 100) == report.compiled
