"""Files that others own or may write are refused, with the command that mends it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.stores.cache_file import LoadStatus, read_cache_file, save_cache_file
from orchestrator.stores.files.atomic_file import (
    FileOperations,
    FileStatus,
    distrust_directory,
    files_through,
)
from tests.stores.faults.sets import (
    IDENTITY,
    NOTHING,
    OLD,
    OURS,
    data_of,
    file_of,
    loaded_keys,
    path_in,
    readable,
)


class SomebodyElse(FileOperations):
    """Run by another user than the owner of the files."""

    def effective_user(self) -> int:
        return super().effective_user() + 1


@pytest.mark.parametrize(
    ("mode", "writers"), [(0o620, "its group"), (0o602, "everybody"), (0o666, "its group and everybody")]
)
def test_a_file_that_others_may_write_is_refused(tmp_path: Path, mode: int, writers: str) -> None:
    path = path_in(tmp_path)
    path.write_bytes(file_of(OLD))
    path.chmod(mode)
    result = read_cache_file(path, IDENTITY)
    assert result.status is LoadStatus.UNTRUSTED_PERMISSIONS
    assert result.detail == (
        f"the file {path} may be written by {writers} (mode {mode:04o}); mend: chmod go-w {path}"
    )
    assert loaded_keys(path) == (NOTHING, LoadStatus.UNTRUSTED_PERMISSIONS)
    # The command does mend it; so does a save.
    path.chmod(mode & ~0o022)
    assert loaded_keys(path) == (OLD, LoadStatus.LOADED)
    path.chmod(mode)
    assert save_cache_file(path, IDENTITY, data_of(OURS)).saved_bytes
    assert readable(path) == [OURS]


@pytest.mark.parametrize(
    ("mode", "mend"),
    [(0o770, "chmod go-w '{}'"), (0o702, "chmod go-w '{}'"), (0o1777, "use a directory of your own")],
)
def test_a_directory_that_others_may_write_is_refused(tmp_path: Path, mode: int, mend: str) -> None:
    directory = tmp_path / "two words"
    directory.mkdir()
    path = path_in(directory)
    path.write_bytes(file_of(OLD))
    directory.chmod(mode)
    result = read_cache_file(path, IDENTITY)
    assert result.status is LoadStatus.UNTRUSTED_PERMISSIONS
    assert f"the directory {directory} may be written by" in result.detail
    assert result.detail.endswith(f"mend: {mend.format(directory)}")
    report = save_cache_file(path, IDENTITY, data_of(OURS))
    assert report.saved_bytes == 0
    assert report.skipped is not None
    assert report.skipped.startswith(f"the file would be refused when loaded: the directory {directory}")
    directory.chmod(mode & ~0o022)
    assert loaded_keys(path) == (OLD, LoadStatus.LOADED)


def test_a_directory_that_is_everybodys_need_not_be_ones_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    path = path_in(tmp_path)
    path.write_bytes(file_of(OLD))
    with files_through(SomebodyElse()):
        reason = distrust_directory(tmp_path)
    assert reason is not None
    assert reason.endswith("mend: use a directory of your own")


def test_another_owner_is_refused(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    path.write_bytes(file_of(OLD))
    user = path.stat().st_uid
    with files_through(SomebodyElse()):
        result = read_cache_file(path, IDENTITY)
    assert result.status is LoadStatus.UNTRUSTED_PERMISSIONS
    assert result.detail == (
        f"the file {path} belongs to user {user} and not to user {user + 1}, who runs this; "
        f"mend: sudo chown {user + 1} {path}"
    )


class OfSomeUser(FileOperations):
    """A disk of files that belong to user 7."""

    def fstat(self, descriptor: int) -> FileStatus:
        return replace(super().fstat(descriptor), owner=7)


def test_a_file_of_another_user_stays_that_users(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    path.write_bytes(file_of(OLD))
    with files_through(OfSomeUser()):
        detail = read_cache_file(path, IDENTITY).detail
    assert detail.endswith("mend: run this as user 7, or use a directory of your own")


class WithoutModes(FileOperations):
    """A file system such as NTFS."""

    def fstat(self, descriptor: int) -> FileStatus:
        return replace(super().fstat(descriptor), permissions=0o777)


def test_where_no_modes_are_kept_chmod_is_no_advice(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    path.write_bytes(file_of(OLD))
    with files_through(WithoutModes()):
        detail = read_cache_file(path, IDENTITY).detail
    assert "(mode 0777); mend: use a directory on another file system, or mount this one, which" in detail
    assert f"uid={os.geteuid()},umask=077" in detail
    assert "chmod" not in detail
    assert {each.name for each in tmp_path.iterdir()} == {path.name}


def test_what_others_may_read_is_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = path_in(tmp_path)
    path.write_bytes(file_of(OLD))
    path.chmod(0o644)
    assert loaded_keys(path)[0] == OLD
