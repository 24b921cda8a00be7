"""Sessions in a thread of their own: from a loop, asyncio and callbacks; ends; commands, futures."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import numpy as np
import pytest
import trio

from orchestrator.devices.device import CacheMode, Device, PreparedPipelines
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, Progress, RunReport
from orchestrator.run.session import DeviceLostError, PipelineSession, open_session
from orchestrator.run.session_thread import SessionThread, Ticket, start_session
from orchestrator.schedule import Priority, ScheduleOptions
from tests.drivers import REPOSITORY, each_device
from tests.run.support import ONE, check_sums, losing_device, prepared_set

LIMIT_S = 60.0
OPTIONS = RunOptions(workers=2, keep=True)


class Gate:
    """Holds the driver in one pipeline until it is opened."""

    def __init__(self, key: int) -> None:
        self.key = key
        self.order: list[int] = []
        self.entered = threading.Event()
        self.open = threading.Event()

    def __call__(self, key: int) -> None:
        """Be called by the driver."""
        self.order.append(key)
        if key == self.key:
            self.entered.set()
            assert self.open.wait(LIMIT_S)


def gated(key: int, count: int = 40) -> tuple[Gate, SimulatedDevice, PreparedPipelines]:
    gate = Gate(key)
    device = SimulatedDevice(SimulatedOptions(on_compile=gate))
    return gate, device, device.prepare(simulated_image(range(count)))


# --- the same session in any host


def level(device: Device, prepared: PreparedPipelines) -> tuple[list[int], list[int], int]:
    """What every host does: some at once, some late, one that is needed."""
    count = len(prepared.image)
    return list(range(0, count, 2)), list(range(1, count, 2)), count - 1


def in_trio(device: Device, prepared: PreparedPipelines) -> RunReport:
    async def main() -> RunReport:
        early, late, door = level(device, prepared)
        async with open_session(device, prepared, OPTIONS) as session:
            ticket = await session.submit(early, group=1)
            await session.submit(late, priority=Priority.BACKGROUND)
            assert (await session.require(door)).created
            await ticket.wait()
            handles = session.take(ticket)
        device.destroy_pipelines(handles)
        assert session.report is not None
        return session.report

    return trio.run(main)


def in_a_loop(device: Device, prepared: PreparedPipelines) -> RunReport:
    early, late, door = level(device, prepared)
    session = start_session((device, prepared), OPTIONS)
    ticket = session.submit(early, group=1)
    session.submit(late, priority=Priority.BACKGROUND)
    needed = session.require(door)
    settled: list[int] = []
    handles = np.empty(0, np.uint64)
    while True:
        news = session.poll()
        settled += news.settled.tolist()
        if needed.done() and ticket.done() and not handles.size:
            assert needed.result().created
            handles = session.take(ticket)
        if handles.size and len(settled) == len(prepared.image):
            break
        time.sleep(0.001)  # the frame
    assert news.progress.share == news.progress.cost_share == 1.0
    report = session.finish().result(LIMIT_S)
    device.destroy_pipelines(handles)
    return report


def in_asyncio(device: Device, prepared: PreparedPipelines) -> RunReport:
    async def main() -> RunReport:
        early, late, door = level(device, prepared)
        session = start_session(lambda: (device, prepared), OPTIONS)
        await asyncio.wrap_future(session.opened)
        ticket = session.submit(early, group=1)
        session.submit(late, priority=Priority.BACKGROUND)
        outcome, outcomes = await asyncio.gather(
            asyncio.wrap_future(session.require(door)), asyncio.wrap_future(ticket)
        )
        assert outcome.created
        assert len(outcomes) == len(early)
        handles = session.take(ticket)
        report = await asyncio.wrap_future(session.finish())
        device.destroy_pipelines(handles)
        return report

    return asyncio.run(main())


def with_callbacks(device: Device, prepared: PreparedPipelines) -> RunReport:
    early, late, door = level(device, prepared)
    taken: Future[int] = Future()
    with start_session((device, prepared), OPTIONS) as session:
        ticket = session.submit(early, group=1)

        def took(_: object) -> None:
            handles = session.take(ticket)
            device.destroy_pipelines(handles)
            taken.set_result(len(handles))

        ticket.add_done_callback(took)
        session.submit(late, priority=Priority.BACKGROUND)
        assert session.require(door).result(LIMIT_S).created
    assert taken.result(LIMIT_S) == len(early)
    return session.ended.result()


HOSTS: dict[str, Callable[[Device, PreparedPipelines], RunReport]] = {
    "trio": in_trio,
    "loop": in_a_loop,
    "asyncio": in_asyncio,
    "callbacks": with_callbacks,
}


@each_device
@pytest.mark.parametrize("host", HOSTS)
def test_any_host_has_the_same_session(
    host: str, selector: str, open_driver_device: Callable[[str], Device]
) -> None:
    if selector == "simulated":
        device: Device = SimulatedDevice()
        prepared = device.prepare(simulated_image(range(120), libraries={7: [2], 60: [2, 8], 119: [60]}))
    else:
        from orchestrator.sets.image.builder import build_image
        from orchestrator.sets.pipeline_set import PipelineSet
        from orchestrator.sets.sample import sample_path

        device = open_driver_device(selector)
        with PipelineSet.open(sample_path()) as source:
            prepared = device.prepare(build_image(source, source.pipelines[:60], device.capabilities).image)
    report = HOSTS[host](device, prepared)
    check_sums(report)
    assert report.compiled + report.cache_hits == len(prepared.image)
    assert not report.stopped
    assert report.workers == 2
    assert report.pipelines.handles is not None
    early, _, _ = level(device, prepared)
    assert not report.pipelines.handles[early].any(), "they were taken"
    device.destroy_pipelines(report.pipelines.handles)
    if isinstance(device, SimulatedDevice):
        assert report.compiled == 120
        prepared.close()
        assert (device.live_caches, device.live_pipelines) == (0, 0)


# --- opening


def test_commands_before_it_is_open_take_effect_in_their_order() -> None:
    gate = threading.Event()
    device = SimulatedDevice()

    def opener() -> tuple[Device, PreparedPipelines]:
        assert gate.wait(LIMIT_S)
        return device, prepared_set(device)

    with start_session(opener, RunOptions(workers=1)) as session:
        session.limit_time(0)
        ticket = session.submit(range(20), group=3)
        more = session.promote(ticket, Priority.NOW)
        gone = session.cancel(group=3)
        kept = session.submit([5, 6])
        assert not session.opened.done()
        assert (session.progress.total, session.remainder.done, len(session.poll().settled)) == (0, True, 0)
        assert session.take(ticket).size == 0
        gate.set()
        assert session.opened.result(LIMIT_S)[0] is device
        assert more.result(LIMIT_S) == 20
        assert gone.result(LIMIT_S) == 20
        assert [each.status for each in ticket.result(LIMIT_S)] == [OutcomeStatus.NOT_RUN] * 20
        session.limit_time(None)
        assert len(kept.result(LIMIT_S)) == 2
    assert session.ended.result().compiled == 2


def test_a_ticket_from_before_it_was_open_is_not_kept() -> None:
    device = SimulatedDevice()
    given = threading.Event()

    def opener() -> tuple[Device, PreparedPipelines]:
        assert given.wait(LIMIT_S)
        return device, prepared_set(device)

    with start_session(opener, RunOptions(workers=1)) as session:
        ticket = weakref.ref(session.submit(range(300)))
        given.set()
    gc.collect()
    assert session.ended.result().compiled == 300
    assert ticket() is None


def test_what_cannot_be_opened_is_in_every_future() -> None:
    def opener() -> tuple[Device, PreparedPipelines]:
        raise LookupError("no such set")

    session = start_session(opener)
    for each in (session.opened, session.ended):
        with pytest.raises(LookupError):
            each.result(LIMIT_S)
    with pytest.raises(trio.ClosedResourceError):
        session.submit([1]).result(LIMIT_S)
    assert session.closed
    assert session.finish() is session.close() is session.ended


def test_what_cannot_be_meant() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    with pytest.raises(ValueError, match="capacity"):
        start_session((device, prepared), RunOptions(schedule=ScheduleOptions(capacity=4)))
    with start_session((device, prepared), RunOptions(workers=1)) as session:
        wrong = session.submit([300])
        asked: list[Future[Any]] = [
            wrong,
            session.submit([0], group=-1),
            session.promote(-1, Priority.NOW),
            session.limit_time(-1.0),
            session.require(1000),
            session.cancel(wrong),
        ]
        for each in asked:
            with pytest.raises(ValueError):
                each.result(LIMIT_S)
        with pytest.raises(ValueError, match="keep=True"):
            session.take([1])
        assert session.submit([1, 2]).result(LIMIT_S)
    assert session.ended.result().compiled == 2


# --- futures


def test_require_has_a_bound_and_the_pipeline_comes_all_the_same() -> None:
    gate, _device, prepared = gated(30)
    with start_session((_device, prepared), RunOptions(workers=1, schedule=ONE, time_limit_s=0)) as session:
        session.submit(range(20), priority=Priority.BACKGROUND)
        needed = session.require(30)
        assert gate.entered.wait(LIMIT_S), "it passes the time limit that is over"
        with pytest.raises(TimeoutError):
            needed.result(0.001)
        assert session.remainder.queued == 20
        gate.open.set()
        assert needed.result(LIMIT_S).created
        assert gate.order == [30]


async def test_require_has_a_bound_in_trio_too() -> None:
    gate, device, prepared = gated(30)
    options = RunOptions(workers=1, schedule=ONE, time_limit_s=0)
    async with open_session(device, prepared, options) as session:
        await session.submit(range(20), priority=Priority.BACKGROUND)
        with pytest.raises(TimeoutError, match="pipeline 30"):
            await session.require(30, timeout_s=0.01)
        await trio.to_thread.run_sync(gate.entered.wait, LIMIT_S)
        gate.open.set()
        assert (await session.require(30, timeout_s=LIMIT_S)).created
        assert (await session.require(30, timeout_s=0)).created
        assert gate.order == [30]
        session.limit_time(None)


def test_a_future_that_is_cancelled_ends_nothing() -> None:
    gate, device, prepared = gated(0)
    with start_session((device, prepared), RunOptions(workers=1, schedule=ONE)) as session:
        session.submit(0).cancel()
        assert gate.entered.wait(LIMIT_S)
        given_up = session.submit(range(1, 10))
        assert given_up.cancel()
        with pytest.raises(CancelledError):
            given_up.result()
        kept = session.submit(range(10, 20))
        gate.open.set()
        assert len(kept.result(LIMIT_S)) == 10
    assert session.ended.result().compiled == 20
    assert sorted(gate.order) == list(range(20))


async def _cancelled_wait(session: SessionThread) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.wrap_future(session.submit(range(5))), 0.001)


def test_an_asyncio_task_that_gives_up_leaves_the_pipelines() -> None:
    gate, device, prepared = gated(0)
    with start_session((device, prepared), RunOptions(workers=1, schedule=ONE)) as session:
        session.submit(0)
        assert gate.entered.wait(LIMIT_S)
        asyncio.run(_cancelled_wait(session))
        gate.open.set()
    assert session.ended.result().compiled == 5


def test_many_threads_and_many_tickets() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    tickets: list[Ticket] = []
    with start_session((device, prepared), RunOptions(workers=3)) as session:

        def producer(first: int) -> None:
            for index in range(first, 300, 4):
                tickets.append(session.submit(index))

        threads = [threading.Thread(target=producer, args=(first,)) for first in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        created = [outcome.created for each in tickets for outcome in each.result(LIMIT_S)]
        assert created == [True] * 300
    assert set(device.compile_counts.values()) == {1}


# --- ends


@pytest.mark.parametrize("end", ["finish", "close"])
def test_ends(end: str) -> None:
    gate, device, prepared = gated(0)
    session = start_session((device, prepared), RunOptions(workers=1, schedule=ONE, keep=True))
    ticket = session.submit(range(20))
    assert gate.entered.wait(LIMIT_S)
    ended: Future[RunReport] = getattr(session, end)()
    assert session.closed
    with pytest.raises(trio.ClosedResourceError):
        session.submit([30]).result(LIMIT_S)
    assert not ended.done(), "the driver is busy, and is waited for"
    inner = session._session
    assert inner is not None
    arrived_by = time.monotonic() + LIMIT_S
    while end == "close" and not inner.exchange.cancelled:  # commands arrive a moment later
        assert time.monotonic() < arrived_by
        time.sleep(0.001)
    gate.open.set()
    report = ended.result(LIMIT_S)
    created = 20 if end == "finish" else 1
    assert report.compiled == created
    assert report.stopped == (end == "close")
    assert sum(each.created for each in ticket.result(LIMIT_S)) == created
    handles = session.take(ticket)
    assert np.count_nonzero(handles) == created
    device.destroy_pipelines(handles)
    assert (device.live_caches, device.live_pipelines) == (0, 0)
    assert len(session.poll().settled) == created


def test_leaving_the_block_by_an_exception_closes() -> None:
    gate, device, prepared = gated(0)
    sessions = []

    def fail() -> None:
        with start_session((device, prepared), RunOptions(workers=1, schedule=ONE)) as session:
            sessions.append(session)
            session.submit(range(20))
            assert gate.entered.wait(LIMIT_S)
            gate.open.set()
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    (session,) = sessions
    assert session.ended.result(0).stopped
    assert device.live_caches == 0


def test_leaving_the_block_by_ctrl_c_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, device, prepared = gated(0)

    def interrupt() -> None:
        gate.open.set()
        raise KeyboardInterrupt

    session = start_session((device, prepared), RunOptions(workers=1, schedule=ONE))
    session.submit(range(20))
    assert gate.entered.wait(LIMIT_S)
    monkeypatch.setattr(session.ended, "result", interrupt)
    with pytest.raises(KeyboardInterrupt), session:
        pass
    monkeypatch.undo()
    assert session.ended.done()
    assert device.live_caches == 0


def test_what_was_given_may_be_changed_at_once() -> None:
    device = SimulatedDevice()
    with start_session((device, prepared_set(device)), RunOptions(workers=1)) as session:
        several, numbers = [1, 2], np.array([3, 4])
        tickets = [session.submit(several), session.submit(numbers), session.submit(iter([5, 6]))]
        several.clear()
        numbers[:] = 0
        assert [[each.key for each in ticket.result(LIMIT_S)] for ticket in tickets] == [
            [1, 2],
            [3, 4],
            [5, 6],
        ]

        def failing() -> Iterator[int]:
            yield 1
            raise LookupError("no level")

        with pytest.raises(LookupError, match="no level"):
            session.submit(failing()).result(LIMIT_S)
        with pytest.raises(RuntimeError, match="SystemExit"):
            session.add(lambda _: sys.exit("no level")).result(LIMIT_S)
    assert session.ended.result().compiled == 6


def test_what_follows_an_image_may_use_its_numbers() -> None:
    device = SimulatedDevice()
    several = [device.prepare(simulated_image(range(first, first + 5))) for first in range(0, 100, 10)]
    session = start_session((device, several[0]), RunOptions(workers=1))
    left_out = {0: "not today"}
    added = [session.add(later, skipped=left_out) for later in several[1:]]
    ticket = session.submit(range(5, 50))
    ended = session.finish()
    left_out.clear()  # what was given may be changed
    assert [each.result(LIMIT_S) for each in added] == [range(n, n + 5) for n in range(5, 50, 5)]
    keys = [key + number for key in range(10, 100, 10) for number in range(5)]
    assert [each.key for each in ticket.result(LIMIT_S)] == keys
    assert ended.result(LIMIT_S).counts()[OutcomeStatus.SKIPPED] == 9


def test_while_it_finishes_it_takes_what_a_session_of_trio_takes() -> None:
    gate, device, prepared = gated(0)
    session = start_session((device, prepared), RunOptions(workers=1, schedule=ONE))
    session.submit(range(20))
    assert gate.entered.wait(LIMIT_S)
    ended = session.finish()
    assert session.promote([5], Priority.NOW).result(LIMIT_S) == 1
    assert session.limit_time(0).result(LIMIT_S) is None
    cancelled = session.cancel(range(10, 20))
    with pytest.raises(trio.ClosedResourceError, match="the session is closed"):
        session.submit([5]).result(LIMIT_S)
    with pytest.raises(trio.ClosedResourceError, match="the session is closed"):
        session.require(5).result(LIMIT_S)
    gate.open.set()
    assert cancelled.result(LIMIT_S) == 10
    assert ended.result(LIMIT_S).compiled == 10
    with pytest.raises(trio.ClosedResourceError, match="the session is closed"):
        session.promote([5], Priority.NOW).result(LIMIT_S)


def test_a_ticket_of_another_thread_is_refused() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    with (
        start_session((device, prepared), RunOptions(workers=1)) as one,
        start_session((device, prepared), RunOptions(workers=1, keep=True)) as other,
    ):
        ticket = one.submit([3])
        with pytest.raises(ValueError, match="that of another session"):
            other.submit(ticket).result(LIMIT_S)
        other.submit([3]).result(LIMIT_S)
        with pytest.raises(ValueError, match="that of another session"):
            other.take(ticket)


def test_close_ends_what_finish_would_go_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, told, close = threading.Event(), threading.Event(), PipelineSession.close

    def hold(_key: int) -> None:
        begun.set()
        assert told.wait(LIMIT_S)

    async def close_and_go_on(self: PipelineSession) -> RunReport:
        self.exchange.cancel()
        told.set()
        return await close(self)

    monkeypatch.setattr(PipelineSession, "close", close_and_go_on)
    device = SimulatedDevice(SimulatedOptions(on_compile=hold))
    with start_session((device, prepared_set(device)), RunOptions(workers=1, schedule=ONE)) as session:
        ticket = session.submit(range(300))
        assert begun.wait(LIMIT_S)
        ended = session.finish()
        assert session.close() is session.close() is ended
        with pytest.raises(trio.ClosedResourceError):
            session.submit([5]).result(LIMIT_S)
        assert any(each.status is OutcomeStatus.NOT_RUN for each in ticket.result(LIMIT_S))
    assert session.ended.result(LIMIT_S).stopped
    assert session.close() is ended
    device.close()


def test_a_lost_device_is_the_end_s_exception_and_everything_comes_back() -> None:
    device = losing_device(40)
    session = start_session((device, prepared_set(device)), RunOptions(workers=1, schedule=ONE, keep=True))
    assert len(session.submit(range(10)).result(LIMIT_S)) == 10
    # The tickets are not the place where it is told: they have outcomes.
    lost = session.submit(40).result(LIMIT_S)
    assert [each.status for each in lost] == [OutcomeStatus.FAILED]
    with pytest.raises(trio.ClosedResourceError, match="device was lost"):
        session.submit([50]).result(LIMIT_S)
    with pytest.raises(DeviceLostError) as told:
        session.finish().result(LIMIT_S)
    report = told.value.report
    assert report.compiled == 10
    assert report.pipelines.handles is not None
    device.destroy_pipelines(report.pipelines.handles)
    assert (device.live_caches, device.live_pipelines) == (0, 0)


def test_a_bug_in_a_worker_resolves_every_future() -> None:
    def broken(key: int) -> None:
        raise ZeroDivisionError

    device = SimulatedDevice(SimulatedOptions(on_compile=broken))
    session = start_session((device, prepared_set(device)), RunOptions(workers=2))
    ticket = session.submit(range(300))
    with pytest.raises(ZeroDivisionError):
        session.ended.result(LIMIT_S)
    assert not any(each.created for each in ticket.result(LIMIT_S))
    assert device.live_caches == 0


_FORGOTTEN = """
import threading
from orchestrator import RunOptions, start_session
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
entered = threading.Event()
done = []
def compile(key):
    entered.set()
    done.append(key)
