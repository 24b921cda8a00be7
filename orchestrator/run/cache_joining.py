"""Joins cache files of one device by its driver, and tries what comes from elsewhere before it is kept.

Guarantees: data is given to the driver only after every check that a load makes. What the driver takes
without an error and does not keep is told, and so is a merge that did nothing.
Blocking; one thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from attrs import frozen

from orchestrator.devices.device import Device, PipelineCache
from orchestrator.errors import DriverError
from orchestrator.stores.cache_file import (
    KEPT_FRACTION,
    MERGED_FRACTION,
    LoadResult,
    LoadStatus,
    read_cache_file,
)

NOT_MERGED: Final = "NOT_MERGED"
"""The status of data that the driver took and did not merge."""


@frozen
class JoinedFile:
    """What became of one cache file."""

    path: Path
    status: str  # LOADED if it was merged, else why not.
    detail: str  # The same in words.
    data_bytes: int  # Size of the driver's data in it.
    added_bytes: int  # Bytes that it added to the merged cache.


def join_files(
    device: Device, files: Iterable[Path], on_file: Callable[[Path], None] = lambda _: None
) -> tuple[list[JoinedFile], bytes]:
    """Merge cache files; what became of each, and the driver's data at the end.

    Args:
        device: The device that made them.
        files: The files; others may not be able to write them.
        on_file: Called before the driver is given one.

    Raises:
        DriverError: The driver creates no cache, or does not give its data.
    """

    def load(path: Path) -> LoadResult:
        found = read_cache_file(Path(os.path.realpath(path)), device.identity)
        if found.status is LoadStatus.LOADED:
            on_file(path)
        return found

    return join_loaded(device, ((path, load(path)) for path in files))


def join_loaded(device: Device, loaded: Iterable[tuple[Path, LoadResult]]) -> tuple[list[JoinedFile], bytes]:
    """As `join_files`, of what was read and proven already."""
    destination = device.create_pipeline_cache(name="merged")
    try:
        joined = [_add(device, destination, path, found) for path, found in loaded]
        return joined, device.pipeline_cache_data(destination).data
    finally:
        device.destroy_pipeline_cache(destination)


def _add(device: Device, destination: PipelineCache, path: Path, found: LoadResult) -> JoinedFile:
    if found.status is not LoadStatus.LOADED:
        return JoinedFile(path, found.status.value, found.detail, 0, 0)
    size = len(found.data)
    before = device.pipeline_cache_size(destination)
    try:
        with taken(device, found.data, path.name) as (source, held, problem):
            if problem:
                return JoinedFile(path, LoadStatus.DROPPED_BY_DRIVER.value, problem, size, 0)
            device.merge_pipeline_caches(destination, [source])
    except DriverError as error:
        return JoinedFile(path, LoadStatus.REJECTED_BY_DRIVER.value, str(error), size, 0)
    after = device.pipeline_cache_size(destination)
    # RADV pads what it gives, so that equal content differs by some bytes from one cache to the next.
    if after < MERGED_FRACTION * held:
        detail = f"the merge did nothing: the file holds {held} bytes, the merged cache {after}"
        return JoinedFile(path, NOT_MERGED, detail, size, 0)
    return JoinedFile(path, found.status.value, found.detail, size, max(0, after - before))


@contextmanager
def taken(device: Device, data: bytes, name: str) -> Iterator[tuple[PipelineCache, int, str]]:
    """Give a cache with this data, the bytes that the driver kept of it, and what is wrong, or "".

    Raises:
        DriverError: The driver refused the data.
    """
    cache = device.create_pipeline_cache(data, name=name)
    try:
        held = device.pipeline_cache_size(cache)
        dropped = held < KEPT_FRACTION * len(data)
        said = f"the driver was given {len(data)} bytes and kept {held}, without an error"
        yield cache, held, said if dropped else ""
    finally:
        device.destroy_pipeline_cache(cache)
