"""Trials in child processes: one pipeline at a time; whatever ends a child is named, and no child is left."""

from __future__ import annotations

import _thread
import math
import os
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec
import pytest
import trio
from attrs import evolve
from trio.testing import MockClock, wait_all_tasks_blocked

from orchestrator.children.parent import ChildGroup, Ended
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.errors import ArchiveError, DeviceError
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.sets.records import PipelineJob
from orchestrator.sets.spirv.validation import ValidationLimits, validate_modules
from orchestrator.stores.culprits import Cause
from orchestrator.supervise.connection import Connection
from orchestrator.supervise.server import Answer, CompileServer, Trying
from orchestrator.supervise.trial import SuspectTrials, Trials, answer_in_time, in_seconds, try_pipelines
from orchestrator.supervise.vetting import run_with_children
from tests.run.small_sets import MARKER, compute_keys, opener
from tests.supervise.processes import children

KEYS = compute_keys()[:6]
JOBS = [PipelineJob(key, PipelineKind.COMPUTE) for key in KEYS]


@opener
def open_quitter(key: int) -> None:
    """For a trial process: compiling one pipeline ends it as if all were well, another as an error."""
    if key == KEYS[1]:
        os._exit(0)
    if key == KEYS[3]:
        os._exit(7)


def open_dying_once(request: DeviceRequest) -> SimulatedDevice:
    """For trial processes: the first one does not get ready."""
    marker = Path(os.environ[MARKER])
    if not marker.exists():
        marker.touch()
        os.abort()
    return SimulatedDevice(SimulatedOptions(request=request))


def open_dying(request: DeviceRequest) -> SimulatedDevice:
    """For trial processes: none gets ready."""
    os.abort()


def open_nothing(request: DeviceRequest) -> SimulatedDevice:
    """For a trial process: there is no device."""
    raise DeviceError("none here")


def open_noted(request: DeviceRequest) -> SimulatedDevice:
    """For trial processes, which note that they open it: some pipelines end the process, each in its way."""
    with Path(os.environ[MARKER]).open("a") as marker:
        marker.write("opened\n")
    opener = os.getpid()

    def on_compile(key: int) -> None:
        if key == KEYS[1]:
            os._exit(0)
        if key == KEYS[2] and os.getpid() != opener:  # alone it survives
            os.abort()
        if key in (KEYS[3], KEYS[4]):
            os.abort()

    return SimulatedDevice(SimulatedOptions(on_compile=on_compile))


@opener
def open_late(key: int) -> None:
    """For trial processes: what the driver did to one pipeline ends them after it has come back."""

    def end(frame: FrameType, event: str, _: object) -> None:
        if event == "return" and frame.f_code.co_name == "give":
            os.abort()

    if key == KEYS[5]:
        sys.setprofile(end)


def open_with_thread(request: DeviceRequest) -> SimulatedDevice:
    """As `open_noted`, of a driver with a thread."""
    _thread.start_new_thread(time.sleep, (600,))
    return open_noted(request)


@opener
def open_hanging(key: int) -> None:
    """For trial processes: the driver does not come back from one pipeline."""
    if key == KEYS[1]:
        time.sleep(600)


async def tried(archive: Path, name: str = "", processes: int = 2, stop: trio.Event | None = None) -> Trials:
    """Try the pipelines of the small set."""
    limits = TrialLimits(opener=f"{__name__}:{name}" if name else "")
    options = CompileOptions(selector="simulated", workers=processes, trial_limits=limits)
    return await try_pipelines([str(archive)], JOBS, options, DeviceRequest(), stop=stop)


async def test_good_pipelines_survive_in_as_many_processes_as_asked(archive: Path) -> None:
    before = children()
    trials = await tried(archive)
    assert trials.survived == set(JOBS)
    assert trials.died == {}
    assert trials.processes == 2
    assert children() == before


async def test_every_way_to_end_is_named_and_the_others_go_on(archive: Path) -> None:
    before = children()
    trials = await tried(archive, "open_quitter", processes=1)
    assert trials.survived == {job for number, job in enumerate(JOBS) if number not in (1, 3)}
    assert "exit status 0" in trials.died[JOBS[1]]
    assert "exit status 7" in trials.died[JOBS[3]]
    # Three go on from one to the next, and the two that end a process are then the first in another.
    assert trials.processes == 5
    assert children() == before


async def looked_ahead(
    archive: Path, name: str, limits: TrialLimits | None = None, *, ends_in_s: float = math.inf
) -> tuple[list[PipelineJob], SuspectTrials]:
    """Try the pipelines of the small set ahead, and then the suspects alone."""
    limits = evolve(limits or TrialLimits(), opener=f"{__name__}:{name}")
    options = CompileOptions(selector="simulated", workers=1, trial_limits=limits)

    async def note(*_: object) -> None:
        pass

    connection = Connection.to(CompileServer.start([str(archive)], options))
    request = msgspec.msgpack.encode(DeviceRequest())
    trials = SuspectTrials(connection, options, request, {}, note)
    trials.ends_at = trio.current_time() + ends_in_s
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.listen)
        suspects = await trials.find_suspects(JOBS)
        await trials.run(suspects, junk=False)
        nursery.cancel_scope.cancel()
    connection.close()
    return suspects, trials


