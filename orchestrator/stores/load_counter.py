"""Counts the processes that died while a driver was given the data of a cache file.

One death proves nothing, because a process that is killed from outside leaves the same trace; two in a row
give the data up. The count is of content, by its hash, so it never accuses what was saved later. A load that
ends, also with an error, takes its count back. While a process loads, it holds a lock on the file: deaths are
counted only by a load that has it, so processes that load at the same time do not take each other for dead.

A count that cannot be kept is no reason not to load.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, field

from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    ReadError,
    SaveError,
    close_quietly,
    likely_cause,
)
from orchestrator.stores.state import Kind, State, value_name

_MOST: Final = 8
"""Contents of one cache file whose deaths are remembered."""

DEATHS: Final = Kind("loads that did not end", msgspec.msgpack.Decoder(dict[bytes, int]).decode)


@define
class LoadCount:
    """How many processes in a row began to load the content and did not end.

    `is_alone` says whether no other process is loading it now; `problems` what went wrong with the count.
    """

    deaths: int = 0
    is_alone: bool = False
    problems: list[str] = field(factory=list)


@contextmanager
def counted_load(
    path: Path, file: Path, data_hash: bytes, tolerated: int, operations: FileOperations
) -> Iterator[LoadCount]:
    """Count a block that gives the content of a generation to a driver, unless its deaths are not tolerated.

    Args:
        path: The cache file.
        file: The generation.
        data_hash: Hash of the content.
        tolerated: Most deaths with which the caller loads it.
        operations: The calls to use.
    """
    count = LoadCount()
    descriptor: int | None = None
    state: State | None = None
    try:
        try:
            descriptor = operations.open_existing(file)
            count.is_alone = operations.try_lock(descriptor)
            if count.is_alone:
                state = State.open_to_write(path.parent, operations)
                count.deaths = _begin(state, path, data_hash, tolerated)
        except (OSError, SaveError) as error:
            reason = likely_cause(error) if isinstance(error, OSError) else error.reason
            count.problems.append(f"crashes of this load are not counted: {reason}")
        try:
            yield count
        finally:
            if state is not None and count.deaths <= tolerated:
                with suppress(SaveError):  # a second death in a row would be needed to give it up
                    _end(state, path, data_hash)
    finally:
        if state is not None:
            state.close()
        if descriptor is not None:
            close_quietly(descriptor, operations)


def deaths_of(path: Path, data_hash: bytes, operations: FileOperations) -> int:
    """Processes in a row that died while they loaded this content, as far as that is known."""
    with suppress(ReadError), State.open(path.parent, operations) as state, state.reading() as sql:
        return (DEATHS.stored(sql, value_name(path))[0] or {}).get(data_hash, 0)
    return 0


def forgive_load(path: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> None:
    """Forget the deaths of a cache file: nothing says that the file caused them.

    Call it when the process is gone, before the file is loaded again.

    Raises:
        SaveError: They could not be forgotten.
    """
    _forgive(path.parent, operations, lambda name: name == value_name(path))


def forgive_loads(directory: Path, operations: FileOperations = REAL_FILE_OPERATIONS) -> None:
    """As `forgive_load`, of all cache files of a directory: processes that loaded them were killed."""
    _forgive(directory, operations, lambda _: True)


def _forgive(directory: Path, operations: FileOperations, is_forgiven: Callable[[str], bool]) -> None:
    if not any(map(is_forgiven, _names(directory, operations))):
        return
    with State.open_to_write(directory, operations) as state, state.writing() as sql:
        for name in filter(is_forgiven, DEATHS.names(sql)):
            DEATHS.store(sql, name, None)


def _names(directory: Path, operations: FileOperations) -> list[str]:
    with suppress(ReadError), State.open(directory, operations) as state, state.reading() as sql:
        return DEATHS.names(sql)
    return []


def _begin(state: State, path: Path, data_hash: bytes, tolerated: int) -> int:
    with state.writing() as sql:
        counts = DEATHS.stored(sql, value_name(path))[0] or {}
        deaths = counts.pop(data_hash, 0)
        if deaths <= tolerated:
            counts[data_hash] = deaths + 1
            newest = dict(list(counts.items())[-_MOST:])
            DEATHS.store(sql, value_name(path), msgspec.msgpack.encode(newest))
        return deaths


def _end(state: State, path: Path, data_hash: bytes) -> None:
    with state.writing() as sql:
        counts = DEATHS.stored(sql, value_name(path))[0] or {}
        counts.pop(data_hash, None)
        DEATHS.store(sql, value_name(path), msgspec.msgpack.encode(counts) if counts else None)