device = SimulatedDevice(SimulatedOptions(on_compile=compile))
session = start_session((device, device.prepare(simulated_image(range(500)))), RunOptions(workers=2))
session.submit(range(500))
assert entered.wait(60)
session.ended.add_done_callback(lambda ended: print("ended", ended.result().stopped, device.live_caches))
"""


def printed_by(program: str) -> str:
    """What a program prints that ends well and in time."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_program_that_forgets_its_session_ends_all_the_same() -> None:
    printed = printed_by(_FORGOTTEN)
    assert printed.startswith("ended ")
    assert printed.endswith(" 0\n")


def test_the_primary_may_be_made_for_the_device_that_the_session_opens() -> None:
    device = SimulatedDevice()
    with start_session((device, prepared_set(device)), RunOptions(workers=2)) as session:
        session.submit(range(150))
    data = session.ended.result().cache_data
    other, threads = SimulatedDevice(), list[threading.Thread]()

    def primary(opened: Device) -> bytes | None:
        assert opened is other
        threads.append(threading.current_thread())
        return data

    with start_session(
        lambda: (other, prepared_set(other)), RunOptions(workers=2), primary=primary
    ) as session:
        session.submit(range(150))
    assert session.ended.result().counts()[OutcomeStatus.CACHE_HIT] == 150
    assert threads == [session._thread]


