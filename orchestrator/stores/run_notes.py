"""What runs note beside a device's cache file: times of pipelines, which are in it, and for whom it was made.

Times are hints: the next run starts the longest first and knows how long it will take. A file that cannot be
proven whole is as good as none. Little-endian:

| offset | size | field                                                     |
|--------|------|-----------------------------------------------------------|
|      0 |    8 | magic "ORCHDUR" and format version 1                      |
|      8 |    8 | number of entries, n                                      |
|     16 |   16 | xxh3_128 of everything behind the header                  |
|     32 |  8 n | keys: hashes of pipelines in their sets, ascending        |
| 32+8 n |  8 n | driver time of the last compile of each, ns               |

Contents say which pipelines were created from a cache file, or into it; the driver's data does not tell. They
are true of the one state of the file whose hash they name: they are void when it was removed, rebuilt or
joined by somebody who notes nothing. Little-endian:

| offset | size | field                                                     |
|--------|------|-----------------------------------------------------------|
|      0 |    8 | magic "ORCHCON" and format version 1                      |
|      8 |    8 | number of entries, n                                      |
|     16 |   16 | xxh3_128 of everything behind the header                  |
|     32 |   16 | dataHash of the cache file                                |
|     48 |  8 n | keys: hashes of pipelines in their sets, ascending        |

Groups say what devices were opened as. A driver finds a pipeline in a cache only on a device that is, to it,
the one that it was compiled on; what that was is not in the driver's data. JSON, for people: nothing is
decided by it. Adding to either keeps what other sets and other processes noted.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import DeviceRequest
from orchestrator.stores.cache_file import cache_path
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations, content_hash128
from orchestrator.stores.kinds import CONTENTS, DURATIONS, FEATURE_GROUPS

_HEADER: Final = struct.Struct("<7sBQ16s")
_DURATIONS_MAGIC: Final = b"ORCHDUR"
_CONTENTS_MAGIC: Final = b"ORCHCON"
_VERSION: Final = 1
_HASH_SIZE: Final = 16

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
    known, problem = DURATIONS.read(path, decode_durations, operations)
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
        return _header(_DURATIONS_MAGIC, len(known), body), body

    DURATIONS.write(cache_file, make, operations)
    return known


def decode_durations(data: bytes) -> Durations:
    """The compile times that a file's content is.

    Raises:
        ValueError: It is damaged.
    """
    body, count = _proven(data, _DURATIONS_MAGIC, "compile times", 16)
    keys, times = np.frombuffer(body, "<u8", count), np.frombuffer(body, "<i8", count, 8 * count)
    return Durations(keys.astype(np.uint64), times.astype(np.int64))


@frozen(eq=False)
class CacheContents:
    """Pipelines that a cache file holds.

    Attributes:
        keys: Hashes of the pipelines, ascending, shape (n,).
        data_hash: `dataHash` of the file that they are true of.
        problem: Why a record that is there was not used, or "".
    """

    keys: Keys = field(factory=lambda: np.zeros(0, np.uint64), repr=False)
    data_hash: bytes = b""
    problem: str = ""

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.keys)

    def held(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of some pipelines are among them, shape (m,)."""
        if not len(self.keys):
            return np.zeros(len(keys), np.bool_)
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.asarray(self.keys[places] == keys)


