"""What runs note beside a device's cache file: compile times, its contents, and how its devices were opened.

Compile times order the next run and estimate how long it will take. A damaged file is ignored. Little-endian:

| offset | size | field                                                     |
|--------|------|-----------------------------------------------------------|
|      0 |    8 | magic "ORCHDUR" and format version 1                      |
|      8 |    8 | number of entries, n                                      |
|     16 |   16 | xxh3_128 of everything behind the header                  |
|     32 |  8 n | keys: hashes of pipelines in their sets, ascending        |
| 32+8 n |  8 n | driver time of the last compile of each, ns               |

Contents say which pipelines a cache file holds, which the driver's data does not tell. They name the hash of
the cache file and are ignored once another program removed, rebuilt or changed it. Little-endian:

| offset | size | field                                                     |
|--------|------|-----------------------------------------------------------|
|      0 |    8 | magic "ORCHCON" and format version 1                      |
|      8 |    8 | number of entries, n                                      |
|     16 |   16 | xxh3_128 of everything behind the header                  |
|     32 |   16 | dataHash of the cache file                                |
|     48 |  8 n | keys: hashes of pipelines in their sets, ascending        |

Groups say how the devices were opened, because a driver's keys may depend on it. JSON for people: the program
decides nothing by it. Adding to a file keeps what other sets and processes noted.
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
        problem: Why a file that is there was not used, or "", also of what was added to them.
    """

    keys: Keys = field(factory=lambda: np.zeros(0, np.uint64), repr=False)
    duration_ns: Nanoseconds = field(factory=lambda: np.zeros(0, np.int64), repr=False)
    problem: str = ""

    def __len__(self) -> int:
        """Number of pipelines with a time."""
        return len(self.keys)

    def of(self, keys: Keys) -> Nanoseconds:
        """Times of pipelines, shape (m,); 0 where there is none."""
        times = np.zeros(len(keys), np.int64)
        places, found = places_of(self.keys, keys)
        times[found] = self.duration_ns[places[found]]
        return times

    def updated(self, keys: Keys, duration_ns: Nanoseconds) -> Durations:
        """These times, replaced by newer ones where those are not 0."""
        timed = duration_ns > 0
        # The newest first, because `unique` keeps the first of equal keys.
        all_keys = np.concatenate([keys[timed], self.keys])[:MOST_ENTRIES]
        all_times = np.concatenate([duration_ns[timed], self.duration_ns])[:MOST_ENTRIES]
        unique, first = np.unique(all_keys, return_index=True)
        return Durations(unique, all_times[first], self.problem)


