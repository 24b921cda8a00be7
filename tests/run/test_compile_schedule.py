"""The schedule of a compile.

Whom the driver is asked about, what its answers save, and that a schedule of recorded costs is one.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import trio

from orchestrator.bench.take import run_order
from orchestrator.devices import open_device
from orchestrator.devices.device import CacheMode, Device, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import (
    CostModel,
    SimulatedDevice,
    SimulatedOptions,
    simulated_image,
)
from orchestrator.errors import DriverError
from orchestrator.run.compile_schedule import CompileSchedule
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import BARRIER, MergePolicy, PipelineKeyUse, RunOptions
from orchestrator.run.records import OutcomeStatus, RunReport
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.rearranged import repeat_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.run.small_sets import Opener, compiled
from tests.run.support import EACH_BATCH, without

LIMIT_S = 60.0

NAVI21 = "radv:navi21"
# Pipelines 0..9 have the code of 10..19, 20..29 have code of their own.
IMAGE = simulated_image(range(30), modules={key: [key % 10 if key < 20 else key] for key in range(30)})
ALIKE = list(range(20))


class AskedDevice(SimulatedDevice):
    """Remembers whom it was asked about; the first pipelines have ten keys, each other one has its own."""

    def __init__(
        self, options: SimulatedOptions | None = None, error: Exception | None = None, alike: int = 20
    ) -> None:
        super().__init__(options)
        self.alike = alike
        self.asked: list[int] = []
        self.error = error

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        if self.error is not None:
            raise self.error
        self.asked += indices.tolist()
        return [b"%d" % (index % 10 if index < self.alike else index) for index in indices.tolist()]


def schedule_of(image: CreateInfoImage = IMAGE, **options: Any) -> CompileSchedule:
    options = {"mode": CacheMode.PER_WORKER, "workers": 2, **options}
    return CompileSchedule(
        image, recorded_ns=options.pop("recorded_ns", np.zeros(len(image), np.int64)), **options
    )


def asked(device: AskedDevice, use: PipelineKeyUse = PipelineKeyUse.AUTO, **options: Any) -> list[int]:
    schedule_of(**options).ask_keys(device, device.prepare(IMAGE), use)
    return device.asked


def test_only_those_of_one_code_are_asked_about() -> None:
    assert asked(AskedDevice()) == ALIKE
    assert asked(AskedDevice(), PipelineKeyUse.ALL) == list(range(30))
    assert asked(AskedDevice(), PipelineKeyUse.OFF) == []


def test_what_a_cache_is_believed_to_hold_is_not_asked_about() -> None:
    recorded = np.where(np.arange(30) % 2 == 0, 1_000_000, 0)
    assert asked(AskedDevice(), held=recorded > 0, recorded_ns=recorded) == ALIKE[1::2]
    assert asked(AskedDevice(), recorded_ns=recorded) == ALIKE


def test_nobody_is_asked_where_nothing_can_be_saved() -> None:
    assert asked(AskedDevice(), mode=CacheMode.NONE) == []
    assert asked(AskedDevice(), workers=1) == []
    assert asked(AskedDevice(), PipelineKeyUse.ALL, workers=1) == list(range(30))
    assert asked(AskedDevice(without(pipeline_binaries=False))) == []


def test_nobody_is_asked_who_links_libraries() -> None:
    image = simulated_image([1, 2, 3], modules={1: [7], 2: [8], 3: [8]}, libraries={2: [1], 3: [1]})
    device = AskedDevice()
    schedule_of(image).ask_keys(device, device.prepare(image), PipelineKeyUse.ALL)
    assert device.asked == [0]


def test_a_driver_that_refuses_costs_nothing_but_a_note() -> None:
    device = AskedDevice(error=DriverError("vkGetPipelineKeyKHR", -13, "VK_ERROR_UNKNOWN"))
    schedule = schedule_of()
    schedule.ask_keys(device, device.prepare(IMAGE), PipelineKeyUse.AUTO)
    assert "vkGetPipelineKeyKHR" in schedule.notes[0]
    assert run(device, IMAGE, schedule).compiled == 30


def test_a_driver_that_is_slow_to_answer_is_not_asked_to_the_end() -> None:
    image = simulated_image(range(600), modules={key: [0] for key in range(600)})
    device = AskedDevice()
    for use, count in ((PipelineKeyUse.AUTO, 256), (PipelineKeyUse.ALL, 600)):
        device.asked = []
        ticks = iter(range(0, 100_000_000_000, 10_000_000_000))
        schedule = schedule_of(image)
        schedule.ask_keys(device, device.prepare(image), use, clock_ns=lambda ticks=ticks: next(ticks))  # type: ignore[misc]
        assert len(device.asked) == count
        assert bool(schedule.notes) == (use is PipelineKeyUse.AUTO)


def run(
    device: Device,
    image: CreateInfoImage,
    schedule: CompileSchedule,
    prepared: PreparedPipelines | None = None,
    merge: MergePolicy = BARRIER,
) -> RunReport:
    async def main() -> RunReport:
        return await run_pipelines(
            device,
            prepared or device.prepare(image),
            RunOptions(workers=schedule.workers, mode=schedule.mode, merge=merge),
            scheduler=schedule.scheduler(),
        )

    return trio.run(main)


def test_the_same_state_is_compiled_once_and_counted() -> None:
    image = repeat_pipelines(simulated_image(range(200)), np.repeat(np.arange(200), 3).astype(np.int32))
    cost = CostModel.mapped(dict.fromkeys(range(200), 1000000))
    device = SimulatedDevice(SimulatedOptions(cost=cost))
    schedule = schedule_of(image, workers=8)
    report = run(device, image, schedule)
    savings = schedule.savings(report)
    assert report.compiled == 200
    assert (savings.by_state_key, savings.by_pipeline_key) == (400, 0)
    assert 0.9 * 400_000_000 < savings.driver_ns <= 400_000_000
    # What was found is known to cost what the first one took.
    times = schedule.compile_times(report).reshape(-1, 3)
    assert (times > 0).all()
    assert (times == times[:, :1]).all()


def test_what_is_the_same_to_the_driver_is_compiled_once_and_counted() -> None:
    same = {key: key % 10 for key in range(10, 20)}
    cost = CostModel.mapped(dict.fromkeys(range(30), 1000000))
    device = SimulatedDevice(SimulatedOptions(same_binary=same, cost=cost))
    for use, found in ((PipelineKeyUse.AUTO, 10), (PipelineKeyUse.OFF, 0)):
        schedule = schedule_of(workers=8)
        schedule.ask_keys(device, device.prepare(IMAGE), use)
        report = run(device, IMAGE, schedule)
        savings = schedule.savings(report)
        assert (savings.by_state_key, savings.by_pipeline_key) == (0, found)
        assert savings.keys_asked == 2 * found
        assert report.compiled == 20 if found else report.compiled >= 20


@pytest.mark.driver(NAVI21)
@pytest.mark.parametrize("merge", [BARRIER, EACH_BATCH], ids=["barrier", "each batch"])
def test_radv_compiles_each_state_once_over_eight_workers(merge: MergePolicy) -> None:
    """Half of the jobs are duplicates, and no more is compiled than without them."""
    device = open_device(NAVI21, request=DeviceRequest())
    with PipelineSet.open(sample_path()) as source:
        plain = build_image(source, source.pipelines, device.capabilities).image
        image = repeat_pipelines(plain, run_order(plain, duplicates=1.0))
        prepared = device.prepare(image)
        schedule = schedule_of(image, workers=8)
        schedule.ask_keys(device, prepared, PipelineKeyUse.ALL)
        report = run(device, image, schedule, prepared, merge)
        alone = np.flatnonzero(np.diff(image.library_slot_start) == 0).astype(np.int32)
        unique = len(set(device.pipeline_keys(prepared, alone)))
        prepared.close()
    device.close()
    assert len(image) > 1.7 * len(plain)
    # What links libraries is made of what they are, and not compiled.
    status = [report.pipelines.row(index).status for index in alone.tolist()]
    assert set(status) == {OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT}
    assert status.count(OutcomeStatus.COMPILED) == unique
    savings = schedule.savings(report)
    assert savings.by_state_key >= len(image) - len(plain) - np.count_nonzero(
        np.diff(image.library_slot_start)
    )
    assert savings.by_pipeline_key == len(np.unique(image.keys[alone])) - unique


async def test_a_time_limit_is_told_while_calls_are_in_flight(archive: Path) -> None:
    told, stages = threading.Event(), list[str]()

    def hold(_key: int) -> None:
        assert told.wait(LIMIT_S)

    def on_stage(stage: str) -> None:
        stages.append(stage)
        if "time limit" in stage:
            told.set()

    opener = Opener(options={"on_compile": hold})
    await compiled(archive, opener=opener, workers=1, time_limit_s=0.1, on_stage=on_stage)
    assert stages[-1] == "the time limit is reached: waiting for the driver calls in flight"


async def test_a_time_limit_that_is_not_reached_is_not_told(archive: Path) -> None:
    stages: list[str] = []
    with trio.fail_after(LIMIT_S / 2):  # nor waited for
        report = await compiled(
            archive, opener=Opener(), workers=1, time_limit_s=LIMIT_S, on_stage=stages.append
        )
    assert not report.out_of_time
    assert not any("time limit" in each for each in stages)
