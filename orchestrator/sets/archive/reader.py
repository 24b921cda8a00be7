"""Archives: `.foz` files as record sources.

Read Fossilize archives as a source of records. The format's table is in archive_index.py; writing is in
archive_writer.py.

Guarantees: - Opening scans the headers once over a memory map; payloads are read and decoded when asked
for, and checked every time: crc, sizes, a zlib stream that ends. Nothing is allocated on the word of a
header alone. - A bad record never stops the good ones: it stays in `keys`, so that whoever needs it learns
why it cannot be had, raises RecordError when read, and stands in `damage`. - All reads are thread-safe.

Assumptions: nobody shortens the file while it is open. Its size is checked before every read, which catches
all but a race; a mapped file that shrinks in that instant ends the process (SIGBUS).
"""

from __future__ import annotations

import mmap
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self, runtime_checkable

from attrs import frozen

from orchestrator.errors import ArchiveError, RecordError
from orchestrator.sets.archive.index import FLAG_RAW, RECORD_SIZE, ArchiveIndex, build_index, inflate
from orchestrator.sets.archive.index import ArchiveLimits as ArchiveLimits
from orchestrator.sets.archive.writer import ArchiveWriter as ArchiveWriter
from orchestrator.sets.archive.writer import StoredPayload as StoredPayload
from orchestrator.sets.records import Damage, DamageLog, RecordSource, RecordTag


@frozen
class ArchiveRecord:
    """Where a record is and how it is stored.

    Attributes:
        tag: What it holds.
        key: Its hash.
        offset: Of its header in the file, bytes.
        stored_size: Bytes of payload in the file.
        size: Bytes of payload when decoded, as declared.
        flags: 1 raw, 2 deflate.
        crc: crc32 of the stored bytes, 0 where unchecked.
        refusal: Why its header is refused, or None.
    """

    tag: RecordTag
    key: int
    offset: int
    stored_size: int
    size: int
    flags: int
    crc: int
    refusal: str | None


