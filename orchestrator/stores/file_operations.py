# Purpose: the one place where stores touch the file system. Every call that makes something last, or reads
# it back, is a method here, so that a test can fail any of them, record them, or end the process at one.
#
# Guarantees: each method is one system call (or none, where the system has no such notion). Errors are
# OSErrors. Interrupted calls are repeated by Python itself (PEP 475), so EINTR does not surface unless it is
# injected. Thread-safe: there is no state.
#
# Assumptions: paths are of one file system per directory; descriptors are closed by whoever opened them.
"""The persistence calls of the stores, behind one Protocol."""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import Protocol

from attrs import frozen

# Flags that a system lacks are left out: Windows has no symbolic-link check at open, and text mode instead.
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
_BINARY: int = getattr(os, "O_BINARY", 0)

# What a file system answers that has no fsync of directories. It is no failure: there is nothing to do.
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})


@frozen
class FileStatus:
    """What the system says of a file.

    Attributes:
        size: Bytes.
        is_regular: Whether it is a regular file.
        is_directory: Whether it is a directory.
        permissions: The permission bits, such as 0o600.
        owner: User id of the owner; 0 where the system has none.
    """

    size: int
    is_regular: bool
    is_directory: bool
    permissions: int
    owner: int


class FileOperations(Protocol):
    """Every call by which a store reads, writes or renames. All raise OSError as the system does."""

    def open_new(self, path: Path) -> int:
        """Create a file that must not exist, mode 0600, for writing; symbolic links are not followed."""

    def open_existing(self, path: Path) -> int:
        """Open a file for reading; symbolic links are not followed, and a pipe does not block."""

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write from the start of `data`; returns the bytes that were written, which may be fewer."""

    def read(self, descriptor: int, size: int) -> bytes:
        """Read at most `size` bytes; none at the end of the file."""

    def fsync(self, descriptor: int) -> None:
        """Make a file's content last. After a failure the descriptor must not be synced again."""

    def fstat(self, descriptor: int) -> FileStatus:
        """Status of an open file."""

    def close(self, descriptor: int) -> None:
        """Close a descriptor. It is gone even where this fails."""

    def rename(self, source: Path, destination: Path) -> None:
        """Rename atomically, replacing a file at the destination."""

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory last; does nothing where the system has no such call."""

    def unlink(self, path: Path) -> None:
        """Remove a file."""

    def list_directory(self, directory: Path) -> list[str]:
        """Names in a directory, in no order."""

    def make_directory(self, directory: Path) -> None:
        """Create one directory, mode 0700. Its parent must exist."""

    def stat(self, path: Path) -> FileStatus:
        """Status of a file or directory; symbolic links are followed."""


class PosixFileOperations:
    """The real calls. On Windows the nearest ones: replacing rename, no directory sync, no modes."""

    def open_new(self, path: Path) -> int:
        """See `FileOperations.open_new`."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY, 0o600)

    def open_existing(self, path: Path) -> int:
        """See `FileOperations.open_existing`."""
        return os.open(path, os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _BINARY)

    def write(self, descriptor: int, data: memoryview) -> int:
        """See `FileOperations.write`."""
        return os.write(descriptor, data)

    def read(self, descriptor: int, size: int) -> bytes:
        """See `FileOperations.read`."""
        return os.read(descriptor, size)

    def fsync(self, descriptor: int) -> None:
        """See `FileOperations.fsync`."""
        os.fsync(descriptor)

    def fstat(self, descriptor: int) -> FileStatus:
        """See `FileOperations.fstat`."""
        return _status(os.fstat(descriptor))

    def close(self, descriptor: int) -> None:
        """See `FileOperations.close`."""
        os.close(descriptor)

    def rename(self, source: Path, destination: Path) -> None:
        """See `FileOperations.rename`."""
        source.replace(destination)

    def sync_directory(self, directory: Path) -> None:
        """See `FileOperations.sync_directory`."""
        if sys.platform == "win32":
            return
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        """See `FileOperations.unlink`."""
        path.unlink()

    def list_directory(self, directory: Path) -> list[str]:
        """See `FileOperations.list_directory`."""
        return [entry.name for entry in directory.iterdir()]

    def make_directory(self, directory: Path) -> None:
        """See `FileOperations.make_directory`."""
        directory.mkdir(mode=0o700)

    def stat(self, path: Path) -> FileStatus:
        """See `FileOperations.stat`."""
        return _status(path.stat())


def _status(result: os.stat_result) -> FileStatus:
    return FileStatus(
        size=result.st_size,
        is_regular=stat.S_ISREG(result.st_mode),
        is_directory=stat.S_ISDIR(result.st_mode),
        permissions=stat.S_IMODE(result.st_mode),
        owner=result.st_uid,
    )


REAL_FILE_OPERATIONS: FileOperations = PosixFileOperations()
"""The operations that everything uses unless it is given others."""
