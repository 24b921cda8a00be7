"""Cancelling in a session: a job, a group, all; none is in the driver then, and all may come again."""

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
from tests.run.support import MODES_WITH_CACHE, ONE, recorded, remaining, report_of


async def test_cancelled_jobs_are_not_created_and_may_come_again() -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(20)))
    async with open_session(device, prepared, RunOptions(workers=2, schedule=ONE, time_limit_s=0)) as session:
        ticket = await session.submit(range(10))
        assert await session.cancel([3, 4, 15]) == 2
        outcomes = await session.wait([3, 4])
        assert [each.status for each in outcomes] == [OutcomeStatus.NOT_RUN] * 2
        assert await session.cancel(ticket) == 8
        assert ticket.done
        assert session.remainder.done
        await session.submit([4, 5])
        assert session.unsettled(ticket).tolist() == [4, 5], "two of its pipelines are queued again"
    assert sorted(recorder.order) == [4, 5]
    assert report_of(session).counts()[OutcomeStatus.NOT_RUN] == 18


async def test_a_group_is_cancelled_and_nothing_else() -> None:
    recorder, device = recorded()
    # 30 links 1, which only group 7 needs; 31 and 32 link 2, which group 8 needs too; 33 links
    # 3, which is wanted itself.
    libraries = {30: [1], 31: [2], 32: [2], 33: [3]}
    prepared = device.prepare(simulated_image(range(40), libraries=libraries))
    async with open_session(device, prepared, RunOptions(workers=2, schedule=ONE, time_limit_s=0)) as session:
        await session.submit([30, 31, 33, *range(10, 20)], group=7)
        await session.submit([32, 15, 3], group=8)
        assert await session.cancel(group=7) == 3 + 9 + 1
        assert await session.cancel(group=7) == 0
        assert await session.cancel(group=99) == 0
        assert sorted(remaining(session).tolist()) == [2, 3, 15, 32]
    assert sorted(recorder.order) == [2, 3, 15, 32]


CANCELS: dict[str, Callable[[PipelineSession], Awaitable[int]]] = {
    "job": lambda session: session.cancel(5),
    "group": lambda session: session.cancel(group=1),
    "all": lambda session: session.cancel(),
    # It is not in flight, but the library that only it needs is.
    "linker": lambda session: session.cancel(12),
}


@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
@pytest.mark.parametrize("what", CANCELS)
async def test_it_returns_when_what_is_in_flight_has_returned(mode: CacheMode, what: str) -> None:
    recorder, device = recorded(hold=5)
    prepared = device.prepare(simulated_image(range(20), libraries={12: [5]}))
    ended: list[bool] = []
    async with open_session(device, prepared, RunOptions(workers=2, mode=mode, schedule=ONE)) as session:
        await session.submit(12 if what == "linker" else 5, group=1)
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
            await session.cancel()
        assert scope.cancelled_caught
        recorder.open.set()
    assert recorder.order == [5]


async def test_what_was_cancelled_polled_and_submitted_again_is_waited_for() -> None:
    recorder, device = recorded(hold=10)
    prepared = device.prepare(simulated_image(range(20)))
    outcomes: list[bool] = []
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        session.submit_nowait(range(20))
        assert await session.cancel() == 20
        assert len(session.poll().settled) == 0
        ticket = session.submit_nowait(range(20))

        async def wait() -> None:
            outcomes.extend(each.created for each in await ticket.wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            session.limit_time(None)
            await recorder.entered.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert outcomes == [], "the driver has one of them still"
            recorder.open.set()
    assert outcomes == [True] * 20
