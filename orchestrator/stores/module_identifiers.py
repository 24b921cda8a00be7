"""`ShaderModuleIdentifierStore`: identifiers of shader modules by an application's keys of its shaders.

A directory of cache files has one file for each algorithm
(VkPhysicalDeviceShaderModuleIdentifierPropertiesEXT::shaderModuleIdentifierAlgorithmUUID). Its identifiers
are valid for every device and driver version with that algorithm, and for no other. Little-endian:

| offset | size | field                                                    |
|--------|------|----------------------------------------------------------|
|      0 |    8 | magic "ORCHSMI" and format version 1                     |
|      8 |    8 | number of entries, n                                     |
|     16 |   16 | shaderModuleIdentifierAlgorithmUUID                      |
|     32 |   16 | xxh3_128 of the algorithm and of all behind the header   |
|     48 |  8 n | keys of shaders, ascending                               |
|        |  4 n | hours since 1970 in which each was used last             |
|        |    n | size of each identifier, 1 to 32 bytes                   |
|        | 32 n | the identifiers, zeros behind each                       |

It is a file and not a database: 100,000 shaders take 4.5 MB, which a run reads once, in milliseconds, and
writes whole. A killed writer leaves the old file or the new one. Beyond the bound, the identifiers that were
not used for the longest time are dropped.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen, validators

from orchestrator.devices.identified import MOST_IDENTIFIER_BYTES
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations, content_hash128
from orchestrator.stores.kinds import CACHE_FILE_SUFFIX, MODULE_IDENTIFIERS
from orchestrator.stores.run_notes import Keys, places_of

_HEADER: Final = struct.Struct("<7sBQ16s16s")
IDENTIFIERS_MAGIC: Final = b"ORCHSMI"
"""First bytes of every file."""

_VERSION: Final = 1
_ENTRY_BYTES: Final = 8 + 4 + 1 + MOST_IDENTIFIER_BYTES
_HOUR_S: Final = 3600

MOST_ENTRIES: Final = (MODULE_IDENTIFIERS.cap - _HEADER.size) // _ENTRY_BYTES
"""Ten times what the largest known games have; the last used are kept."""


@frozen(eq=False)
class KnownIdentifiers:
    """Identifiers of modules, all of one algorithm.

    Attributes:
        algorithm: shaderModuleIdentifierAlgorithmUUID; empty where there is no file.
        keys: Keys of shaders, ascending, shape (n,).
        used: Hour of the last use of each, since 1970, shape (n,).
        sizes: Bytes of each identifier, shape (n,).
        identifiers: The identifiers, padded with zeros, shape (n, 32).
        problem: Why an existing file was not used, or "".
    """

    algorithm: bytes = b""
    keys: Keys = field(factory=lambda: np.zeros(0, np.uint64), repr=False)
    used: npt.NDArray[np.uint32] = field(factory=lambda: np.zeros(0, np.uint32), repr=False)
    sizes: npt.NDArray[np.uint8] = field(factory=lambda: np.zeros(0, np.uint8), repr=False)
    identifiers: npt.NDArray[np.uint8] = field(
        factory=lambda: np.zeros((0, MOST_IDENTIFIER_BYTES), np.uint8), repr=False
    )
    problem: str = ""

    def __len__(self) -> int:
        """Number of shaders."""
        return len(self.keys)

    def rows(self, keys: Keys) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Identifiers of some shaders, shape (k, 32), and their sizes, 0 where one is not known."""
        table = np.zeros((len(keys), MOST_IDENTIFIER_BYTES), np.uint8)
        sizes = np.zeros(len(keys), np.uint8)
        places, there = places_of(self.keys, keys)
        table[there], sizes[there] = self.identifiers[places[there]], self.sizes[places[there]]
        return table, sizes

    def of(self, keys: Keys) -> list[bytes]:
        """Identifiers of some shaders; b"" where one is not known."""
        table, sizes = self.rows(keys)
        return [row[:size].tobytes() for row, size in zip(table, sizes.tolist(), strict=True)]

    def updated(self, learned: Mapping[int, bytes], used: Keys, hour: int, most: int) -> KnownIdentifiers:
        """These identifiers with newer ones, which replace them; `used` are the shaders asked for now."""
        stamps = self.used.copy()
        places, there = places_of(self.keys, used)
        stamps[places[there]] = hour
        table = np.zeros((len(learned), MOST_IDENTIFIER_BYTES), np.uint8)
        for row, each in zip(table, learned.values(), strict=True):
            row[: len(each)] = np.frombuffer(each, np.uint8)
        # The newest first, because `unique` keeps the first of equal keys.
        keys = np.concatenate([np.array(list(learned), np.uint64), self.keys])
        columns = (
            np.concatenate([np.full(len(learned), hour, np.uint32), stamps]),
            np.concatenate([np.array([len(each) for each in learned.values()], np.uint8), self.sizes]),
            np.concatenate([table, self.identifiers]),
        )
        unique, first = np.unique(keys, return_index=True)
        if len(unique) > most:
            kept = np.sort(np.argsort(columns[0][first], kind="stable")[len(unique) - most :])
            unique, first = unique[kept], first[kept]
        return evolve(
            self,
            keys=unique,
            used=columns[0][first],
            sizes=columns[1][first],
            identifiers=columns[2][first],
            problem="",
        )


