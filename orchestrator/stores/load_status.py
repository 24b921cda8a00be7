# Purpose: the words for what became of a cache file, shared by everything that reads one.
# Guarantees: a value never changes its meaning; reports and JSON carry it as its text.
"""`LoadStatus`: what became of a cache file."""

from __future__ import annotations

import enum


class LoadStatus(enum.StrEnum):
    """What became of a cache file when it was read and offered to a driver.

    Only LOADED gives the driver's cache something; every other one means an empty cache.

    LOADED: read, proven, and kept by the driver.
    MISSING: there is no such file.
    EMPTY: the file, or the driver's data in it, has no bytes.
    TRUNCATED: shorter than its header says, or than a header.
    EXTENDED: longer than its header says.
    BAD_MAGIC: not a cache file of this program.
    UNSUPPORTED_VERSION: a cache file of another format version.
    HEADER_DAMAGED: the header disagrees with its own hash.
    HASH_MISMATCH: the driver's data disagrees with its hash.
    OTHER_DEVICE: made on another device.
    OTHER_DRIVER: made by another driver, or another version or build of it.
    OTHER_ABI: made by a process with another pointer size.
    VULKAN_HEADER_MISMATCH: the header in the driver's data is not a version one, or disagrees with ours.
    TOO_LARGE: larger than the cap of the caller.
    UNREADABLE: the system would not let it be read, or it is no regular file.
    UNTRUSTED_PERMISSIONS: others own it or may write it, or the directory that it is in.
    CRASHED_LAST_TIME: a process died while a driver was given this data; the driver was not given it again.
    REJECTED_BY_DRIVER: proven, and the driver still failed to create a cache from it.
    DROPPED_BY_DRIVER: the driver took it without an error and kept next to nothing of it.
    """

    LOADED = "LOADED"
    MISSING = "MISSING"
    EMPTY = "EMPTY"
    TRUNCATED = "TRUNCATED"
    EXTENDED = "EXTENDED"
    BAD_MAGIC = "BAD_MAGIC"
    UNSUPPORTED_VERSION = "UNSUPPORTED_VERSION"
    HEADER_DAMAGED = "HEADER_DAMAGED"
    HASH_MISMATCH = "HASH_MISMATCH"
    OTHER_DEVICE = "OTHER_DEVICE"
    OTHER_DRIVER = "OTHER_DRIVER"
    OTHER_ABI = "OTHER_ABI"
    VULKAN_HEADER_MISMATCH = "VULKAN_HEADER_MISMATCH"
    TOO_LARGE = "TOO_LARGE"
    UNREADABLE = "UNREADABLE"
    UNTRUSTED_PERMISSIONS = "UNTRUSTED_PERMISSIONS"
    CRASHED_LAST_TIME = "CRASHED_LAST_TIME"
    REJECTED_BY_DRIVER = "REJECTED_BY_DRIVER"
    DROPPED_BY_DRIVER = "DROPPED_BY_DRIVER"
