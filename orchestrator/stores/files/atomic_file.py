"""Files that are whole or refused: atomic writes, bounded reads, trust in owners, content hashes.

`FileOperations` is the one place where stores touch the file system, so that a test can record any call, let
it fail, or end the process there (`files_through`). Its errors are OSErrors. Locks are those of flock(2):
they belong to the open file, exclude other threads too, and end with the process. Thread-safe.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from orchestrator.errors import OrchestratorError, shell_text

Buffer = bytes | bytearray | memoryview

TEMPORARY_SUFFIX: Final = ".tmp"
_PROBE_SIZE: Final = 1 << 16  # asked for at the expected end of a file, which may have grown; room for one

# Answers of a file system that cannot sync directories: there is nothing to do.
_NO_DIRECTORY_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
_LOCKED_ELSEWHERE: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK})


class FileStatus(msgspec.Struct, frozen=True):
    """What the system says of a file; `file_id`, device and inode, is equal for two names of one file."""

    size: int
    is_regular: bool
    is_directory: bool
    permissions: int
    owner: int
    modified_ns: int = 0
    file_id: tuple[int, int] = (0, 0)


class FileOperations:
    """Every call by which a store reads, writes or renames. A subclass may let calls fail."""

    def open_new(self, path: Path, mode: int = 0o600) -> int:
        """Create a file that must not exist, for writing; symbolic links are not followed."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)

    def open_existing(self, path: Path) -> int:
        """Open a file for reading; symbolic links are not followed, and a pipe does not block."""
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)

    def open_lock(self, path: Path) -> int:
        """Open a file to lock, read and write it; create it, mode 0600, if it is missing."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        if os.geteuid() == 0:  # one that is root's would keep the directory's owner out for ever
            with suppress(OSError):
                os.fchown(descriptor, path.parent.stat().st_uid, -1)
        return descriptor

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

    def truncate(self, descriptor: int) -> None:
        """Cut an open file to 0 bytes, and go on at its start."""
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)

    def close(self, descriptor: int) -> None:
        """Close a descriptor. It is gone even if this fails."""
        os.close(descriptor)

    def rename(self, source: Path, destination: Path) -> None:
        """Rename atomically, replacing a file at the destination."""
        source.replace(destination)

    def link(self, source: Path, destination: Path) -> None:
        """Give a file a second name, which must not exist."""
        destination.hardlink_to(source)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def sync_directory(self, directory: Path) -> None:
        """Make the names in a directory durable, where the file system can."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_SYNC:
                raise
        finally:
            os.close(descriptor)

    def list_directory(self, directory: Path) -> list[str]:
        """Names in a directory, in no order."""
        return [entry.name for entry in directory.iterdir()]

    def make_directory(self, directory: Path) -> None:
        """Create one directory, mode 0700. Its parent must exist."""
        directory.mkdir(mode=0o700)

    def stat(self, path: Path) -> FileStatus:
        """Status of a file or directory; symbolic links are followed."""
        return _status(path.stat())

    def lstat(self, path: Path) -> FileStatus:
        """Status of a file, directory or symbolic link, which is not followed."""
        return _status(path.lstat())

    def resolve(self, path: Path) -> Path:
        """The path without symbolic links. Loops of links and missing files are no error."""
        return Path(os.path.realpath(path))  # Path.resolve would raise on a loop of links

    def try_lock(self, descriptor: int) -> bool:
        """Lock an open file without waiting; False if another open file holds its lock."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _LOCKED_ELSEWHERE:
                return False
            raise
        return True

    def unlock(self, descriptor: int) -> None:
        """Release the lock of an open file, for all its descriptors, those of child processes included."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def try_record_lock(self, descriptor: int) -> None:
        """Lock an open file as databases do, by fcntl(2), and unlock it; raises OSError where it cannot."""
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.lockf(descriptor, fcntl.LOCK_UN)

    def effective_user(self) -> int:
        """User id that new files get. Cannot fail."""
        return os.geteuid()


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


