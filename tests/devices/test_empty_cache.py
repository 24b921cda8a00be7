"""What an empty cache is: one definition, by data or by size."""

from __future__ import annotations

import struct

import pytest

from orchestrator.devices.device import CACHE_HEADER_SIZE, is_empty_cache


def data(payload: bytes, header_size: int = CACHE_HEADER_SIZE) -> bytes:
    return struct.pack("<II24x", header_size, 1) + bytes(header_size - CACHE_HEADER_SIZE) + payload


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x20",
        data(b""),
        data(bytes(4)),  # RADV: a count of zero
        data(b"\x01" * 32),
        data(bytes(5000)),
        data(b"", header_size=100),
        data(bytes(100), header_size=100),
        data(b"")[:31],
    ],
)
def test_empty(content: bytes) -> None:
    assert is_empty_cache(content)


@pytest.mark.parametrize(
    "content",
    [
        data(b"\x01" * 33),
        data(bytes(32) + b"\x01"),
        data(bytes(5000) + b"\x01"),
        data(b"\x01" + bytes(70), header_size=100),
        b"\xff" * 65 + data(b""),
    ],
)
def test_not_empty(content: bytes) -> None:
    assert not is_empty_cache(content)


def test_a_size_alone_says_what_data_of_it_could_hold() -> None:
    assert [size for size in range(200) if is_empty_cache(size)] == list(range(65))
