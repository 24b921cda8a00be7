"""Stored payloads: the limits of deflate, and a bounded inflate.

How archives store a payload: raw, or as a zlib stream.

Guarantees: decoding never makes more than one byte over what was declared. Pure and thread-safe.

Index of an archive: one scan over the record headers.

Find the records of an archive by one scan over its headers, without touching a payload.

File: 16 bytes (0x81 "FOSSILIZEDB" 0 0 0 version), then records to the end, little-endian: 40  ASCII hex
name: 24 digits of tag, of which the last 16 count, and 16 digits of a 64-bit hash 4  stored size 4  flags:
1 raw, 2 deflate (a zlib stream with header) 4  crc32 of the stored bytes, 0 = unchecked 4  uncompressed
size n  payload There is no index and no footer.

How: sizes chain the records, so a small loop in Python walks the chain and collects offsets; the headers of
a block of records are then checked and decoded together with numpy.

Where the chain breaks (a name that is not hex, a record that ends behind the file) the scan does not give
up what follows: if the record before is damaged too (its payload says), its size may be what broke the
chain, so the search for the next header starts inside it; otherwise it starts behind the break. The work
spent on that is bounded, so that a hostile file costs a constant times its size.

Guarantees: memory in proportion to the number of records, never to a size that the file claims.
"""

from __future__ import annotations

import mmap
import re
import struct
import zlib

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from orchestrator.errors import ArchiveError
from orchestrator.sets.records import Damage, RecordTag

FLAG_RAW, FLAG_DEFLATE = 1, 2
DEFLATE_RATIO, DEFLATE_SLACK = 1032, 64  # deflate cannot exceed this ratio: 258 bytes in two bits


def deflate_bound(stored: int) -> int:
    """Most bytes that a deflate stream of `stored` bytes can hold."""
    return stored * DEFLATE_RATIO + DEFLATE_SLACK


def inflate(stored: bytes, size: int, *, whole: bool = False) -> bytes:
    """Decode a zlib stream that must give exactly `size` bytes.

    Args:
        stored: The stream. Bytes behind its end are ignored, as other readers do.
        size: What it must give, bytes.
        whole: Refuse bytes behind the end of the stream.

    Raises:
        ValueError: It is damaged, does not end, or gives another size.
    """
    decoder = zlib.decompressobj()
    try:
        data = decoder.decompress(stored, size + 1)
    except zlib.error as error:
        raise ValueError(f"damaged zlib stream: {error}") from error
    if len(data) > size:
        raise ValueError(f"the zlib stream holds more than the declared {size} bytes")
    if not decoder.eof:
        raise ValueError(f"the zlib stream is truncated: {len(data)} of {size} bytes")
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

_FOREIGN = "the tag is none of a pipeline archive (0 to 10); a shader-cache database, perhaps"

_NIBBLES = np.full(256, 0xFF, np.uint8)
_NIBBLES[list(b"0123456789abcdef")] = range(16)
_NIBBLES[list(b"ABCDEF")] = range(10, 16)

_NAME_PATTERN = re.compile(rb"0{23}[0-9aA][0-9a-fA-F]{16}")


@frozen
class ArchiveLimits:
    """What an archive may ask for before it is refused.

    Attributes:
        entry_bytes: Largest payload, stored or uncompressed; a larger record is left out.
        entries: Most records; an archive of more is refused.
        total_bytes: Largest sum of the uncompressed sizes; an archive of more is refused.
    """

    entry_bytes: int = 64 << 20
    entries: int = 4 << 20
    total_bytes: int = 64 << 30


