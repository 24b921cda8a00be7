"""The pipeline cache of the simulated driver: its entries, its locking, and its data as bytes.

Layout of the data, little-endian:

    header   u32 length = 32 · u32 version = 1 · u32 vendorID · u32 deviceID · 16 bytes pipelineCacheUUID
    entry    32 bytes binary key · u64 build · u32 size · u32 CRC-32 of the payload · payload     (repeated)

The header is VkPipelineCacheHeaderVersionOne (specification, "Pipeline Cache Header"); the rest is private to
the driver. `build` names the compiler of an entry, so the driver can detect code of another one.

Guarantees: data that ends after any entry is valid, so a partial read can be used. Entries have the order of
their insertion, so equal histories give equal bytes (real drivers do not guarantee that). The locking
strategy determines thread safety; only one thread at a time may use a cache without a lock.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.simulated.locking import Clock, LockingStrategy, LockWait, ReadWriteLock

HEADER_SIZE = 32
HEADER_VERSION_ONE = 1
_HEADER = struct.Struct("<IIII16s")
_ENTRY = struct.Struct("<32sQII")


@frozen(eq=False)
class CacheEntry:
    """Compiled code of one pipeline.

    Attributes:
        key: Binary key for look-ups, 32 bytes.
        build: The compiler that made it.
        payload: The code.
    """

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
    """Parsed initial data.

    Attributes:
        entries: The undamaged entries; none if the header is another device's.
        bad: Whether something was ignored: the header, an entry, or the end.
    """

    entries: tuple[CacheEntry, ...]
    bad: bool


def encode_header(identity: DeviceIdentity) -> bytes:
    """The header of a device's cache data, 32 bytes."""
    return _HEADER.pack(
        HEADER_SIZE, HEADER_VERSION_ONE, identity.vendor_id, identity.device_id, identity.pipeline_cache_uuid
    )


def parse_data(data: bytes, identity: DeviceIdentity, *, any_uuid: bool = False) -> ParsedData:
    """Parse initial data as a driver must: invalid parts are ignored, never an error.

    Args:
        data: The initial data.
        identity: The device that parses it.
        any_uuid: Accept data of another pipelineCacheUUID, as a broken driver does.
    """
    if len(data) < HEADER_SIZE:
        return ParsedData((), bad=True)
    *numbers, uuid = _HEADER.unpack_from(data)
    expected = [HEADER_SIZE, HEADER_VERSION_ONE, identity.vendor_id, identity.device_id]
    if numbers != expected or not (any_uuid or uuid == identity.pipeline_cache_uuid):
        return ParsedData((), bad=True)
    entries: list[CacheEntry] = []
    bad = False
    offset = HEADER_SIZE
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
    """A pipeline cache of the simulated driver.

    It has two levels of entries: one for look-ups, and one for the entries that have not migrated yet in the
    two-level strategy.
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
        """Create a cache; NONE is the strategy of externally synchronized ones, and a stub keeps nothing."""
        self.strategy = strategy
        self.lock = ReadWriteLock(clock)
        self.migrations = 0
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
        if self.strategy is LockingStrategy.WHOLE_COMPILE:
            with self.lock.write(wait):
                return self._find_or_make(key, make, self._shared)
        if self.strategy is LockingStrategy.NONE:
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
                    self.migrations += 1
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
        with nullcontext() if self.strategy is LockingStrategy.NONE else self.lock.write(wait):
            for key, entry in entries.items():
                if key not in self._recent:
                    self._insert(self._shared, entry)

    def snapshot(self, wait: LockWait) -> dict[bytes, CacheEntry]:
        """The current entries by binary key, in the order of insertion."""
        with self._mutex if self.strategy is LockingStrategy.NONE else self.lock.read(wait):
            return self._shared | self._recent

    def size(self, wait: LockWait) -> int:
        """Size of the complete data, bytes."""
        return HEADER_SIZE + sum(entry.size for entry in self.snapshot(wait).values())

    def read(self, capacity: int, wait: LockWait) -> tuple[bytes, bool]:
        """The data up to the last entry that fits, b"" if not even the header does; if it is complete."""
        entries = self.snapshot(wait)
        if capacity < HEADER_SIZE:
            return b"", False
        parts = [self._header]
        rest = capacity - HEADER_SIZE
        for entry in entries.values():
            if entry.size > rest:
                return b"".join(parts), False
            parts.append(entry.encode())
            rest -= entry.size
        return b"".join(parts), True

    def _insert(self, level: dict[bytes, CacheEntry], entry: CacheEntry) -> None:
        if not self._stub:
            with self._mutex:
                level.setdefault(entry.key, entry)
