"""Runs over the simulated device: outcomes, topologies, libraries, failures, ownership."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_OUT_OF_HOST_MEMORY,
    ERROR_UNKNOWN,
    CreationBatch,
    PipelineSource,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import (
    CacheOperation,
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_image,
)
from orchestrator.errors import ExternalSynchronizationError
from orchestrator.run.binaries import HeldPipelines
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeRecorder, OutcomeStatus
from orchestrator.schedule.options import Order, ScheduleOptions
from tests.run.support import (
    RefusingDevice,
    check_sums,
    losing_device,
    prepared_set,
    without,
)


async def test_without_the_feature_per_worker_falls_back_and_says_so() -> None:
    device = SimulatedDevice(without(externally_synchronized_caches=False))
    report = await run_pipelines(
        device, prepared_set(device), RunOptions(workers=2, mode=CacheMode.PER_WORKER)
    )
    assert report.compiled == 300
    assert any("pipelineCreationCacheControl" in note for note in report.notes)


async def test_without_feedback_nothing_counts_as_a_hit() -> None:
    device = SimulatedDevice(without(creation_feedback=False))
    prepared = prepared_set(device)
    primary = device.create_pipeline_cache()
    for _ in range(2):
        report = await run_pipelines(device, prepared, RunOptions(workers=2), primary=primary)
        check_sums(report)
        assert report.compiled == 300
        assert report.timing.driver_ns == sum(call.wall_ns for call in report.calls)
        assert int(report.pipelines.driver_ns.sum()) == report.timing.driver_ns
        assert any("no creation feedback" in note for note in report.notes)


async def test_failures_are_outcomes_with_the_name_of_the_result() -> None:
    bugs = DriverBugs(results={7: ERROR_OUT_OF_HOST_MEMORY, 100: ERROR_UNKNOWN})
    device = SimulatedDevice(SimulatedOptions(bugs=bugs, unusable={0: "module 12 is missing"}))
    prepared = prepared_set(device, libraries={20: [0], 21: [7], 22: [21]})
    report = await run_pipelines(device, prepared, RunOptions(workers=2))
    check_sums(report)
    assert {each.index: each.reason for each in report.failed} == {
        0: "module 12 is missing",
        7: "VK_ERROR_OUT_OF_HOST_MEMORY",
        20: "links pipeline 0000000000000000, which was not created: module 12 is missing",
        21: "links pipeline 0000000000000007, which was not created: VK_ERROR_OUT_OF_HOST_MEMORY",
        22: "links pipeline 0000000000000015, which was not created: VK_ERROR_OUT_OF_HOST_MEMORY",
        100: "VK_ERROR_UNKNOWN",
    }
    assert [each.key for each in report.failed] == [each.index for each in report.failed]
    assert report.compiled == 294
    assert report.counts(PipelineKind.GRAPHICS)[OutcomeStatus.FAILED] == 6
    assert report.pipelines.row(7).status is OutcomeStatus.FAILED


async def test_a_call_that_fails_as_a_whole_costs_only_the_pipeline_to_blame() -> None:
    device = RefusingDevice({3: ERROR_OUT_OF_HOST_MEMORY, 200: ERROR_UNKNOWN})
    prepared = prepared_set(device, libraries={100: [3]})
    options = RunOptions(workers=2, schedule=ScheduleOptions(hit_share=1.0))
    report = await run_pipelines(device, prepared, options)
    check_sums(report)
    assert [each.index for each in report.failed] == [3, 100, 200]
    assert "vkCreateGraphicsPipelines" in report.failed[0].reason
    assert "links pipeline 0000000000000003" in report.failed[1].reason
    assert report.compiled == 297
    assert set(device.compile_counts.values()) == {1}


@pytest.mark.parametrize("device", [losing_device(0), RefusingDevice({0: ERROR_DEVICE_LOST})])
async def test_a_lost_device_ends_the_run_with_a_report(device: SimulatedDevice) -> None:
    options = RunOptions(workers=1, schedule=ScheduleOptions(order=Order.GIVEN))
    report = await run_pipelines(device, prepared_set(device), options)
    check_sums(report)
    counts = report.counts()
    assert counts[OutcomeStatus.NOT_RUN] > 0
    assert counts[OutcomeStatus.FAILED] + counts[OutcomeStatus.NOT_RUN] == 300
    assert report.stopped
    assert report.device_lost
    assert any("device was lost" in note for note in report.notes)
    assert device.live_caches == 0


async def test_using_the_cache_beside_the_run_is_an_error_of_the_caller() -> None:
    # The one way to break external synchronization is a caller who uses a flagged primary meanwhile:
    # the merge finds it in use.
    device = SimulatedDevice()
    primary = device.create_pipeline_cache(externally_synchronized=True)
    with pytest.raises(ExternalSynchronizationError), primary.using("the caller's own use"):
        await run_pipelines(device, prepared_set(device), RunOptions(workers=2), primary=primary)
    assert device.live_caches == 1


async def test_refused_initial_data_is_a_note_and_an_empty_start() -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(create_fails_on_bad_data=True)))
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=2), primary=b"damaged" * 20)
    assert report.compiled == 300
    assert any("refused the initial data" in note for note in report.notes)
    assert device.live_caches == 0


@pytest.mark.parametrize("operation", [CacheOperation.MERGE, CacheOperation.READ])
async def test_a_refused_merge_or_read_back_does_not_lose_the_report(operation: CacheOperation) -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(out_of_memory_operations={operation})))
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=2))
    assert report.compiled == 300
    assert report.merge is not None
    assert any("VK_ERROR_OUT_OF_HOST_MEMORY" in each for each in (*report.merge.warnings, *report.notes))
    assert (report.cache_data is None) == (operation is CacheOperation.READ)
    assert device.live_caches == 0


@pytest.mark.parametrize("mode", list(CacheMode))
async def test_an_empty_set_is_a_run_too(mode: CacheMode) -> None:
    device = SimulatedDevice()
    report = await run_pipelines(
        device, device.prepare(simulated_image([])), RunOptions(workers=3, mode=mode)
    )
    check_sums(report)
    assert len(report) == 0
    assert len(report.calls) == 0


@pytest.mark.parametrize(
    ("mode", "kind", "complaint"),
    [
        (CacheMode.NONE, "flagged", "no cache"),
        (CacheMode.NONE, "data", "no cache"),
        (CacheMode.SHARED, "flagged", "internally synchronized"),
        (CacheMode.TWO_LEVEL, "flagged", "two-level.*internally synchronized"),
        (CacheMode.BINARIES, "flagged", "another kind"),
        (CacheMode.BINARIES, "data", "no data"),
        (CacheMode.SHARED, "binaries", "another kind"),
    ],
)
async def test_a_primary_that_the_mode_cannot_use_is_refused(
    mode: CacheMode, kind: str, complaint: str
) -> None:
    device = SimulatedDevice()
    primaries: dict[str, bytes | PipelineSource] = {
        "flagged": device.create_pipeline_cache(externally_synchronized=True),
        "data": b"data",
        "binaries": HeldPipelines.of(device),
    }
    with pytest.raises(ValueError, match=complaint):
        await run_pipelines(device, prepared_set(device), RunOptions(mode=mode), primary=primaries[kind])


VALID, HIT = 1, 3


def batch(*flags: int, results: tuple[int, ...] | None = None) -> CreationBatch:
    count = len(flags)
    return CreationBatch(
        results=np.array(results or (0,) * count, np.int32),
        feedback_flags=np.array(flags, np.uint32),
        durations_ns=np.zeros(count, np.uint64),
        handles=np.zeros(count, np.uint64),
    )


def statuses(recorder: OutcomeRecorder) -> list[OutcomeStatus]:
    return [tuple(OutcomeStatus)[code] for code in recorder.table.status]


def record(recorder: OutcomeRecorder, indices: list[int], outcome: CreationBatch) -> None:
    recorder.record(np.array(indices, np.int32), outcome)


@pytest.mark.parametrize(
    ("libraries", "link", "expected"),
    [
        ((HIT, HIT), 0, OutcomeStatus.CACHE_HIT),
        ((HIT, VALID), 0, OutcomeStatus.COMPILED),
        ((VALID, VALID), 0, OutcomeStatus.COMPILED),
        ((HIT, HIT), VALID, OutcomeStatus.COMPILED),  # the driver says that it compiled
        ((VALID, VALID), HIT, OutcomeStatus.CACHE_HIT),
    ],
)
def test_a_link_without_feedback_is_what_its_libraries_were(
    libraries: tuple[int, int], link: int, expected: OutcomeStatus
) -> None:
    image = simulated_image([10, 11, 12], kinds=[PipelineKind.GRAPHICS] * 3, libraries={12: [10, 11]})
    recorder = OutcomeRecorder(image)
    record(recorder, [0, 1], batch(*libraries))
    record(recorder, [2], batch(link))
    assert statuses(recorder)[2] is expected


@pytest.mark.parametrize(
    ("modules", "results", "expected"),
    [({11: [5]}, (0,), OutcomeStatus.COMPILED), ({}, (-1,), OutcomeStatus.FAILED)],
    ids=["stages of its own", "refused"],
)
def test_a_link_without_feedback_is_no_hit_where_it(
    modules: dict[int, list[int]], results: tuple[int, ...], expected: OutcomeStatus
) -> None:
    image = simulated_image(
        [10, 11], kinds=[PipelineKind.GRAPHICS] * 2, libraries={11: [10]}, modules=modules
    )
    recorder = OutcomeRecorder(image)
    record(recorder, [0], batch(HIT))
    record(recorder, [1], batch(0, results=results))
    assert statuses(recorder) == [OutcomeStatus.CACHE_HIT, expected]
