"""Files that are whole or refused: atomic writes, reads with a cap and of trusted owners, content hashes.

`FileOperations` is the one place where stores touch the file system, so that a test can fail any call, record
it, or end the process at one. Each method is one system call or none, and one more where it creates something
whose mode the process's umask cut; errors are OSErrors; Python repeats what a signal interrupted (PEP 475).
Locks are those of flock(2): they belong to the open file, so two threads exclude each other too, and the
kernel frees them however their process ended.

`write_atomically`: new temporary beside the target, write, fsync, size checked, close, rename, fsync of the
directory. Until the rename the target is untouched; after it, it is whole and was synced before. A failure, a
cancellation included, removes the temporary; the error names one that could not be removed. A descriptor
whose fsync failed is not synced again: the kernel may have dropped the dirty pages, and a second fsync would
report success. Of several writers the last rename wins; `writer_lock` decides who writes.

A trusted read takes a file only where whoever runs the program owns the file and its directory and nobody
else may write either. It judges the open file, so nothing can be exchanged between check and read. Systems
without POSIX permissions refuse nothing. Reads are bounded before anything is allocated.

Assumptions: rename is atomic in the file system. A hash finds accidents, not attackers. Thread-safe: there is
no state.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import xxhash

from orchestrator.errors import OrchestratorError

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


class FileStatus(msgspec.Struct, frozen=True):
    """What the system says of a file.

    Attributes:
        size: Bytes.
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


