"""Progress: sums, and an estimate only where there is something to base it on."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions
from orchestrator.run.records import Progress
from orchestrator.sets.sample import sample_path
from orchestrator.sets.subset import Subset
from tests.run.small_sets import compiled, write_small_set


@pytest.mark.parametrize("subset", [Subset(), Subset(1, 3), Subset(3, 3)])
async def test_the_total_is_fixed_and_done_reaches_it(subset: Subset) -> None:
    seen: list[Progress] = []
    report = await compiled(sample_path(), selector="simulated", subset=subset, on_progress=seen.append)
    # A third of the sample links libraries of the other two, which are then made and not counted.
    made = sum(len(each) for each in report.runs)
    assert subset.is_whole or made > len(report.pipelines)
    assert {each.total for each in seen} == {len(report.pipelines)}
    assert [each.done for each in seen] == sorted(each.done for each in seen)
    last = seen[-1]
    assert last.done == last.total
    counts = report.outcomes
    assert (last.compiled, last.hits, last.skipped, last.failed) == (
        counts.compiled,
        counts.cache_hits,
        counts.skipped,
        counts.failed,
    )
    assert all(each.done == each.compiled + each.hits + each.skipped + each.failed for each in seen)


async def test_what_is_in_the_driver_the_longest_is_named_with_its_age(tmp_path: Path) -> None:
    keys = write_small_set(tmp_path / "small.foz", 0, 3)
    slow = keys[1]
    seen: list[Progress] = []

    devices: list[SimulatedDevice] = []

    def opener(_request: DeviceRequest) -> SimulatedDevice:
        devices.append(SimulatedDevice(SimulatedOptions(bugs=DriverBugs(hang={slow}))))
        return devices[-1]

    def watch(progress: Progress) -> None:
        seen.append(progress)
        if progress.slowest is not None and progress.slowest.age_s >= 0.3:
            devices[-1].release_hangs()

    await compiled(
        tmp_path / "small.foz",
        opener=opener,
        workers=1,
        mode=CacheMode.NONE,
        batch_limit=1,
        on_progress=watch,
    )
    named = [each.slowest for each in seen if each.slowest is not None]
    assert named[-1].key == slow
    assert named[-1].kind is PipelineKind.COMPUTE
    assert named[-1].pipelines == 1
    assert seen[-1].slowest is None
    assert seen[-1].done == 3
