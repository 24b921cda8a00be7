"""Recorded compile times by pipeline: the next run starts the longest first and knows how long it will take.

| offset | size | field                                                     |
|--------|------|-----------------------------------------------------------|
|      0 |    8 | magic "ORCHDUR" and format version 1                      |
|      8 |    8 | number of entries, n                                      |
|     16 |   16 | xxh3_128 of everything behind the header                  |
|     32 |  8 n | keys: hashes of pipelines in their sets, ascending        |
| 32+8 n |  8 n | driver time of the last compile of each, ns               |

Little-endian. The file is that of one device, so a time is never another device's. Adding keeps what other
sets and other processes recorded. Times are hints: a file that cannot be proven whole is as good as none.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations, content_hash128
from orchestrator.stores.kinds import DURATIONS

_HEADER: Final = struct.Struct("<7sBQ16s")
_MAGIC: Final = b"ORCHDUR"
_VERSION: Final = 1

MOST_ENTRIES: Final = (DURATIONS.cap - _HEADER.size) // 16
"""More pipelines than any known set has; the newest are kept."""

Keys = npt.NDArray[np.uint64]
Nanoseconds = npt.NDArray[np.int64]


@frozen(eq=False)
class Durations:
    """Compile times of pipelines on one device.

    Attributes:
        keys: Hashes of the pipelines, ascending, shape (n,).
        duration_ns: Driver time of each, shape (n,).
        problem: Why a file that is there was not used, or "".
    """

    keys: Keys = field(factory=lambda: np.zeros(0, np.uint64), repr=False)
    duration_ns: Nanoseconds = field(factory=lambda: np.zeros(0, np.int64), repr=False)
    problem: str = ""

    def __len__(self) -> int:
        """Number of pipelines with a time."""
        return len(self.keys)

    def of(self, keys: Keys) -> Nanoseconds:
        """Times of pipelines, shape (m,); 0 where there is none."""
        if not len(self.keys) or not len(keys):
            return np.zeros(len(keys), np.int64)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[places] == keys, self.duration_ns[places], 0)

    def updated(self, keys: Keys, duration_ns: Nanoseconds) -> Durations:
        """With newer times, which win; entries without a time (0) change nothing."""
        timed = duration_ns > 0
        # The newest first: the first of equal keys is the one that unique keeps.
        all_keys = np.concatenate([keys[timed], self.keys])[:MOST_ENTRIES]
        all_times = np.concatenate([duration_ns[timed], self.duration_ns])[:MOST_ENTRIES]
        unique, first = np.unique(all_keys, return_index=True)
        return Durations(unique, all_times[first])


def durations_path(directory: Path, identity: DeviceIdentity) -> Path:
    """Where a device's compile times are kept."""
    return DURATIONS.path(cache_path(directory, identity))


def read_durations(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> Durations:
    """Read a file of compile times. Never raises: what cannot be used is empty and says why."""
    known, problem = DURATIONS.read(path, _decode, operations)
    return Durations(problem=f"{path}: {problem}" if problem else "") if known is None else known


def add_durations(
    cache_file: Path,
    keys: Keys,
    duration_ns: Nanoseconds,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Durations:
    """Record driver times (ns, shape (n,), 0 for none) beside those that a device's cache file has already.

    Returns:
        What is recorded now.

    Raises:
        SaveError: As `Kind.write`.
    """
    known = Durations()

    def make() -> tuple[bytes, bytes]:
        nonlocal known
        known = read_durations(DURATIONS.path(cache_file), operations).updated(keys, duration_ns)
        body = known.keys.astype("<u8").tobytes() + known.duration_ns.astype("<i8").tobytes()
        return _HEADER.pack(_MAGIC, _VERSION, len(known), content_hash128(body)), body

    DURATIONS.write(cache_file, make, operations)
    return known


def _decode(data: bytes) -> Durations:
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are less than the header of {_HEADER.size}")
    magic, version, count, expected = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"at byte 0: not a file of compile times of version {_VERSION}")
    if len(body) != 16 * count:
        raise ValueError(f"at byte 8: {count} entries need {16 * count} bytes, {len(body)} are there")
    if content_hash128(body) != expected:
        raise ValueError("at byte 16: the content does not have the hash that was saved with it")
    keys, times = np.frombuffer(body, "<u8", count), np.frombuffer(body, "<i8", count, 8 * count)
    return Durations(keys.astype(np.uint64), times.astype(np.int64))
