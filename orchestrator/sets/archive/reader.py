"""Archives in the Fossilize format, several of them as one, and records in memory: the sources of a set.

A file is 16 bytes (0x81 "FOSSILIZEDB" 0 0 0 version), then records to the end, little-endian:

    40  ASCII hex name: 24 digits of tag, of which the last 16 count, and 16 digits of a 64-bit hash
    4   stored size
    4   flags: 1 raw, 2 deflate (a zlib stream with header)
    4   crc32 of the stored bytes, 0 = unchecked
    4   uncompressed size
    n   payload

There is no index and no footer. Opening scans the headers once over a memory map: sizes chain the records, so
a small loop walks the chain, and numpy checks and decodes the headers of a block together. Where the chain
breaks, the search for the next header starts inside the previous record if its payload is damaged too, else
after the break.

Guarantees: every read checks the payload: crc, sizes, and the end of the zlib stream. No allocation trusts a
header, and a hostile file costs a constant times its size. A bad record does not affect the good ones: it
stays in `keys`, raises RecordError when it is read, and is listed in `damage`. All reads are thread-safe.
Assumptions: no process shortens the file while it is open. Its size is checked before every read; a file that
shrinks between check and read ends the process (SIGBUS).
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import re
import stat
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Self, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.errors import ArchiveError, RecordError
from orchestrator.sets.records import Closing, Damage, DamageLog, RecordSource, RecordTag

FLAG_RAW, FLAG_DEFLATE = 1, 2
_INFLATED_AT_ONCE = 4096  # stored bytes
_Bytes = TypeVar("_Bytes", int, npt.NDArray[np.int64])


def deflate_bound(stored: _Bytes) -> _Bytes:
    """Most bytes that `stored` deflated bytes can hold: deflate writes at most 258 bytes in two bits."""
    return stored * 1032 + 64


def inflate(stored: bytes, size: int, *, whole: bool = False) -> bytes:
    """Decode a zlib stream that must give exactly `size` bytes."""
    if len(stored) <= _INFLATED_AT_ONCE and not whole:
        # Takes half the time. The input is small, so the output is bounded; errors are reported below.
        with contextlib.suppress(zlib.error):
            data = zlib.decompress(stored, bufsize=size + 1)
            if len(data) == size:
                return data
    decoder = zlib.decompressobj()
    try:
        data = decoder.decompress(stored, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged zlib stream: {error}") from error
    if len(data) > size:
        raise ValueError(f"the zlib stream holds more than the declared {size} bytes")
    if not decoder.eof:
        there = (
            f"{len(data)} of {size} bytes" if len(data) < size else f"its end behind {size} bytes is missing"
        )
        raise ValueError(f"the zlib stream is truncated: {there}")
    if len(data) < size:
        raise ValueError(f"the zlib stream holds {len(data)} bytes, {size} are declared")
    if whole and decoder.unused_data:
        raise ValueError(f"{len(decoder.unused_data)} bytes follow the zlib stream")
    return data


MAGIC = b"\x81FOSSILIZEDB\0\0\0"
FILE_HEADER_SIZE = len(MAGIC) + 1
VERSIONS = (5, 6)
RECORD = np.dtype(
    [("name", np.uint8, (40,)), ("stored", "<u4"), ("flags", "<u4"), ("crc", "<u4"), ("size", "<u4")]
)
RECORD_SIZE = RECORD.itemsize
_STORED_SIZE = struct.Struct("<I")
_PARAMETERS = struct.Struct("<4I")
_FIRST_BLOCK, _LAST_BLOCK = 16, 8192
_BREAKS_MAX = 1000
_SEARCH_FIRST, _SEARCH_LAST = 1 << 12, 1 << 20  # bytes looked at together for the next header

_SHORTENED = "the file was shortened after it was opened"
_FOREIGN = "the tag is none of a pipeline archive (0 to 10); a shader-cache database, perhaps"

_NIBBLES = np.full(256, 0xFF, np.uint8)
_NIBBLES[list(b"0123456789abcdef")] = range(16)
_NIBBLES[list(b"ABCDEF")] = range(10, 16)

_NAME_PATTERN = re.compile(rb"0{23}[0-9aA][0-9a-fA-F]{16}")


class ArchiveLimits(msgspec.Struct, frozen=True):
    """Limits beyond which an archive is refused.

    Attributes:
        entry_bytes: Largest payload, stored or uncompressed; a larger record is left out.
        document_bytes: The same for all records but shader modules. They are JSON, which takes up to fifty
            times its size when it is decoded; captures have up to 3 KiB.
        entries: Most records.
        total_bytes: Largest sum of the uncompressed sizes.
        free_bytes: A sum that is allowed for a file of any size.
        expansion: Largest sum beyond `free_bytes`, as a multiple of the file's size. Captures have less than
            2; a larger expansion is an attack.
        free_document_bytes: The same as `free_bytes` for all records but shader modules. Large documents of
            ray tracing are compressed to a thirtieth.
    """

    entry_bytes: int = 64 << 20
    document_bytes: int = 8 << 20
    entries: int = 4 << 20
    total_bytes: int = 64 << 30
    free_bytes: int = 1 << 30
    expansion: int = 64
    free_document_bytes: int = 16 << 20


class ArchiveIndex(msgspec.Struct, frozen=True, eq=False):
    """The records of an archive, one element for each, in file order; immutable.

    Attributes:
        offsets: Offset of each header in the file, shape (n,).
        tags: RecordTag of each, shape (n,).
        keys: Hash of each, shape (n,).
        stored: Stored size of each, shape (n,).
        flags: 1 raw, 2 deflate, shape (n,).
        crcs: crc32 of the stored bytes, 0 unchecked, shape (n,).
        sizes: Uncompressed size of each, shape (n,).
        positions: For each tag, the element of each hash; the first of equal names.
        refusals: Elements whose header is invalid, with the reason.
        duplicates: Records left out because of an earlier one with the same name.
        damage: The damage found, in file order.
    """

    offsets: npt.NDArray[np.int64]
    tags: npt.NDArray[np.uint8]
    keys: npt.NDArray[np.uint64]
    stored: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint32]
    crcs: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.uint32]
    positions: dict[RecordTag, dict[int, int]]
    refusals: dict[int, str]
    duplicates: int
    damage: tuple[Damage, ...]


def build_index(data: mmap.mmap | bytes, path: str, limits: ArchiveLimits) -> ArchiveIndex:
    """Scan an archive."""
    _check_file_header(data, path)
    damage: list[Damage] = []
    offsets, headers, nibbles = _scan(data, path, limits, damage)
    foreign = nibbles[:, :15].any(axis=1) | (nibbles[:, 15] > max(RecordTag))
    foreign_rows = np.flatnonzero(foreign)
    names = headers["name"][foreign_rows].tobytes()
    for number, offset in enumerate(offsets[foreign_rows].tolist()):
        name = names[40 * number : 40 * number + 40]
        tag, key = int(name[8:24], 16), int(name[24:], 16)
        damage.append(Damage(offset, tag, key, _FOREIGN))
    known = np.flatnonzero(~foreign)
    offsets, headers, nibbles = offsets[known], headers[known], nibbles[known]
    tags = nibbles[:, 15].copy()
    keys = _keys_of(nibbles)
    refusals = _refusals(headers, tags, limits)
    for row, reason in refusals.items():
        damage.append(Damage(int(offsets[row]), int(tags[row]), int(keys[row]), reason))
    sizes = headers["size"].astype(np.int64)
    sizes[list(refusals)] = 0
    most = min(limits.total_bytes, max(limits.free_bytes, limits.expansion * len(data)))
    _check_total(offsets, sizes, path, most)
    sizes[tags == RecordTag.SHADER_MODULE] = 0
    most = max(limits.free_document_bytes, limits.expansion * len(data))
    _check_total(offsets, sizes, path, most, " of JSON")
    positions = {tag: _positions(tags, keys, tag, refusals) for tag in RecordTag}
    return ArchiveIndex(
        offsets=offsets,
        tags=tags,
        keys=keys,
        stored=headers["stored"].copy(),
        flags=headers["flags"].copy(),
        crcs=headers["crc"].copy(),
        sizes=headers["size"].copy(),
        positions=positions,
        refusals=refusals,
        duplicates=len(offsets) - sum(map(len, positions.values())),
        damage=tuple(sorted(damage, key=lambda each: each.offset or 0)),
    )


def _check_file_header(data: mmap.mmap | bytes, path: str) -> None:
    head = data[:FILE_HEADER_SIZE]
    if len(head) < FILE_HEADER_SIZE:
        raise ArchiveError(path, 0, f"not an archive: {len(head)} bytes, less than the file header")
    if head[:-1] != MAGIC:
        raise ArchiveError(path, 0, "not an archive: the magic is not that of a Fossilize archive")
    if head[-1] not in VERSIONS:
        raise ArchiveError(
            path, FILE_HEADER_SIZE - 1, f"archive version {head[-1]} is not supported (5 and 6 are)"
        )


def _scan(
    data: mmap.mmap | bytes, path: str, limits: ArchiveLimits, damage: list[Damage]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void], npt.NDArray[np.uint8]]:
    """Follow the chain of records across breaks; offset, header and digits of all with a hex name."""
    size = len(data)
    resume = _Resume(data)
    offset_blocks: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    header_blocks: list[npt.NDArray[np.void]] = [np.empty(0, RECORD)]
    nibble_blocks: list[npt.NDArray[np.uint8]] = [np.empty((0, 32), np.uint8)]
    found = 0
    last: int | None = None  # offset of the last good-looking record, while it ends at `position`
    position, block = FILE_HEADER_SIZE, _FIRST_BLOCK
    while position < size:
        chain, end = _follow(data, position, size, block)
        headers = np.frombuffer(b"".join([data[at : at + RECORD_SIZE] for at in chain]), RECORD)
        nibbles = _NIBBLES[headers["name"][:, 8:]]
        bad_names = np.flatnonzero((nibbles == 0xFF).any(axis=1))
        good = int(bad_names[0]) if len(bad_names) else len(chain)
        offset_blocks.append(np.array(chain[:good], np.int64))
        header_blocks.append(headers[:good])
        nibble_blocks.append(nibbles[:good])
        found += good
        if found > limits.entries:
            raise ArchiveError(path, position, f"more than {limits.entries} records")
        last = chain[good - 1] if good else last
        if good == len(chain) and (good == block or end == size):
            position, block = end, min(2 * block, _LAST_BLOCK)
            continue
        broken = chain[good] if good < len(chain) else end
        position = resume.after(broken, last, damage)
        last, block = None, _FIRST_BLOCK
    return np.concatenate(offset_blocks), np.concatenate(header_blocks), np.concatenate(nibble_blocks)


def _follow(data: mmap.mmap | bytes, position: int, size: int, count: int) -> tuple[list[int], int]:
    """Offsets of up to `count` chained records from `position` that fit, and where the next would begin."""
    chain: list[int] = []
    unpack = _STORED_SIZE.unpack_from
    while len(chain) < count and position + RECORD_SIZE <= size:
        end: int = position + RECORD_SIZE + unpack(data, position + 40)[0]
        if end > size:
            break
        chain.append(position)
        position = end
    return chain, position


class _Resume:
    """Decides where the scan goes on after a break in the chain, with a bounded effort."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._size = len(data)
        # To hash and inflate. Each search starts behind the last, so together they cost the file once.
        self._bytes_left = 2 * len(data)
        self._breaks_left = _BREAKS_MAX

    def after(self, broken: int, last: int | None, damage: list[Damage]) -> int:
        """Where to go on; the end of the file where no record is found."""
        size = self._size
        tag, key = self._name_at(broken)
        if tag is not None:
            what = "the record does not fit into the file"
        elif size - broken < RECORD_SIZE:
            what = f"{size - broken} bytes are left, less than a record header"
        else:
            what = "the record's name is not hexadecimal"
        self._breaks_left -= 1
        if self._breaks_left < 0:
            reason = f"{what}; more than {_BREAKS_MAX} breaks, the rest of the file is not read"
            damage.append(Damage(broken, tag, key, reason))
            return size
        end = self._plausible_end(broken) if tag is None else None
        if end is not None and (end == size or self._plausible_end(end) is not None):
            damage.append(Damage(broken, None, None, f"{what}; only this record is left out"))
            return end
        start = broken + 1
        if last is not None and not self._sound(last):
            start = last + RECORD_SIZE
        found = self._search(start)
        if found is None:
            damage.append(
                Damage(broken, tag, key, f"{what}: truncated or overwritten; dropped, as is all after it")
            )
            return size
        reason = (
            f"{what}: a header is damaged here or before; no record can be told from byte {start} to {found}"
        )
        damage.append(Damage(broken, tag, key, reason))
        return found

    def _name_at(self, offset: int) -> tuple[int | None, int | None]:
        """Tag and hash in a name, None where it is invalid."""
        name = self._data[offset + 8 : offset + 40]
        if len(name) < 32 or (_NIBBLES[np.frombuffer(name, np.uint8)] == 0xFF).any():
            return None, None
        return int(name[:16], 16), int(name[16:], 16)

    def _plausible_end(self, offset: int) -> int | None:
        """End of a record with consistent sizes and flags and any name, else None."""
        if offset + RECORD_SIZE > self._size:
            return None
        stored, flags, _, size = _PARAMETERS.unpack_from(self._data, offset + 40)
        end = offset + RECORD_SIZE + stored
        sizes_agree = stored == size if flags == FLAG_RAW else size <= deflate_bound(stored)
        return end if flags in (FLAG_RAW, FLAG_DEFLATE) and sizes_agree and end <= self._size else None

    def _sound(self, offset: int) -> bool:
        """Whether a record's payload proves its stored size: by its crc, or as zlib that ends with it."""
        if self._plausible_end(offset) is None:
            return False
        stored, flags, crc, size = _PARAMETERS.unpack_from(self._data, offset + 40)
        effort = stored if crc != 0 else max(stored, size)
        if effort > self._bytes_left:
            return True  # unknown; to go on after it needs no more work
        self._bytes_left -= effort
        begin = offset + RECORD_SIZE
        payload = self._data[begin : begin + stored]
        if crc != 0:
            return bool(zlib.crc32(payload) == crc)
        if flags == FLAG_RAW:
            return True  # there is nothing to check besides the equal sizes
        try:
            inflate(payload, size, whole=True)
        except ValueError:
            return False
        return True

    def _search(self, start: int) -> int | None:
        """Offset of the next bytes that look like a record and fit into the file, or None."""
        step = _SEARCH_FIRST
        while start + RECORD_SIZE <= self._size:
            window = np.frombuffer(self._data[start : start + step + RECORD_SIZE - 1], np.uint8)
            count = len(window) - RECORD_SIZE + 1
            # A few bytes exclude nearly all positions; the regular expression alone would take 40 steps at
            # each position in a long run of zeros.
            flags = window[44 : 44 + count]
            candidates = (flags == FLAG_RAW) | (flags == FLAG_DEFLATE)
            for at, value in ((45, 0), (46, 0), (47, 0), (0, 0x30), (22, 0x30)):
                candidates &= window[at : at + count] == value
            for at in (np.flatnonzero(candidates) + start).tolist():
                if _NAME_PATTERN.match(self._data, at) and self._plausible_end(at) is not None:
                    return int(at)
            start += count
            step = min(2 * step, _SEARCH_LAST)
        return None