@frozen(eq=False)
class ArchiveIndex:
    """Where the records of an archive are. One element a record, in file order; immutable.

    Attributes:
        offsets: Of the record's header in the file, shape (n,).
        tags: RecordTag of each, shape (n,).
        keys: Hash of each, shape (n,).
        stored: Stored size of each, shape (n,).
        flags: 1 raw, 2 deflate, shape (n,).
        crcs: crc32 of the stored bytes, 0 unchecked, shape (n,).
        sizes: Uncompressed size of each, shape (n,).
        positions: For each tag, the element of each hash; the first of equal names.
        refusals: Elements whose header breaks a rule, with the reason.
        duplicates: Records left out because one of the same name came before.
        damage: What was found, in file order.
    """

    offsets: npt.NDArray[np.int64]
    tags: npt.NDArray[np.uint8]
    keys: npt.NDArray[np.uint64]
    stored: npt.NDArray[np.uint32]
    flags: npt.NDArray[np.uint32]
    crcs: npt.NDArray[np.uint32]
    sizes: npt.NDArray[np.uint32]
    positions: dict[RecordTag, dict[int, int]] = field(repr=False)
    refusals: dict[int, str] = field(repr=False)
    duplicates: int
    damage: tuple[Damage, ...] = field(repr=False)


def build_index(data: mmap.mmap | bytes, path: str, limits: ArchiveLimits) -> ArchiveIndex:
    """Scan an archive.

    Args:
        data: The whole file.
        path: Its name, for messages.
        limits: Caps.

    Raises:
        ArchiveError: It is not an archive, of an unsupported version, or over a cap.
    """
    _check_file_header(data, path)
    damage: list[Damage] = []
    offsets, headers = _scan(data, path, limits, damage)
    nibbles = _NIBBLES[headers["name"][:, 8:]]
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
    refusals = _refusals(headers, limits)
    for row, reason in refusals.items():
        damage.append(Damage(int(offsets[row]), int(tags[row]), int(keys[row]), reason))
    _check_total(offsets, headers, refusals, path, limits)
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
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """Follow the chain of records, over its breaks; offsets and raw headers of all with a hex name."""
    size = len(data)
    resume = _Resume(data)
    offset_blocks: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    header_blocks: list[npt.NDArray[np.void]] = [np.empty(0, RECORD)]
    found = 0
    last: int | None = None  # offset of the last good-looking record, while it ends at `position`
    position, block = FILE_HEADER_SIZE, _FIRST_BLOCK
    while position < size:
        chain, end = _follow(data, position, size, block)
        headers = np.frombuffer(b"".join([data[at : at + RECORD_SIZE] for at in chain]), RECORD)
        bad_names = np.flatnonzero((_NIBBLES[headers["name"][:, 8:]] == 0xFF).any(axis=1))
        good = int(bad_names[0]) if len(bad_names) else len(chain)
        offset_blocks.append(np.array(chain[:good], np.int64))
        header_blocks.append(headers[:good])
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
    return np.concatenate(offset_blocks), np.concatenate(header_blocks)


