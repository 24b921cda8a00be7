"""Saving a driver's data to a cache file.

Write a cache file as its only writer, so that whatever fails, what was there or what comes is whole.

worth it? -> directory -> permissions -> lock -> leftovers of killed processes away -> the current
generation becomes the previous one, where that is its due -> temporary, fsync, rename, directory fsync

Guarantees: see atomic_file (old or new), generations (one before the current), writer_lock (one at a time).
Nothing that is worthless replaces something that may be good.

Assumptions: what is replaced is not wanted any more: the data saved here does not hold it. Several
processes that compile different pipelines use `save_merged`, which loses none.

`SavePolicy` and `SaveDecider`: when to save.

Decide when a cache is saved, so that a crash costs little and saving costs little.

new pipelines -> dirty -> due when creation has been quiet, or much is new, or it has waited for long
forced: cancel, a signal, exit -> due at once due -> started -> saved: clean, but for what was created
meanwhile -> failed: dirty as before, and not due again before a pause, unless forced

Guarantees: - Never due when nothing is new since the last save that worked; never for a cache without
content; never while a save is under way. - With creation over, every new pipeline is in a save that was due
no later than `quiet_ns` after the last one. - Pure: no clock, no I/O, no thread; times are the caller's, on
one clock that does not go back.

Assumptions: one owner, who asks after each event and at `next_due_ns`.

`save_merged`: save without losing what others saved.

Save a cache so that two processes that compiled different pipelines lose neither: under the writer's lock,
load what is there, merge it on the device with ours, read that back, and replace what is there with it.

Guarantees: - What is there is merged if a load would accept it for this device, with every check that a
load makes; if not, it is replaced, except where it could not be read: it may be good, and is left alone. -
A merge never costs: where the driver's merge gives much less than the larger of the two (some do nothing,
and say success), the larger of the two is what is kept, and the report says so. - Nothing is written where
the merge gives, byte for byte, what is there; then its name is made to last, in case the process that wrote
it failed to do so. - Where the lock is not had, nothing is done, and the report says so. - However this
ends, every cache that was made here is destroyed, and the lock is given back.

Assumptions: whoever saves has something new. It cannot be told from the data: RADV walks a hash set, so
that the same pipelines give another order and, with the padding between them, another size each time
(276,632 to 276,664 bytes for 71 pipelines). For the same reason the figures of a report are of bytes and
not of pipelines.
"""

from __future__ import annotations

import enum
import time
from pathlib import Path

from attrs import define, evolve, field, frozen, validators

from orchestrator.devices.device import Device, DeviceIdentity, PipelineCache
from orchestrator.errors import DriverError
from orchestrator.stores.cache_file import (
    DEFAULT_CAP,
    LoadResult,
    PipelineCachePrefixHeader,
    SaveReport,
    not_worth_saving,
)
from orchestrator.stores.errors import LoadStatus, SaveError, likely_cause
from orchestrator.stores.files.atomic_file import (
    REAL_FILE_OPERATIONS,
    FileOperations,
    ensure_directory,
    write_atomically,
)
from orchestrator.stores.files.generations import keep_as_previous
from orchestrator.stores.files.trust import distrust_directory
from orchestrator.stores.files.writer_lock import LOCK_WAIT_S, writer_lock
from orchestrator.stores.hashing import content_hash128
from orchestrator.stores.loading import CacheLoader
from orchestrator.stores.pruning import sweep_file


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


SECOND_NS = 10**9

# VkPipelineCacheHeaderVersionOne: a cache of no more bytes than its header holds nothing.
_HEADER_BYTES = 32


class SaveReason(enum.StrEnum):
    """Why a save is due.

    QUIET: nothing was created for a while.
    GROWTH: much is new.
    OVERDUE: what is new has waited for long, with creation never quiet.
    CANCELLED: the run was cancelled.
    SIGNAL: the process was asked to end, as by SIGTERM.
    EXIT: the run or the process ends.
    """

    QUIET = "quiet"
    GROWTH = "growth"
    OVERDUE = "overdue"
    CANCELLED = "cancelled"
    SIGNAL = "signal"
    EXIT = "exit"


FORCED = frozenset({SaveReason.CANCELLED, SaveReason.SIGNAL, SaveReason.EXIT})
"""Reasons that wait for nothing."""


def _positive(default: int) -> int:
    value: int = field(default=default, validator=validators.gt(0))
    return value


@frozen
class SavePolicy:
    """When a save is due.

    Attributes:
        quiet_ns: Time without a new pipeline after which what is new is saved.
        growth_pipelines: New pipelines at which a save is due at once.
        growth_bytes: New bytes at which a save is due at once, where the size is known.
        overdue_ns: Time after the first new pipeline after which a save is due although creation goes on.
        pause_ns: Time between the end of a save, or a failure, and the next one that is not forced.
    """

    quiet_ns: int = _positive(2 * SECOND_NS)
    growth_pipelines: int = _positive(2048)
    growth_bytes: int = _positive(32 << 20)
    overdue_ns: int = _positive(60 * SECOND_NS)
    pause_ns: int = _positive(5 * SECOND_NS)


