# Purpose: save a cache so that two processes that compiled different pipelines lose neither: under the writer's
# lock, load what is there, merge it on the device with ours, read that back, and replace what is there with it.
#
# Guarantees:
# - What is there is merged if a load would accept it for this device, with every check that a load makes; if not,
#   it is replaced, except where it could not be read: it may be good, and is left alone.
# - A merge never costs: where the driver's merge gives much less than the larger of the two (some do nothing, and
#   say success), the larger of the two is what is kept, and the report says so.
# - Nothing is written where the merge gives, byte for byte, what is there; then its name is made to last, in case
#   the process that wrote it failed to do so.
# - Where the lock is not had, nothing is done, and the report says so.
# - However this ends, every cache that was made here is destroyed, and the lock is given back.
#
# Assumptions: whoever saves has something new. It cannot be told from the data: RADV walks a hash set, so that the
# same pipelines give another order and, with the padding between them, another size each time (276,632 to 276,664
# bytes for 71 pipelines). For the same reason the figures of a report are of bytes and not of pipelines.
"""`save_merged`: save without losing what others saved."""

from __future__ import annotations

import time
from pathlib import Path

from attrs import define, evolve, field, frozen

from orchestrator.devices.device import Device, PipelineCache
from orchestrator.errors import DriverError
from orchestrator.stores.cache_content import DEFAULT_CAP, LoadResult, not_worth_saving
from orchestrator.stores.errors import SaveError, likely_cause
from orchestrator.stores.file_operations import REAL_FILE_OPERATIONS, FileOperations
from orchestrator.stores.generations import keep_as_previous
from orchestrator.stores.hashing import content_hash128
from orchestrator.stores.load_status import LoadStatus
from orchestrator.stores.loading import CacheLoader
from orchestrator.stores.saving import locked_out, make_ready, replace_current
from orchestrator.stores.sweeping import sweep_file
from orchestrator.stores.writer_lock import LOCK_WAIT_S, writer_lock

# A merge that gives less than this of the larger of the two has lost something: more than padding can account for.
_MERGED_FRACTION = 0.9

# What is there may be good, and could not be looked at: it is not replaced by something that lacks it.
_NOT_REPLACED = frozenset({LoadStatus.UNREADABLE, LoadStatus.TOO_LARGE})


@frozen
class MergedSaveReport:
    """What became of a save that merges.

    Attributes:
        path: The file.
        saved_bytes: Bytes of the file that was written, header included; 0 where it was skipped.
        skipped: Why nothing was written, or None. A file that was there before is then unchanged.
        found: What became of the file that was there when it was loaded; None where it did not come to that.
        our_bytes: Size of our data.
        bytes_before: Size of what was there, as the driver holds it; 0 where there was nothing to merge.
        bytes_after: Size of what is there now; 0 where nothing is.
        note: What a user should know, such as a driver that does not merge; empty where all is well.
        leftovers: Files of processes that were killed, which could not be removed.
        locked_out: Whether it was skipped because another process did not finish saving in time: worth another try.
        data_hash: xxh3_128 of the data that was written, as a later `found` gives it; empty where none was.
    """

    path: Path
    saved_bytes: int
    skipped: str | None = None
    found: LoadResult | None = None
    our_bytes: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    note: str = ""
    leftovers: tuple[Path, ...] = ()
    locked_out: bool = False
    data_hash: bytes = field(default=b"", repr=False, eq=False)

    @property
    def added_bytes(self) -> int:
        """Bytes of driver's data that this save added to what was there."""
        return max(0, self.bytes_after - self.bytes_before)


def save_merged(
    device: Device,
    path: Path,
    ours: PipelineCache | bytes,
    *,
    cap: int = DEFAULT_CAP,
    relax_driver_version: bool = False,
    tolerated_crashes: int = 0,
    lock_wait_s: float = LOCK_WAIT_S,
    operations: FileOperations = REAL_FILE_OPERATIONS,
) -> MergedSaveReport:
    """Save a cache together with what other processes saved meanwhile.

    Blocking, and as long as the driver takes to merge; one thread. A cache that is externally synchronized must
    not be in use.

    Args:
        device: The device; both caches are of it.
        path: The file, as from `cache_path`.
        ours: The cache to save, which stays the caller's and is not changed, or its data.
        cap: Bytes that the file may have.
        relax_driver_version: See `read_cache_file`.
        tolerated_crashes: See `load_into_cache`.
        lock_wait_s: How long to wait for another writer.
        operations: The calls to use.

    Returns:
        What was written and what that added, or why nothing was.

    Raises:
        SaveError: It could not be written. The old file is unchanged, unless `SaveError.replaced`.
        DriverError: The driver would not give our data, or create a cache at all.
        ExternalSynchronizationError: Our cache is in use.
    """
    data = ours if isinstance(ours, bytes) else device.pipeline_cache_data(ours).data
    reason = not_worth_saving(device.identity, data, cap) or make_ready(path, operations)
    if reason is not None:
        return MergedSaveReport(path, 0, reason, our_bytes=len(data))
    with writer_lock(path, operations, wait_s=lock_wait_s) as held:
        if not held:
            return MergedSaveReport(path, 0, locked_out(lock_wait_s), our_bytes=len(data), locked_out=True)
        swept = sweep_file(path, time.time_ns(), operations)
        saver = _MergedSave(device, path, ours, data, cap, operations)
        loader = CacheLoader(
            device=device,
            path=path,
            create=lambda initial_data: _create(device, initial_data, "what is there"),
            cap=cap,
            relax_driver_version=relax_driver_version,
            tolerated_crashes=tolerated_crashes,
            operations=operations,
            has_lock=True,
        )
        report = saver.save(loader)
    return evolve(report, leftovers=swept.failed + report.leftovers)


