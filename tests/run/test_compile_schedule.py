"""The schedule of a compile: whom the driver is asked about, and what its answers save."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import trio

from orchestrator.bench.take import run_order
from orchestrator.devices.device import (
    Device,
    PreparedPipelines,
)
from orchestrator.devices.identified import of_image
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.opening import open_device
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import CostModel, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.errors import DriverError
from orchestrator.run.compile_schedule import CompileSchedule
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import BARRIER, MergePolicy, PipelineKeyUse, RunOptions
from orchestrator.run.records import OutcomeStatus, RunReport
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.rearranged import repeat_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.run.support import EACH_BATCH, identified, without

NAVI21 = "radv:navi21"
# Pipelines 0..9 have the code of 10..19, 20..29 have code of their own.
IMAGE = simulated_image(range(30), modules={key: [key % 10 if key < 20 else key] for key in range(30)})
ALIKE = list(range(20))
AUTO, ALL, OFF = PipelineKeyUse
HALF = np.where(np.arange(30) % 2 == 0, 1_000_000, 0)


class AskedDevice(SimulatedDevice):
    """Remembers whom it was asked about; the first pipelines have ten keys, each other one has its own."""

    def __init__(self, options: SimulatedOptions | None = None) -> None:
        super().__init__(options)
        self.asked: list[int] = []
        self.error: Exception | None = None

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        if self.error is not None:
            raise self.error
        self.asked += indices.tolist()
        return [b"%d" % (index % 10 if index < 20 else index) for index in indices.tolist()]


def schedule_of(device: Device, image: CreateInfoImage = IMAGE, **options: Any) -> CompileSchedule:
    options = {"mode": CacheMode.PER_WORKER, "workers": 2, **options}
    recorded_ns = options.pop("recorded_ns", np.zeros(len(image), np.int64))
    return CompileSchedule(device.prepare(image), recorded_ns=recorded_ns, **options)


def run(device: Device, schedule: CompileSchedule, merge: MergePolicy = BARRIER) -> RunReport:
    options = RunOptions(workers=schedule.workers, mode=schedule.mode, merge=merge)

    async def main() -> RunReport:
        return await run_pipelines(device, schedule.prepared, options, scheduler=schedule.scheduler())

    return trio.run(main)


@pytest.mark.parametrize(
    ("use", "options", "asked"),
    [
        (AUTO, {}, ALIKE),  # only those of one code
        (ALL, {}, list(range(30))),
        (OFF, {}, []),
        (AUTO, {"held": HALF > 0, "recorded_ns": HALF}, ALIKE[1::2]),  # not what a cache is believed to hold
        (AUTO, {"recorded_ns": HALF}, ALIKE),
        (AUTO, {"mode": CacheMode.NONE}, []),  # nothing can be saved
        (AUTO, {"workers": 1}, []),
        (ALL, {"workers": 1}, list(range(30))),
    ],
)
def test_those_are_asked_about_of_whom_it_may_save_compiles(
    use: PipelineKeyUse, options: dict[str, Any], asked: list[int]
) -> None:
    device = AskedDevice()
    schedule_of(device, **options).ask_keys(device, use)
    assert device.asked == asked


def test_nobody_is_asked_where_there_is_no_key_to_give() -> None:
    device = AskedDevice(without(pipeline_binaries=False))
    schedule_of(device).ask_keys(device, ALL)
    assert device.asked == []
    links = simulated_image([1, 2, 3], modules={1: [7], 2: [8], 3: [8]}, libraries={2: [1], 3: [1]})
    device = AskedDevice()
    schedule_of(device, links).ask_keys(device, ALL)
    assert device.asked == [0]


def test_a_driver_that_refuses_costs_nothing_but_a_note() -> None:
    device = AskedDevice()
    device.error = DriverError("vkGetPipelineKeyKHR", -13, "VK_ERROR_UNKNOWN")
    schedule = schedule_of(device)
    schedule.ask_keys(device, AUTO)
    assert "vkGetPipelineKeyKHR" in schedule.notes[0]
    assert run(device, schedule).compiled == 30


@pytest.mark.parametrize(("use", "count"), [(AUTO, 256), (ALL, 600)])
def test_a_driver_that_is_slow_to_answer_is_not_asked_to_the_end(
    use: PipelineKeyUse, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = AskedDevice()
    schedule = schedule_of(device, simulated_image(range(600), modules={key: [0] for key in range(600)}))
    ticks = iter(range(0, 100_000_000_000, 10_000_000_000))
    monkeypatch.setattr("orchestrator.run.compile_schedule.time.perf_counter_ns", lambda: next(ticks))
    schedule.ask_keys(device, use)
    assert len(device.asked) == count
    assert bool(schedule.notes) == (use is AUTO)


def test_the_same_state_is_compiled_once_and_counted() -> None:
    image = repeat_pipelines(simulated_image(range(200)), np.repeat(np.arange(200), 3).astype(np.int32))
    cost = CostModel.mapped(dict.fromkeys(range(200), 1000000))
    device = SimulatedDevice(SimulatedOptions(cost=cost))
    schedule = schedule_of(device, image, workers=8)
    report = run(device, schedule)
    savings = schedule.savings(report)
    assert report.compiled == 200
    assert (savings.by_state_key, savings.by_pipeline_key) == (400, 0)
    assert 0.9 * 400_000_000 < savings.driver_ns <= 400_000_000
    # What was found is known to cost what the first one took.
    times = schedule.compile_times(report).reshape(-1, 3)
    assert (times > 0).all()
    assert (times == times[:, :1]).all()


@pytest.mark.parametrize("by_identifier", [False, True], ids=["code", "identifiers"])
@pytest.mark.parametrize(("use", "found"), [(AUTO, 10), (OFF, 0)])
def test_what_is_the_same_to_the_driver_is_compiled_once_and_counted(
    use: PipelineKeyUse, found: int, by_identifier: bool
) -> None:
    """Also where a first run knows no identifier, and the set has the code that they are learned from."""
    same = {key: key % 10 for key in range(10, 20)}
    cost = CostModel.mapped(dict.fromkeys(range(30), 1000000))
    device = SimulatedDevice(SimulatedOptions(same_binary=same, cost=cost))
    schedule = schedule_of(device, workers=8)
    if by_identifier:
        schedule.prepared = device.prepare(identified(device, IMAGE, of_image(IMAGE), ()))
    schedule.ask_keys(device, use)
    report = run(device, schedule)
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
        schedule = schedule_of(device, image, workers=8)
        schedule.ask_keys(device, ALL)
        report = run(device, schedule, merge)
        alone = np.flatnonzero(np.diff(image.library_slot_start) == 0).astype(np.int32)
        unique = len(set(device.pipeline_keys(schedule.prepared, alone)))
        schedule.prepared.close()
    device.close()
    assert len(image) > 1.7 * len(plain)
    # What links libraries is made of what they are, and not compiled.
    status = [report.pipelines.row(index).status for index in alone.tolist()]
    assert set(status) == {OutcomeStatus.COMPILED, OutcomeStatus.CACHE_HIT}
    assert status.count(OutcomeStatus.COMPILED) == unique
    savings = schedule.savings(report)
    links = np.count_nonzero(np.diff(image.library_slot_start))
    assert savings.by_state_key >= len(image) - len(plain) - links
    assert savings.by_pipeline_key == len(np.unique(image.keys[alone])) - unique
