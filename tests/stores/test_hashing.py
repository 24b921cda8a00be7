"""Hashes of stored content."""

from __future__ import annotations

from orchestrator.stores.hashing import HASH128_SIZE, content_hash64, content_hash128


def test_hashes_are_those_of_the_xxh3_specification() -> None:
    # The published test vectors for no input and seed 0.
    assert content_hash128(b"").hex() == "99aa06d3014798d86001c324468d497f"
    assert content_hash64(b"") == 0x2D06800538D394C2


def test_any_buffer_gives_the_same_hash() -> None:
    data = bytes(range(256)) * 9
    assert content_hash128(bytearray(data)) == content_hash128(memoryview(data)) == content_hash128(data)
    assert content_hash64(memoryview(data)) == content_hash64(data)
    assert len(content_hash128(data)) == HASH128_SIZE