class Archive:
    """An open archive. Implements `RecordSource`; close it, or use it as a context manager.

    Thread-safe, except that `close` must not run while another thread reads.
    """

    def __init__(self, path: str, data: mmap.mmap, index: ArchiveIndex, descriptor: int) -> None:
        """Use `Archive.open`."""
        self._path = path
        self._data = data
        self._size = len(data)
        self._index = index
        self._descriptor: int | None = descriptor
        self._log = DamageLog()
        for damage in index.damage:
            self._log.add(damage)
        self._keys = {tag: tuple(positions) for tag, positions in index.positions.items()}

    @classmethod
    def open(cls, path: str | os.PathLike[str], limits: ArchiveLimits | None = None) -> Self:
        """Open an archive and index it.

        Args:
            path: The file.
            limits: Caps on what it may hold; the defaults of `ArchiveLimits`.

        Raises:
            ArchiveError: The file cannot be opened, is not an archive, or is over a cap.
        """
        name = os.fspath(path)
        try:
            # Non-blocking, so that a pipe by that name is refused below instead of waited for.
            flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
            descriptor = os.open(name, flags | getattr(os, "O_BINARY", 0))
        except (OSError, ValueError) as error:
            raise ArchiveError(name, 0, f"cannot be opened: {_cause(error)}") from error
        try:
            data = _map(name, descriptor)
            try:
                return cls(name, data, build_index(data, name, limits or ArchiveLimits()), descriptor)
            except BaseException:
                data.close()
                raise
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def name(self) -> str:
        """The path that it was opened by."""
        return self._path

    @property
    def damage(self) -> Sequence[Damage]:
        """What was found damaged: headers at once, payloads when they are read."""
        return self._log.entries

    @property
    def damage_count(self) -> int:
        """How much was found damaged; more than `damage` describes when it is very much."""
        return len(self._log)

    @property
    def duplicates(self) -> int:
        """Records left out because one of the same tag and hash came before."""
        return self._index.duplicates

    @property
    def size(self) -> int:
        """Size of the file, bytes."""
        return self._size

    def __len__(self) -> int:
        """Number of records, each (tag, hash) once."""
        return sum(map(len, self._keys.values()))

    def __contains__(self, name: tuple[RecordTag, int]) -> bool:
        """Whether there is a record (tag, hash), damaged or not."""
        tag, key = name
        return key in self._index.positions[tag]

    def __repr__(self) -> str:
        state = "closed" if self._descriptor is None else f"{len(self)} records"
        return f"<Archive {self._path!r}: {state}>"

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag in file order, each once."""
        return self._keys[tag]

    def records(self) -> Iterator[ArchiveRecord]:
        """All records in file order, each (tag, hash) once, the refused included."""
        index = self._index
        rows = sorted(row for positions in index.positions.values() for row in positions.values())
        for row in rows:
            yield ArchiveRecord(
                tag=RecordTag(int(index.tags[row])),
                key=int(index.keys[row]),
                offset=int(index.offsets[row]),
                stored_size=int(index.stored[row]),
                size=int(index.sizes[row]),
                flags=int(index.flags[row]),
                crc=int(index.crcs[row]),
                refusal=index.refusals.get(row),
            )

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The decoded payload of a record.

        Raises:
            KeyError: There is no such record.
            RecordError: It is damaged.
        """
        row = self._index.positions[tag][key]
        stored = self._read(row)
        size = int(self._index.sizes[row])
        if self._index.flags[row] == FLAG_RAW:
            return stored
        try:
            return inflate(stored, size)
        except ValueError as error:
            raise self._damaged(row, str(error)) from error

    def stored_payload(self, tag: RecordTag, key: int) -> StoredPayload:
        """A record's payload as it stands in the file, for a copy without loss. Its crc is checked.

        Raises:
            KeyError: There is no such record.
            RecordError: It is damaged.
        """
        row = self._index.positions[tag][key]
        index = self._index
        return StoredPayload(
            data=self._read(row),
            flags=int(index.flags[row]),
            crc=int(index.crcs[row]),
            size=int(index.sizes[row]),
        )

    def offset(self, tag: RecordTag, key: int) -> int:
        """Where a record's header is in the file, bytes.

        Raises:
            KeyError: There is no such record.
        """
        return int(self._index.offsets[self._index.positions[tag][key]])

    def copy_to(self, writer: ArchiveWriter) -> int:
        """Write all records that can be read as they are stored, in file order.

        Returns:
            How many were left out because they are damaged (see `damage`).
        """
        lost = 0
        for record in self.records():
            try:
                stored = self.stored_payload(record.tag, record.key)
            except RecordError:
                lost += 1  # it stands in the damage
                continue
            writer.add_stored(record.tag, record.key, stored)
        return lost

    def close(self) -> None:
        """Unmap the file. Idempotent."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._data.close()
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, row: int) -> bytes:
        """Stored bytes of a record, checked against its header and crc."""
        index = self._index
        refusal = index.refusals.get(row)
        if refusal is not None:
            raise self._damaged(row, refusal)
        if self._descriptor is None:
            raise ValueError(f"{self._path}: read from a closed archive")
        begin = int(index.offsets[row]) + RECORD_SIZE
        end = begin + int(index.stored[row])
        if os.fstat(self._descriptor).st_size < end:
            raise self._damaged(row, "the file was shortened after it was opened")
        stored = self._data[begin:end]
        crc = int(index.crcs[row])
        if crc != 0 and zlib.crc32(stored) != crc:
            raise self._damaged(row, f"crc32 {zlib.crc32(stored):08x} of the stored bytes is not {crc:08x}")
        return stored

    def _damaged(self, row: int, reason: str) -> RecordError:
        index = self._index
        tag, key, offset = int(index.tags[row]), int(index.keys[row]), int(index.offsets[row])
        self._log.add(Damage(offset, tag, key, reason))
        return RecordError(tag, key, f"{self._path}: {reason}", offset)


@runtime_checkable
class CopiesRecords(Protocol):
    """A source that knows how its records are best copied: without recoding, in their order."""

    def copy_to(self, writer: ArchiveWriter) -> int:
        """Write all records that can be read; return how many were left out because they are damaged."""


def copy_records(source: RecordSource, writer: ArchiveWriter) -> int:
    """Copy all records of a source that can be read; from archives as they are stored, in file order.

    Returns:
        How many were left out because they are damaged (see the source's `damage`).

    Raises:
        ArchiveError: The writer's file cannot be written.
    """
    if isinstance(source, CopiesRecords):
        return source.copy_to(writer)
    lost = 0
    for tag in RecordTag:
        for key in source.keys(tag):
            try:
                payload = source.payload(tag, key)
            except RecordError:
                lost += 1  # the source keeps it in its damage
                continue
            writer.add(tag, key, payload)
    return lost


def _map(name: str, descriptor: int) -> mmap.mmap:
    """Map a whole regular file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ArchiveError(name, 0, "not an archive: not a regular file")
    if status.st_size == 0:
        raise ArchiveError(name, 0, "not an archive: the file is empty")
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ArchiveError(name, 0, f"cannot be mapped: {_cause(error)}") from error


def _cause(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
