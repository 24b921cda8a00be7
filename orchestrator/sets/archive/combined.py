"""`CombinedRecords`: several sources as one.

Several record sources as one, and what treats one archive and several alike: opening by paths and finding a
record in its file.

Guarantees: reads are thread-safe as far as the sources' are.

`MemoryRecords`: records kept in dictionaries.

A set in memory: what code and manifests build, and what tests hand to everything above.

Guarantees: reads are thread-safe; records are never changed once added.

Assumptions: one thread adds; a reader that must see a record asks after it was added.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from orchestrator.errors import RecordError
from orchestrator.sets.archive.reader import Archive, ArchiveLimits, copy_records
from orchestrator.sets.archive.writer import ArchiveWriter
from orchestrator.sets.records import Damage, RecordSource, RecordTag


class CombinedRecords:
    """Several sources as one, such as a capture's base archive and the `name.N.foz` of its processes.

    Of records of the same name the first source's wins; the next one's stands in where that is damaged.
    Thread-safe as far as its sources are. `close` closes the sources that can be closed.
    """

    def __init__(self, sources: Sequence[RecordSource]) -> None:
        self._sources = tuple(sources)
        self._keys = {
            tag: tuple(dict.fromkeys(key for source in self._sources for key in source.keys(tag)))
            for tag in RecordTag
        }

    @property
    def sources(self) -> tuple[RecordSource, ...]:
        """What it is combined of."""
        return self._sources

    @property
    def name(self) -> str:
        """The names of the sources."""
        return " + ".join(source.name for source in self._sources)

    @property
    def damage(self) -> Sequence[Damage]:
        """What the sources found, source by source; the reason begins with the source's name."""
        return tuple(
            Damage(each.offset, each.tag, each.key, f"{source.name}: {each.reason}")
            for source in self._sources
            for each in source.damage
        )

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag, source by source, each once."""
        return self._keys[tag]

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The decoded payload of a record.

        Raises:
            KeyError: No source has such a record.
            RecordError: It is damaged in every source that has it; the error is the first one's.
        """
        first: RecordError | None = None
        for source in self._sources:
            try:
                return source.payload(tag, key)
            except KeyError:
                continue
            except RecordError as error:
                first = first or error
        if first is not None:
            raise first
        raise KeyError(key)

    def copy_to(self, writer: ArchiveWriter) -> int:
        """Write all records that can be read, source by source; from archives as they are stored.

        Returns:
            How many were left out because they are damaged in every source that has them.
        """
        for each in self._sources:
            copy_records(each, writer)
        return sum((tag, key) not in writer for tag in RecordTag for key in self._keys[tag])

    def close(self) -> None:
        """Close the sources that can be closed. Idempotent."""
        for source in self._sources:
            if isinstance(source, Archive | CombinedRecords):
                source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_archives(
    paths: Sequence[str | os.PathLike[str]], limits: ArchiveLimits | None = None
) -> Archive | CombinedRecords:
    """Open one archive, or several as one source.

    Args:
        paths: The files; of equal records the first file's wins.
        limits: Caps on what each may hold.

    Raises:
        ArchiveError: One of them cannot be read.
        ValueError: There is no path.
    """
    if not paths:
        raise ValueError("no archive is named")
    opened: list[Archive] = []
    try:
        for path in paths:
            opened.append(Archive.open(path, limits))
    except BaseException:
        for archive in opened:
            archive.close()
        raise
    return opened[0] if len(opened) == 1 else CombinedRecords(opened)


def record_offset(source: RecordSource, tag: RecordTag, key: int) -> int | None:
    """Where a record is in its file, None for one that is in no file."""
    if isinstance(source, Archive):
        return source.offset(tag, key) if (tag, key) in source else None
    if isinstance(source, CombinedRecords):
        offsets = (record_offset(each, tag, key) for each in source.sources)
        return next((offset for offset in offsets if offset is not None), None)
    return None


class MemoryRecords:
    """A mutable `RecordSource`. Of records of one name the first is kept."""

    def __init__(self, name: str = "memory") -> None:
        """Begin an empty set.

        Args:
            name: For messages.
        """
        self._name = name
        self._payloads: dict[RecordTag, dict[int, bytes]] = {tag: {} for tag in RecordTag}

    @property
    def name(self) -> str:
        """Where the records come from, for messages."""
        return self._name

    @property
    def damage(self) -> Sequence[Damage]:
        """Nothing: what is in memory was never stored."""
        return ()

    def __len__(self) -> int:
        """Number of records."""
        return sum(map(len, self._payloads.values()))

    def __contains__(self, name: tuple[RecordTag, int]) -> bool:
        """Whether there is a record (tag, hash)."""
        tag, key = name
        return key in self._payloads[tag]

    def add(self, tag: RecordTag, key: int, payload: bytes) -> bool:
        """Add a record.

        Args:
            tag: What it holds.
            key: Its 64-bit hash.
            payload: As in an archive, uncompressed: JSON, and for modules a NUL and the encoded words.

        Returns:
            False where there is one of that name; this one is left out then.

        Raises:
            ValueError: The hash does not have 64 bits.
        """
        if not 0 <= key < 1 << 64:
            raise ValueError(f"hash {key:#x} does not have 64 bits")
        records = self._payloads[tag]
        if key in records:
            return False
        records[key] = payload
        return True

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag in the order they were added."""
        return tuple(self._payloads[tag])

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The payload of a record.

        Raises:
            KeyError: There is no such record.
        """
        return self._payloads[tag][key]
