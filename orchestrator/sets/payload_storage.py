# Purpose: how archives store a payload: raw, or as a zlib stream.
# Guarantees: decoding never makes more than one byte over what was declared. Pure and thread-safe.
"""Stored payloads: the limits of deflate, and a bounded inflate."""

from __future__ import annotations

import zlib

FLAG_RAW, FLAG_DEFLATE = 1, 2
DEFLATE_RATIO, DEFLATE_SLACK = 1032, 64  # deflate cannot exceed this ratio: 258 bytes in two bits


def deflate_bound(stored: int) -> int:
    """Most bytes that a deflate stream of `stored` bytes can hold."""
    return stored * DEFLATE_RATIO + DEFLATE_SLACK


def inflate(stored: bytes, size: int, *, whole: bool = False) -> bytes:
    """Decode a zlib stream that must give exactly `size` bytes.

    Args:
        stored: The stream. Bytes behind its end are ignored, as other readers do.
        size: What it must give, bytes.
        whole: Refuse bytes behind the end of the stream.

    Raises:
        ValueError: It is damaged, does not end, or gives another size.
    """
    decoder = zlib.decompressobj()
    try:
        data = decoder.decompress(stored, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged zlib stream: {error}") from error
    if len(data) > size:
        raise ValueError(f"the zlib stream holds more than the declared {size} bytes")
    if not decoder.eof:
        raise ValueError(f"the zlib stream is truncated: {len(data)} of {size} bytes")
    if len(data) < size:
        raise ValueError(f"the zlib stream holds {len(data)} bytes, {size} are declared")
    if whole and decoder.unused_data:
        raise ValueError(f"{len(decoder.unused_data)} bytes follow the zlib stream")
    return data
