"""Files that are whole or refused: atomic writes, bounded reads, trust in owners, content hashes.

`FileOperations` is the one place where stores touch the file system. So a test can record any call, let it
fail, or end the process there. Errors are OSErrors. Python repeats calls that a signal interrupted (PEP 475).
Locks are those of flock(2): they belong to the open file, so they exclude other threads too, and the kernel
frees them however the process ends.

`write_atomically` makes a temporary beside the target, writes it, syncs it, checks its size, closes it,
renames it, and syncs the directory. Before the rename, the target is untouched; after it, the target is whole
and its content synced. A failure or a cancellation removes the temporary; the error names one that could not
be removed. After a failed fsync there is no second one: the kernel may have dropped the unwritten pages and
would report success. Of several writers the last rename wins; `writer_lock` decides who writes.

A trusted read demands that the user who runs the program owns the file and its directory, and that nobody
else may write either. It checks the file that is open, so nobody can exchange the file between check and
read. Systems without POSIX permissions refuse nothing. Sizes are checked before memory is taken.

Assumptions: rename is atomic in the file system. A hash finds accidents, not attackers. Thread-safe: there is
no state.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import xxhash

from orchestrator.errors import OrchestratorError, shell_text

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Windows lacks the first two flags. Only Windows has the third, which switches its text mode off.
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK: int = getattr(os, "O_NONBLOCK", 0)
_BINARY: int = getattr(os, "O_BINARY", 0)

# Answers of a file system that cannot sync directories. This is no failure: there is nothing to do.
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})

# Answers of the systems if another open file holds the lock.
_LOCKED_ELSEWHERE = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK})

# Linux: random, and different after each start of the machine.
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

# The byte that msvcrt locks lies behind the content of any file that is locked.
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

    Windows has the nearest equivalents: rename replaces, directories are not synced, there are no modes. A
    subclass may let calls fail.
    """

    _new_mode: ClassVar[int] = 0o600
    """Permissions of new files, of which the umask takes only the rights of others."""

    def open_new(self, path: Path) -> int:
        """Create a file that must not exist, for writing; symbolic links are not followed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY
        return _owned(os.open(path, flags, self._new_mode))

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
        """Make a file's content durable. After a failure the descriptor must not be synced again."""
        os.fsync(descriptor)

    def fstat(self, descriptor: int) -> FileStatus:
        """Status of an open file."""
        return _status(os.fstat(descriptor))

    def close(self, descriptor: int) -> None:
        """Close a descriptor. It is gone even if this fails."""
        os.close(descriptor)

    def rename(self, source: Path, destination: Path) -> None:
        """Rename atomically, replacing a file at the destination."""
        source.replace(destination)

    def touch(self, path: Path) -> None:
        """Set the times of a file to now."""
        os.utime(path)

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable; does nothing on a system without such a call."""
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
            directory.chmod(0o700)  # the umask may have taken the owner's rights

    def stat(self, path: Path) -> FileStatus:
        """Status of a file or directory; symbolic links are followed."""
        return _status(path.stat())

    def lstat(self, path: Path) -> FileStatus:
        """Status of a file, directory or symbolic link, which is not followed."""
        return _status(path.lstat())

    def resolve(self, path: Path) -> Path:
        """The path without symbolic links. Loops of links and missing files are no error."""
        # Path.resolve would raise on a loop of links.
        return Path(os.path.realpath(path))

    def link(self, source: Path, destination: Path) -> None:
        """Give a file a second name, which must not exist."""
        destination.hardlink_to(source)

    def open_lock(self, path: Path) -> int:
        """Open a file for locking; create it, mode 0600, if it is missing. Links are not followed."""
        flags = os.O_RDWR | os.O_CREAT | _NOFOLLOW | _NONBLOCK | _BINARY
        return _owned(os.open(path, flags, 0o600))

    def try_lock(self, descriptor: int, *, shared: bool = False) -> bool:
        """Lock an open file without waiting; False if another open file holds a conflicting lock.

        Shared locks do not exclude each other. Windows has none: there, every lock is exclusive.
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
        """Release the lock of an open file, for all its descriptors, those of child processes included."""
        if sys.platform == "win32":
            lock_byte(msvcrt, descriptor, msvcrt.LK_UNLCK)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def truncate(self, descriptor: int) -> None:
        """Cut an open file to 0 bytes."""
        os.ftruncate(descriptor, 0)

    def effective_user(self) -> int | None:
        """User id that new files get; None if the system has none. Cannot fail."""
        return None if sys.platform == "win32" else os.geteuid()

    def boot_id(self) -> str:
        """A text that changes at each start of the machine; "" if the system has none. Cannot fail."""
        return _boot_id()


