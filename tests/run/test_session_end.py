"""How sessions end, and who owns what they kept; what is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import pytest
import trio
import trio.testing

from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, PipelineOutcome
from orchestrator.run.session import DeviceLostError, PipelineSession, open_session
from orchestrator.schedule.options import Priority
from tests.run.support import (
    ONE,
    RefusingDevice,
    cancelled,
    check_sums,
    hits_of,
    losing_device,
    prepared_set,
    recorded,
    required,
)


async def test_closing_leaves_the_rest() -> None:
    recorder, device = recorded(hold=0)
    prepared = device.prepare(simulated_image(range(20)))
    waited: list[tuple[PipelineOutcome, ...]] = []
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE)) as session:
        await session.submit(0, priority=Priority.NOW)
        await session.submit(range(1, 20))
        await recorder.entered.wait()

        async def wait() -> None:
            waited.append(await session.wait(range(1, 20)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(session.close)
            await trio.testing.wait_all_tasks_blocked()
            assert session.closed
            recorder.open.set()
        report = await session.close()
        assert report.stopped
        assert not len(session.unsettled(0))
        with pytest.raises(trio.ClosedResourceError):
            await session.submit(3)
        with pytest.raises(trio.ClosedResourceError):
            await required(session, 3)
        assert await session.close() is report
    assert session.report is report
    check_sums(report)
    assert report.compiled == len(recorder.order)
    assert report.counts()[OutcomeStatus.NOT_RUN] == 19
    assert recorder.order == [0]
    assert [each.status for each in waited[0]] == [OutcomeStatus.NOT_RUN] * 19


@pytest.mark.parametrize("workers", [1, 3])
async def test_progress_ends_at_exactly_what_was_submitted(workers: int) -> None:
    """With libraries that come along, duplicates, failures, what links them, and what is cancelled."""
    device = RefusingDevice({7: -1})
    prepared = prepared_set(device, libraries={200: [3, 4], 201: [7], 210: [200]})
    options = RunOptions(workers=workers, schedule=ONE, time_limit_s=0)
    async with open_session(device, prepared, options) as session:
        await session.submit([200, 201, 210, 11, *range(20, 60)])
        assert session.progress.total == 4 + 3 + 40
        await session.submit(range(100, 150))
        assert session.progress.total == 47 + 50
        seen = [session.progress]
        assert await cancelled(session, range(100, 150)) == 50
        session.limit_time(None)
        settled: set[int] = set()
        while not session.is_idle:
            seen.append(session.progress)
            news = session.settled().tolist()
            assert not settled.intersection(news)
            settled.update(news)
            await trio.lowlevel.checkpoint()
        settled.update(session.settled().tolist())
        assert settled == {3, 4, 7, 11, 200, 201, 210, *range(20, 60)}
        assert len(session.settled()) == 0
        end = session.progress
        assert (end.total, end.done, end.failed, end.skipped) == (47, 47, 2, 0)
        assert (end.share, end.cost_share, end.eta_s) == (1.0, 1.0, 0.0)
        shares = [each.cost_share for each in seen[1:]]
        assert shares == sorted(shares)
        assert all(share < 1 or each.done == each.total for share, each in zip(shares, seen[1:], strict=True))
        await session.submit(range(100, 110))
        assert session.progress.total == 57
    assert (session.progress.total, session.progress.done) == (57, 57)


async def test_an_exception_of_the_block_comes_out_as_itself() -> None:
    recorder, device = recorded(hold=0)
    primary = device.create_pipeline_cache()
    prepared = device.prepare(simulated_image(range(20)))
    sessions = []

    async def fail() -> None:
        async with open_session(
            device, prepared, RunOptions(workers=1, schedule=ONE, keep=True), primary=primary
        ) as session:
            sessions.append(session)
            await session.submit(range(20))
            await recorder.entered.wait()
            session.limit_time(0)
            recorder.open.set()
            await session.wait(0)
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    (session,) = sessions
    assert session.report is None
    assert device.live_caches == 1
    assert device.live_pipelines == 0
    # What was compiled is not lost, and the rest was not waited for.
    data = device.pipeline_cache_data(primary).data
    assert await hits_of(data, 20) == len(recorder.order) == 1


async def _leave(_session: PipelineSession) -> None:
    """Wait at the end of the block."""


async def _sleep(_session: PipelineSession) -> None:
    await trio.sleep_forever()


async def _submit(session: PipelineSession) -> None:
    while True:
        await session.submit(5)


@pytest.mark.parametrize("use", [PipelineSession.finish, _leave, _sleep, _submit])
async def test_a_bug_in_a_worker_comes_out_alone_whatever_the_block_waits_for(
    use: Callable[[PipelineSession], Awaitable[object]],
) -> None:
    def broken(_key: int) -> None:
        raise ZeroDivisionError

    device = SimulatedDevice(SimulatedOptions(on_compile=broken))
    sessions = []

    async def used() -> None:
        async with open_session(device, prepared_set(device), RunOptions(workers=3)) as session:
            sessions.append(session)
            await session.submit(range(300))
            await use(session)

    with trio.fail_after(60), pytest.raises(ZeroDivisionError):
        await used()
    assert device.live_caches == 0
    with pytest.raises(trio.BrokenResourceError):
        await sessions[0].finish()


@pytest.mark.parametrize("how", ["submit", "producers", "close", "finish", "leave"])
async def test_a_lost_device_is_told_once_with_the_report(how: str) -> None:
    device = losing_device(0)
    prepared = prepared_set(device)
    told: list[DeviceLostError] = []
    try:
        async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE, keep=True)) as session:
            await session.submit(range(5, 9))
            await session.wait(range(5, 9))
            await session.submit(range(300))
            outcomes = await session.wait(range(300))
            assert any(each.status is OutcomeStatus.NOT_RUN for each in outcomes)
            assert any("DEVICE_LOST" in each.reason or "VK_ERROR" in each.reason for each in outcomes)
            if how == "submit":
                await session.submit(3)
            elif how == "producers":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(session.submit, 3)
                    nursery.start_soon(required, session, 4)
            elif how in ("close", "finish"):
                end = getattr(session, how)
                try:
                    await end()
                except DeviceLostError as error:
                    told.append(error)
                assert await end() is told[0].report
    except DeviceLostError as error:
        told.append(error)
    (lost,) = told
    report = lost.report
    assert report is session.report
    assert report.stopped
    assert any("device was lost" in note for note in report.notes)
    # Everything comes back: what the primary holds, and what was kept.
    assert report.cache_data is not None
    assert await hits_of(report.cache_data) == report.compiled > 0
    handles = report.pipelines.handles
    assert handles is not None
    assert np.count_nonzero(handles) == device.live_pipelines == report.compiled
    device.destroy_pipelines(handles)
    assert (device.live_caches, device.live_pipelines) == (0, 0)