def test_a_primary_that_cannot_be_made_is_the_reason_of_the_end() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)

    def primary(_: Device) -> bytes | None:
        raise OSError("the cache file cannot be read")

    session = start_session(lambda: (device, prepared), RunOptions(workers=1), primary=primary)
    with pytest.raises(OSError, match="cannot be read"):
        session.ended.result(LIMIT_S)
    assert session.opened.result(LIMIT_S) == (device, prepared)


def test_polls_name_each_pipeline_once_and_the_end() -> None:
    """Beside tickets that are waited for and without any, from two threads that take turns."""
    device = SimulatedDevice()
    prepared = prepared_set(device, 400)
    settled: list[int] = []
    last = [Progress()]
    with start_session((device, prepared), RunOptions(workers=2)) as session:
        tickets = [session.submit(range(first, first + 100)) for first in range(0, 400, 100)]

        def look() -> None:
            news = session.poll()
            settled.extend(news.settled.tolist())
            last[0] = news.progress

        for ticket in tickets:
            while not ticket.done():
                thread = threading.Thread(target=look)
                thread.start()
                thread.join()
                look()
        look()
        assert (last[0].done, last[0].total, last[0].share) == (400, 400, 1.0)
    assert sorted(settled) == list(range(400))
    device.close()


# --- what a host does wrong