class FileOperations:
    """Every call by which a store reads, writes or renames. All raise OSError as the system does.

    On Windows the nearest ones: replacing rename, no directory sync, no modes. A subclass may fail them.
    """

    def open_new(self, path: Path) -> int:
        """Create a file that must not exist, mode 0600, for writing; symbolic links are not followed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY
        return _owned(os.open(path, flags, 0o600))

    def open_existing(self, path: Path) -> int:
        """Open a file for reading; symbolic links are not followed, and a pipe does not block."""
        return os.open(path, os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _BINARY)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write from the start of `data`; returns the bytes that were written, which may be fewer."""
        return os.write(descriptor, data)

    def read(self, descriptor: int, size: int) -> bytes:
        """Read at most `size` bytes; none at the end of the file."""
        return os.read(descriptor, size)

    def fsync(self, descriptor: int) -> None:
        """Make a file's content last. After a failure the descriptor must not be synced again."""
        os.fsync(descriptor)

    def fstat(self, descriptor: int) -> FileStatus:
        """Status of an open file."""
        return _status(os.fstat(descriptor))

    def close(self, descriptor: int) -> None:
        """Close a descriptor. It is gone even where this fails."""
        os.close(descriptor)

    def rename(self, source: Path, destination: Path) -> None:
        """Rename atomically, replacing a file at the destination."""
        source.replace(destination)

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory last; does nothing where the system has no such call."""
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
        """Remove a file."""
        path.unlink()

    def list_directory(self, directory: Path) -> list[str]:
        """Names in a directory, in no order."""
        return [entry.name for entry in directory.iterdir()]

    def make_directory(self, directory: Path) -> None:
        """Create one directory, mode 0700. Its parent must exist."""
        directory.mkdir(mode=0o700)
        if sys.platform != "win32":
            directory.chmod(0o700)  # whatever the umask: a directory that its owner cannot use helps nobody

    def stat(self, path: Path) -> FileStatus:
        """Status of a file or directory; symbolic links are followed."""
        return _status(path.stat())

    def resolve(self, path: Path) -> Path:
        """The path without symbolic links. A loop of links stays one; what does not exist is no error."""
        # Not Path.resolve, which raises on a loop of links.
        return Path(os.path.realpath(path))

    def link(self, source: Path, destination: Path) -> None:
        """Give a file a second name, which must not exist."""
        destination.hardlink_to(source)

    def open_lock(self, path: Path) -> int:
        """Open a file for locking, and create it, mode 0600, where it is missing; links are not followed."""
        flags = os.O_RDWR | os.O_CREAT | _NOFOLLOW | _NONBLOCK | _BINARY
        return _owned(os.open(path, flags, 0o600))

    def try_lock(self, descriptor: int, *, shared: bool = False) -> bool:
        """Lock an open file without waiting; False where another open file holds a lock that excludes it.

        A shared lock excludes only one that is not; where the system has none it is not shared.
        """
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
        """Give the lock of an open file back, for every descriptor of it, inherited ones included."""
        if sys.platform == "win32":
            lock_byte(msvcrt, descriptor, msvcrt.LK_UNLCK)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def truncate(self, descriptor: int) -> None:
        """Cut an open file to no bytes."""
        os.ftruncate(descriptor, 0)

    def effective_user(self) -> int | None:
        """User id that new files get; None where the system has none. Not a call that can fail."""
        return None if sys.platform == "win32" else os.geteuid()

    def boot_id(self) -> str:
        """Another text after each start of the machine, "" where the system does not tell. Does not fail."""
        return _boot_id()


@functools.cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def lock_byte(locking: Any, descriptor: int, mode: int) -> None:
    """Lock or unlock one byte as Windows can, far behind the content; the position of the file is kept.

    `locking` is the module msvcrt: given, so that this can be tested where there is none.
    """
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _WINDOWS_LOCK_OFFSET, os.SEEK_SET)
    try:
        locking.locking(descriptor, mode, 1)
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def _owned(descriptor: int) -> int:
    """Give the owner of a new file what a strict umask took: else nobody but root could read it again."""
    if sys.platform != "win32" and os.fstat(descriptor).st_mode & 0o600 != 0o600:
        with suppress(OSError):  # a file system without modes, or another's file
            os.fchmod(descriptor, 0o600)
    return descriptor


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


REAL_FILE_OPERATIONS: Final = FileOperations()
"""The operations that everything uses unless it is given others."""


_CAUSES = {
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the storage device fails; what it holds may be damaged",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "its mode, that of a directory above it, or an access list forbids it",
    errno.EPERM: "the system forbids it: another's file, an immutable one, or a security policy",
    errno.ENOTDIR: "something on the way there is a file, not a directory",
    errno.ELOOP: "it is a symbolic link, which is not followed for files of the store",
    errno.EFBIG: "the file is larger than the file system or the process may write",
    errno.EMFILE: "the process has too many files open",
    errno.ENFILE: "the system has too many files open",
    errno.EINTR: "a signal interrupted the call",
}


def likely_cause(error: OSError) -> str:
    """A system's error and what it usually means: "No space left on device: the file system is full"."""
    text = error.strerror or type(error).__name__
    cause = _CAUSES.get(error.errno) if error.errno is not None else None
    return f"{text}: {cause}" if cause is not None else text


def refused(path: Path, error: OSError, operations: FileOperations) -> str:
    """A system's refusal and, where that can be told, which file or directory forbids it.

    The same words wherever something is refused, with the command that mends it.

    Args:
        path: A file that was to be read or made, or a directory that was to be written.
        error: What the system said.
        operations: The calls to use.
    """
    user = operations.effective_user()
    if error.errno not in (errno.EACCES, errno.EPERM) or user is None:
        return likely_cause(error)
    text = error.strerror or type(error).__name__
    last = path.parent if _is_missing(path, operations) else path  # in which it was to be made
    for one in (*reversed(last.parents), last):
        try:
            status = operations.stat(one)
        except OSError:
            break
        mended = _withheld(one, status, user, above=one != last)
        if mended is not None:
            return f"{text}: {mended}"
    return likely_cause(error)


def _is_missing(path: Path, operations: FileOperations) -> bool:
    try:
        operations.stat(path)
    except OSError as error:
        return error.errno == errno.ENOENT
    return False


