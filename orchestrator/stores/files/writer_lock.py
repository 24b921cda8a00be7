"""`writer_lock`: one writer of a file at a time, among threads and processes, by a lock on a file beside it.

Readers take no lock and wait for none. A writer waits as long as it says, and knows whether it has the lock.
The lock of a process that died, in whatever way, is gone with it. Whoever has the lock has it on the lock
file that is there now: where somebody removed it meanwhile, it is taken again on the new one. On a file
system without locks the writer goes on: each file is whole all the same, and the last one stays.

Assumptions: the lock file stays when it is given back; removing it would let two writers hold two files.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    SaveError,
    close_quietly,
    refused,
)

LOCK_SUFFIX = ".lock"
"""What the name of a lock file adds to that of its file."""

LOCK_WAIT_S = 1.0
"""How long a writer waits for another one unless it says otherwise."""

_POLL_S = 0.01

# What a file system answers that has no locks. ENOLCK is a network file system whose lock service is not
# there.
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK})


def lock_path(path: Path) -> Path:
    """Where the lock file of a file is."""
    return path.with_name(path.name + LOCK_SUFFIX)


@contextmanager
def writer_lock(
    path: Path,
    operations: FileOperations = REAL_FILE_OPERATIONS,
    *,
    wait_s: float = LOCK_WAIT_S,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[bool]:
    """Be the only writer of a file for the length of a block; yields whether the lock was had in time.

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
    """Whether the file that was locked is the one that others would lock."""
    try:
        return operations.fstat(descriptor).file_id == operations.stat(name).file_id
    except FileNotFoundError:
        return False


def _give_back(descriptor: int, operations: FileOperations) -> None:
    """Unlock and close. Closing alone would leave the lock to a child that inherited the descriptor."""
    try:
        # The close frees it all the same, unless a child holds it too; then it is free when that ends.
        with suppress(OSError):
            operations.unlock(descriptor)
    finally:
        close_quietly(descriptor, operations)
