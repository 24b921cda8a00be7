"""Merges worker sources into the primary, and counts what was pruned and what was compiled twice.

Called after all workers have ended, in one thread, so that no cache is in use; the primary is never among the
sources (VUID-vkMergePipelineCaches-dstCache-00770). A refused merge loses no more than the sources that were
refused: they are merged one by one, and a warning says which failed. A size that the driver will not tell is
a warning.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.device import Device, PipelineSource, PreparedPipelines
from orchestrator.errors import DriverError
from orchestrator.run.records import Duplicates
from orchestrator.schedule.key_proof import trusted_keys

_BOOKKEEPING_BYTES = 1024


@frozen
class Merged:
    """Sizes and time of a merge; the part of a `MergeReport` that the device gives."""

    source_bytes: tuple[int, ...]
    before: int
    after: int
    merge_ns: int
    warnings: tuple[str, ...]
    started_ns: int = 0


def merge_into(primary: PipelineSource, sources: Sequence[PipelineSource], *, seed_bytes: int = 0) -> Merged:
    """Merge worker sources into the primary. Blocking; one thread, no source in use.

    Args:
        primary: The destination.
        sources: The worker sources.
        seed_bytes: Size of the data that each source began with, which the primary has already.

    Raises:
        ExternalSynchronizationError: A source is in use elsewhere: a caller uses the primary during a run.
    """
    warnings: list[str] = []
    source_bytes = tuple(size_of(source, warnings) for source in sources)
    before = size_of(primary, warnings)
    started = time.perf_counter_ns()
    if sources:
        try:
            primary.merge(sources)
        except DriverError as refused:
            warnings.append(f"the merge of all worker caches failed ({refused}); they were merged one by one")
            warnings.extend(_merge_one_by_one(primary, sources))
    merge_ns = time.perf_counter_ns() - started
    after = size_of(primary, warnings)
    largest = max(source_bytes, default=0)
    # Beyond its seed a warm worker source gains some bytes of bookkeeping, which the primary need not take.
    gained = largest - max(seed_bytes, primary.header_bytes)
    if gained > _BOOKKEEPING_BYTES and after < largest and after <= before:
        warnings.append(
            f"the merge was a no-op: a worker cache holds {largest} bytes, the primary has {after} after it "
            f"and had {before} before; this driver does not merge, so use mode shared"
        )
    return Merged(source_bytes, before, after, merge_ns, tuple(warnings), started)


def size_of(source: PipelineSource, warnings: list[str]) -> int:
    """Size of a source, bytes; 0 and a warning where the driver refuses: a run is not lost to a figure."""
    try:
        return source.size()
    except DriverError as refused:
        warnings.append(f"the size of {source.name} is not known and counts as 0: {refused}")
        return 0


def _merge_one_by_one(primary: PipelineSource, sources: Sequence[PipelineSource]) -> list[str]:
    warnings = []
    for source in sources:
        try:
            primary.merge([source])
        except DriverError as refused:
            warnings.append(f"{source.name} was not merged and what only it holds is lost: {refused}")
    return warnings


def pruned_bytes(merged: Merged, on_the_way: Sequence[int], header_bytes: int) -> int:
    """Payload that was there more than once, bytes.

    Args:
        merged: The last merge, with the size of the primary before the first one.
        on_the_way: Sizes of the sources of earlier merges.
        header_bytes: What each size counts beside pipelines.
    """
    payload = sum(max(0, size - header_bytes) for size in (*merged.source_bytes, *on_the_way))
    # An empty primary may be shorter than a header on some drivers; its payload is not negative.
    before, after = (max(0, size - header_bytes) for size in (merged.before, merged.after))
    return max(0, payload + before - after)


def duplicates(
    keys: npt.NDArray[np.uint64] | npt.NDArray[np.int64],
    workers: npt.NDArray[np.int32],
    driver_ns: npt.NDArray[np.uint64],
) -> Duplicates:
    """Keys that more than one worker compiled.

    Args:
        keys: Key of each compiled pipeline, as a number, shape (n,).
        workers: Who compiled it, shape (n,).
        driver_ns: What it cost, shape (n,).
    """
    if not len(keys):
        return Duplicates(0, 0)
    _, numbers = np.unique(keys, return_inverse=True)
    count = int(numbers.max()) + 1
    lowest = np.full(count, np.iinfo(np.int32).max, np.int32)
    highest = np.full(count, -1, np.int32)
    np.minimum.at(lowest, numbers, workers)
    np.maximum.at(highest, numbers, workers)
    twice = lowest != highest
    # The first of each key in the order of the set counts as the one that was needed.
    _, first = np.unique(numbers, return_index=True)
    again = twice[numbers]
    again[first] = False
    return Duplicates(int(twice.sum()), int(driver_ns[again].sum()))


def duplicate_pipeline_keys(
    device: Device,
    prepared: PreparedPipelines,
    indices: npt.NDArray[np.int32],
    workers: npt.NDArray[np.int32],
    driver_ns: npt.NDArray[np.uint64],
) -> Duplicates:
    """As `duplicates`, by the driver's own key of every pipeline without libraries.

    RADV (seen with Mesa 25.0.7) dies of SIGSEGV in vkGetPipelineKeyKHR where a graphics pipeline links
    libraries; linking compiles little, so such pipelines count as like no other.

    Args:
        device: A device with pipeline binaries.
        prepared: The pipelines.
        indices: Those that were compiled, shape (n,).
        workers: Who compiled each, shape (n,).
        driver_ns: What each cost, shape (n,).

    Raises:
        DeviceError: The device has no pipeline binaries.
    """
    image = prepared.image
    alone = np.diff(image.library_slot_start)[indices] == 0
    indices, workers, driver_ns = indices[alone], workers[alone], driver_ns[alone]
    keys: list[bytes | None] = [None] * len(image)
    for index, key in zip(indices.tolist(), device.pipeline_keys(prepared, indices), strict=True):
        keys[index] = key
    trusted = trusted_keys(image, keys)
    numbers: dict[bytes, int] = {}
    # A pipeline without a key that is worth something is like no other.
    known = [
        numbers.setdefault(key, len(numbers)) if (key := trusted[index]) is not None else -1 - place
        for place, index in enumerate(indices.tolist())
    ]
    return duplicates(np.array(known, np.int64), workers, driver_ns)
