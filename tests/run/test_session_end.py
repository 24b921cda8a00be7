"""How sessions end, and who owns what they kept; what is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import pytest
import trio
import trio.testing

from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, PipelineOutcome, Progress
from orchestrator.run.session import DeviceLostError, PipelineSession, open_session
from orchestrator.schedule import Followers, Priority, ScheduleOptions
from tests.run.support import (
    ONE,
    RefusingDevice,
    check_sums,
    hits_of,
    losing_device,
    prepared_set,
    recorded,
    report_of,
)


async def test_kept_pipelines_are_reported_or_taken() -> None:
    device = SimulatedDevice()
    prepared = device.prepare(simulated_image(range(30)))
    async with open_session(device, prepared, RunOptions(workers=2, keep=True)) as session:
        ticket = await session.submit(range(20))
        outcomes = await ticket.wait()
        assert all(each.handle for each in outcomes)
        taken = session.take([4, 5, 25])
        assert taken.tolist() == [outcomes[4].handle, outcomes[5].handle, 0]
        assert session.take(4).tolist() == [0]
        assert session.outcome_of(4).handle == 0
    report = report_of(session)
    assert report.pipelines.handles is not None
    assert np.count_nonzero(report.pipelines.handles) == 18
    device.destroy_pipelines(report.pipelines.handles)
    assert device.live_pipelines == 2
    device.destroy_pipelines(taken)
    assert device.live_pipelines == 0


async def test_what_is_in_flight_cannot_be_taken() -> None:
    recorder, device = recorded(hold=3)
    prepared = device.prepare(simulated_image(range(9)))
    async with open_session(device, prepared, RunOptions(workers=1, keep=True)) as session:
        await session.submit(3)
        await recorder.entered.wait()
        assert session.take(3).tolist() == [0]
        recorder.open.set()
    report = report_of(session)
    assert report.pipelines.handles is not None
    assert report.pipelines.handles[3]


async def test_a_session_that_keeps_nothing_gives_nothing() -> None:
    device = SimulatedDevice()
    async with open_session(device, prepared_set(device), RunOptions(workers=1)) as session:
        with pytest.raises(ValueError, match="keep=True"):
            session.take(0)


async def test_closing_leaves_the_rest() -> None:
    recorder, device = recorded(hold=0)
    prepared = device.prepare(simulated_image(range(20)))
    waited: list[tuple[PipelineOutcome, ...]] = []
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE)) as session:
        ticket = await session.submit(0, priority=Priority.NOW)
        rest = await session.submit(range(1, 20))
        await recorder.entered.wait()

        async def wait() -> None:
            waited.append(await rest.wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(session.close)
            await trio.testing.wait_all_tasks_blocked()
            assert session.closed
            recorder.open.set()
        report = await session.close()
        assert report.stopped
        assert ticket.done
        with pytest.raises(trio.ClosedResourceError):
            await session.submit(3)
        with pytest.raises(trio.ClosedResourceError):
            session.submit_nowait(3)
        with pytest.raises(trio.ClosedResourceError):
            await session.require(3)
        with pytest.raises(trio.ClosedResourceError):  # or a loop of frames would never end
            await session.run_for(3600)
        assert await session.close() is report
    assert session.report is report
    check_sums(report)
    assert report.compiled == len(recorder.order)
    assert report.counts()[OutcomeStatus.NOT_RUN] == 19
    assert recorder.order == [0]
    assert [each.status for each in waited[0]] == [OutcomeStatus.NOT_RUN] * 19


async def test_finishing_waits_for_everything_whatever_the_budget() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    async with open_session(device, prepared, RunOptions(workers=2, time_limit_s=0)) as session:
        await session.submit(range(300))
        report = await session.finish()
        assert session.closed
        assert report.compiled == 300
        assert report.cache_data is not None


async def test_progress_is_reported_of_what_was_submitted() -> None:
    seen: list[Progress] = []
    device = SimulatedDevice()
    prepared = prepared_set(device)
    async with open_session(
        device, prepared, RunOptions(workers=1, skipped={4: "no", 299: "no"}), on_progress=seen.append
    ) as session:
        assert (session.progress.total, session.progress.share, session.progress.eta_s) == (0, 0.0, 0.0)
        await session.submit(range(100))
    assert (seen[0].total, seen[0].skipped) == (0, 0)
    last = seen[-1]
    assert (last.total, last.done, last.compiled, last.skipped) == (100, 100, 99, 1)
    assert (last.share, last.cost_share, last.eta_s) == (1.0, 1.0, 0.0)
    assert last.done_ns == last.total_ns > 0


@pytest.mark.parametrize("workers", [1, 3])
async def test_progress_ends_at_exactly_what_was_submitted(workers: int) -> None:
    """With libraries that come along, duplicates, failures, what links them, and what is cancelled."""
    device = RefusingDevice({7: -1})
    prepared = prepared_set(device, libraries={200: [3, 4], 201: [7], 210: [200]})
    options = RunOptions(workers=workers, schedule=ONE, skipped={11: "no"}, time_limit_s=0)
    async with open_session(device, prepared, options) as session:
        await session.submit([200, 201, 210, 11, *range(20, 60)])
        assert session.progress.total == 4 + 3 + 40
        await session.submit(range(100, 150), group=1)
        assert session.progress.total == 47 + 50
        seen = [session.progress]
        cancelled = await session.cancel(group=1)
        assert cancelled == 50
        session.limit_time(None)
        settled: set[int] = set()
        while not session.remainder.done:
            news = session.poll()
            seen.append(news.progress)
            assert not settled.intersection(news.settled.tolist())
            settled.update(news.settled.tolist())
            await trio.lowlevel.checkpoint()
        settled.update(session.poll().settled.tolist())
        assert settled == {3, 4, 7, 11, 200, 201, 210, *range(20, 60)}
        assert len(session.poll().settled) == 0
        end = session.progress
        assert (end.total, end.done, end.failed, end.skipped) == (47, 47, 2, 1)
        assert (end.share, end.cost_share, end.eta_s) == (1.0, 1.0, 0.0)
        shares = [each.cost_share for each in seen[1:]]
        assert shares == sorted(shares)
        assert all(share < 1 or each.done == each.total for share, each in zip(shares, seen[1:], strict=True))
        await session.submit(range(100, 110))
        assert session.progress.total == 57
    assert (session.progress.total, session.progress.done) == (57, 57)


async def test_progress_ends_at_1_though_a_library_is_not_needed_any_more() -> None:
    device = RefusingDevice({0: -1})
    prepared = prepared_set(device, 10, libraries={2: [0, 1]})
    async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        await session.submit(2)
        await session.submit(0, priority=Priority.NOW)
        assert session.progress.total == 3
        report = await session.finish()
    assert report.counts()[OutcomeStatus.NOT_RUN] == 8
    progress = session.progress
    assert (progress.total, progress.done) == (2, 2)
    assert (progress.share, progress.cost_share) == (1.0, 1.0)


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


@pytest.mark.parametrize("says_so", [True, False])
async def test_an_exception_of_the_block_keeps_what_led_to_it(says_so: bool) -> None:
    device = SimulatedDevice()
    first, second = KeyError("forest"), LookupError("no level")

    async def fail() -> None:
        async with open_session(device, prepared_set(device), RunOptions(workers=1)):
            try:
                raise first
            except KeyError:
                if says_so:
                    raise second from first
                raise second  # noqa: B904 - without a cause it has the context alone

    with pytest.raises(LookupError, match="no level"):
        await fail()
    assert second.__cause__ is (first if says_so else None)
    assert second.__context__ is first
    assert second.__suppress_context__ is says_so


async def _leave(_session: PipelineSession) -> None:
    """Wait at the end of the block."""


async def _sleep(_session: PipelineSession) -> None:
    await trio.sleep_forever()


async def _submit(session: PipelineSession) -> None:
    while True:
        await session.submit(5)


async def _draw(session: PipelineSession) -> None:
    while True:
        await session.run_for(0.004)
        await session.submit(5)


@pytest.mark.parametrize("use", [PipelineSession.finish, _leave, _sleep, _submit, _draw])
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


@pytest.mark.parametrize(
    "call",
    [
        lambda session: session.submit(2),
        lambda session: session.require(0),
        lambda session: session.run_for(60),
        PipelineSession.cancel,
        PipelineSession.finish,
    ],
)
async def test_a_session_is_not_waited_for_in_another_loop(
    call: Callable[[PipelineSession], Awaitable[object]],
) -> None:
    device = SimulatedDevice()
    options = RunOptions(workers=1, time_limit_s=0)
    async with open_session(device, prepared_set(device), options) as session:
        await session.submit(range(10))
        with pytest.raises(RuntimeError, match="belongs to another trio loop"):
            await trio.to_thread.run_sync(trio.run, call, session)
        await session.close()


async def test_a_cancelled_session_leaves_nothing() -> None:
    recorder, device = recorded(hold=5)
    prepared = device.prepare(simulated_image(range(20)))
    with trio.CancelScope() as scope:
        async with open_session(device, prepared, RunOptions(workers=2, keep=True)) as session:
            await session.submit(range(20))
            await recorder.entered.wait()
            recorder.open.set()
            scope.cancel()
            await session.wait(range(20))
    assert scope.cancelled_caught
    assert session.report is None
    assert (device.live_caches, device.live_pipelines) == (0, 0)


@pytest.mark.parametrize("how", ["submit", "producers", "close", "finish", "leave"])
async def test_a_lost_device_is_told_once_with_the_report(how: str) -> None:
    device = losing_device(0)
    prepared = prepared_set(device)
    told: list[DeviceLostError] = []
    try:
        async with open_session(device, prepared, RunOptions(workers=1, schedule=ONE, keep=True)) as session:
            await (await session.submit(range(5, 9))).wait()
            ticket = await session.submit(range(300))
            outcomes = await ticket.wait()
            assert any(each.status is OutcomeStatus.NOT_RUN for each in outcomes)
            assert any("DEVICE_LOST" in each.reason or "VK_ERROR" in each.reason for each in outcomes)
            if how == "submit":
                await session.submit(3)
            elif how == "producers":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(session.submit, 3)
                    nursery.start_soon(session.require, 4)
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


async def test_an_exception_of_the_block_goes_before_a_lost_device() -> None:
    device = losing_device(0)

    async def fail() -> None:
        async with open_session(device, prepared_set(device), RunOptions(workers=1)) as session:
            await (await session.submit(0)).wait()
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert device.live_caches == 0


async def test_a_wait_that_is_given_up_is_forgotten() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    async with open_session(device, prepared, RunOptions(workers=1, time_limit_s=0)) as session:
        ticket = await session.submit(range(10))
        for _ in range(3):
            with trio.move_on_after(0) as scope:
                await ticket.wait()
            assert scope.cancelled_caught
        assert session._waiting == {}
        assert not ticket.done
        assert len(await session.wait(range(20, 30))) == 10, "what was never submitted is not waited for"


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda session: session.submit_nowait(300), "from 0 to 299"),
        (lambda session: session.submit_nowait([-1]), "from 0 to 299"),
        (lambda session: session.submit_nowait([0.5]), "from 0 to 299"),
        (lambda session: session.submit_nowait([0], group=-1), "a group"),
        (lambda session: session.limit_time(-1.0), "0 or more is expected"),
        (lambda session: session.limit_time(float("nan")), "0 or more is expected"),
        (lambda session: session.promote(1000, Priority.NOW), "from 0 to 299"),
    ],
)
async def test_bad_arguments_are_refused(call: Callable[[PipelineSession], object], complaint: str) -> None:
    device = SimulatedDevice()
    async with open_session(device, prepared_set(device), RunOptions(workers=1)) as session:
        with pytest.raises(ValueError, match=complaint):
            call(session)


async def test_what_cannot_be_meant_is_refused_and_leaves_nothing() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    sharing = RunOptions(schedule=ScheduleOptions(followers=Followers.SHARE), keep=True)
    for options, costs, complaint in (
        (RunOptions(), np.zeros(2, np.int64), "2 elements"),
        (sharing, None, "cannot be kept"),
    ):
        with pytest.raises(ValueError, match=complaint):
            async with open_session(device, prepared, options, costs_ns=costs):
                pytest.fail("it was opened")
    assert device.live_caches == 0


async def test_a_session_warms_the_next_run() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    async with open_session(device, prepared, RunOptions(workers=2)) as session:
        await session.submit(range(150))
    data = report_of(session).cache_data or b""
    report = await run_pipelines(device, prepared, RunOptions(workers=2), primary=data)
    assert (report.cache_hits, report.compiled) == (150, 150)


async def test_a_loop_of_frames_ends_when_the_device_is_lost() -> None:
    device = losing_device(50)

    async def frames() -> None:
        options = RunOptions(workers=2, time_limit_s=0)
        async with open_session(device, prepared_set(device), options) as session:
            await session.submit(range(300), priority=Priority.BACKGROUND)
            while not (await session.run_for(0.004)).done:
                pass

    with trio.fail_after(60), pytest.raises(DeviceLostError):
        await frames()


async def test_frames_beside_the_end_take_nothing_from_it() -> None:
    recorder, device = recorded(hold=0)
    async with open_session(device, prepared_set(device), RunOptions(workers=1, schedule=ONE)) as session:
        await session.submit(range(20))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.finish)
            await trio.testing.wait_all_tasks_blocked()
            session.limit_time(0)
            await session.run_for(0)
            recorder.open.set()
    assert session.report is not None
    assert session.report.compiled == 20


async def test_a_wait_that_is_none_exempts_nothing() -> None:
    device = SimulatedDevice()
    async with open_session(device, prepared_set(device), RunOptions(workers=1, time_limit_s=0)) as session:
        for wrong in (-1.0, float("nan"), "soon"):
            with pytest.raises(ValueError, match="0 or more is expected"):
                await session.require(0, timeout_s=wrong)  # type: ignore[arg-type]
        await session.submit(range(20), priority=Priority.NOW)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert session.remainder.queued == 20
        await session.close()


async def test_what_cannot_be_left_out_leaves_the_session_as_it_was() -> None:
    device = SimulatedDevice()
    async with open_session(device, prepared_set(device, 20), RunOptions(workers=1)) as session:
        later = device.prepare(simulated_image(range(100, 110)))
        for wrong, error in (
            ({-1: "x"}, ValueError),
            ({10: "x"}, ValueError),
            ({"x": "y"}, TypeError),
            ({0: 5}, TypeError),
            ([1], TypeError),
        ):
            with pytest.raises(error, match="'skipped'"):
                session.add(later, skipped=wrong)  # type: ignore[arg-type]
        numbers = session.add(later, skipped={3: "not today"})
        assert numbers == range(20, 30)
        outcomes = await (await session.submit(numbers)).wait()
        assert [each.reason for each in outcomes if not each.created] == ["not today"]


async def test_a_ticket_of_another_session_is_refused() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    async with (
        open_session(device, prepared, RunOptions(workers=1)) as one,
        open_session(device, prepared, RunOptions(workers=1)) as other,
    ):
        ticket = await one.submit([3])
        for use in (other.submit_nowait, other.unsettled, lambda each: other.promote(each, Priority.NOW)):
            with pytest.raises(ValueError, match="that of another session"):
                use(ticket)


@pytest.mark.parametrize("seconds", [1e300, float("inf"), None])
async def test_a_limit_that_no_clock_counts_is_none(seconds: float | None) -> None:
    device = SimulatedDevice()
    async with open_session(device, prepared_set(device), RunOptions(workers=2, time_limit_s=0)) as session:
        await session.submit(range(20))
        session.limit_time(seconds)
        assert (await session.finish()).compiled == 20
