"""Atomic writes and bounded reads, under every fault at every call."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import define, field

from orchestrator.stores.files.atomic_file import (
    FileOperations,
    FileStatus,
    MissingFileError,
    ReadError,
    SaveError,
    TooLargeError,
    ensure_directory,
    files_through,
    read_capped,
    read_capped_parts,
    write_atomically,
    write_document,
)
from orchestrator.stores.files.fault_injection import Fault, FaultyFileOperations
from tests.stores.samples import temporaries

OLD = b"old content"
CHUNKS = (b"new ", bytearray(b"content "), b"", memoryview(b"in chunks"))
NEW = b"new content in chunks"


def test_writes_the_chunks_beside_the_file(tmp_path: Path) -> None:
    operations = FaultyFileOperations()
    with files_through(operations):
        assert write_atomically(tmp_path / "file", CHUNKS) == len(NEW)
    assert (tmp_path / "file").read_bytes() == NEW
    assert operations.calls[0].path is not None
    assert operations.calls[0].path.parent == tmp_path


@define
class LyingOperations(FileOperations):
    """A file system that loses bytes without a word, or takes none."""

    lost: int = 0
    taken: int | None = None
    sizes: list[int] = field(factory=list)

    def write(self, descriptor: int, data: memoryview) -> int:
        return super().write(descriptor, data) if self.taken is None else self.taken

    def fstat(self, descriptor: int) -> FileStatus:
        status = super().fstat(descriptor)
        self.sizes.append(status.size)
        return FileStatus(status.size - self.lost, True, False, 0o600, 0)


def test_a_file_that_is_shorter_than_what_was_written_is_not_renamed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    said = "the size failed: 21 bytes were written, but the file has 20"
    with files_through(LyingOperations(lost=1)), pytest.raises(SaveError, match=said):
        write_atomically(tmp_path / "file", CHUNKS)
    assert (tmp_path / "file").read_bytes() == OLD
    assert temporaries(tmp_path) == []


def test_a_write_that_takes_nothing_ends(tmp_path: Path) -> None:
    with files_through(LyingOperations(taken=0)), pytest.raises(SaveError, match="took none of the"):
        write_atomically(tmp_path / "file", CHUNKS)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_an_error_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="creating a temporary file failed: No such file or directory"):
        write_atomically(tmp_path / "no" / "file", CHUNKS)


def test_a_failed_directory_sync_says_that_the_new_file_is_there(tmp_path: Path) -> None:
    said = "a power loss now may lose it"
    with (
        files_through(FaultyFileOperations(Fault.EIO_ONCE, 8)),
        pytest.raises(SaveError, match=said) as caught,
    ):
        write_atomically(tmp_path / "file", CHUNKS)
    assert caught.value.replaced
    assert (tmp_path / "file").read_bytes() == NEW


def test_directories_are_created_privately_and_synced(tmp_path: Path) -> None:
    operations = FaultyFileOperations()
    with files_through(operations):
        ensure_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    synced = [call.path for call in operations.calls if call.name == "sync_directory"]
    assert synced == [tmp_path, tmp_path / "a"]
    again = FaultyFileOperations()
    with files_through(again):
        ensure_directory(tmp_path / "a" / "b")
    assert [call.name for call in again.calls] == ["stat"]


def test_a_file_where_a_directory_should_be(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(SaveError, match="is not a directory"):
        ensure_directory(tmp_path / "a")
    with pytest.raises(SaveError, match="it is not a directory"):
        ensure_directory(tmp_path / "a" / "b")


def test_another_process_creating_the_directory_first_is_no_error(tmp_path: Path) -> None:
    class Raced(FileOperations):
        def make_directory(self, directory: Path) -> None:
            super().make_directory(directory)
            super().make_directory(directory)

    with files_through(Raced()):
        ensure_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_reads_up_to_the_cap(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(NEW)
    assert read_capped(tmp_path / "file", len(NEW)) == NEW
    with pytest.raises(TooLargeError, match="21 bytes, more than the 20"):
        read_capped(tmp_path / "file", len(NEW) - 1)
    (tmp_path / "empty").write_bytes(b"")
    assert read_capped(tmp_path / "empty", 0) == b""


def test_what_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        read_capped(tmp_path / "missing", 10)
    with pytest.raises(ReadError, match="not a regular file"):
        read_capped(tmp_path, 10)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReadError, match="not a regular file"):
        read_capped(tmp_path / "pipe", 10)
    (tmp_path / "link").symlink_to(tmp_path / "missing")
    with pytest.raises(ReadError, match="symbolic link"):
        read_capped(tmp_path / "link", 10)


def test_short_reads_are_continued(tmp_path: Path) -> None:
    class ByteWise(FileOperations):
        def read(self, descriptor: int, size: int) -> bytes:
            return super().read(descriptor, min(size, 3))

    (tmp_path / "file").write_bytes(NEW)
    with files_through(ByteWise()):
        assert read_capped_parts(tmp_path / "file", 8, 21) == (NEW[:8], NEW[8:])


@define
class GrowingOperations(FileOperations):
    """A file that someone appends to while it is read."""

    def fstat(self, descriptor: int) -> FileStatus:
        return FileStatus(4, True, False, 0o600, 0)


def test_a_file_that_grows_while_it_is_read_stays_under_the_cap(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(NEW)
    with files_through(GrowingOperations()):
        assert read_capped(tmp_path / "file", 100) == NEW
        with pytest.raises(TooLargeError, match="grew beyond the 10 bytes"):
            read_capped(tmp_path / "file", 10)


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o002, 0o664)])
def test_the_umask_decides_who_reads_a_document(tmp_path: Path, umask: int, mode: int) -> None:
    path = tmp_path / "report.html"
    before = os.umask(umask)
    try:
        assert write_document(path, b"content") == 7
    finally:
        os.umask(before)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"content", mode)


def test_a_file_for_which_memory_does_not_suffice_is_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")

    class Short(FileOperations):
        def read(self, descriptor: int, size: int) -> bytes:
            raise MemoryError

    with files_through(Short()), pytest.raises(ReadError, match="not enough memory for its 1 bytes"):
        read_capped(path, 100)
