"""The pipeline cache of the simulated driver: its entries, its locking, and its data as bytes.

Layout of the data, little-endian:

    header   u32 length = 32 · u32 version = 1 · u32 vendorID · u32 deviceID · 16 bytes pipelineCacheUUID
    entry    32 bytes binary key · u64 build · u32 size · u32 CRC-32 of the payload · payload     (repeated)

The header is VkPipelineCacheHeaderVersionOne (specification, "Pipeline Cache Header"). `build` names the
compiler of an entry, so the driver can detect code of another one.

Guarantees: data that ends after any entry is valid, so a partial read can be used. Entries have the order of
their insertion, so equal histories give equal bytes (real drivers do not guarantee that).
"""

from __future__ import annotations

import itertools
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from attrs import frozen

from orchestrator.devices.device import CACHE_HEADER_SIZE, DeviceIdentity
from orchestrator.devices.simulated.locking import Clock, LockingStrategy, LockWait, ReadWriteLock

_HEADER: Final = struct.Struct("<IIII16s")
_ENTRY: Final = struct.Struct("<32sQII")


@frozen(eq=False)
class CacheEntry:
    """Compiled code of one pipeline, by its binary key of 32 bytes."""

    key: bytes
    build: int
    payload: bytes

    @property
    def size(self) -> int:
        """Its size in the data of a cache, bytes."""
        return _ENTRY.size + len(self.payload)

    def encode(self) -> bytes:
        """The entry in the format of the data of a cache."""
        return _ENTRY.pack(self.key, self.build, len(self.payload), zlib.crc32(self.payload)) + self.payload


@frozen(eq=False)
class ParsedData:
    """Undamaged entries of initial data, and whether something was ignored: header, an entry, or the end."""

    entries: tuple[CacheEntry, ...]
    bad: bool


def encode_header(identity: DeviceIdentity) -> bytes:
    """The header of a device's cache data, 32 bytes."""
    return _HEADER.pack(
        CACHE_HEADER_SIZE, 1, identity.vendor_id, identity.device_id, identity.pipeline_cache_uuid
    )


def parse_data(data: bytes, identity: DeviceIdentity, *, any_uuid: bool = False) -> ParsedData:
    """Parse initial data as a driver must: invalid parts are ignored, never an error.

    `any_uuid` accepts data of another pipelineCacheUUID, as a broken driver does.
    """
    known = _HEADER.size - (16 if any_uuid else 0)
    if len(data) < _HEADER.size or data[:known] != encode_header(identity)[:known]:
        return ParsedData((), bad=True)
    entries: list[CacheEntry] = []
    bad = False
    offset = _HEADER.size
    while offset + _ENTRY.size <= len(data):
        key, build, size, checksum = _ENTRY.unpack_from(data, offset)
        end = offset + _ENTRY.size + size
        if end > len(data):
            break
        payload = data[offset + _ENTRY.size : end]
        if zlib.crc32(payload) == checksum:
            entries.append(CacheEntry(key, build, payload))
        else:
            bad = True
        offset = end
    return ParsedData(tuple(entries), bad or offset != len(data))


class SimulatedCache:
    """A pipeline cache of the simulated driver, as thread-safe as its locking strategy.

    The two-level strategy keeps entries that have not migrated yet apart. A stub keeps nothing.
    """

    def __init__(
        self,
        header: bytes,
        entries: Iterable[CacheEntry],
        *,
        strategy: LockingStrategy,
        clock: Clock,
        migrate_every: int,
        stub: bool,
    ) -> None:
        self.strategy = strategy
        self.lock = ReadWriteLock(clock)
        self._header = header
        self._migrate_every = migrate_every
        self._stub = stub
        self._shared: dict[bytes, CacheEntry] = {}
        self._recent: dict[bytes, CacheEntry] = {}
        # Protects the dictionaries where the strategy has no lock. Otherwise a caller that breaks the rules
        # would break the interpreter's iteration instead of being reported.
        self._mutex = threading.Lock()
        for entry in entries:
            self._insert(self._shared, entry)

    def obtain(
        self, key: bytes, make: Callable[[], CacheEntry | None], wait: LockWait
    ) -> tuple[CacheEntry | None, bool]:
        """Look up an entry by its binary key, or make and insert it, with the locking of the strategy.

        Returns:
            The entry, or None if `make` returned None; and whether it was found.
        """
        if self.strategy in (LockingStrategy.WHOLE_COMPILE, LockingStrategy.NONE):
            with self._alone(wait):
                return self._find_or_make(key, make, self._shared)
        with self.lock.read(wait):
            found = self._shared.get(key)
        if found is not None:
            return found, True
        if self.strategy is LockingStrategy.TWO_LEVEL:
            with self.lock.write(wait):
                made_or_found = self._find_or_make(key, make, self._recent)
                if len(self._recent) >= self._migrate_every:
                    self._shared.update(self._recent)
                    self._recent.clear()
                return made_or_found
        if (made := make()) is not None:
            with self.lock.write(wait):
                self._insert(self._shared, made)
        return made, False

    def _find_or_make(
        self, key: bytes, make: Callable[[], CacheEntry | None], level: dict[bytes, CacheEntry]
    ) -> tuple[CacheEntry | None, bool]:
        # Looks in both levels, because the entry may have migrated since the first look-up.
        if (found := self._recent.get(key) or self._shared.get(key)) is not None:
            return found, True
        if (made := make()) is not None:
            self._insert(level, made)
        return made, False

    def absorb(self, entries: Mapping[bytes, CacheEntry], wait: LockWait) -> None:
        """Merge the entries of another cache, without those that are here already."""
        with self._alone(wait):
            for key, entry in entries.items():
                if key not in self._recent:
                    self._insert(self._shared, entry)

    def snapshot(self, wait: LockWait) -> dict[bytes, CacheEntry]:
        """The current entries by binary key, in the order of insertion."""
        with self._mutex if self.strategy is LockingStrategy.NONE else self.lock.read(wait):
            return self._shared | self._recent

    def size(self, wait: LockWait) -> int:
        """Size of the complete data, bytes."""
        return _HEADER.size + sum(entry.size for entry in self.snapshot(wait).values())

    def read(self, capacity: int, wait: LockWait) -> tuple[bytes, bool]:
        """The data up to the last entry that fits, b"" if not even the header does; if it is complete."""
        parts = [self._header, *(entry.encode() for entry in self.snapshot(wait).values())]
        ends = itertools.accumulate(map(len, parts))
        fitting = [part for part, end in zip(parts, ends, strict=True) if end <= capacity]
        return b"".join(fitting), len(fitting) == len(parts)

    def _alone(self, wait: LockWait) -> AbstractContextManager[None]:
        return nullcontext() if self.strategy is LockingStrategy.NONE else self.lock.write(wait)

    def _insert(self, level: dict[bytes, CacheEntry], entry: CacheEntry) -> None:
        if not self._stub:
            with self._mutex:
                level.setdefault(entry.key, entry)
