"""Rolling merge: `MergePolicy`, `Rotation`, and what it did.

Merging without stopping the world. A worker whose cache has gathered enough retires it between two batches
and goes on with a fresh one; one merger folds the retired caches into the primary, which can be read and
saved in between.

worker   current ──(enough, and a spare is there)──> retired ─┐        fresh <── spares merger
fold <─────────────┘  ──> primary ──> on_merged ──> make spares

Guarantees: - A cache is at one place: current of one worker, retired, or spare. Between two it moves under
a lock, so that it is never used by two threads; a fold takes retired caches only. - A worker waits for
nothing here: fresh caches are made beforehand by the merger, and where none is ready the worker goes on
with what it has. Its pause is a look at the thresholds and, when it retires, one lock. It makes no driver
call, not even for the size of its cache: after one it would have to wait for the interpreter. - Nothing is
lost: what is retired and not folded when the run ends is folded then (`finish`), and a failed fold leaves
the caches to be destroyed by the run.

How fresh caches start: with the data that worker caches start with, not with what the primary has gained
meanwhile: it is read once, and a scheduler sends no pipeline twice, so that what others compiled is not
asked for again.

Assumptions: nobody but the merger merges into the primary. Look-ups in it go through `PrimaryGuard`.

Creators: how a worker turns a batch into pipelines.

How a worker creates a batch under each topology: with one cache, or by a look-up in the primary first and
compiling what it does not hold in a cache of its own.

one cache    create(batch, cache) two levels   create(batch, primary, must not compile) ─> the misses:
create(misses, own cache)

Guarantees: a creator is used by its worker's thread only. The batch that comes out has one result a
pipeline, whatever number of calls it took, and a pipeline is compiled at most once for it. Nothing that was
kept is lost where a second call fails.

`RunCaches`: the caches of a run.

The caches of one run, by its topology: made before the workers, handed to them, merged after the barrier,
destroyed.

open ─> creator_of each worker ─> (rotation, where they merge on the way) ─> merge ─> read_back ─> destroy

Guarantees: what a device lacks is replaced by what comes nearest to it, and a note says so. Whatever
happened, `destroy` leaves nothing that was made here; the caller's primary is never destroyed.

Assumptions: one blocking method at a time, and none but a creator's while workers run.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field, frozen

from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CacheMode,
    CreationBatch,
    Device,
    PipelineCache,
    PreparedPipelines,
)
from orchestrator.devices.pipeline_cache import CACHE_HEADER_SIZE, is_empty_cache
from orchestrator.errors import DriverError
from orchestrator.run.merge import (
    Merged,
    merge_into,
    pruned_bytes,
    size_of,
)
from orchestrator.run.options import MergePolicy
from orchestrator.run.records import Duplicates, MergeReport, RollingReport

_BYTES_A_PIPELINE = 16 << 10
_MOST_SPARES = 4
_MOST_WARNINGS = 4


@frozen
class Fold:
    """One merge of retired caches into the primary.

    Attributes:
        number: 1 for the first.
        pipelines: Pipelines that were compiled in the caches that were folded.
        source_bytes: Size of each of those, header and what it started with included.
        primary_bytes: Size of the primary after it.
        merge_ns: Time of the merge.
    """

    number: int
    pipelines: int
    source_bytes: tuple[int, ...]
    primary_bytes: int
    merge_ns: int


MergedHook = Callable[[PipelineCache, Fold], None]
"""Called after a fold with the primary, in a thread of the merger; may read it, and block. Must not merge or destroy it."""


class PrimaryGuard:
    """Lets look-ups in the primary run beside each other, and a fold alone. Thread-safe.

    With `needed` false it lets everything through: the driver does it, or nobody looks anything up.
    """

    def __init__(self, *, needed: bool) -> None:
        """Make a guard."""
        self.needed = needed
        self._changed = threading.Condition()
        self._looking = 0
        self._folding = False

    @contextmanager
    def look_up(self) -> Iterator[None]:
        """Use the primary beside other look-ups. A fold that waits goes first, or it would wait for ever."""
        if not self.needed:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._folding)
            self._looking += 1
        try:
            yield
        finally:
            with self._changed:
                self._looking -= 1
                self._changed.notify_all()

    @contextmanager
    def fold(self) -> Iterator[None]:
        """Use the primary alone. One fold at a time."""
        if not self.needed:
            yield
            return
        with self._changed:
            self._folding = True
            self._changed.wait_for(lambda: not self._looking)
        try:
            yield
        finally:
            with self._changed:
                self._folding = False
                self._changed.notify_all()


@define(eq=False)
class _Slot:
    """A worker's current cache. Used by that worker's thread, and by the run when no worker is left."""

    cache: PipelineCache
    since_ns: int
    batches: int = 0
    compiled: int = 0
    waits_for_spare: bool = False
    longest_pause_ns: int = 0


@frozen(eq=False)
class _Retired:
    cache: PipelineCache
    compiled: int


@frozen(eq=False)
class WorkerCacheMaker:
    """Makes worker caches that start alike.

    Attributes:
        device: The device.
        data: What they start with.
        externally_synchronized: Whether they are.
    """

    device: Device
    data: bytes = field(repr=False)
    externally_synchronized: bool

    def make(self, name: str) -> PipelineCache:
        """Make one. Raises DriverError where the driver refuses."""
        return self.device.create_pipeline_cache(
            self.data, externally_synchronized=self.externally_synchronized, name=name
        )


class Rotation:
    """The caches of a run with a rolling merge; see the top of the module.

    `current`, `batch_ended` and `note_pause` belong to the worker's thread, `serve` to trio, the rest to the run when no
    worker is there yet or left.

    Args:
        primary: What is merged into.
        primary_is_filled: Whether it holds something now.
        policy: When.
        current: The first cache of each worker; owned by the rotation from now on.
        fresh: Makes caches like those; also in the merger's thread.
        token: Of the trio run.
        looked_up: Whether workers look pipelines up in the primary.
        on_merged: Called after each fold.

    Attributes:
        guard: Keeps look-ups and folds apart.
        warnings: What a user should know.
    """

    def __init__(
        self,
        primary: PipelineCache,
        policy: MergePolicy,
        current: Sequence[PipelineCache],
        fresh: WorkerCacheMaker,
        token: trio.lowlevel.TrioToken,
        *,
        primary_is_filled: bool,
        looked_up: bool,
        on_merged: MergedHook | None,
    ) -> None:
        self._device = fresh.device
        self._primary = primary
        self._policy = policy
        self._fresh = fresh
        self._seed_bytes = len(fresh.data)
        self._looked_up = looked_up
        self._on_merged = on_merged
        now = time.perf_counter_ns()
        self._slots = [_Slot(cache, now) for cache in current]
        self._lock = threading.Lock()
        self._spares: list[PipelineCache] = []
        self._retired: deque[_Retired] = deque()
        self._folding: list[_Retired] = []
        self._made = 0
        self._wanted = False
        self._spares_refused = False
        self._deferred = 0
        self._hook_ns = 0
        self._folds: list[Fold] = []
        self._lot = trio.lowlevel.ParkingLot()
        self._token = token
        self.guard = PrimaryGuard(needed=looked_up and not primary.internally_synchronized_merge)
        self.warnings: list[str] = []
        self.primary_is_filled = primary_is_filled
        self._each_bytes = _BYTES_A_PIPELINE
        if policy.rolling and not fresh.data:
            # Empty ones cost next to nothing. Others are made when the run turns out to compile something.
            self._make_spares()

    # --- a worker's side

    def current(self, worker: int) -> PipelineCache:
        """The cache of a worker."""
        return self._slots[worker].cache

    def batch_ended(self, worker: int, compiled: int) -> None:
        """A worker has ended a batch and begun no other; retire its cache if that is due.

        Args:
            worker: Which.
            compiled: Pipelines that the batch compiled in its cache.
        """
        if not self._policy.rolling:
            return
        slot = self._slots[worker]
        slot.batches += 1
        slot.compiled += compiled
        if not slot.compiled:
            return  # nothing new: a warm run makes no merges
        began = time.perf_counter_ns()
        if not self._wanted:
            self._wanted = True  # the first news of the run: from now on spares are worth making
            self._wake()
        if self._is_due(slot, began):
            self._retire(slot)
        self.note_pause(worker, time.perf_counter_ns() - began)

    def note_pause(self, worker: int, pause_ns: int) -> None:
        """A worker paused."""
        slot = self._slots[worker]
        slot.longest_pause_ns = max(slot.longest_pause_ns, pause_ns)

    def _is_due(self, slot: _Slot, now_ns: int) -> bool:
        policy = self._policy
        if slot.waits_for_spare:
            return True
        if policy.batches is not None and slot.batches >= policy.batches:
            return True
        if policy.age_ns is not None and now_ns - slot.since_ns >= policy.age_ns:
            return True
        return policy.gained_bytes is not None and slot.compiled * self._each_bytes >= policy.gained_bytes

    def _retire(self, slot: _Slot) -> None:
        with self._lock:
            fresh = self._spares.pop() if self._spares else None
            if fresh is not None:
                self._retired.append(_Retired(slot.cache, slot.compiled))
            elif not slot.waits_for_spare:
                self._deferred += 1
        slot.waits_for_spare = fresh is None
        if fresh is not None:
            slot.cache, slot.since_ns = fresh, time.perf_counter_ns()
            slot.batches = slot.compiled = 0
            self._wake()

    def _wake(self) -> None:
        self._token.run_sync_soon(self._lot.unpark_all, idempotent=True)

    # --- the merger's side

    async def serve(self) -> None:
        """Fold and make spares until cancelled, between two folds.

        Raises:
            ExternalSynchronizationError: The caller merges into the primary, or uses it in a way that excludes merging.
        """
        limiter = trio.CapacityLimiter(1)
        while True:
            # From these looks to the parking there is no checkpoint, and a worker's news unparks from the trio thread.
            while not (self._retired or (self._wanted and self._lacks_spares())):
                await self._lot.park()
            await trio.to_thread.run_sync(self._serve_once, limiter=limiter)

    def _lacks_spares(self) -> bool:
        return not self._spares_refused and len(self._spares) < self._most_spares

    @property
    def _most_spares(self) -> int:
        # Each holds the seed; a worker that finds none goes on and loses nothing.
        return min(len(self._slots), _MOST_SPARES)

    def _serve_once(self) -> None:
        fold = self._fold()
        # Before the hook, which may take its time: workers need them.
        self._make_spares()
        if fold is not None and self._on_merged is not None:
            began = time.perf_counter_ns()
            self._on_merged(self._primary, fold)
            self._hook_ns += time.perf_counter_ns() - began

    def _make_spares(self) -> None:
        while self._lacks_spares():
            self._made += 1
            try:
                spare = self._fresh.make(f"fresh {self._made}")
            except DriverError as refused:
                self._spares_refused = True
                self.warnings.append(f"no more fresh caches for workers, which keep theirs: {refused}")
                return
            with self._lock:
                self._spares.append(spare)

    def _fold(self) -> Fold | None:
        with self._lock:
            self._folding.extend(self._retired)
            self._retired.clear()
        if not self._folding:
            return None
        with self.guard.fold():
            merged = merge_into(
                self._device,
                self._primary,
                [each.cache for each in self._folding],
                seed_bytes=self._seed_bytes,
            )
        fold = Fold(
            number=len(self._folds) + 1,
            pipelines=sum(each.compiled for each in self._folding),
            source_bytes=merged.source_bytes,
            primary_bytes=merged.after,
            merge_ns=merged.merge_ns,
        )
        self._folds.append(fold)
        self.warnings += merged.warnings
        self.primary_is_filled |= not is_empty_cache(merged.after)
        self._learn_size()
        while self._folding:
            self._device.destroy_pipeline_cache(self._folding.pop().cache)
        return fold

    def _learn_size(self) -> None:
        """Learn what a pipeline takes in a cache, from all folds."""
        start = max(self._seed_bytes, CACHE_HEADER_SIZE)
        gained = sum(max(0, size - start) for size in self.folded_bytes())
        if pipelines := sum(fold.pipelines for fold in self._folds):
            self._each_bytes = max(1, gained // pipelines)

    # --- the run's side, when no worker is left

    def finish(self) -> None:
        """Fold what was retired and not folded. Blocking."""
        self._fold()

    def current_caches(self) -> list[PipelineCache]:
        """The last cache of each worker, worker by worker."""
        return [slot.cache for slot in self._slots]

    def destroy(self) -> None:
        """Destroy everything that is left. Blocking; idempotent."""
        left = [slot.cache for slot in self._slots] + self._spares
        left += [each.cache for each in (*self._retired, *self._folding)]
        for cache in left:
            self._device.destroy_pipeline_cache(cache)

    def report(self) -> RollingReport:
        """What it did."""
        folds = self._folds
        synchronized_by = "lock" if self.guard.needed else "driver" if self._looked_up else "nothing"
        return RollingReport(
            folds=len(folds),
            caches=len(self.folded_bytes()),
            pipelines=sum(each.pipelines for each in folds),
            source_bytes=sum(self.folded_bytes()),
            merge_ns=sum(each.merge_ns for each in folds),
            hook_ns=self._hook_ns,
            longest_pause_ns=max((slot.longest_pause_ns for slot in self._slots), default=0),
            deferred=self._deferred,
            synchronized_by=synchronized_by,
        )

    def folded_bytes(self) -> tuple[int, ...]:
        """Size of each cache that was folded."""
        return tuple(size for fold in self._folds for size in fold.source_bytes)

    def few_warnings(self) -> tuple[str, ...]:
        """The warnings, each once; of many the first ones, for a driver that refuses does so at every fold."""
        different = list(dict.fromkeys(self.warnings))
        if len(different) > _MOST_WARNINGS:
            more = len(different) - _MOST_WARNINGS
            different[_MOST_WARNINGS:] = [f"and {more} more warnings of the rolling merge"]
        return tuple(different)


class Creator(Protocol):
    """Creates a worker's batches. Belongs to one thread at a time."""

    def create(self, indices: npt.NDArray[np.int32]) -> CreationBatch:
        """Create a batch; see `Device.create_pipelines`."""

    def between_batches(self) -> None:
        """A batch has ended and the next has not begun: no cache of the worker is in use."""


