"""Proves the structure of an LMDB file before LMDB opens it.

LMDB trusts its file: no page has a checksum, and a page that lies about its content, or a file that is
shorter than its meta page says, ends the process that maps it. So every page that can be reached is looked at
first: where nodes lie in it, what they point to, and that no page is used twice or is free at the same time.
Content is not looked at; whoever stores it has a hash for that.

`mark_file` writes a mark of ours where LMDB reads and writes nothing: behind the meta data of page 0. A file
without it was made by somebody else and is never opened.

Assumptions: LMDB 0.9, 64 bits, little-endian, no duplicate keys. A file that is written
meanwhile is looked at once more.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.errors import OrchestratorError

_META: Final = struct.Struct("<IIQQ48s48sQQ")  # magic, version, address, map size, two trees, last page, txn
_TREE: Final = struct.Struct(
    "<IHHQQQQQ"
)  # page size, flags, depth, branch, leaf, overflow pages, entries, root
_PAGE_HEADER: Final = 16
_MAGIC: Final = 0xBEEFC0DE
_DATA_VERSION: Final = 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_BIG_DATA, _SUB_DATA = 1, 2
_NO_PAGE: Final = (1 << 64) - 1
_MOST_DEPTH: Final = 32
_LOOKS: Final = 8

_MARK_AT: Final = 2048
_MARK: Final = struct.Struct("<8s16s")
_MARK_MAGIC: Final = b"ORCHBIN2"  # the digit is the version of what the file holds

_MOST_PAGES: Final = 1 << 40
_Pages = npt.NDArray[np.int64]
_Bytes = npt.NDArray[np.uint8]
_NONE: Final = np.zeros(0, np.int64)


class LmdbFileError(OrchestratorError):
    """An LMDB file must not be opened.

    Attributes:
        path: The file.
        offset: Where in it, bytes.
        reason: What is wrong there.
    """

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(f"{path}: at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class LmdbFileChangedError(LmdbFileError):
    """A file was written while it was looked at, so that nothing is known of it."""


class LmdbStructure(msgspec.Struct, frozen=True):
    """What a file that is whole consists of.

    Attributes:
        page_size: Bytes of a page.
        pages: Pages up to the last one that was ever used.
        used: Those of them that hold something.
        transaction: Number of the last commit.
    """

    page_size: int
    pages: int
    used: int
    transaction: int


def mark_file(path: Path, nonce: bytes) -> None:
    """Write our mark into a file that LMDB has just made, 16 bytes of one's own in it.

    Raises:
        OSError: It cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        os.pwrite(descriptor, _MARK.pack(_MARK_MAGIC, nonce), _MARK_AT)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_mark(path: Path) -> bytes | None:
    """What `mark_file` wrote; None where it wrote nothing into this file, or another version did.

    Raises:
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.pread(descriptor, _MARK.size, _MARK_AT)
    finally:
        os.close(descriptor)
    if len(found) < _MARK.size:
        return None
    magic, nonce = _MARK.unpack(found)
    return nonce if magic == _MARK_MAGIC else None


def check_lmdb_file(path: Path) -> LmdbStructure:
    """Look at the whole structure of a file.

    Raises:
        LmdbFileError: It is truncated, damaged, or no LMDB file.
        LmdbFileChangedError: It was written each time that it was looked at.
        OSError: It cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        for _ in range(_LOOKS):
            begun = _newest_meta(path, descriptor)[2]
            try:
                found = _look(path, descriptor)
            except (LmdbFileError, struct.error, IndexError, MemoryError) as error:
                # A page that is written between two looks at it contradicts itself.
                if _newest_meta(path, descriptor)[2] != begun:
                    continue
                if isinstance(error, LmdbFileError):
                    raise
                raise LmdbFileError(path, 0, f"its pages contradict each other: {error}") from error
            # What is free as of a commit is written again by the next one at the earliest.
            if _newest_meta(path, descriptor)[2] == begun:
                return found
        raise LmdbFileChangedError(path, 0, "it is written too often to be looked at")
    finally:
        os.close(descriptor)


