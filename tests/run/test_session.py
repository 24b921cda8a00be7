"""Sessions: what passes a budget, cancelling, how they end, and who owns what they kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import pytest
import trio
import trio.testing

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import DeviceLostError, PipelineSession, open_session
from orchestrator.schedule.options import Priority, ScheduleOptions
from tests.run.support import (
    MODES_WITH_CACHE,
    ONE,
    RefusingDevice,
    cancelled,
    hits_of,
    losing_device,
    prepared_set,
    recorded,
    remaining,
    required,
)


async def test_what_is_required_passes_the_budget_with_its_library_and_nothing_else_does() -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(50), libraries={40: [4]}))
    async with open_session(device, prepared, RunOptions(workers=2, schedule=ONE, time_limit_s=0)) as session:
        await session.submit(range(10, 20), priority=Priority.BACKGROUND)
        assert (await required(session, 40)).created
        with session.exchange.looking() as schedule:
            assert not schedule.exempts, "nothing passes the budget when nobody waits"
        await session.close()
    assert recorder.order == [4, 40]


async def test_the_time_to_go_is_not_known_while_a_session_has_no_time() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    scheduler = scheduler_of(
        prepared.image, 1, ScheduleOptions(streaming=True), recorded_ns=np.full(300, 10**9)
    )
    async with open_session(
        device, prepared, RunOptions(workers=1, time_limit_s=0), scheduler=scheduler
    ) as session:
        await session.submit(range(10))
        assert session.progress.eta_s is None
        await session.close()


async def test_what_follows_from_another_outcome_is_there_when_its_ticket_is_done() -> None:
    device = RefusingDevice({0: -1})
    prepared = device.prepare(simulated_image(range(5), modules={index: [index // 4] for index in range(5)}))
    scheduler = scheduler_of(
        prepared.image, 1, ScheduleOptions(streaming=True), pipeline_keys=[b"0"] * 4 + [b"1"]
    )
    async with open_session(device, prepared, RunOptions(workers=1), scheduler=scheduler) as session:
        await session.submit(range(4))
        while len(session.unsettled(range(4))):
            await trio.sleep(0.001)
        assert [each.status for each in await session.wait(range(4))] == [OutcomeStatus.FAILED] * 4
        assert not any(device.compile_counts.values())
        assert len(session.settled()) == 4, "whoever asks first, it is news"


async def test_libraries_are_cancelled_with_the_last_that_links_them() -> None:
    recorder, device = recorded()
    # 30 links 1, which nothing else needs. 31 and 32 link 2, and 32 stays. 33 links 3, which was submitted.
    libraries = {30: [1], 31: [2], 32: [2], 33: [3]}
    prepared = device.prepare(simulated_image(range(40), libraries=libraries))
    async with open_session(device, prepared, RunOptions(workers=2, schedule=ONE, time_limit_s=0)) as session:
        await session.submit([30, 31, 33, *range(10, 20)])
        await session.submit([32, 3])
        gone = [30, 31, 33, *range(10, 15), *range(16, 20)]
        assert await cancelled(session, gone) == 3 + 9 + 1
        assert await cancelled(session, gone) == 0
        assert sorted(remaining(session).tolist()) == [2, 3, 15, 32]
    assert sorted(recorder.order) == [2, 3, 15, 32]


CANCELS: dict[str, Callable[[PipelineSession], Awaitable[int]]] = {
    "job": lambda session: cancelled(session, [5]),
    "all": cancelled,
    # It is not in flight, but the library that only it needs is.
    "linker": lambda session: cancelled(session, [12]),
}


@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
@pytest.mark.parametrize("what", CANCELS)
async def test_it_returns_when_what_is_in_flight_has_returned(mode: CacheMode, what: str) -> None:
    recorder, device = recorded(hold=5)
    prepared = device.prepare(simulated_image(range(20), libraries={12: [5]}))
    ended: list[bool] = []
    async with open_session(device, prepared, RunOptions(workers=2, mode=mode, schedule=ONE)) as session:
        await session.submit(12 if what == "linker" else 5)
        await recorder.entered.wait()

        async def give_up() -> None:
            await CANCELS[what](session)
            # In flight means: the driver has it. It has returned by now.
            assert device.compile_counts == {5: 1}
            ended.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(give_up)
            await trio.testing.wait_all_tasks_blocked()
            assert not ended
            recorder.open.set()
        assert ended
    assert recorder.order == [5]
    assert device.live_caches == 0


async def test_who_is_cancelled_while_it_waits_has_cancelled_all_the_same() -> None:
    recorder, device = recorded(hold=5)
    prepared = device.prepare(simulated_image(range(20)))
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE)) as session:
        await session.submit(5)
        await recorder.entered.wait()
        await session.submit(range(6, 20))
        with trio.move_on_after(0) as scope:
            await cancelled(session)
        assert scope.cancelled_caught
        recorder.open.set()
    assert recorder.order == [5]


async def test_what_was_cancelled_polled_and_submitted_again_is_waited_for() -> None:
    recorder, device = recorded(hold=10)
    prepared = device.prepare(simulated_image(range(20)))
    outcomes: list[bool] = []
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        await session.submit(range(20))
        assert await cancelled(session) == 20
        assert len(session.settled()) == 0
        await session.submit(range(20))

        async def wait() -> None:
            outcomes.extend(each.created for each in await session.wait(range(20)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            session.limit_time(None)
            await recorder.entered.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert outcomes == [], "the driver has one of them still"
            recorder.open.set()
    assert outcomes == [True] * 20


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


async def _submit(session: PipelineSession) -> None:
    while True:
        await session.submit(5)


@pytest.mark.parametrize(
    "use",
    [PipelineSession.finish, lambda _: trio.lowlevel.checkpoint(), lambda _: trio.sleep_forever(), _submit],
    ids=["finish", "leave", "sleep", "submit"],
)
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
