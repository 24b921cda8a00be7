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
from orchestrator.devices.simulated.locking import CacheLock, Clock, LockingStrategy, LockWait

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
    """A pipeline cache of the simulated driver, thread-safe as its strategy says. A stub keeps nothing."""

    def __init__(
        self,
        header: bytes,
        entries: Iterable[CacheEntry],
        *,
        strategy: LockingStrategy,
        clock: Clock,
        stub: bool,
    ) -> None:
        self.lock = CacheLock(clock)
        self._strategy = strategy
        self._header = header
        self._stub = stub
        self._entries: dict[bytes, CacheEntry] = {}
        # Protects the entries where the strategy has no lock. Otherwise a caller that breaks the rules would
        # break the interpreter's iteration instead of being reported.
        self._mutex = threading.Lock()
        for entry in entries:
            self._insert(entry)

    def obtain(
        self, key: bytes, make: Callable[[], CacheEntry | None], wait: LockWait
    ) -> tuple[CacheEntry | None, bool]:
        """Look up an entry by its binary key, or make and insert it, with the locking of the strategy.

        Returns:
            The entry, or None if `make` returned None; and whether it was found.
        """
        whole = self._held(wait) if self._strategy is LockingStrategy.WHOLE_COMPILE else nullcontext()
        part = wait if self._strategy is LockingStrategy.SINGLE_LEVEL else None
        with whole:
            with self._held(part):
                found = self._entries.get(key)
            if found is not None:
                return found, True
            if (made := make()) is not None:
                with self._held(part):
                    self._insert(made)
            return made, False

    def absorb(self, entries: Mapping[bytes, CacheEntry], wait: LockWait) -> None:
        """Merge the entries of another cache, without those that are here already."""
        with self._held(wait):
            for entry in entries.values():
                self._insert(entry)

    def snapshot(self, wait: LockWait) -> dict[bytes, CacheEntry]:
        """The current entries by binary key, in the order of insertion."""
        with self._held(wait), self._mutex:
            return dict(self._entries)

    def size(self, wait: LockWait) -> int:
        """Size of the complete data, bytes."""
        return _HEADER.size + sum(entry.size for entry in self.snapshot(wait).values())

    def read(self, capacity: int, wait: LockWait) -> tuple[bytes, bool]:
        """The data up to the last entry that fits, b"" if not even the header does; if it is complete."""
        parts = [self._header, *(entry.encode() for entry in self.snapshot(wait).values())]
        ends = itertools.accumulate(map(len, parts))
        fitting = [part for part, end in zip(parts, ends, strict=True) if end <= capacity]
        return b"".join(fitting), len(fitting) == len(parts)

    def _held(self, wait: LockWait | None) -> AbstractContextManager[None]:
        # Without a wait to add to, the strategy holds no lock here.
        if wait is None or self._strategy is LockingStrategy.NONE:
            return nullcontext()
        return self.lock.held(wait)

    def _insert(self, entry: CacheEntry) -> None:
        if not self._stub:
            with self._mutex:
                self._entries.setdefault(entry.key, entry)