def _newest_meta(path: Path, descriptor: int) -> tuple[tuple[bytes, bytes], int, int, int]:
    """The two trees of the newest meta page, its last page, its transaction, and the size of pages."""
    found = []
    page_size = 0
    for number in range(2):
        start = number * page_size
        head = os.pread(descriptor, _PAGE_HEADER + _META.size, start)
        if len(head) < _PAGE_HEADER + _META.size:
            raise LmdbFileError(path, start, "the file ends before its meta page does")
        page, _, flags = struct.unpack_from("<QHH", head)
        magic, version, _, map_size, free, main, last, transaction = _META.unpack_from(head, _PAGE_HEADER)
        if magic != _MAGIC or version != _DATA_VERSION or flags != _META_PAGE or page != number:
            raise LmdbFileError(path, start, "there is no meta page of LMDB")
        size = _TREE.unpack(free)[0]
        if (number and size != page_size) or size < 512 or size > 65536 or size & (size - 1):
            raise LmdbFileError(path, start, f"the meta page says that pages have {size} bytes")
        if last >= max(2, map_size // size):
            raise LmdbFileError(path, start, f"the meta page says that page {last} is used, beyond the map")
        page_size = size
        found.append(((free, main), last, transaction))
    trees, last, transaction = max(found, key=lambda each: each[2])
    return trees, last, transaction, page_size


def _look(path: Path, descriptor: int) -> LmdbStructure:
    trees, last, transaction, page_size = _newest_meta(path, descriptor)
    size = os.fstat(descriptor).st_size
    pages = last + 1
    # The file may end before the last page: what a commit took and gave back was never written.
    present = min(pages, size // page_size)
    if not 2 <= pages <= _MOST_PAGES or present < 2:
        raise LmdbFileError(path, 0, f"the meta page says that there are {pages} pages")
    mapped = mmap.mmap(descriptor, present * page_size, prot=mmap.PROT_READ)  # ends with what looks at it
    walk = _Walk(path, np.frombuffer(mapped, np.uint8).reshape(present, page_size), page_size, pages)
    walk.tree(trees[1])
    walk.free_pages(trees[0])
    return LmdbStructure(page_size, pages, int(walk.seen.sum()) - walk.listed, transaction)


class _Walk:
    """Looks at trees level by level, all pages of a level at a time."""

    def __init__(self, path: Path, content: _Bytes, page_size: int, pages: int) -> None:
        self.path = path
        self.content = content
        self.words = content.reshape(-1).view(np.uint16)
        self.page_size = page_size
        self.seen = np.zeros(pages, np.bool_)
        self.seen[:2] = True
        self.listed = 0

    def fail(self, page: int, reason: str) -> LmdbFileError:
        return LmdbFileError(self.path, int(page) * self.page_size, f"page {int(page)}: {reason}")

    def visit(self, pages: _Pages, what: str, *, free: bool = False) -> None:
        """Note pages as used, each once."""
        outside = (pages < 2) | (pages >= (len(self.seen) if free else len(self.content)))
        if outside.any():
            raise self.fail(int(pages[outside][0]), f"{what}: the file has no such page")
        again = self.seen[pages]
        before = int(np.count_nonzero(self.seen))
        self.seen[pages] = True
        # Not np.unique, which imports masked arrays: that takes longer than the rest.
        if again.any() or int(np.count_nonzero(self.seen)) != before + len(pages):
            raise self.fail(int(pages[again][0]) if again.any() else 0, f"{what}: a page is used twice")

    def tree(self, described: bytes) -> None:
        """Look at the table of tables, and at those."""
        rows, nodes, words = self.leaves(described)
        sizes, kinds, key_sizes = words[:, 0] | words[:, 1] << 16, words[:, 2], words[:, 3]
        if (kinds != _SUB_DATA).any() or (sizes != _TREE.size).any():
            raise self.fail(int(rows[0]), "something that is no table stands among the tables")
        for row, start in zip(rows.tolist(), (nodes + 8 + key_sizes).tolist(), strict=True):
            described = self.content[row, start : start + _TREE.size].tobytes()
            if _TREE.unpack(described)[1]:
                raise self.fail(row, "a table has flags that are not used here")
            table, _, of_table = self.leaves(described)
            if (of_table[:, 2] == _SUB_DATA).any():
                raise self.fail(int(table[0]), "a table lies in a table")

    def leaves(self, described: bytes) -> tuple[_Pages, _Pages, _Pages]:
        """Look at a tree by its MDB_db; the nodes of its leaves, as `nodes` gives them."""
        _, _, depth, branches, leaves, overflows, entries, root = _TREE.unpack(described)
        if root == _NO_PAGE:
            if entries:
                raise self.fail(0, "a tree has entries and no root")
            return _NONE, _NONE, _NONE.reshape(0, 4)
        if not 1 <= depth <= _MOST_DEPTH:
            raise self.fail(0, f"a tree is {depth} levels deep")
        level: _Pages = np.array([min(root, _MOST_PAGES)], np.int64)
        found_branches = 0
        for _ in range(depth - 1):
            self.visit(level, "a branch")
            found_branches += len(level)
            _, _, words = self.nodes(level, _BRANCH)
            level = words[:, 0] | words[:, 1] << 16 | words[:, 2] << 32
        self.visit(level, "a leaf")
        rows, nodes, words = self.nodes(level, _LEAF)
        sizes, kinds, key_sizes = words[:, 0] | words[:, 1] << 16, words[:, 2], words[:, 3]
        big = kinds == _BIG_DATA
        if ((kinds != 0) & ~big & (kinds != _SUB_DATA)).any():
            raise self.fail(int(rows[0]), "a node is of a kind that is not used here")
        found_overflows = self.overflow(rows[big], nodes[big] + 8 + key_sizes[big], sizes[big])
        counted = (found_branches, len(level), found_overflows, len(rows))
        if counted != (branches, leaves, overflows, entries):
            raise self.fail(int(level[0]), f"a tree has {counted} pages and entries, and says otherwise")
        return rows, nodes, words

    def nodes(self, pages: _Pages, kind: int) -> tuple[_Pages, _Pages, _Pages]:
        """The nodes of pages: page, offset there, and the four words that it begins with; all checked."""
        heads = self.content[pages, :_PAGE_HEADER].copy()
        numbers = heads[:, :8].copy().view(np.uint64)[:, 0]
        flags, lower, upper = (
            heads[:, at : at + 2].copy().view(np.uint16)[:, 0].astype(np.int64) for at in (10, 12, 14)
        )
        bad = (numbers != pages.astype(np.uint64)) | (flags != kind)
        bad |= (lower < _PAGE_HEADER) | (lower > upper) | (upper > self.page_size) | (lower & 1 == 1)
        counts = (lower - _PAGE_HEADER) >> 1
        bad |= counts < (2 if kind == _BRANCH else 1)
        if bad.any():
            raise self.fail(int(pages[bad][0]), "its header is damaged")
        total = int(counts.sum())
        rows = np.repeat(pages, counts)
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = self.words[(rows * self.page_size + _PAGE_HEADER >> 1) + within].astype(np.int64)
        least = np.repeat(upper, counts)
        bad = (offsets < least) | (offsets + 8 > self.page_size) | (offsets & 1 == 1)
        if bad.any():
            raise self.fail(int(rows[bad][0]), "a node lies outside of it")
        first = rows * self.page_size + offsets >> 1
        words = self.words[first[:, None] + np.arange(4)].astype(np.int64)
        ends = offsets + 8 + words[:, 3]
        if kind == _LEAF:
            big = words[:, 2] & _BIG_DATA != 0
            ends += np.where(big, 8, words[:, 0] | words[:, 1] << 16)
        bad = ends > self.page_size
        # Nodes lie one behind the other, in any order, and never in each other.
        order = np.lexsort((offsets, rows))
        follows = rows[order][1:] == rows[order][:-1]
        overlap = follows & (ends[order][:-1] > offsets[order][1:])
        if bad.any() or overlap.any():
            raise self.fail(
                int(rows[bad][0] if bad.any() else rows[order][1:][overlap][0]), "a node is too long"
            )
        return rows, offsets, words

    def overflow(self, rows: _Pages, places: _Pages, sizes: _Pages) -> int:
        """Look at the pages of data that does not fit into leaves; their number."""
        if not len(rows):
            return 0
        numbers = np.zeros(len(rows), np.uint64)
        for byte in range(8):
            numbers |= self.content[rows, places + byte].astype(np.uint64) << np.uint64(8 * byte)
        outside = numbers >= len(self.content)
        if outside.any():
            raise self.fail(int(rows[outside][0]), "a node points behind the end of the file")
        first = numbers.astype(np.int64)
        counts = (sizes + _PAGE_HEADER + self.page_size - 1) // self.page_size
        if (first + counts > len(self.content)).any():
            raise self.fail(int(rows[0]), "data lies behind the end of the file")
        heads = self.content[first, :_PAGE_HEADER].copy()
        flags = heads[:, 10:12].copy().view(np.uint16)[:, 0]
        told = heads[:, 12:16].copy().view(np.uint32)[:, 0].astype(np.int64)
        bad = (heads[:, :8].copy().view(np.uint64)[:, 0] != numbers) | (flags != _OVERFLOW) | (told != counts)
        if bad.any():
            raise self.fail(int(first[bad][0]), "it does not hold the data that a node says")
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        self.visit(np.repeat(first, counts) + within, "data")
        return int(counts.sum())

    def free_pages(self, described: bytes) -> None:
        """Look at the table of free pages: its lists are whole, and none of them is used."""
        rows, nodes, words = self.leaves(described)
        flat = self.content.reshape(-1)
        for row, node, (low, high, kind, key_size) in zip(
            rows.tolist(), nodes.tolist(), words.tolist(), strict=True
        ):
            size = low | high << 16
            start = row * self.page_size + node + 8 + key_size
            if kind & _BIG_DATA:
                first = int.from_bytes(flat[start : start + 8].tobytes(), "little")
                start = first * self.page_size + _PAGE_HEADER
            if key_size != 8 or size % 8 or not size:
                raise self.fail(row, "a list of free pages is damaged")
            count, *ids = np.frombuffer(flat[start : start + size].tobytes(), np.uint64).tolist()
            if count > len(ids):
                raise self.fail(row, "a list of free pages is damaged")
            listed = np.minimum(np.array(ids[:count], np.uint64), _MOST_PAGES).astype(np.int64)
            if (listed[1:] >= listed[:-1]).any():
                raise self.fail(row, "a list of free pages is out of order")
            self.visit(listed, "a free page", free=True)
            self.listed += len(listed)