@functools.cache
def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def lock_byte(locking: Any, descriptor: int, mode: int) -> None:
    """Lock or unlock one byte far behind the content, as Windows can; the file's position is kept.

    `locking` is the module msvcrt. It is an argument so that this can be tested on other systems.
    """
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, _WINDOWS_LOCK_OFFSET, os.SEEK_SET)
    try:
        locking.locking(descriptor, mode, 1)
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def _owned(descriptor: int) -> int:
    """Give the owner of a new file the rights that the umask took; else only root could read it again."""
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
"""The default of everything that takes `FileOperations`."""


class _DocumentOperations(FileOperations):
    _new_mode = 0o666


_DOCUMENT_OPERATIONS: Final = _DocumentOperations()


_CAUSES = {
    errno.ENOSPC: "the file system is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EIO: "the storage device fails; what it holds may be damaged",
    errno.EROFS: "the file system is mounted read-only",
    errno.EACCES: "its mode, that of a directory above it, or an access list forbids it",
    errno.EPERM: "it belongs to another user, is immutable, or a security policy forbids it",
    errno.ENOTDIR: "a part of the path is a file, not a directory",
    errno.EISDIR: "a directory has the name of a file that is kept here; move it away",
    errno.ELOOP: "it is a symbolic link; links are not followed for files of the store",
    errno.EFBIG: "the file is larger than the file system or the process may write",
    errno.EMFILE: "the process has too many files open",
    errno.ENFILE: "the system has too many files open",
    errno.EINTR: "a signal interrupted the call",
}


def likely_cause(error: OSError) -> str:
    """An error in the system's words, and its usual cause: "No space left on device: ... is full"."""
    text = error.strerror or type(error).__name__
    cause = _CAUSES.get(error.errno) if error.errno is not None else None
    return f"{text}: {cause}" if cause is not None else text


def refused(path: Path, error: OSError, operations: FileOperations) -> str:
    """As `likely_cause`; if access was denied, it names the file or directory at fault and how to mend it.

    Args:
        path: The file that could not be read or created, or the directory that could not be written.
        error: The system's error.
        operations: The calls to use.
    """
    user = operations.effective_user()
    if error.errno not in (errno.EACCES, errno.EPERM) or user is None:
        return likely_cause(error)
    last = path.parent if _is_missing(path, operations) else path
    for each in (*reversed(last.parents), last):
        try:
            status = operations.stat(each)
        except OSError:
            break
        fault = _withheld(each, status, user, above=each != last)
        if fault is not None:
            return f"{error.strerror}: {fault}"
    return likely_cause(error)


def _is_missing(path: Path, operations: FileOperations) -> bool:
    try:
        operations.stat(path)
    except OSError as error:
        return error.errno == errno.ENOENT
    return False


def _withheld(path: Path, status: FileStatus, user: int, *, above: bool) -> str | None:
    """Why the mode of a file or directory denies a user access, and how to mend it; None if it does not.

    `above` means that the user only needs to pass through the directory.
    """
    if user == 0:
        return None  # modes withhold nothing from root
    what, needs, letters = ("the directory", 0o300, "wx") if status.is_directory else ("the file", 0o400, "r")
    if above:
        needs, letters = 0o100, "x"
    mode = f"mode {status.permissions:04o}"
    if status.owner == user:
        if status.permissions & needs == needs:
            return None
        return f"{what} {path} has {mode}; mend: chmod u+{letters} {shell_text(path)}"
    if status.permissions & needs >> 6 == needs >> 6 or above:
        return None
    return f"{what} {path} belongs to user {status.owner} and not to user {user}, who runs this ({mode})"


class SaveError(OrchestratorError):
    """A file could not be written. The old content is still there, unless `replaced` says otherwise.

    Attributes:
        path: The file that was to be written.
        step: What failed, such as "fsync".
        reason: The system's words and the likely cause.
        replaced: The new content is in place, but a power loss may still lose it.
        leftover: A temporary file that could not be removed, or None.
    """

    def __init__(
        self, path: Path, step: str, reason: str, *, replaced: bool = False, leftover: Path | None = None
    ) -> None:
        kept = (
            "; the new file is in place, but a power loss now may lose it"
            if replaced
            else "; what was there before is unchanged"
        )
        left = f"; {leftover} could not be removed" if leftover is not None else ""
        super().__init__(f"{path}: {step} failed: {reason}{kept}{left}")
        self.path = path
        self.step = step
        self.reason = reason
        self.replaced = replaced
        self.leftover = leftover

    @property
    def is_out_of_space(self) -> bool:
        """Whether the file system is full, or the user's quota of it."""
        cause: BaseException | None = self
        while isinstance(cause, SaveError):
            cause = cause.__cause__
        return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


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
    """Another user owns the file or its directory, or may write one of them; nothing of it was read.

    The reason names which one, and the command that mends it.
    """