def _refusals(
    headers: npt.NDArray[np.void], tags: npt.NDArray[np.uint8], limits: ArchiveLimits
) -> dict[int, str]:
    """Records with an invalid header, with the reason."""
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
            deflate & (size > deflate_bound(stored)),
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
        reason = (
            f"the records declare more than {most} bytes{what} in total, which a file of this size may hold"
        )
        raise ArchiveError(path, int(offsets[over[0]]), reason)


def _keys_of(nibbles: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Hashes from the digits of names, shape (n, 32)."""
    digits = nibbles[:, 16:]
    octets = np.ascontiguousarray(digits[:, 0::2] << np.uint8(4) | digits[:, 1::2])
    return octets.view(">u8").reshape(-1).astype(np.uint64)


def _positions(
    tags: npt.NDArray[np.uint8], keys: npt.NDArray[np.uint64], tag: RecordTag, refusals: dict[int, str]
) -> dict[int, int]:
    """Element of each hash of a tag; of equal names the first, preferably one that is not refused."""
    rows = np.flatnonzero(tags == tag)
    names = keys[rows].tolist()
    elements = rows.tolist()
    positions = dict(zip(names, elements, strict=True))
    if len(positions) == len(elements):
        return positions
    positions = {}
    for name, row in zip(names, elements, strict=True):
        held = positions.setdefault(name, row)
        if held in refusals and row not in refusals:
            positions[name] = row
    return positions


class ArchiveRecord(msgspec.Struct, frozen=True):
    """Where a record is and how it is stored.

    Attributes:
        tag: What it holds.
        key: Its hash.
        offset: Offset of its header in the file, bytes.
        stored_size: Bytes of the payload in the file.
        size: Declared bytes of the decoded payload.
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


class StoredPayload(msgspec.Struct, frozen=True):
    """A payload as stored in an archive.

    Attributes:
        data: The stored bytes.
        flags: 1 raw, 2 deflate.
        crc: crc32 of the stored bytes, 0 where unchecked.
        size: Bytes when decoded.
    """

    data: bytes
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
        self._scanned: ArchiveIndex | None = None
        self._scanning = threading.Lock()
        self._descriptor: int | None = descriptor
        self._log = DamageLog()
        self._keys: dict[RecordTag, tuple[int, ...]] = {}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], limits: ArchiveLimits | None = None, *, indexed: bool = True
    ) -> Self:
        """Open an archive and index it.

        Args:
            path: The file.
            limits: Limits on its content; by default those of `ArchiveLimits`.
            indexed: Whether to scan it at once. Otherwise the first call that needs the index scans it, and
                raises ArchiveError where it exceeds a limit.

        Raises:
            ArchiveError: The file cannot be opened, is not an archive, or is over a cap.
        """
        name = os.fspath(path)
        try:
            # Non-blocking, so that a pipe is refused below and not waited for.
            flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
            descriptor = os.open(name, flags | getattr(os, "O_BINARY", 0))
        except (OSError, ValueError) as error:
            raise ArchiveError(name, 0, f"cannot be opened: {_cause(error)}") from error
        try:
            data = _map(name, descriptor)
            try:
                _check_file_header(data, name)
                archive = cls(name, data, descriptor, limits or ArchiveLimits())
                if indexed:
                    archive._index  # noqa: B018 - scans
            except BaseException:
                data.close()
                raise
        except BaseException:
            os.close(descriptor)
            raise
        return archive

    @property
    def _index(self) -> ArchiveIndex:
        """The index, which is scanned once."""
        scanned = self._scanned
        if scanned is None:
            with self._scanning:
                scanned = self._scanned
                if scanned is None:
                    self._require_whole()
                    scanned = build_index(self._data, self._path, self._limits)
                    for damage in scanned.damage:
                        self._log.add(damage)
                    self._keys = {tag: tuple(positions) for tag, positions in scanned.positions.items()}
                    self._scanned = scanned
        return scanned

    @property
    def name(self) -> str:
        """The path that it was opened by."""
        return self._path

    def content_hash(self, hash_bytes: Callable[[memoryview], bytes]) -> bytes:
        """The hash of the whole file by a given function.

        Raises:
            ArchiveError: It was shortened.
        """
        self._require_whole()
        with memoryview(self._data) as content:
            return hash_bytes(content)

    @property
    def descriptor(self) -> int:
        """The descriptor of the open file; a fork that reads it must keep all descriptors of it open."""
        return self._require_open()

    @property
    def is_changed(self) -> bool:
        """Whether the file was written since it was opened, so that reads may disagree with each other."""
        return _state_of(self._require_open()) != self._state

    @property
    def damage(self) -> Sequence[Damage]:
        """The damage found so far: headers at once, payloads when they are read."""
        self._index  # noqa: B018 - scans
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
        return sum(map(len, self._index.positions.values()))

    def __contains__(self, name: tuple[RecordTag, int]) -> bool:
        """Whether there is a record (tag, hash), damaged or not."""
        tag, key = name
        return key in self._index.positions[tag]

    def __repr__(self) -> str:
        state = "closed" if self._descriptor is None else f"{self._size} bytes"
        return f"<Archive {self._path!r}: {state}>"

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag in file order, each once."""
        self._index  # noqa: B018 - scans
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
        index = self._index
        row = index.positions[tag][key]
        stored, flags, size = self._read(index, row)
        if flags == FLAG_RAW:
            return stored
        try:
            return inflate(stored, size)
        except ValueError as error:
            raise self._damaged(row, str(error)) from error

    def payload_at(self, offset: int, tag: RecordTag, key: int) -> bytes:
        """The decoded payload of a record by the offset of its header, without the index.

        Raises:
            KeyError: There is no such record.
            RecordError: It is damaged.
        """
        index = self._scanned
        self._require_open()
        there = self._data.size()  # of the file now
        begin = offset + RECORD_SIZE
        header = self._data[offset:begin] if offset >= FILE_HEADER_SIZE and begin <= there else b""
        if index is not None or header[:40] != f"{int(tag):024x}{key:016x}".encode():
            return self.payload(tag, key)
        stored_size, flags, crc, size = _PARAMETERS.unpack_from(header, 40)
        stored = self._data[begin : begin + stored_size] if there >= begin + stored_size else b""
        if len(stored) == stored_size and not (crc and zlib.crc32(stored) != crc):
            if flags == FLAG_RAW and size == stored_size:
                return stored
            if flags == FLAG_DEFLATE and max(size, stored_size) <= self._limits.entry_bytes:
                with contextlib.suppress(ValueError):
                    return inflate(stored, size)
        return self.payload(tag, key)  # raises the right error

    def stored_payload(self, tag: RecordTag, key: int) -> StoredPayload:
        """A record's payload as stored in the file, to copy it unchanged; raises as `payload`."""
        self.payload(tag, key)  # the crc, if there is one, says nothing of the size that the header declares
        index = self._index
        row = index.positions[tag][key]
        stored, flags, size = self._read(index, row)
        return StoredPayload(data=stored, flags=flags, crc=int(index.crcs[row]), size=size)

    def offset(self, tag: RecordTag, key: int) -> int:
        """Offset of a record's header in the file, bytes."""
        return int(self._index.offsets[self._index.positions[tag][key]])

    def is_unchecked(self, tag: RecordTag, key: int) -> bool:
        """Whether a record is stored raw and without a crc, so that reading it does not prove its bytes."""
        row = self._index.positions[tag][key]
        return self._index.crcs.item(row) == 0 and self._index.flags.item(row) == FLAG_RAW

    def close(self) -> None:
        """Unmap the file. Idempotent."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._data.close()
            os.close(descriptor)

    def _read(self, index: ArchiveIndex, row: int) -> tuple[bytes, int, int]:
        """Stored bytes of a record, checked against its header and crc, with its flags and size."""
        if row in index.refusals:
            raise self._damaged(row, index.refusals[row])
        self._require_open()
        begin = index.offsets.item(row) + RECORD_SIZE  # `item` takes half the time of indexing
        end = begin + index.stored.item(row)
        if self._data.size() < end:  # of the file, at a third of what `os.fstat` takes
            raise self._damaged(row, _SHORTENED)
        stored = self._data[begin:end]
        crc = index.crcs.item(row)
        if crc != 0 and zlib.crc32(stored) != crc:
            raise self._damaged(row, f"crc32 {zlib.crc32(stored):08x} of the stored bytes is not {crc:08x}")
        return stored, index.flags.item(row), index.sizes.item(row)

    def _require_whole(self) -> None:
        self._require_open()
        if (there := self._data.size()) < self._size:
            raise ArchiveError(self._path, there, f"{_SHORTENED}: it had {self._size} bytes")

    def _require_open(self) -> int:
        if self._descriptor is None:
            raise ValueError(f"{self._path}: read from a closed archive")
        return self._descriptor

    def _damaged(self, row: int, reason: str) -> RecordError:
        index = self._index
        tag, key, offset = int(index.tags[row]), int(index.keys[row]), int(index.offsets[row])
        self._log.add(Damage(offset, tag, key, reason))
        return RecordError(tag, key, f"{self._path}: {reason}", offset)


def _state_of(descriptor: int) -> tuple[int, int]:
    """What changes with each write to a file, even if its time of modification is set back."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_ctime_ns


