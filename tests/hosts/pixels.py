"""Pixels of PNG files without filters, and of Xvfb's frame buffer (-fbdir), in the XWD format."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
"""Rows of red, green, blue, shape (height, width, 3)."""


def read_png(path: Path) -> Pixels:
    """Pixels of a PNG of 8-bit RGB whose rows have filter 0."""
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width = height = 0
    packed = b""
    at = 8
    while at < len(content):
        size, name = struct.unpack_from(">I4s", content, at)
        data = content[at + 8 : at + 8 + size]
        assert zlib.crc32(name + data) == struct.unpack_from(">I", content, at + 8 + size)[0]
        if name == b"IHDR":
            width, height, depth, kind = struct.unpack_from(">IIBB", data)
            assert (depth, kind) == (8, 2)
        elif name == b"IDAT":
            packed += data
        at += 12 + size
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def read_xwd(path: Path) -> Pixels:
    """Pixels of an X window dump of version 7 with 32 bits a pixel (X11/XWDFile.h: big-endian words)."""
    content = path.read_bytes()
    words = struct.unpack_from(">25I", content)
    header_size, version, _, _, width, height = words[:6]
    bits, stride, colors = words[11], words[12], words[19]
    assert (version, bits) == (7, 32)
    start = header_size + 12 * colors
    rows = np.frombuffer(content, np.uint8, stride * height, start).reshape(height, stride)
    little_endian = words[7] == 0
    pixels = rows[:, : 4 * width].reshape(height, width, 4)
    return pixels[:, :, 2::-1] if little_endian else pixels[:, :, 1:]