def content_hash128(data: bytes | bytearray | memoryview) -> bytes:
    """xxh3_128 (seed 0) of contiguous content: 16 bytes, big-endian. Copies nothing. Thread-safe."""
    return xxhash.xxh3_128_digest(data)


def content_hash128_of(parts: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """`content_hash128` of the concatenation of some parts."""
    state = xxhash.xxh3_128()
    for each in parts:
        state.update(each)
    return state.digest()


TEMPORARY_SUFFIX = ".tmp"
"""The end of the name of every temporary, which starts with a dot and the name of its target."""

# Bytes that are asked for at the expected end of a file. Some come only if the file grows.
_PROBE_SIZE = 1 << 16


def temporary_of(path: Path, suffix: str = TEMPORARY_SUFFIX) -> Path:
    """A new name beside a file: `.NAME.<16 hex digits>` and the suffix, by default that of a temporary."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}{suffix}")


def write_atomically(
    path: Path,
    chunks: Iterable[bytes | bytearray | memoryview],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> int:
    """Replace a file's content as a whole, or leave it unchanged. Thread-safe.

    The directory must exist (`ensure_directory`). The file gets mode 0600. No chunk is copied.

    Returns:
        Bytes written.

    Raises:
        SaveError: A call failed. The old file is unchanged, unless `SaveError.replaced`.
    """
    temporary = temporary_of(path)
    try:
        descriptor = operations.open_new(temporary)
    except OSError as error:
        # Nothing to remove: it was not created, or (EEXIST) another writer created it.
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


def write_document(path: Path, content: bytes | bytearray | memoryview) -> int:
    """As `write_atomically`, for a file that its owner may share: the umask decides who reads it."""
    return write_atomically(path, [content], _DOCUMENT_OPERATIONS)


def _fill(
    path: Path,
    descriptor: int,
    chunks: Iterable[bytes | bytearray | memoryview],
    operations: FileOperations,
) -> int:
    """Write, sync, check and close a new file; it is closed even if this fails."""
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
        # A network file system may report only here that an earlier write failed.
        raise SaveError(path, "close", likely_cause(error)) from error
    if size != written:
        raise SaveError(path, "checking the size", f"{written} bytes were written, but the file has {size}")
    return written


def _write_all(path: Path, descriptor: int, data: memoryview, operations: FileOperations) -> int:
    done = 0
    while done < len(data):
        count = operations.write(descriptor, data[done:])
        if count <= 0:
            raise SaveError(path, "write", f"the system took none of the {len(data) - done} bytes left")
        done += count
    return done


def close_quietly(descriptor: int, operations: FileOperations) -> None:
    """Close a descriptor whose errors do not matter; it is gone even if that fails."""
    with suppress(OSError):
        operations.close(descriptor)


def remove_temporary(temporary: Path, operations: FileOperations) -> Path | None:
    """Remove a temporary if it exists; returns its path if that failed, else None."""
    try:
        operations.unlink(temporary)
    except FileNotFoundError:
        return None
    except OSError:
        return temporary
    return None


def ensure_directory(directory: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> None:
    """Create a directory and its missing parents: mode 0700, names synced.

    Thread-safe; another process may do the same at the same time.

    Raises:
        SaveError: It could not be created, or something else has its name.
    """
    missing: list[Path] = []
    try:
        for current in (directory, *directory.parents):
            try:
                status = operations.stat(current)
            except FileNotFoundError:
                if current == current.parent:
                    raise
                missing.append(current)
            else:
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


def status_of(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> FileStatus | None:
    """Status of a file or directory; None where there is none.

    Path.exists and the like say from Python 3.14 on that what cannot be asked for is not there.

    Raises:
        OSError: It cannot be asked for: a directory is closed, or the name is too long.
    """
    try:
        return operations.stat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return None


def is_directory(path: Path) -> bool:
    """Whether there is a directory; raises as `status_of`."""
    status = status_of(path)
    return status is not None and status.is_directory


def unwritable(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> str | None:
    """Why a file cannot be replaced, or None. Finds out by creating its temporary, and removes that."""
    temporary = temporary_of(path)
    try:
        operations.close(operations.open_new(temporary))
    except OSError as error:
        return refused(path.parent, error, operations)
    remove_temporary(temporary, operations)
    return None


_WRITERS = (0o020, "its group"), (0o002, "everybody")


def distrust(path: Path, status: FileStatus, operations: FileOperations) -> str | None:
    """Why a file or directory is not trusted, and what mends it; None if it is trusted."""
    user = operations.effective_user()
    if user is None:
        return None
    what = "the directory" if status.is_directory else "the file"
    # One that is sticky, such as /tmp, is for everybody on purpose.
    is_shared = status.is_directory and status.permissions & stat.S_ISVTX
    own = "use a directory of your own" if is_shared else ""
    if status.owner != user:
        return (
            f"{what} {path} belongs to user {status.owner} and not to user {user}, who runs this; "
            f"mend: {own or f'chown {user} {shell_text(path)}'}"
        )
    if writers := [name for bit, name in _WRITERS if status.permissions & bit]:
        return (
            f"{what} {path} may be written by {' and '.join(writers)} (mode {status.permissions:04o}); "
            f"mend: {own or f'chmod go-w {shell_text(path)}'}"
        )
    return None


def distrust_directory(directory: Path, operations: FileOperations) -> str | None:
    """As `distrust`, of a directory; symbolic links are followed.

    Raises:
        OSError: Its status could not be read.
    """
    return distrust(directory, operations.stat(directory), operations)


def check_directory(path: Path, operations: FileOperations) -> str | None:
    """Create the directory of a file where it is missing; returns why a load would refuse the file, or None.

    Raises:
        SaveError: The directory could not be created, or its status not be read.
    """
    ensure_directory(path.parent, operations)
    try:
        reason = distrust_directory(path.parent, operations)
    except OSError as error:
        raise SaveError(path, "checking the directory", likely_cause(error)) from error
    return f"the file would be refused when loaded: {reason}" if reason is not None else None


def read_capped(
    path: Path, cap: int, operations: FileOperations = REAL_FILE_OPERATIONS, *, trusted: bool = False
) -> bytes:
    """The content of a file; otherwise as `read_capped_parts`."""
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
    """Read a whole file, its head and the rest separately, so that nobody has to copy the rest. Thread-safe.

    Copying 67 MB would take as long as reading them, and twice the memory.

    Args:
        path: A regular file, no symbolic link.
        head_size: Bytes of the head; it is shorter only if the file is.
        cap: Bytes at most, of head and rest together.
        operations: The calls to use.
        trusted: Refuse what other users own or may write.
        accept: Called with the head and the file's size before the rest is read; an exception ends the read.

    Raises:
        MissingFileError: There is no such file.
        TooLargeError: It is larger than the cap, or grew beyond it while it was read.
        UntrustedError: Another user owns it or its directory, or may write one of them.
        ReadError: The system refused, or it is not a regular file.
    """
    with _reading(path, operations, trusted) as (descriptor, size):
        if size > cap:
            raise TooLargeError(path, f"it has {size} bytes, more than the {cap} that are allowed")
        head = _read_up_to(descriptor, head_size, head_size, operations)
        if accept is not None:
            accept(head, size)
        # One byte more than the cap allows, so that growth during the read is noticed.
        rest = _read_up_to(descriptor, cap - len(head) + 1, size - len(head), operations)
    if len(head) + len(rest) > cap:
        raise TooLargeError(path, f"it grew beyond the {cap} bytes that are allowed while it was read")
    return head, rest


def read_head(
    path: Path, size: int, operations: FileOperations = REAL_FILE_OPERATIONS, *, trusted: bool = False
) -> bytes:
    """Read the first bytes of a file of any size; fewer only if the file is shorter.

    Raises:
        ReadError: As `read_capped_parts`, without a cap.
    """
    with _reading(path, operations, trusted) as (descriptor, _):
        return _read_up_to(descriptor, size, size, operations)


@contextmanager
def _reading(path: Path, operations: FileOperations, trusted: bool) -> Iterator[tuple[int, int]]:
    """The descriptor and size of a regular file, for a block; an OSError in it becomes a ReadError."""
    try:
        descriptor = operations.open_existing(path)
    except FileNotFoundError as error:
        raise MissingFileError(path, "there is no such file") from error
    except OSError as error:
        raise ReadError(path, refused(path, error, operations)) from error
    except ValueError as error:
        # It has a zero byte, or characters that the file system's encoding lacks.
        raise ReadError(path, f"this cannot be a path: {error}") from error
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
        close_quietly(descriptor, operations)


def _read_up_to(descriptor: int, limit: int, expected: int, operations: FileOperations) -> bytes:
    """Read to the end of the file, `limit` bytes at most; the first read asks for `expected` bytes."""
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
