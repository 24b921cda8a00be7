# Purpose: files that are either what they were or what they became, never something between, whatever fails.
#
#   open a new temporary beside the target -> write -> fsync -> size re-checked -> close -> rename over the
#   target -> fsync of the directory
#
# Guarantees:
# - Until the rename, the target is untouched; after it, the target is whole and was synced before.
# - Any failure, cancellation by an exception included, removes the temporary. Only if that removal fails too is
#   it left, and the error names it.
# - A descriptor whose fsync failed is never synced again: the kernel may have dropped the dirty pages and marked
#   them clean, so a second fsync would report a success that is none.
# - Reads are bounded before anything is allocated.
#
# Assumptions: rename is atomic in the file system. Several writers do not harm each other (each has its own
# temporary; the last rename wins), but do not merge; who may write is decided a level above.
"""Atomic writes and bounded reads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrator.stores.errors import MissingFileError, ReadError, SaveError, TooLargeError, likely_cause
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations, FileStatus

TEMPORARY_SUFFIX = ".tmp"
"""How the name of every temporary ends; it starts with a dot and the name of its target."""

# What is asked for where the end of a file should be: nothing comes, unless it grows.
_PROBE_SIZE = 1 << 16


def temporary_of(path: Path) -> Path:
    """A new name for a temporary beside a file: `.NAME.<16 hex digits>.tmp`.

    Args:
        path: The file that it is to become.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}")


def write_atomically(
    path: Path,
    chunks: Iterable[bytes | bytearray | memoryview],
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> int:
    """Replace a file by new content, or leave it as it is.

    The directory must exist (`ensure_directory`). The file gets mode 0600. Thread-safe.

    Args:
        path: The file to write.
        chunks: The content, in order; nothing is copied.
        operations: The calls to use.

    Returns:
        Bytes written.

    Raises:
        SaveError: A call failed. The old file is unchanged, unless `SaveError.replaced`.
    """
    temporary = temporary_of(path)
    try:
        descriptor = operations.open_new(temporary)
    except OSError as error:
        # Nothing to remove: either it was not created, or (EEXIST) it is someone else's.
        raise SaveError(path, "creating a temporary file", likely_cause(error)) from error
    try:
        written = _fill(path, descriptor, chunks, operations)
        _rename(path, temporary, operations)
    except BaseException as error:
        leftover = remove_temporary(temporary, operations)
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
    except OSError as error:
        close_quietly(descriptor, operations)
        raise SaveError(path, step, likely_cause(error)) from error
    except BaseException:
        close_quietly(descriptor, operations)
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
    """Write a chunk whole; a short write is continued where it stopped."""
    done = 0
    while done < len(data):
        count = operations.write(descriptor, data[done:])
        if count <= 0:
            raise SaveError(path, "write", f"the system took no byte of {len(data) - done}")
        done += count
    return done


def _rename(path: Path, temporary: Path, operations: FileOperations) -> None:
    try:
        operations.rename(temporary, path)
    except OSError as error:
        raise SaveError(path, "rename", likely_cause(error)) from error


def close_quietly(descriptor: int, operations: FileOperations) -> bool:
    """Close a descriptor whose close has nothing to say: nothing was written, or an earlier failure is on its way up.

    Returns:
        Whether the close succeeded; the descriptor is gone either way.
    """
    try:
        operations.close(descriptor)
    except OSError:
        return False
    return True


def remove_temporary(temporary: Path, operations: FileOperations) -> Path | None:
    """Remove a temporary, if it is there.

    Args:
        temporary: The file.
        operations: The calls to use.

    Returns:
        The temporary where that failed, or None.
    """
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

    Args:
        directory: The directory.
        operations: The calls to use.

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
        raise SaveError(directory, "creating the directory", likely_cause(error)) from error


def read_capped(path: Path, cap: int, operations: FileOperations = REAL_FILE_OPERATIONS) -> bytes:
    """Read a file whole, if it is not larger than a cap.

    Args:
        path: The file; a regular one, and no symbolic link.
        cap: Bytes at most.
        operations: The calls to use.

    Returns:
        The content as it was when the end was reached. Thread-safe.

    Raises:
        MissingFileError: There is none.
        TooLargeError: It is larger than the cap, or grew beyond it while it was read.
        ReadError: The system would not, or it is no regular file.
    """
    return read_capped_parts(path, 0, cap, operations)[1]


def read_capped_parts(
    path: Path,
    head_size: int,
    cap: int,
    operations: FileOperations = REAL_FILE_OPERATIONS,
    *,
    check: Callable[[FileStatus], None] | None = None,
) -> tuple[bytes, bytes]:
    """Read a file whole, its head apart, so that what follows the head is not copied to be cut off.

    Of 67 MB, the copy would take as long as the read, and twice the memory.

    Args:
        path: The file; a regular one, and no symbolic link.
        head_size: Bytes of the head.
        cap: Bytes at most, of head and rest.
        operations: The calls to use.
        check: Called with the status of the open file before anything is read; what it raises ends the read.

    Returns:
        The head, shorter only where the file is, and the rest.

    Raises:
        MissingFileError: There is none.
        TooLargeError: It is larger than the cap, or grew beyond it while it was read.
        ReadError: The system would not, or it is no regular file.
    """
    descriptor = _open_for_reading(path, operations)
    try:
        status = operations.fstat(descriptor)
        if not status.is_regular:
            raise ReadError(path, "it is not a regular file")
        if check is not None:
            check(status)
        if status.size > cap:
            raise TooLargeError(path, f"it has {status.size} bytes, more than the {cap} that are allowed")
        head = _read_up_to(descriptor, head_size, head_size, operations)
        # One byte more than the cap allows: what grows while it is read is seen.
        limit = cap - len(head) + 1
        rest = _read_up_to(descriptor, limit, status.size - len(head), operations)
    except OSError as error:
        raise ReadError(path, likely_cause(error)) from error
    finally:
        # A close of a file that was only read has nothing to lose, so its failure says nothing of the content.
        close_quietly(descriptor, operations)
    if len(head) + len(rest) > cap:
        raise TooLargeError(path, f"it grew beyond the {cap} bytes that are allowed while it was read")
    return head, rest


def read_head(
    path: Path,
    size: int,
    operations: FileOperations = REAL_FILE_OPERATIONS,
    *,
    check: Callable[[FileStatus], None] | None = None,
) -> bytes:
    """Read the first bytes of a file, of any size.

    Args:
        path: The file; a regular one, and no symbolic link.
        size: Bytes to read.
        operations: The calls to use.
        check: See `read_capped_parts`.

    Returns:
        The bytes, fewer only where the file is shorter.

    Raises:
        MissingFileError: There is none.
        ReadError: The system would not, or it is no regular file.
    """
    descriptor = _open_for_reading(path, operations)
    try:
        status = operations.fstat(descriptor)
        if not status.is_regular:
            raise ReadError(path, "it is not a regular file")
        if check is not None:
            check(status)
        return _read_up_to(descriptor, size, size, operations)
    except OSError as error:
        raise ReadError(path, likely_cause(error)) from error
    finally:
        close_quietly(descriptor, operations)


def _open_for_reading(path: Path, operations: FileOperations) -> int:
    try:
        return operations.open_existing(path)
    except FileNotFoundError as error:
        raise MissingFileError(path, "there is no such file") from error
    except OSError as error:
        raise ReadError(path, likely_cause(error)) from error
    except ValueError as error:
        # What cannot be a path at all: a zero byte, or text that the file system's encoding lacks.
        raise ReadError(path, f"it is no path: {error}") from error


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