def test_ended_and_opened_cannot_be_taken_from_others() -> None:
    gate, device, prepared = gated(0)
    with start_session((device, prepared), RunOptions(workers=1, schedule=ONE)) as session:
        session.submit(range(5))
        assert gate.entered.wait(LIMIT_S)
        assert not session.ended.cancel()
        assert not session.opened.cancel()
        gate.open.set()
    # Cancelled, the block would have been left beside driver calls.
    assert session.ended.result(0).compiled == 5
    assert not session._thread.is_alive()


async def _gives_up_on_opened(session: SessionThread) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.wrap_future(session.opened), 0.001)


def test_a_task_that_gives_up_on_opened_leaves_the_device_to_be_closed() -> None:
    gate = threading.Event()
    device = SimulatedDevice()

    def opener() -> tuple[Device, PreparedPipelines]:
        assert gate.wait(LIMIT_S)
        return device, prepared_set(device)

    with start_session(opener, RunOptions(workers=1)) as session:
        asyncio.run(_gives_up_on_opened(session))
        gate.set()
        assert session.opened.result(LIMIT_S)[0] is device
        assert len(session.add(lambda own: own.prepare(simulated_image([900, 901]))).result(LIMIT_S)) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), ValueError("mine")])
def test_what_a_callback_raises_ends_nothing(raised: BaseException) -> None:
    device = SimulatedDevice()
    session = start_session((device, prepared_set(device)), RunOptions(workers=1))
    ticket = session.submit(range(5))

    def callback(_: object) -> None:
        raise raised

    ticket.add_done_callback(callback)
    session.ended.add_done_callback(callback)
    assert session.finish().result(LIMIT_S).compiled == 5
    session._thread.join(LIMIT_S)
    assert not session._thread.is_alive()


