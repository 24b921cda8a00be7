"""Inspection of cache files."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.stores.cache_file import MAGIC, PREFIX_HEADER_SIZE, LoadStatus
from orchestrator.stores.inspection import CacheFileInspection, CacheFileKind, inspect_cache_file
from tests.stores.samples import NAVI21, NAVI31, driver_data, file_content


def inspect(path: Path, content: bytes) -> CacheFileInspection:
    path.write_bytes(content)
    return inspect_cache_file(path)


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
