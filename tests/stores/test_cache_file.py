"""Cache files: where they are, what is saved, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from orchestrator.devices.device import DeviceIdentity
from orchestrator.run.identification import Identification
from orchestrator.stores.cache_file import (
    CACHE_FILE_SUFFIX,
    PREFIX_HEADER_SIZE,
    LoadResult,
    LoadStatus,
    cache_path,
    load_into_cache,
    read_cache_file,
    save_cache_file,
    save_merged,
)
from orchestrator.stores.files.atomic_file import files_through
from orchestrator.stores.files.fault_injection import FaultyFileOperations
from orchestrator.testing import SimulatedDevice, simulated_image
from tests.stores.samples import NAVI21, NAVI31, driver_data, file_content


def offer(path: Path, content: bytes, identity: DeviceIdentity = NAVI21) -> LoadResult:
    path.write_bytes(content)
    return read_cache_file(path, identity)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = cache_path(tmp_path / "caches", NAVI21)
    data = driver_data()
    report = save_cache_file(path, NAVI21, data)
    assert (report.path, report.saved_bytes, report.skipped) == (path, PREFIX_HEADER_SIZE + len(data), None)
    assert path.stat().st_size == report.saved_bytes
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    result = read_cache_file(path, NAVI21)
    assert result == LoadResult(LoadStatus.LOADED, path, data=data)


def test_the_name_says_which_device_driver_and_abi() -> None:
    path = cache_path(Path("d"), NAVI21)
    assert path.parent == Path("d")
    assert path.name.startswith("radv-amd-radeon-rx-6800-radv-navi21-64bit-")
    assert path.name.endswith(CACHE_FILE_SUFFIX)


def test_one_file_per_device_identity_and_abi() -> None:
    others = [
        NAVI21,
        evolve(NAVI21, vendor_id=1),
        evolve(NAVI21, device_id=1),
        evolve(NAVI21, driver_id=1),
        evolve(NAVI21, driver_abi=32),
        evolve(NAVI21, pipeline_cache_uuid=bytes(16)),
    ]
    assert len({cache_path(Path(), one) for one in others}) == len(others)
    # A driver update must find the old file, to say what it is and to replace it.
    assert cache_path(Path(), evolve(NAVI21, driver_version=1)) == cache_path(Path(), NAVI21)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "a/b\\c:d\0e", "é" * 500, "x" * 500, ".."])
def test_any_name_of_a_device_is_a_safe_file_name(name: str) -> None:
    path = cache_path(Path("d"), evolve(NAVI21, device_name=name, driver_name=name))
    assert path.parent == Path("d")
    assert len(path.name) < 140
    assert path.name.isascii()
    assert not set(path.name) & set("/\\: \0")
    assert not path.name.startswith((".", "-"))


@pytest.mark.parametrize(
    ("changes", "status", "detail"),
    [
        ({"vendor_id": 0x10DE}, LoadStatus.OTHER_DEVICE, "vendorID: expected 0x10de, found 0x1002"),
        ({"device_id": 1}, LoadStatus.OTHER_DEVICE, "deviceID: expected 0x1, found 0x73bf"),
        ({"driver_abi": 32}, LoadStatus.OTHER_ABI, "driver ABI: expected 32 bits, found 64 bits"),
        ({"driver_id": 1}, LoadStatus.OTHER_DRIVER, "driverID: expected 1, found 3"),
        ({"driver_version": 1}, LoadStatus.OTHER_DRIVER, "driverVersion: expected 0x1, found 0x6400007"),
        (
            {"pipeline_cache_uuid": bytes(16)},
            LoadStatus.OTHER_DRIVER,
            f"pipelineCacheUUID: expected {'00' * 16}, found {bytes(range(1, 17)).hex()}",
        ),
    ],
)
def test_another_identity_is_refused_by_field(
    tmp_path: Path, changes: dict[str, Any], status: LoadStatus, detail: str
) -> None:
    result = offer(tmp_path / "file", file_content(), evolve(NAVI21, **changes))
    assert (result.status, result.data) == (status, b"")
    assert (result.field, result.detail) == (detail.partition(":")[0], detail)


def test_all_fields_that_differ_are_in_the_detail(tmp_path: Path) -> None:
    result = offer(tmp_path / "file", file_content(), NAVI31)
    assert (result.status, result.field) == (LoadStatus.OTHER_DEVICE, "deviceID")
    assert result.detail == (
        "deviceID: expected 0x744c, found 0x73bf; "
        f"pipelineCacheUUID: expected {NAVI31.pipeline_cache_uuid.hex()}, "
        f"found {NAVI21.pipeline_cache_uuid.hex()}"
    )


def test_only_the_driver_version_is_relaxed_and_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(file_content())
    updated = evolve(NAVI21, driver_version=1)
    assert read_cache_file(path, updated).status is LoadStatus.OTHER_DRIVER
    result = read_cache_file(path, updated, relax_driver_version=True)
    assert (result.status, result.data) == (LoadStatus.LOADED, driver_data())
    assert result.detail == "driverVersion: expected 0x1, found 0x6400007; accepted by policy"
    other = evolve(updated, pipeline_cache_uuid=bytes(16))
    assert read_cache_file(path, other, relax_driver_version=True).field == "pipelineCacheUUID"


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (driver_data(evolve(NAVI21, device_id=7)), "deviceID"),
        (struct.pack("<I", 999999) + driver_data()[4:], "headerSize"),
    ],
)
def test_proven_data_whose_vulkan_header_disagrees_is_refused(
    tmp_path: Path, data: bytes, field: str
) -> None:
    result = offer(tmp_path / "file", file_content(data=data))
    assert (result.status, result.field) == (LoadStatus.VULKAN_HEADER_MISMATCH, field)


def test_a_header_without_data_is_empty(tmp_path: Path) -> None:
    result = offer(tmp_path / "file", file_content(data=b""))
    assert (result.status, result.field) == (LoadStatus.EMPTY, "dataSize")


def test_what_cannot_be_read_has_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = read_cache_file(tmp_path / "missing", NAVI21)
    assert missing.status is LoadStatus.MISSING
    assert read_cache_file(tmp_path, NAVI21).status is LoadStatus.UNREADABLE
    assert read_cache_file(tmp_path / ("x" * 5000), NAVI21).status is LoadStatus.UNREADABLE
    assert read_cache_file(Path("no\0name"), NAVI21).status is LoadStatus.UNREADABLE
    path = tmp_path / "file"
    path.write_bytes(file_content())
    assert read_cache_file(path / "below", NAVI21).status is LoadStatus.UNREADABLE
    exact = path.stat().st_size
    monkeypatch.setattr("orchestrator.stores.cache_file.CACHE_FILE_CAP", exact)
    assert read_cache_file(path, NAVI21).status is LoadStatus.LOADED
    monkeypatch.setattr("orchestrator.stores.cache_file.CACHE_FILE_CAP", exact - 1)
    assert read_cache_file(path, NAVI21).status is LoadStatus.TOO_LARGE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "holds nothing: it gave no data"),
        (driver_data(payload=b""), "holds nothing: its 32 bytes are a header"),
        (driver_data(payload=bytes(4)), "holds nothing: its 36 bytes are a header and zeros"),
        (driver_data(payload=bytes(1000)), "holds nothing: its 1032 bytes are a header and zeros"),
        (driver_data()[:31], "would be refused when loaded: the driver's data has 31 bytes"),
        (bytes(100), "would be refused when loaded: headerVersion"),
        (driver_data(NAVI31), "would be refused when loaded: the driver's header differs in deviceID"),
        (driver_data(payload=b"." * 2000), "the file would have 2160 bytes, more than the 2000"),
    ],
)
def test_what_is_worth_nothing_replaces_nothing(
    tmp_path: Path, data: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.stores.cache_file.CACHE_FILE_CAP", 2000)
    path = tmp_path / "file"
    path.write_bytes(file_content())
    operations = FaultyFileOperations()
    with files_through(operations):
        report = save_cache_file(path, NAVI21, data)
    assert report.skipped is not None
    assert reason in report.skipped
    assert report.saved_bytes == 0
    assert operations.calls == []
    assert path.read_bytes() == file_content()


def test_data_that_starts_with_zeros_is_saved(tmp_path: Path) -> None:
    report = save_cache_file(tmp_path / "file", NAVI21, driver_data(payload=bytes(500) + b"."))
    assert (report.skipped, report.saved_bytes) == (None, PREFIX_HEADER_SIZE + 32 + 501)


def test_a_cache_file_is_named_by_text(tmp_path: Path) -> None:
    device = SimulatedDevice()
    cache = device.create_pipeline_cache()
    device.create_pipelines(device.prepare(simulated_image(range(5))), np.arange(5, dtype=np.int32), cache)
    path = cache_path(str(tmp_path), device.identity)
    assert path.parent == tmp_path
    assert save_cache_file(str(path), device.identity, device.pipeline_cache_data(cache).data).saved_bytes
    assert read_cache_file(str(path), device.identity).status is LoadStatus.LOADED
    loaded, result = load_into_cache(device, str(path))
    assert result.status is LoadStatus.LOADED
    assert save_merged(device, str(path), loaded).path == path
    assert Identification(None, str(tmp_path)).directory == tmp_path