_REAL: Final = FileOperations()
_files: Final = ContextVar("files", default=_REAL)


def files() -> FileOperations:
    """The calls by which this thread reads and writes: those of `files_through`, or else the real ones."""
    return _files.get()


@contextmanager
def files_through(operations: FileOperations) -> Iterator[None]:
    """Let this thread, and the trio tasks that it starts, read and write by these calls in a block."""
    token = _files.set(operations)
    try:
        yield
    finally:
        _files.reset(token)


# --- errors, and what caused them

_CAUSES: Final = {
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


class SaveError(OrchestratorError):
    """A file could not be written. The old content is still there, unless `replaced` says otherwise.

    Attributes:
        path: The file that was to be written.
        step: What failed, such as "fsync".
        reason: The system's words and the likely cause.
        replaced: The new content is in place, but a power loss may still lose it.
    """

    def __init__(self, path: Path, step: str, reason: str, *, replaced: bool = False) -> None:
        kept = "what was there before is unchanged"
        if replaced:
            kept = "the new file is in place, but a power loss now may lose it"
        super().__init__(f"{path}: {step} failed: {reason}; {kept}")
        self.path = path
        self.step = step
        self.reason = reason
        self.replaced = replaced

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
    """The file is larger than the caller's cap."""


class UntrustedError(ReadError):
    """Another user owns the file or its directory, or may write one of them; it says what mends it."""


def likely_cause(error: OSError | SaveError | ReadError) -> str:
    """An error in the system's words, and its usual cause: "No space left on device: ... is full"."""
    if not isinstance(error, OSError):
        return error.reason
    text = error.strerror or str(error) or type(error).__name__
    cause = _CAUSES.get(error.errno or 0)
    return f"{text}: {cause}" if cause is not None else text


# --- hashes


def content_hash128(data: Buffer) -> bytes:
    """xxh3_128 (seed 0) of contiguous content: 16 bytes, big-endian. Copies nothing."""
    return xxhash.xxh3_128_digest(data)


# --- writing


def temporary_of(path: Path) -> Path:
    """A new name beside a file: `.NAME.<16 hex digits>.tmp`."""
    return path.with_name(f".{path.name}.{os.urandom(8).hex()}{TEMPORARY_SUFFIX}")


def write_atomically(path: Path, chunks: Iterable[Buffer], mode: int = 0o600) -> int:
    """Replace a file's content as a whole, or leave it unchanged; returns the bytes written. Thread-safe.

    A synced temporary beside the file is renamed to it, and the directory synced. Of several writers the last
    rename wins. The umask takes from `mode`.

    Raises:
        SaveError: A call failed. The old file is unchanged, unless `SaveError.replaced`.
    """
    temporary = temporary_of(path)
    try:
        descriptor = files().open_new(temporary, mode)
    except OSError as error:  # nothing to remove: it was not created, or by another writer
        raise SaveError(path, "creating a temporary file", likely_cause(error)) from error
    step, is_open = "write", True
    try:
        written = sum(_write_all(descriptor, memoryview(each).cast("B")) for each in chunks)
        step = "fsync"
        files().fsync(descriptor)
        step = "checking the size"
        if (size := files().fstat(descriptor).size) != written:
            raise OSError(f"{written} bytes were written, but the file has {size}")  # noqa: TRY301
        step, is_open = "close", False  # a network file system may report only here that a write failed
        files().close(descriptor)
        step = "rename"
        files().rename(temporary, path)
    except BaseException as error:
        if is_open:
            close_quietly(descriptor)
        remove_temporary(temporary)
        if isinstance(error, OSError):
            raise SaveError(path, step, likely_cause(error)) from error
        raise
    try:
        files().sync_directory(path.parent)
    except OSError as error:
        raise SaveError(path, "fsync of the directory", likely_cause(error), replaced=True) from error
    return written


def write_document(path: Path, content: Buffer) -> int:
    """As `write_atomically`, for a file that its owner may share: the umask decides who reads it."""
    return write_atomically(path, [content], 0o666)


def _write_all(descriptor: int, data: memoryview) -> int:
    done = 0
    while done < len(data):
        count = files().write(descriptor, data[done:])
        if count <= 0:
            raise OSError(f"the system took none of the {len(data) - done} bytes left")
        done += count
    return done


def close_quietly(descriptor: int) -> None:
    """Close a descriptor whose errors do not matter."""
    with suppress(OSError):
        files().close(descriptor)


def remove_temporary(temporary: Path) -> Path | None:
    """Remove a temporary if it exists; returns its path if that failed, else None."""
    try:
        files().unlink(temporary)
    except FileNotFoundError:
        return None
    except OSError:
        return temporary
    return None


def ensure_directory(directory: Path) -> None:
    """Create a directory and its missing parents: mode 0700, names synced. Thread-safe.

    Raises:
        SaveError: It could not be created, or something else has its name.
    """
    try:
        if (status := status_of(directory)) is None:
            ensure_directory(directory.parent)
            with suppress(FileExistsError):  # by another process
                files().make_directory(directory)
            files().sync_directory(directory.parent)
        elif not status.is_directory:
            raise SaveError(directory, "creating the directory", "it is not a directory")
    except OSError as error:
        raise SaveError(directory, "creating the directory", likely_cause(error)) from error


def status_of(path: Path) -> FileStatus | None:
    """Status of a file or directory; None where there is none; raises OSError where nobody can tell."""
    try:
        return files().stat(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return None


def is_directory(path: Path) -> bool:
    """Whether there is a directory; raises OSError where nobody can tell."""
    status = status_of(path)
    return status is not None and status.is_directory


@contextmanager
def probe_file(path: Path) -> Iterator[int]:
    """The descriptor of a new temporary of a file, which is removed after the block; raises OSError."""
    temporary = temporary_of(path)
    descriptor = files().open_new(temporary)
    try:
        yield descriptor
    finally:
        close_quietly(descriptor)
        remove_temporary(temporary)


def unwritable(path: Path) -> str | None:
    """Why a file cannot be replaced, or None. Finds out by writing a little to a temporary of it."""
    try:
        with probe_file(path) as descriptor:
            files().write(descriptor, memoryview(bytes(_PROBE_SIZE)))
    except OSError as error:
        return likely_cause(error)
    return None


# --- trust


def distrust(path: Path, status: FileStatus) -> str | None:
    """Why a file or directory is not trusted, and what mends it; None if only its user may write it."""
    user = files().effective_user()
    all_writers = (0o020, "its group"), (0o002, "everybody")
    writers = " and ".join(name for bit, name in all_writers if status.permissions & bit)
    what, directory = ("the directory", path) if status.is_directory else ("the file", path.parent)
    if status.owner != user:
        problem = f"belongs to user {status.owner} and not to user {user}, who runs this"
        # What another user owns stays theirs; what root owns may have been made by this user with sudo.
        mend = f"run this as user {status.owner}, or use a directory of your own"
        if status.owner == 0:
            mend = f"sudo chown {user} {shell_text(path)}"
    elif writers:
        problem = f"may be written by {writers} (mode {status.permissions:04o})"
        mend = f"chmod go-w {shell_text(path)}"
    else:
        return None
    if status.is_directory and status.permissions & stat.S_ISVTX:  # such as /tmp, for everybody on purpose
        mend = "use a directory of your own"
    return f"{what} {path} {problem}; mend: {_mount_advice(directory) or mend}"


def _mount_advice(directory: Path) -> str:
    """What to do about a directory whose file system keeps no modes, which chmod cannot mend; else ""."""
    try:
        with probe_file(directory / "probe") as descriptor:
            permissions = files().fstat(descriptor).permissions
    except OSError:
        return ""
    if permissions == 0o600:
        return ""
    options = f"uid={files().effective_user()},umask=077 (SMB: file_mode=0600,dir_mode=0700)"
    return f"use a directory on another file system, or mount this one, which keeps no modes, with {options}"


def distrust_directory(directory: Path) -> str | None:
    """As `distrust`, of a directory; symbolic links are followed. Raises OSError."""
    return distrust(directory, files().stat(directory))


def check_directory(path: Path) -> str | None:
    """Create the directory of a file where it is missing; returns why a load would refuse the file, or None.

    Raises:
        SaveError: The directory could not be created, or its status not be read.
    """
    ensure_directory(path.parent)
    try:
        reason = distrust_directory(path.parent)
    except OSError as error:
        raise SaveError(path, "checking the directory", likely_cause(error)) from error
    return f"the file would be refused when loaded: {reason}" if reason is not None else None


# --- reading


def read_capped(path: Path, cap: int, *, trusted: bool = False) -> bytes:
    """The content of a file; otherwise as `read_capped_parts`."""
    return read_capped_parts(path, 0, cap, trusted=trusted)[1]


def read_capped_parts(
    path: Path,
    head_size: int,
    cap: int,
    *,
    trusted: bool = False,
) -> tuple[bytes, bytes]:
    """Read a whole file, its head and the rest separately, so that nobody has to copy the rest. Thread-safe.

    The head has `head_size` bytes, or all of a shorter file. Head and rest have at most `cap` bytes. With
    `trusted`, what other users own or may write is refused. Symbolic links are not followed.

    Raises:
        MissingFileError: There is no such file.
        TooLargeError: It is larger than the cap, or grew beyond it while it was read.
        UntrustedError: Another user owns it or its directory, or may write one of them.
        ReadError: The system refused, or it is not a regular file.
    """
    with _reading(path, trusted) as (descriptor, size):
        if size > cap:
            raise TooLargeError(path, f"it has {size} bytes, more than the {cap} that are allowed")
        head = _read_up_to(descriptor, head_size, head_size)
        # One byte more than the cap allows, so that growth during the read is noticed.
        rest = _read_up_to(descriptor, cap - len(head) + 1, size - len(head))
    if len(head) + len(rest) > cap:
        raise TooLargeError(path, f"it grew beyond the {cap} bytes that are allowed while it was read")
    return head, rest


def read_head(path: Path, size: int, *, trusted: bool = False) -> bytes:
    """Read the first bytes of a file; fewer only if it is shorter. Raises as `read_capped_parts`."""
    with _reading(path, trusted) as (descriptor, _):
        return _read_up_to(descriptor, size, size)


@contextmanager
def _reading(path: Path, trusted: bool) -> Iterator[tuple[int, int]]:
    """The descriptor and size of a regular file, for a block; an OSError in it becomes a ReadError."""
    try:
        descriptor = files().open_existing(path)
    except FileNotFoundError as error:
        raise MissingFileError(path, "there is no such file") from error
    except OSError as error:
        raise ReadError(path, likely_cause(error)) from error
    except ValueError as error:  # a zero byte, or characters that the file system's encoding lacks
        raise ReadError(path, f"this cannot be a path: {error}") from error
    try:
        status = files().fstat(descriptor)
        if not status.is_regular:
            raise ReadError(path, "it is not a regular file")
        if trusted:  # by the file that is open, so that nobody can exchange it in between
            reason = distrust(path, status) or distrust_directory(path.parent)
            if reason is not None:
                raise UntrustedError(path, reason)
        yield descriptor, status.size
    except OSError as error:
        raise ReadError(path, likely_cause(error)) from error
    except MemoryError:
        raise ReadError(path, f"there is not enough memory for its {status.size} bytes") from None
    finally:
        close_quietly(descriptor)


def _read_up_to(descriptor: int, limit: int, expected: int) -> bytes:
    """Read to the end of the file, `limit` bytes at most; the first read asks for `expected` bytes."""
    chunks: list[bytes] = []
    total = 0
    while total < limit:
        size = max(expected - total, _PROBE_SIZE)
        chunk = files().read(descriptor, min(size, limit - total))
        if not chunk:
            break
        chunks.append(chunk)
        total += len(chunk)
    return b"".join(chunks)
