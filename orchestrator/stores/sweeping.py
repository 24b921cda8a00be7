# Purpose: remove what killed processes leave: temporaries that were never renamed, and sentinels that accuse nothing
# that is there.
#
# Guarantees:
# - Nothing of a living process is removed. Temporaries are made by writers only, so that whoever has the
#   writer's lock knows that the others are dead; sentinels are locked by the process that they stand for, and one
#   that is not armed yet is left alone for a minute.
# - A sentinel that accuses data which is there stays: it is what keeps that data from the next driver.
# - What lies beside a cache file is written under the lock of that file's writers, and its leftovers are removed under it.
# - Names that are not exactly of our making stay.
#
# Assumptions: temporaries of a cache file are made under its writer's lock, by whatever makes them.
"""Sweeping up after killed processes."""

from __future__ import annotations

import re
import time
from pathlib import Path

from attrs import frozen

from orchestrator.stores.atomic_file import TEMPORARY_SUFFIX
from orchestrator.stores.beside import BESIDE_SUFFIXES, cache_file_of
from orchestrator.stores.cache_content import CACHE_FILE_SUFFIX, stored_data_hash
from orchestrator.stores.errors import ReadError, SaveError, likely_cause
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.generations import PREVIOUS_SUFFIX, previous_path
from orchestrator.stores.sentinel import SENTINEL_SUFFIX, DeadSentinel, dead_sentinels
from orchestrator.stores.writer_lock import writer_lock

UNARMED_AGE_NS = 60 * 10**9
"""Age at which a sentinel that is not armed belongs to a process that died just then, and not to one at work."""

_LEFTOVER = re.compile(
    rf"\.(?P<name>.+?)(?:{re.escape(PREVIOUS_SUFFIX)})?\.[0-9a-f]{{16}}"
    rf"(?:{re.escape(TEMPORARY_SUFFIX)}|{re.escape(SENTINEL_SUFFIX)})",
    re.ASCII,
)


@frozen
class SweepReport:
    """What a sweep did.

    Attributes:
        removed: Files that were removed.
        failed: Files that should have been, and could not.
        busy: Cache files whose leftovers were left alone, since a process is saving them.
    """

    removed: tuple[Path, ...] = ()
    failed: tuple[Path, ...] = ()
    busy: tuple[Path, ...] = ()


def sweep_directory(
    directory: Path, *, now_ns: int | None = None, operations: FileOperations = REAL_FILE_OPERATIONS
) -> SweepReport:
    """Remove what killed processes left in a directory of cache files. Waits for nobody.

    Args:
        directory: The directory.
        now_ns: The time, ns since the epoch; the clock's where not given.
        operations: The calls to use.

    Returns:
        What was removed, and what was not. A directory that is not there has nothing to sweep.

    Raises:
        SaveError: The directory could not be listed, or a lock file not be opened.
    """
    now_ns = time.time_ns() if now_ns is None else now_ns
    removed: list[Path] = []
    failed: list[Path] = []
    busy: list[Path] = []
    try:
        names = operations.list_directory(directory)
    except FileNotFoundError:
        return SweepReport()
    except OSError as error:
        raise SaveError(directory, "listing the directory", likely_cause(error)) from error
    matches = (_LEFTOVER.fullmatch(name) for name in names)
    for name in sorted({match["name"] for match in matches if match is not None}):
        if not name.endswith((CACHE_FILE_SUFFIX, *BESIDE_SUFFIXES)):
            continue
        path = directory / name
        with writer_lock(cache_file_of(path), operations, wait_s=0) as held:
            if held:
                swept = sweep_file(path, now_ns, operations)
                removed += swept.removed
                failed += swept.failed
            else:
                busy.append(path)
    return SweepReport(tuple(removed), tuple(failed), tuple(busy))


def sweep_file(path: Path, now_ns: int, operations: FileOperations) -> SweepReport:
    """Remove what killed processes left of one cache file. The writer's lock is held. Never raises an OSError.

    Args:
        path: The cache file.
        now_ns: The time, ns since the epoch.
        operations: The calls to use.
    """
    try:
        # Listed under the lock: what is there now was there when its writer died.
        names = operations.list_directory(path.parent)
        dead = dead_sentinels(path, operations, names)
    except OSError:
        return SweepReport(failed=(path.parent,))
    stale = [path.with_name(name) for name in sorted(names) if _is_temporary_of(path, name)]
    stale += _stale_sentinels(path, dead, now_ns, operations)
    removed: list[Path] = []
    failed: list[Path] = []
    for one in stale:
        try:
            operations.unlink(one)
        except FileNotFoundError:
            continue
        except OSError:
            failed.append(one)
        else:
            removed.append(one)
    return SweepReport(tuple(removed), tuple(failed))


def _is_temporary_of(path: Path, name: str) -> bool:
    match = _LEFTOVER.fullmatch(name)
    return match is not None and match["name"] == path.name and name.endswith(TEMPORARY_SUFFIX)


def _stale_sentinels(
    path: Path, dead: tuple[DeadSentinel, ...], now_ns: int, operations: FileOperations
) -> list[Path]:
    if not dead:
        return []
    try:
        there = {stored_data_hash(path, operations), stored_data_hash(previous_path(path), operations)}
    except ReadError:
        # What is there is not known, so that each of them may still have something to accuse.
        return []
    return [
        one.path
        for one in dead
        if (one.data_hash not in there if one.data_hash else _is_old(one.path, now_ns, operations))
    ]


def _is_old(path: Path, now_ns: int, operations: FileOperations) -> bool:
    try:
        return now_ns - operations.stat(path).modified_ns > UNARMED_AGE_NS
    except OSError:
        return False