def _create(device: Device, initial_data: bytes, name: str) -> PipelineCache:
    # One thread has it, so that the driver need not lock it.
    flagged = device.features.externally_synchronized_caches
    return device.create_pipeline_cache(initial_data, externally_synchronized=flagged, name=name)


@define(eq=False)
class _MergedSave:
    """One save, under the lock.

    Attributes:
        device: The device.
        path: The file.
        ours: The cache to save, or its data.
        data: Its data.
        cap: Bytes that the file may have.
        operations: The calls to use.
    """

    device: Device
    path: Path
    ours: PipelineCache | bytes
    data: bytes
    cap: int
    operations: FileOperations

    def save(self, loader: CacheLoader) -> MergedSaveReport:
        """Load what is there, merge, and write what came of it."""
        cache, found = loader.load()
        report = MergedSaveReport(self.path, 0, found=evolve(found, data=b""), our_bytes=len(self.data))
        if cache is None:
            kept = _not_replaced(found)
            if kept is not None:
                return evolve(report, skipped=kept)
            return self._write(report, self.data, proven=False)
        try:
            kept = _not_replaced(found)
            if kept is not None:
                return evolve(report, skipped=kept)
            if found.status is not LoadStatus.LOADED:
                return self._write(report, self.data, proven=False)
            held = self.device.pipeline_cache_size(cache)
            merged, note = self._merge(cache)
        finally:
            self.device.destroy_pipeline_cache(cache)
        report = evolve(report, bytes_before=held, bytes_after=held)
        current = found.instead_of is None
        if len(merged) < _MERGED_FRACTION * max(held, len(self.data)):
            report = evolve(
                report,
                note=f"{note or 'this driver does not merge'}; of what was there ({held} bytes) and our cache "
                f"({len(self.data)} bytes) the larger one is kept",
            )
            merged = self.data if len(self.data) > held else found.data
        nothing_new = merged == found.data
        if nothing_new and current:
            return self._skip(report)
        return self._write(report, merged, proven=current)

    def _merge(self, theirs: PipelineCache) -> tuple[bytes, str]:
        """Merge into a fresh cache; returns its data, empty where the driver refused, and why."""
        made: list[PipelineCache] = []
        try:
            made.append(_create(self.device, b"", "merged"))
            ours = self.ours
            if isinstance(ours, bytes):
                ours = _create(self.device, ours, "ours")
                made.append(ours)
            self.device.merge_pipeline_caches(made[0], [theirs, ours])
            return self.device.pipeline_cache_data(made[0]).data, ""
        except DriverError as error:
            return b"", f"the driver would not merge: {error}"
        finally:
            for one in made:
                self.device.destroy_pipeline_cache(one)

    def _skip(self, report: MergedSaveReport) -> MergedSaveReport:
        try:
            self.operations.sync_directory(self.path.parent)
        except OSError as error:
            raise SaveError(self.path, "fsync of the directory", likely_cause(error)) from error
        return evolve(report, skipped="nothing is new: what is there holds all of it")

    def _write(self, report: MergedSaveReport, data: bytes, *, proven: bool) -> MergedSaveReport:
        reason = not_worth_saving(self.device.identity, data, self.cap)
        if reason is not None:
            return evolve(report, skipped=reason)
        leftovers = keep_as_previous(self.path, self.cap, self.operations, proven=True) if proven else ()
        written = replace_current(self.path, self.device.identity, data, self.operations)
        return evolve(
            report,
            saved_bytes=written,
            bytes_after=len(data),
            leftovers=leftovers,
            data_hash=content_hash128(data),
        )


def _not_replaced(found: LoadResult) -> str | None:
    """Why what is there is not replaced, or None: one of its generations may be good, and could not be looked at."""
    for one in (found, found.instead_of, found.previous):
        if one is not None and one.status in _NOT_REPLACED:
            return f"what is there is not replaced, since it may be good: {one.status}: {one.detail}"
    return None
