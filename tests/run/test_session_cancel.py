"""Cancelling in a session: a job, all; none is in the driver then, and all may come again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import simulated_image
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import PipelineSession, open_session
from tests.run.support import MODES_WITH_CACHE, ONE, cancelled, recorded, remaining, report_of


async def test_cancelled_jobs_are_not_created_and_may_come_again() -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(20)))
    async with open_session(device, prepared, RunOptions(workers=2, schedule=ONE, time_limit_s=0)) as session:
        await session.submit(range(10))
        assert await cancelled(session, [3, 4, 15]) == 2
        outcomes = await session.wait([3, 4])
        assert [each.status for each in outcomes] == [OutcomeStatus.NOT_RUN] * 2
        assert await cancelled(session, range(10)) == 8
        assert session.is_idle
        await session.submit([4, 5])
        assert session.unsettled(range(10)).tolist() == [4, 5]
    assert sorted(recorder.order) == [4, 5]
    assert report_of(session).counts()[OutcomeStatus.NOT_RUN] == 18


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
