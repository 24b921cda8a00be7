"""Headers of cache files."""

from __future__ import annotations

import struct

import pytest
from attrs import evolve

from orchestrator.stores.cache_file import (
    MAGIC,
    CacheHeaderError,
    LoadStatus,
    PipelineCacheHeader,
    PipelineCachePrefixHeader,
)
from orchestrator.stores.files.atomic_file import content_hash128
from tests.stores.samples import NAVI21, driver_data


def status_of(content: bytes) -> LoadStatus:
    with pytest.raises(CacheHeaderError) as caught:
        PipelineCachePrefixHeader.unpack(content)
    return caught.value.status


def resealed(header: bytes) -> bytes:
    return header[:112] + content_hash128(header[:112])


@pytest.mark.parametrize(
    ("offset", "field"), [(12, "headerSize"), (60, "reserved"), (80, "reserved"), (111, "reserved")]
)
def test_a_sealed_header_with_what_this_version_does_not_write_is_refused(offset: int, field: str) -> None:
    packed = bytearray(PipelineCachePrefixHeader.describe(NAVI21, driver_data()).pack())
    packed[offset] ^= 1
    with pytest.raises(CacheHeaderError) as caught:
        PipelineCachePrefixHeader.unpack(resealed(bytes(packed)))
    assert (caught.value.status, caught.value.field) == (LoadStatus.HEADER_DAMAGED, field)


def test_another_version_may_have_another_size() -> None:
    assert status_of(MAGIC + struct.pack("<I", 2)) is LoadStatus.UNSUPPORTED_VERSION


def test_what_people_read_is_no_difference() -> None:
    header = PipelineCachePrefixHeader.describe(NAVI21, driver_data())
    renamed = evolve(NAVI21, device_name="x", driver_name="y", driver_info="z", api_version=0)
    assert header.differences(renamed) == ()


def test_a_longer_vulkan_header_is_allowed() -> None:
    data = struct.pack("<IIII16s", 40, 1, 1, 2, bytes(16)) + bytes(8)
    assert PipelineCacheHeader.unpack(data).header_size == 40


def test_the_hash_is_that_of_the_xxh3_specification() -> None:
    # The published test vector for no input and seed 0.
    assert content_hash128(b"").hex() == "99aa06d3014798d86001c324468d497f"
    data = bytes(range(256)) * 9
    assert content_hash128(bytearray(data)) == content_hash128(memoryview(data)) == content_hash128(data)