def _withheld(path: Path, status: FileStatus, user: int, *, above: bool) -> str | None:
    """What the mode of a file or directory withholds from a user who needs it; None where it is not that."""
    if user == 0:
        return None  # modes withhold nothing from root
    what, needs, letters = ("the directory", 0o300, "wx") if status.is_directory else ("the file", 0o400, "r")
    if above:
        needs, letters = 0o100, "x"
    mode = f"mode {status.permissions:04o}"
    if status.owner == user:
        if status.permissions & needs == needs:
            return None
        return f"{what} {path} has {mode}; mend: chmod u+{letters} {shlex.quote(str(path))}"
    if status.permissions & needs >> 6 == needs >> 6 or above:
        return None
    return f"{what} {path} belongs to user {status.owner} and not to user {user}, who runs this ({mode})"


class SaveError(OrchestratorError):
    """A file could not be written. What was there before still is, unless `replaced` says otherwise.

    Attributes:
        path: The file that was to be written.
        step: What failed, such as "fsync".
        reason: The system's words and the likely cause.
        replaced: The new content is in place already, and only its durability is not proven.
        leftover: A temporary file that could not be removed either, or None.
    """

    def __init__(
        self, path: Path, step: str, reason: str, *, replaced: bool = False, leftover: Path | None = None
    ) -> None:
        kept = (
            "; the new file is in place, but a power loss now may lose it"
            if replaced
            else "; the file that was there before is unchanged"
        )
        left = f"; {leftover} could not be removed" if leftover is not None else ""
        super().__init__(f"{path}: {step} failed: {reason}{kept}{left}")
        self.path = path
        self.step = step
        self.reason = reason
        self.replaced = replaced
        self.leftover = leftover


class ReadError(OrchestratorError):
    """A file (`path`) could not be read; `reason` says what is wrong and the likely cause."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class MissingFileError(ReadError):
    """There is no such file."""


class TooLargeError(ReadError):
    """The file is larger than the caller's cap; nothing of it was read."""


class UntrustedError(ReadError):
    """Others own the file or its directory, or may write one of them; nothing of it was read.

    The reason names which, and the command that mends it.
    """


def content_hash128(data: bytes | bytearray | memoryview) -> bytes:
    """xxh3_128, seed 0, of contiguous content, not copied: 16 bytes, canonical (big-endian). Thread-safe."""
    return xxhash.xxh3_128_digest(data)


