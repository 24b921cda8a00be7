"""Sessions whose threads meet between two steps: nothing is lost, told twice, or told before it holds.

Each test stands where another thread could come between, and lets it come there.
"""

from __future__ import annotations

import threading

import msgspec
import pytest
import trio

from orchestrator.devices.device import NOT_READY, CreationBatch
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run.caches import Creator
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import PipelineSession, open_session
from orchestrator.schedule.jobs import Int32s
from orchestrator.schedule.options import Followers, ScheduleOptions
from tests.run.support import RefusingDevice, prepared_set

ONE_WORKER = RunOptions(workers=1)


async def until_settled(session: PipelineSession, count: int) -> None:
    while len(session.unsettled(range(count))):
        await trio.sleep(0.001)


async def test_what_two_threads_settle_at_the_same_time_is_counted_as_what_it_is() -> None:
    device = RefusingDevice({0: -1})
    others: list[threading.Thread] = []

    class Reasons(dict[int, str]):
        """Another thread polls while the end of the run settles pipeline 1, which links what was refused."""

        def __setitem__(self, index: int, reason: str) -> None:
            super().__setitem__(index, reason)
            if index == 1 and not others:
                others.append(threading.Thread(target=session.poll))
                others[0].start()
                others[0].join()

    async with open_session(device, prepared_set(device, 5, libraries={1: [0]}), ONE_WORKER) as session:
        msgspec.structs.force_setattr(session.table, "reasons", Reasons())
        await session.submit([1])
        await until_settled(session, 2)
    assert others
    progress = session.progress
    assert (progress.failed, progress.done) == (2, 2)


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
        assert [session.outcome_of(index).status for index in range(4)] == [expected] * 4
        assert sum(device.compile_counts.values()) == (not fails)
        assert len(session.poll().settled) == 4, "whoever asks first, it is news"


async def test_what_a_cut_batch_left_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice()
    create = Creator.create

    def cut(creator: Creator, indices: Int32s) -> CreationBatch:
        """A batch of which only the first part was made."""
        batch = create(creator, indices[:1])
        session.exchange.cancel()
        whole = CreationBatch.of_zeros(len(indices))
        whole.results[:] = NOT_READY
        whole.results[:1], whole.feedback_flags[:1] = batch.results, batch.feedback_flags
        return whole

    monkeypatch.setattr(Creator, "create", cut)
    schedule = ScheduleOptions(target_ns=10**9, expect_hits=1.0)
    options = RunOptions(workers=1, time_limit_s=0.0, schedule=schedule)
    async with open_session(device, prepared_set(device, 64), options) as session:
        await session.submit(range(32))
        session.limit_time(None)
        report = await session.finish()
    news = session.poll()
    assert report.counts()[OutcomeStatus.NOT_RUN] == 63
    assert (news.progress.done, news.progress.compiled, news.progress.total) == (1, 1, 32)
    assert len(news.settled) == 1