def _map(name: str, descriptor: int) -> mmap.mmap:
    """Map a whole regular file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        from orchestrator.sets.inputs import irregular

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
    """Several sources as one, such as a capture's base archive and the `name.N.foz` of its processes.

    Of records with the same name, the first undamaged one is used. Thread-safe as far as its sources are.
    `close` closes the sources that can be closed.
    """

    def __init__(self, sources: Sequence[RecordSource]) -> None:
        self._sources = tuple(sources)

    @functools.cached_property
    def _keys(self) -> dict[RecordTag, tuple[int, ...]]:
        return {
            tag: tuple(dict.fromkeys(key for source in self._sources for key in source.keys(tag)))
            for tag in RecordTag
        }

    @property
    def sources(self) -> tuple[RecordSource, ...]:
        """The sources, in order."""
        return self._sources

    @property
    def name(self) -> str:
        """The names of the sources."""
        return " + ".join(source.name for source in self._sources)

    @property
    def damage(self) -> Sequence[Damage]:
        """Damage of the sources, source by source; the reason begins with the source's name."""
        return tuple(
            Damage(each.offset, each.tag, each.key, f"{source.name}: {each.reason}")
            for source in self._sources
            for each in source.damage
        )

    def keys(self, tag: RecordTag) -> Sequence[int]:
        """Hashes of all records of a tag, source by source, each once."""
        return self._keys[tag]

    def payload(self, tag: RecordTag, key: int) -> bytes:
        """The decoded payload of a record."""
        first: RecordError | None = None
        for source in self._sources:
            try:
                return source.payload(tag, key)
            except KeyError:
                continue
            except RecordError as error:
                first = first or error
        if first is not None:
            try:
                raise first
            finally:
                del first  # or it and this frame would keep each other
        raise KeyError(key)

    def close(self) -> None:
        """Close the sources that can be closed. Idempotent."""
        for source in self._sources:
            if isinstance(source, Archive | CombinedRecords):
                source.close()


