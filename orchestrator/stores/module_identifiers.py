"""`ShaderModuleIdentifierStore`: identifiers of shader modules by an application's keys of its shaders.

Those of one algorithm (shaderModuleIdentifierAlgorithmUUID) are valid for every device and driver version
with that algorithm, and for no other. 100,000 shaders take 4.5 MB: one value, read once by a run. Beyond the
bound, those that were not used for the longest time are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen, validators

from orchestrator.devices.identified import MOST_IDENTIFIER_BYTES
from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations, content_hash128
from orchestrator.stores.run_notes import Keys, places_of
from orchestrator.stores.state import Kind, state_path

_ENTRY_BYTES: Final = 8 + 4 + 1 + MOST_IDENTIFIER_BYTES
_HOUR_S: Final = 3600

MOST_ENTRIES: Final = 1_000_000
"""Ten times what the largest known games have; the last used are kept."""


@frozen(eq=False)
class KnownIdentifiers:
    """Identifiers of modules, all of one algorithm.

    Attributes:
        keys: Keys of shaders, ascending, shape (n,).
        used: Hour of the last use of each, since 1970, shape (n,).
        sizes: Bytes of each identifier, shape (n,).
        identifiers: The identifiers, padded with zeros, shape (n, 32).
        problem: Why those that are kept were not used, or "".
    """

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

    @property
    def stored_bytes(self) -> int:
        """Bytes that they take in the database."""
        return _ENTRY_BYTES * len(self)

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
        directory: The directory.
        algorithm: shaderModuleIdentifierAlgorithmUUID, 16 bytes.
        revision: What the keys mean (`SpirvProvider.revision`); each revision has identifiers of its own.
        most: Most shaders that it holds.
        operations: The calls to use.
    """

    directory: Path
    algorithm: bytes = field(validator=[validators.min_len(16), validators.max_len(16)])
    revision: str = ""
    most: int = field(default=MOST_ENTRIES, validator=[validators.ge(1), validators.le(MOST_ENTRIES)])
    operations: FileOperations = field(default=REAL_FILE_OPERATIONS, repr=False)

    @property
    def path(self) -> Path:
        """The database."""
        return state_path(self.directory)

    @property
    def _place(self) -> Path:
        revision = content_hash128(self.revision.encode())[:8].hex()
        return self.directory / f"shader-modules-{self.algorithm.hex()}-{revision}"

    def read(self) -> KnownIdentifiers:
        """The known identifiers. Never raises: unusable ones give none and say why."""
        known, problem = IDENTIFIERS.read(self._place, self.operations)
        return KnownIdentifiers(problem=problem) if known is None else known

    def add(self, learned: Mapping[int, bytes], used: Keys | None = None) -> KnownIdentifiers:
        """Add identifiers by the keys of their shaders; returns all known ones.

        Args:
            learned: The identifiers, 1 to 32 bytes each.
            used: Shaders that were asked for now, shape (k,); they are kept longest.

        Raises:
            ValueError: An identifier is too long, or empty.
            SaveError: As `Kind.update`.
        """
        if not all(1 <= len(each) <= MOST_IDENTIFIER_BYTES for each in learned.values()):
            raise ValueError(f"an identifier has 1 to {MOST_IDENTIFIER_BYTES} bytes")
        asked = np.zeros(0, np.uint64) if used is None else used
        known = KnownIdentifiers()

        def make(old: KnownIdentifiers | None) -> bytes:
            nonlocal known
            hour = int(time.time()) // _HOUR_S
            known = (known if old is None else old).updated(learned, asked, hour, self.most)
            columns = known.keys.astype("<u8"), known.used.astype("<u4"), known.sizes, known.identifiers
            return b"".join(each.tobytes() for each in columns)

        IDENTIFIERS.update(self._place, make, self.operations)
        return known


def _decode(data: bytes) -> KnownIdentifiers:
    count, rest = divmod(len(data), _ENTRY_BYTES)
    if rest:
        raise ValueError(f"{len(data)} bytes are no multiple of {_ENTRY_BYTES}")
    keys = np.frombuffer(data, "<u8", count).astype(np.uint64)
    used = np.frombuffer(data, "<u4", count, 8 * count).astype(np.uint32)
    sizes = np.frombuffer(data, np.uint8, count, 12 * count).copy()
    table = np.frombuffer(data, np.uint8, MOST_IDENTIFIER_BYTES * count, 13 * count)
    if (sizes > MOST_IDENTIFIER_BYTES).any() or (sizes == 0).any() or (keys[1:] <= keys[:-1]).any():
        raise ValueError("sizes or keys are not as they are written")
    return KnownIdentifiers(keys, used, sizes, table.reshape(count, MOST_IDENTIFIER_BYTES).copy())


IDENTIFIERS: Final = Kind("shader-module identifiers", _decode, cap=_ENTRY_BYTES * MOST_ENTRIES)
