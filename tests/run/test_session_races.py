"""Sessions whose threads meet between two steps: nothing is lost, told twice, or told before it holds.

Each test stands where another thread could come between, and lets it come there.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import trio

from orchestrator.devices.device import NOT_READY, CallSplit, CreationBatch
from orchestrator.devices.simulated import SimulatedDevice, simulated_image
from orchestrator.run.caches import Creator
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import News, PipelineSession, open_session
from orchestrator.run.session_thread import start_session
from orchestrator.schedule import Followers, ScheduleOptions
from tests.run.support import RefusingDevice, prepared_set

LIMIT_S = 60.0
ONE_WORKER = RunOptions(workers=1)


class Entered:
    """A lock that lets something happen before it is taken, or after it was given back, at one turn."""

    def __init__(self, lock: Any, happens: Any, *, before: int = 0, after: int = 0) -> None:
        self.lock, self.happens = lock, happens
        self.before, self.after, self.turns = before, after, 0

    def __enter__(self) -> None:
        self.turns += 1
        if self.turns == self.before:
            self.happens()
        self.lock.__enter__()

    def __exit__(self, *error: object) -> None:
        turn = self.turns
        self.lock.__exit__(*error)
        if turn == self.after:
            self.after = 0
            self.happens()


async def until_settled(session: PipelineSession, count: int) -> None:
    while len(session.unsettled(range(count))):
        await trio.sleep(0.001)


async def test_a_poll_never_counts_what_only_the_next_one_names() -> None:
    device = SimulatedDevice()
    async with open_session(device, prepared_set(device, 5), ONE_WORKER) as session:
        await session.submit(range(5))
        await until_settled(session, 5)

        def publish() -> None:
            session._gather()
            session._publish()

        session._ticking = True
        session._mail_lock = Entered(session._mail_lock, publish, after=1)  # type: ignore[assignment]
        heard: list[News] = [session.poll()]
        while heard[-1].progress.done < 5:  # as a program may that ends with that
            heard.append(session.poll())
        session._ticking = False
        assert sum(len(each.settled) for each in heard) == 5


async def test_news_is_there_at_once_where_somebody_else_prepares_it_from_now_on() -> None:
    device = SimulatedDevice()
    async with open_session(device, prepared_set(device, 5), ONE_WORKER) as session:
        await session.submit(range(5))
        await until_settled(session, 5)
        session._take_news()  # as for a task that requires a pipeline: there is no mail
        with session._patience():
            while not session._ticking:
                await trio.sleep(0)
            assert session.poll().settled.tolist() == list(range(5))


async def test_no_time_has_passed_before_the_first_was_submitted() -> None:
    device = SimulatedDevice()
    async with open_session(device, prepared_set(device, 5), ONE_WORKER) as session:

        def submit() -> None:
            session.submit_nowait(range(5))

        session._news_lock = Entered(session._news_lock, submit, before=2)  # type: ignore[assignment]
        progress = session.progress  # it counts, then it looks at the clock
        assert progress.total == 5
        assert progress.elapsed_s >= 0.0
        assert progress.rate >= 0.0


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
        msgspec.structs.force_setattr(session._run.table, "reasons", Reasons())
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


def test_a_pipeline_that_comes_while_handles_are_taken_is_not_lost() -> None:
    device = SimulatedDevice()
    came: list[bool] = []

    class Handles(np.ndarray[Any, Any]):
        """A worker records pipeline 3 when `take` has read what is there."""

        def __getitem__(self, key: Any) -> Any:
            found = np.asarray(super().__getitem__(key))
            if not came:
                came.append(True)
                assert session.submit([3]).result(LIMIT_S)[0].created
            return found

    with start_session((device, prepared_set(device, 5)), RunOptions(workers=1, keep=True)) as session:
        session.submit([1, 2]).result(LIMIT_S)
        inner = session._session
        assert inner is not None
        handles = inner._run.table.handles
        assert handles is not None
        msgspec.structs.force_setattr(inner._run.table, "handles", handles.view(Handles))
        taken = np.concatenate((session.take([1, 2, 3]), session.take([1, 2, 3])))
        assert came
        assert np.count_nonzero(taken) == 3
        device.destroy_pipelines(taken)
    assert device.live_pipelines == 0


async def test_what_a_cut_batch_left_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimulatedDevice()
    create = Creator.create

    def cut(
        creator: Creator, indices: npt.NDArray[np.int32], split: CallSplit | None = None
    ) -> CreationBatch:
        """The first call of a batch, after which the session was closed."""
        batch = create(creator, indices[:1], split)
        session._exchange.cancel()
        whole = CreationBatch.of_zeros(len(indices))
        whole.results[:] = NOT_READY
        whole.results[:1], whole.feedback_flags[:1] = batch.results, batch.feedback_flags
        return whole

    monkeypatch.setattr(Creator, "create", cut)
    options = RunOptions(workers=1, time_limit_s=0.0, schedule=ScheduleOptions(target_ns=10**9))
    async with open_session(device, prepared_set(device, 64), options) as session:
        session._exchange._scheduler._experiences.of(0).learn(1, 1, 1, 0, 1)  # so that a batch has several
        await session.submit(range(32))
        session.limit_time(None)
        report = await session.finish()
    news = session.poll()
    assert report.counts()[OutcomeStatus.NOT_RUN] == 63
    assert (news.progress.done, news.progress.compiled, news.progress.total) == (1, 1, 32)
    assert len(news.settled) == 1
