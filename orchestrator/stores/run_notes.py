"""What runs note of a device's cache file: compile times, its contents, and how its devices were opened.

Compile times order the next run and estimate how long it will take. Contents say which pipelines a cache file
holds, which the driver's data does not tell; they name the hash of the cache file, and are ignored once
another program removed, rebuilt or changed it. Groups say how the devices were opened, because a driver's
keys may depend on it; they are for people, and the program decides nothing by them.

Adding keeps what other sets and processes noted. A note that cannot be used counts as missing, with a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from orchestrator.devices.request import DeviceRequest
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.state import Kind

_HASH_SIZE: Final = 16

MOST_ENTRIES: Final = 4_000_000
"""More pipelines than any known set has; the newest are kept."""

Keys = npt.NDArray[np.uint64]
Nanoseconds = npt.NDArray[np.int64]


def _no_keys() -> Keys:
    return np.zeros(0, np.uint64)


@frozen(eq=False)
class Durations:
    """Compile times of pipelines on one device.

    Attributes:
        keys: Hashes of the pipelines, ascending, shape (n,).
        duration_ns: Driver time of each, shape (n,).
        problem: Why recorded times were not used, or "", also of what was added to them.
    """

    keys: Keys = field(factory=_no_keys, repr=False)
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
        order = np.argsort(keys)
        ascending = keys[order]
        if np.array_equal(ascending, known):  # another run of the same set
            places[order], found[:] = np.arange(len(known)), True
        else:
            nearest = np.minimum(np.searchsorted(known, ascending), len(known) - 1)
            places[order], found[order] = nearest, known[nearest] == ascending
    return places, found


def _decode_durations(data: bytes) -> Durations:
    count, rest = divmod(len(data), 16)
    if rest:
        raise ValueError(f"{len(data)} bytes are no multiple of 16")
    keys, times = np.frombuffer(data, "<u8", count), np.frombuffer(data, "<i8", count, 8 * count)
    return Durations(keys.astype(np.uint64), times.astype(np.int64))


DURATIONS: Final = Kind("compile times", _decode_durations, cap=16 * MOST_ENTRIES)


def read_durations(cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> Durations:
    """Compile times of a device, by its cache file. Never raises: unusable ones give none and say why."""
    known, problem = DURATIONS.read(cache_file, operations)
    return Durations(problem=problem) if known is None else known


def add_durations(
    cache_file: Path,
    keys: Keys,
    duration_ns: Nanoseconds,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> Durations:
    """Add driver times (ns, shape (n,), 0 for none) to the recorded ones of a device; returns all.

    Raises:
        SaveError: As `Kind.update`.
    """
    known = Durations()

    def make(old: Durations | None) -> bytes:
        nonlocal known
        known = (known if old is None else old).updated(keys, duration_ns)
        return known.keys.astype("<u8").tobytes() + known.duration_ns.astype("<i8").tobytes()

    problem = DURATIONS.update(cache_file, make, operations)
    return evolve(known, problem=problem)


@frozen(eq=False)
class CacheContents:
    """Pipelines that a cache file holds.

    Attributes:
        keys: Hashes of the pipelines, ascending, shape (n,).
        data_hash: `dataHash` of the cache file that holds them.
        problem: Why an existing record was not used, or "".
    """

    keys: Keys = field(factory=_no_keys, repr=False)
    data_hash: bytes = b""
    problem: str = ""

    def __len__(self) -> int:
        """Number of pipelines."""
        return len(self.keys)

    def held(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of some pipelines it holds, shape (m,)."""
        return places_of(self.keys, keys)[1]


def _decode_contents(data: bytes) -> CacheContents:
    if len(data) < _HASH_SIZE or len(data) % 8:
        raise ValueError(f"{len(data)} bytes are no hash and keys of 8 bytes")
    keys = np.frombuffer(data, "<u8", offset=_HASH_SIZE)
    return CacheContents(keys.astype(np.uint64), data[:_HASH_SIZE])


CONTENTS: Final = Kind("contents", _decode_contents, cap=_HASH_SIZE + 8 * MOST_ENTRIES)


def read_contents(cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> CacheContents:
    """What a cache file is known to hold. Never raises: an unusable record gives none and says why."""
    known, problem = CONTENTS.read(cache_file, operations)
    return CacheContents(problem=problem) if known is None else known


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
        Why earlier notes were lost, or "".

    Raises:
        SaveError: As `Kind.update`.
    """

    def make(old: CacheContents | None) -> bytes:
        known = CacheContents() if old is None else old
        kept = known.keys if known.data_hash in (data_hash, *before) else known.keys[:0]
        # The newest first, as for compile times.
        newest = np.concatenate([keys, kept])[:MOST_ENTRIES]
        all_keys, _ = np.unique(newest, return_index=True)  # without an index it imports numpy.ma
        return data_hash + all_keys.astype("<u8").tobytes()

    return CONTENTS.update(cache_file, make, operations)


MOST_GROUPS: Final = 1_000
"""More applications than any known set has; the newest are kept."""


class MadeFor(msgspec.Struct, frozen=True):
    """How a device was opened for compiling, and how many pipelines its last compile gave the driver."""

    request: DeviceRequest
    pipelines: int


GROUPS: Final = Kind("groups", msgspec.json.Decoder(tuple[MadeFor, ...]).decode)


def read_feature_groups(
    cache_file: Path, operations: FileOperations = REAL_FILE_OPERATIONS
) -> tuple[tuple[MadeFor, ...], str]:
    """The groups of a cache file, and why an existing record was not used, or "". Never raises."""
    groups, problem = GROUPS.read(cache_file, operations)
    return groups or (), problem


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
        Why an existing record was lost, or "".

    Raises:
        SaveError: As `Kind.update`.
    """
    groups = list(groups)
    if not anew and set(groups) <= set(read_feature_groups(cache_file, operations)[0]):
        return ""  # the usual case when a run compiles nothing new

    def make(old: tuple[MadeFor, ...] | None) -> bytes:
        noted = {each.request: each for each in (() if anew or old is None else old)}
        for each in groups:
            noted.pop(each.request, None)
            noted[each.request] = each
        return msgspec.json.encode(list(noted.values())[-MOST_GROUPS:])

    return GROUPS.update(cache_file, make, operations)
