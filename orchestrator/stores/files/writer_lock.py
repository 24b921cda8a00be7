"""`writer_lock`: one writer of a file at a time, among threads and processes, by a lock on a file beside it.

Readers neither take the lock nor wait for it. A process that dies loses its lock. On a file system without
locks, writers go on without: each file is whole all the same, and the last one stays. Nobody removes a lock
file, because then two writers could each lock a file of that name.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from orchestrator.stores.files.atomic_file import SaveError, close_quietly, files, likely_cause, status_of

LOCK_SUFFIX: Final = ".lock"
LOCK_WAIT_S: Final = 1.0
_POLL_S: Final = 0.01

# Answers of a file system without locks; ENOLCK is that of a network file system without its lock service.
_NO_LOCKS: Final = frozenset({errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK})


def lock_path(path: Path) -> Path:
    """Path of a file's lock file."""
    return path.with_name(path.name + LOCK_SUFFIX)


def refused_locks(descriptor: int) -> str:
    """Why a database beside this open file could not be locked, or ""."""
    try:
        files().try_record_lock(descriptor)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return f"the file system refuses locks: {likely_cause(error)}; use a directory on another one"
    return ""


@contextmanager
def writer_lock(
    path: Path,
    *,
    wait_s: float = LOCK_WAIT_S,
    only_if_there: bool = False,
) -> Iterator[bool]:
    """Be the only writer of a file during a block; yields whether the lock was taken in time.

    Thread-safe; not reentrant. The directory must exist. A wait of 0 s tries once. `only_if_there` creates no
    lock file: without one nobody writes, and the block has the lock.

    Raises:
        SaveError: The lock file could not be opened or locked.
    """
    descriptor = None
    is_free = False
    try:
        is_free = only_if_there and _is_missing(lock_path(path))
        for number in range(0 if is_free else 1 + round(wait_s / _POLL_S)):
            if number:
                time.sleep(_POLL_S)
            descriptor = _try(lock_path(path))
            if descriptor is not None:
                break
    except OSError as error:
        raise SaveError(path, f"locking {lock_path(path).name}", likely_cause(error)) from error
    try:
        yield is_free or descriptor is not None
    finally:
        if descriptor is not None:
            _give_back(descriptor)


def _is_missing(name: Path) -> bool:
    try:
        files().lstat(name)
    except FileNotFoundError:
        return True
    return False


def _try(name: Path) -> int | None:
    """Try once; returns the descriptor that holds the lock, or None."""
    descriptor = files().open_lock(name)
    held = False
    try:
        # A lock file that somebody removed meanwhile keeps nobody out.
        held = _lock(descriptor) and (
            (there := status_of(name)) is not None and files().fstat(descriptor).file_id == there.file_id
        )
    finally:
        if not held:
            close_quietly(descriptor)
    return descriptor if held else None


def _lock(descriptor: int) -> bool:
    try:
        return files().try_lock(descriptor)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return True
        raise


def _give_back(descriptor: int) -> None:
    """Unlock and close. Closing alone would leave the lock to a child that inherited the descriptor."""
    try:
        with suppress(OSError):
            files().unlock(descriptor)
    finally:
        close_quietly(descriptor)