def open_archives(
    paths: Sequence[str | os.PathLike[str]],
    limits: ArchiveLimits | None = None,
    *,
    indexed: bool = True,
) -> Archive | CombinedRecords:
    """Open one archive, or several as one source; `indexed` as for `Archive.open`."""
    if not paths:
        raise ValueError("no archive is named")
    opened: list[Archive] = []
    try:
        for path in paths:
            opened.append(Archive.open(path, limits, indexed=indexed))
    except BaseException:
        for archive in opened:
            archive.close()
        raise
    return opened[0] if len(opened) == 1 else CombinedRecords(opened)


def parts_of(source: RecordSource) -> tuple[RecordSource, ...]:
    """The sources that a source combines; itself where it combines none."""
    return source.sources if isinstance(source, CombinedRecords) else (source,)


def record_offset(source: RecordSource, tag: RecordTag, key: int) -> int | None:
    """Offset of a record in its file, None for one that is in no file."""
    if isinstance(source, Archive):
        return source.offset(tag, key) if (tag, key) in source else None
    if isinstance(source, CombinedRecords):
        offsets = (record_offset(each, tag, key) for each in source.sources)
        return next((offset for offset in offsets if offset is not None), None)
    return None


def is_unchecked(source: RecordSource, tag: RecordTag, key: int) -> bool:
    """Whether an archive of a source holds a record without proof of its bytes (`Archive.is_unchecked`)."""
    if isinstance(source, Archive):
        return (tag, key) in source and source.is_unchecked(tag, key)
    return isinstance(source, CombinedRecords) and any(
        is_unchecked(each, tag, key) for each in source.sources
    )


