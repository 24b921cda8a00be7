"""Trials in child processes: one pipeline at a time; whatever ends a child is named, and no child is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio

from orchestrator.children.parent import ChildGroup
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.errors import ArchiveError, DeviceError
from orchestrator.run.options import CompileOptions, TrialLimits
from orchestrator.run.vetting import Trials, run_with_children
from orchestrator.sets.records import PipelineJob
from orchestrator.sets.spirv.validation import ValidationLimits, validate_modules
from orchestrator.supervise import trial
from orchestrator.supervise.trial import try_pipelines
from tests.run.small_sets import MARKER, compute_keys, opener
from tests.supervise.processes import children

KEYS = compute_keys()[:6]
JOBS = [PipelineJob(key, PipelineKind.COMPUTE) for key in KEYS]


@opener
def open_slow(_: int) -> None:
    """A pipeline takes a second."""
    time.sleep(1.0)


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


async def tried(archive: Path, name: str = "", stop: trio.Event | None = None) -> Trials:
    limits = TrialLimits(opener=f"{__name__}:{name}" if name else "")
    options = CompileOptions(mode="per-worker", selector="simulated", trial_limits=limits)
    return await try_pipelines([str(archive)], JOBS, options, DeviceRequest(), stop)


async def test_a_process_that_does_not_get_ready_is_followed_by_another_one(
    archive: Path, marker: Path
) -> None:
    trials = await tried(archive, "open_dying_once")
    assert trials.survived == set(JOBS)
    assert trials.processes == 2
    with pytest.raises(DeviceError, match="did not get ready: signal 6"):
        await tried(archive, "open_dying")


async def test_a_child_that_cannot_open_the_device_is_an_error(archive: Path) -> None:
    with pytest.raises(DeviceError, match="none here"):
        await tried(archive, "open_nothing")
    with pytest.raises(ArchiveError, match="cannot be opened"):
        await tried(archive.with_name("nothing.foz"))


async def test_a_pipeline_that_waits_for_a_processor_is_not_to_blame(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a quota: it takes many times its limit, and most of that without a processor."""
    limits = TrialLimits(pipeline_s=0.2, opener=f"{__name__}:open_slow")
    options = CompileOptions(mode="per-worker", selector="simulated", trial_limits=limits)
    died = (await try_pipelines([str(archive)], JOBS[:1], options, DeviceRequest())).died
    assert "did not come back from it within 0.2 s" in died[JOBS[0]]
    monkeypatch.setattr(trial, "waited_ns", lambda _: time.monotonic_ns())
    assert (await try_pipelines([str(archive)], JOBS[:1], options, DeviceRequest())).died == {}


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