class OneCache:
    """Everything in one cache, from the start to the barrier.

    Args:
        device: The device.
        prepared: The pipelines.
        cache: The worker's own cache, the shared one, or None.
        keep: Whether to keep the pipelines.
    """

    def __init__(
        self, device: Device, prepared: PreparedPipelines, cache: PipelineCache | None, *, keep: bool
    ) -> None:
        self._device = device
        self._prepared = prepared
        self._cache = cache
        self._keep = keep

    def create(self, indices: npt.NDArray[np.int32]) -> CreationBatch:
        """Create a batch."""
        return self._device.create_pipelines(self._prepared, indices, self._cache, keep=self._keep)

    def between_batches(self) -> None:
        """There is nothing to do."""


class RotatingCache:
    """Everything in the worker's current cache, which it retires between batches.

    Args:
        device: The device.
        prepared: The pipelines.
        rotation: Where the current cache is.
        worker: The worker's number.
        keep: Whether to keep the pipelines.
    """

    def __init__(
        self, device: Device, prepared: PreparedPipelines, rotation: Rotation, worker: int, *, keep: bool
    ) -> None:
        self._device = device
        self._prepared = prepared
        self._rotation = rotation
        self._worker = worker
        self._keep = keep
        self._has_feedback = device.features.creation_feedback
        self._compiled = 0

    def create(self, indices: npt.NDArray[np.int32]) -> CreationBatch:
        """Create a batch."""
        cache = self._rotation.current(self._worker)
        batch = self._device.create_pipelines(self._prepared, indices, cache, keep=self._keep)
        self._compiled += self._news_in(batch)
        return batch

    def _news_in(self, batch: CreationBatch) -> int:
        """Pipelines that a batch may have added to the cache: created, and no hit."""
        if not self._has_feedback:
            return int(np.count_nonzero(batch.results == SUCCESS))
        # No feedback where the driver gives some: it linked libraries and compiled nothing.
        compiled = (
            batch.feedback_flags & np.uint32(FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT)
            == FEEDBACK_VALID
        )
        return int(np.count_nonzero((batch.results == SUCCESS) & compiled))

    def between_batches(self) -> None:
        """Retire the cache, if that is due."""
        compiled, self._compiled = self._compiled, 0
        self._rotation.batch_ended(self._worker, compiled)


