"""Saves that lose nothing of what others saved."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attrs import evolve

from orchestrator.devices.device import PipelineCache
from orchestrator.devices.simulated import (
    CacheOperation,
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_features,
    simulated_identity,
)
from orchestrator.errors import DriverError, ExternalSynchronizationError
from orchestrator.stores.cache_file import (
    LoadStatus,
    SaveReport,
    cache_path,
    load_into_cache,
    read_cache_file,
    save_cache_file,
    save_merged,
    stored_data_hash,
)
from orchestrator.stores.files.atomic_file import FileOperations, SaveError, files_through
from orchestrator.stores.files.fault_injection import FaultyFileOperations
from orchestrator.stores.files.writer_lock import writer_lock
from tests.stores.faults.sets import (
    IDENTITY,
    NOTHING,
    OLD,
    OLDER,
    OURS,
    UNION,
    Keys,
    compile_keys,
    data_of,
    file_of,
    loaded_keys,
    path_in,
    readable,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return path_in(tmp_path / "caches")


def with_bugs(bugs: DriverBugs) -> SimulatedDevice:
    return SimulatedDevice(SimulatedOptions(bugs=bugs))


def cache_with(device: SimulatedDevice, keys: Keys, *, flagged: bool = False) -> PipelineCache:
    cache = device.create_pipeline_cache(externally_synchronized=flagged, name="ours")
    compile_keys(device, cache, keys)
    return cache


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(content)


def status_found(report: SaveReport) -> LoadStatus:
    assert report.found is not None
    return report.found.status


@pytest.mark.parametrize("flagged", [True, False])
def test_two_that_compiled_different_pipelines_lose_neither(path: Path, flagged: bool) -> None:
    first, second = SimulatedDevice(), SimulatedDevice()
    ours = cache_with(second, OURS, flagged=flagged)
    report = save_merged(first, path, cache_with(first, OLD))
    assert report.saved_bytes == path.stat().st_size
    assert (report.skipped, report.bytes_before, report.added_bytes) == (None, 0, len(data_of(OLD)))
    report = save_merged(second, path, ours)
    assert loaded_keys(path) == (UNION, LoadStatus.LOADED)
    assert (status_found(report), report.note, report.leftovers) == (LoadStatus.LOADED, "", ())
    assert (report.bytes_before, report.bytes_after) == (len(data_of(OLD)), len(data_of(UNION)))
    # Ours is as it was, and nothing else is left.
    assert second.pipeline_cache_size(ours) == len(data_of(OURS))
    assert second.live_caches == 1


@pytest.mark.parametrize("flags", [True, False])
def test_data_is_merged_as_a_cache_is_on_any_device(path: Path, flags: bool) -> None:
    features = simulated_features(externally_synchronized_caches=flags)
    device = SimulatedDevice(evolve(SimulatedOptions(), features=features))
    assert status_found(save_merged(device, path, data_of(OLD))) is LoadStatus.MISSING
    save_merged(device, path, data_of(OURS))
    assert loaded_keys(path)[0] == UNION
    assert device.live_caches == 0


def test_nothing_new_writes_nothing_but_makes_the_name_last(path: Path) -> None:
    put(path, file_of(UNION))
    before = path.stat().st_mtime_ns
    operations = FaultyFileOperations()
    with files_through(operations):
        report = save_merged(SimulatedDevice(), path, data_of(OURS))
    assert (report.saved_bytes, report.added_bytes) == (0, 0)
    assert report.skipped == "nothing is new: what is there holds all of it"
    assert path.stat().st_mtime_ns == before
    names = [call.name for call in operations.calls]
    assert (names.count("sync_directory"), names.count("rename")) == (1, 0)

    class Broken(FileOperations):
        def sync_directory(self, directory: Path) -> None:
            raise OSError(5, os.strerror(5))

    with files_through(Broken()), pytest.raises(SaveError, match="fsync of the directory failed"):
        save_merged(SimulatedDevice(), path, data_of(OURS))


def test_without_the_lock_nothing_is_done(path: Path) -> None:
    put(path, file_of(OLD))
    with writer_lock(path) as held:
        assert held
        report = save_merged(SimulatedDevice(), path, data_of(OURS), lock_wait_s=0)
    assert (report.saved_bytes, report.found) == (0, None)
    assert report.skipped == "another process is saving this file, and did not finish within 0 s"
    assert readable(path) == [OLD]


@pytest.mark.parametrize(("older", "gives"), [(OLDER, OLDER | OURS), (UNION, UNION)])
def test_what_is_damaged_is_replaced_by_what_the_previous_one_gives(
    path: Path, older: Keys, gives: Keys
) -> None:
    device = SimulatedDevice()
    save_merged(device, path, data_of(older))
    save_merged(device, path, data_of(frozenset({99})))
    path.write_bytes(path.read_bytes()[:-1])
    report = save_merged(device, path, data_of(OURS))
    assert report.skipped is None
    assert report.found is not None
    assert report.found.instead_of is not None
    assert report.found.instead_of.status is LoadStatus.TRUNCATED
    assert readable(path) == [gives, older]


def test_another_driver_s_file_is_replaced(path: Path) -> None:
    bugs = DriverBugs(uuid_not_bumped=True)
    old, new = (
        SimulatedDevice(SimulatedOptions(identity=simulated_identity(driver_version=version), bugs=bugs))
        for version in (1, 2)
    )
    path = cache_path(path.parent, new.identity)
    assert cache_path(path.parent, old.identity) == path
    save_merged(old, path, cache_with(old, OLD))
    report = save_merged(new, path, cache_with(new, OURS))
    assert report.found is not None
    assert (report.found.status, report.found.field) == (LoadStatus.OTHER_DRIVER, "driverVersion")
    assert load_into_cache(new, path)[1].status is LoadStatus.LOADED


class Unreadable(FileOperations):
    """The current file, or the previous one, cannot be read."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix

    def open_existing(self, path: Path) -> int:
        if path.name.endswith(self.suffix):
            raise OSError(5, os.strerror(5))
        return super().open_existing(path)


