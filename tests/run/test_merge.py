"""Merge reports: pruned bytes, work done twice, merges that do nothing."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.devices.device import (
    ERROR_OUT_OF_HOST_MEMORY,
    PipelineCache,
)
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions
from orchestrator.errors import DriverError
from orchestrator.run.caches import merge_into, pruned_bytes
from orchestrator.run.execution import run_pipelines
from orchestrator.run.options import RunOptions
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
    assert pruned_bytes(sources, before, after, 32) == pruned


@pytest.mark.parametrize("mode", [CacheMode.PER_WORKER, CacheMode.SHARED])
async def test_a_cache_that_keeps_nothing_is_named(mode: CacheMode) -> None:
    device = SimulatedDevice(SimulatedOptions(bugs=DriverBugs(cache_is_stub=True)))
    report = await run_pipelines(device, prepared_set(device), RunOptions(workers=2, mode=mode))
    assert report.merge is not None
    (warning,) = report.merge.warnings
    assert "keeps nothing" in warning


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
