"""Archives in the Fossilize format, several of them as one, and records in memory: the sources of a set.

A file is 16 bytes (0x81 "FOSSILIZEDB" 0 0 0 version), then records to the end, little-endian:

    40  ASCII hex name: 24 digits of tag, of which the last 16 count, and 16 digits of a 64-bit hash
    4   stored size
    4   flags: 1 raw, 2 deflate (a zlib stream with header)
    4   crc32 of the stored bytes, 0 = unchecked
    4   uncompressed size
    n   payload

There is no index and no footer: sizes chain the records. A header that does not fit into the file, or without
a hexadecimal name, ends the archive, as for the format's own reader; the damage says how much was not read.

Guarantees: every read checks the payload: crc, sizes, and the end of the zlib stream. No allocation trusts a
header, and a hostile file costs a constant times its size. A bad payload does not affect other records: its
record stays in `keys`, raises RecordError when it is read, and is listed in `damage`. All reads are
thread-safe.
Assumptions: no process shortens the file while it is open. Its size is checked before every read; a file that
shrinks between check and read ends the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final, Self

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.errors import ArchiveError, RecordError
from orchestrator.sets.inputs import irregular
from orchestrator.sets.records import Closing, Damage, DamageLog, RecordSource, RecordTag

FLAG_RAW, FLAG_DEFLATE = 1, 2
MAGIC = b"\x81FOSSILIZEDB\0\0\0"
FILE_HEADER_SIZE = len(MAGIC) + 1
_VERSIONS = (5, 6)
_HEADER = np.dtype(
    [("name", np.uint8, (40,)), ("stored", "<u4"), ("flags", "<u4"), ("crc", "<u4"), ("size", "<u4")]
)
RECORD_SIZE = _HEADER.itemsize
_STORED_SIZE = struct.Struct("<I")
_PARAMETERS = struct.Struct("<4I")  # stored size, flags, crc32, size
_SHORTENED = "the file was shortened after it was opened"
_FOREIGN = "the tag is none of a pipeline archive (0 to 10): a newer recorder, or a shader-cache database"

_NIBBLES = np.full(256, 0xFF, np.uint8)
_NIBBLES[list(b"0123456789abcdef")] = range(16)
_NIBBLES[list(b"ABCDEF")] = range(10, 16)


@frozen
class ArchiveLimits:
    """Limits beyond which an archive is refused."""

    entry_bytes: int = 64 << 20  # largest payload, stored or uncompressed; a larger record is left out
    # The same for all records but shader modules. They are JSON, which takes up to fifty times its size when
    # it is decoded; captures have up to 3 KiB.
    document_bytes: int = 8 << 20
    entries: int = 4 << 20  # most records
    total_bytes: int = 64 << 30  # largest sum of the uncompressed sizes
    free_bytes: int = 1 << 30  # A sum that is allowed for a file of any size
    # Largest sum beyond `free_bytes`, as a multiple of the file's size. Captures have less than 2; a larger
    # expansion is an attack.
    expansion: int = 64
    # As `free_bytes`, for all records but shader modules. Large documents of ray tracing are compressed to a
    # thirtieth.
    free_document_bytes: int = 16 << 20


class StoredPayload(msgspec.Struct, frozen=True, gc=False):
    """A payload as stored in an archive, with flags, crc32 (0: unchecked) and decoded size of its header."""

    data: bytes
    flags: int
    crc: int
    size: int

    def decoded(self, most: int) -> bytes:
        """The payload; ValueError where it has another size than its header declares, or more than `most`."""
        if self.flags == FLAG_RAW and self.size == len(self.data):
            return self.data
        if self.flags != FLAG_DEFLATE or self.size > most:
            raise ValueError(f"flags {self.flags}, size {self.size}: the header was changed")
        return inflate(self.data, self.size)


def inflate(stored: bytes, size: int) -> bytes:
    """Decode a zlib stream that must give exactly `size` bytes, else ValueError."""
    decoder = zlib.decompressobj()
    try:
        data = decoder.decompress(stored, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged zlib stream: {error}") from error
    if len(data) > size:
        raise ValueError(f"the zlib stream holds more than the declared {size} bytes")
    if not decoder.eof:
        raise ValueError(f"the zlib stream is truncated: {len(data)} of {size} bytes, and no end")
    if len(data) < size:
        raise ValueError(f"the zlib stream holds {len(data)} bytes, {size} are declared")
    return data


@frozen(eq=False)
class _Index:
    """Offsets of records in their file; of equal names the first one that is not refused."""

    offsets: dict[RecordTag, dict[int, int]]
    refusals: dict[int, str]  # by offset, why a header is invalid
    duplicates: int
    damage: tuple[Damage, ...]


def _check_file_header(head: bytes, path: str) -> None:
    if len(head) < FILE_HEADER_SIZE:
        raise ArchiveError(path, 0, f"not an archive: {len(head)} bytes, less than the file header")
    if head[:-1] != MAGIC:
        raise ArchiveError(path, 0, "not an archive: the magic is not that of a Fossilize archive")
    if head[-1] not in _VERSIONS:
        newer = ": the recorder is newer" if head[-1] > max(_VERSIONS) else ""
        what = f"archive version {head[-1]} is not supported (5 and 6 are){newer}"
        raise ArchiveError(path, FILE_HEADER_SIZE - 1, what)


def build_index(data: mmap.mmap, path: str, limits: ArchiveLimits) -> _Index:
    """Scan an archive; ArchiveError where it is over a limit."""
    chain, end = _chain(data, path, limits)
    headers = np.frombuffer(b"".join([data[at : at + RECORD_SIZE] for at in chain]), _HEADER)
    nibbles = _NIBBLES[headers["name"][:, 8:]]
    nameless = np.flatnonzero((nibbles == 0xFF).any(axis=1))
    if len(nameless):
        end = chain[nameless[0]]
        headers, nibbles = headers[: nameless[0]], nibbles[: nameless[0]]
    damage = [] if end == len(data) else [Damage(end, None, None, _end_reason(end, len(data), nameless))]
    offsets = np.array(chain[: len(headers)], np.int64)
    keys = _hashes(nibbles[:, 16:])
    foreign = nibbles[:, :15].any(axis=1) | (nibbles[:, 15] > max(RecordTag))
    for row in np.flatnonzero(foreign).tolist():
        tag = int(_hashes(nibbles[row : row + 1, :16])[0])
        damage.append(Damage(int(offsets[row]), tag, int(keys[row]), _FOREIGN))
    known = ~foreign
    headers, offsets, keys, tags = headers[known], offsets[known], keys[known], nibbles[known, 15]
    reasons = _refusals(headers, tags, limits)
    for row, reason in reasons.items():
        damage.append(Damage(int(offsets[row]), int(tags[row]), int(keys[row]), reason))
    sizes = headers["size"].astype(np.int64)
    sizes[list(reasons)] = 0
    allowed = limits.expansion * len(data)
    _check_total(offsets, sizes, path, min(limits.total_bytes, max(limits.free_bytes, allowed)))
    sizes[tags == RecordTag.SHADER_MODULE] = 0
    _check_total(offsets, sizes, path, max(limits.free_document_bytes, allowed), " of JSON")
    refusals = {int(offsets[row]): reason for row, reason in reasons.items()}
    by_tag = {tag: _offsets_of(keys[tags == tag], offsets[tags == tag], refusals) for tag in RecordTag}
    return _Index(
        by_tag,
        refusals,
        len(offsets) - sum(map(len, by_tag.values())),
        tuple(sorted(damage, key=lambda each: each.offset or 0)),
    )


def _chain(data: mmap.mmap, path: str, limits: ArchiveLimits) -> tuple[list[int], int]:
    """Offsets of the chained headers whose records fit into the file, and where the next would begin."""
    size, position = len(data), FILE_HEADER_SIZE
    chain: list[int] = []
    unpack = _STORED_SIZE.unpack_from
    while position + RECORD_SIZE <= size:
        end: int = position + RECORD_SIZE + unpack(data, position + 40)[0]
        if end > size:
            break
        if len(chain) == limits.entries:
            raise ArchiveError(path, position, f"more than {limits.entries} records")
        chain.append(position)
        position = end
    return chain, position


def _end_reason(end: int, size: int, nameless: npt.NDArray[np.int64]) -> str:
    if len(nameless):
        what = "the record's name is not hexadecimal"
    elif size - end < RECORD_SIZE:
        what = "less than a record header is left"
    else:
        what = "the record does not fit into the file"
    return f"{what}: truncated or overwritten; the last {size - end} bytes of the file are not read"


def _hashes(digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Numbers from 16 digits each, shape (n, 16)."""
    octets = np.ascontiguousarray(digits[:, 0::2] << np.uint8(4) | digits[:, 1::2])
    return octets.view(">u8").reshape(-1).astype(np.uint64)


