# Purpose: figures and strangers' words as text for people.
# Guarantees: what comes out of `printable` cannot move a terminal's cursor, whatever an archive, a driver or a file name
# holds. Pure.
"""Text for people: bytes, times, versions, and words that came from elsewhere."""

from __future__ import annotations

import os


def printable(text: str) -> str:
    """Text with everything that is not printable escaped; line breaks too."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def path_text(path: str | os.PathLike[str]) -> str:
    """A path as text that UTF-8 can carry: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def byte_text(count: int) -> str:
    """A number of bytes, such as ``1.4 MiB``."""
    if abs(count) < 1024:
        return f"{count} B"
    size = float(count)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if abs(size) < 1024:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """A time, such as ``12.3 ms`` or ``4 min 05 s``."""
    size = abs(seconds)
    if size >= 3600:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60:02} min"
    if size >= 99.95:
        whole = round(seconds)
        return f"{whole // 60} min {whole % 60:02} s"
    if size >= 0.9995:
        return f"{seconds:.2f} s"
    if size >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs"


def key_text(key: int) -> str:
    """A hash of a set, as archives and other programs write it: 16 hex digits."""
    return f"{key:016x}"


def version_text(version: int) -> str:
    """A Vulkan version number (VK_MAKE_API_VERSION), such as ``1.4.335``."""
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def plural(count: int, one: str, many: str | None = None) -> str:
    """A count with its noun: ``1 pipeline``, ``2 pipelines``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
