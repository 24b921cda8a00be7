"""Inspection of cache files."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.stores.cache_file import MAGIC, PREFIX_HEADER_SIZE, LoadStatus, PipelineCachePrefixHeader
from orchestrator.stores.inspection import CacheFileInspection, CacheFileKind, inspect_cache_file
from tests.stores.samples import NAVI21, NAVI31, driver_data, file_content


def inspect(path: Path, content: bytes) -> CacheFileInspection:
    path.write_bytes(content)
    return inspect_cache_file(path)


def test_a_good_file_says_what_it_is_for(tmp_path: Path) -> None:
    found = inspect(tmp_path / "file", file_content())
    assert (found.kind, found.status, found.reason) == (CacheFileKind.CACHE_FILE, LoadStatus.LOADED, "")
    assert found.size == len(file_content())
    assert found.prefix_header == PipelineCachePrefixHeader.describe(NAVI21, driver_data())
    assert found.vulkan_header is not None
    assert found.vulkan_header.pipeline_cache_uuid == NAVI21.pipeline_cache_uuid
    assert found.data_hash_matches is True


def test_a_damaged_payload_keeps_its_identity(tmp_path: Path) -> None:
    found = inspect(tmp_path / "file", file_content()[:-1] + b"?")
    assert (found.kind, found.status) == (CacheFileKind.CACHE_FILE, LoadStatus.HASH_MISMATCH)
    assert found.prefix_header is not None
    assert found.data_hash_matches is False


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (file_content()[:100], LoadStatus.TRUNCATED),
        (file_content()[:-1], LoadStatus.TRUNCATED),
        (file_content()[:PREFIX_HEADER_SIZE], LoadStatus.TRUNCATED),
        (file_content() + b"\0", LoadStatus.EXTENDED),
        (MAGIC + b"\2" + bytes(200), LoadStatus.UNSUPPORTED_VERSION),
        (file_content()[:50] + b"?" + file_content()[51:], LoadStatus.HEADER_DAMAGED),
        (file_content(NAVI21, driver_data(NAVI31)), LoadStatus.VULKAN_HEADER_MISMATCH),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, status: LoadStatus) -> None:
    found = inspect(tmp_path / "file", content)
    assert (found.kind, found.status) == (CacheFileKind.CACHE_FILE, status)
    assert found.reason


def test_a_drivers_bare_data_is_recognised(tmp_path: Path) -> None:
    found = inspect(tmp_path / "file", driver_data())
    assert (found.kind, found.status) == (CacheFileKind.DRIVER_DATA, LoadStatus.BAD_MAGIC)
    assert found.vulkan_header is not None
    assert found.vulkan_header.device_id == NAVI21.device_id
    assert found.prefix_header is None
    assert found.data_hash_matches is None


@pytest.mark.parametrize("content", [b"", b"hello", bytes(4096), b"\x7fELF" + bytes(100)])
def test_anything_else_is_not_a_cache_file(tmp_path: Path, content: bytes) -> None:
    found = inspect(tmp_path / "file", content)
    assert found.kind is CacheFileKind.NOT_A_CACHE_FILE
    assert found.reason


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    found = inspect_cache_file(tmp_path / "missing")
    assert (found.kind, found.status) == (CacheFileKind.UNREADABLE, LoadStatus.MISSING)
    assert inspect_cache_file(tmp_path).status is LoadStatus.UNREADABLE
    assert inspect_cache_file(Path("no\0name")).status is LoadStatus.UNREADABLE
    (tmp_path / "file").write_bytes(file_content())
    assert inspect_cache_file(tmp_path / "file", cap=9).status is LoadStatus.TOO_LARGE


def test_a_link_that_a_person_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(file_content())
    (tmp_path / "link").symlink_to("file")
    found = inspect_cache_file(tmp_path / "link")
    assert (found.path, found.status) == (tmp_path / "link", LoadStatus.LOADED)
    (tmp_path / "loop").symlink_to("loop")
    assert inspect_cache_file(tmp_path / "loop").status is LoadStatus.UNREADABLE
