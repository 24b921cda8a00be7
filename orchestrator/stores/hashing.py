# Purpose: the one module that imports xxhash, so that which hash proves stored bytes is decided in one place.
# Guarantees: xxh3 with seed 0; digests are in xxHash's canonical (big-endian) byte order on every machine.
# Assumptions: a plain hash finds accidents, not attackers; what crosses a trust border needs a MAC as well.
"""Hashes of stored content."""

from __future__ import annotations

import xxhash

HASH128_SIZE = 16
"""Bytes of a `content_hash128`."""


def content_hash128(data: bytes | bytearray | memoryview) -> bytes:
    """Hash content with xxh3_128.

    Args:
        data: The content; a memoryview must be contiguous. It is not copied.

    Returns:
        16 bytes, canonical order. Thread-safe.
    """
    return xxhash.xxh3_128_digest(data)


def content_hash64(data: bytes | bytearray | memoryview) -> int:
    """Hash content with xxh3_64, for keys where 64 bits are enough.

    Args:
        data: The content; a memoryview must be contiguous. It is not copied.

    Returns:
        An unsigned 64-bit number. Thread-safe.
    """
    return xxhash.xxh3_64_intdigest(data)
