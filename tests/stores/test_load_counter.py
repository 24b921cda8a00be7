"""Deaths while a cache file loads: one proves nothing, two in a row give the content up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from orchestrator.devices.device import PipelineCache
from orchestrator.devices.simulated import SimulatedDevice
from orchestrator.errors import DriverError
from orchestrator.stores.cache_file import (
    LoadResult,
    LoadStatus,
    PipelineCachePrefixHeader,
    is_accused,
    load_into_cache,
)
from orchestrator.stores.files.recovery import (
    deaths_of,
    forgive_load,
    forgive_loads,
    loading_path,
    previous_path,
)
from orchestrator.stores.files.writer_lock import writer_lock
from tests.stores.children import forked
from tests.stores.faults.sets import (
    OLD,
    OLDER,
    OURS,
    die_loading,
    file_of,
    keys_in,
    path_in,
)

DATA_HASH = PipelineCachePrefixHeader.unpack(file_of(OLD)).data_hash


class Crashing(SimulatedDevice):
    def create_pipeline_cache(self, initial_data: bytes = b"", **options: object) -> PipelineCache:
        if initial_data:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().create_pipeline_cache(initial_data, **options)  # type: ignore[arg-type]


def crashes(path: Path) -> bool:
    """Whether a process dies when it loads a file with a driver that dies of any data."""
    status = os.waitpid(forked(lambda: load_into_cache(Crashing(), path)), 0)[1]
    assert os.WIFSIGNALED(status) or status == 0
    return os.WIFSIGNALED(status)


def load(path: Path) -> tuple[frozenset[int], LoadResult]:
    device = SimulatedDevice()
    cache, result = load_into_cache(device, path)
    return keys_in(device.pipeline_cache_data(cache).data), result


@pytest.fixture
def path(fast_path: Path) -> Path:
    path = path_in(fast_path)
    path.write_bytes(file_of(OLD))
    return path


def test_a_crash_loop_ends_at_the_third_start_and_loses_nothing(path: Path) -> None:
    for accused in (False, True):
        assert crashes(path)
        assert is_accused(path, DATA_HASH) == accused
    assert not crashes(path)
    assert not path.exists()
    assert [each.read_bytes() for each in path.parent.glob("quarantine/*")] == [file_of(OLD)]
    assert load(path)[1].status is LoadStatus.MISSING


def test_one_death_proves_nothing_and_a_load_clears_it(path: Path) -> None:
    for _ in range(3):
        die_loading(path, OLD)
        assert load(path)[0] == OLD
    assert path.read_bytes() == file_of(OLD)


def test_what_crashed_is_not_loaded_and_the_previous_one_is(path: Path) -> None:
    previous_path(path).write_bytes(file_of(OLDER))
    die_loading(path, OLD, times=2)
    keys, result = load(path)
    assert (keys, result.status) == (OLDER, LoadStatus.LOADED)
    assert result.instead_of is not None
    assert result.instead_of.status is LoadStatus.CRASHED_LAST_TIME
    assert result.instead_of.quarantined is not None
    assert "2 processes in a row died while the driver was given this data" in result.detail


def test_each_generation_has_its_own_crashes(path: Path) -> None:
    previous_path(path).write_bytes(file_of(OLDER))
    die_loading(path, OLD, times=2)
    die_loading(path, OLDER, times=2)
    assert load(path)[1].status is LoadStatus.CRASHED_LAST_TIME
    assert {each.read_bytes() for each in path.parent.glob("quarantine/*")} == {file_of(OLD), file_of(OLDER)}


def test_deaths_that_the_file_did_not_cause_are_forgiven(path: Path) -> None:
    forgive_load(path)
    for _ in range(3):
        die_loading(path, OLD)
        forgive_load(path)
    assert deaths_of(path, DATA_HASH) == 0
    die_loading(path, OLD, times=5)
    forgive_loads(path.parent)
    assert load(path)[0] == OLD


def test_processes_that_load_at_once_do_not_take_each_other_for_dead(path: Path) -> None:
    class Nested(SimulatedDevice):
        depth = 0

        def create_pipeline_cache(self, initial_data: bytes = b"", **options: object) -> PipelineCache:
            Nested.depth += 1
            if initial_data and Nested.depth < 5:
                load_into_cache(Nested(), path)
            return super().create_pipeline_cache(initial_data, **options)  # type: ignore[arg-type]

    assert load_into_cache(Nested(), path)[1].status is LoadStatus.LOADED
    assert Nested.depth == 5
    assert deaths_of(path, DATA_HASH) == 0


def test_deaths_accuse_data_and_not_a_name(path: Path) -> None:
    die_loading(path, OURS, times=9)
    assert load(path)[0] == OLD


def test_a_driver_that_fails_is_no_death(path: Path) -> None:
    class Failing(SimulatedDevice):
        def create_pipeline_cache(self, initial_data: bytes = b"", **options: object) -> PipelineCache:
            raise DriverError("vkCreatePipelineCache", -1, "no")

    for _ in range(3):
        with pytest.raises(DriverError):
            load_into_cache(Failing(), path)
    assert deaths_of(path, DATA_HASH) == 0


def test_where_deaths_cannot_be_counted_the_load_goes_on(path: Path) -> None:
    loading_path(path).mkdir()
    keys, result = load(path)
    assert keys == OLD
    assert "crashes of this load are not counted" in result.detail


def test_what_crashed_stays_where_a_process_is_saving(path: Path) -> None:
    die_loading(path, OLD, times=2)
    with writer_lock(path):
        assert "it stays, since a process is saving" in load(path)[1].detail
    assert path.exists()
