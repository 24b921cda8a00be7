"""The schedule of a compile.

Whom the driver is asked about, what its answers save, and that a schedule of recorded costs is one.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import trio
from attrs import evolve

from orchestrator.bench.take import run_order
from orchestrator.devices import open_device
from orchestrator.devices.device import CacheMode, Device, PreparedPipelines
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import (
    CostModel,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_image,
)
from orchestrator.errors import DriverError
from orchestrator.run import compile as compile_module
from orchestrator.run.compile import CompileSchedule, _sample_size
from orchestrator.run.execution import run_pipelines, scheduler_of
from orchestrator.run.options import BARRIER, MergePolicy, PipelineKeyUse, RunOptions
from orchestrator.run.records import OutcomeStatus, Progress, RunReport
from orchestrator.schedule import Assignment, ScheduleOptions, Scheduler
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.image.repeated import repeat_pipelines
from orchestrator.sets.pipeline_set import PipelineSet
from orchestrator.sets.sample import sample_path
from tests.drivers import Corpus, each_good_corpus
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


def test_of_very_many_some_are_asked_first() -> None:
    """Where no two of those have one key, the rest is not asked."""
    image = simulated_image(range(9_000), modules={key: [0] for key in range(9_000)})
    for alike, use, count in (
        (0, PipelineKeyUse.AUTO, 1_792),
        (0, PipelineKeyUse.ALL, 9_000),
        (20, PipelineKeyUse.AUTO, 9_000),
    ):
        device = AskedDevice(alike=alike)
        schedule = schedule_of(image)
        schedule.ask_keys(device, device.prepare(image), use)
        assert sorted(device.asked) == list(range(count))
        assert schedule.notes == [
            "no two of 1792 pipelines have one pipeline key, so the driver was not asked for those of 7208 "
            "more"
        ] * (count == 1_792)


def test_keys_that_all_differ_are_no_part_of_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []

    def noted(image: CreateInfoImage, workers: int, options: ScheduleOptions, **known: Any) -> Scheduler:
        given.append(known["pipeline_keys"] is not None)
        return scheduler_of(image, workers, options, **known)

    monkeypatch.setattr(compile_module, "scheduler_of", noted)
    for alike in (0, 20):
        device, schedule = AskedDevice(alike=alike), schedule_of()
        schedule.ask_keys(device, device.prepare(IMAGE), PipelineKeyUse.ALL)
        schedule.scheduler()
    assert given == [False, True]


def test_a_sample_of_pairs_holds_some_whatever_their_number() -> None:
    """Of 3 % pairs, at least four are in the sample on average, and not many more."""
    for count in (10_200, 65_280, 1_000_000):
        sample = _sample_size(count)
        assert sample % 256 == 0
        assert 4 <= 0.03 * sample**2 / (2 * count) < 5
        assert 2 * sample < count
    assert 2 * _sample_size(1_000) > 1_000  # all of them are asked for


def test_why_keys_are_withheld_is_told_where_they_would_be_asked_for() -> None:
    features = evolve(simulated_features(pipeline_binaries=False), keys_withheld="a layer is too old")
    device = AskedDevice(SimulatedOptions(features=features))
    for use, workers, told in (
        (PipelineKeyUse.ALL, 1, True),
        (PipelineKeyUse.AUTO, 2, True),
        (PipelineKeyUse.AUTO, 1, False),
        (PipelineKeyUse.OFF, 2, False),
    ):
        schedule = schedule_of(workers=workers)
        schedule.ask_keys(device, device.prepare(IMAGE), use)
        assert schedule.notes == ["the driver was asked for no pipeline keys: a layer is too old"] * told
    assert device.asked == []


def test_a_stop_ends_the_asking() -> None:
    stop = trio.Event()
    stop.set()
    device = AskedDevice()
    schedule_of().ask_keys(device, device.prepare(IMAGE), PipelineKeyUse.AUTO, stop)
    assert device.asked == []


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


def test_recorded_costs_are_the_order_and_estimates_fill_the_gaps() -> None:
    recorded = np.full(30, 1_000_000, np.int64)
    recorded[4] = 0
    recorded[[7, 3, 25]] = [3_000_000_000, 2_000_000_000, 1_000_000_000]
    device = SimulatedDevice(
        SimulatedOptions(cost=CostModel.mapped({int(key): 1_000_000 for key in IMAGE.keys}))
    )
    report = run(device, IMAGE, schedule_of(recorded_ns=recorded, workers=1))
    order = [index for call in report.calls for index in call.indices.tolist()]
    assert order[:3] == [7, 3, 25]
    assert sorted(order) == list(range(30))


@pytest.mark.parametrize(("warm", "batch", "largest"), [(True, 3, 3), (False, 3, 3), (True, None, 30)])
def test_a_batch_that_is_given_bounds_all_batches(warm: bool, batch: int | None, largest: int) -> None:
    image = simulated_image(range(400))
    cost = CostModel.mapped(dict.fromkeys(range(400), 1000))
    device = SimulatedDevice(SimulatedOptions(cost=cost))
    held = np.ones(400, np.bool_) if warm else None
    report = run(device, image, schedule_of(image, workers=1, held=held, batch=batch))
    assert max(len(call.indices) for call in report.calls) >= largest
    assert batch is None or max(len(call.indices) for call in report.calls) == batch


def test_a_time_limit_makes_batches_small() -> None:
    image = simulated_image(range(1000))
    recorded = np.full(1000, 1_000_000)

    def largest(limit_s: float | None) -> int:
        schedule = schedule_of(image, workers=1, recorded_ns=recorded, time_limit_s=limit_s)
        made = schedule.scheduler()
        sizes = []
        while isinstance(answer := made.request(0), Assignment):
            sizes.append(len(answer.indices))
            made.finished(0, answer, compiles=sizes[-1], elapsed_ns=1_000_000 * sizes[-1])
        return max(sizes)

    assert largest(None) >= 190
    assert largest(0.5) in (24, 25)
    assert largest(0.001) in (4, 5)


def test_with_a_time_limit_one_short_compile_is_no_reason_for_long_batches() -> None:
    image = simulated_image(range(64))
    recorded = np.full(64, 60_000_000_000)
    made = schedule_of(image, workers=1, recorded_ns=recorded, time_limit_s=1000.0).scheduler()
    made.set_deadline(1e12)
    sizes = []
    for _ in range(8):
        answer = made.request(0)
        assert isinstance(answer, Assignment)
        sizes.append(len(answer.indices))
        made.finished(0, answer, compiles=sizes[-1], elapsed_ns=7_000_000 * sizes[-1])
    assert sizes == [1] * 8
    answer = made.request(0)
    assert isinstance(answer, Assignment)
    assert len(answer.indices) > 1, "eight say enough"


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


@pytest.mark.parametrize("workers", [1, 3])
def test_a_cache_is_not_rotated_before_the_duplicates_of_what_it_holds(workers: int) -> None:
    image = repeat_pipelines(simulated_image(range(60)), np.repeat(np.arange(60), 2).astype(np.int32))
    device = SimulatedDevice()
    report = run(device, image, schedule_of(image, workers=workers), merge=EACH_BATCH)
    assert report.merge is not None
    assert report.merge.rolling is not None
    assert report.merge.rolling.caches > 0
    assert (report.compiled, report.cache_hits) == (60, 60)
    assert set(device.compile_counts.values()) == {1}


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


def test_nothing_is_saved_where_the_cache_held_it_all() -> None:
    image = repeat_pipelines(simulated_image(range(50)), np.repeat(np.arange(50), 2).astype(np.int32))
    device = SimulatedDevice()
    prepared = device.prepare(image)

    async def main() -> RunReport:
        cold = await run_pipelines(device, prepared, RunOptions(workers=2))
        schedule.held = np.ones(100, np.bool_)
        return await run_pipelines(
            device,
            prepared,
            RunOptions(workers=2),
            primary=cold.cache_data or b"",
            scheduler=schedule.scheduler(),
        )

    schedule = schedule_of(image)
    report = trio.run(main)
    assert report.cache_hits == 100
    assert schedule.savings(report).by_state_key == 0
    assert not schedule.compile_times(report).any()


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


@pytest.mark.driver(NAVI21)
@each_good_corpus
async def test_radv_compiles_each_pipeline_key_once(corpus: Corpus) -> None:
    auto, everything = [
        await compiled(corpus.path, selector=NAVI21, workers=4, pipeline_keys=use)
        for use in (PipelineKeyUse.AUTO, PipelineKeyUse.ALL)
    ]
    # Asking about those of one code alone finds all that asking about everybody does.
    assert auto.counts()[OutcomeStatus.COMPILED] == everything.counts()[OutcomeStatus.COMPILED]
    assert auto.saved.by_pipeline_key == everything.saved.by_pipeline_key
    assert auto.saved.keys_asked <= everything.saved.keys_asked
    assert auto.counts()[OutcomeStatus.CACHE_HIT] == auto.saved.by_pipeline_key


async def test_the_time_to_go_is_told_once_it_is_known() -> None:
    told = threading.Event()
    compiling: list[int] = []
    seen: list[Progress] = []

    def hold(key: int) -> None:
        # One with others behind it does not end before a time was told, however long that takes.
        if len(compiling) == 20:
            assert told.wait(60)
        compiling.append(key)

    def progress(one: Progress) -> None:
        seen.append(one)
        if one.eta_s is not None:
            told.set()

    opener = Opener(options={"on_compile": hold})
    started = time.perf_counter_ns()
    report = await compiled(
        sample_path(), opener=opener, workers=1, mode=CacheMode.SHARED, on_progress=progress
    )
    ended = time.perf_counter_ns()
    known = [each for each in seen if each.eta_s is not None]
    assert any(0 < each.done < each.total for each in known)
    assert all(each.eta_s >= 0 for each in known if each.eta_s is not None)
    # Whatever a stage took, it took it while the set was compiled.
    assert {"open", "prepare"} <= {stage.name for stage in report.stages}
    for stage in report.stages:
        assert started <= stage.start_ns <= stage.start_ns + stage.duration_ns <= ended


@pytest.mark.driver(NAVI21)
async def test_keys_asked_after_a_run_leave_out_what_links_libraries() -> None:
    """RADV dies of SIGSEGV where it is asked for the key of a graphics pipeline with libraries."""
    runs = (await compiled(sample_path(), selector=NAVI21, count_duplicate_pipeline_keys=True)).runs
    assert runs
    for merge in [each.merge for each in runs]:
        assert merge is not None
        assert merge.duplicate_pipeline_keys is not None


async def test_a_time_limit_is_told_while_calls_are_in_flight(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_flight, told, stages = trio.Event(), threading.Event(), list[str]()
    sleep, token = trio.sleep, trio.lowlevel.current_trio_token()

    async def until_a_call_is_in_flight(seconds: float) -> None:
        await (in_flight.wait() if seconds > LIMIT_S / 2 else sleep(seconds))

    def hold(_key: int) -> None:
        token.run_sync_soon(in_flight.set)
        assert told.wait(LIMIT_S)

    def on_stage(stage: str) -> None:
        stages.append(stage)
        if "time limit" in stage:
            told.set()

    monkeypatch.setattr(trio, "sleep", until_a_call_is_in_flight)
    opener = Opener(options={"on_compile": hold})
    await compiled(archive, opener=opener, workers=1, time_limit_s=LIMIT_S, on_stage=on_stage)
    assert stages[-1] == "the time limit is reached: waiting for the driver calls in flight"


async def test_a_time_limit_that_is_not_reached_is_not_told(archive: Path) -> None:
    stages: list[str] = []
    with trio.fail_after(LIMIT_S / 2):  # nor waited for
        report = await compiled(
            archive, opener=Opener(), workers=1, time_limit_s=LIMIT_S, on_stage=stages.append
        )
    assert not report.out_of_time
    assert not any("time limit" in each for each in stages)
