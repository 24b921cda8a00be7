"""The sources of a run: made before the workers by its topology, merged, destroyed.

Each worker creates pipelines with its `Creator`. In a rolling merge, sources are merged while workers run:

    worker   current ──(due)──> rotated out, and a fresh one is current
    merger                      rotated out ──> merge ──> primary ──> on_merged

Guarantees: a source is the current one of one worker, or rotated out. It moves between two batches and under
a lock, so two threads never use it. Sources that were rotated out and not merged are merged at the barrier.
Only the run merges into the primary.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, field

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    NO_SOURCE,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CreationBatch,
    Device,
    PipelineCache,
    PipelineSource,
    PreparedPipelines,
    destroyed_on_failure,
)
from orchestrator.devices.modes import CacheMode
from orchestrator.errors import DeviceError, DriverError
from orchestrator.run.binaries import HeldPipelines
from orchestrator.run.options import NO_WORKER_CACHES, MergePolicy, sooner_ns
from orchestrator.run.records import BinariesRecord, MergeReport, RollingReport
from orchestrator.schedule.jobs import Int32s

BOOKKEEPING_BYTES: Final = 1024
"""By so much a cache may grow in which nothing is new."""
_PADDING_BYTES: Final = 64  # by which equal content differs from cache to cache
_REMIND_S: Final = 0.25
_AGAIN_AT_ONCE: Final = 16


class CacheMerge(msgspec.Struct, frozen=True):
    """One merge of worker sources into the primary: at the barrier, or while workers run."""

    source_bytes: tuple[int, ...]  # size of each source
    primary_bytes: int  # of the primary after it
    merge_ns: int
    pipelines: int = 0  # compiled into the sources, where that is known
    primary_bytes_before: int = 0
    started_ns: int = 0
    unmerged: int = 0  # sources that the driver did not merge
    why: str = ""  # why it did not merge the last of these


MergedHook = Callable[[PipelineSource, CacheMerge], None]
"""Called after a rolling merge with the primary, in a thread of the merger. It may read it, and block.

Where no other merge follows it is called some times a second, with the last one and no pipelines; in mode
SHARED with what workers compiled since the last call.

