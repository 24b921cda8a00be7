"""Cache files offered to a driver that obeys, and to drivers that do not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from attrs import evolve

from orchestrator.devices.device import FEEDBACK_APPLICATION_CACHE_HIT, Device, PipelineCache
from orchestrator.devices.simulated import (
    CacheOperation,
    DriverBugs,
    SimulatedDevice,
    SimulatedOptions,
    simulated_identity,
    simulated_image,
)
from orchestrator.errors import DeviceError, DriverError
from orchestrator.stores.cache_file import (
    LoadStatus,
    PipelineCachePrefixHeader,
    cache_path,
    load_into_cache,
    save_cache_file,
)

KEYS = range(1, 21)


def hits(device: Device, cache: PipelineCache) -> int:
    prepared = device.prepare(simulated_image(list(KEYS)))
    batch = device.create_pipelines(prepared, np.arange(len(KEYS), dtype=np.int32), cache)
    assert not batch.results.any()
    return int(np.count_nonzero(batch.feedback_flags & FEEDBACK_APPLICATION_CACHE_HIT))


def saved(directory: Path, device: SimulatedDevice | None = None) -> Path:
    """A cache file with the whole set."""
    device = SimulatedDevice() if device is None else device
    cache = device.create_pipeline_cache()
    assert hits(device, cache) == 0
    path = cache_path(directory, device.identity)
    report = save_cache_file(path, device.identity, device.pipeline_cache_data(cache).data)
    assert report.saved_bytes
    device.close()
    return path


def device_with(bugs: DriverBugs, version: int = 1) -> SimulatedDevice:
    return SimulatedDevice(SimulatedOptions(identity=simulated_identity(driver_version=version), bugs=bugs))


def test_the_second_run_hits_everything(tmp_path: Path) -> None:
    path = saved(tmp_path)
    device = SimulatedDevice()
    cache, result = load_into_cache(device, path, externally_synchronized=True, name="worker 3")
    assert (result.status, result.field, result.quarantined) == (LoadStatus.LOADED, None, None)
    assert (cache.externally_synchronized, cache.name) == (True, "worker 3")
    assert hits(device, cache) == len(KEYS)
    # A cache that was loaded and used is worth saving again, and loads again.
    again = save_cache_file(path, device.identity, device.pipeline_cache_data(cache).data)
    assert again.saved_bytes == path.stat().st_size


def test_a_driver_that_forgets_its_uuid_is_caught_by_its_version(tmp_path: Path) -> None:
    path = saved(tmp_path, device_with(DriverBugs(uuid_not_bumped=True), version=1))
    updated = device_with(DriverBugs(uuid_not_bumped=True), version=2)
    assert cache_path(tmp_path, updated.identity) == path
    cache, result = load_into_cache(updated, path)
    assert (result.status, result.field) == (LoadStatus.OTHER_DRIVER, "driverVersion")
    assert hits(updated, cache) == 0
    assert updated.driver.foreign_hits == 0
    # What the check is worth: without it the driver uses another compiler's code.
    trusting = device_with(DriverBugs(uuid_not_bumped=True), version=2)
    cache, result = load_into_cache(trusting, path, relax_driver_version=True)
    assert result.status is LoadStatus.LOADED
    hits(trusting, cache)
    assert trusting.driver.foreign_hits == len(KEYS)


def rejected(path: Path, device: SimulatedDevice) -> bytes:
    """Puts a proven file there whose payload this driver cannot take; returns its content."""
    data = path.read_bytes()[128:]
    bad = data[:-1] + bytes([data[-1] ^ 1])
    content = PipelineCachePrefixHeader.describe(device.identity, bad).pack() + bad
    path.write_bytes(content)
    return content


def test_what_the_driver_rejects_goes_to_the_quarantine(tmp_path: Path) -> None:
    path = saved(tmp_path)
    device = device_with(DriverBugs(create_fails_on_bad_data=True))
    content = rejected(path, device)
    cache, result = load_into_cache(device, path, externally_synchronized=True)
    assert (result.status, result.data) == (LoadStatus.REJECTED_BY_DRIVER, b"")
    assert "vkCreatePipelineCache returned VK_ERROR_INITIALIZATION_FAILED" in result.detail
    assert result.quarantined is not None
    assert result.quarantined.parent == tmp_path / "quarantine"
    assert result.quarantined.read_bytes() == content
    assert not path.exists()
    assert cache.externally_synchronized
    assert hits(device, cache) == 0
    assert load_into_cache(device, path)[1].status is LoadStatus.MISSING


def test_a_quarantine_that_cannot_be_made_is_reported_and_no_failure(tmp_path: Path) -> None:
    path = saved(tmp_path)
    device = device_with(DriverBugs(create_fails_on_bad_data=True))
    rejected(path, device)
    (tmp_path / "quarantine").write_bytes(b"")
    cache, result = load_into_cache(device, path)
    assert (result.status, result.quarantined) == (LoadStatus.REJECTED_BY_DRIVER, None)
    assert "it stays: " in result.detail
    assert hits(device, cache) == 0


def test_a_device_that_can_create_nothing_does_not_cost_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    device = device_with(DriverBugs(out_of_memory_operations=frozenset({CacheOperation.CREATE})))
    with pytest.raises(DriverError, match="VK_ERROR_OUT_OF_HOST_MEMORY"):
        load_into_cache(device, path)
    assert path.read_bytes() == content
    assert not (tmp_path / "quarantine").exists()


def test_a_cache_whose_size_cannot_be_asked_is_not_leaked(tmp_path: Path) -> None:
    path = saved(tmp_path)
    device = device_with(DriverBugs(out_of_memory_operations=frozenset({CacheOperation.READ})))
    with pytest.raises(DriverError, match="vkGetPipelineCacheData"):
        load_into_cache(device, path)
    assert device.live_caches == 0
    assert path.exists()


def test_data_that_the_driver_dropped_is_seen(tmp_path: Path) -> None:
    path = saved(tmp_path)
    device = device_with(DriverBugs(initial_data_dropped=True))
    cache, result = load_into_cache(device, path)
    assert (result.status, result.data) == (LoadStatus.DROPPED_BY_DRIVER, b"")
    assert f"was given {path.stat().st_size - 128} bytes and kept 32" in result.detail
    assert path.exists()
    assert hits(device, cache) == 0


def test_small_data_that_was_dropped_is_seen_behind_the_header(tmp_path: Path) -> None:
    # The header alone is more than a tenth of this data.
    device = device_with(DriverBugs(initial_data_dropped=True))
    path = cache_path(tmp_path, device.identity)
    header = device.pipeline_cache_data(device.create_pipeline_cache()).data
    save_cache_file(path, device.identity, header + b"." * 100)
    assert load_into_cache(device, path)[1].status is LoadStatus.DROPPED_BY_DRIVER


def test_a_flag_that_the_device_lacks_is_the_callers_error(tmp_path: Path) -> None:
    options = SimulatedOptions()
    device = SimulatedDevice(
        evolve(options, features=evolve(options.features, externally_synchronized_caches=False))
    )
    with pytest.raises(DeviceError, match="lacks the feature pipelineCreationCacheControl"):
        load_into_cache(device, cache_path(tmp_path, device.identity), externally_synchronized=True)
