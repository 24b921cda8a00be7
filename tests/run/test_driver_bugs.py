"""Driver bugs, met by `compile_set`.

Each bug of drivers in the field, switched on in the simulated driver, is met and survived by the main job,
and the user is told in one line what is wrong.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.devices.image import PipelineKind
from orchestrator.devices.modes import CacheMode
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import DriverBugs, SimulatedDevice
from orchestrator.run.options import ModulePolicy, TrialLimits
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.run.steering import Steering
from orchestrator.stores.cache_file import cache_path
from orchestrator.supervise.trial import try_pipelines
from tests.run.small_sets import Opener, compiled, compute_keys, write_small_set

COUNT = 6
MODES = [CacheMode.SHARED, CacheMode.PER_WORKER]


def counts(report: CompileReport) -> dict[str, int]:
    return {status.value: count for status, count in report.counts().items() if count}


def told(report: CompileReport, words: str) -> str:
    lines = [*report.notes, *(each for run in report.runs if run.merge for each in run.merge.warnings)]
    lines += [each for each in (report.cache_file.error, report.cache_file.not_saved) if each]
    found = [each for each in lines if words in each]
    assert len(found) == 1, lines
    assert "\n" not in found[0]
    return found[0]


@pytest.mark.parametrize("mode", MODES)
async def test_stale_uuid_accepted(archive: Path, folder: Path, mode: CacheMode) -> None:
    old, new = Opener(driver_version=1), Opener(DriverBugs(stale_uuid_accepted=True), driver_version=2)
    await compiled(archive, folder, old, mode=mode)
    # The name of the file says which build it is for, so that it takes a copy to get it wrong.
    shutil.copy(cache_path(folder, old.device.identity), cache_path(folder, new(DeviceRequest()).identity))
    report = await compiled(archive, folder, new, mode=mode)
    assert counts(report) == {"compiled": COUNT}
    assert new.device.driver.foreign_hits == 0
    assert "pipelineCacheUUID" in told(report, "OTHER_DRIVER")


@pytest.mark.parametrize("mode", MODES)
async def test_initial_data_dropped(archive: Path, folder: Path, mode: CacheMode) -> None:
    await compiled(archive, folder, Opener(), mode=mode)
    report = await compiled(archive, folder, Opener(DriverBugs(initial_data_dropped=True)), mode=mode)
    assert counts(report) == {"compiled": COUNT}
    assert "without an error" in told(report, "DROPPED_BY_DRIVER")
    assert report.cache_file.saved_bytes
    good = await compiled(archive, folder, Opener(), mode=mode)
    assert counts(good) == {"cache_hit": COUNT}


@pytest.mark.parametrize("mode", MODES)
async def test_a_cache_that_is_a_stub(archive: Path, folder: Path, mode: CacheMode) -> None:
    opener = Opener(DriverBugs(cache_is_stub=True))
    report = await compiled(archive, folder, opener, mode=mode)
    assert counts(report) == {"compiled": COUNT}
    told(report, "the driver's cache holds nothing")
    told(report, "keeps nothing")
    assert not cache_path(folder, opener.device.identity).exists()


# --- what ends the process, or never ends: in children, which have the device from here

CRASHER, HANGER = compute_keys()[2], compute_keys()[4]


def open_crasher_and_hanger(request: DeviceRequest) -> SimulatedDevice:
    """For a trial process."""
    return Opener(DriverBugs(crash={CRASHER}, hang={HANGER}))(request)


async def test_a_crash_and_a_hang(archive: Path, folder: Path) -> None:
    report = await compiled(
        archive,
        folder,
        open_crasher_and_hanger,
        spirv_val=ModulePolicy.ISOLATE,
        # Long for the others' sake: a busy machine is no hang.
        trial_limits=TrialLimits(pipeline_s=3.0, opener=f"{__name__}:open_crasher_and_hanger"),
        stop=Steering(try_pipelines=try_pipelines),
    )
    assert counts(report) == {"compiled": COUNT - 2, "failed": 2}
    reasons: dict[int, str] = {each.key: each.reason for each in report.of_status(OutcomeStatus.FAILED)}
    assert reasons.keys() == {CRASHER, HANGER}
    assert "SIGABRT" in reasons[CRASHER]
    assert "did not come back from it within 3 s" in reasons[HANGER]
    told(report, f"the driver survived {COUNT - 2}, and not 2")


async def test_one_pipeline_key_for_all_is_told_and_not_used(archive: Path, folder: Path) -> None:
    """NVIDIA 580.159 and its ray-tracing pipelines: 87 of 88 were taken for duplicates of the first."""
    several = len(compute_keys())  # of different code
    write_small_set(archive, 0, several)
    opener = Opener(DriverBugs(one_pipeline_key={PipelineKind.COMPUTE}))
    report = await compiled(archive, folder, opener, mode=CacheMode.PER_WORKER, pipeline_keys="all")
    assert counts(report) == {"compiled": several}
    assert report.saved.by_pipeline_key == 0
    assert "one pipeline key to compute pipelines of different code" in told(report, "one pipeline key")
