"""Hashes of stored content."""

from __future__ import annotations

from orchestrator.stores.files.atomic_file import content_hash128


def test_the_hash_is_that_of_the_xxh3_specification() -> None:
    # The published test vector for no input and seed 0.
    assert content_hash128(b"").hex() == "99aa06d3014798d86001c324468d497f"


def test_any_buffer_gives_the_same_hash() -> None:
    data = bytes(range(256)) * 9
    assert content_hash128(bytearray(data)) == content_hash128(memoryview(data)) == content_hash128(data)
