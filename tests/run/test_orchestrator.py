"""Runs over the simulated device: outcomes, topologies, libraries, failures, ownership."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import trio

from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_OUT_OF_HOST_MEMORY,
    ERROR_UNKNOWN,
    NO_SOURCE,
    CacheMode,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.simulated import (
    CacheOperation,
    CostModel,
    CpuClock,
    DriverBugs,
    LockingStrategy,
    SimulatedDevice,
    SimulatedOptions,
    VirtualClock,
    simulated_image,
)
from orchestrator.errors import DriverError, ExternalSynchronizationError
from orchestrator.run.accounting import ThreadMeter
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus, Progress
from orchestrator.schedule import Order, ScheduleOptions
from tests.children.test_children import until
from tests.run.support import (
    MODES_WITH_CACHE,
    RefusingDevice,
    check_sums,
    hits_of,
    losing_device,
    prepared_set,
    without,
)


def chain(count: int) -> dict[int, list[int]]:
    """Libraries 0..9, linked by every tenth pipeline of the graphics ones, and a chain among them."""
    return {index: [index % 10] for index in range(10, count // 2, 7)} | {5: [4], 4: [0]}


@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
@pytest.mark.parametrize("workers", [1, 2, 5])
async def test_every_topology_leaves_the_same_keys_in_the_primary(mode: CacheMode, workers: int) -> None:
    device = SimulatedDevice()
    # This device fails a pipeline whose library does not exist.
    prepared = prepared_set(device, libraries=chain(300))
    primary = device.create_pipeline_cache()
    report = await run_pipelines(device, prepared, RunOptions(workers=workers, mode=mode), primary=primary)
    check_sums(report)
    assert report.compiled == 300
    assert sorted(np.concatenate([call.indices for call in report.calls]).tolist()) == list(range(300))
    assert report.mode is mode
    assert report.merge is not None
    assert report.merge.warnings == ()
    assert len(report.merge.source_bytes) == (0 if mode is CacheMode.SHARED else workers)
    assert report.merge.primary_bytes_after == device.pipeline_cache_size(primary)
    assert report.cache_data is None, "the primary is the caller's"
    assert set(device.compile_counts.values()) == {1}
    assert device.live_caches == 1
    assert await hits_of(device.pipeline_cache_data(primary).data) == 300
    again = await run_pipelines(device, prepared, RunOptions(workers=workers, mode=mode), primary=primary)
    check_sums(again)
    assert again.counts()[OutcomeStatus.CACHE_HIT] == 300


@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
async def test_only_a_shared_cache_makes_workers_wait_for_its_lock(mode: CacheMode) -> None:
    # The first to compile goes on when the other worker either waits for the lock or compiles beside it. Time
    # passes at that moment only, so it is known what a wait is.
    somebody_came = threading.Event()
    holds = threading.Lock()

    def meet(_key: int) -> None:
        if holds.acquire(blocking=False):
            until(lambda: device.waiting_for_locks == 1 or somebody_came.is_set())
            clock.advance(1000)
        else:
            somebody_came.set()

    clock = VirtualClock()
    device = SimulatedDevice(
        SimulatedOptions(locking=LockingStrategy.WHOLE_COMPILE, clock=clock, on_compile=meet)
    )
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=2, mode=mode))
    assert report.compiled == 300
    assert device.true_lock_wait_ns() == (1000 if mode is CacheMode.SHARED else 0)


async def test_mode_none_uses_no_cache() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device, libraries=chain(300))
    for _ in range(2):
        report = await run_pipelines(device, prepared, RunOptions(workers=2, mode=CacheMode.NONE))
        check_sums(report)
        assert report.compiled == sum(len(call.indices) for call in report.calls) == 300
        assert report.merge is None
        assert report.cache_data is None
    assert {call.cache for call in device.calls()} == {""}


@pytest.mark.parametrize("mode", MODES_WITH_CACHE)
async def test_a_primary_of_the_run_comes_back_as_data(mode: CacheMode) -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    first = await run_pipelines(device, prepared, RunOptions(workers=2, mode=mode))
    assert first.cache_data is not None
    second = await run_pipelines(device, prepared, RunOptions(workers=2, mode=mode), primary=first.cache_data)
    assert second.cache_hits == 300
    assert device.live_caches == 0


async def test_unseeded_workers_compile_again_and_the_merge_prunes() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    data = (await run_pipelines(device, prepared, RunOptions(workers=2))).cache_data or b""
    again = await run_pipelines(
        device, prepared, RunOptions(workers=2, seed_workers_from_primary=False), primary=data
    )
    assert again.compiled == 300
    merge = again.merge
    assert merge is not None
    assert merge.seed_bytes == 0
    assert merge.primary_bytes_before == merge.primary_bytes_after == len(data)
    assert merge.pruned_bytes == sum(merge.source_bytes) - 2 * 32 == len(data) - 32


@pytest.mark.parametrize("mode", [CacheMode.PER_WORKER, CacheMode.PER_WORKER_INTERNAL])
async def test_only_per_worker_asks_for_the_flag(mode: CacheMode) -> None:
    flags = []

    class Watched(SimulatedDevice):
        def create_pipeline_cache(self, initial_data: bytes = b"", **options: object):  # type: ignore[no-untyped-def]
            flags.append((options["name"], options.get("externally_synchronized", False)))
            return super().create_pipeline_cache(initial_data, **options)  # type: ignore[arg-type]

    device = Watched()
    await run_pipelines(device, prepared_set(device), RunOptions(workers=2, mode=mode))
    flagged = mode is CacheMode.PER_WORKER
    assert flags == [("primary", False), ("worker 0", flagged), ("worker 1", flagged)]


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


async def test_workers_wait_for_a_library_in_flight() -> None:
    # Everything links the first pipeline, so three of four workers find nothing until it was created.
    device = SimulatedDevice()
    image = simulated_image(range(50), libraries={index: [0] for index in range(1, 50)})
    report = await run_pipelines(device, device.prepare(image), RunOptions(workers=4))
    check_sums(report)
    assert report.compiled == 50
    first = next(call for call in report.calls if 0 in call.indices)
    others = [call for call in report.calls if 0 not in call.indices]
    assert min(call.start_ns for call in others) >= first.start_ns + first.wall_ns


async def test_failures_are_outcomes_with_the_name_of_the_result() -> None:
    bugs = DriverBugs(out_of_memory=frozenset({7}), results={100: ERROR_UNKNOWN})
    device = SimulatedDevice(SimulatedOptions(bugs=bugs, unusable={0: "module 12 is missing"}))
    prepared = prepared_set(device, libraries={20: [0], 21: [7], 22: [21]})
    report = await run_pipelines(device, prepared, RunOptions(workers=2))
    check_sums(report)
    assert {each.index: each.reason for each in report.failed} == {
        0: "module 12 is missing",
        7: "VK_ERROR_OUT_OF_HOST_MEMORY",
        20: "links pipeline 0, which was not created: module 12 is missing",
        21: "links pipeline 7, which was not created: VK_ERROR_OUT_OF_HOST_MEMORY",
        22: "links pipeline 21, which was not created: VK_ERROR_OUT_OF_HOST_MEMORY",
        100: "VK_ERROR_UNKNOWN",
    }
    assert [each.key for each in report.failed] == [each.index for each in report.failed]
    assert report.compiled == 294
    assert report.counts(PipelineKind.GRAPHICS)[OutcomeStatus.FAILED] == 6
    assert report.pipelines.row(7).status is OutcomeStatus.FAILED


async def test_what_links_a_skipped_pipeline_is_skipped() -> None:
    device = SimulatedDevice(SimulatedOptions(unusable={2: "no module"}))
    prepared = prepared_set(device, libraries={3: [1], 4: [3], 5: [1, 2]})
    report = await run_pipelines(
        device, prepared, RunOptions(workers=2, skipped={1: "feature geometryShader"})
    )
    check_sums(report)
    assert [each.index for each in report.skipped] == [1, 3, 4]
    assert [each.index for each in report.failed] == [2, 5]
    assert report.skipped[2].reason == "links pipeline 3, which was not created: feature geometryShader"
    assert sorted(device.compile_counts) == [0, *range(6, 300)]


async def test_a_call_that_fails_as_a_whole_costs_only_the_pipeline_to_blame() -> None:
    device = RefusingDevice({3: ERROR_OUT_OF_HOST_MEMORY, 200: ERROR_UNKNOWN})
    prepared = prepared_set(device, libraries={100: [3]})
    options = RunOptions(workers=2, schedule=ScheduleOptions(expect_hits=1.0))
    report = await run_pipelines(device, prepared, options)
    check_sums(report)
    assert [each.index for each in report.failed] == [3, 100, 200]
    assert "vkCreateGraphicsPipelines" in report.failed[0].reason
    assert "links pipeline 3" in report.failed[1].reason
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


async def test_a_bug_in_a_worker_is_raised_as_itself_and_leaves_nothing() -> None:
    def broken(_key: int) -> None:
        raise ZeroDivisionError

    device = SimulatedDevice(SimulatedOptions(on_compile=broken))
    with pytest.raises(ZeroDivisionError):
        await run_pipelines(device, prepared_set(device), RunOptions(workers=3))
    assert device.live_caches == 0


async def test_using_the_cache_beside_the_run_is_an_error_of_the_caller() -> None:
    # The one way to break external synchronization is a caller who uses a flagged primary meanwhile:
    # the merge finds it in use.
    device = SimulatedDevice()
    primary = device.create_pipeline_cache(externally_synchronized=True)
    with pytest.raises(ExternalSynchronizationError), primary.using("the caller's own use"):
        await run_pipelines(device, prepared_set(device), RunOptions(workers=2), primary=primary)
    assert device.live_caches == 1


async def test_using_what_the_run_creates_beside_it_is_an_error_of_the_caller() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hold(key: int) -> None:
        if not entered.is_set():
            entered.set()
            assert go_on.wait(60)

    device = SimulatedDevice(SimulatedOptions(on_compile=hold))
    prepared = prepared_set(device)
    user = threading.Thread(
        target=device.create_pipelines, args=(prepared, np.array([17], np.int32), NO_SOURCE)
    )
    user.start()
    assert entered.wait(60)
    try:
        # No property of the pipeline: it must not be reported as one that failed.
        with pytest.raises(ExternalSynchronizationError, match=r"pipelines \[17\]"):
            await run_pipelines(device, prepared, RunOptions(workers=2))
    finally:
        go_on.set()
        user.join()
    assert device.live_caches == 0


async def test_no_worker_cache_is_ever_used_by_two_threads_at_a_time() -> None:
    inside: dict[str, int] = {}
    seen: set[str] = set()
    lock = threading.Lock()

    class Watched(SimulatedDevice):
        def create_pipelines(self, prepared, indices, source, **options):  # type: ignore[no-untyped-def]
            with lock:
                seen.add(source.name)
                inside[source.name] = inside.get(source.name, 0) + 1
                assert inside[source.name] == 1
            try:
                return super().create_pipelines(prepared, indices, source, **options)
            finally:
                with lock:
                    inside[source.name] -= 1

    device = Watched()
    await run_pipelines(device, prepared_set(device, 1000), RunOptions(workers=4))
    assert seen <= {f"worker {number}" for number in range(4)}


async def test_refused_initial_data_is_a_note_and_an_empty_start() -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(create_fails_on_bad_data=True)))
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=2), primary=b"damaged" * 20)
    assert report.compiled == 300
    assert any("refused the initial data" in note for note in report.notes)
    assert device.live_caches == 0


async def test_a_cache_that_cannot_be_created_is_raised() -> None:
    bugs = DriverBugs(out_of_memory_operations={CacheOperation.CREATE})
    device = SimulatedDevice(SimulatedOptions(bugs=bugs))
    with pytest.raises(DriverError, match="vkCreatePipelineCache"):
        await run_pipelines(device, prepared_set(device), RunOptions(workers=2))


@pytest.mark.parametrize("operation", [CacheOperation.MERGE, CacheOperation.READ])
async def test_a_refused_merge_or_read_back_does_not_lose_the_report(operation: CacheOperation) -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(out_of_memory_operations={operation})))
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=2))
    assert report.compiled == 300
    assert report.merge is not None
    assert any("VK_ERROR_OUT_OF_HOST_MEMORY" in warning for warning in report.merge.warnings)
    assert (report.cache_data is None) == (operation is CacheOperation.READ)
    assert device.live_caches == 0


async def test_kept_pipelines_are_the_callers() -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(out_of_memory=frozenset({7}))))
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=2, keep=True))
    assert report.pipelines.handles is not None
    assert np.flatnonzero(report.pipelines.handles == 0).tolist() == [7]
    assert device.live_pipelines == 299
    device.destroy_pipelines(report.pipelines.handles)
    assert device.live_pipelines == 0


async def test_progress_never_lies() -> None:
    seen: list[Progress] = []
    device = SimulatedDevice(SimulatedOptions(unusable={0: "no module"}))
    report = await run_pipelines(
        device,
        prepared_set(device),
        RunOptions(workers=2, skipped={1: "no feature"}),
        on_progress=seen.append,
    )
    assert {each.total for each in seen} == {300}
    assert seen[0].skipped == seen[-1].skipped == 1
    assert seen[0].failed == 1
    assert seen[0].eta_s is None
    assert [each.done for each in seen] == sorted(each.done for each in seen)
    last = seen[-1]
    assert (last.done, last.compiled, last.in_flight, last.eta_s) == (300, report.compiled, 0, 0.0)


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt])
async def test_an_error_of_the_callback_is_raised_as_itself(error: type[BaseException]) -> None:
    def broken(_progress: Progress) -> None:
        raise error

    device = SimulatedDevice()
    with pytest.raises(error):
        await run_pipelines(
            device, prepared_set(device), RunOptions(workers=2, keep=True), on_progress=broken
        )
    assert device.live_caches == 0
    assert device.live_pipelines == 0


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
    ("mode", "complaint"),
    [
        (CacheMode.NONE, "no cache"),
        (CacheMode.SHARED, "internally synchronized"),
        (CacheMode.TWO_LEVEL, "two-level.*internally synchronized"),
    ],
)
async def test_a_primary_that_the_mode_cannot_use_is_refused(mode: CacheMode, complaint: str) -> None:
    device = SimulatedDevice()
    flagged = device.create_pipeline_cache(externally_synchronized=True)
    for primary in (flagged, b"data") if mode is CacheMode.NONE else (flagged,):
        with pytest.raises(ValueError, match=complaint):
            await run_pipelines(device, prepared_set(device), RunOptions(mode=mode), primary=primary)


async def test_real_time_is_accounted_for() -> None:
    # 40 pipelines of 1 ms of processor time; only relations that hold on any machine are asserted.
    device = SimulatedDevice(SimulatedOptions(cost=CostModel.constant(1_000_000), clock=CpuClock()))
    report = await run_pipelines(device, prepared_set(device, 40), RunOptions(workers=2))
    check_sums(report)
    assert report.timing.driver_ns >= 40_000_000
    assert report.timing.cpu_ns >= 40_000_000
    for call in report.calls:
        assert call.driver_ns <= call.wall_ns
    assert report.timing.overhead_ns >= 0
    assert int(report.pipelines.driver_ns.sum()) == report.timing.driver_ns


@pytest.mark.parametrize(
    ("first", "later", "said"), [(True, True, False), (False, True, True), (True, False, True)]
)
async def test_time_on_the_run_queue_that_was_not_known_once_is_said_to_be_unknown(
    monkeypatch: pytest.MonkeyPatch, first: bool, later: bool, said: bool
) -> None:
    # A worker asks its meter whenever it ends a stay in its thread. One of the two finds nothing at first,
    # since all links what the other one compiles, and so asks before it.
    told: list[bool] = []
    somebody_waits = threading.Event()

    def known(_meter: ThreadMeter) -> bool:
        told.append(later if told else first)
        somebody_waits.set()
        return told[-1]

    def hold(key: int) -> None:
        if key == 0:
            assert somebody_waits.wait(60)

    monkeypatch.setattr(ThreadMeter, "has_run_delay", property(known))
    device = SimulatedDevice(SimulatedOptions(on_compile=hold))
    image = simulated_image(range(20), libraries={index: [0] for index in range(1, 20)})
    report = await run_pipelines(device, device.prepare(image), RunOptions(workers=2))
    assert len(told) >= 2
    assert any("time on the run queue is not known" in note for note in report.notes) == said


async def test_default_workers_are_the_processors_of_the_process() -> None:
    device = SimulatedDevice()
    report = await run_pipelines(device, prepared_set(device))
    assert report.workers >= 1
    assert report.mode is CacheMode.PER_WORKER
    assert report.compiled == 300


async def test_two_runs_at_a_time_do_not_disturb_each_other() -> None:
    device = SimulatedDevice()
    reports = []

    async def one() -> None:
        reports.append(await run_pipelines(device, prepared_set(device), RunOptions(workers=2)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(one)
    assert [report.compiled for report in reports] == [300, 300]
    assert device.live_caches == 0
