"""The real persistence calls."""

from __future__ import annotations

import errno
import inspect
import os
from pathlib import Path

import pytest

from orchestrator.stores.files.atomic_file import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.files.fault_injection import FaultyFileOperations
from tests.stores.faults.model_disk import ModelDisk


@pytest.fixture(params=["real", "counted"])
def operations(request: pytest.FixtureRequest) -> FileOperations:
    """The real operations, plain and behind a recorder without a fault: both must behave the same."""
    return FileOperations() if request.param == "real" else FaultyFileOperations()


def test_write_and_read_back(tmp_path: Path, operations: FileOperations) -> None:
    path = tmp_path / "file"
    descriptor = operations.open_new(path)
    assert operations.write(descriptor, memoryview(b"\r\n\x1acontent")) == 10
    operations.fsync(descriptor)
    assert operations.fstat(descriptor).size == 10
    operations.close(descriptor)
    operations.sync_directory(tmp_path)
    descriptor = operations.open_existing(path)
    assert operations.read(descriptor, 4) == b"\r\n\x1ac"
    assert operations.read(descriptor, 100) == b"ontent"
    assert operations.read(descriptor, 100) == b""
    operations.close(descriptor)


def test_new_files_and_directories_are_private(tmp_path: Path, operations: FileOperations) -> None:
    mask = os.umask(0)
    try:
        operations.close(operations.open_new(tmp_path / "file"))
        operations.make_directory(tmp_path / "directory")
    finally:
        os.umask(mask)
    status = operations.stat(tmp_path / "file")
    assert (status.permissions, status.is_regular, status.is_directory) == (0o600, True, False)
    status = operations.stat(tmp_path / "directory")
    assert (status.permissions, status.is_regular, status.is_directory) == (0o700, False, True)
    assert status.owner == os.geteuid()


def test_a_new_file_must_not_exist(tmp_path: Path, operations: FileOperations) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        operations.open_new(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_symbolic_links_are_not_followed(tmp_path: Path, operations: FileOperations) -> None:
    (tmp_path / "target").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    with pytest.raises(OSError) as caught:
        operations.open_existing(tmp_path / "link")
    assert caught.value.errno == errno.ELOOP
    with pytest.raises(FileExistsError):
        operations.open_new(tmp_path / "dangling")
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_does_not_block(tmp_path: Path, operations: FileOperations) -> None:
    os.mkfifo(tmp_path / "pipe")
    descriptor = operations.open_existing(tmp_path / "pipe")
    assert not operations.fstat(descriptor).is_regular
    operations.close(descriptor)


def test_rename_replaces(tmp_path: Path, operations: FileOperations) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    operations.rename(tmp_path / "new", tmp_path / "old")
    assert operations.list_directory(tmp_path) == ["old"]
    assert (tmp_path / "old").read_bytes() == b"new"
    operations.unlink(tmp_path / "old")
    assert operations.list_directory(tmp_path) == []


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_without_directory_sync_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    REAL_FILE_OPERATIONS.sync_directory(tmp_path)
    with pytest.raises(OSError) as caught:
        REAL_FILE_OPERATIONS.fsync(0)
    assert caught.value.errno == number


def test_a_failing_directory_sync_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError) as caught:
        REAL_FILE_OPERATIONS.sync_directory(tmp_path)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("kind", [FaultyFileOperations, ModelDisk])
def test_no_call_gets_past_what_stands_for_the_file_system(kind: type[FileOperations]) -> None:
    calls = {name for name, value in vars(FileOperations).items() if inspect.isfunction(value)}
    assert len(calls) > 20
    assert calls - vars(kind).keys() == set()
