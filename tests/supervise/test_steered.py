"""A compile that is steered: through deaths of its process, and beside a time limit."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from orchestrator.devices.modes import CacheMode
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import SimulatedDevice, SimulatedOptions
from orchestrator.run.commands import Budget, Cancel, Promote, key_texts
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import CompileOptions, RunOptions, TrialLimits
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.steering import Settlement, Steering
from orchestrator.supervise.supervisor import compile_supervised
from tests.run.small_sets import MARKER, compute_keys, opener, write_applications, write_small_set
from tests.run.support import prepared_set

KEYS = compute_keys()[:12]


@opener
def open_deadly(key: int) -> None:
    """One pipeline ends the process."""
    if key == KEYS[4]:
        signal.raise_signal(signal.SIGSEGV)


async def test_what_was_said_holds_for_the_process_that_comes_after_a_death(tmp_path: Path) -> None:
    archive = tmp_path / "set.foz"
    write_small_set(archive, 0, 12)
    told: list[Settlement] = []
    steering = Steering(on_settled=told.append, steered=True)
    steering.send(Promote(pipelines=key_texts([KEYS[0]])))
    steering.send(Budget(seconds=0))
    options = CompileOptions(
        mode="per-worker", workers=1, trial_limits=TrialLimits(opener=f"{__name__}:open_deadly")
    )
    stages: list[str] = []

    async def steer() -> None:
        await steering.send(Cancel(pipelines=key_texts([KEYS[9]])))()
        steering.send(Budget(seconds=1e-9))  # one begins
        while not any(each.outcomes[OutcomeStatus.COMPILED] for each in told):
            await trio.sleep(0.01)
        await steering.send(Promote(pipelines=key_texts([KEYS[4]])))()
        steering.send(Budget(seconds=1e-9))  # the deadly one
        while not any("trying one pipeline alone" in each for each in stages):
            await trio.sleep(0.01)
        # What the process compiled before it died is not cancelled.
        await steering.send(Cancel(pipelines=key_texts([KEYS[0], KEYS[2]])))()
        await steering.send(Budget(seconds=None))()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(steer)
        report = await compile_supervised(
            [str(archive)], options, cache_directory=tmp_path / "cache", stop=steering, on_stage=stages.append
        )
    assert report.supervision is not None
    assert report.supervision.processes == 2
    assert [each.key for each in report.failed] == [KEYS[4]]
    left_out = {KEYS[2], KEYS[9]}
    assert {each.key for each in report.of_status(OutcomeStatus.NOT_RUN)} == left_out
    assert not report.stopped
    assert {key for each in told for key in each.outcomes[OutcomeStatus.NOT_RUN]} == left_out
    assert [key for each in told for key in each.outcomes[OutcomeStatus.FAILED]] == [KEYS[4]]
    assert [*next(filter(None, (each.outcomes[OutcomeStatus.COMPILED] for each in told)))] == [KEYS[0]]
    compiled = [key for each in told for key in each.outcomes[OutcomeStatus.COMPILED]]
    assert sorted(compiled) == sorted(set(KEYS) - left_out - {KEYS[4]})


def test_a_budget_begins_in_each_of_several_compiles_when_it_can() -> None:
    steering = Steering(steered=True)
    one, other = steering.beside(), steering.beside()
    steering.send(Budget(seconds=1e-9))
    assert one.until_ns() is not None
    assert one.in_effect() == (Budget(seconds=0),)
    assert other.in_effect() == (Budget(seconds=1e-9),)
    steering.send(Budget(seconds=2))
    assert one.in_effect() == (Budget(seconds=2),)


@opener
def open_all_deadly(_: int) -> None:
    """Every pipeline ends the process."""
    signal.raise_signal(signal.SIGSEGV)


async def test_after_many_deaths_nothing_cancelled_is_tried(tmp_path: Path) -> None:
    archive = tmp_path / "set.foz"
    write_small_set(archive, 0, 12)
    steering = Steering(steered=True)
    steering.send(Cancel(pipelines=key_texts(KEYS[:7])))
    options = CompileOptions(
        mode="per-worker", workers=1, trial_limits=TrialLimits(opener=f"{__name__}:open_all_deadly")
    )
    report = await compile_supervised([str(archive)], options, stop=steering)
    assert {each.key for each in report.failed} == set(KEYS[7:])
    assert {each.key for each in report.of_status(OutcomeStatus.NOT_RUN)} == set(KEYS[:7])


def open_second_dying(request: DeviceRequest) -> SimulatedDevice:
    """The second application's device ends the first process that compiles with it."""
    marker = Path(os.environ[MARKER])

    def on_compile(_: int) -> None:
        if request.application.application_name == "two" and not marker.exists():
            marker.touch()
            os.abort()

    return SimulatedDevice(SimulatedOptions(request=request, on_compile=on_compile))


async def test_after_a_death_each_application_is_told_its_pipelines(tmp_path: Path, marker: Path) -> None:
    archive = write_applications(tmp_path / "groups.foz")
    told: list[Settlement] = []
    limits = TrialLimits(opener=f"{__name__}:open_second_dying")
    options = CompileOptions(workers=1, mode=CacheMode.NONE, open_ahead=False, trial_limits=limits)
    steering = Steering(on_settled=told.append, steered=True)
    report = await compile_supervised([str(archive)], options, stop=steering)
    assert report.supervision is not None
    assert report.supervision.processes == 2
    counts = Counter(key for each in told for key in each.outcomes[OutcomeStatus.COMPILED])
    assert len(counts) == 2
    assert set(counts.values()) == {2}


async def steered_run(steering: Steering, **options: Any) -> Any:
    device = SimulatedDevice()
    report = await run_pipelines(
        device, prepared_set(device, 30), RunOptions(workers=2, **options), stop=steering
    )
    device.close()
    return report


@pytest.mark.parametrize("limit_s", [0.01, None])
async def test_a_run_that_waits_for_time_ends_with_its_time_limit_or_a_stop(limit_s: float | None) -> None:
    steering = Steering(steered=True)
    steering.send(Budget(seconds=0))

    async def stop() -> None:
        await trio.testing.wait_all_tasks_blocked(0.05)
        steering.stop.set()

    async with trio.open_nursery() as nursery:
        if limit_s is None:
            nursery.start_soon(stop)
        report = await steered_run(steering, time_limit_s=limit_s)
    assert report.stopped
    assert report.counts()[OutcomeStatus.NOT_RUN] == 30


async def test_cancelling_all_that_is_left_ends_a_run_that_waits() -> None:
    steering = Steering(steered=True)
    steering.send(Budget(seconds=0))
    steering.send(Cancel(pipelines=key_texts(range(30))))
    report = await steered_run(steering)
    assert report.counts()[OutcomeStatus.NOT_RUN] == 30
    assert not report.stopped
