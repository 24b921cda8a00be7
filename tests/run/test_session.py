"""Sessions: submitted, promoted, required; budgets between batches; outcomes."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run.execution import scheduler_of
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, PipelineOutcome
from orchestrator.run.session import PipelineSession, open_session
from orchestrator.schedule.options import Priority, ScheduleOptions
from tests.run.support import (
    MODES_WITH_CACHE,
    ONE,
    RefusingDevice,
    hits_of,
    prepared_set,
    queued,
    recorded,
    remaining,
    report_of,
    required,
)


@pytest.mark.parametrize("mode", [*MODES_WITH_CACHE, CacheMode.NONE])
@pytest.mark.parametrize("workers", [1, 3])
async def test_leaving_the_block_finishes_what_was_submitted(mode: CacheMode, workers: int) -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device, libraries={200: [3, 4], 201: [3], 210: [200]})
    async with open_session(device, prepared, RunOptions(workers=workers, mode=mode)) as session:
        await session.submit(range(300))
    report = report_of(session)
    assert session.is_idle
    assert report.compiled == 300
    assert not report.stopped
    assert set(device.compile_counts.values()) == {1}
    assert device.live_caches == 0
    if mode is not CacheMode.NONE:
        assert report.cache_data is not None
        assert await hits_of(report.cache_data) == 300


async def test_the_most_urgent_first_and_promotion_changes_that() -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(40), libraries={39: [38]}))
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        await session.submit(range(5), priority=Priority.BACKGROUND)
        await session.submit(range(10, 15))
        await session.submit(range(20, 25), priority=Priority.NOW)
        await session.submit(39, priority=Priority.BACKGROUND)
        assert recorder.order == []
        assert remaining(session).tolist() == [*range(20, 25), *range(10, 15), *range(5), 38, 39]
        assert session.promote(39, Priority.NOW) == 2
        assert session.promote([2, 3, 11], Priority.NOW) == 3
        assert session.promote(range(5), Priority.SOON) == 3
        assert session.promote([2, 30], Priority.NOW) == 0, "as urgent already, and never submitted"
        session.limit_time(None)
    order = recorder.order
    assert sorted(order[:10]) == [2, 3, 11, *range(20, 25), 38, 39]
    assert sorted(order[10:]) == [0, 1, 4, 10, 12, 13, 14]


@pytest.mark.parametrize("submitted", [False, True])
async def test_what_is_required_passes_the_budget(submitted: bool) -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(50), libraries={40: [4]}))
    async with open_session(device, prepared, RunOptions(workers=2, schedule=ONE, time_limit_s=0)) as session:
        await session.submit([40, 41] if submitted else [], priority=Priority.BACKGROUND)
        await session.submit(range(10, 20), priority=Priority.BACKGROUND)
        outcome = await required(session, 40)
        assert outcome.created
        assert outcome.index == 40
        assert outcome.key == 40
        assert recorder.order == [4, 40], "nothing else passed the budget"
        assert await required(session, 40) == outcome
        with session.exchange.looking() as schedule:
            assert not schedule.exempts, "nothing passes the budget when nobody waits"
        await session.close()
    assert sorted(device.compile_counts) == [4, 40]


async def test_what_is_in_flight_is_joined() -> None:
    recorder, device = recorded(hold=3)
    prepared = device.prepare(simulated_image(range(9)))
    found: list[PipelineOutcome] = []

    async def ask(session: PipelineSession) -> None:
        found.append(await required(session, 3))

    async with (
        open_session(device, prepared, RunOptions(workers=2)) as session,
        trio.open_nursery() as nursery,
    ):
        await session.submit([3], priority=Priority.BACKGROUND)
        await recorder.entered.wait()
        nursery.start_soon(ask, session)
        nursery.start_soon(ask, session)
        await trio.testing.wait_all_tasks_blocked()
        assert found == []
        recorder.open.set()
    assert [each.status for each in found] == [OutcomeStatus.COMPILED] * 2
    assert device.compile_counts == {3: 1}


async def test_a_budget_leaves_what_remains_and_the_next_goes_on() -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(30)))
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        await session.submit(range(20), priority=Priority.BACKGROUND)
        assert queued(session) == 20
        await session.submit(25, priority=Priority.NOW)
        session.limit_time(3600)
        await session.idle()
        assert recorder.order[0] == 25
        progress = session.progress
        assert (progress.total, progress.done, progress.in_flight) == (21, 21, 0)
    assert len(recorder.order) == 21


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
