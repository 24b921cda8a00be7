"""Headers of cache files."""

from __future__ import annotations

import struct

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.stores.cache_file import (
    MAGIC,
    PREFIX_HEADER_SIZE,
    CacheHeaderError,
    LoadStatus,
    PipelineCacheHeader,
    PipelineCachePrefixHeader,
)
from orchestrator.stores.files.atomic_file import content_hash128
from tests.stores.samples import NAVI21, driver_data

u32 = st.integers(0, 2**32 - 1)


def status_of(content: bytes) -> LoadStatus:
    with pytest.raises(CacheHeaderError) as caught:
        PipelineCachePrefixHeader.unpack(content)
    return caught.value.status


def resealed(header: bytes) -> bytes:
    return header[:112] + content_hash128(header[:112])


hashes = st.binary(min_size=16, max_size=16)
headers = st.builds(
    PipelineCachePrefixHeader, st.integers(0, 2**64 - 1), hashes, u32, u32, u32, u32, u32, hashes
)


@settings(max_examples=40)
@given(headers)
def test_every_header_reads_back_as_it_was(header: PipelineCachePrefixHeader) -> None:
    assert PipelineCachePrefixHeader.unpack(header.pack()) == header


def test_every_length_shorter_than_a_header_is_refused() -> None:
    packed = PipelineCachePrefixHeader.describe(NAVI21, driver_data()).pack()
    assert status_of(b"") is LoadStatus.EMPTY
    for length in range(1, PREFIX_HEADER_SIZE):
        assert status_of(packed[:length]) is LoadStatus.TRUNCATED
        # A file that was created at its size and never filled.
        assert status_of(bytes(length)) is LoadStatus.BAD_MAGIC


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


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "headerSize"),
        (driver_data()[:31], "headerSize"),
        (struct.pack("<IIII16s", 31, 1, 0, 0, bytes(16)), "headerSize"),
        (struct.pack("<IIII16s", 33, 1, 0, 0, bytes(16)), "headerSize"),
        (struct.pack("<IIII16s", 32, 2, 0, 0, bytes(16)), "headerVersion"),
        (bytes(64), "headerVersion"),
    ],
)
def test_what_is_no_vulkan_header_is_refused(data: bytes, field: str) -> None:
    with pytest.raises(CacheHeaderError) as caught:
        PipelineCacheHeader.unpack(data)
    assert (caught.value.status, caught.value.field) == (LoadStatus.VULKAN_HEADER_MISMATCH, field)


def test_a_longer_vulkan_header_is_allowed() -> None:
    data = struct.pack("<IIII16s", 40, 1, 1, 2, bytes(16)) + bytes(8)
    assert PipelineCacheHeader.unpack(data).header_size == 40


def test_the_hash_is_that_of_the_xxh3_specification() -> None:
    # The published test vector for no input and seed 0.
    assert content_hash128(b"").hex() == "99aa06d3014798d86001c324468d497f"
    data = bytes(range(256)) * 9
    assert content_hash128(bytearray(data)) == content_hash128(memoryview(data)) == content_hash128(data)