@define(eq=False)
class SaveDecider:
    """Decides about one cache. Not thread-safe: it has one owner.

    Attributes:
        policy: When a save is due.
        new_pipelines: Pipelines that were created since the last save that worked began.
        cache_bytes: Size of the cache as last told; None where it was not.
        saving: Whether a save is under way.
    """

    policy: SavePolicy = field(factory=SavePolicy)
    new_pipelines: int = field(default=0, init=False)
    cache_bytes: int | None = field(default=None, init=False)
    saving: bool = field(default=False, init=False)
    _saved_bytes: int = field(default=_HEADER_BYTES, init=False)
    _first_ns: int | None = field(default=None, init=False)
    _last_ns: int = field(default=0, init=False)
    _paused_until_ns: int | None = field(default=None, init=False)
    _in_save: int = field(default=0, init=False)
    _bytes_in_save: int | None = field(default=None, init=False)
    _first_before_ns: int | None = field(default=None, init=False)

    def loaded(self, cache_bytes: int) -> None:
        """The cache began with what a file held: that much is not new.

        Args:
            cache_bytes: Its size.
        """
        self.cache_bytes = self._saved_bytes = cache_bytes

    def created(self, now_ns: int, pipelines: int, cache_bytes: int | None = None) -> None:
        """Pipelines were compiled into the cache. Cache hits are no news.

        Args:
            now_ns: The time.
            pipelines: How many, at least 0.
            cache_bytes: Size of the cache, where it is known.
        """
        if cache_bytes is not None:
            self.cache_bytes = cache_bytes
        if pipelines <= 0:
            return
        self.new_pipelines += pipelines
        self._last_ns = now_ns
        if self._first_ns is None:
            self._first_ns = now_ns

    @property
    def is_new(self) -> bool:
        """Whether there is something that a save would add."""
        has_content = self.cache_bytes is None or self.cache_bytes > _HEADER_BYTES
        return self.new_pipelines > 0 and has_content

    def due(self, now_ns: int) -> SaveReason | None:
        """Why a save is due now, or None.

        Args:
            now_ns: The time.
        """
        if self.saving or not self.is_new or self._first_ns is None:
            return None
        if self._paused_until_ns is not None and now_ns < self._paused_until_ns:
            return None
        if (
            self.new_pipelines >= self.policy.growth_pipelines
            or self._new_bytes() >= self.policy.growth_bytes
        ):
            return SaveReason.GROWTH
        if now_ns - self._last_ns >= self.policy.quiet_ns:
            return SaveReason.QUIET
        if now_ns - self._first_ns >= self.policy.overdue_ns:
            return SaveReason.OVERDUE
        return None

    def forced(self, reason: SaveReason) -> SaveReason | None:
        """The run is cancelled or ends: why a save is due now, or None where nothing is new.

        No pause holds it up. A save that is under way does: the caller waits for that, reports it here, and
        asks again.

        Args:
            reason: One of `FORCED`.

        Raises:
            ValueError: It is none of them.
        """
        if reason not in FORCED:
            raise ValueError(f"{reason} is no reason to force a save")
        return reason if self.is_new and not self.saving else None

    def next_due_ns(self) -> int | None:
        """When to ask `due` again if nothing happens before; None where nothing is new or a save is under way."""
        if self.saving or not self.is_new or self._first_ns is None:
            return None
        if (
            self.new_pipelines >= self.policy.growth_pipelines
            or self._new_bytes() >= self.policy.growth_bytes
        ):
            moment = self._last_ns
        else:
            moment = min(self._last_ns + self.policy.quiet_ns, self._first_ns + self.policy.overdue_ns)
        return moment if self._paused_until_ns is None else max(moment, self._paused_until_ns)

    def started(self) -> None:
        """A save begins now: what is created from here on is not in it.

        Raises:
            RuntimeError: One is under way already.
        """
        if self.saving:
            raise RuntimeError("a save is under way; wait for it, and tell whether it worked")
        self.saving = True
        self._in_save, self._bytes_in_save = self.new_pipelines, self.cache_bytes
        self._first_before_ns, self._first_ns = self._first_ns, None
        self.new_pipelines = 0

    def saved(self, now_ns: int) -> None:
        """The save that began is done: what it held is safe. Also where it found nothing that was new.

        Args:
            now_ns: The time.

        Raises:
            RuntimeError: None began.
        """
        self._end(now_ns)
        if self._bytes_in_save is not None:
            self._saved_bytes = self._bytes_in_save

    def failed(self, now_ns: int) -> None:
        """The save that began failed, or was skipped for another writer: what it held is new again.

        Args:
            now_ns: The time.

        Raises:
            RuntimeError: None began.
        """
        self._end(now_ns)
        self.new_pipelines += self._in_save
        if self._first_before_ns is not None:
            self._first_ns = self._first_before_ns

    def _end(self, now_ns: int) -> None:
        if not self.saving:
            raise RuntimeError("no save is under way")
        self.saving = False
        self._paused_until_ns = now_ns + self.policy.pause_ns

    def _new_bytes(self) -> int:
        return 0 if self.cache_bytes is None else self.cache_bytes - self._saved_bytes


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