def places_of(known: Keys, keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The index of each key in ascending known ones, and whether it is known, both of shape (m,)."""
    places, found = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    if len(known) and len(keys):
        # Looked up in ascending order, since memory is then read in order: 65,000 take 2 ms and not 7.
        # np.isin sorts too, and imports numpy.ma.
        order = np.argsort(keys)
        ascending = keys[order]
        if np.array_equal(ascending, known):  # another run of the same set
            places[order], found[:] = np.arange(len(known)), True
        else:
            nearest = np.minimum(np.searchsorted(known, ascending), len(known) - 1)
            places[order], found[order] = nearest, known[nearest] == ascending
    return places, found


def durations_path(directory: Path, identity: DeviceIdentity) -> Path:
    """The file of a device's compile times."""
    return DURATIONS.path(cache_path(directory, identity))


def read_durations(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> Durations:
    """Read a file of compile times. Never raises: an unusable file gives none and says why."""
    known, problem = DURATIONS.read(path, decode_durations, operations)
    return Durations(problem=f"{path}: {problem}" if problem else "") if known is None else known


def add_durations(
    cache_file: Path,
    keys: Keys,
    duration_ns: Nanoseconds,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Durations:
    """Add driver times (ns, shape (n,), 0 for none) to the recorded ones of a device's cache file.

    Returns:
        All recorded times.

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
    """Decode the content of a file of compile times.

    Raises:
        ValueError: It is damaged.
    """
    body, count = _proven(data, _DURATIONS_MAGIC, "compile times", 16)
    keys, times = np.frombuffer(body, "<u8", count), np.frombuffer(body, "<i8", count, 8 * count)
    if (times < 0).any():
        raise ValueError(f"at byte {_HEADER.size + 8 * count}: a compile time is below 0 ns")
    return Durations(keys.astype(np.uint64), times.astype(np.int64))


@frozen(eq=False)
class CacheContents:
    """Pipelines that a cache file holds.

    Attributes:
        keys: Hashes of the pipelines, ascending, shape (n,).
        data_hash: `dataHash` of the cache file that holds them.
        problem: Why an existing record was not used, or "".
    """

    keys: Keys = field(factory=lambda: np.zeros(0, np.uint64), repr=False)
    data_hash: bytes = b""
    problem: str = ""

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.keys)

    def held(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of some pipelines it holds, shape (m,)."""
        return places_of(self.keys, keys)[1]


def read_contents(cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> CacheContents:
    """What a cache file is known to hold. Never raises: an unusable record gives none and says why."""
    path = CONTENTS.path(cache_file)
    known, problem = CONTENTS.read(path, decode_contents, operations)
    return CacheContents(problem=f"{path}: {problem}" if problem else "") if known is None else known


def add_contents(
    cache_file: Path,
    keys: Keys,
    data_hash: bytes,
    before: Collection[bytes] = (),
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> str:
    """Note that a cache file holds some pipelines, in addition to earlier ones.

    Args:
        cache_file: The cache file.
        keys: The pipelines.
        data_hash: Its `dataHash` now.
        before: Its earlier hashes, whose content it still holds. Notes for any other hash are dropped.
        operations: The calls to use.

    Returns:
        As `add_feature_groups`.

    Raises:
        SaveError: As `Kind.write`.
    """
    problem = ""

    def make() -> tuple[bytes, bytes]:
        nonlocal problem
        known = read_contents(cache_file, operations)
        problem = known.problem
        kept = known.keys if known.data_hash in (data_hash, *before) else known.keys[:0]
        # The newest first, as for compile times.
        newest = np.concatenate([keys, kept])[:MOST_ENTRIES]
        all_keys, _ = np.unique(newest, return_index=True)  # without an index it imports numpy.ma
        body = data_hash + all_keys.astype("<u8").tobytes()
        return _header(_CONTENTS_MAGIC, len(all_keys), body), body

    CONTENTS.write(cache_file, make, operations)
    return problem


def decode_contents(data: bytes) -> CacheContents:
    """Decode the content of a file of contents.

    Raises:
        ValueError: It is damaged.
    """
    body, count = _proven(data, _CONTENTS_MAGIC, "the pipelines of a cache file", 8, _HASH_SIZE)
    keys = np.frombuffer(body, "<u8", count, _HASH_SIZE)
    return CacheContents(keys.astype(np.uint64), bytes(body[:_HASH_SIZE]))


def _header(magic: bytes, count: int, body: bytes) -> bytes:
    return _HEADER.pack(magic, _VERSION, count, content_hash128(body))


def _proven(data: bytes, magic: bytes, what: str, entry_size: int, before: int = 0) -> tuple[memoryview, int]:
    """The checked bytes behind the header, and the number of entries after the first `before` of them."""
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
    """How a device was opened for compiling, and how many pipelines its last compile gave the driver."""

    request: DeviceRequest
    pipelines: int


class _Groups(msgspec.Struct, frozen=True):
    format: int
    groups: list[MadeFor]


_groups: Final = msgspec.json.Decoder(_Groups)


def read_feature_groups(
    cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[tuple[MadeFor, ...], str]:
    """The groups of a cache file, and why an existing record was not used, or "". Never raises."""
    path = FEATURE_GROUPS.path(cache_file)
    groups, problem = FEATURE_GROUPS.read(path, decode_groups, operations)
    return groups or (), f"{path}: {problem}" if problem else ""


def add_feature_groups(
    cache_file: Path,
    groups: Iterable[MadeFor],
    *,
    anew: bool = False,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> str:
    """Add the groups that a cache file was made for; a newer group replaces one with the same request.

    `anew` drops earlier groups, because the cache file was begun again.

    Returns:
        Why an existing record was not used, and replaced, or "".

    Raises:
        SaveError: As `Kind.write`.
    """
    groups = list(groups)
    if not anew and set(groups) <= set(read_feature_groups(cache_file, operations)[0]):
        return ""  # the usual case when a run compiles nothing new
    problem = ""

    def make() -> tuple[bytes]:
        nonlocal problem
        before, problem = ((), "") if anew else read_feature_groups(cache_file, operations)
        noted = {each.request: each for each in before}
        for each in groups:
            noted.pop(each.request, None)
            noted[each.request] = each
        return (msgspec.json.encode(_Groups(_GROUPS_FORMAT, list(noted.values())[-MOST_GROUPS:])),)

    FEATURE_GROUPS.write(cache_file, make, operations)
    return problem


def decode_groups(data: bytes) -> tuple[MadeFor, ...]:
    """Decode the content of a file of groups.

    Raises:
        ValueError: It is damaged.
    """
    read = _groups.decode(data)
    if read.format != _GROUPS_FORMAT:
        raise ValueError(f"format {read.format} is not known ({_GROUPS_FORMAT} is)")
    return tuple(read.groups)
