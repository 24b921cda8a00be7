"""Sessions in a thread of their own: from a loop, asyncio and callbacks; ends; commands, futures."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

import numpy as np
import pytest
import trio

from orchestrator.devices.device import Device, PreparedPipelines
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, RunReport
from orchestrator.run.session import DeviceLostError
from orchestrator.run.session_thread import SessionThread, start_session
from orchestrator.schedule.options import Priority
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.drivers import REPOSITORY, each_driver
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
        self.order.append(key)
        if key == self.key:
            self.entered.set()
            assert self.open.wait(LIMIT_S)


def gated(key: int, count: int = 40) -> tuple[Gate, SimulatedDevice, PreparedPipelines]:
    gate = Gate(key)
    device = SimulatedDevice(SimulatedOptions(on_compile=gate))
    return gate, device, device.prepare(simulated_image(range(count)))


# --- a loop


def in_a_loop(device: Device, prepared: PreparedPipelines) -> RunReport:
    count = len(prepared.image)
    session = start_session((device, prepared), OPTIONS)
    ticket = session.submit(range(0, count, 2), group=1)
    session.submit(range(1, count, 2), priority=Priority.BACKGROUND)
    needed = session.require(count - 1)
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


@each_driver
def test_a_loop_has_a_session_on_a_driver(driver: str, open_driver_device: Callable[[str], Device]) -> None:
    device = open_driver_device(driver)
    with PipelineSet.open(sample_path()) as source:
        prepared = device.prepare(build_image(source, source.pipelines[:60], device.capabilities).image)
    check_hosted(in_a_loop(device, prepared), device, prepared)
    prepared.close()


def check_hosted(report: RunReport, device: Device, prepared: PreparedPipelines) -> None:
    """Everything was created, by two workers; what was taken is not in the report."""
    check_sums(report)
    assert report.compiled + report.cache_hits == len(prepared.image)
    assert not report.stopped
    assert report.workers == 2
    assert report.pipelines.handles is not None
    assert not report.pipelines.handles[::2].any()
    device.destroy_pipelines(report.pipelines.handles)


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


# --- futures


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


def cancel_and_finish(session: SessionThread, _: object) -> None:
    session.cancel()
    session.finish()


def test_a_session_ends_in_whatever_order_its_commands_end() -> None:
    for _ in range(30):  # trio runs what is ready in random order
        device = losing_device(0)
        session = start_session((device, prepared_set(device)), RunOptions(workers=1, schedule=ONE))
        session.submit(0).result(LIMIT_S)
        for _ in range(20):  # meanwhile, the workers end
            session.promote(1, Priority.NOW).result(LIMIT_S)
        promoted = session.promote(1, Priority.NOW)
        promoted.add_done_callback(partial(cancel_and_finish, session))
        with pytest.raises(DeviceLostError):
            session.ended.result(LIMIT_S)


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


# --- what a host does wrong


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


@pytest.mark.parametrize("given", [None, (1, 2)])
def test_an_opener_that_gives_something_else(given: Any) -> None:
    session = start_session(lambda: given)
    for each in (session.opened, session.ended):
        with pytest.raises(TypeError, match=r"on a pair \(device, device\.prepare"):
            each.result(LIMIT_S)
