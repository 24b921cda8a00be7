"""Sessions over sets: what a host can ask, from a thread, asyncio and trio; several applications; ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from orchestrator.devices.device import ERROR_DEVICE_LOST, Device
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions
from orchestrator.errors import DriverError
from orchestrator.run.options import CompileOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import DeviceLostError
from orchestrator.run.set_session import Session, SessionClosedError, session
from orchestrator.sets.archive.reader import MemoryRecords
from orchestrator.sets.authoring.builder import PipelineSetBuilder
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.testing import simulated_opener
from tests.drivers import REPOSITORY
from tests.run.small_sets import BLUR

LIMIT_S = 60.0
COUNT = 12
NOTHING_KEPT = CompileOptions(mode="none")
start: Callable[..., Session] = partial(session, options=NOTHING_KEPT)


def applications(count: int = COUNT) -> PipelineSet:
    """Two applications with as many pipelines each; `one.3` is one, `one` is the tag of all of the first."""
    records, names = MemoryRecords(), dict[str, tuple[int, ...]]()
    for number, name in enumerate(("one", "two")):
        builder = PipelineSetBuilder(records)
        builder.application(name, robust_buffer_access=name == "two")
        module = builder.shader_module(BLUR.read_bytes())
        for index in range(count):
            value = 1 + number * count + index
            key = builder.compute_pipeline("auto", module, specialization={0: value})
            builder.name(key, f"{name}.{index}", name)
        names |= builder.names
    return PipelineSet.from_records(records, names)


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


def gated(name: str = "one.0") -> tuple[PipelineSet, Gate, SimulatedDevice]:
    """A set, and a device that is held in one pipeline of it."""
    sets = applications()
    gate = Gate(sets.names[name][0])
    return sets, gate, SimulatedDevice(SimulatedOptions(on_compile=gate))


# --- what a host asks


@pytest.mark.driver("radv:navi21")
def test_a_loop_takes_what_it_draws_with(tmp_path: Path) -> None:
    sets, driver = applications(), "radv:navi21"
    with session(sets, driver, cache=tmp_path, workers=2) as loading:
        door = loading.require("two.3")
        taken: dict[int, int] = {}
        while not loading.done:
            loading.allow(0.004)
            taken |= loading.take()
            time.sleep(0.001)
        taken |= loading.take()
        assert door.result().created
        assert loading.progress.share == loading.progress.cost_share == 1.0
        assert loading.ready.result() == len(sets)
    assert set(taken) == set(sets.pipelines.keys.tolist())
    assert all(taken.values())
    report = loading.ended.result()
    assert report.counts()[OutcomeStatus.NOT_RUN] == 0
    assert len(report.set.groups) == 2
    assert report.cache_file.saved_bytes > 0
    with session(sets, driver, cache=tmp_path) as again:
        hits = [each.status for each in again.submit().result()]
    assert set(hits) == {OutcomeStatus.CACHE_HIT}


def test_one_device_of_the_host_gets_all_applications_and_is_not_closed() -> None:
    device = SimulatedDevice()
    sets = applications()
    with start(sets, device, workers=1) as loading:
        loading.submit().result()
        taken = loading.take("one")
    assert len(taken) == COUNT
    assert loading.ended.result().counts()[OutcomeStatus.COMPILED] == 2 * COUNT
    assert device.live_pipelines == COUNT  # what was not taken is destroyed
    assert device.live_caches == 0
    device.destroy_pipelines(list(taken.values()))  # type: ignore[arg-type]
    device.close()


def test_devices_that_a_session_opens_are_closed_and_nothing_is_left() -> None:
    devices: list[SimulatedDevice] = []
    with start(applications(), simulated_opener(None, devices.append)) as loading:
        loading.submit().result()
    assert len(devices) == 2
    for device in devices:
        assert (device.live_pipelines, device.live_caches) == (0, 0)
        with pytest.raises(Exception, match="closed"):
            device.create_pipeline_cache()


def test_what_is_left_out_is_told() -> None:
    sets = applications()
    with start(sets, "simulated", applications="two") as loading:
        assert loading.ready.result() == COUNT
        assert set(loading.left_out) == set(sets.names["one"])
        assert set(loading.left_out.values()) == {"it is of one, not asked for"}
        with pytest.raises(ValueError, match="was left out: it is of one"):
            loading.require("one.3").result()
    report = loading.ended.result()
    assert report.counts()[OutcomeStatus.COMPILED] == report.set.unique == COUNT
    assert f"{COUNT} pipelines are of applications that were not asked for" in report.notes
    with pytest.raises(ValueError, match=r"no application 'three'; it has 'one' \([0-9a-f]{16}\), 'two'"):
        start(sets, "simulated", applications=["three"]).ended.result(LIMIT_S)


def test_an_application_whose_device_is_refused_costs_its_own_pipelines() -> None:
    def opener(request: DeviceRequest) -> Device:
        if request.application.application_name == "two":
            raise DriverError("vkCreateDevice", -3, "VK_ERROR_INITIALIZATION_FAILED")
        return SimulatedDevice(SimulatedOptions(request=request))

    sets = applications()
    with start(sets, opener) as loading:
        refused = loading.require("two.0").result()
        assert refused.status is OutcomeStatus.FAILED
        assert "VK_ERROR_INITIALIZATION_FAILED" in refused.reason
        assert len(loading.submit("one").result()) == COUNT
    assert loading.progress.share == 1.0
    assert loading.ended.result().counts()[OutcomeStatus.FAILED] == COUNT


def test_the_most_urgent_application_has_the_time() -> None:
    order: list[int] = []
    sets = applications()
    with start(sets, simulated_opener(SimulatedOptions(on_compile=order.append)), workers=1) as loading:
        loading.allow(0)
        loading.ready.result()
        urgent = loading.submit("two", "soon")
        assert loading.require("one.5").result().created
        loading.allow(None)
        urgent.result()
    assert order[0] == sets.names["one.5"][0]
    assert set(order[1 : COUNT + 1]) == set(sets.names["two"])


def test_names_that_are_unknown() -> None:
    with start(applications(), "simulated") as loading:
        with pytest.raises(ValueError, match=r"called 'one\.x'; did you mean one\.\d"):
            loading.require("one.x").result()
        with pytest.raises(ValueError, match="no pipeline with the key 0000000000000005"):
            loading.submit([5]).result()
        with pytest.raises(ValueError, match="one pipeline is required at a time"):
            loading.require("one").result()
        with pytest.raises(ValueError, match="'now', 'soon' or 'background', not 'later'"):
            loading.submit("one", "later").result()  # type: ignore[arg-type]
        for seconds in (-1.0, float("nan")):
            with pytest.raises(ValueError, match="0 or more is expected"):
                loading.allow(seconds)
        key = loading.names["one.1"][0]
        assert loading.require(f"{key:016x}").result() == loading.require(key).result()


def test_commands_take_effect_in_their_order_also_before_it_is_open() -> None:
    sets, order = applications(), list[int]()
    opening = threading.Event()

    def opener(request: DeviceRequest) -> Device:
        assert opening.wait(LIMIT_S)
        return SimulatedDevice(SimulatedOptions(request=request, on_compile=order.append))

    with start(sets, opener, queue=False, workers=1) as loading:
        loading.allow(0)  # so that nothing has begun that is cancelled
        ticket = loading.submit("two")
        gone = loading.cancel(ticket)
        kept = loading.submit(["two.5", "two.6"])
        assert not loading.done
        assert loading.take() == {}
        opening.set()
        assert gone.result(LIMIT_S) == COUNT
        assert [each.status for each in ticket.result(LIMIT_S)] == [OutcomeStatus.NOT_RUN] * COUNT
        loading.allow(None)
        assert len(kept.result(LIMIT_S)) == 2
    assert len(order) == 2


def test_many_that_the_cache_file_holds_begin_at_once(tmp_path: Path) -> None:
    def sizes() -> list[int]:
        slow = simulated_opener(SimulatedOptions(on_compile=lambda _: time.sleep(0.01)))
        loading = session(applications(), slow, tmp_path, applications=["one"], workers=1)
        (run,) = loading.finish().result(LIMIT_S).runs
        found: list[int] = run.calls.sizes.tolist()
        return found

    assert max(sizes()) <= 2  # each takes longer than a batch should
    assert max(sizes()) > 2


# --- tickets


def test_tickets_are_awaited_in_trio_and_in_asyncio() -> None:
    async def program() -> int:
        async with start(applications(), "simulated") as loading:
            assert (await loading.require("one.1")).created
            with pytest.raises(ValueError, match="did you mean"):
                await loading.require("one.")
            assert await loading.ready == 2 * COUNT
        return (await loading.ended).set.unique

    assert trio.run(program) == asyncio.run(program()) == 2 * COUNT


def test_a_task_that_is_cancelled_waits_for_the_calls_in_flight() -> None:
    sets, gate, device = gated()

    async def program() -> Session:
        with trio.CancelScope() as scope:
            async with start(sets, device, workers=1) as loading:
                await trio.to_thread.run_sync(gate.entered.wait)
                threading.Timer(0.05, gate.open.set).start()
                scope.cancel()
                await trio.sleep_forever()
        return loading

    loading = trio.run(program)
    assert loading.ended.done()
    assert loading.ended.result().stopped
    device.close()


def test_a_ticket_that_is_cancelled_ends_nothing() -> None:
    sets, gate, device = gated()
    with start(sets, device, workers=1, queue=False) as loading:
        loading.require("one.0")
        assert gate.entered.wait(LIMIT_S)
        given_up = loading.submit("two")
        assert given_up.cancel()
        with pytest.raises(CancelledError):
            given_up.result()
        gate.open.set()
        assert len(loading.submit("one").result(LIMIT_S)) == COUNT
    assert len(gate.order) == 2 * COUNT


def test_what_was_given_may_be_changed_at_once() -> None:
    sets = applications()
    with start(sets, "simulated", queue=False) as loading:
        several = ["one.1", "one.2"]
        ticket = loading.submit(several)
        several.clear()
        assert len(ticket.result(LIMIT_S)) == 2

        def failing() -> Iterator[str]:
            yield "one.1"
            raise LookupError("no level")

        with pytest.raises(LookupError, match="no level"):
            loading.submit(failing()).result(LIMIT_S)


# --- ends


@pytest.mark.parametrize("end", ["finish", "close"])
def test_ends(end: str) -> None:
    sets, gate, device = gated()
    loading = start(sets, device, workers=1, queue=False)
    first, rest = loading.require("one.0"), loading.submit("two")
    assert gate.entered.wait(LIMIT_S)
    ended = getattr(loading, end)()
    with pytest.raises(SessionClosedError, match="closed"):
        loading.submit("one").result(LIMIT_S)
    assert not ended.done(), "the driver is busy, and is waited for"
    time.sleep(0.05)  # commands arrive a moment later
    gate.open.set()
    report = ended.result(LIMIT_S)
    assert first.result().created
    created = 1 + (COUNT if end == "finish" else 0)
    assert report.counts()[OutcomeStatus.COMPILED] == created
    assert sum(each.created for each in rest.result(LIMIT_S)) == created - 1
    assert loading.done
    assert loading.take() == {}
    assert (device.live_caches, device.live_pipelines) == (0, 0)
    assert loading.finish() is loading.close() is loading.ended


def test_one_that_is_closed_at_once_has_a_report() -> None:
    report = start(applications(), "simulated").close().result(LIMIT_S)
    assert report.stopped
    assert report.set.unique == 2 * COUNT


def test_what_cannot_be_opened_is_in_every_ticket() -> None:
    def opener(_: DeviceRequest) -> Device:
        raise LookupError("no such device")

    loading = start(applications(), opener)
    asked = loading.require("one.0")
    with pytest.raises(SessionClosedError) as told:
        asked.result(LIMIT_S)
    assert isinstance(told.value.__cause__, LookupError)
    for each in (loading.ready, loading.ended):
        with pytest.raises(LookupError):
            each.result(LIMIT_S)
    assert loading.done
    with pytest.raises(LookupError), start(applications(), opener):
        pass


def test_a_lost_device_is_the_end_s_exception() -> None:
    sets = applications()
    bugs = DriverBugs(results={sets.names["one.4"][0]: ERROR_DEVICE_LOST})
    device = SimulatedDevice(SimulatedOptions(bugs=bugs))
    loading = start(sets, device, workers=1, queue=False)
    assert loading.require("one.0").result(LIMIT_S).created
    assert loading.require("one.4").result(LIMIT_S).status is OutcomeStatus.FAILED
    with pytest.raises(SessionClosedError, match="device was lost"):
        loading.submit("two").result(LIMIT_S)
    assert loading.done
    with pytest.raises(DeviceLostError):
        loading.finish().result(LIMIT_S)
    assert (device.live_caches, device.live_pipelines) == (0, 0)


_FORGOTTEN = """
import threading
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.run.set_session import session
entered = threading.Event()
device = SimulatedDevice(SimulatedOptions(on_compile=lambda key: entered.set()))
loading = session("sample", device, cache="{cache}", workers=2)
assert entered.wait(60)
loading.ended.add_done_callback(lambda ended: print("ended", ended.result().stopped, device.live_caches))
"""


def test_a_program_that_forgets_its_session_ends_all_the_same(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORGOTTEN.format(cache=tmp_path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ended ")
    assert done.stdout.endswith(" 0\n")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt(), ValueError("mine")])
def test_what_a_callback_raises_ends_nothing(raised: BaseException) -> None:
    def callback(_: object) -> None:
        raise raised

    loading = start(applications(), "simulated")
    loading.submit("one").add_done_callback(callback)
    loading.ended.add_done_callback(callback)
    assert loading.finish().result(LIMIT_S).counts()[OutcomeStatus.COMPILED] == 2 * COUNT


@pytest.mark.parametrize(
    ("given", "words"), [((3, ""), "a set: a path"), (("sample", 3), "a selector, a device")]
)
def test_what_is_no_set_and_no_device(given: tuple[Any, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        start(*given).ended.result(LIMIT_S)