def test_what_the_session_cannot_use_is_given_back() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    session = start_session(
        lambda: (device, prepared), RunOptions(workers=1, mode=CacheMode.NONE), primary=b"data"
    )
    with pytest.raises(ValueError, match="mode none"):
        session.ended.result(LIMIT_S)
    assert session.opened.result(LIMIT_S) == (device, prepared)
    refused = session.submit([1]).exception(LIMIT_S)
    assert isinstance(refused, trio.ClosedResourceError)
    assert "has failed" in str(refused)
    assert refused.__cause__ is session.ended.exception()


@pytest.mark.parametrize("given", [None, 5, (1, 2), [], "device"])
def test_an_opener_that_gives_something_else(given: Any) -> None:
    session = start_session(lambda: given)
    for each in (session.opened, session.ended):
        with pytest.raises(TypeError, match=r"on a pair \(device, device\.prepare"):
            each.result(LIMIT_S)


def test_arguments_of_a_wrong_type_are_named() -> None:
    device = SimulatedDevice()
    with pytest.raises(TypeError, match="RunOptions is expected here, not NoneType"):
        start_session((device, prepared_set(device)), None)  # type: ignore[arg-type]
    wrong: list[tuple[Callable[[SessionThread], Future[Any]], str]] = [
        (lambda s: s.submit(None), "not NoneType"),  # type: ignore[arg-type]
        (lambda s: s.submit(1.5), "not float"),  # type: ignore[arg-type]
        (lambda s: s.submit(1, priority=7), "Priority.NOW, .* not 7"),  # type: ignore[arg-type]
        (lambda s: s.submit(1, priority="now"), "Priority.NOW, .* not 'now'"),  # type: ignore[arg-type]
        (lambda s: s.promote(1, 7), "Priority.NOW, .* not 7"),  # type: ignore[arg-type]
        (lambda s: s.submit(1, group="x"), "a group is a number .* not 'x'"),  # type: ignore[arg-type]
        (lambda s: s.require([1, 2]), "one pipeline is required"),  # type: ignore[arg-type]
        (lambda s: s.limit_time("x"), "a time limit of 'x' s"),  # type: ignore[arg-type]
        (lambda s: s.add(lambda _: 3), "not int"),  # type: ignore[arg-type, return-value]
    ]
    with start_session((device, prepared_set(device)), RunOptions(workers=1)) as session:
        for ask, words in wrong:
            with pytest.raises((TypeError, ValueError), match=words):
                ask(session).result(LIMIT_S)
        assert session.submit([1, 2]).result(LIMIT_S)
    assert session.ended.result().compiled == 2
