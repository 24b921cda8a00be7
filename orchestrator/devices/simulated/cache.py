"""The pipeline cache of the simulated driver: its entries, and its data as bytes.

Layout of the data, little-endian:

    header   u32 length = 32 · u32 version = 1 · u32 vendorID · u32 deviceID · 16 bytes pipelineCacheUUID
    entry    32 bytes binary key · u64 build · u32 size · u32 CRC-32 of the payload · payload     (repeated)

The header is VkPipelineCacheHeaderVersionOne (specification, "Pipeline Cache Header"). `build` names the
compiler of an entry, so the driver can detect code of another one.

Guarantees: data that ends after any entry is valid, so a partial read can be used. Entries have the order of
their insertion, so equal histories give equal bytes (real drivers do not guarantee that).
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Iterable
from typing import Final

from attrs import frozen

from orchestrator.devices.device import CACHE_HEADER_SIZE, DeviceIdentity

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
    """A pipeline cache of the simulated driver. Thread-safe. A stub keeps nothing."""

    def __init__(self, header: bytes, entries: Iterable[CacheEntry], *, stub: bool) -> None:
        self._header = header
        self._stub = stub
        self._entries: dict[bytes, CacheEntry] = {}
        self._mutex = threading.Lock()
        self.insert(entries)

    def get(self, key: bytes) -> CacheEntry | None:
        """An entry by its binary key."""
        with self._mutex:
            return self._entries.get(key)

    def insert(self, entries: Iterable[CacheEntry]) -> None:
        """Insert entries, without those that are here already."""
        with self._mutex:
            for entry in () if self._stub else entries:
                self._entries.setdefault(entry.key, entry)

    def snapshot(self) -> list[CacheEntry]:
        """The current entries, in the order of insertion."""
        with self._mutex:
            return list(self._entries.values())

    def size(self) -> int:
        """Size of the complete data, bytes."""
        return _HEADER.size + sum(entry.size for entry in self.snapshot())

    def read(self) -> bytes:
        """The complete data."""
        return b"".join([self._header, *(entry.encode() for entry in self.snapshot())])
