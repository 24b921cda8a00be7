"""The previous generation of a cache file.

The generation before the current one, kept until the current one has loaded once, so that a cache that was
saved well and loads badly costs one generation and not all of it.

NAME             the current generation NAME.previous    the one before. It is there exactly while the
current one has not loaded yet

save: no NAME.previous -> the current has loaded, or is the first: it becomes NAME.previous a NAME.previous
-> the current has not loaded: it is replaced, and NAME.previous stays load: the current loaded ->
NAME.previous is removed

Guarantees: which generation has loaded is told by the names alone; there is no third file to disagree. At
every moment NAME, or NAME.previous, or both, are whole: a file becomes the previous one by a second name (a
hard link), so that the current name is never missing.

Assumptions: the writer's lock is held, for all of it.
"""

from __future__ import annotations

import errno
from pathlib import Path

from orchestrator.stores.cache_file import stored_data_hash
from orchestrator.stores.errors import ReadError, SaveError, likely_cause
from orchestrator.stores.files.atomic_file import (
    FileOperations,
    read_capped,
    remove_temporary,
    temporary_of,
    write_atomically,
)

PREVIOUS_SUFFIX = ".previous"
"""What the name of the previous generation adds to that of the cache file."""

# What a file system answers that has no hard links, or whose policy has none for this file.
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


def previous_path(path: Path) -> Path:
    """Where the generation before the current one is.

    Args:
        path: The cache file.
    """
    return path.with_name(path.name + PREVIOUS_SUFFIX)


def has_previous(path: Path, operations: FileOperations) -> bool:
    """Whether there is a generation before the current one.

    Args:
        path: The cache file.
        operations: The calls to use.

    Raises:
        OSError: The system does not say.
    """
    try:
        operations.stat(previous_path(path))
    except FileNotFoundError:
        return False
    return True


def keep_as_previous(path: Path, cap: int, operations: FileOperations, *, proven: bool) -> tuple[Path, ...]:
    """Make the current generation the previous one, where that is its due; the current name keeps it too.

    A current file that is missing, damaged, unreadable or not trusted is not worth it. The names are made to last by whoever
    replaces the current one, with the same sync of the directory.

    Args:
        path: The cache file.
        cap: Bytes that it may have.
        operations: The calls to use.
        proven: The current generation has loaded; otherwise it must have where there is no previous one.

    Returns:
        Temporaries that could not be removed.

    Raises:
        SaveError: It could not be kept. Both generations are as they were.
    """
    leftover: Path | None = None
    try:
        if (not proven and has_previous(path, operations)) or not _is_worth_it(path, operations):
            return ()
        temporary = temporary_of(previous_path(path))
        try:
            operations.link(path, temporary)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            write_atomically(previous_path(path), [read_capped(path, cap, operations)], operations)
            return ()
        try:
            operations.rename(temporary, previous_path(path))
        finally:
            # After a rename too: one between two names of one file does nothing, and leaves both.
            leftover = remove_temporary(temporary, operations)
    except SaveError as error:
        why, leftover = f"{error.step}: {error.reason}", error.leftover
    except ReadError as error:
        why = error.reason
    except OSError as error:
        why = likely_cause(error)
    else:
        return () if leftover is None else (leftover,)
    raise SaveError(path, "keeping the previous generation", why, leftover=leftover)


def _is_worth_it(path: Path, operations: FileOperations) -> bool:
    try:
        return stored_data_hash(path, operations) is not None
    except ReadError:
        return False


def retire_previous(path: Path, loaded_hash: bytes, operations: FileOperations) -> None:
    """Remove the previous generation, if the current one is still that which loaded.

    Args:
        path: The cache file.
        loaded_hash: The hash of the data that loaded.
        operations: The calls to use.

    Raises:
        OSError: It could not be removed; it stays, which is no harm.
        ReadError: The current one could not be read again; it stays.
    """
    if stored_data_hash(path, operations) == loaded_hash:
        operations.unlink(previous_path(path))
