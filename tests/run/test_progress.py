"""Progress: sums, and an estimate only where there is something to base it on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orchestrator.devices.device import CacheMode, CreationBatch
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice, SimulatedOptions, simulated_image
from orchestrator.run.records import OutcomeRecorder, OutcomeStatus, Progress
from orchestrator.sets.prepare import Subset
from orchestrator.sets.sample import sample_path
from tests.run.small_sets import compiled, write_small_set

SECOND = 1_000_000_000


@pytest.fixture
def recorder() -> OutcomeRecorder:
    recorder = OutcomeRecorder(simulated_image(range(12)))
    recorder.table.settle(OutcomeStatus.SKIPPED, {0: "no feature", 1: "no feature"})
    recorder.settled_at_start = 2
    return recorder


def at(recorder: OutcomeRecorder, elapsed_ns: int) -> Progress:
    return recorder.progress(in_flight=0, started_ns=SECOND, now_ns=SECOND + elapsed_ns)


def create(recorder: OutcomeRecorder, *indices: int, flags: int = 1) -> None:
    count = len(indices)
    zeros = np.zeros(count, np.uint64)
    batch = CreationBatch(np.zeros(count, np.int32), np.full(count, flags, np.uint32), zeros, zeros)
    recorder.record(np.array(indices, np.int32), batch)


def test_what_is_known_at_the_start_is_done_but_says_nothing_about_speed(recorder: OutcomeRecorder) -> None:
    progress = at(recorder, 2 * SECOND)
    assert (progress.total, progress.done, progress.skipped) == (12, 2, 2)
    assert progress.rate == 0
    assert progress.eta_s is None


def test_rate_and_estimate_come_from_what_came_back(recorder: OutcomeRecorder) -> None:
    create(recorder, 2, 3, 4)
    create(recorder, 5, 6, flags=3)
    progress = at(recorder, 2 * SECOND)
    assert (progress.compiled, progress.hits, progress.done) == (3, 2, 7)
    assert progress.rate == pytest.approx(2.5)
    assert progress.eta_s == pytest.approx(2.0)


def test_there_is_no_estimate_in_the_first_moment(recorder: OutcomeRecorder) -> None:
    create(recorder, 2)
    assert at(recorder, SECOND // 10).eta_s is None
    assert at(recorder, 0).rate == 0


def test_the_end_has_nothing_to_go(recorder: OutcomeRecorder) -> None:
    create(recorder, *range(2, 12))
    assert at(recorder, 1).eta_s == 0


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
