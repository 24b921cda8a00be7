"""Merge reports: pruned bytes, work done twice, merges that do nothing."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from orchestrator.devices.device import CacheMode
from orchestrator.devices.simulated import (
    CostModel,
    CpuClock,
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
)
from orchestrator.run.caches import Merged, PreparedParts, RunCaches, duplicates, merge_into, pruned_bytes
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import MergePolicy, RunOptions
from orchestrator.run.records import Duplicates
from tests.run.support import prepared_set


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
    assert pruned_bytes(Merged(sources, before, after, 0, ()), (), 32) == pruned


def test_duplicates_need_two_workers() -> None:
    keys = np.array([5, 6, 5, 7, 6, 6], np.uint64)
    workers = np.array([0, 1, 1, 0, 1, 1], np.int32)
    driver_ns = np.array([1, 10, 100, 1000, 10_000, 100_000], np.uint64)
    assert duplicates(keys, workers, driver_ns) == Duplicates(1, 100)
    assert duplicates(keys[:0], workers[:0], driver_ns[:0]) == Duplicates(0, 0)


async def test_pipelines_that_only_the_driver_knows_to_be_the_same_are_counted() -> None:
    # The first and the last of the set are one pipeline to the driver. Two threads meet in front of them.
    device = SimulatedDevice(SimulatedOptions(same_binary={99: 0}))
    prepared = prepared_set(device, 100)
    report = await run_pipelines(device, prepared, RunOptions(workers=1, count_duplicate_pipeline_keys=True))
    assert report.merge is not None
    assert report.merge.duplicate_pipeline_keys == Duplicates(0, 0)
    assert report.cache_hits == 1, "one worker finds it in its cache"


async def test_duplicates_over_workers() -> None:
    import threading

    both = threading.Barrier(2, timeout=60)

    def meet(_key: int) -> None:
        both.wait()

    device = SimulatedDevice(SimulatedOptions(same_binary={1: 0}, on_compile=meet))
    report = await run_pipelines(
        device, prepared_set(device, 2), RunOptions(workers=2, count_duplicate_pipeline_keys=True)
    )
    merge = report.merge
    assert merge is not None
    assert report.compiled == 2
    assert merge.duplicate_job_keys == Duplicates(0, 0)
    assert merge.duplicate_pipeline_keys == Duplicates(1, int(report.pipelines.driver_ns[1]))
    assert merge.pruned_bytes == merge.primary_bytes_after - 32


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_merge_that_does_nothing_is_named(workers: int) -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(merge_does_nothing=True)))
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=workers))
    assert report.merge is not None
    (warning,) = report.merge.warnings
    assert "no-op" in warning


def test_bookkeeping_beyond_the_seed_is_not_called_a_merge_that_does_nothing() -> None:
    device = SimulatedDevice()
    full = run_to_data(device)
    primary = device.create_pipeline_cache(full)
    sources = [device.create_pipeline_cache(full) for _ in range(2)]
    merged = merge_into(primary, sources, seed_bytes=len(full) - 24)
    assert merged.after == merged.before == len(full)
    assert merged.warnings == ()


def run_to_data(device: SimulatedDevice) -> bytes:
    """Data of a cache that holds a set."""
    prepared = prepared_set(device)
    cache = device.create_pipeline_cache()
    device.create_pipelines(prepared, np.arange(300, dtype=np.int32), cache)
    return device.pipeline_cache_data(cache).data


@pytest.mark.parametrize("mode", [CacheMode.PER_WORKER, CacheMode.SHARED])
async def test_a_cache_that_keeps_nothing_is_named(mode: CacheMode) -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(cache_is_stub=True)))
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=2, mode=mode))
    assert report.merge is not None
    (warning,) = report.merge.warnings
    assert "keeps nothing" in warning


async def test_warm_workers_that_hit_everything_are_no_warning() -> None:
    device = SimulatedDevice()
    prepared = prepared_set(device)
    primary = device.create_pipeline_cache()
    await run_pipelines(device, prepared, RunOptions(workers=2), primary=primary)
    report = await run_pipelines(device, prepared, RunOptions(workers=2), primary=primary)
    assert report.merge is not None
    assert report.merge.warnings == ()
    assert report.merge.seed_bytes == report.merge.primary_bytes_after


def test_a_refused_source_does_not_take_the_others_with_it() -> None:
    from orchestrator.devices.device import ERROR_OUT_OF_HOST_MEMORY, PipelineCache
    from orchestrator.errors import DriverError

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
    assert len(merged.warnings) == 2
    assert "bad was not merged" in merged.warnings[1]
    batch = device.create_pipelines(prepared, np.arange(3, dtype=np.int32), primary)
    assert (batch.feedback_flags & 2 != 0).tolist() == [True, False, True]


async def test_the_time_of_the_last_merges_is_in_the_report() -> None:
    # What a worker has rotated out and nobody has merged is merged when no worker is left: here that is all.
    device = SimulatedDevice(
        SimulatedOptions(clock=CpuClock(), cost=CostModel(compile_ns=lambda _key: 1, merge_entry_ns=100_000))
    )
    caches = RunCaches(
        device,
        worker_count=1,
        mode=CacheMode.PER_WORKER,
        policy=MergePolicy(rolling=True, batches=1),
        seed=False,
        primary=None,
        on_merged=None,
        token=trio.lowlevel.current_trio_token(),
    )
    prepared = prepared_set(device, 100)
    caches.open(b"", prepared)
    creator = caches.creator_of(0, PreparedParts(prepared), keep=False)
    creator.create(np.arange(100, dtype=np.int32))
    creator.between_batches()
    caches.merge()
    report = caches.merge_report(
        compiled=100,
        barrier_waits_ns=(0,),
        duplicate_job_keys=Duplicates(0, 0),
        duplicate_pipeline_keys=None,
    )
    caches.destroy()
    assert report is not None
    assert report.rolling is not None
    assert (report.rolling.folds, report.rolling.pipelines) == (1, 100)
    assert report.merge_ns >= report.rolling.merge_ns > 0
