"""Driver bugs, met by `compile_set`.

Each bug of drivers in the field, switched on in the simulated driver, is met and survived by the main job,
and the user is told in one line what is wrong.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.devices.device import ERROR_OUT_OF_HOST_MEMORY, CacheMode
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.simulated import CacheOperation, DriverBugs, SimulatedDevice
from orchestrator.run.options import ModulePolicy, TrialLimits
from orchestrator.run.records import CompileReport, OutcomeStatus
from orchestrator.run.steering import Steering
from orchestrator.stores.cache_file import LoadStatus, PipelineCachePrefixHeader, cache_path
from orchestrator.stores.profile_file import read_distrusted
from orchestrator.stores.run_notes import read_contents
from orchestrator.supervise.trial import try_pipelines
from tests.run.small_sets import Opener, compiled, compute_keys, write_small_set

COUNT = 6
MODES = [CacheMode.SHARED, CacheMode.PER_WORKER]


def counts(report: CompileReport) -> dict[str, int]:
    return {status.value: count for status, count in report.counts().items() if count}


def told(report: CompileReport, words: str) -> str:
    """The one line that tells the user."""
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
    assert new.device.foreign_hits == 0
    assert "pipelineCacheUUID" in told(report, "OTHER_DRIVER")


@pytest.mark.parametrize("mode", MODES)
async def test_uuid_not_bumped(archive: Path, folder: Path, mode: CacheMode) -> None:
    bugs = DriverBugs(uuid_not_bumped=True)
    old, new = Opener(bugs, driver_version=1), Opener(bugs, driver_version=2)
    await compiled(archive, folder, old, mode=mode)
    report = await compiled(archive, folder, new, mode=mode)
    assert cache_path(folder, old.device.identity) == cache_path(folder, new.device.identity)
    assert counts(report) == {"compiled": COUNT}
    assert new.device.foreign_hits == 0
    assert "driverVersion: expected 0x2, found 0x1" in told(report, "OTHER_DRIVER")
    again = await compiled(archive, folder, new, mode=mode)
    assert counts(again) == {"cache_hit": COUNT}


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
async def test_create_fails_on_bad_data(archive: Path, folder: Path, mode: CacheMode) -> None:
    opener = Opener(DriverBugs(create_fails_on_bad_data=True))
    await compiled(archive, folder, opener, mode=mode)
    path = cache_path(folder, opener.device.identity)
    data = bytearray(path.read_bytes()[128:])
    data[-1] ^= 1
    # Whole by every proof of ours, and not what the driver can take.
    path.write_bytes(PipelineCachePrefixHeader.describe(opener.device.identity, bytes(data)).pack() + data)
    report = await compiled(archive, folder, opener, mode=mode)
    assert counts(report) == {"compiled": COUNT}
    assert "quarantine" in told(report, "REJECTED_BY_DRIVER")
    assert len(list((folder / "quarantine").iterdir())) == 1
    assert counts(await compiled(archive, folder, opener, mode=mode)) == {"cache_hit": COUNT}


@pytest.mark.parametrize("mode", MODES)
async def test_data_grows_between_calls(archive: Path, folder: Path, mode: CacheMode) -> None:
    opener = Opener(DriverBugs(data_grows_between_calls=3))
    assert counts(await compiled(archive, folder, opener, mode=mode)) == {"compiled": COUNT}
    report = await compiled(archive, folder, opener, mode=mode)
    assert counts(report) == {"cache_hit": COUNT}
    assert report.cache_file.load_status is LoadStatus.LOADED
    assert report.notes == ()


async def test_merge_does_nothing_with_worker_caches(archive: Path, folder: Path) -> None:
    report = await compiled(archive, folder, Opener(DriverBugs(merge_does_nothing=True)))
    assert counts(report) == {"compiled": COUNT}
    assert "use mode shared" in told(report, "the merge was a no-op")
    # What is advised works.
    opener = Opener(DriverBugs(merge_does_nothing=True))
    assert counts(await compiled(archive, folder, opener, mode=CacheMode.SHARED)) == {"compiled": COUNT}
    assert counts(await compiled(archive, folder, opener, mode=CacheMode.SHARED)) == {"cache_hit": COUNT}


async def test_merge_does_nothing_with_what_is_there(archive: Path, folder: Path, tmp_path: Path) -> None:
    opener = Opener(DriverBugs(merge_does_nothing=True))
    other = tmp_path / "other.foz"
    write_small_set(other, COUNT, 3 * COUNT)
    await compiled(archive, folder, opener, mode=CacheMode.SHARED)
    report = await compiled(other, folder, opener, mode=CacheMode.SHARED)
    # The primary began with what was there, so that nothing is lost although nothing was merged.
    assert "does not merge" in told(report, "the larger one is kept")
    assert counts(await compiled(archive, folder, opener, mode=CacheMode.SHARED)) == {"cache_hit": COUNT}
    assert counts(await compiled(other, folder, opener, mode=CacheMode.SHARED)) == {"cache_hit": 2 * COUNT}


@pytest.mark.parametrize("mode", MODES)
async def test_a_cache_that_is_a_stub(archive: Path, folder: Path, mode: CacheMode) -> None:
    opener = Opener(DriverBugs(cache_is_stub=True))
    report = await compiled(archive, folder, opener, mode=mode)
    assert counts(report) == {"compiled": COUNT}
    told(report, "the driver's cache holds nothing")
    assert not cache_path(folder, opener.device.identity).exists()


@pytest.mark.parametrize("mode", MODES)
async def test_out_of_memory_and_other_results(archive: Path, folder: Path, mode: CacheMode) -> None:
    keys = compute_keys()[:COUNT]
    bugs = DriverBugs(out_of_memory={keys[1]}, results={keys[3]: ERROR_OUT_OF_HOST_MEMORY - 1})
    report = await compiled(archive, folder, Opener(bugs), mode=mode)
    assert counts(report) == {"compiled": COUNT - 2, "failed": 2}
    reasons = {each.job.key: each.reason for each in report.of_status(OutcomeStatus.FAILED)}
    assert set(reasons) == {keys[1], keys[3]}
    assert "VK_ERROR_OUT_OF_HOST_MEMORY" in reasons[keys[1]]
    assert "VK_ERROR_OUT_OF_DEVICE_MEMORY" in reasons[keys[3]]
    again = await compiled(archive, folder, Opener(), mode=mode)
    assert counts(again) == {"compiled": 2, "cache_hit": COUNT - 2}


@pytest.mark.parametrize("mode", MODES)
async def test_no_memory_to_create_a_cache(archive: Path, folder: Path, mode: CacheMode) -> None:
    opener = Opener(DriverBugs(out_of_memory_operations={CacheOperation.CREATE}))
    report = await compiled(archive, folder, opener, mode=mode)
    assert counts(report) == {"compiled": COUNT}
    assert report.mode is CacheMode.NONE
    told(report, "the driver creates no pipeline cache")


@pytest.mark.parametrize("mode", MODES)
async def test_no_memory_to_read_a_cache(archive: Path, folder: Path, mode: CacheMode) -> None:
    await compiled(archive, folder, Opener(), mode=mode)
    path = cache_path(folder, Opener()(DeviceRequest()).identity)
    before = path.read_bytes()
    report = await compiled(
        archive, folder, Opener(DriverBugs(out_of_memory_operations={CacheOperation.READ})), mode=mode
    )
    assert sum(counts(report).values()) == COUNT
    assert not counts(report).get("failed")
    assert any("vkGetPipelineCacheData" in each for each in (report.cache_file.error or "", *report.notes))
    # The file is not to blame, and not lost.
    assert path.read_bytes() == before
    assert not (folder / "quarantine").exists()


async def test_no_memory_to_merge(archive: Path, folder: Path) -> None:
    bugs = DriverBugs(out_of_memory_operations={CacheOperation.MERGE})
    report = await compiled(archive, folder, Opener(bugs))
    assert counts(report) == {"compiled": COUNT}
    assert "VK_ERROR_OUT_OF_HOST_MEMORY" in told(report, "the merge of all worker caches failed")


async def test_what_a_refused_merge_lost_is_not_noted_as_held(
    archive: Path, folder: Path, tmp_path: Path
) -> None:
    opener = Opener()
    await compiled(archive, folder, opener)
    path = cache_path(folder, opener.device.identity)
    assert len(read_contents(path)) == COUNT
    larger = tmp_path / "larger.foz"
    write_small_set(larger, 0, 2 * COUNT)
    for bugs in (
        DriverBugs(out_of_memory_operations={CacheOperation.MERGE}),
        DriverBugs(merge_does_nothing=True),
    ):
        report = await compiled(larger, folder, Opener(bugs), mode=CacheMode.PER_WORKER)
        assert counts(report) == {"compiled": COUNT, "cache_hit": COUNT}
        assert report.runs[0].merge is not None
        assert report.runs[0].merge.unmerged > 0
        assert len(read_contents(path)) == COUNT


# --- what ends the process, or never ends: in children, which have the device from here

CRASHER, HANGER = compute_keys()[2], compute_keys()[4]


def open_crasher(request: DeviceRequest) -> SimulatedDevice:
    """For a trial process."""
    return Opener(DriverBugs(crash={CRASHER}))(request)


def open_hanger(request: DeviceRequest) -> SimulatedDevice:
    """For a trial process."""
    return Opener(DriverBugs(hang={HANGER}))(request)


@pytest.mark.parametrize(
    ("name", "key", "words"),
    [("open_crasher", CRASHER, "SIGABRT"), ("open_hanger", HANGER, "did not come back from it within 3 s")],
)
async def test_a_crash_and_a_hang(archive: Path, folder: Path, name: str, key: int, words: str) -> None:
    opener = Opener(
        DriverBugs(crash={CRASHER} if key == CRASHER else (), hang={key} if key == HANGER else ())
    )
    report = await compiled(
        archive,
        folder,
        opener,
        spirv_val=ModulePolicy.ISOLATE,
        # Long for the others' sake: a busy machine is no hang.
        trial_limits=TrialLimits(pipeline_s=3.0, opener=f"{__name__}:{name}"),
        stop=Steering(try_pipelines=try_pipelines),
    )
    assert counts(report) == {"compiled": COUNT - 1, "failed": 1}
    (failed,) = report.of_status(OutcomeStatus.FAILED)
    assert failed.job.key == key
    assert words in failed.reason
    told(report, f"the driver survived {COUNT - 1}, and not 1")


async def test_one_pipeline_key_for_all_is_told_and_not_used(archive: Path, folder: Path) -> None:
    """NVIDIA 580.159 and its ray-tracing pipelines: 87 of 88 were taken for duplicates of the first."""
    several = len(compute_keys())  # of different code
    write_small_set(archive, 0, several)
    opener = Opener(DriverBugs(one_pipeline_key={PipelineKind.COMPUTE}))
    report = await compiled(archive, folder, opener, mode=CacheMode.PER_WORKER, pipeline_keys="all")
    assert counts(report) == {"compiled": several}
    assert report.saved.by_pipeline_key == 0
    assert "one pipeline key to compute pipelines of different code" in told(report, "one pipeline key")
    # Remembered by device: where nothing else is known, they are not asked for any more.
    assert read_distrusted(folder, opener.device.identity) == (frozenset({PipelineKind.COMPUTE}), "")
    other = folder.with_name("other")
    other.mkdir(mode=0o700)
    asked = await compiled(archive, other, opener, mode=CacheMode.PER_WORKER, pipeline_keys="all")
    assert asked.saved.keys_asked == several
    fresh = folder.with_name("fresh")
    fresh.mkdir(mode=0o700)
    (kept,) = folder.glob("*.distrusted-keys.json")
    (fresh / kept.name).write_bytes(kept.read_bytes())
    (fresh / kept.name).chmod(0o600)
    known = await compiled(archive, fresh, opener, mode=CacheMode.PER_WORKER, pipeline_keys="all")
    assert known.saved.keys_asked == 0
    assert not any("one pipeline key" in each for each in known.notes)
