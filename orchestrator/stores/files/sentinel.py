r"""The sentinel around what may crash.

Break crash loops. While a driver is given a file's data, a sentinel stands beside the file; a process that
dies there leaves it, and the next one knows that this data may be what kills.

.NAME.<16 hex digits>.loading    "loading <hash of the data> by <process id> on <boot id>\n", locked by its
process

create, lock -> write the line: armed -> the driver -> cut to nothing: disarmed -> close -> remove

Guarantees: - One sentinel a load, so that any number of processes and threads may load at a time. A
sentinel speaks of data, by its hash, and not of a name, so that it never accuses what was saved after it. -
Whether its process lives is told by the lock, which the kernel frees when that is gone: ids that are used
again, other namespaces and other machines do not matter. The id in the line is for people. - Between its
creation and its line a sentinel accuses nobody; a line that is not whole is none. - Where no sentinel can
be made (a full disk, a file system without locks) the load goes on without one.

Not synced, and not believed after a restart of the machine: one that lost power while a driver loaded did
not do so because of the data. A process that is killed from outside in that moment leaves the same trace as
one that its driver took down; its data goes to the quarantine once for nothing, unless the caller forgives
a number of such deaths.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from orchestrator.stores.errors import ReadError, likely_cause
from orchestrator.stores.files.atomic_file import FileOperations, close_quietly, read_head

SENTINEL_SUFFIX = ".loading"
"""How the name of every sentinel ends; it starts with a dot and the name of its cache file."""

_LINE = re.compile(rb"loading ([0-9a-f]{32}) by (\d{1,20}) on ([!-~]{0,64})\n")
_LINE_CAP = 256


@frozen
class DeadSentinel:
    """The sentinel of a process that died while a driver was given a file's data.

    Attributes:
        path: The sentinel.
        data_hash: xxh3_128 of the data, 16 bytes; empty where it accuses nothing: it never was armed, or the
            machine was restarted since.
        process_id: Of the process, as it saw itself; 0 where it accuses nothing.
    """

    path: Path
    data_hash: bytes
    process_id: int


def is_sentinel_of(path: Path, name: str) -> bool:
    """Whether a name in the directory of a cache file is that of a sentinel of it.

    Args:
        path: The cache file.
        name: The name.
    """
    prefix = f".{path.name}."
    return (
        name.startswith(prefix)
        and name.endswith(SENTINEL_SUFFIX)
        and len(name) == len(prefix) + 16 + len(SENTINEL_SUFFIX)
    )


@contextmanager
def loading_sentinel(path: Path, data_hash: bytes, operations: FileOperations) -> Iterator[list[str]]:
    """Stand a sentinel beside a cache file for the length of a block.

    Args:
        path: The cache file.
        data_hash: xxh3_128 of its data, 16 bytes.
        operations: The calls to use.

    Yields:
        A list that has, after the block, a sentence for each thing that went wrong with the sentinel; none of
        them is a reason not to load.
    """
    sentinel = path.with_name(f".{path.name}.{secrets.token_hex(8)}{SENTINEL_SUFFIX}")
    problems: list[str] = []
    descriptor = _arm(sentinel, data_hash, operations, problems)
    try:
        yield problems
    finally:
        if descriptor is not None:
            _disarm(sentinel, descriptor, operations, problems)


def _arm(sentinel: Path, data_hash: bytes, operations: FileOperations, problems: list[str]) -> int | None:
    """Create, lock, write; returns the descriptor, or None and a problem where there is no sentinel."""
    descriptor = None
    line = memoryview(f"loading {data_hash.hex()} by {os.getpid()} on {operations.boot_id()}\n".encode())
    armed = False
    try:
        descriptor = operations.open_new(sentinel)
        if operations.try_lock(descriptor):
            while line:
                line = line[operations.write(descriptor, line) :]
            armed = True
        else:
            problems.append("loaded without a sentinel against crashes: another process locked it")
    except OSError as error:
        problems.append(f"loaded without a sentinel against crashes: {likely_cause(error)}")
    finally:
        if descriptor is not None and not armed:
            _disarm(sentinel, descriptor, operations, problems)
    return descriptor if armed else None


def _disarm(sentinel: Path, descriptor: int, operations: FileOperations, problems: list[str]) -> None:
    """Cut, close, remove: cut first, since between close and removal it would accuse."""
    disarmed = False
    try:
        try:
            operations.truncate(descriptor)
            disarmed = True
        except OSError as error:
            # Removed below all the same, and then it accuses nobody either.
            problems.append(f"{sentinel.name} could not be cut: {likely_cause(error)}")
    finally:
        close_quietly(descriptor, operations)
        try:
            operations.unlink(sentinel)
        except FileNotFoundError:
            disarmed = True
        except OSError as error:
            accuses = (
                "" if disarmed else "; remove it, or the file that was loaded is taken for one that crashes"
            )
            problems.append(f"{sentinel} could not be removed: {likely_cause(error)}{accuses}")


def dead_sentinels(path: Path, operations: FileOperations, names: list[str]) -> tuple[DeadSentinel, ...]:
    """The sentinels of a cache file whose process died, those that accuse and those that do not.

    A sentinel that cannot be read or locked is taken for that of a living process.

    Args:
        path: The cache file.
        operations: The calls to use.
        names: The names in its directory.
    """
    found = (
        _if_dead(path.with_name(name), operations) for name in sorted(names) if is_sentinel_of(path, name)
    )
    return tuple(one for one in found if one is not None)


def _if_dead(sentinel: Path, operations: FileOperations) -> DeadSentinel | None:
    try:
        line = read_head(sentinel, _LINE_CAP, operations)
        match = _LINE.fullmatch(line)
        if match is None or match[3].decode() != operations.boot_id():
            # Its lock is left alone: a process may just be about to take it.
            return DeadSentinel(sentinel, b"", 0)
        if not _is_abandoned(sentinel, line, operations):
            return None
    except (OSError, ReadError):
        return None
    return DeadSentinel(sentinel, bytes.fromhex(match[1].decode()), int(match[2]))


def _is_abandoned(sentinel: Path, line: bytes, operations: FileOperations) -> bool:
    descriptor = operations.open_existing(sentinel)
    try:
        # Shared, so that two that look at a time do not take each other for the one that loads. Read again under
        # the lock: its process may have disarmed it, and let it go, since the line was read.
        return (
            operations.try_lock(descriptor, shared=True)
            and read_head(sentinel, _LINE_CAP, operations) == line
        )
    finally:
        close_quietly(descriptor, operations)