def _refusals(
    headers: npt.NDArray[np.void], tags: npt.NDArray[np.uint8], limits: ArchiveLimits
) -> dict[int, str]:
    stored, size, flags = (headers[name].astype(np.int64) for name in ("stored", "size", "flags"))
    raw, deflate = flags == FLAG_RAW, flags == FLAG_DEFLATE
    rules = (
        (~(raw | deflate), "flags {flags} name no known storage (1 raw, 2 deflate)"),
        (
            np.maximum(stored, size) > limits.entry_bytes,
            f"stored size {{stored}}, declared size {{size}}: over the cap of {limits.entry_bytes} bytes",
        ),
        (
            (np.maximum(stored, size) > limits.document_bytes) & (tags != RecordTag.SHADER_MODULE),
            f"declared size {{size}}: over the cap of {limits.document_bytes} bytes of a JSON document",
        ),
        (raw & (stored != size), "raw, but stored size {stored} is not the declared size {size}"),
        (
            deflate & (size > stored * 1032 + 64),  # at most 258 bytes come of two bits
            "declared size {size} cannot come out of {stored} deflated bytes",
        ),
    )
    refusals: dict[int, str] = {}
    for broken, reason in rules:
        for row in np.flatnonzero(broken).tolist():
            text = reason.format(stored=stored[row], size=size[row], flags=flags[row])
            refusals.setdefault(row, text)
    return dict(sorted(refusals.items()))


