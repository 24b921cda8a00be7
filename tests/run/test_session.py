"""Sessions: submitted, promoted, required; budgets between batches; a full queue; outcomes."""

from __future__ import annotations

import numpy as np
import pytest
import trio
import trio.testing
from attrs import evolve

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, PipelineOutcome
from orchestrator.run.session import PipelineSession, open_session
from orchestrator.schedule.options import Followers, Priority, ScheduleOptions
from tests.run.support import (
    MODES_WITH_CACHE,
    ONE,
    RefusingDevice,
    hits_of,
    prepared_set,
    recorded,
    remaining,
    report_of,
)


@pytest.mark.parametrize("mode", [*MODES_WITH_CACHE, CacheMode.NONE])
@pytest.mark.parametrize("workers", [1, 3])
async def test_leaving_the_block_finishes_what_was_submitted(mode: CacheMode, workers: int) -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device, libraries={200: [3, 4], 201: [3], 210: [200]})
    async with open_session(device, prepared, RunOptions(workers=workers, mode=mode)) as session:
        ticket = await session.submit(range(300))
        assert len(ticket) == 300
    report = report_of(session)
    assert ticket.done
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
        late = await session.submit(range(5), priority=Priority.BACKGROUND)
        await session.submit(range(10, 15))
        await session.submit(range(20, 25), priority=Priority.NOW)
        await session.submit(39, priority=Priority.BACKGROUND)
        assert recorder.order == []
        assert remaining(session).tolist() == [*range(20, 25), *range(10, 15), *range(5), 38, 39]
        assert session.promote(39, Priority.NOW) == 2
        assert session.promote([2, 3, 11], Priority.NOW) == 3
        assert session.promote(late, Priority.SOON) == 3
        assert session.promote([2, 30], Priority.NOW) == 0, "as urgent already, and never submitted"
        session.limit_time(None)
    order = recorder.order
    assert sorted(order[:10]) == [2, 3, 11, *range(20, 25), 38, 39]
    assert sorted(order[10:]) == [0, 1, 4, 10, 12, 13, 14]


@pytest.mark.parametrize("submitted", [False, True])
async def test_what_is_required_passes_budget_and_full_queue(submitted: bool) -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(50), libraries={40: [4]}))
    async with open_session(
        device, prepared, RunOptions(workers=2, schedule=evolve(ONE, capacity=10), time_limit_s=0)
    ) as session:
        await session.submit([40, 41] if submitted else [], priority=Priority.BACKGROUND)
        # The queue is full now: a library came along.
        await session.submit(range(10, 17 if submitted else 20), priority=Priority.BACKGROUND)
        assert session.remainder.queued == 10
        outcome = await session.require(40)
        assert outcome.created
        assert outcome.index == 40
        assert outcome.key == 40
        assert recorder.order == [4, 40], "nothing else passed the budget"
        assert await session.require(40) == outcome
        with session.exchange.looking() as schedule:
            assert not schedule.exempts, "nothing passes the budget when nobody waits"
        await session.close()
    assert sorted(device.compile_counts) == [4, 40]


async def test_what_is_in_flight_is_joined() -> None:
    recorder, device = recorded(hold=3)
    prepared = device.prepare(simulated_image(range(9)))
    found: list[PipelineOutcome] = []

    async def ask(session: PipelineSession) -> None:
        found.append(await session.require(3))

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


async def test_a_budget_hands_back_what_remains_and_the_next_goes_on() -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(30)))
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        await session.submit(range(20), priority=Priority.BACKGROUND)
        left = await session.run_for(0)
        assert (left.queued, left.in_flight, left.done) == (20, 0, False)
        assert left.estimated_ns > 0
        assert len(remaining(session)) == 20
        await session.submit(25, priority=Priority.NOW)
        left = await session.run_for(float("inf"))  # it comes back when nothing is left
        assert left.done
        assert left.estimated_ns == 0
        assert recorder.order[0] == 25
        assert (await session.run_for(3600)).done
        progress = session.progress
        assert (progress.total, progress.done, progress.in_flight) == (21, 21, 0)
    assert len(recorder.order) == 21


async def test_the_time_to_go_is_not_known_while_a_session_has_no_time() -> None:
    device = SimulatedDevice()
    costs_ns = np.full(300, 10**9)
    async with open_session(
        device, prepared_set(device), RunOptions(workers=1, time_limit_s=0), costs_ns=costs_ns
    ) as session:
        await session.submit(range(10))
        assert session.progress.eta_s is None
        await session.close()


async def test_a_full_queue_holds_producers_back() -> None:
    recorder, device = recorded()
    prepared = device.prepare(simulated_image(range(100)))
    seen: list[int] = []
    async with (
        open_session(
            device, prepared, RunOptions(workers=2, schedule=evolve(ONE, capacity=4), time_limit_s=0)
        ) as session,
        trio.open_nursery() as nursery,
    ):

        async def produce(first: int) -> None:
            ticket = await session.submit(range(first, first + 50))
            seen.append(session.remainder.queued)
            await ticket.wait()

        nursery.start_soon(produce, 0)
        nursery.start_soon(produce, 50)
        await trio.testing.wait_all_tasks_blocked()
        assert seen == []
        assert session.remainder.queued == 4
        with pytest.raises(trio.WouldBlock):
            session.submit_nowait([98, 99])
        assert len(session.submit_nowait(remaining(session).tolist())) == 4, "they are there already"
        session.limit_time(None)
        while len(seen) < 2:
            assert session.remainder.queued <= 4
            await trio.sleep(0)
    assert sorted(recorder.order) == list(range(100))
    assert max(seen) <= 4


async def test_a_submission_that_is_given_up_leaves_what_was_taken() -> None:
    _, device = recorded()
    prepared = device.prepare(simulated_image(range(20)))
    async with open_session(
        device, prepared, RunOptions(workers=1, schedule=ScheduleOptions(capacity=5), time_limit_s=0)
    ) as session:
        with trio.move_on_after(0.01) as scope:
            await session.submit(range(20))
        assert scope.cancelled_caught
        assert remaining(session).tolist() == [0, 1, 2, 3, 4]
        # The next producer is not held up by the one that gave up.
        await session.submit(0)
    assert sorted(device.compile_counts) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("fails", [False, True])
async def test_what_follows_from_another_outcome_is_there_when_its_ticket_is_done(fails: bool) -> None:
    device = RefusingDevice({0: -1}) if fails else SimulatedDevice()
    prepared = device.prepare(simulated_image(range(5), modules={index: [index // 4] for index in range(5)}))
    options = RunOptions(workers=1, schedule=ScheduleOptions(followers=Followers.SHARE))
    async with open_session(device, prepared, options, pipeline_keys=[b"0"] * 4 + [b"1"]) as session:
        ticket = await session.submit(range(4))
        while not ticket.done:
            await trio.sleep(0.001)
        expected = OutcomeStatus.FAILED if fails else OutcomeStatus.COMPILED
        assert [each.status for each in await ticket.wait()] == [expected] * 4
        assert sum(device.compile_counts.values()) == (not fails)
        assert len(session.poll().settled) == 4, "whoever asks first, it is news"
