"""The sources of a run: made before the workers by its topology, handed to them, merged, destroyed.

A worker creates pipelines of the run's images (`PreparedParts`) with its source by a `Creator`.

A `Rotation` merges while workers run:

    worker   current ──(enough, and a standby is there)──> rotated out ─┐      standby <── made by the merger
    merger   merge <────────────────────────────────────────────────────┘  ──> primary ──> on_merged

- A source is at one place: current of one worker, rotated out, or standby. It moves between two batches and
  under a lock, so two threads never use it, and a merge takes what was rotated out only.
- A worker waits for nothing here: where no standby is ready it goes on with what it has. It makes no driver
  call to rotate, after which it would have to wait for the GIL.
- A worker that gets no batch rotates its source out all the same, once it has the age for that.
- Nothing is lost: what was rotated out and not merged when the run ends is merged then. Nobody but the run
  merges into the primary, and `destroy` leaves nothing but the caller's.
- Standbys begin with the data that worker sources begin with, not with what the primary has gained: a
  scheduler sends no pipeline twice, so what others compiled is not asked for again.

`merge_into` merges what no thread uses any more, and counts what was pruned and what was compiled twice; the
primary is never among the sources (VUID-vkMergePipelineCaches-dstCache-00770). A refused merge loses no more
than the sources that were refused: they are merged one by one, and a warning says which failed. A size that
the driver will not tell is a warning.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import trio
from attrs import define, evolve, field, frozen

from orchestrator.devices.binaries import BinarySource
from orchestrator.devices.device import (
    FEEDBACK_APPLICATION_CACHE_HIT,
    FEEDBACK_VALID,
    NO_SOURCE,
    PIPELINE_COMPILE_REQUIRED,
    SUCCESS,
    CacheMode,
    CallSplit,
    CreationBatch,
    Device,
    PipelineCache,
    PipelineSource,
    PreparedPipelines,
    joined,
)
from orchestrator.devices.identifiers import missed
from orchestrator.errors import DeviceError, DriverError
from orchestrator.run.options import MergePolicy, sooner_ns
from orchestrator.run.records import BinariesRecord, Duplicates, MergeReport, RollingReport
from orchestrator.schedule.costs import trusted_keys
from orchestrator.schedule.jobs import Int32s

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
    unmerged: int = 0


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
    unmerged = 0
    source_bytes = tuple(size_of(source, warnings) for source in sources)
    before = size_of(primary, warnings)
    started = time.perf_counter_ns()
    if sources:
        try:
            primary.merge(sources)
        except DriverError as refused:
            warnings.append(f"the merge of all worker caches failed ({refused}); they were merged one by one")
            lost = _merge_one_by_one(primary, sources)
            unmerged = len(lost)
            warnings += lost
    merge_ns = time.perf_counter_ns() - started
    after = size_of(primary, warnings) if sources else before
    largest = max(source_bytes, default=0)
    # Beyond its seed a warm worker source gains some bytes of bookkeeping, which the primary need not take.
    gained = largest - max(seed_bytes, primary.header_bytes)
    if gained > _BOOKKEEPING_BYTES and after < largest and after <= before:
        warnings.append(
            f"the merge was a no-op: a worker cache holds {largest} bytes, the primary has {after} after it "
            f"and had {before} before; this driver does not merge, so use mode shared"
        )
        unmerged = len(sources)
    return Merged(source_bytes, before, after, merge_ns, tuple(warnings), started, unmerged)


def size_of(source: PipelineSource, warnings: list[str], device: Device | None = None) -> int:
    """Size of a source, bytes; 0 and a warning where the driver refuses: a run is not lost to a figure.

    Raises:
        DeviceError: It is not a cache of `device`, where one is given.
    """
    try:
        if device is not None and isinstance(source, PipelineCache):
            return device.pipeline_cache_size(source)
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
    """Payload that was there more than once, bytes."""
    payload = sum(max(0, size - header_bytes) for size in (*merged.source_bytes, *on_the_way))
    # An empty primary may be shorter than a header on some drivers; its payload is not negative.
    before, after = (max(0, size - header_bytes) for size in (merged.before, merged.after))
    return max(0, payload + before - after)


def duplicates(
    keys: npt.NDArray[np.uint64] | npt.NDArray[np.int64],
    workers: Int32s,
    driver_ns: npt.NDArray[np.uint64],
) -> Duplicates:
    """Keys that more than one worker compiled."""
    if not len(keys):
        return Duplicates(0, 0)
    _, first, numbers = np.unique(keys, return_index=True, return_inverse=True)
    lowest = np.full(len(first), np.iinfo(np.int32).max, np.int32)
    highest = np.full(len(first), -1, np.int32)
    np.minimum.at(lowest, numbers, workers)
    np.maximum.at(highest, numbers, workers)
    twice = lowest != highest
    again = twice[numbers]
    again[first] = False  # the first of each key in the order of the set was needed
    return Duplicates(int(twice.sum()), int(driver_ns[again].sum()))


def duplicate_pipeline_keys(
    device: Device,
    prepared: PreparedPipelines,
    indices: Int32s,
    workers: Int32s,
    driver_ns: npt.NDArray[np.uint64],
) -> Duplicates:
    """As `duplicates`, by the driver's own key of every pipeline without libraries.

    RADV (seen with Mesa 25.0.7) dies of SIGSEGV in vkGetPipelineKeyKHR where a graphics pipeline links
    libraries; linking compiles little, so such pipelines count as like no other.

    Raises:
        DeviceError: The device has no pipeline binaries.
    """
    image = prepared.image
    alone = ~image.links[indices]
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


_BYTES_A_PIPELINE: Final = 16 << 10
_MOST_STANDBYS: Final = 4
_MOST_WARNINGS: Final = 4
_REMIND_S: Final = 1.0
_STANDBY_S: Final = 0.1
"""How long a worker without a batch waits for a standby before it looks again."""


class RollingMerge(msgspec.Struct, frozen=True):
    """One merge into the primary while workers run."""

    number: int
    pipelines: int
    source_bytes: tuple[int, ...]
    primary_bytes: int
    merge_ns: int


MergedHook = Callable[[PipelineSource, RollingMerge], None]
"""Called after a rolling merge with the primary, in a thread of the merger. It may read it, and block.