@pytest.mark.parametrize("suffix", [".pipeline-cache", ".previous"])
def test_what_cannot_be_read_is_not_replaced(path: Path, suffix: str) -> None:
    put(path, file_of(OLD) if suffix == ".pipeline-cache" else b"damaged")
    path.with_name(path.name + ".previous").write_bytes(file_of(OLDER))
    before = sorted((each.name, each.read_bytes()) for each in path.parent.iterdir())
    with files_through(Unreadable(suffix)):
        report = save_merged(SimulatedDevice(), path, data_of(OURS))
    assert (report.saved_bytes, report.lost) == (0, True)
    assert "is not replaced, since it may be good: UNREADABLE: " in (report.skipped or "")
    after = [each for each in path.parent.iterdir() if each.suffix != ".lock"]
    assert sorted((each.name, each.read_bytes()) for each in after) == before


CAP = "orchestrator.stores.cache_file.CACHE_FILE_CAP"


def over_the_cap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CAP, path.stat().st_size - 1)


def distrusted(path: Path, _: pytest.MonkeyPatch) -> None:
    path.chmod(0o664)


def of_another_version(path: Path, _: pytest.MonkeyPatch) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:8] + bytes([content[8] + 1]) + content[9:])


@pytest.mark.parametrize(
    ("spoil", "status"),
    [
        (over_the_cap, "TOO_LARGE"),
        (distrusted, "UNTRUSTED_PERMISSIONS"),
        (of_another_version, "UNSUPPORTED_VERSION"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".previous"])
def test_what_may_be_good_for_others_is_kept_in_the_quarantine(
    path: Path,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
    status: str,
    suffix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = path.with_name(path.name + suffix)
    put(there, file_of(UNION))
    spoil(there, monkeypatch)
    content = there.read_bytes()
    report = save_merged(SimulatedDevice(), path, data_of(OLDER))
    [moved] = path.parent.glob("quarantine/*")
    assert moved.read_bytes() == content
    assert report.note == f"{there} was {status}, and is now {moved}"
    assert readable(path) == [OLDER]


def test_what_is_over_the_cap_when_merged_does_not_keep_later_ones_out(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(path, file_of(OLD))
    monkeypatch.setattr(CAP, max(len(file_of(OLD)), len(file_of(OURS))))
    report = save_merged(SimulatedDevice(), path, data_of(OURS))
    assert "ours alone is saved" in report.note
    assert readable(path) == [OURS, OLD]
    monkeypatch.setattr(CAP, len(file_of(OURS)) - 1)
    report = save_merged(SimulatedDevice(), path, data_of(OURS))
    assert report.lost
    assert "more than" in (report.skipped or "")


@pytest.mark.parametrize(
    "bugs", [DriverBugs(merge_does_nothing=True), DriverBugs(out_of_memory_operations={CacheOperation.MERGE})]
)
@pytest.mark.parametrize(("there", "kept"), [(OLDER, OURS), (UNION, UNION)])
def test_a_driver_that_does_not_merge_costs_no_more_than_the_smaller_one(
    path: Path, bugs: DriverBugs, there: Keys, kept: Keys
) -> None:
    put(path, file_of(there))
    device = with_bugs(bugs)
    report = save_merged(device, path, data_of(OURS))
    why = "would not merge: vkMerge" if bugs.out_of_memory_operations else "this driver does not merge"
    sizes = f"of what was there ({len(data_of(there))} bytes) and our cache ({len(data_of(OURS))} bytes)"
    assert why in report.note
    assert sizes in report.note
    assert loaded_keys(path)[0] == kept
    assert (report.saved_bytes == 0) == (there == UNION)
    assert report.lost
    assert device.live_caches == 0


class OneSource(SimulatedDevice):
    """A driver that merges one source of several and says success."""

    def __init__(self, merged: int) -> None:
        super().__init__()
        self.merged = merged

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        super().merge_pipeline_caches(destination, [sources[self.merged]])


@pytest.mark.parametrize("merged", [0, -1])
def test_a_driver_that_merges_one_source_only_costs_nothing(path: Path, merged: int) -> None:
    put(path, file_of(OLDER))
    device = OneSource(merged)
    report = save_merged(device, path, cache_with(device, OURS))
    assert loaded_keys(path)[0] == OLDER | OURS
    assert (report.note, report.lost, device.live_caches) == ("", False, 1)


def test_what_ours_began_with_needs_no_merge(path: Path) -> None:
    put(path, file_of(OLDER))
    device = with_bugs(DriverBugs(merge_does_nothing=True))
    before = stored_data_hash(path)
    assert before is not None
    report = save_merged(device, path, cache_with(device, UNION), includes={before})
    assert (loaded_keys(path)[0], report.note, report.lost) == (UNION, "", False)


def test_a_driver_that_drops_what_it_is_given_keeps_ours(path: Path) -> None:
    put(path, file_of(OLD))
    device = with_bugs(DriverBugs(initial_data_dropped=True))
    report = save_merged(device, path, cache_with(device, OURS))
    assert status_found(report) is LoadStatus.DROPPED_BY_DRIVER
    assert readable(path)[0] == OURS
    assert device.live_caches == 1


def test_a_driver_that_gives_no_data_is_the_caller_s_to_know(path: Path) -> None:
    device = with_bugs(DriverBugs(out_of_memory_operations={CacheOperation.READ}))
    with pytest.raises(DriverError, match="vkGetPipelineCacheData"):
        save_merged(device, path, device.create_pipeline_cache())
    assert not path.parent.exists()


class Busy(SimulatedDevice):
    """Its caches come into use when they are merged."""

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        with sources[-1].using("compiling"):
            super().merge_pipeline_caches(destination, sources)


@pytest.mark.parametrize("device", [SimulatedDevice(), Busy()], ids=["before", "meanwhile"])
def test_a_cache_in_use_is_not_merged(path: Path, device: SimulatedDevice) -> None:
    put(path, file_of(OLD))
    ours = cache_with(device, OURS, flagged=True)
    if isinstance(device, Busy):
        with pytest.raises(ExternalSynchronizationError):
            save_merged(device, path, ours)
    else:
        with ours.using("compiling"), pytest.raises(ExternalSynchronizationError):
            save_merged(device, path, ours)
    assert readable(path) == [OLD]
    assert device.live_caches == 1
    with writer_lock(path, wait_s=0) as held:
        assert held


def test_only_what_the_policy_accepts_is_merged(path: Path) -> None:
    put(path, file_of(OLD))
    identity = evolve(IDENTITY, driver_version=IDENTITY.driver_version + 1)
    updated = SimulatedDevice(SimulatedOptions(identity=identity))
    report = save_merged(updated, path, data_of(OURS), relax_driver_version=True)
    assert report.found is not None
    assert "accepted by policy" in report.found.detail
    assert report.added_bytes > 0
    assert read_cache_file(path, identity).status is LoadStatus.LOADED
    assert save_cache_file(path, IDENTITY, data_of(OLD)).saved_bytes
    assert save_merged(updated, path, data_of(OURS)).bytes_before == 0
    assert loaded_keys(path.with_name("other")) == (NOTHING, LoadStatus.MISSING)
