# Purpose: write a cache file as its only writer, so that whatever fails, what was there or what comes is whole.
#
#   worth it? -> directory -> permissions -> lock -> leftovers of killed processes away -> the current generation
#   becomes the previous one, where that is its due -> temporary, fsync, rename, directory fsync
#
# Guarantees: see atomic_file (old or new), generations (one before the current), writer_lock (one at a time).
# Nothing that is worthless replaces something that may be good.
# Assumptions: what is replaced is not wanted any more: the data saved here does not hold it. Several processes that
# compile different pipelines use `save_merged`, which loses none.
"""Saving a driver's data to a cache file."""

from __future__ import annotations

import time
from pathlib import Path

from attrs import evolve

from orchestrator.devices.device import DeviceIdentity
from orchestrator.stores.atomic_file import ensure_directory, write_atomically
from orchestrator.stores.cache_content import DEFAULT_CAP, SaveReport, not_worth_saving
from orchestrator.stores.errors import SaveError, likely_cause
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.generations import keep_as_previous
from orchestrator.stores.prefix_header import PipelineCachePrefixHeader
from orchestrator.stores.sweeping import sweep_file
from orchestrator.stores.trust import distrust_directory
from orchestrator.stores.writer_lock import LOCK_WAIT_S, writer_lock


def save_cache_file(
    path: Path,
    identity: DeviceIdentity,
    data: bytes,
    *,
    cap: int = DEFAULT_CAP,
    lock_wait_s: float = LOCK_WAIT_S,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> SaveReport:
    """Save what a driver's cache gave, if it is worth keeping.

    The directory is created, mode 0700, where it is missing. Threads and processes may save to one path at a
    time: each file is whole, and the last one stays.

    Args:
        path: The file, as from `cache_path`.
        identity: Of the device that gave the data.
        data: Exactly the bytes that the driver wrote.
        cap: Bytes that the file may have; more would be refused when it is loaded.
        lock_wait_s: How long to wait for another writer.
        operations: The calls to use.

    Returns:
        What was written, or why nothing was.

    Raises:
        SaveError: It could not be written. The old file is unchanged, unless `SaveError.replaced`.
    """
    reason = not_worth_saving(identity, data, cap) or make_ready(path, operations)
    if reason is not None:
        return SaveReport(path, 0, reason)
    with writer_lock(path, operations, wait_s=lock_wait_s) as held:
        if not held:
            return SaveReport(path, 0, locked_out(lock_wait_s))
        swept = sweep_file(path, time.time_ns(), operations)
        leftovers = swept.failed + keep_as_previous(path, cap, operations, proven=False)
        report = SaveReport(path, replace_current(path, identity, data, operations))
    return evolve(report, leftovers=leftovers)


def make_ready(path: Path, operations: FileOperations) -> str | None:
    """Create the directory of a cache file where it is missing; why it cannot be saved there, or None.

    Args:
        path: The file.
        operations: The calls to use.

    Raises:
        SaveError: The directory could not be created, or its status not be had.
    """
    ensure_directory(path.parent, operations)
    try:
        reason = distrust_directory(path.parent, operations)
    except OSError as error:
        raise SaveError(path, "checking the directory", likely_cause(error)) from error
    return f"the file would be refused when loaded: {reason}" if reason is not None else None


def locked_out(waited_s: float) -> str:
    """Why a save was skipped whose lock was not had.

    Args:
        waited_s: How long it was waited for.
    """
    return f"another process is saving this file, and did not finish within {waited_s:g} s"


def replace_current(path: Path, identity: DeviceIdentity, data: bytes, operations: FileOperations) -> int:
    """Write the current generation. The writer's lock is held.

    Args:
        path: The file.
        identity: Of the device that gave the data.
        data: Exactly the bytes that the driver wrote.
        operations: The calls to use.

    Returns:
        Bytes written.

    Raises:
        SaveError: It could not be written. The old file is unchanged, unless `SaveError.replaced`.
    """
    header = PipelineCachePrefixHeader.describe(identity, data).pack()
    return write_atomically(path, (header, data), operations)