Where no other merge follows it is called again every second, with the last one and no pipelines.

It must not merge or destroy it. What it raises ends the run.
"""


class PrimaryGuard:
    """Lets look-ups in the primary run beside each other, and a merge alone. Thread-safe.

    With `needed` false it lets everything through: the driver does it, or nobody looks anything up.
    """

    def __init__(self, *, needed: bool) -> None:
        self.needed = needed
        self._changed = threading.Condition()
        self._looking = 0
        self._merging = False

    @contextmanager
    def look_up(self) -> Iterator[None]:
        """Use the primary beside other look-ups. A merge that waits goes first, or it would wait for ever."""
        if not self.needed:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._merging)
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
        if not self.needed:
            yield
            return
        with self._changed:
            self._merging = True
            self._changed.wait_for(lambda: not self._looking)
        try:
            yield
        finally:
            with self._changed:
                self._merging = False
                self._changed.notify_all()


class Slot(msgspec.Struct, eq=False):
    """A worker's current source. Used by that worker, and by the run when no worker is left."""

    source: PipelineSource
    since_ns: int
    batches: int = 0
    compiled: int = 0
    waits_for_standby: bool = False
    longest_pause_ns: int = 0

    def paused(self, began_ns: int) -> None:
        """The worker paused until now."""
        self.longest_pause_ns = max(self.longest_pause_ns, time.perf_counter_ns() - began_ns)


class _Rotated(msgspec.Struct, frozen=True, eq=False):
    source: PipelineSource
    compiled: int