It must not merge or destroy it. What it raises ends the run.
"""


def merge_into(
    primary: PipelineSource, sources: Sequence[PipelineSource], *, seed_bytes: int = 0
) -> CacheMerge:
    """Merge worker sources, which began with `seed_bytes` of the primary, into it. Blocking; none in use.

    The primary is not among the sources (VUID-vkMergePipelineCaches-dstCache-00770). Drivers refuse, say
    success and merge nothing, or the first of several sources only. So what is there afterwards is compared
    with the sizes before, and if it is less, which it is too where sources hold the same, they are merged one
    by one.

    Raises:
        ExternalSynchronizationError: A source is in use elsewhere: a caller uses the primary during a run.
    """
    source_bytes = tuple(map(_size_of, sources))
    before = after = _size_of(primary)
    began_with = max(seed_bytes, primary.header_bytes)
    slack = BOOKKEEPING_BYTES if seed_bytes else _PADDING_BYTES * len(sources)
    gained = [max(0, size - began_with) for size in source_bytes]
    unmerged, why, merge_ns = 0, "", 0
    started_ns = time.perf_counter_ns()
    if sources:
        why = _refusal_of(primary, sources)
        merge_ns = time.perf_counter_ns() - started_ns
        after = _size_of(primary)
    if why or after + slack < before + sum(gained):
        for source, size, own in zip(sources, source_bytes, gained, strict=True):
            refusal = _refusal_of(primary, [source])
            after = _size_of(primary)
            if own > slack and (refusal or after + slack < size):
                unmerged += 1
                why = refusal or f"it said success, and of {size} bytes the merged cache has {after}"
        merge_ns = time.perf_counter_ns() - started_ns
    return CacheMerge(
        source_bytes,
        after,
        merge_ns,
        primary_bytes_before=before,
        started_ns=started_ns,
        unmerged=unmerged,
        why=why,
    )


def _refusal_of(primary: PipelineSource, sources: Sequence[PipelineSource]) -> str:
    try:
        primary.merge(sources)
    except DriverError as refused:
        return str(refused)
    return ""


def _size_of(source: PipelineSource) -> int:
    """Size of a source, bytes; 0 where the driver refuses: a run is not lost to a figure."""
    with suppress(DriverError):
        return source.size()
    return 0


def pruned_bytes(source_bytes: Sequence[int], before: int, after: int, header_bytes: int) -> int:
    """Payload that the sources and the primary held more than once, bytes."""
    # An empty primary may be shorter than a header on some drivers; its payload is not negative.
    payload = [max(0, size - header_bytes) for size in (*source_bytes, before)]
    return max(0, sum(payload) - max(0, after - header_bytes))


# --- how a worker creates its pipelines


@define(eq=False)
class Creator:
    """Creates a worker's batches, all with one source. Belongs to that worker.

    A batch that comes out has one result a pipeline, whatever number of calls it took, and a pipeline is
    compiled at most once for it. Pipelines that were kept are not lost where a second call fails.
    """

    device: Device
    prepared: PreparedPipelines
    keep: bool
    source: PipelineSource
    looks_up: bool = field(default=False, kw_only=True)  # create only what the source holds
    compiled: int = field(default=0, init=False)  # pipelines that it compiled into the source

    def create(self, indices: Int32s) -> CreationBatch:
        """Create a batch, see `Device.create_pipelines`."""
        batch = self.device.create_pipelines(
            self.prepared,
            indices,
            source=self.source,
            keep=self.keep,
            fail_on_compile_required=self.looks_up,
        )
        if not batch.all_hits:
            compiled = batch.results == SUCCESS
            if self.device.features.creation_feedback:
                # Without feedback where the driver gives some, a pipeline linked libraries and compiled
                # nothing.
                flags = batch.feedback_flags & np.uint32(FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT)
                compiled &= flags == FEEDBACK_VALID
            self.compiled += int(np.count_nonzero(compiled))
        return batch

    def missed(self, indices: Int32s, batch: CreationBatch) -> npt.NDArray[np.bool_] | None:
        """Which of a batch were not found without their code, shape (k,); None for none."""
        identified = self.prepared.identified
        if batch.all_created or identified is None:
            return None
        found: npt.NDArray[np.bool_] = batch.results == PIPELINE_COMPILE_REQUIRED
        found &= identified.lacking[indices]
        return found if found.any() else None

    def between_batches(self) -> None:
        """A batch has ended, no other has begun, and the next one may be created from another source."""

    def due_in_s(self) -> float:
        """Seconds until `between_batches` is to be called again, if no batch begins; infinity: never."""
        return math.inf


@define(eq=False)
class RotatingCreator(Creator):
    """Rotates its source out between two batches; in two levels it looks up in the primary first."""

    caches: RunCaches
    found: Creator | None
    _since_ns: int = field(factory=time.perf_counter_ns)

    def create(self, indices: Int32s) -> CreationBatch:
        """Create a batch."""
        # An empty primary is not worth a call: in a cold run it is empty until the first merge.
        if self.found is None or not self.caches.primary_is_filled:
            return super().create(indices)
        with self.caches.guard.look_up():
            batch = self.found.create(indices)
        missing = np.flatnonzero(batch.results == PIPELINE_COMPILE_REQUIRED)
        if missing.size:
            # The call is made again pipeline by pipeline, or the run ends: nobody will learn of these.
            with destroyed_on_failure(self.device, batch):
                made = super().create(indices[missing])
            looked_up_ns = batch.durations_ns[missing]
            batch.put(missing, made)
            batch.durations_ns[missing] += looked_up_ns
        return batch

    def between_batches(self) -> None:
        """Rotate the source, if that is due. One without anything new stays: a warm run merges nothing."""
        if self.due_in_s() > 0:
            return
        fresh = self.caches.exchange(self.source, self.compiled)
        if fresh is not self.source:
            self.source, self._since_ns, self.compiled = fresh, time.perf_counter_ns(), 0

    def due_in_s(self) -> float:
        """Seconds until the source has the age at which it is rotated."""
        if not (self.compiled and self.caches.rotates) or self.caches.refused:
            return math.inf
        now_ns = time.perf_counter_ns()
        return max(0.0, (self._since_ns + self.caches.rotation_age_ns(now_ns) - now_ns) / 1e9)


# --- the sources of a run


class PrimaryGuard:
    """Lets look-ups in the primary run beside each other, and a merge alone. Thread-safe.

    Where it is not `needed` it keeps nobody waiting: the driver does it, or nobody looks anything up.
    """

    def __init__(self, *, needed: bool) -> None:
        self.needed = needed
        self._changed = threading.Condition()
        self._looking = 0
        self._merging = False

    @contextmanager
    def look_up(self) -> Iterator[None]:
        """Use the primary beside other look-ups. A merge that waits goes first, or it would wait for ever."""
        with self._changed:
            self._changed.wait_for(lambda: not (self.needed and self._merging))
            self._looking += 1
        try:
            yield
        finally:
            with self._changed:
                self._looking -= 1
                self._changed.notify_all()

    @contextmanager
    def merge(self) -> Iterator[None]:
        """Use the primary alone. One merge at a time."""
        with self._changed:
            self._merging = True
            self._changed.wait_for(lambda: not (self.needed and self._looking))
        try:
            yield
        finally:
            with self._changed:
                self._merging = False
                self._changed.notify_all()


@define(eq=False)
class RunCaches:
    """The sources of a run. One blocking method at a time.

    `exchange`, `rotation_age_ns` and the attributes are for any worker, `serve` for trio beside workers, the
    other methods for the run while there are no workers.

    Attributes:
        serves: Whether `serve` has anything to do.
    """

    device: Device
    worker_count: int
    mode: CacheMode
    policy: MergePolicy
    keep: bool
    expect_hits: bool  # whether compiling is forbidden
    primary: PipelineSource | None  # the caller's, or None; after `open` always one, `NO_SOURCE` in mode NONE
    on_merged: MergedHook | None
    token: trio.lowlevel.TrioToken
    creators: list[Creator] = field(factory=list, init=False)  # one a worker, after `open`
    notes: list[str] = field(factory=list, init=False)
    open_ns: int = field(default=0, init=False)
    read_back_ns: int = field(default=0, init=False)
    # the data of a primary that was made here, after `read_back`
    data: bytes | None = field(default=None, init=False)
    guard: PrimaryGuard = field(init=False)  # keeps look-ups in the primary and merges apart
    primary_is_filled: bool = field(default=False, init=False)  # whether a look-up may find something
    refused: str = field(default="", init=False)  # why workers keep their sources, or ""
    _own_primary: PipelineSource | None = field(default=None, init=False)
    _make_fresh: Callable[[bytes, str], PipelineSource] = field(init=False)
    _seed: bytes = field(default=b"", init=False, repr=False)
    _seed_bytes: int = field(default=0, init=False)
    _primary_bytes: int = field(default=0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _rotated: list[tuple[PipelineSource, int]] = field(factory=list, init=False)
    _merges: list[CacheMerge] = field(factory=list, init=False)  # while workers ran
    _merge: CacheMerge | None = field(default=None, init=False)  # at the barrier
    _began_ns: int = field(factory=time.perf_counter_ns, init=False)
    _made: int = field(default=0, init=False)
    _told: int = field(default=0, init=False)  # pipelines that the hook knows of in mode SHARED
    _lot: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    # Sources whose pipelines the primary lacks, and what was compiled again for that.
    unmerged: int = field(default=0, init=False)
    _again: int = field(default=0, init=False)

    @property
    def rotates(self) -> bool:
        """Whether workers rotate their sources."""
        return self.policy.rolling and self.mode not in NO_WORKER_CACHES

    @property
    def serves(self) -> bool:
        """Whether `serve` has anything to do while workers run."""
        return self.rotates or (self.mode is CacheMode.SHARED and self.on_merged is not None)

    @property
    def _looks_up(self) -> bool:
        return self.mode is CacheMode.TWO_LEVEL and self.device.features.compile_required

    @property
    def _wants_flags(self) -> bool:
        return self.mode is not CacheMode.PER_WORKER_INTERNAL

    @property
    def _worker_sources(self) -> list[PipelineSource]:
        return [] if self.mode in NO_WORKER_CACHES else [each.source for each in self.creators]

    # --- before the workers

    def open(self, primary_data: bytes, prepared: PreparedPipelines) -> None:
        """Make the sources; a primary that is made here begins with `primary_data`. Blocking.

        Raises:
            DriverError: The driver refused an empty one.
            DeviceError: The device has no pipeline binaries, in mode BINARIES, or the primary is another's.
        """
        started = time.perf_counter_ns()
        if self.mode is CacheMode.NONE:
            self.primary = self.primary or NO_SOURCE  # or one that asks for statistics
        elif self.primary is None:
            self.primary = self._own_primary = self._create_primary(primary_data)
        elif isinstance(self.primary, PipelineCache) and self.primary.device is not self.device:
            raise DeviceError(f"the primary of this run: {self.primary.name!r} belongs to another device")
        self._primary_bytes = _size_of(self.primary)
        self.primary_is_filled = self._primary_bytes > self.primary.empty_bytes
        self.guard = PrimaryGuard(needed=self._looks_up and not self.primary.internally_synchronized_merge)
        if isinstance(self.primary, BinarySource):
            self.primary.pull_in(prepared)
        creator = partial(Creator, self.device, prepared, self.keep, looks_up=self.expect_hits)
        if self.mode in NO_WORKER_CACHES:
            self.creators += [creator(self.primary) for _ in range(self.worker_count)]
        else:
            self._prepare_worker_sources(self.primary)
            found = creator(self.primary, looks_up=True) if self._looks_up else None
            for number in range(self.worker_count):
                source = self._make(self._make_fresh, self._seed, f"worker {number}")
                self.creators.append(
                    RotatingCreator(self.device, prepared, self.keep, source, self, found)
                    if self.rotates or found is not None
                    else creator(source)
                )
            self._note_flags()
        self.open_ns = time.perf_counter_ns() - started

    def _create_primary(self, data: bytes) -> PipelineSource:
        device = self.device
        if self.mode is CacheMode.BINARIES:
            return HeldPipelines.of(device)
        merges = self._looks_up and device.features.internally_synchronized_merge
        return self._make(
            lambda data, name: device.create_pipeline_cache(
                data, internally_synchronized_merge=merges, name=name
            ),
            data,
            "primary",
        )

    def _make(self, make: Callable[[bytes, str], PipelineSource], data: bytes, name: str) -> PipelineSource:
        try:
            return make(data, name)
        except DriverError as refused:
            if not data:
                raise
            self.notes.append(f"{name}: the driver refused the initial data ({refused}); it starts empty")
            return make(b"", name)

    def _prepare_worker_sources(self, primary: PipelineSource) -> None:
        """Decide what the sources of workers begin with, and how they are made."""
        features = self.device.features
        if self.mode is CacheMode.TWO_LEVEL and not features.compile_required:
            self.notes.append(
                "the device cannot forbid compiling (FAIL_ON_PIPELINE_COMPILE_REQUIRED), so nothing can be "
                "looked up in the primary: worker caches start with what it holds, as in mode per-worker"
            )
        if self.primary_is_filled and not self._looks_up:
            self._seed = self._read(primary) or b""
        self._seed_bytes = len(self._seed)
        flagged = self._wants_flags and features.externally_synchronized_caches
        self._make_fresh = partial(primary.for_worker, externally_synchronized=flagged)

    def _note_flags(self) -> None:
        if not self._wants_flags or self._worker_sources[0].externally_synchronized:
            return
        why = (
            "the driver refuses externally synchronized caches, and not others"
            if self.device.features.externally_synchronized_caches
            else "the device is open without externally synchronized caches (pipelineCreationCacheControl). "
            "`orchestrator devices` says whether it has them, `doctor --keys` whether they may be used"
        )
        self.notes.append(f"worker caches are internally synchronized, as in mode per-worker-internal: {why}")

    def _read(self, source: PipelineSource) -> bytes | None:
        try:
            return source.data()
        except DriverError as refused:
            self.notes.append(f"{source.name} could not be read back: {refused}")
            return None

    # --- while workers run

    def rotation_age_ns(self, now_ns: int) -> int:
        """The age at which a source is rotated."""
        return sooner_ns(self.policy.age_ns, self.policy.age_share, now_ns - self._began_ns)

    def exchange(self, source: PipelineSource, compiled: int) -> PipelineSource:
        """Rotate a worker's source out; returns a fresh one, or the same where the driver refuses another.

        A fresh one begins with the data that the first ones began with, not with what the primary has gained
        since: a scheduler sends no pipeline twice, so nobody asks for what others compiled.
        """
        if self.refused:
            return source
        with self._lock:
            self._made += 1
            name = f"fresh {self._made}"
        try:
            fresh = self._make_fresh(self._seed, name)
        except DriverError as refused:
            self.refused = f"no more fresh caches for workers, which keep theirs: {refused}"
            return source
        with self._lock:
            self._rotated.append((source, compiled))
        self.token.run_sync_soon(self._lot.unpark_all, idempotent=True)
        return fresh

    async def serve(self) -> None:
        """Merge, and call the hook, until cancelled between two merges.

        Raises:
            ExternalSynchronizationError: The caller merges into the primary, or uses it in a way that
                excludes merging.
        """
        limiter = trio.CapacityLimiter(1)
        while True:
            # From this look to the parking there is no checkpoint, and a worker unparks from the trio thread.
            while not self._rotated:
                with trio.move_on_after(_REMIND_S) as waited:
                    await self._lot.park()
                if waited.cancelled_caught:
                    # What the hook left for later may be due, and the next merge may be minutes away.
                    await trio.to_thread.run_sync(self._remind, limiter=limiter)
            await trio.to_thread.run_sync(self._merge_and_call_hook, limiter=limiter)

    def _merge_and_call_hook(self) -> None:
        self._merge_rotated()
        self._call_hook(self._merges[-1])

    def _remind(self) -> None:
        if self._merges:
            self._call_hook(msgspec.structs.replace(self._merges[-1], pipelines=0))
        elif self.mode is CacheMode.SHARED:
            before, self._told = self._told, sum(each.compiled for each in self.creators)
            self._call_hook(CacheMerge((), 0, 0, self._told - before))

    def _call_hook(self, merge: CacheMerge) -> None:
        if self.on_merged is not None and self.primary is not None:
            self.on_merged(self.primary, merge)

    def _merge_rotated(self) -> None:
        with self._lock:
            merging = list(self._rotated)
        if not merging or self.primary is None:
            return
        sources = [source for source, _ in merging]
        with self.guard.merge():
            merge = merge_into(self.primary, sources, seed_bytes=self._seed_bytes)
        if merge.unmerged:
            self.refused = f"worker caches are merged at the end: the driver did not merge one ({merge.why})"
        compiled = sum(count for _, count in merging)
        self._merges.append(msgspec.structs.replace(merge, pipelines=compiled))
        self.primary_is_filled |= merge.primary_bytes > self.primary.empty_bytes
        with self._lock:
            del self._rotated[: len(merging)]
        for source in sources:
            source.destroy()

    @property
    def _rotated_bytes(self) -> tuple[int, ...]:
        """Size of each source that was merged while workers ran."""
        return tuple(size for each in self._merges for size in each.source_bytes)

    # --- after the barrier

    def merge(self) -> None:
        """Merge what workers compiled into the primary. Blocking; no worker is left.

        Raises:
            ExternalSynchronizationError: The caller uses the primary.
        """
        if self.primary is None or not self.primary.keeps:
            return
        began_ns = time.perf_counter_ns()
        self._merge_rotated()
        rotated_ns = time.perf_counter_ns() - began_ns
        if isinstance(self.primary, BinarySource):
            self.primary.settle()
        merge = merge_into(self.primary, self._worker_sources, seed_bytes=self._seed_bytes)
        # The figures are those of all merges of the run.
        self._merge = msgspec.structs.replace(
            merge,
            primary_bytes_before=self._primary_bytes,
            merge_ns=merge.merge_ns + rotated_ns if self._worker_sources else 0,
        )
        self.unmerged = sum(each.unmerged for each in self._all_merges)

    def compile_again(self, indices: Int32s, stopped: Callable[[], bool]) -> None:
        """Compile in the primary what it seems to lack, unless the run is stopped. Blocking."""
        assert self.primary is not None  # noqa: S101 - it was merged into
        assert self._merge is not None  # noqa: S101
        creator = Creator(self.device, self.creators[0].prepared, False, self.primary)
        hits = kept = 0
        for first in range(0, len(indices), _AGAIN_AT_ONCE):
            if stopped():
                break
            with suppress(DriverError):
                batch = creator.create(indices[first : first + _AGAIN_AT_ONCE])
                hits += int(np.count_nonzero(batch.feedback_flags & FEEDBACK_APPLICATION_CACHE_HIT))
                kept += int(np.count_nonzero(batch.results == SUCCESS))
        if kept == len(indices):
            size = _size_of(self.primary)
            # What a driver never finds, though it is there, is no loss.
            self._again = kept - hits if size > self._merge.primary_bytes or not size else 0
            self._merge = msgspec.structs.replace(self._merge, primary_bytes=size)
            self.unmerged = 0

    @property
    def _all_merges(self) -> list[CacheMerge]:
        return [*self._merges, *([] if self._merge is None else [self._merge])]

    @property
    def _keeps_nothing(self) -> bool:
        """Whether all caches hold only their header."""
        primary = self.primary
        sizes = [size for each in self._all_merges for size in (each.primary_bytes, *each.source_bytes)]
        return primary is not None and 0 < max(sizes, default=0) <= primary.empty_bytes

    def read_back(self) -> None:
        """Read the data of a primary that was made here. Blocking."""
        if self._own_primary is not None and self.mode is not CacheMode.BINARIES:
            started = time.perf_counter_ns()
            self.data = self._read(self._own_primary)
            self.read_back_ns = time.perf_counter_ns() - started

    def destroy(self) -> None:
        """Destroy what was made here. Blocking."""
        own = [] if self._own_primary is None else [self._own_primary]
        for source in (*(each for each, _ in self._rotated), *self._worker_sources, *own):
            source.destroy()
        self._seed = b""  # workers, which refer to this and themselves, wait for the garbage collector

    def binaries(self) -> BinariesRecord | None:
        """The use of binaries; None in other modes. Also takes its notes."""
        if not isinstance(self.primary, HeldPipelines):
            return None
        self.notes += [each for each in self.primary.notes if each not in self.notes]
        return self.primary.record()

    def merge_report(self, compiled: int) -> MergeReport | None:
        """The merge of a run that compiled so many pipelines; None in mode NONE."""
        merge, primary = self._merge, self.primary
        if merge is None or primary is None:
            return None
        every = (*merge.source_bytes, *self._rotated_bytes)
        warnings = [*filter(None, [self.refused]), *self._loss_warnings()]
        if compiled and self.mode is not CacheMode.BINARIES and self._keeps_nothing:
            warnings.append(
                f"the driver's cache keeps nothing: all caches hold only their header (pipelines compiled: "
                f"{compiled}); saving it will not make the next run faster"
            )
        sizes = merge.primary_bytes_before, merge.primary_bytes
        return MergeReport(
            source_bytes=merge.source_bytes,
            primary_bytes_before=merge.primary_bytes_before,
            primary_bytes_after=merge.primary_bytes,
            pruned_bytes=pruned_bytes(every, *sizes, primary.header_bytes) if merge.source_bytes else 0,
            merge_ns=merge.merge_ns,
            warnings=tuple(warnings),
            rolling=self._rolling_report(),
            unmerged=self.unmerged,
            started_ns=merge.started_ns,
        )

    def _rolling_report(self) -> RollingReport | None:
        if not any(isinstance(each, RotatingCreator) for each in self.creators):
            return None
        return RollingReport(
            folds=len(self._merges),
            caches=len(self._rotated_bytes),
            pipelines=sum(each.pipelines for each in self._merges),
            source_bytes=sum(self._rotated_bytes),
            merge_ns=sum(each.merge_ns for each in self._merges),
        )

    def _loss_warnings(self) -> list[str]:
        why = next((each.why for each in self._all_merges if each.unmerged), "")
        if self.unmerged:
            return [
                f"the driver did not merge all worker caches, and what only these hold is lost: {why}; use "
                "mode shared, which needs no merge"
            ]
        if self._again:
            return [
                f"the driver did not merge all worker caches ({why}), so {self._again} pipelines were "
                "compiled again, into one cache; use mode shared, which needs no merge"
            ]
        return []
