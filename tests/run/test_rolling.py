"""Merges: pruned bytes, sources that are refused, rolling merges, and the primary as a first level."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import trio
from attrs import evolve

from orchestrator.devices.device import (
    ERROR_OUT_OF_HOST_MEMORY,
    PipelineCache,
    PipelineSource,
)
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import (
    CostModel,
    CpuClock,
    SimulatedDevice,
    SimulatedOptions,
    simulated_image,
)
from orchestrator.errors import DriverError
from orchestrator.run.caches import CacheMerge, merge_into, pruned_bytes
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
from orchestrator.run.records import OutcomeStatus
from orchestrator.run.session import open_session
from orchestrator.schedule.options import Order, ScheduleOptions
from tests.run.support import EACH_BATCH, check_sums, hits_of, prepared_set, without

ROLLING_MODES = (CacheMode.PER_WORKER, CacheMode.PER_WORKER_INTERNAL, CacheMode.TWO_LEVEL)
SMALL_BATCHES = ScheduleOptions(order=Order.GIVEN, batch_limit=4, hit_share=1.0, target_ns=10**9)


class MergesBetweenBatches:
    """Holds each compile of a list until the primary was merged into again, so that merges do happen."""

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = frozenset(keys)
        self.merges = threading.Semaphore(0)

    def __call__(self, key: int) -> None:
        if key in self.keys:
            assert self.merges.acquire(timeout=60)

    def merged(self, _primary: PipelineSource, _merge: CacheMerge) -> None:
        self.merges.release()


@pytest.mark.parametrize("mode", ROLLING_MODES)
@pytest.mark.parametrize("workers", [1, 3])
async def test_a_rolling_merge_leaves_the_keys_that_the_barrier_leaves(mode: CacheMode, workers: int) -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    primary = device.create_pipeline_cache()
    report = await run_pipelines(
        device,
        prepared,
        RunOptions(workers=workers, mode=mode, merge=EACH_BATCH, schedule=SMALL_BATCHES),
        primary=primary,
    )
    check_sums(report)
    assert report.compiled == 300
    assert set(device.compile_counts.values()) == {1}
    assert device.live_caches == 1
    data = device.pipeline_cache_data(primary).data
    other = SimulatedDevice()
    at_barrier = await run_pipelines(other, prepared_set(other), RunOptions(workers=workers))
    assert at_barrier.cache_data is not None
    assert len(data) == len(at_barrier.cache_data)
    assert await hits_of(data) == 300
    merge = report.merge
    assert merge is not None
    assert merge.warnings == ()
    assert merge.pruned_bytes == 0
    assert (merge.primary_bytes_before, merge.primary_bytes_after) == (32, len(data))
    again = await run_pipelines(
        device, prepared, RunOptions(workers=workers, mode=mode, merge=EACH_BATCH), primary=primary
    )
    assert again.cache_hits == 300
    assert again.merge is not None
    assert again.merge.rolling is not None
    assert again.merge.rolling.folds == 0, "nothing new, nothing to merge"


@pytest.mark.parametrize("mode", ROLLING_MODES)
async def test_the_primary_can_be_read_while_workers_compile(mode: CacheMode) -> None:
    held = MergesBetweenBatches([20, 60, 100])
    device = SimulatedDevice(SimulatedOptions(on_compile=held))
    prepared = prepared_set(device, 200)
    saved: list[tuple[CacheMerge, bytes, int]] = []

    def on_merged(primary: PipelineSource, merge: CacheMerge) -> None:
        saved.append((merge, primary.data(), len(device.compile_counts)))
        held.merged(primary, merge)

    report = await run_pipelines(
        device,
        prepared,
        RunOptions(workers=1, mode=mode, merge=EACH_BATCH, schedule=SMALL_BATCHES),
        on_merged=on_merged,
    )
    assert report.compiled == 200
    assert report.merge is not None
    rolling = report.merge.rolling
    assert rolling is not None
    assert len(saved) >= 3
    assert rolling.folds - len(saved) in (0, 1), (
        "what was rotated out and not merged when workers ended is no news to the hook"
    )
    compiled_so_far = 0
    for number, (merge, data, compiled) in enumerate(saved):
        compiled_so_far += merge.pipelines
        assert len(data) == merge.primary_bytes
        assert compiled_so_far <= compiled
        if number in (0, 1, len(saved) - 1):
            assert await hits_of(data, 200) == compiled_so_far
    assert saved[0][2] < 200, "the first save was before the end"
    assert compiled_so_far <= rolling.pipelines <= 200
    assert rolling.source_bytes >= sum(sum(merge.source_bytes) for merge, _, _ in saved)
    assert rolling.caches >= rolling.folds
    assert report.cache_data is not None
    assert await hits_of(report.cache_data, 200) == 200
    assert device.live_caches == 0


@pytest.mark.parametrize("mode", ROLLING_MODES)
async def test_what_has_the_age_is_merged_though_no_worker_has_anything_to_do(mode: CacheMode) -> None:
    device = SimulatedDevice()
    merged: list[int] = []
    told = trio.Event()
    token = trio.lowlevel.current_trio_token()

    def on_merged(_primary: PipelineSource, merge: CacheMerge) -> None:
        merged.append(merge.pipelines)
        if sum(merged) == 20:
            token.run_sync_soon(told.set)

    policy = evolve(EACH_BATCH, age_ns=200_000_000)
    options = RunOptions(workers=2, mode=mode, merge=policy)
    async with open_session(device, prepared_set(device), options, on_merged=on_merged) as session:
        await session.submit(range(20))
        with trio.fail_after(30):
            await told.wait()
    assert device.live_caches == 0


async def test_two_level_looks_up_and_compiles_misses_only() -> None:
    device = SimulatedDevice()
    whole = prepared_set(device, 300)
    half = device.prepare(simulated_image(range(0, 300, 2)))
    primary = device.create_pipeline_cache()
    await run_pipelines(device, half, RunOptions(workers=1), primary=primary)
    report = await run_pipelines(
        device, whole, RunOptions(workers=2, mode=CacheMode.TWO_LEVEL, keep=True), primary=primary
    )
    check_sums(report)
    assert (report.cache_hits, report.compiled) == (150, 150)
    hit = report.pipelines.status == list(OutcomeStatus).index(OutcomeStatus.CACHE_HIT)
    assert (report.pipelines.keys[hit] % 2 == 0).all()
    assert report.pipelines.handles is not None
    assert np.count_nonzero(report.pipelines.handles) == 300
    device.destroy_pipelines(report.pipelines.handles)
    assert device.live_pipelines == 0
    assert report.merge is not None
    looked_up = {call.cache for call in device.calls() if call.operation == "create_pipelines"}
    assert {"worker 0", "worker 1"} & looked_up
    assert await hits_of(device.pipeline_cache_data(primary).data) == 300


@pytest.mark.parametrize("merge_in_driver", [True, False])
async def test_two_level_keeps_merges_and_look_ups_apart(merge_in_driver: bool) -> None:
    # The simulated driver raises where a merge meets a look-up that it did not promise to synchronize. Merges
    # take long here, so that look-ups come meanwhile.
    slow_merges = CostModel(compile_ns=lambda _key: 1, hit_ns=1, merge_entry_ns=100_000)
    device = SimulatedDevice(
        evolve(without(internally_synchronized_merge=merge_in_driver), clock=CpuClock(), cost=slow_merges)
    )
    seed_device = SimulatedDevice()
    first = seed_device.prepare(simulated_image(range(40)))
    data = (await run_pipelines(seed_device, first, RunOptions(workers=1))).cache_data or b""
    for _ in range(2):
        report = await run_pipelines(
            device,
            prepared_set(device),
            RunOptions(workers=4, mode=CacheMode.TWO_LEVEL, merge=EACH_BATCH, schedule=SMALL_BATCHES),
            primary=data,
        )
        check_sums(report)
        assert (report.cache_hits, report.compiled) == (40, 260)
        assert report.merge is not None
        assert report.cache_data is not None
        assert await hits_of(report.cache_data) == 300
    assert device.live_caches == 0


async def test_two_level_without_compile_required_is_per_worker_and_says_so() -> None:
    device = SimulatedDevice(without(compile_required=False))
    prepared = prepared_set(device)
    data = b""
    for expected in (0, 300):
        report = await run_pipelines(
            device, prepared, RunOptions(workers=2, mode=CacheMode.TWO_LEVEL), primary=data
        )
        assert report.cache_hits == expected
        assert report.mode is CacheMode.TWO_LEVEL
        assert any("cannot forbid compiling" in note for note in report.notes)
        data = report.cache_data or b""


@pytest.mark.parametrize(
    ("sources", "before", "after", "pruned"),
    [
        ((132, 232), 32, 332, 0),
        ((132, 132), 32, 132, 100),
        ((332, 332), 232, 332, 500),
        ((32, 32), 32, 32, 0),
        ((132,), 32, 200, 0),
    ],
)
def test_pruned_bytes(sources: tuple[int, ...], before: int, after: int, pruned: int) -> None:
    assert pruned_bytes(sources, before, after, 32) == pruned


def test_a_refused_source_does_not_take_the_others_with_it() -> None:
    class Picky(SimulatedDevice):
        def merge_pipeline_caches(self, destination, sources):  # type: ignore[no-untyped-def]
            if any(source.name == "bad" for source in sources):
                raise DriverError(
                    "vkMergePipelineCaches", ERROR_OUT_OF_HOST_MEMORY, "VK_ERROR_OUT_OF_HOST_MEMORY"
                )
            super().merge_pipeline_caches(destination, sources)

    device = Picky()
    prepared = prepared_set(device, 3)
    caches: list[PipelineCache] = []
    for index, name in enumerate(["a", "bad", "b"]):
        caches.append(device.create_pipeline_cache(name=name))
        device.create_pipelines(prepared, np.array([index], np.int32), caches[-1])
    primary = device.create_pipeline_cache()
    merged = merge_into(primary, caches)
    assert (merged.unmerged, merged.why) == (
        1,
        "vkMergePipelineCaches returned VK_ERROR_OUT_OF_HOST_MEMORY (-1)",
    )
    batch = device.create_pipelines(prepared, np.arange(3, dtype=np.int32), primary)
    assert (batch.feedback_flags & 2 != 0).tolist() == [True, False, True]
