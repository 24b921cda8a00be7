# Purpose: the one place where stores touch the file system. Every call that makes something last, reads it back,
# or keeps two processes apart, is a method here, so that a test can fail any of them, record them, or end the
# process at one.
#
# Guarantees: each method is one system call (or none, where the system has no such notion). Errors are
# OSErrors. Interrupted calls are repeated by Python itself (PEP 475), so EINTR does not surface unless it is
# injected. Thread-safe: there is no state.
#
# Locks are those of flock(2): they belong to the open file, not to the process, so that two threads exclude each
# other too; the kernel frees them when the last descriptor of the open file is gone, however its process ended.
# On Windows they are those of msvcrt.locking, on a byte far behind any content, since they are mandatory there.
#
# Assumptions: paths are of one file system per directory; descriptors are closed by whoever opened them.
"""The persistence calls of the stores, behind one Protocol."""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Flags that a system lacks are left out: Windows has no symbolic-link check at open, and text mode instead.
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
_BINARY: int = getattr(os, "O_BINARY", 0)

# What a file system answers that has no fsync of directories. It is no failure: there is nothing to do.
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})

# What the systems answer where another open file holds the lock.
_LOCKED_ELSEWHERE = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK})

# Linux: random, and new at each start.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# Where msvcrt locks its byte: behind the content of any file that is locked.
_WINDOWS_LOCK_OFFSET = 1 << 30


@frozen
class FileStatus:
    """What the system says of a file.

    Attributes:
        size: Bytes.
        is_regular: Whether it is a regular file.
        is_directory: Whether it is a directory.
        permissions: The permission bits, such as 0o600.
        owner: User id of the owner; 0 where the system has none.
        modified_ns: When the content was last changed, ns since the epoch.
        file_id: Device and inode: equal for two names of one file, and for nothing else that exists now.
    """

    size: int
    is_regular: bool
    is_directory: bool
    permissions: int
    owner: int
    modified_ns: int = 0
    file_id: tuple[int, int] = (0, 0)


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

    def resolve(self, path: Path) -> Path:
        """The path without symbolic links. A loop of links stays one; what does not exist is no error."""

    def link(self, source: Path, destination: Path) -> None:
        """Give a file a second name, which must not exist."""

    def open_lock(self, path: Path) -> int:
        """Open a file for locking, and create it, mode 0600, where it is missing; links are not followed."""

    def try_lock(self, descriptor: int, *, shared: bool = False) -> bool:
        """Lock an open file without waiting; False where another open file holds a lock that excludes it.

        A shared lock excludes only one that is not; where the system has none it is not shared.
        """

    def unlock(self, descriptor: int) -> None:
        """Give the lock of an open file back, for every descriptor of it, inherited ones included."""

    def truncate(self, descriptor: int) -> None:
        """Cut an open file to no bytes."""

    def effective_user(self) -> int | None:
        """User id that new files get; None where the system has none. Not a call that can fail."""

    def boot_id(self) -> str:
        """Another text after each start of the machine; empty where the system does not tell. Does not fail."""


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

    def resolve(self, path: Path) -> Path:
        """See `FileOperations.resolve`."""
        # Not Path.resolve, which raises on a loop of links.
        return Path(os.path.realpath(path))

    def link(self, source: Path, destination: Path) -> None:
        """See `FileOperations.link`."""
        destination.hardlink_to(source)

    def open_lock(self, path: Path) -> int:
        """See `FileOperations.open_lock`."""
        return os.open(path, os.O_RDWR | os.O_CREAT | _NOFOLLOW | _NONBLOCK | _BINARY, 0o600)

    def try_lock(self, descriptor: int, *, shared: bool = False) -> bool:
        """See `FileOperations.try_lock`."""
        try:
            if sys.platform == "win32":
                lock_byte(msvcrt, descriptor, msvcrt.LK_NBLCK)
            else:
                fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED_ELSEWHERE:
                return False
            raise
        return True

    def unlock(self, descriptor: int) -> None:
        """See `FileOperations.unlock`."""
        if sys.platform == "win32":
            lock_byte(msvcrt, descriptor, msvcrt.LK_UNLCK)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def truncate(self, descriptor: int) -> None:
        """See `FileOperations.truncate`."""
        os.ftruncate(descriptor, 0)

    def effective_user(self) -> int | None:
        """See `FileOperations.effective_user`."""
        return None if sys.platform == "win32" else os.geteuid()

    def boot_id(self) -> str:
        """See `FileOperations.boot_id`."""
        return _boot_id()


@functools.cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def lock_byte(locking: Any, descriptor: int, mode: int) -> None:
    """Lock or unlock as Windows can: one byte, far behind the content. The position of the file is kept.

    Args:
        locking: The module msvcrt; given, so that this can be tested where there is none.
        descriptor: The open file.
        mode: LK_NBLCK or LK_UNLCK.
    """
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _WINDOWS_LOCK_OFFSET, os.SEEK_SET)
    try:
        locking.locking(descriptor, mode, 1)
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def _status(result: os.stat_result) -> FileStatus:
    return FileStatus(
        size=result.st_size,
        is_regular=stat.S_ISREG(result.st_mode),
        is_directory=stat.S_ISDIR(result.st_mode),
        permissions=stat.S_IMODE(result.st_mode),
        owner=result.st_uid,
        modified_ns=result.st_mtime_ns,
        file_id=(result.st_dev, result.st_ino),
    )


REAL_FILE_OPERATIONS: FileOperations = PosixFileOperations()
"""The operations that everything uses unless it is given others."""