@frozen
class ShaderModuleIdentifierStore:
    """The identifiers of one algorithm, in a directory of cache files. A value; thread-safe.

    Attributes:
        cache_file: The path that its name is made from; there need be no such file.
        algorithm: shaderModuleIdentifierAlgorithmUUID, 16 bytes.
        revision: What the keys mean (`SpirvProvider.revision`); each revision has its own file.
        most: Most shaders that it holds.
        operations: The calls to use.
    """

    cache_file: Path
    algorithm: bytes = field(validator=[validators.min_len(16), validators.max_len(16)])
    revision: str = ""
    most: int = field(default=MOST_ENTRIES, validator=[validators.ge(1), validators.le(MOST_ENTRIES)])
    operations: FileOperations = field(default=REAL_FILE_OPERATIONS, repr=False)

    @classmethod
    def of(cls, directory: Path, algorithm: bytes, revision: str = "") -> ShaderModuleIdentifierStore:
        """The store of an algorithm in a directory of cache files."""
        name = f"shader-modules-{algorithm.hex()}{CACHE_FILE_SUFFIX}"
        return cls(directory / name, algorithm, revision)

    @property
    def path(self) -> Path:
        """The file."""
        return MODULE_IDENTIFIERS.path(self.cache_file, self._label)

    @property
    def _label(self) -> str:
        return content_hash128(self.revision.encode())[:8].hex()

    def read(self) -> KnownIdentifiers:
        """The known identifiers. Never raises: an unusable file gives none and says why."""

        def decode(data: bytes) -> KnownIdentifiers:
            known = decode_identifiers(data)
            if known.algorithm != self.algorithm:
                other, own = known.algorithm.hex(), self.algorithm.hex()
                raise ValueError(f"it is of another algorithm: {other}, and the device has {own}")
            return known

        known, problem = MODULE_IDENTIFIERS.read(self.path, decode, self.operations)
        if known is None:
            return KnownIdentifiers(self.algorithm, problem=f"{self.path}: {problem}" if problem else "")
        return known

    def add(self, learned: Mapping[int, bytes], used: Keys | None = None) -> KnownIdentifiers:
        """Add identifiers by the keys of their shaders.

        Args:
            learned: The identifiers, 1 to 32 bytes each.
            used: Shaders that were asked for now, shape (k,); they are kept longest.

        Returns:
            All known identifiers.

        Raises:
            ValueError: An identifier is too long, or empty.
            SaveError: As `Kind.write`.
        """
        if not all(1 <= len(each) <= MOST_IDENTIFIER_BYTES for each in learned.values()):
            raise ValueError(f"an identifier has 1 to {MOST_IDENTIFIER_BYTES} bytes")
        asked = np.zeros(0, np.uint64) if used is None else used
        known = KnownIdentifiers(self.algorithm)

        def make() -> tuple[bytes, ...]:
            nonlocal known
            known = self.read().updated(learned, asked, int(time.time()) // _HOUR_S, self.most)
            return encode_identifiers(known)

        MODULE_IDENTIFIERS.write(self.cache_file, make, self.operations, label=self._label)
        return known


def encode_identifiers(known: KnownIdentifiers) -> tuple[bytes, ...]:
    """The content of a file."""
    columns = known.keys.astype("<u8"), known.used.astype("<u4"), known.sizes, known.identifiers
    body = b"".join(each.tobytes() for each in columns)
    proof = content_hash128(known.algorithm + body)
    return _HEADER.pack(IDENTIFIERS_MAGIC, _VERSION, len(known), known.algorithm, proof), body


def decode_identifiers(data: bytes) -> KnownIdentifiers:
    """Decode the content of a file of any algorithm.

    Raises:
        ValueError: It is damaged.
    """
    if len(data) < _HEADER.size:
        raise ValueError(f"{len(data)} bytes are less than the header of {_HEADER.size}")
    magic, version, count, algorithm, expected = _HEADER.unpack_from(data)
    if magic != IDENTIFIERS_MAGIC or version != _VERSION:
        raise ValueError(f"at byte 0: not a file of module identifiers of version {_VERSION}")
    body = memoryview(data)[_HEADER.size :]
    if len(body) != _ENTRY_BYTES * count:
        raise ValueError(
            f"at byte 8: {count} entries need {_ENTRY_BYTES * count} bytes, {len(body)} are there"
        )
    if content_hash128(algorithm + bytes(body)) != expected:
        raise ValueError("at byte 32: the content does not have the hash that was saved with it")
    keys = np.frombuffer(body, "<u8", count).astype(np.uint64)
    used = np.frombuffer(body, "<u4", count, 8 * count).astype(np.uint32)
    sizes = np.frombuffer(body, np.uint8, count, 12 * count).copy()
    table = np.frombuffer(body, np.uint8, MOST_IDENTIFIER_BYTES * count, 13 * count)
    if (sizes > MOST_IDENTIFIER_BYTES).any() or (sizes == 0).any() or (keys[1:] <= keys[:-1]).any():
        raise ValueError(f"at byte {_HEADER.size}: sizes or keys are not as they are written")
    return KnownIdentifiers(algorithm, keys, used, sizes, table.reshape(count, MOST_IDENTIFIER_BYTES).copy())
