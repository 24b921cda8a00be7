# Purpose: what each pipeline cost to compile on a device, kept from run to run, so that the next run starts the longest
# first and knows how long it will take. One file beside the device's cache file.
#
# | offset | size | field                                                     |
# |--------|------|-----------------------------------------------------------|
# |      0 |    8 | magic "ORCHDUR" and format version 1                      |
# |      8 |    8 | number of entries, n                                      |
# |     16 |   16 | xxh3_128 of everything behind the header                  |
# |     32 |  8 n | keys: hashes of pipelines in their sets, ascending        |
# | 32+8 n |  8 n | driver time of the last compile of each, nanoseconds      |
#
# Little-endian. The name of the file is that of the device's identity (cache_path), so a time is never another
# device's. Times are hints: a file that cannot be proven whole is as good as none, and is replaced by the next save.
#
# Guarantees: reading never raises and is bounded; saving is atomic. Adding is done under the lock of the cache file's writers and
# keeps what other sets and other processes recorded. Thread-safe.
"""Recorded compile times by pipeline."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.errors import MissingFileError, ReadError, SaveError
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    ensure_directory,
    read_capped,
    write_atomically,
)
from orchestrator.stores.files.writer_lock import writer_lock
from orchestrator.stores.hashing import content_hash128
from orchestrator.stores.kinds import DURATIONS_SUFFIX, beside

MOST_ENTRIES: Final = 4_000_000
"""More pipelines than any known set has; the newest are kept."""

_HEADER: Final = struct.Struct("<7sBQ16s")
_MAGIC: Final = b"ORCHDUR"
_VERSION: Final = 1
# Longer than for a cache file: a writer of hundreds of megabytes may be before us, and what was learned would be lost.
_LOCK_WAIT_S: Final = 5.0

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
    return beside(cache_path(directory, identity), DURATIONS_SUFFIX)


def read_durations(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> Durations:
    """Read a file of compile times. Never raises: what cannot be used is empty and says why."""
    try:
        data = read_capped(path, _HEADER.size + 16 * MOST_ENTRIES, operations)
    except MissingFileError:
        return Durations()
    except ReadError as error:
        return Durations(problem=str(error))
    if len(data) < _HEADER.size:
        return Durations(problem=f"{path}: {len(data)} bytes are less than the header of {_HEADER.size}")
    magic, version, count, expected = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or version != _VERSION:
        return Durations(problem=f"{path}: at byte 0: not a file of compile times of version {_VERSION}")
    if len(body) != 16 * count:
        return Durations(
            problem=f"{path}: at byte 8: {count} entries need {16 * count} bytes, {len(body)} are there"
        )
    if content_hash128(body) != expected:
        return Durations(
            problem=f"{path}: at byte 16: the content does not have the hash that was saved with it"
        )
    return Durations(
        np.frombuffer(body, np.uint64, count).copy(), np.frombuffer(body, np.int64, count, 8 * count).copy()
    )


def add_durations(
    cache_file: Path,
    keys: Keys,
    duration_ns: Nanoseconds,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Durations:
    """Record compile times beside those that are there.

    Args:
        cache_file: The device's cache file; the times are kept beside it.
        keys: Hashes of the pipelines, shape (n,).
        duration_ns: Driver time of each, shape (n,); 0 where there is none.
        operations: The calls to use.

    Returns:
        What is recorded now.

    Raises:
        SaveError: It could not be written, or another process did not finish writing in time; the old file is as it was.
    """
    path = beside(cache_file, DURATIONS_SUFFIX)
    ensure_directory(path.parent, operations)
    with writer_lock(cache_file, operations, wait_s=_LOCK_WAIT_S) as held:
        if not held:
            raise SaveError(path, "locking", "another process did not finish writing beside it in time")
        known = read_durations(path, operations).updated(keys, duration_ns)
        save_durations(path, known, operations)
        return known


def save_durations(
    path: Path, durations: Durations, operations: FileOperations = REAL_FILE_OPERATIONS
) -> int:
    """Replace a file of compile times.

    Returns:
        Bytes written.

    Raises:
        SaveError: It could not be written; the old file is as it was.
    """
    ensure_directory(path.parent, operations)
    body = durations.keys.astype("<u8").tobytes() + durations.duration_ns.astype("<i8").tobytes()
    header = _HEADER.pack(_MAGIC, _VERSION, len(durations), content_hash128(body))
    return write_atomically(path, [header, body], operations)