def read_contents(cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> CacheContents:
    """What a cache file is known to hold. Never raises: what cannot be used is empty and says why."""
    path = CONTENTS.path(cache_file)
    known, problem = CONTENTS.read(path, decode_contents, operations)
    return CacheContents(problem=f"{path}: {problem}" if problem else "") if known is None else known


def add_contents(
    cache_file: Path,
    keys: Keys,
    data_hash: bytes,
    before: Collection[bytes] = (),
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> None:
    """Note that a cache file holds some pipelines, beside those that it is known to hold.

    Args:
        cache_file: The cache file.
        keys: The pipelines.
        data_hash: Its `dataHash` now.
        before: Its hashes before what it holds now was joined with it. What is noted of any other state is
            forgotten.
        operations: The calls to use.

    Raises:
        SaveError: As `Kind.write`.
    """

    def make() -> tuple[bytes, bytes]:
        known = read_contents(cache_file, operations)
        kept = known.keys if known.data_hash in (data_hash, *before) else known.keys[:0]
        # The newest first, as of times.
        all_keys = np.unique(np.concatenate([keys, kept])[:MOST_ENTRIES])
        body = data_hash + all_keys.astype("<u8").tobytes()
        return _header(_CONTENTS_MAGIC, len(all_keys), body), body

    CONTENTS.write(cache_file, make, operations)


def decode_contents(data: bytes) -> CacheContents:
    """What a file's content says.

    Raises:
        ValueError: It is damaged.
    """
    body, count = _proven(data, _CONTENTS_MAGIC, "the pipelines of a cache file", 8, _HASH_SIZE)
    keys = np.frombuffer(body, "<u8", count, _HASH_SIZE)
    return CacheContents(keys.astype(np.uint64), bytes(body[:_HASH_SIZE]))


def _header(magic: bytes, count: int, body: bytes) -> bytes:
    return _HEADER.pack(magic, _VERSION, count, content_hash128(body))


def _proven(data: bytes, magic: bytes, what: str, entry_size: int, before: int = 0) -> tuple[memoryview, int]:
    """What is behind the header, and the number of entries in it; `before` bytes come before them."""
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are less than the header of {_HEADER.size}")
    found, version, count, expected = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if found != magic or version != _VERSION:
        raise ValueError(f"at byte 0: not a file of {what} of version {_VERSION}")
    needed = before + entry_size * count
    if len(body) != needed:
        raise ValueError(f"at byte 8: {count} entries need {needed} bytes, {len(body)} are there")
    if content_hash128(body) != expected:
        raise ValueError("at byte 16: the content does not have the hash that was saved with it")
    return body, count


MOST_GROUPS: Final = 1_000
"""More applications than any known set has; the newest are kept."""

_GROUPS_FORMAT: Final = 1


class MadeFor(msgspec.Struct, frozen=True):
    """What a device was opened as when pipelines of a cache file were compiled.

    `pipelines` is how many its last compile handed to the driver.
    """

    request: DeviceRequest
    pipelines: int


class _Groups(msgspec.Struct, frozen=True):
    format: int
    groups: list[MadeFor]


_groups: Final = msgspec.json.Decoder(_Groups)


def read_feature_groups(
    cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[tuple[MadeFor, ...], str]:
    """The groups of a cache file, and why what is there was not used, or "". Never raises."""
    path = FEATURE_GROUPS.path(cache_file)
    groups, problem = FEATURE_GROUPS.read(path, decode_groups, operations)
    return groups or (), f"{path}: {problem}" if problem else ""


def add_feature_groups(
    cache_file: Path,
    groups: Iterable[MadeFor],
    *,
    anew: bool = False,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> None:
    """Note what a cache file was made for, beside what is noted already.

    Of equal requests the newest counts. `anew` forgets what was noted: the cache file was begun again.

    Raises:
        SaveError: As `Kind.write`.
    """
    groups = list(groups)
    if not anew and set(groups) <= set(read_feature_groups(cache_file, operations)[0]):
        return  # as in every run that compiles nothing new; nothing is written then

    def make() -> tuple[bytes]:
        before = () if anew else read_feature_groups(cache_file, operations)[0]
        noted = {each.request: each for each in before}
        for each in groups:
            noted.pop(each.request, None)
            noted[each.request] = each
        return (msgspec.json.encode(_Groups(_GROUPS_FORMAT, list(noted.values())[-MOST_GROUPS:])),)

    FEATURE_GROUPS.write(cache_file, make, operations)


def decode_groups(data: bytes) -> tuple[MadeFor, ...]:
    """The groups that a file's content is.

    Raises:
        ValueError: It is damaged.
    """
    read = _groups.decode(data)
    if read.format != _GROUPS_FORMAT:
        raise ValueError(f"format {read.format} is not known ({_GROUPS_FORMAT} is)")
    return tuple(read.groups)