Place = tuple[int, int]
"""Place of a record in a source of archives: number of the archive, and offset of the record's header."""


def archives_of(source: RecordSource) -> tuple[Archive, ...]:
    """The archives of a source; empty where it has another source too."""
    parts = parts_of(source)
    found = tuple(each for each in parts if isinstance(each, Archive))
    return found if len(found) == len(parts) else ()


def record_place(source: RecordSource, tag: RecordTag, key: int) -> Place | None:
    """Place of a record; None for one that is in no archive."""
    for number, archive in enumerate(archives_of(source)):
        if (tag, key) in archive:
            return number, archive.offset(tag, key)
    return None


def payload_at(source: RecordSource, place: Place, tag: RecordTag, key: int) -> bytes:
    """The payload of a record at a place, or elsewhere in the source if it is not there.

    Raises:
        KeyError: There is no such record.
        RecordError: It is damaged.
    """
    number, offset = place
    archives = archives_of(source)
    if not 0 <= number < len(archives):
        return source.payload(tag, key)
    try:
        return archives[number].payload_at(offset, tag, key)
    except (KeyError, RecordError):
        return source.payload(tag, key)


def check_key(key: int) -> None:
    """Check what a record is to be named by.

    Raises:
        ValueError: It does not have 64 bits.
    """
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
        """Add a record.

        Returns:
            False where a record with that name exists; it stays.

        Raises:
            ValueError: The key does not have 64 bits.
        """
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