def content_hash128_of(parts: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """`content_hash128` of parts that follow one another."""
    state = xxhash.xxh3_128()
    for each in parts:
        state.update(each)
    return state.digest()


TEMPORARY_SUFFIX = ".tmp"
"""How the name of every temporary ends; it starts with a dot and the name of its target."""

# What is asked for where the end of a file should be: nothing comes, unless it grows.
_PROBE_SIZE = 1 << 16


def temporary_of(path: Path) -> Path:
    """A new name for a temporary beside a file: `.NAME.<16 hex digits>.tmp`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")


def write_atomically(
    path: Path,
    chunks: Iterable[bytes | bytearray | memoryview],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> int:
    """Replace a file by new content, or leave it as it is; returns the bytes written. Thread-safe.

    The directory must exist (`ensure_directory`). The file gets mode 0600. No chunk is copied.

    Raises:
        SaveError: A call failed. The old file is unchanged, unless `SaveError.replaced`.
    """
    temporary = temporary_of(path)
    try:
        descriptor = operations.open_new(temporary)
    except OSError as error:
        # Nothing to remove: either it was not created, or (EEXIST) it is someone else's.
        reason = refused(path.parent, error, operations)
        raise SaveError(path, "creating a temporary file", reason) from error
    try:
        written = _fill(path, descriptor, chunks, operations)
        operations.rename(temporary, path)
    except BaseException as error:
        leftover = remove_temporary(temporary, operations)
        if isinstance(error, OSError):
            raise SaveError(path, "rename", likely_cause(error), leftover=leftover) from error
        if leftover is not None and isinstance(error, SaveError):
            raise SaveError(path, error.step, error.reason, leftover=leftover) from error
        raise
    try:
        operations.sync_directory(path.parent)
    except OSError as error:
        raise SaveError(path, "fsync of the directory", likely_cause(error), replaced=True) from error
    return written


def _fill(
    path: Path,
    descriptor: int,
    chunks: Iterable[bytes | bytearray | memoryview],
    operations: FileOperations,
) -> int:
    """Write, sync, check and close a new file; it is closed however this ends."""
    step = "write"
    try:
        written = 0
        for chunk in chunks:
            written += _write_all(path, descriptor, memoryview(chunk).cast("B"), operations)
        step = "fsync"
        operations.fsync(descriptor)
        step = "checking the size"
        size = operations.fstat(descriptor).size
    except BaseException as error:
        close_quietly(descriptor, operations)
        if isinstance(error, OSError):
            raise SaveError(path, step, likely_cause(error)) from error
        raise
    try:
        operations.close(descriptor)
    except OSError as error:
        # A network file system may report here what it could not write before.
        raise SaveError(path, "close", likely_cause(error)) from error
    if size != written:
        raise SaveError(path, "checking the size", f"{written} bytes were written and {size} are there")
    return written


def _write_all(path: Path, descriptor: int, data: memoryview, operations: FileOperations) -> int:
    done = 0
    while done < len(data):
        count = operations.write(descriptor, data[done:])
        if count <= 0:
            raise SaveError(path, "write", f"the system took no byte of {len(data) - done}")
        done += count
    return done


def close_quietly(descriptor: int, operations: FileOperations) -> None:
    """Close a descriptor whose close has nothing to say; it is gone even where that failed."""
    with suppress(OSError):
        operations.close(descriptor)


def remove_temporary(temporary: Path, operations: FileOperations) -> Path | None:
    """Remove a temporary, if it is there; returns it where that failed."""
    try:
        operations.unlink(temporary)
    except FileNotFoundError:
        return None
    except OSError:
        return temporary
    return None


def ensure_directory(directory: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> None:
    """Create a directory, and its parents, where they are missing: mode 0700, names synced.

    Thread-safe, and safe against another process doing the same.

    Raises:
        SaveError: It could not be created, or something that is no directory is in its place.
    """
    missing: list[Path] = []
    current = directory
    try:
        while True:
            try:
                status = operations.stat(current)
            except FileNotFoundError:
                if current == current.parent:
                    raise
                missing.append(current)
                current = current.parent
                continue
            if not status.is_directory:
                raise SaveError(directory, "creating the directory", f"{current} is not a directory")
            break
        for one in reversed(missing):
            try:
                operations.make_directory(one)
            except FileExistsError:
                if not operations.stat(one).is_directory:
                    raise
            operations.sync_directory(one.parent)
    except OSError as error:
        raise SaveError(directory, "creating the directory", refused(directory, error, operations)) from error


def unwritable(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> str | None:
    """Why a file could not be replaced, by making its temporary, which goes at once; None where it could."""
    temporary = temporary_of(path)
    try:
        operations.close(operations.open_new(temporary))
    except OSError as error:
        return refused(path.parent, error, operations)
    remove_temporary(temporary, operations)
    return None


_GROUP_WRITE = 0o020
_OTHERS_WRITE = 0o002


def distrust(path: Path, status: FileStatus, operations: FileOperations) -> str | None:
    """Why a file or directory is not trusted, and the command that mends it; None where it is."""
    user = operations.effective_user()
    if user is None:
        return None
    what = "the directory" if status.is_directory else "the file"
    if status.owner != user:
        return (
            f"{what} {path} belongs to user {status.owner} and not to user {user}, who runs this; "
            f"mend: chown {user} {shlex.quote(str(path))}"
        )
    writers = [
        name
        for bit, name in ((_GROUP_WRITE, "its group"), (_OTHERS_WRITE, "everybody"))
        if status.permissions & bit
    ]
    if writers:
        return (
            f"{what} {path} may be written by {' and '.join(writers)} (mode {status.permissions:04o}); "
            f"mend: chmod go-w {shlex.quote(str(path))}"
        )
    return None


def distrust_directory(directory: Path, operations: FileOperations) -> str | None:
    """As `distrust`, of a directory; a symbolic link to one counts as what it leads to.

    Raises:
        OSError: Its status cannot be had.
    """
    return distrust(directory, operations.stat(directory), operations)


def read_capped(
    path: Path, cap: int, operations: FileOperations = REAL_FILE_OPERATIONS, *, trusted: bool = False
) -> bytes:
    """As `read_capped_parts`, in one part."""
    return read_capped_parts(path, 0, cap, operations, trusted=trusted)[1]


def read_capped_parts(
    path: Path,
    head_size: int,
    cap: int,
    operations: FileOperations = REAL_FILE_OPERATIONS,
    *,
    trusted: bool = False,
    accept: Callable[[bytes, int], None] | None = None,
) -> tuple[bytes, bytes]:
    """Read a file whole, its head apart, so that what follows the head is not copied to be cut off.

    Of 67 MB, the copy would take as long as the read, and twice the memory. Thread-safe.

    Args:
        path: The file; a regular one, and no symbolic link.
        head_size: Bytes of the head; it is shorter only where the file is.
        cap: Bytes at most, of head and rest.
        operations: The calls to use.
        trusted: Refuse what others own or may write.
        accept: Told the head and the file's size before the rest is read; what it raises ends the read.

    Raises:
        MissingFileError: There is none.
        TooLargeError: It is larger than the cap, or grew beyond it while it was read.
        UntrustedError: Others own it or its directory, or may write one of them.
        ReadError: The system would not, or it is no regular file.
    """
    with _reading(path, operations, trusted) as (descriptor, size):
        if size > cap:
            raise TooLargeError(path, f"it has {size} bytes, more than the {cap} that are allowed")
        head = _read_up_to(descriptor, head_size, head_size, operations)
        if accept is not None:
            accept(head, size)
        # One byte more than the cap allows: what grows while it is read is seen.
        rest = _read_up_to(descriptor, cap - len(head) + 1, size - len(head), operations)
    if len(head) + len(rest) > cap:
        raise TooLargeError(path, f"it grew beyond the {cap} bytes that are allowed while it was read")
    return head, rest


def read_head(
    path: Path, size: int, operations: FileOperations = REAL_FILE_OPERATIONS, *, trusted: bool = False
) -> bytes:
    """Read the first bytes of a file, of any size; fewer only where the file is shorter.

    Raises:
        ReadError: As `read_capped_parts`, without a cap.
    """
    with _reading(path, operations, trusted) as (descriptor, _):
        return _read_up_to(descriptor, size, size, operations)


@contextmanager
def _reading(path: Path, operations: FileOperations, trusted: bool) -> Iterator[tuple[int, int]]:
    """A regular file, open, and its size; what fails in the block is a ReadError."""
    try:
        descriptor = operations.open_existing(path)
    except FileNotFoundError as error:
        raise MissingFileError(path, "there is no such file") from error
    except OSError as error:
        raise ReadError(path, refused(path, error, operations)) from error
    except ValueError as error:
        # What cannot be a path at all: a zero byte, or text that the file system's encoding lacks.
        raise ReadError(path, f"it is no path: {error}") from error
    try:
        status = operations.fstat(descriptor)
        if not status.is_regular:
            raise ReadError(path, "it is not a regular file")
        if trusted:
            reason = distrust(path, status, operations) or distrust_directory(path.parent, operations)
            if reason is not None:
                raise UntrustedError(path, reason)
        yield descriptor, status.size
    except OSError as error:
        raise ReadError(path, likely_cause(error)) from error
    except MemoryError:
        raise ReadError(path, f"there is not enough memory for its {status.size} bytes") from None
    finally:
        # A close of a file that was only read has nothing to lose, so its failure says nothing of the
        # content.
        close_quietly(descriptor, operations)


def _read_up_to(descriptor: int, limit: int, expected: int, operations: FileOperations) -> bytes:
    """Read to the end of the file, or `limit` bytes; `expected` is what the first read asks for at once."""
    chunks: list[bytes] = []
    total = 0
    while total < limit:
        size = max(expected - total, _PROBE_SIZE)
        chunk = operations.read(descriptor, min(size, limit - total))
        if not chunk:
            break
        chunks.append(chunk)
        total += len(chunk)
    return b"".join(chunks)