@pytest.mark.parametrize(
    ("name", "expected", "processes"), [("open_noted", (1, 2, 3, 4), 5), ("open_with_thread", (1, 3, 4), 7)]
)
async def test_what_is_tried_ahead_has_to_die_again_in_a_process_of_its_own(
    name: str,
    expected: tuple[int, ...],
    processes: int,
    archive: Path,
    marker: Path,
) -> None:
    before = children()
    suspects, trials = await looked_ahead(archive, name)
    assert suspects == [JOBS[each] for each in expected]
    assert set(trials.verdicts) == {JOBS[1], JOBS[3], JOBS[4]}
    assert trials.took_ns.keys() == {KEYS[0], KEYS[2], KEYS[5]}
    assert marker.read_text().count("opened") == trials.processes == processes
    assert children() == before


async def test_a_fork_may_end_after_its_pipeline_has_survived(archive: Path) -> None:
    suspects, trials = await looked_ahead(archive, "open_late")
    assert suspects == [JOBS[5]]
    assert trials.took_ns.keys() == set(KEYS)
    assert set(trials.verdicts) == {JOBS[5]}


async def test_a_hang_ends_what_is_tried_ahead(archive: Path) -> None:
    before = children()
    suspects, trials = await looked_ahead(archive, "open_hanging", TrialLimits(1.0))
    assert suspects == [JOBS[1]]
    assert trials.verdicts[JOBS[1]].cause is Cause.TIMEOUT
    assert trials.took_ns.keys() == {KEYS[0]}
    assert children() == before


async def test_the_time_limit_ends_what_is_tried_ahead(archive: Path) -> None:
    before = children()
    with trio.fail_after(120):
        suspects, trials = await looked_ahead(archive, "open_hanging", TrialLimits(3600.0), ends_in_s=1.0)
    assert trials.is_over
    assert (suspects, trials.verdicts) == ([], {})
    assert children() == before


async def test_a_process_that_does_not_get_ready_is_followed_by_another_one(
    archive: Path, marker: Path
) -> None:
    trials = await tried(archive, "open_dying_once", processes=1)
    assert trials.survived == set(JOBS)
    assert trials.processes == 2
    with pytest.raises(DeviceError, match="did not get ready: signal 6"):
        await tried(archive, "open_dying", processes=1)


async def test_a_child_that_cannot_open_the_device_is_an_error(archive: Path) -> None:
    with pytest.raises(DeviceError, match="none here"):
        await tried(archive, "open_nothing")
    with pytest.raises(ArchiveError, match="cannot be opened"):
        await tried(archive.with_name("nothing.foz"))


def test_a_limit_is_told_in_seconds_however_short() -> None:
    limits = (0.003, 0.07, 1.0, 61.24, 3600.0)
    assert list(map(in_seconds, limits)) == ["0.003 s", "0.07 s", "1 s", "61.2 s", "3600 s"]


async def test_no_trial_begins_when_the_time_is_over(archive: Path) -> None:
    connection = Connection.to(CompileServer.start([str(archive)], CompileOptions()))

    async def note(*_: object) -> None:
        raise AssertionError("nothing was tried")

    trials = SuspectTrials(connection, CompileOptions(), b"", {}, note, ends_at=trio.current_time())
    try:
        await trials.run(JOBS, junk=False)
    finally:
        connection.close()
    assert (trials.processes, trials.is_over) == (0, True)


async def test_a_pause_of_all_processes_is_not_waited_for(mock_clock: MockClock) -> None:
    send, receive = trio.open_memory_channel[Answer | Ended](1)
    answers: list[Answer | Ended | None] = []

    async def wait() -> None:
        answers.append(await answer_in_time(receive, 2.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        mock_clock.jump(1000.0)
        await wait_all_tasks_blocked()
        send.send_nowait(Trying(1, 2))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for _ in range(25):
            await wait_all_tasks_blocked()
            mock_clock.jump(0.1)
    assert answers == [Trying(1, 2), None]


async def test_stopping_and_cancelling_leave_no_child(archive: Path) -> None:
    before = children()
    stop = trio.Event()
    stop.set()
    trials = await tried(archive, stop=stop)
    assert trials.survived | set(trials.died) < set(JOBS)
    assert children() == before
    with trio.CancelScope() as scope:
        scope.cancel()
        await tried(archive)
    assert children() == before


async def test_cancelling_ends_the_validation_of_modules(tmp_path: Path) -> None:
    before = children()
    started, program = tmp_path / "started", tmp_path / "spirv-val"
    program.write_text(f"#!/bin/sh\ntouch {started}\nexec sleep 3600\n")
    program.chmod(0o700)
    limits = ValidationLimits(wall_s=3600.0)

    def validate(group: ChildGroup) -> None:
        validate_modules([(1, b"")], str(program), limits=limits, children=group)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_with_children, validate)
            while not started.exists():
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert nursery.cancel_scope.cancelled_caught
    assert children() == before


async def test_an_error_of_what_has_children_is_raised_alone() -> None:
    def fail(group: ChildGroup) -> None:
        raise DeviceError("of the function")

    with pytest.raises(DeviceError, match="of the function"):
        await run_with_children(fail)


def test_the_usual_time_limit_is_longer_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, own = TrialLimits(), TrialLimits(pipeline_s=5.0)
    monkeypatch.setattr("orchestrator.run.options.available_workers", lambda: 2)
    found = []
    for load in (0.1, 2.0, 5.0, 1000.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        found.append((usual.limit_now_s(), usual.limit_now_s(10**10), own.limit_now_s(10**10)))
    assert found == [(60, 200, 5), (60, 200, 5), (150, 500, 5), (600, 2000, 5)]

    def unknown() -> NoReturn:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", unknown)
    assert usual.limit_now_s() == 60