class TwoLevels(RotatingCache):
    """What the primary holds from there, and the rest in the worker's current cache.

    Args:
        device: A device with compile_required.
        prepared: The pipelines.
        rotation: Where the current cache is, and who folds it into the primary.
        worker: The worker's number.
        primary: What is looked up first.
        keep: Whether to keep the pipelines.
    """

    def __init__(
        self,
        device: Device,
        prepared: PreparedPipelines,
        rotation: Rotation,
        worker: int,
        primary: PipelineCache,
        *,
        keep: bool,
    ) -> None:
        super().__init__(device, prepared, rotation, worker, keep=keep)
        self._primary = primary

    def create(self, indices: npt.NDArray[np.int32]) -> CreationBatch:
        """Look a batch up, and compile what is missing."""
        # An empty primary is not worth a call: in a cold run it is empty until the first fold.
        if not self._rotation.primary_is_filled:
            return super().create(indices)
        began = time.perf_counter_ns()
        with self._rotation.guard.look_up():
            self._rotation.note_pause(self._worker, time.perf_counter_ns() - began)
            batch = self._device.create_pipelines(
                self._prepared, indices, self._primary, keep=self._keep, fail_on_compile_required=True
            )
        missing = np.flatnonzero(batch.results == PIPELINE_COMPILE_REQUIRED)
        if not missing.size:
            return batch
        try:
            made = super().create(indices[missing])
        except BaseException:
            # The call is made again pipeline by pipeline, or the run ends: nobody will learn of these.
            self._device.destroy_pipelines(batch.handles)
            raise
        batch.results[missing] = made.results
        batch.feedback_flags[missing] = made.feedback_flags
        batch.durations_ns[missing] += made.durations_ns
        batch.handles[missing] = made.handles
        return batch


