"""The sentinel around what may crash: real processes that die with it, and those that do not."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.devices.device import PipelineCache
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.errors import DriverError
from orchestrator.stores.cache_file import (
    LoadPolicy,
    LoadResult,
    LoadStatus,
    load_into_cache,
    save_cache_file,
    save_merged,
)
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.files.fault_injection import Fault, FaultyFileOperations, ProcessKilledError
from orchestrator.stores.files.recovery import (
    DeadSentinel,
    dead_sentinels,
    loading_sentinel,
    previous_path,
    settle_death,
)
from orchestrator.stores.files.writer_lock import writer_lock
from tests.drivers import REPOSITORY
from tests.stores.faults.operations_under_test import sentinel_of
from tests.stores.faults.sets import (
    IDENTITY,
    NOTHING,
    OLD,
    OLDER,
    OURS,
    UNION,
    data_of,
    file_of,
    keys_in,
    path_in,
)

# A driver that takes the process down when it is given data.
CRASHING = """
import os, sys
from pathlib import Path
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.stores.cache_file import load_into_cache
class Crashing(SimulatedDevice):
    def create_pipeline_cache(self, initial_data=b"", **options):
        if initial_data:
            os.abort()
        return super().create_pipeline_cache(initial_data, **options)
cache, result = load_into_cache(Crashing(), Path(sys.argv[1]))
print(result.status, result.instead_of and result.instead_of.status)
"""


def start_crashing(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CRASHING, str(path)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def load(path: Path, *, tolerated_crashes: int = 1) -> tuple[frozenset[int], LoadResult]:
    device = SimulatedDevice()
    cache, result = load_into_cache(device, path, LoadPolicy(tolerated_crashes=tolerated_crashes))
    return keys_in(device.pipeline_cache_data(cache).data), result


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = path_in(tmp_path)
    path.write_bytes(file_of(OLD))
    return path


def sentinels(path: Path) -> list[Path]:
    return list(path.parent.glob(".*.loading"))


def accused(path: Path, content: bytes = file_of(OLD), deaths: int = 2) -> None:
    for number in range(deaths):
        sentinel_of(path, content, number)


def test_a_crash_loop_ends_at_the_third_start_and_loses_nothing(path: Path) -> None:
    assert start_crashing(path).returncode < 0
    assert start_crashing(path).returncode < 0
    assert len(sentinels(path)) == 2
    third = start_crashing(path)
    assert (third.returncode, third.stdout.split()) == (0, ["CRASHED_LAST_TIME", "None"])
    # It stays as a generation, accused as before.
    assert not path.exists()
    assert previous_path(path).read_bytes() == file_of(OLD)
    fourth = start_crashing(path)
    assert (fourth.returncode, fourth.stdout.split()) == (0, ["CRASHED_LAST_TIME", "MISSING"])
    assert previous_path(path).read_bytes() == file_of(OLD)


def test_one_death_proves_nothing_and_a_load_clears_it(path: Path) -> None:
    for _ in range(3):
        accused(path, deaths=1)
        assert load(path)[0] == OLD
        assert sentinels(path) == []
    assert path.read_bytes() == file_of(OLD)


def test_processes_that_were_killed_together_count_once(path: Path) -> None:
    for number in range(3):
        sentinel_of(path, file_of(OLD), 7).rename(path.with_name(f".{path.name}.{number:016x}.loading"))
    assert len(sentinels(path)) == 3
    assert load(path)[0] == OLD


def test_what_was_given_up_goes_when_a_newer_one_has_loaded(path: Path) -> None:
    accused(path)
    assert load(path)[1].status is LoadStatus.CRASHED_LAST_TIME
    device = SimulatedDevice()
    report = save_merged(device, path, data_of(OURS))
    assert report.saved_bytes
    assert previous_path(path).read_bytes() == file_of(OLD)
    assert load(path)[0] == OURS
    assert not previous_path(path).exists()
    assert save_merged(
        device, path, data_of(frozenset({30}))
    ).saved_bytes  # which sweeps what accuses nothing any more
    assert sentinels(path) == []


def test_what_was_given_up_loads_after_a_restart_of_the_machine(path: Path) -> None:
    accused(path)
    load(path)

    class Restarted(FileOperations):
        def boot_id(self) -> str:
            return "another-boot"

    _, result = load_into_cache(SimulatedDevice(), path, operations=Restarted())
    assert result.status is LoadStatus.LOADED
    assert result.instead_of is not None


def test_each_generation_has_its_own_crashes(path: Path) -> None:
    previous_path(path).write_bytes(file_of(OLDER))
    # Two die of the current one, two of the previous one, the fifth has neither.
    for _ in range(4):
        assert start_crashing(path).returncode < 0
    fifth = start_crashing(path)
    assert (fifth.returncode, fifth.stdout.split()) == (0, ["CRASHED_LAST_TIME", "MISSING"])
    assert [each.read_bytes() for each in path.parent.glob("quarantine/*")] == [file_of(OLD)]
    assert previous_path(path).read_bytes() == file_of(OLDER)


def test_what_crashed_is_not_loaded_and_the_previous_one_is(path: Path) -> None:
    previous_path(path).write_bytes(file_of(OLDER))
    accused(path)
    keys, result = load(path)
    assert (keys, result.status) == (OLDER, LoadStatus.LOADED)
    assert result.instead_of is not None
    assert result.instead_of.status is LoadStatus.CRASHED_LAST_TIME
    assert result.instead_of.quarantined is not None
    assert "2 processes in a row (ids 4242, 4242) died while the driver was given this data" in result.detail
    assert sentinels(path) == []


@pytest.mark.parametrize("crashed", [True, False])
def test_a_supervisor_that_saw_the_death_is_believed(path: Path, crashed: bool) -> None:
    """A real process that dies in the driver; the supervisor says how."""
    process = subprocess.Popen([sys.executable, "-c", CRASHING, str(path)], cwd=REPOSITORY)
    assert process.wait() < 0
    assert settle_death(path, process.pid, crashed=crashed)
    assert len(sentinels(path)) == int(crashed)
    keys, result = load(path)
    if crashed:
        assert (keys, result.status) == (NOTHING, LoadStatus.CRASHED_LAST_TIME)
        assert settle_death(path, process.pid, crashed=True)  # told twice: as before
        assert len(sentinels(path)) == 1
        assert settle_death(path, process.pid, crashed=False)
        assert load(path)[0] == OLD
    else:
        assert (keys, result.status) == (OLD, LoadStatus.LOADED)
    assert not settle_death(path, process.pid, crashed=crashed)


def test_a_supervisor_speaks_of_its_own_process_only(path: Path) -> None:
    accused(path)
    assert not settle_death(path, 4243, crashed=False)
    assert len(sentinels(path)) == 2
    with loading_sentinel(path, bytes(16), REAL_FILE_OPERATIONS):
        assert not settle_death(path, os.getpid(), crashed=True)  # it lives


def test_a_crash_is_forgiven_as_often_as_is_said(path: Path) -> None:
    accused(path, deaths=3)
    assert load(path, tolerated_crashes=3)[0] == OLD
    # It loaded, so that those deaths are no evidence any more.
    assert sentinels(path) == []
    accused(path, deaths=3)
    keys, result = load(path, tolerated_crashes=2)
    assert (keys, result.status) == (NOTHING, LoadStatus.CRASHED_LAST_TIME)


def test_a_process_that_loads_is_no_crash(path: Path) -> None:
    data_hash = load(path)[1].data_hash
    with loading_sentinel(path, data_hash, REAL_FILE_OPERATIONS) as problems:
        assert len(sentinels(path)) == 1
        assert load(path)[0] == OLD
        assert len(sentinels(path)) == 1
    assert problems == []
    assert sentinels(path) == []


def test_a_sentinel_accuses_data_and_not_a_name(path: Path) -> None:
    sentinel_of(path, file_of(OURS))
    assert load(path)[0] == OLD
    assert path.exists()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"loading ",
        f"loading {load.__name__} by 1 on x after 0\n".encode(),
        f"loading {'0' * 32} by 4242 on {REAL_FILE_OPERATIONS.boot_id()} after 0".encode(),
        f"loading {'0' * 32} by 4242 on another-boot after 0\n".encode(),
        b"\xff" * 1000,
    ],
)
def test_a_line_that_is_not_whole_or_of_another_boot_accuses_nothing(path: Path, line: bytes) -> None:
    sentinel = path.with_name(f".{path.name}.{'0' * 16}.loading")
    sentinel.write_bytes(line)
    (found,) = dead_sentinels(path, REAL_FILE_OPERATIONS, [sentinel.name])
    assert (found.path, found.data_hash, found.process_id) == (sentinel, b"", 0)
    assert load(path)[0] == OLD


def test_a_sentinel_that_is_disarmed_while_it_is_looked_at_accuses_nothing(path: Path) -> None:
    sentinel = sentinel_of(path, file_of(OLD))

    class Disarming(FileOperations):
        """Its process cuts it between the first look and the lock."""

        def try_lock(self, descriptor: int, *, shared: bool = False) -> bool:
            os.truncate(sentinel, 0)
            return super().try_lock(descriptor, shared=shared)

    assert dead_sentinels(path, Disarming(), [sentinel.name]) == ()


def test_two_that_look_at_once_both_see_the_crash(path: Path) -> None:
    sentinel = sentinel_of(path, file_of(OLD))
    seen_by_the_other: list[DeadSentinel] = []

    class Accompanied(FileOperations):
        """Another process looks while this one holds its lock."""

        def try_lock(self, descriptor: int, *, shared: bool = False) -> bool:
            held = super().try_lock(descriptor, shared=shared)
            seen_by_the_other.extend(dead_sentinels(path, REAL_FILE_OPERATIONS, [sentinel.name]))
            return held

    (seen,) = dead_sentinels(path, Accompanied(), [sentinel.name])
    assert seen.data_hash
    assert seen_by_the_other == [seen]


def test_where_no_sentinel_can_be_made_the_load_goes_on(path: Path) -> None:
    class Full(FileOperations):
        def open_new(self, path: Path) -> int:
            raise OSError(28, "No space left on device")

    device = SimulatedDevice()
    _, result = load_into_cache(device, path, operations=Full())
    assert result.status is LoadStatus.LOADED
    assert "loaded without a sentinel against crashes: No space left on device" in result.detail


class Stuck(FileOperations):
    """Sentinels cannot be cut, or not removed, or neither."""

    def __init__(self, *, cut: bool, removed: bool) -> None:
        self.cut = cut
        self.removed = removed

    def truncate(self, descriptor: int) -> None:
        if not self.cut:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(descriptor)

    def unlink(self, path: Path) -> None:
        if not self.removed:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        super().unlink(path)


WARNING = "; remove it, or the loaded file is taken for one that crashes"


def test_a_sentinel_that_cannot_be_cut_is_removed_and_accuses_nobody(path: Path) -> None:
    _, result = load_into_cache(SimulatedDevice(), path, operations=Stuck(cut=False, removed=True))
    assert result.status is LoadStatus.LOADED
    assert f"could not be cut: {os.strerror(errno.EIO)}" in result.detail
    assert "removed" not in result.detail
    assert sentinels(path) == []


def test_a_sentinel_that_was_cut_and_stays_accuses_nobody(path: Path) -> None:
    _, result = load_into_cache(SimulatedDevice(), path, operations=Stuck(cut=True, removed=False))
    assert result.status is LoadStatus.LOADED
    assert f"could not be removed: {os.strerror(errno.EACCES)}" in result.detail
    assert WARNING not in result.detail
    assert len(sentinels(path)) == 1
    assert load(path)[0] == OLD


def test_a_sentinel_that_can_neither_be_cut_nor_removed_is_named_with_what_it_does(path: Path) -> None:
    _, result = load_into_cache(SimulatedDevice(), path, operations=Stuck(cut=False, removed=False))
    assert result.status is LoadStatus.LOADED
    assert "could not be cut" in result.detail
    (left,) = sentinels(path)
    assert f"{left} could not be removed: {os.strerror(errno.EACCES)}" in result.detail
    assert result.detail.endswith(WARNING)
    # As it says.
    assert load(path, tolerated_crashes=0)[1].status is LoadStatus.CRASHED_LAST_TIME


def test_a_driver_that_fails_leaves_no_sentinel(path: Path) -> None:
    class Failing(SimulatedDevice):
        def create_pipeline_cache(self, initial_data: bytes = b"", **options: object) -> PipelineCache:
            raise DriverError("vkCreatePipelineCache", -1, "VK_ERROR_OUT_OF_HOST_MEMORY")

    with pytest.raises(DriverError):
        load_into_cache(Failing(), path)
    assert sentinels(path) == []
    assert path.exists()


def test_what_crashed_stays_where_a_process_is_saving(path: Path) -> None:
    accused(path)
    with writer_lock(path) as held:
        assert held
        keys, result = load(path)
    assert (keys, result.status, result.quarantined) == (NOTHING, LoadStatus.CRASHED_LAST_TIME, None)
    assert "it stays, since a process is saving" in result.detail
    # And goes on being accused.
    assert len(sentinels(path)) == 2
    assert path.exists()
    assert load(path)[1].status is LoadStatus.CRASHED_LAST_TIME
    assert not path.exists()


def test_what_was_saved_meanwhile_is_not_moved_away(path: Path) -> None:
    accused(path)

    class Meanwhile(FileOperations):
        """Another process saves just before the lock is asked for."""

        done = False

        def open_lock(self, path: Path) -> int:
            if not self.done:
                self.done = True
                save_cache_file(path.with_suffix(""), IDENTITY, data_of(OURS))
            return super().open_lock(path)

    _, result = load_into_cache(SimulatedDevice(), path, operations=Meanwhile())
    # The accused one is the previous generation now, and goes in its turn.
    assert result.status is LoadStatus.CRASHED_LAST_TIME
    assert "it was replaced meanwhile" in result.detail
    assert load(path)[0] == OURS


def test_a_merge_does_not_give_the_driver_what_crashed(path: Path) -> None:
    accused(path)
    device = SimulatedDevice()
    report = save_merged(device, path, data_of(OURS))
    assert report.found is not None
    assert report.found.status is LoadStatus.CRASHED_LAST_TIME
    assert load(path)[0] == OURS
    assert device.live_caches == 0
    report = save_merged(device, path, data_of(OLD))
    assert load(path)[0] == UNION


def test_a_kill_in_the_driver_is_a_crash(path: Path) -> None:
    clean = FaultyFileOperations()
    load_into_cache(SimulatedDevice(), path, operations=clean)
    at = [call.name for call in clean.calls].index("truncate")
    with pytest.raises(ProcessKilledError):
        load_into_cache(SimulatedDevice(), path, operations=FaultyFileOperations(Fault.KILL, at))
    assert load(path, tolerated_crashes=0)[1].status is LoadStatus.CRASHED_LAST_TIME