def _check_total(
    offsets: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], path: str, most: int, what: str = ""
) -> None:
    over = np.flatnonzero(np.cumsum(sizes) > most)
    if len(over):
        what = f"{most} bytes{what} in total"
        raise ArchiveError(path, int(offsets[over[0]]), f"the records declare more than {what}: too many")


def _offsets_of(
    keys: npt.NDArray[np.uint64], offsets: npt.NDArray[np.int64], refusals: dict[int, str]
) -> dict[int, int]:
    names, places = keys.tolist(), offsets.tolist()
    found = dict(zip(names, places, strict=True))
    if len(found) == len(names):
        return found
    found = {}
    for name, offset in zip(names, places, strict=True):
        held = found.setdefault(name, offset)
        if held in refusals and offset not in refusals:
            found[name] = offset
    return found


@frozen
class ArchiveRecord:
    """What the header of a record says: its place in the file, stored size, flags, crc32 and decoded size."""

    tag: RecordTag
    key: int
    offset: int
    stored_size: int
    flags: int
    crc: int
    size: int


class Archive(Closing):
    """An open archive. Implements `RecordSource`; close it, or use it as a context manager.

    Thread-safe, except that `close` must not run while another thread reads.
    """

    def __init__(self, path: str, data: mmap.mmap, descriptor: int, limits: ArchiveLimits) -> None:
        """Use `Archive.open`."""
        self._path = path
        self._data = data
        self._size = len(data)
        self._state = _state_of(descriptor)
        self._limits = limits
        self._descriptor: int | None = descriptor
        self._require_whole()
        self._index = build_index(data, path, limits)
        self._log = DamageLog()
        for damage in self._index.damage:
            self._log.add(damage)

    @classmethod
    def open(cls, path: str | os.PathLike[str], limits: ArchiveLimits | None = None) -> Self:
        """Open an archive and index it.

        Args:
            path: The file.
            limits: Limits on its content; by default those of `ArchiveLimits`.

        Raises:
            ArchiveError: The file cannot be opened, is not an archive, or is over a cap.
        """
        name = os.fspath(path)
        try:
            # Non-blocking, so that a pipe is refused below and not waited for.
            descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError) as error:
            raise ArchiveError(name, 0, f"cannot be opened: {_cause(error)}") from error
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, descriptor)
            data = undo.enter_context(_map(name, descriptor))
            _check_file_header(data[:FILE_HEADER_SIZE], name)
            archive = cls(name, data, descriptor, limits or ArchiveLimits())
            undo.pop_all()
        return archive

    @property
    def name(self) -> str:
        """The path that it was opened by."""
        return self._path

    def content_hash(self, hash_bytes: Callable[[memoryview], bytes]) -> bytes:
        """The hash of the whole file by a given function; ArchiveError where it was shortened."""
        self._require_whole()
        with memoryview(self._data) as content:
            return hash_bytes(content)

    @property
    def is_changed(self) -> bool:
        """Whether the file was written since it was opened, so that reads may disagree with each other."""
        return _state_of(self._require_open()) != self._state

    @property
    def damage(self) -> Sequence[Damage]:
        """The damage found so far; that of headers at once, that of payloads when they are read."""
        return self._log.entries

    @property
    def duplicates(self) -> int:
        """Records left out because of an earlier one with the same tag and hash."""
        return self._index.duplicates

    @property
    def size(self) -> int:
        """Size of the file, bytes."""
        return self._size

    def __len__(self) -> int:
        """Number of records, each (tag, hash) once."""
        return sum(map(len, self._index.offsets.values()))

    def __contains__(self, name: tuple[RecordTag, int]) -> bool:
        """Whether there is a record (tag, hash), damaged or not."""
        tag, key = name
        return key in self._index.offsets[tag]

    def __repr__(self) -> str:
        state = "closed" if self._descriptor is None else f"{self._size} bytes"
        return f"<Archive {self._path!r}: {state}>"

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag in file order, each once."""
        return tuple(self._index.offsets[tag])

    def records(self) -> list[ArchiveRecord]:
        """All records in file order, each (tag, hash) once, the refused included."""
        there = [
            (offset, tag, key)
            for tag, offsets in self._index.offsets.items()
            for key, offset in offsets.items()
        ]
        return [ArchiveRecord(tag, key, at, *self._header(at)) for at, tag, key in sorted(there)]

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The decoded payload of a record.

        Raises:
            KeyError: There is no such record.
            RecordError: It is damaged.
        """
        return self._read(tag, key)[1]

    def stored_payload(self, tag: RecordTag, key: int) -> StoredPayload:
        """A record's payload as stored in the file, to copy it unchanged; raises as `payload`."""
        return self._read(tag, key)[0]

    def offset(self, tag: RecordTag, key: int) -> int:
        """Offset of a record's header in the file, bytes."""
        return self._index.offsets[tag][key]

    def is_unchecked(self, tag: RecordTag, key: int) -> bool:
        """Whether a record is stored raw and without a crc, so that reading it does not prove its bytes."""
        _, flags, crc, _ = self._header(self._index.offsets[tag][key])
        return crc == 0 and flags == FLAG_RAW

    def close(self) -> None:
        """Unmap the file. Idempotent."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._data.close()
            os.close(descriptor)

    def _header(self, offset: int) -> tuple[int, int, int, int]:
        self._require_open()
        if self._data.size() < offset + RECORD_SIZE:  # of the file, at a third of what `os.fstat` takes
            return 0, 0, 0, 0
        header: tuple[int, int, int, int] = _PARAMETERS.unpack_from(self._data, offset + 40)
        return header

    def _stored(self, offset: int) -> StoredPayload:
        """What is stored at an offset; ValueError where it has another crc or is not in the file."""
        size, begin = self._data.size(), offset + RECORD_SIZE
        if size < begin:
            raise ValueError(_SHORTENED)
        stored_size, flags, crc, decoded_size = _PARAMETERS.unpack_from(self._data, offset + 40)
        stored = self._data[begin : begin + stored_size] if size >= begin + stored_size else b""
        if len(stored) != stored_size:
            raise ValueError(_SHORTENED)
        if crc != 0 and (actual := zlib.crc32(stored)) != crc:
            raise ValueError(f"crc32 {actual:08x} of the stored bytes is not {crc:08x}")
        return StoredPayload(stored, flags, crc, decoded_size)

    def _read(self, tag: RecordTag, key: int) -> tuple[StoredPayload, bytes]:
        index = self._index
        offset = index.offsets[tag][key]
        self._require_open()
        reason = index.refusals.get(offset, "")
        if not reason:
            try:
                stored = self._stored(offset)
                return stored, stored.decoded(self._limits.entry_bytes)
            except ValueError as error:
                reason = str(error)
        self._log.add(Damage(offset, int(tag), key, reason))
        raise RecordError(tag, key, f"{self._path}: {reason}", offset)

    def _require_whole(self) -> None:
        self._require_open()
        if (there := self._data.size()) < self._size:
            raise ArchiveError(self._path, there, f"{_SHORTENED}: it had {self._size} bytes")

    def _require_open(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self._path}: read from a closed archive")
        return self._descriptor


def _state_of(descriptor: int) -> tuple[int, int]:
    # The time of change is another after each write, even if that of modification is set back.
    status = os.fstat(descriptor)
    return status.st_size, status.st_ctime_ns


def _map(name: str, descriptor: int) -> mmap.mmap:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ArchiveError(name, 0, f"no regular file: it is {irregular(status.st_mode)}")
    if status.st_size == 0:
        raise ArchiveError(name, 0, "not an archive: the file is empty")
    try:
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ArchiveError(name, 0, f"cannot be mapped: {_cause(error)}") from error


def _cause(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


class CombinedRecords(Closing):
    """Several archives as one; of records with the same name, the first undamaged one is used."""

    def __init__(self, archives: Sequence[Archive]) -> None:
        self.archives: Final = tuple(archives)

    @functools.cached_property
    def _keys(self) -> dict[RecordTag, tuple[int, ...]]:
        return {
            tag: tuple(dict.fromkeys(key for each in self.archives for key in each.keys(tag)))
            for tag in RecordTag
        }

    @property
    def name(self) -> str:
        """The paths of the archives."""
        return " + ".join(each.name for each in self.archives)

    @property
    def damage(self) -> Sequence[Damage]:
        """Damage of the archives, one after the other; the reason begins with the path."""
        return tuple(
            Damage(each.offset, each.tag, each.key, f"{archive.name}: {each.reason}")
            for archive in self.archives
            for each in archive.damage
        )

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag, those of the first archive first, each once."""
        return self._keys[tag]

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The decoded payload of a record."""
        damaged: list[RecordError] = []
        try:
            for archive in self.archives:
                try:
                    return archive.payload(tag, key)
                except KeyError:
                    continue
                except RecordError as error:
                    damaged.append(error)
            raise damaged[0] if damaged else KeyError(key)
        finally:
            damaged.clear()  # or an error and this frame would keep each other

    def close(self) -> None:
        """Close the archives. Idempotent."""
        for each in self.archives:
            each.close()


def open_archives(paths: Sequence[str | os.PathLike[str]]) -> Archive | CombinedRecords:
    """Open one archive, or several as one source."""
    if not paths:
        raise ValueError("no archive is named")
    with contextlib.ExitStack() as undo:
        opened = [undo.enter_context(Archive.open(path)) for path in paths]
        undo.pop_all()
    return opened[0] if len(opened) == 1 else CombinedRecords(opened)


def archives_of(source: RecordSource) -> tuple[Archive, ...]:
    """The archives that a source is made of; none where it is made of something else."""
    if isinstance(source, CombinedRecords):
        return source.archives
    return (source,) if isinstance(source, Archive) else ()


def record_offset(source: RecordSource, tag: RecordTag, key: int) -> int | None:
    """Offset of a record in its file; None for one that is in no archive."""
    holding = (each.offset(tag, key) for each in archives_of(source) if (tag, key) in each)
    return next(holding, None)


def is_unchecked(source: RecordSource, tag: RecordTag, key: int) -> bool:
    """Whether an archive of a source holds a record without proof of its bytes (`Archive.is_unchecked`)."""
    return any(each.is_unchecked(tag, key) for each in archives_of(source) if (tag, key) in each)


def check_key(key: int) -> None:
    """Raise ValueError for a name of a record that does not have 64 bits."""
    if not 0 <= key < 1 << 64:
        raise ValueError(f"hash {key:#x} does not have 64 bits")


class MemoryRecords:
    """A mutable `RecordSource`, empty at first. Of records with the same name the first is kept."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._payloads: dict[RecordTag, dict[int, bytes]] = {tag: {} for tag in RecordTag}

    @property
    def name(self) -> str:
        """Where the records come from, for messages."""
        return self._name

    @property
    def damage(self) -> Sequence[Damage]:
        """Always empty."""
        return ()

    def __len__(self) -> int:
        """Number of records."""
        return sum(map(len, self._payloads.values()))

    def __contains__(self, name: tuple[RecordTag, int]) -> bool:
        """Whether there is a record (tag, hash)."""
        tag, key = name
        return key in self._payloads[tag]

    def add(self, tag: RecordTag, key: int, payload: bytes) -> bool:
        """Add a record; False where one with that name exists, which stays. ValueError as `check_key`."""
        check_key(key)
        records = self._payloads[tag]
        if key in records:
            return False
        records[key] = payload
        return True

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag in the order they were added."""
        return tuple(self._payloads[tag])

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The payload of a record."""
        return self._payloads[tag][key]