@define(eq=False)
class RunCaches:
    """The caches of a run; see the top of the module.

    Attributes:
        device: The device.
        worker_count: Number of workers.
        mode: The topology.
        policy: When worker caches are merged.
        seed: Whether worker caches start with what the primary holds.
        primary: The primary; the caller's, or made by `open`; None in mode NONE.
        on_merged: Called after each merge on the way.
        token: Of the trio run.
        rotation: Where worker caches are, if they may change during the run.
        notes: What a reader of the report must know.
        open_ns: Time of `open`.
        read_back_ns: Time of `read_back`.
        data: What `read_back` read: the data of a primary that was made here.
    """

    device: Device
    worker_count: int
    mode: CacheMode
    policy: MergePolicy
    seed: bool
    primary: PipelineCache | None
    on_merged: MergedHook | None
    token: trio.lowlevel.TrioToken
    rotation: Rotation | None = None
    notes: list[str] = field(factory=list)
    open_ns: int = 0
    read_back_ns: int = 0
    data: bytes | None = None
    _own_primary: PipelineCache | None = field(default=None, init=False)
    _worker_caches: list[PipelineCache] = field(factory=list, init=False)
    _flagged: bool = field(default=False, init=False)
    _seed_data: bytes = field(default=b"", init=False, repr=False)
    _seed_bytes: int = field(default=0, init=False)
    _primary_bytes: int = field(default=0, init=False)
    _merged: Merged | None = field(default=None, init=False)

    # --- before the workers

    def open(self, primary_data: bytes) -> None:
        """Make the caches. Blocking.

        Raises:
            DriverError: The driver refused an empty one.
        """
        if self.mode is CacheMode.NONE:
            return
        started = time.perf_counter_ns()
        if self.primary is None:
            self.primary = self._own_primary = self._create_primary(primary_data)
        self._primary_bytes = size_of(self.device, self.primary, self.notes)
        if self.mode is not CacheMode.SHARED:
            self._open_worker_caches(self.primary)
            self._begin_rotation(self.primary)
        self.open_ns = time.perf_counter_ns() - started

    def _open_worker_caches(self, primary: PipelineCache) -> None:
        if self.mode is CacheMode.TWO_LEVEL and not self.device.features.compile_required:
            self.notes.append(
                "the device cannot forbid compiling (FAIL_ON_PIPELINE_COMPILE_REQUIRED), so nothing can be looked up "
                "in the primary: worker caches start with what it holds, as in mode per-worker"
            )
        flagged = self._flagged = self.mode is not CacheMode.PER_WORKER_INTERNAL
        if flagged and not self.device.features.externally_synchronized_caches:
            flagged = self._flagged = False
            self.notes.append(
                "the device has no externally synchronized caches (pipelineCreationCacheControl): worker caches "
                "are internally synchronized, as in mode per-worker-internal"
            )
        if self.seed and not self.looks_up and not is_empty_cache(self._primary_bytes):
            self._seed_data = self._read(primary) or b""
        self._seed_bytes = len(self._seed_data)
        for number in range(self.worker_count):
            self._worker_caches.append(
                self._create_cache(self._seed_data, f"worker {number}", flagged=flagged)
            )

    @property
    def looks_up(self) -> bool:
        """Whether workers look pipelines up in the primary before they compile."""
        return self.mode is CacheMode.TWO_LEVEL and self.device.features.compile_required

    def _begin_rotation(self, primary: PipelineCache) -> None:
        """Hand the worker caches to a rotation, where they may change during the run."""
        if not (self.policy.rolling or self.looks_up):
            return
        self.rotation = Rotation(
            primary,
            self.policy,
            self._worker_caches,
            WorkerCacheMaker(self.device, self._seed_data, self._flagged),
            self.token,
            primary_is_filled=not is_empty_cache(self._primary_bytes),
            looked_up=self.looks_up,
            on_merged=self.on_merged,
        )
        self._worker_caches = []

    def _create_primary(self, data: bytes) -> PipelineCache:
        if self.looks_up and self.device.features.internally_synchronized_merge:
            try:
                return self.device.create_pipeline_cache(
                    data, internally_synchronized_merge=True, name="primary"
                )
            except DriverError as refused:
                self.notes.append(
                    f"primary: the driver refused the data, or to synchronize merges itself ({refused})"
                )
        return self._create_cache(data, "primary", flagged=False)

    def _create_cache(self, data: bytes, name: str, *, flagged: bool) -> PipelineCache:
        try:
            return self.device.create_pipeline_cache(data, externally_synchronized=flagged, name=name)
        except DriverError as refused:
            if not data:
                raise
            self.notes.append(f"{name}: the driver refused the initial data ({refused}); it starts empty")
            return self.device.create_pipeline_cache(externally_synchronized=flagged, name=name)

    def _read(self, cache: PipelineCache) -> bytes | None:
        try:
            return self.device.pipeline_cache_data(cache).data
        except DriverError as refused:
            self.notes.append(f"{cache.name} could not be read back: {refused}")
            return None

    def creator_of(self, number: int, prepared: PreparedPipelines, *, keep: bool) -> Creator:
        """How a worker creates its batches.

        Args:
            number: Which worker.
            prepared: The pipelines.
            keep: Whether to keep the pipelines.
        """
        rotation, primary = self.rotation, self.primary
        if rotation is None or primary is None:
            cache = self._worker_caches[number] if self._worker_caches else primary
            return OneCache(self.device, prepared, cache, keep=keep)
        if self.looks_up:
            return TwoLevels(self.device, prepared, rotation, number, primary, keep=keep)
        return RotatingCache(self.device, prepared, rotation, number, keep=keep)

    # --- after the barrier

    def merge(self) -> None:
        """Merge what workers compiled into the primary. Blocking; no worker is left.

        Raises:
            ExternalSynchronizationError: The caller uses the primary.
        """
        if self.primary is None:
            return
        started = time.perf_counter_ns()
        if self.rotation is not None:
            self.rotation.finish()
        finish_ns = time.perf_counter_ns() - started
        caches = self._worker_caches if self.rotation is None else self.rotation.current_caches()
        merged = merge_into(self.device, self.primary, caches, seed_bytes=self._seed_bytes)
        if not caches:
            merged = evolve(merged, before=self._primary_bytes, merge_ns=0)
        elif self.rotation is not None:
            merged = evolve(merged, merge_ns=merged.merge_ns + finish_ns)
        self._merged = merged

    def read_back(self) -> None:
        """Read the data of a primary that was made here. Blocking."""
        if self._own_primary is not None:
            started = time.perf_counter_ns()
            self.data = self._read(self._own_primary)
            self.read_back_ns = time.perf_counter_ns() - started

    def destroy(self) -> None:
        """Destroy what was made here. Blocking."""
        if self.rotation is not None:
            self.rotation.destroy()
        for cache in self._worker_caches:
            self.device.destroy_pipeline_cache(cache)
        if self._own_primary is not None:
            self.device.destroy_pipeline_cache(self._own_primary)

    def merge_report(
        self,
        *,
        compiled: int,
        barrier_waits_ns: tuple[int, ...],
        duplicate_job_keys: Duplicates,
        duplicate_pipeline_keys: Duplicates | None,
    ) -> MergeReport | None:
        """What merging did; None in mode NONE.

        Args:
            compiled: Pipelines that were compiled.
            barrier_waits_ns: How long each worker waited at the barrier.
            duplicate_job_keys: Keys that more than one worker compiled.
            duplicate_pipeline_keys: The same by the driver's keys.
        """
        merged = self._merged
        if merged is None:
            return None
        warnings = list(merged.warnings)
        rolling: RollingReport | None = None
        folded: tuple[int, ...] = ()
        if self.rotation is not None:
            rolling = self.rotation.report()
            warnings += self.rotation.few_warnings()
            # Between its first and its last merge the primary was one thing; the figures below are those of all.
            folded = self.rotation.folded_bytes()
            merged = evolve(merged, before=self._primary_bytes)
        if compiled and is_empty_cache(max((merged.after, *merged.source_bytes, *folded))):
            warnings.append(
                f"the driver's cache keeps nothing: {compiled} pipelines were compiled, and all caches hold only "
                "their header; saving it will not make the next run faster"
            )
        return MergeReport(
            source_bytes=merged.source_bytes,
            seed_bytes=self._seed_bytes,
            primary_bytes_before=merged.before,
            primary_bytes_after=merged.after,
            pruned_bytes=pruned_bytes(merged, folded) if merged.source_bytes else 0,
            duplicate_job_keys=duplicate_job_keys,
            duplicate_pipeline_keys=duplicate_pipeline_keys,
            barrier_wait_ns=barrier_waits_ns,
            merge_ns=merged.merge_ns,
            warnings=tuple(warnings),
            rolling=rolling,
            started_ns=merged.started_ns,
        )