def _follow(data: mmap.mmap | bytes, position: int, size: int, count: int) -> tuple[list[int], int]:
    """Offsets of up to `count` records that fit, chained from `position`, and where the next would begin."""
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
    """Decides where the scan goes on after a break in the chain, on a budget."""

    def __init__(self, data: mmap.mmap | bytes) -> None:
        self._data = data
        self._size = len(data)
        self._bytes_left = 2 * len(data)  # to hash and search
        self._breaks_left = _BREAKS_MAX

    def after(self, broken: int, last: int | None, damage: list[Damage]) -> int:
        """Where to go on; the end of the file when nothing more can be found.

        Args:
            broken: Offset of the record that cannot be read.
            last: Offset of the record that ends there, None for none.
            damage: Takes what is left out.
        """
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
        """Tag and hash that a name says, None where it is not one."""
        name = self._data[offset + 8 : offset + 40]
        if len(name) < 32 or (_NIBBLES[np.frombuffer(name, np.uint8)] == 0xFF).any():
            return None, None
        return int(name[:16], 16), int(name[16:], 16)

    def _plausible_end(self, offset: int) -> int | None:
        """Where a record ends whose sizes and flags make sense, whatever its name."""
        if offset + RECORD_SIZE > self._size:
            return None
        stored, flags, _, size = _PARAMETERS.unpack_from(self._data, offset + 40)
        end = offset + RECORD_SIZE + stored
        sizes_agree = stored == size if flags == FLAG_RAW else size <= deflate_bound(stored)
        return end if flags in (FLAG_RAW, FLAG_DEFLATE) and sizes_agree and end <= self._size else None

    def _sound(self, offset: int) -> bool:
        """Whether a record's payload proves its stored size: by crc, or as a zlib stream that ends with it."""
        if self._plausible_end(offset) is None:
            return False
        stored, flags, crc, size = _PARAMETERS.unpack_from(self._data, offset + 40)
        self._bytes_left -= max(stored, size)
        if self._bytes_left < 0:
            return True  # unknown; going on behind it needs no more work
        begin = offset + RECORD_SIZE
        payload = self._data[begin : begin + stored]
        if crc != 0:
            return bool(zlib.crc32(payload) == crc)
        if flags == FLAG_RAW:
            return True  # two sizes that agree are all there is
        try:
            inflate(payload, size, whole=True)
        except ValueError:
            return False
        return True

    def _search(self, start: int) -> int | None:
        """Offset of the next bytes that look like a record which fits."""
        step = _SEARCH_FIRST
        while self._bytes_left > 0 and start + RECORD_SIZE <= self._size:
            window = np.frombuffer(self._data[start : start + step + RECORD_SIZE - 1], np.uint8)
            count = len(window) - RECORD_SIZE + 1
            # A few bytes decide for nearly all positions; a regular expression alone would take 40 steps at
            # each position of a long run of zeros.
            flags = window[44 : 44 + count]
            candidates = (flags == FLAG_RAW) | (flags == FLAG_DEFLATE)
            for at, value in ((45, 0), (46, 0), (47, 0), (0, 0x30), (22, 0x30)):
                candidates &= window[at : at + count] == value
            for at in (np.flatnonzero(candidates) + start).tolist():
                if _NAME_PATTERN.match(self._data, at) and self._plausible_end(at) is not None:
                    self._bytes_left -= at - start
                    return int(at)
            self._bytes_left -= count
            start += count
            step = min(2 * step, _SEARCH_LAST)
        return None


def _refusals(headers: npt.NDArray[np.void], limits: ArchiveLimits) -> dict[int, str]:
    """Records whose header breaks a rule."""
    stored, size, flags = (headers[name].astype(np.int64) for name in ("stored", "size", "flags"))
    raw, deflate = flags == FLAG_RAW, flags == FLAG_DEFLATE
    rules = (
        (~(raw | deflate), "flags {flags} name no known storage (1 raw, 2 deflate)"),
        (
            np.maximum(stored, size) > limits.entry_bytes,
            f"stored size {{stored}}, declared size {{size}}: over the cap of {limits.entry_bytes} bytes",
        ),
        (raw & (stored != size), "raw, but stored size {stored} is not the declared size {size}"),
        (
            deflate & (size > stored * DEFLATE_RATIO + DEFLATE_SLACK),
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
    offsets: npt.NDArray[np.int64],
    headers: npt.NDArray[np.void],
    refusals: dict[int, str],
    path: str,
    limits: ArchiveLimits,
) -> None:
    sizes = headers["size"].astype(np.int64)
    sizes[list(refusals)] = 0
    over = np.flatnonzero(np.cumsum(sizes) > limits.total_bytes)
    if len(over):
        raise ArchiveError(
            path, int(offsets[over[0]]), f"the records declare more than {limits.total_bytes} bytes in total"
        )


def _keys_of(nibbles: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """Hashes from the digits of names, shape (n, 32)."""
    digits = nibbles[:, 16:]
    octets = np.ascontiguousarray(digits[:, 0::2] << np.uint8(4) | digits[:, 1::2])
    return octets.view(">u8").reshape(-1).astype(np.uint64)


def _positions(
    tags: npt.NDArray[np.uint8], keys: npt.NDArray[np.uint64], tag: RecordTag, refusals: dict[int, str]
) -> dict[int, int]:
    """Element of each hash of a tag: the first of equal names, but one that is not refused if there is one."""
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
