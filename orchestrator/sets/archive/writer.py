"""Writing archives, version 6 of the format that `reader` describes.

Guarantees: the archive appears under its name whole or not at all: it is written to a temporary file, synced
and renamed, and the directory is synced. The same records in the same order give the same bytes (with the
same zlib). Of records with the same name the first is kept.
Assumptions: one thread uses a writer.
"""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from orchestrator.errors import ArchiveError, RecordError
from orchestrator.sets.archive.reader import (
    FLAG_DEFLATE,
    FLAG_RAW,
    MAGIC,
    StoredPayload,
    archives_of,
    check_key,
)
from orchestrator.sets.records import RecordSource, RecordTag

VERSION = 6
_PARAMETERS = struct.Struct("<4I")
_PAYLOAD_MAX = 0xFFFFFFFF


def deflated(payload: bytes) -> StoredPayload:
    """A payload as a writer stores it: deflated where that makes it smaller."""
    data = zlib.compress(payload)
    smaller = len(data) < len(payload)
    data = data if smaller else payload
    return StoredPayload(data, FLAG_DEFLATE if smaller else FLAG_RAW, zlib.crc32(data), len(payload))


class ArchiveWriter:
    """Writes one archive.

    As a context manager it commits at the end of the block, or discards what was written if the block raises.
    """

    def __init__(self, path: str | os.PathLike[str] | int) -> None:
        """Begin an archive.

        Args:
            path: The path, whose old file is replaced at commit; or the descriptor of an empty unnamed file,
                which is written directly and stays the caller's.

        Raises:
            ArchiveError: The directory does not take a new file.
        """
        self._path = f"descriptor {path}" if isinstance(path, int) else os.fspath(path)
        self._names: set[tuple[int, int]] = set()
        self._offset = 0
        self._temporary: Path | None = None
        descriptor = os.dup(path) if isinstance(path, int) else self._create(Path(path))
        self._file: BinaryIO | None = os.fdopen(descriptor, "wb", buffering=1 << 20)
        self._write(MAGIC + bytes([VERSION]))

    def _create(self, target: Path) -> int:
        self._temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            # The archive is a document that its owner may share: the umask decides who reads it.
            return os.open(self._temporary, flags, 0o666)
        except OSError as error:
            raise self._failed("cannot be created", error) from error

    def __len__(self) -> int:
        """Number of records so far."""
        return len(self._names)

    def __contains__(self, name: tuple[int, int]) -> bool:
        """Whether a record (tag, hash) was written."""
        return name in self._names

    def add(self, tag: RecordTag, key: int, payload: bytes) -> bool:
        """Write a record, unless one with that name was written before; says whether it did.

        Raises:
            ArchiveError: It cannot be written.
            ValueError: The payload is too large for the format, the key does not have 64 bits, or the writer
                is closed.
        """
        if (tag, key) in self._names:
            return False
        return self.add_stored(tag, key, deflated(payload))

    def add_stored(self, tag: RecordTag, key: int, stored: StoredPayload) -> bool:
        """As `add`, with a payload as stored in another archive.

        Raises:
            ValueError: As `add`.
        """
        check_key(key)
        if (tag, key) in self._names:
            return False
        if max(len(stored.data), stored.size) > _PAYLOAD_MAX:
            raise ValueError(
                f"record {int(tag)}/{key:016x}: {stored.size} bytes are more than the format holds"
            )
        name = f"{int(tag):024x}{key:016x}".encode()
        self._write(name + _PARAMETERS.pack(len(stored.data), stored.flags, stored.crc, stored.size))
        self._write(stored.data)
        self._names.add((tag, key))
        return True

    def commit(self) -> None:
        """Make the archive appear under its name, durably, and close the writer.

        Raises:
            ArchiveError: It cannot be written; the old file is unchanged.
            ValueError: The writer is closed.
        """
        file = self._open_file()
        try:
            file.flush()
            if self._temporary is None:
                file.close()
                self._file = None
                return
            os.fsync(file.fileno())
            file.close()
            self._temporary.replace(self._path)
        except OSError as error:
            self.discard()
            raise self._failed("cannot be written", error) from error
        self._file = None
        try:
            _sync_directory(Path(self._path).parent)
        except OSError as error:
            raise self._failed("is written, but its directory cannot be synced", error) from error

    def discard(self) -> None:
        """Remove what was written and close the writer. Idempotent; does nothing after `commit`."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with contextlib.suppress(OSError):  # flushing what is about to be removed may fail again
            file.close()
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is None:
            return
        if kind is None:
            self.commit()
        else:
            self.discard()

    def _write(self, data: bytes) -> None:
        try:
            self._open_file().write(data)
        except OSError as error:
            self.discard()
            raise self._failed("cannot be written", error) from error
        self._offset += len(data)

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            raise ValueError(f"{self._path}: the archive writer is closed")
        return self._file

    def _failed(self, what: str, error: OSError) -> ArchiveError:
        return ArchiveError(self._path, self._offset, f"{what}: {error.strerror or error}")


def copy_records(source: RecordSource, writer: ArchiveWriter) -> int:
    """Copy all readable records of a source; those of archives as stored, in file order."""
    archives = archives_of(source)
    for archive in archives:
        for record in archive.records():
            with contextlib.suppress(RecordError):  # it is listed in `damage`
                writer.add_stored(record.tag, record.key, archive.stored_payload(record.tag, record.key))
    for tag in () if archives else RecordTag:
        for key in source.keys(tag):
            with contextlib.suppress(RecordError):
                writer.add(tag, key, source.payload(tag, key))
    return sum((tag, key) not in writer for tag in RecordTag for key in source.keys(tag))


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
