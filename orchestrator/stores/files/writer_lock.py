"""`writer_lock`: one writer of a file at a time, among threads and processes, by a lock on a file beside it.

Readers neither take the lock nor wait for it. A writer waits for a limited time and is told whether it has
the lock. A process that dies loses its lock. If somebody removes the lock file while a writer takes the lock,
the writer takes it again on the new lock file. On a file system without locks, writers go on without: each
file is whole all the same, and the last one stays.

Nobody here removes a lock file, because then two writers could each lock a file of that name.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    SaveError,
    close_quietly,
    likely_cause,
    refused,
)

LOCK_SUFFIX = ".lock"
"""What the lock file's name adds to the file's name."""

LOCK_WAIT_S = 1.0
"""How long a writer waits for another one by default."""

_POLL_S = 0.01

# Answers of a file system without locks; ENOLCK is that of a network file system without its lock service.
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK})


def lock_path(path: Path) -> Path:
    """Path of a file's lock file."""
    return path.with_name(path.name + LOCK_SUFFIX)


@contextmanager
def writer_lock(
    path: Path,
    operations: FileOperations = REAL_FILE_OPERATIONS,
    *,
    wait_s: float = LOCK_WAIT_S,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[bool]:
    """Be the only writer of a file during a block; yields whether the lock was taken in time.

    Thread-safe; not reentrant. The directory must exist. A wait of 0 s tries once.

    Raises:
        SaveError: The lock file could not be opened or locked.
    """
    tries = 1 + round(wait_s / _POLL_S)
    descriptor = None
    try:
        for number in range(tries):
            if number:
                pause(_POLL_S)
            descriptor = _try(path, operations)
            if descriptor is not None:
                break
    except OSError as error:
        reason = refused(lock_path(path), error, operations)
        raise SaveError(path, f"locking {lock_path(path).name}", reason) from error
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _give_back(descriptor, operations)


@contextmanager
def lock_that_is_there(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> Iterator[bool]:
    """As `writer_lock` without waiting; where there is no lock file none is created, and nobody writes.

    Raises:
        SaveError: The lock file could not be opened or locked.
    """
    try:
        operations.stat(lock_path(path))
    except FileNotFoundError:
        lock: AbstractContextManager[bool] = nullcontext(True)
    except OSError as error:
        raise SaveError(path, f"locking {lock_path(path).name}", likely_cause(error)) from error
    else:
        lock = writer_lock(path, operations, wait_s=0)
    with lock as held:
        yield held


def _try(path: Path, operations: FileOperations) -> int | None:
    """Try once; returns the descriptor that holds the lock, or None."""
    name = lock_path(path)
    descriptor = operations.open_lock(name)
    held = False
    try:
        held = _lock(descriptor, operations) and _is_at(descriptor, name, operations)
    finally:
        if not held:
            close_quietly(descriptor, operations)
    return descriptor if held else None


def _lock(descriptor: int, operations: FileOperations) -> bool:
    try:
        return operations.try_lock(descriptor)
    except InterruptedError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return True
        raise


def _is_at(descriptor: int, name: Path, operations: FileOperations) -> bool:
    """Whether the locked file still has the name by which others would lock it."""
    try:
        return operations.fstat(descriptor).file_id == operations.stat(name).file_id
    except FileNotFoundError:
        return False


def _give_back(descriptor: int, operations: FileOperations) -> None:
    """Unlock and close. Closing alone would leave the lock to a child that inherited the descriptor."""
    try:
        # If this fails, the lock is free when the last process with the descriptor has closed it.
        with suppress(OSError):
            operations.unlock(descriptor)
    finally:
        close_quietly(descriptor, operations)