@define(eq=False)
class Rotation:
    """The worker sources of a run that merges on the way; see the top of the module.

    `batch_ended` and `due_in_s` belong to the worker, `serve` to trio, the rest to the run when no worker is
    there yet or left.
    """

    primary: PipelineSource
    seed: bytes = field(repr=False)
    make: Callable[[bytes, str], PipelineSource]
    first: Sequence[PipelineSource]
    policy: MergePolicy
    token: trio.lowlevel.TrioToken
    looked_up: bool
    primary_is_filled: bool
    on_merged: MergedHook | None
    slots: list[Slot] = field(init=False)
    guard: PrimaryGuard = field(init=False)
    warnings: list[str] = field(factory=list, init=False)
    unmerged: int = field(default=0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)
    _standbys: list[PipelineSource] = field(factory=list, init=False)
    _rotated: deque[_Rotated] = field(factory=deque, init=False)
    _began_ns: int = field(init=False)
    _made: int = field(default=0, init=False)
    _wanted: bool = field(default=False, init=False)
    _standbys_refused: bool = field(default=False, init=False)
    _deferred: int = field(default=0, init=False)
    _hook_ns: int = field(default=0, init=False)
    _merges: list[RollingMerge] = field(factory=list, init=False)
    _lot: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot, init=False)
    _each_bytes: int = field(default=_BYTES_A_PIPELINE, init=False)

    def __attrs_post_init__(self) -> None:
        self._began_ns = time.perf_counter_ns()
        self.slots = [Slot(source, self._began_ns) for source in self.first]
        in_driver = self.primary.internally_synchronized_merge
        self.guard = PrimaryGuard(needed=self.looked_up and not in_driver)
        if self.policy.rolling and not self.seed:
            # Empty ones cost next to nothing. Others are made when the run turns out to compile something.
            self._make_standbys()

    # --- a worker's side

    def batch_ended(self, slot: Slot, compiled: int) -> None:
        """A worker has ended batches and begun no other; rotate its source out if that is due."""
        if not self.policy.rolling:
            return
        slot.batches += 1
        slot.compiled += compiled
        if not slot.compiled:
            return  # nothing new: a warm run makes no merges
        began = time.perf_counter_ns()
        if not self._wanted:
            self._wanted = True  # the first news of the run: from now on standbys are worth making
            self._wake()
        if self._is_due(slot, began):
            self._rotate(slot)
        slot.paused(began)

    def _is_due(self, slot: Slot, now_ns: int) -> bool:
        policy = self.policy
        if slot.waits_for_standby:
            return True
        if policy.batches is not None and slot.batches >= policy.batches:
            return True
        if now_ns >= self._due_at_ns(slot, now_ns):
            return True
        return policy.gained_bytes is not None and slot.compiled * self._each_bytes >= policy.gained_bytes

    def due_in_s(self, slot: Slot) -> float:
        """Seconds until a source is due although its worker gets no batch; infinity: never."""
        now_ns = time.perf_counter_ns()
        if not slot.compiled or self._standbys_refused:
            return math.inf
        return max(_STANDBY_S, (self._due_at_ns(slot, now_ns) - now_ns) / 1e9)

    def _due_at_ns(self, slot: Slot, now_ns: int) -> float:
        if self.policy.age_ns is None:
            return math.inf
        age_ns = sooner_ns(self.policy.age_ns, self.policy.age_share, now_ns - self._began_ns)
        return slot.since_ns + age_ns

    def _rotate(self, slot: Slot) -> None:
        with self._lock:
            fresh = self._standbys.pop() if self._standbys else None
            if fresh is not None:
                self._rotated.append(_Rotated(slot.source, slot.compiled))
            elif not slot.waits_for_standby:
                self._deferred += 1
        slot.waits_for_standby = fresh is None
        if fresh is not None:
            slot.source, slot.since_ns = fresh, time.perf_counter_ns()
            slot.batches = slot.compiled = 0
            self._wake()

    def _wake(self) -> None:
        self.token.run_sync_soon(self._lot.unpark_all, idempotent=True)

    # --- the merger's side

    async def serve(self) -> None:
        """Merge and make standbys until cancelled, between two merges.

        Raises:
            ExternalSynchronizationError: The caller merges into the primary, or uses it in a way that
                excludes merging.
        """
        limiter = trio.CapacityLimiter(1)
        while True:
            # From these looks to the parking there is no checkpoint, and a worker's news unparks from the
            # trio thread.
            while not (self._rotated or (self._wanted and self._lacks_standbys())):
                with trio.move_on_after(_REMIND_S) as waited:
                    await self._lot.park()
                if waited.cancelled_caught and self._merges:
                    # What the hook left for later may be due, and the next merge may be minutes away.
                    again = msgspec.structs.replace(self._merges[-1], pipelines=0)
                    await trio.to_thread.run_sync(self._call_hook, again, limiter=limiter)
            await trio.to_thread.run_sync(self._serve_once, limiter=limiter)

    def _call_hook(self, merge: RollingMerge) -> None:
        if self.on_merged is not None:
            began = time.perf_counter_ns()
            self.on_merged(self.primary, merge)
            self._hook_ns += time.perf_counter_ns() - began

    def _lacks_standbys(self) -> bool:
        # Each holds the data that workers begin with; a worker that finds none goes on and loses nothing.
        most = min(len(self.slots), _MOST_STANDBYS)
        return not self._standbys_refused and len(self._standbys) < most

    def _serve_once(self) -> None:
        merge = self.merge()
        # Before the hook, which may take its time: workers need them.
        self._make_standbys()
        if merge is not None:
            self._call_hook(merge)

    def _make_standbys(self) -> None:
        while self._lacks_standbys():
            self._made += 1
            try:
                standby = self.make(self.seed, f"fresh {self._made}")
            except DriverError as refused:
                self._standbys_refused = True
                self.warnings.append(f"no more fresh caches for workers, which keep theirs: {refused}")
                return
            with self._lock:
                self._standbys.append(standby)

    def merge(self) -> RollingMerge | None:
        """Merge what was rotated out. Blocking; one thread at a time."""
        with self._lock:
            merging = list(self._rotated)
        if not merging:
            return None
        with self.guard.merge():
            sources = [each.source for each in merging]
            merged = merge_into(self.primary, sources, seed_bytes=len(self.seed))
        merge = RollingMerge(
            number=len(self._merges) + 1,
            pipelines=sum(each.compiled for each in merging),
            source_bytes=merged.source_bytes,
            primary_bytes=merged.after,
            merge_ns=merged.merge_ns,
        )
        self._merges.append(merge)
        self.warnings += merged.warnings
        self.unmerged += merged.unmerged
        self.primary_is_filled |= merged.after > self.primary.empty_bytes
        self._learn_size()
        for _ in merging:
            self._rotated.popleft().source.destroy()
        return merge

    def _learn_size(self) -> None:
        start = max(len(self.seed), self.primary.header_bytes)
        gained = sum(max(0, size - start) for size in self.merged_bytes())
        if pipelines := sum(each.pipelines for each in self._merges):
            self._each_bytes = max(1, gained // pipelines)

    # --- the run's side, when no worker is left

    def current_sources(self) -> list[PipelineSource]:
        """The last source of each worker, worker by worker."""
        return [slot.source for slot in self.slots]

    def destroy(self) -> None:
        """Destroy everything that is left. Blocking; idempotent."""
        rotated = (each.source for each in self._rotated)
        for source in (*self.current_sources(), *self._standbys, *rotated):
            source.destroy()
        # Workers, which refer to this and themselves, wait for the garbage collector.
        self.seed = b""

    def report(self) -> RollingReport:
        """What it did."""
        merges = self._merges
        synchronized_by = "lock" if self.guard.needed else "driver" if self.looked_up else "nothing"
        return RollingReport(
            folds=len(merges),
            caches=len(self.merged_bytes()),
            pipelines=sum(each.pipelines for each in merges),
            source_bytes=sum(self.merged_bytes()),
            merge_ns=sum(each.merge_ns for each in merges),
            hook_ns=self._hook_ns,
            longest_pause_ns=max((slot.longest_pause_ns for slot in self.slots), default=0),
            deferred=self._deferred,
            synchronized_by=synchronized_by,
        )

    def merged_bytes(self) -> tuple[int, ...]:
        """Size of each source that was merged on the way."""
        return tuple(size for each in self._merges for size in each.source_bytes)

    def few_warnings(self) -> tuple[str, ...]:
        """The warnings, each once; of many the first, for a driver that refuses does so at every merge."""
        different = list(dict.fromkeys(self.warnings))
        if len(different) > _MOST_WARNINGS:
            more = len(different) - _MOST_WARNINGS
            different[_MOST_WARNINGS:] = [f"and {more} more warnings of the rolling merge"]
        return tuple(different)


class PreparedParts:
    """The images of a run, numbered through: those that came later behind the first.

    Most runs have one, and then nothing is translated. Thread-safe: it only grows, and a worker is never
    given a pipeline of an image before that was added.

    Attributes:
        first: The image that there was from the start.
    """

    def __init__(self, first: PreparedPipelines) -> None:
        """Begin with one image."""
        self.first = first
        self._parts = [first]
        self._firsts = np.zeros(1, np.int64)
        self._count = len(first.image)

    def add(self, prepared: PreparedPipelines) -> int:
        """Add an image; the number of its first pipeline. One thread."""
        number = self._count
        self._parts.append(prepared)
        self._firsts = np.append(self._firsts, number)
        self._count += len(prepared.image)
        return number

    def libraries_of(self, index: int) -> list[int]:
        """The libraries that a pipeline links."""
        part, own = self.part_of(index)
        return [index - own + each for each in part.image.libraries_of(own)]

    def part_of(self, index: int) -> tuple[PreparedPipelines, int]:
        """The image of a pipeline, and its number there."""
        place = int(np.searchsorted(self._firsts, index, "right")) - 1
        return self._parts[place], index - int(self._firsts[place])

    def items(self) -> Iterator[tuple[int, PreparedPipelines]]:
        """The images, each with the number of its first pipeline."""
        yield from zip(self._firsts.tolist(), self._parts, strict=True)

    @property
    def identified(self) -> bool:
        """Whether the code of any image may be lacking."""
        return any(each.identified is not None for each in self._parts)

    def missed(self, indices: Int32s, batch: CreationBatch) -> npt.NDArray[np.bool_] | None:
        """Which of a batch were not found without their code, shape (k,); None for none."""
        if batch.all_created or not self.identified:
            return None
        if len(self._parts) == 1:
            return missed(self.first.identified, indices, batch)
        found = np.zeros(len(indices), np.bool_)
        for places, part, own in self._split(indices):
            lacks = missed(part.identified, own, batch.only(places))
            if lacks is not None:
                found[places] = lacks
        return found if found.any() else None

    def _split(self, indices: Int32s) -> Iterator[tuple[npt.NDArray[np.intp], PreparedPipelines, Int32s]]:
        """Pipelines by image: their places among those given, the image, their numbers there."""
        places = np.searchsorted(self._firsts, indices, "right") - 1
        for place in np.unique(places).tolist():
            chosen = np.flatnonzero(places == place)
            yield chosen, self._parts[place], (indices[chosen] - self._firsts[place]).astype(np.int32)

    def create(
        self,
        device: Device,
        indices: Int32s,
        source: PipelineSource,
        *,
        keep: bool,
        fail_on_compile_required: bool = False,
        split: CallSplit | None = None,
    ) -> CreationBatch:
        """Create pipelines of any of the images; see `Device.create_pipelines`."""
        create = partial(
            device.create_pipelines,
            source=source,
            keep=keep,
            fail_on_compile_required=fail_on_compile_required,
            split=split,
        )
        if len(self._parts) == 1:
            return create(self.first, indices)
        return joined(
            device,
            len(indices),
            ((chosen, create(part, own)) for chosen, part, own in self._split(indices)),
        )


@define(eq=False)
class Creator:
    """Creates a worker's batches, all with one source. Belongs to that worker.

    A batch that comes out has one result a pipeline, whatever number of calls it took, and a pipeline is
    compiled at most once for it. Nothing that was kept is lost where a second call fails.
    """

    device: Device
    prepared: PreparedParts
    source: PipelineSource
    keep: bool

    def create(self, indices: Int32s, split: CallSplit | None = None) -> CreationBatch:
        """Create a batch; see `Device.create_pipelines`."""
        return self.prepared.create(self.device, indices, self.source, keep=self.keep, split=split)

    def missed(self, indices: Int32s, batch: CreationBatch) -> npt.NDArray[np.bool_] | None:
        """Which of a batch were not found without their code, shape (k,); None for none."""
        return self.prepared.missed(indices, batch)

    def between_batches(self) -> None:
        """A batch has ended, no other has begun, and the next one may be created from another source."""

    def due_in_s(self) -> float:
        """Seconds until `between_batches` is to be called again, if no batch begins; infinity: never."""
        return math.inf


@define(eq=False)
class RotatingSource(Creator):
    """Creates everything with the worker's current source, which it rotates between batches."""

    rotation: Rotation
    slot: Slot
    _compiled: int = field(default=0, init=False)

    def create(self, indices: Int32s, split: CallSplit | None = None) -> CreationBatch:
        """Create a batch."""
        batch = super().create(indices, split)
        self._compiled += self._news_in(batch)
        return batch

    def _news_in(self, batch: CreationBatch) -> int:
        if batch.all_hits:
            return 0
        if not self.device.features.creation_feedback:
            return int(np.count_nonzero(batch.results == SUCCESS))
        # No feedback where the driver gives some: it linked libraries and compiled nothing.
        flags = batch.feedback_flags & np.uint32(FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT)
        return int(np.count_nonzero((batch.results == SUCCESS) & (flags == FEEDBACK_VALID)))

    def between_batches(self) -> None:
        """Rotate the source, if that is due."""
        compiled, self._compiled = self._compiled, 0
        self.rotation.batch_ended(self.slot, compiled)
        self.source = self.slot.source

    def due_in_s(self) -> float:
        """Seconds until the source has the age at which it is rotated."""
        return self.rotation.due_in_s(self.slot)


@define(eq=False)
class TwoLevels(RotatingSource):
    """Takes what the primary holds from there, and compiles the rest with the worker's current source.

    The device has compile_required.
    """

    def create(self, indices: Int32s, split: CallSplit | None = None) -> CreationBatch:
        """Look a batch up, and compile what is missing."""
        # An empty primary is not worth a call: in a cold run it is empty until the first merge.
        if not self.rotation.primary_is_filled:
            return super().create(indices, split)
        began = time.perf_counter_ns()
        with self.rotation.guard.look_up():
            self.slot.paused(began)
            batch = self.prepared.create(
                self.device,
                indices,
                self.rotation.primary,
                keep=self.keep,
                fail_on_compile_required=True,
                split=split,
            )
        missing = np.flatnonzero(batch.results == PIPELINE_COMPILE_REQUIRED)
        if not missing.size:
            return batch
        try:
            made = super().create(indices[missing], split)
        except BaseException:
            # The call is made again pipeline by pipeline, or the run ends: nobody will learn of these.
            self.device.destroy_pipelines(batch.handles)
            raise
        batch.results[missing] = made.results
        batch.feedback_flags[missing] = made.feedback_flags
        batch.durations_ns[missing] += made.durations_ns
        batch.handles[missing] = made.handles
        return batch


@define(eq=False)
class RunCaches:
    """The sources of a run. One blocking method at a time, none beside workers."""

    device: Device
    worker_count: int
    mode: CacheMode
    policy: MergePolicy
    seed: bool
    primary: PipelineSource | None
    on_merged: MergedHook | None
    token: trio.lowlevel.TrioToken
    rotation: Rotation | None = field(default=None, init=False)
    notes: list[str] = field(factory=list, init=False)
    open_ns: int = field(default=0, init=False)
    read_back_ns: int = field(default=0, init=False)
    data: bytes | None = field(default=None, init=False)
    _own_primary: PipelineSource | None = field(default=None, init=False)
    _worker_sources: list[PipelineSource] = field(factory=list, init=False)
    _seed_bytes: int = field(default=0, init=False)
    _primary_bytes: int = field(default=0, init=False)
    _merged: Merged | None = field(default=None, init=False)

    # --- before the workers

    def open(self, primary_data: bytes, prepared: PreparedPipelines) -> None:
        """Make the sources; a primary that is made here begins with `primary_data`. Blocking.

        Raises:
            DriverError: The driver refused an empty one.
            DeviceError: The device has no pipeline binaries, in mode BINARIES, or the primary is another's.
        """
        started = time.perf_counter_ns()
        if self.mode is CacheMode.NONE:
            self.primary = NO_SOURCE
            return
        if self.primary is None:
            self.primary = self._own_primary = self._create_primary(primary_data)
        try:
            self._primary_bytes = size_of(self.primary, self.notes, self.device)
        except DeviceError as error:
            raise DeviceError(f"the primary of this run: {error}") from None
        if isinstance(self.primary, BinarySource):
            self.primary.pull_in(prepared)
        elif self.mode is not CacheMode.SHARED:
            self._open_worker_sources(self.primary)
        self.open_ns = time.perf_counter_ns() - started

    @property
    def looks_up(self) -> bool:
        """Whether workers look pipelines up in the primary before they compile."""
        return self.mode is CacheMode.TWO_LEVEL and self.device.features.compile_required

    def _create_primary(self, data: bytes) -> PipelineSource:
        device = self.device
        if self.mode is CacheMode.BINARIES:
            from orchestrator.run.binaries import HeldPipelines  # the other modes do without

            return HeldPipelines.of(device)
        if self.looks_up and device.features.internally_synchronized_merge:
            try:
                return device.create_pipeline_cache(data, internally_synchronized_merge=True, name="primary")
            except DriverError as refused:
                self.notes.append(
                    f"primary: the driver refused the data, or to synchronize merges itself ({refused})"
                )
        return self._make(lambda data, name: device.create_pipeline_cache(data, name=name), data, "primary")

    def _make(self, make: Callable[[bytes, str], PipelineSource], data: bytes, name: str) -> PipelineSource:
        try:
            return make(data, name)
        except DriverError as refused:
            if not data:
                raise
            self.notes.append(f"{name}: the driver refused the initial data ({refused}); it starts empty")
            return make(b"", name)

    def _open_worker_sources(self, primary: PipelineSource) -> None:
        features = self.device.features
        if self.mode is CacheMode.TWO_LEVEL and not features.compile_required:
            self.notes.append(
                "the device cannot forbid compiling (FAIL_ON_PIPELINE_COMPILE_REQUIRED), so nothing can be "
                "looked up in the primary: worker caches start with what it holds, as in mode per-worker"
            )
        flagged = self.mode is not CacheMode.PER_WORKER_INTERNAL
        if flagged and not features.externally_synchronized_caches:
            flagged = False
            self.notes.append(
                "the device is open without externally synchronized caches (pipelineCreationCacheControl): "
                "worker caches are internally synchronized, as in mode per-worker-internal. `orchestrator "
                "devices` says whether it has them, `doctor --keys` whether they may be used"
            )
        is_filled = self._primary_bytes > primary.empty_bytes
        seeded = self.seed and is_filled and not self.looks_up
        seed = (self._read(primary) if seeded else None) or b""
        self._seed_bytes = len(seed)
        make = partial(primary.for_worker, externally_synchronized=flagged)
        for number in range(self.worker_count):
            self._worker_sources.append(self._make(make, seed, f"worker {number}"))
        if self.policy.rolling or self.looks_up:
            self.rotation = Rotation(
                primary,
                seed,
                make,
                self._worker_sources,
                self.policy,
                self.token,
                self.looks_up,
                is_filled,
                self.on_merged,
            )
            self._worker_sources = []

    def _read(self, source: PipelineSource) -> bytes | None:
        try:
            return source.data()
        except DriverError as refused:
            self.notes.append(f"{source.name} could not be read back: {refused}")
            return None

    def creator_of(self, number: int, prepared: PreparedParts, *, keep: bool) -> Creator:
        """How a worker creates its batches; after `open`."""
        if (rotation := self.rotation) is None:
            source = self._worker_sources[number] if self._worker_sources else self.primary or NO_SOURCE
            return Creator(self.device, prepared, source, keep)
        slot = rotation.slots[number]
        kind = TwoLevels if self.looks_up else RotatingSource
        return kind(self.device, prepared, slot.source, keep, rotation, slot)

    # --- after the barrier

    def merge(self) -> None:
        """Merge what workers compiled into the primary. Blocking; no worker is left.

        Raises:
            ExternalSynchronizationError: The caller uses the primary.
        """
        if self.primary is None or not self.primary.keeps:
            return
        rotated_ns = 0
        sources = self._worker_sources
        if self.rotation is not None:
            started = time.perf_counter_ns()
            self.rotation.merge()
            rotated_ns = time.perf_counter_ns() - started
            sources = self.rotation.current_sources()
        if isinstance(self.primary, BinarySource):
            self.primary.settle()
        merged = merge_into(self.primary, sources, seed_bytes=self._seed_bytes)
        # Whatever was merged on the way, the figures are those of all.
        merge_ns = merged.merge_ns + rotated_ns if sources else 0
        self._merged = evolve(merged, before=self._primary_bytes, merge_ns=merge_ns)

    def read_back(self) -> None:
        """Read the data of a primary that was made here. Blocking."""
        if self._own_primary is not None and self.mode is not CacheMode.BINARIES:
            started = time.perf_counter_ns()
            self.data = self._read(self._own_primary)
            self.read_back_ns = time.perf_counter_ns() - started

    def destroy(self) -> None:
        """Destroy what was made here. Blocking."""
        if self.rotation is not None:
            self.rotation.destroy()
        for source in self._worker_sources:
            source.destroy()
        if self._own_primary is not None:
            self._own_primary.destroy()

    def binaries(self) -> BinariesRecord | None:
        """What was done with binaries; None in other modes. Also tells its notes."""
        if self.mode is not CacheMode.BINARIES:
            return None
        from orchestrator.run.binaries import HeldPipelines

        if not isinstance(self.primary, HeldPipelines):
            return None
        self.notes += [each for each in self.primary.notes if each not in self.notes]
        return self.primary.record()

    def merge_report(
        self,
        *,
        compiled: int,
        barrier_waits_ns: tuple[int, ...],
        duplicate_job_keys: Duplicates,
        duplicate_pipeline_keys: Duplicates | None,
    ) -> MergeReport | None:
        """What merging did, with what the run knows of it; None in mode NONE."""
        merged, primary = self._merged, self.primary
        if merged is None or primary is None:
            return None
        warnings, unmerged = list(merged.warnings), merged.unmerged
        rolling: RollingReport | None = None
        on_the_way: tuple[int, ...] = ()
        if self.rotation is not None:
            rolling = self.rotation.report()
            warnings += self.rotation.few_warnings()
            on_the_way = self.rotation.merged_bytes()
            unmerged += self.rotation.unmerged
        largest = max((merged.after, *merged.source_bytes, *on_the_way))
        if compiled and self.mode is not CacheMode.BINARIES and largest <= primary.empty_bytes:
            warnings.append(
                f"the driver's cache keeps nothing: all caches hold only their header (pipelines compiled: "
                f"{compiled}); saving it will not make the next run faster"
            )
        return MergeReport(
            source_bytes=merged.source_bytes,
            header_bytes=primary.header_bytes,
            seed_bytes=self._seed_bytes,
            primary_bytes_before=merged.before,
            primary_bytes_after=merged.after,
            pruned_bytes=pruned_bytes(merged, on_the_way, primary.header_bytes) if merged.source_bytes else 0,
            duplicate_job_keys=duplicate_job_keys,
            duplicate_pipeline_keys=duplicate_pipeline_keys,
            barrier_wait_ns=barrier_waits_ns,
            merge_ns=merged.merge_ns,
            warnings=tuple(warnings),
            rolling=rolling,
            unmerged=unmerged,
            started_ns=merged.started_ns,
        )
