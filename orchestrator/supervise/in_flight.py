"""What a process has in the driver right now, in memory that another process reads after its death.

    header   number of slots that were ever used
    slots    stamp, what, count, the first of the pipelines: one driver call each
    marks    of each image, from a page on: four bytes a pipeline, how long the driver took to compile it

`InFlightTable` is that memory; `announcing` wraps a device so that its calls stand there, and a crash of it
can be blamed. The numbers are those of one image at a time: whatever is done for the next one, until its
pipelines are asked for, counts as opening its device.

Guarantees: each call into the driver, from the first object on, is announced before the driver gets it, so
whatever ends the process there is among what `flights` then gives. Saying so is a copy of a few kilobytes at
most, without a system call. What the driver is not to be asked for again raises a `DriverError`, as if it
refused; what is not to be destroyed stays until the process ends. Everything else is the device's own.
Assumptions: one process writes, any number read. Memory outlives the process that wrote it, since each holds
the descriptor. Linux: memfd_create(2).
"""

from __future__ import annotations

import enum
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.binaries import (
    BinaryProperties,
    BinarySource,
    CapturedPipeline,
    HeldBinaries,
    PipelineBinaries,
    PipelineBinary,
    create_with_binaries,
    has_binaries,
)
from orchestrator.devices.device import (
    ERROR_UNKNOWN,
    FEEDBACK_APPLICATION_CACHE_HIT,
    SUCCESS,
    BeforeObject,
    CallSplit,
    CreationBatch,
    Device,
    DeviceCapabilities,
    DeviceFeatures,
    DeviceHandles,
    DeviceIdentity,
    ExecutableInspector,
    PipelineCache,
    PipelineCacheData,
    PipelineExecutables,
    PipelineSource,
    PreparedPipelines,
    in_calls,
    no_news,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.identifiers import ModuleIdentification, has_identification
from orchestrator.devices.image import CreateInfoImage
from orchestrator.errors import DeviceError, DriverError
from orchestrator.run.accounting import driver_time_ns
from orchestrator.run.limits import MemoryGate

_HEADER: Final = struct.Struct("<I")
_SLOT: Final = struct.Struct("<QIIii")  # stamp, what, count, smallest, largest
_STAMP: Final = struct.Struct("<Q")
_HELD: Final = 1024  # pipelines that a slot names one by one; of more it says from where to where
_STRIDE: Final = _SLOT.size + 4 * _HELD
_MOST_SLOTS: Final = 4096
_PAGE: Final = mmap.PAGESIZE
_MARK_BYTES: Final = 4
_MOST_US: Final = (1 << 32) - 1
_NOTHING: Final = np.zeros(0, np.int32)
_MARKS: Final = -(-(_HEADER.size + _MOST_SLOTS * _STRIDE) // _PAGE) * _PAGE


class DriverStep(enum.IntEnum):
    """What a process does in the driver.

    CREATE: It creates these pipelines.
    KEYS: It asks for the keys of these.
    OBJECT: It creates one object, by its number in the image.
    MODULE: It creates one shader module, by its number in the image.
    PREPARE: It prepares an image, between two objects.
    LOAD: It makes a cache of data.
    CACHE: It makes an empty cache.
    MERGE: It merges caches.
    READ: It asks for the data of a cache, or how much that is.
    BINARIES: It takes, gives or destroys pipeline binaries.
    DESTROY: It destroys pipelines, caches or objects, or closes the device.
    OPEN: It opens the device.
    FROM_BINARIES: It creates these pipelines from binaries, within a call of `CREATE`.
    """

    CREATE = 1
    KEYS = 2
    OBJECT = 3
    MODULE = 4
    PREPARE = 5
    LOAD = 6
    CACHE = 7
    MERGE = 8
    READ = 9
    BINARIES = 10
    DESTROY = 11
    OPEN = 12
    FROM_BINARIES = 13

    @property
    def words(self) -> str:
        """It in words."""
        return _WORDS[self]


_WORDS: Final = {
    DriverStep.CREATE: "creating pipelines",
    DriverStep.KEYS: "asking for keys of pipelines",
    DriverStep.OBJECT: "creating a layout, render pass or sampler",
    DriverStep.MODULE: "creating a shader module",
    DriverStep.PREPARE: "preparing an image",
    DriverStep.LOAD: "creating a pipeline cache from data",
    DriverStep.CACHE: "creating a pipeline cache",
    DriverStep.MERGE: "merging pipeline caches",
    DriverStep.READ: "reading a pipeline cache",
    DriverStep.BINARIES: "handling pipeline binaries",
    DriverStep.DESTROY: "destroying objects",
    DriverStep.OPEN: "opening the device",
    DriverStep.FROM_BINARIES: "creating pipelines from binaries",
}

OF_PIPELINES: Final = frozenset(
    {DriverStep.CREATE, DriverStep.FROM_BINARIES, DriverStep.KEYS, DriverStep.OBJECT, DriverStep.MODULE}
)
"""What is done for pipelines that can be told."""


@frozen
class Flight:
    """One call that is in the driver.

    Attributes:
        step: What it does in the driver.
        numbers: Numbers of the pipelines, object or module in the image.
        since_ns: When it began, on the clock of time.monotonic_ns.
    """

    step: DriverStep
    numbers: tuple[int, ...]
    since_ns: int


class InFlightTable:
    """The shared memory. `begin` and `end` are thread-safe, the rest belongs to one thread.

    Attributes:
        descriptor: Of a memfd; the other process makes a table of its own with it.
        owner: The device whose image the numbers are of; None for none.
        turn: Held while that changes.
    """

    def __init__(self, descriptor: int) -> None:
        """Use the memory behind a descriptor, which stays the caller's; new memory is made large enough.

        Raises:
            OSError: There is no room for it, or it is larger than a file may be (`ulimit -f`).
        """
        self.descriptor = descriptor
        if os.fstat(descriptor).st_size < _MARKS:
            try:
                os.ftruncate(descriptor, _MARKS)
            except OSError as error:
                # The system counts it as a file, and it has no path.
                what = f"{_MARKS >> 20} MiB of memory that processes share"
                raise OSError(error.errno, os.strerror(error.errno or 0), what) from None
        self._memory = mmap.mmap(descriptor, _MARKS)
        self._free: tuple[list[int], list[int]] = [], []
        self._used = 0
        self._lock, self.turn = threading.Lock(), threading.Lock()
        self._marks: memoryview[int] = memoryview(b"").cast("I")
        self.owner: AnnouncingDevice | None = None

    # --- the process that is in the driver

    def clear(self) -> None:
        """Begin: nothing is in the driver, and nothing was created."""
        self._free, self._used, self.owner = ([], []), 0, None
        _HEADER.pack_into(self._memory, 0, 0)
        os.ftruncate(self.descriptor, _MARKS)

    def prepare(self, pipelines: int) -> int:
        """Begin another image: make room for marks of so many pipelines; returns where they are."""
        ended: list[int] = []
        while self._free[True]:  # taken out, so that no call begins in one meanwhile
            with suppress(IndexError):
                ended.append(self._free[True].pop())
        for slot in ended:  # what came back has numbers of another image
            _SLOT.pack_into(self._memory, _HEADER.size + slot * _STRIDE, 0, 0, 0, 0, 0)
        self._free[True].extend(ended)
        # Those of images before it stay: whoever looks on may not have read the last of them.
        at = os.fstat(self.descriptor).st_size
        size = -(-_MARK_BYTES * max(1, pipelines) // _PAGE) * _PAGE
        os.ftruncate(self.descriptor, at + size)
        self._marks = memoryview(mmap.mmap(self.descriptor, size, offset=at)).cast("I")
        return at

    def begin(self, step: DriverStep, numbers: npt.NDArray[np.int32]) -> int:
        """Say that a call goes to the driver; returns what `end` takes.

        What is of pipelines has slots of its own: after a death they say what came back last.
        """
        try:
            slot = self._free[step in OF_PIPELINES].pop()
        except IndexError:
            slot = self._new_slot()
        at = _HEADER.size + slot * _STRIDE
        count = len(numbers)
        smallest = largest = 0
        if count <= _HELD:
            body = at + _SLOT.size
            self._memory[body : body + 4 * count] = numbers.tobytes()
        else:
            smallest, largest = int(numbers.min()), int(numbers.max())
        # Last, and with the count: before it the slot says that nothing is in the driver.
        _SLOT.pack_into(self._memory, at, time.monotonic_ns(), step, count, smallest, largest)
        return slot

    def end(self, slot: int) -> None:
        """The call came back. What it was stays readable until the slot is used again."""
        at = _HEADER.size + slot * _STRIDE
        _, step, *_ = _SLOT.unpack_from(self._memory, at)
        _STAMP.pack_into(self._memory, at, 0)
        self._free[step in OF_PIPELINES].append(slot)

    @contextmanager
    def announced(
        self, step: DriverStep, numbers: Sequence[int] | npt.NDArray[np.int32] = _NOTHING
    ) -> Iterator[None]:
        """Say that a call goes to the driver, for a block."""
        slot = self.begin(step, np.asarray(numbers, np.int32))
        try:
            yield
        finally:
            self.end(slot)

    def mark(self, number: int, time_ns: int) -> None:
        """Say that a pipeline was compiled, and how long the driver took."""
        self._marks[number] = min(max(1, time_ns // 1000), _MOST_US)

    def _new_slot(self) -> int:
        with self._lock:
            slot = self._used
            self._used += 1
            _HEADER.pack_into(self._memory, 0, self._used)
            return slot

    # --- the process that looks on

    def flights(self, *, ended: bool = False) -> list[Flight]:
        """Calls in the driver, now or when the process died; with `ended` those for pipelines that ended."""
        (used,) = _HEADER.unpack_from(self._memory, 0)
        slots = range(min(used, _MOST_SLOTS))
        return [found for slot in slots if (found := self._flight(slot, ended=ended)) is not None]

    def marks(self, at: int, pipelines: int) -> npt.NDArray[np.uint32]:
        """Microseconds that the driver took for what was compiled, by number in an image; 0: it was not.

        A copy.

        Args:
            at: Where they are, as `prepare` returned it.
            pipelines: Number of pipelines of the image.
        """
        return np.frombuffer(os.pread(self.descriptor, _MARK_BYTES * pipelines, at), np.uint32)

    def _flight(self, slot: int, *, ended: bool) -> Flight | None:
        at = _HEADER.size + slot * _STRIDE
        stamp, step, count, smallest, largest = _SLOT.unpack_from(self._memory, at)
        if bool(stamp) is ended or not step or (ended and step not in OF_PIPELINES):
            return None
        if count > _HELD:
            numbers = tuple(range(smallest, largest + 1))
        else:
            body = at + _SLOT.size
            numbers = tuple(np.frombuffer(self._memory[body : body + 4 * count], np.int32).tolist())
        # Where the process lives, the call may have ended meanwhile, and another one may have the slot.
        if _SLOT.unpack_from(self._memory, at)[0] != stamp:
            return None
        return Flight(DriverStep(step), numbers, stamp)


OBJECTS: Final = {"object": DriverStep.OBJECT, "module": DriverStep.MODULE}
"""What is created, as `Device.prepare` names it."""


def announcing(
    device: Device,
    table: InFlightTable,
    on_image: Callable[[CreateInfoImage, int], None],
    gate: MemoryGate,
    given_up: Iterable[DriverStep] = (),
    distrusted: Iterable[int] = (),
) -> Device:
    """A device that announces its calls.

    Args:
        device: The device; it is closed with what is returned.
        table: Where calls are announced.
        on_image: Called with each image, and where its marks are, before numbers are of that image. The
            driver may have its objects then, but none of its pipelines.
        gate: Lets batches begin.
        given_up: What the driver is not asked for: it ended processes over that, or did not come back.
        distrusted: Keys of pipelines that are not created from their binaries, likewise.
    """
    kind = AnnouncingInspector if isinstance(device, ExecutableInspector) else AnnouncingDevice
    return kind(device, table, on_image, gate, frozenset(given_up), frozenset(distrusted))


@frozen(eq=False)
class AnnouncingPipelines:
    """An image on such a device; see `PreparedPipelines`."""

    prepared: PreparedPipelines
    device: AnnouncingDevice

    def __eq__(self, other: object) -> bool:
        """It is what it wraps: a source of binaries is given one and the other."""
        return other is self or other is self.prepared

    def __hash__(self) -> int:
        """See `__eq__`."""
        return hash(self.prepared)

    @property
    def image(self) -> CreateInfoImage:
        """See `PreparedPipelines.image`."""
        return self.prepared.image

    @property
    def identified(self) -> IdentifiedModules | None:
        """See `PreparedPipelines.identified`."""
        return self.prepared.identified

    @property
    def unusable(self) -> dict[int, str]:
        """See `PreparedPipelines.unusable`."""
        return self.prepared.unusable

    def close(self) -> None:
        """See `PreparedPipelines.close`."""
        self.device.destroying(self.prepared.close)


@frozen(eq=False)
class AnnouncingDevice:
    """See `announcing`; its methods are those of `Device`."""

    device: Device
    table: InFlightTable
    on_image: Callable[[CreateInfoImage, int], None]
    gate: MemoryGate
    given_up: frozenset[DriverStep] = frozenset()
    distrusted: frozenset[int] = frozenset()

    @property
    def identity(self) -> DeviceIdentity:
        """See `Device.identity`."""
        return self.device.identity

    @property
    def features(self) -> DeviceFeatures:
        """See `Device.features`."""
        return self.device.features

    @property
    def capabilities(self) -> DeviceCapabilities:
        """See `Device.capabilities`."""
        return self.device.capabilities

    @property
    def supported(self) -> DeviceCapabilities:
        """See `Device.supported`."""
        return self.device.supported

    @property
    def handles(self) -> DeviceHandles | None:
        """See `Device.handles`."""
        return self.device.handles

    def prepare(
        self,
        image: CreateInfoImage | IdentifiedModules,
        before: BeforeObject = no_news,
        *,
        modules_on_demand: bool = False,
    ) -> PreparedPipelines:
        """See `Device.prepare`."""
        with self.table.turn:
            is_next = self.table.owner in (None, self)
            if is_next:
                self._begin(image.image)
        if not is_next:
            with self.table.announced(DriverStep.OPEN):
                prepared = self.device.prepare(image, before, modules_on_demand=modules_on_demand)
            return AnnouncingPipelines(prepared, self)
        slot = self.table.begin(DriverStep.PREPARE, _NOTHING)

        def announce(what: str, number: int) -> None:
            nonlocal slot
            before(what, number)
            self.table.end(slot)
            slot = self.table.begin(OBJECTS[what], np.array([number], np.int32))

        try:
            prepared = self.device.prepare(image, announce, modules_on_demand=modules_on_demand)
        finally:
            self.table.end(slot)
        return AnnouncingPipelines(prepared, self)

    def create_pipelines(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
        fail_on_compile_required: bool = False,
        split: CallSplit | None = None,
    ) -> CreationBatch:
        """See `Device.create_pipelines`."""
        create = partial(self._create, self._own(prepared), source, keep, fail_on_compile_required)
        return in_calls(self, indices, split, create)  # each is announced, and has its own time limit

    def _create(
        self,
        prepared: PreparedPipelines,
        source: PipelineSource,
        keep: bool,
        fail_on_compile_required: bool,
        indices: npt.NDArray[np.int32],
    ) -> CreationBatch:
        slot = self.gate.enter(self.table.flights, partial(self.table.begin, DriverStep.CREATE, indices))
        began_ns = time.perf_counter_ns()
        try:
            if isinstance(source, BinarySource):
                telling = cast("PipelineBinaries", _TellingOfBinaries(self))
                batch = create_with_binaries(
                    telling,
                    prepared,
                    indices,
                    source,
                    keep=keep,
                    fail_on_compile_required=fail_on_compile_required,
                )
            else:
                batch = self.device.create_pipelines(
                    prepared, indices, source, keep=keep, fail_on_compile_required=fail_on_compile_required
                )
        finally:
            self.table.end(slot)
        if not batch.all_hits:
            wall_ns = time.perf_counter_ns() - began_ns
            times_ns = driver_time_ns(batch.feedback_flags, batch.durations_ns, wall_ns)
            columns = indices, batch.results, batch.feedback_flags, times_ns
            for number, result, flags, time_ns in zip(*(each.tolist() for each in columns), strict=True):
                if result == SUCCESS and not flags & FEEDBACK_APPLICATION_CACHE_HIT:
                    self.table.mark(number, time_ns)
        return batch

    def destroy_pipelines(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `Device.destroy_pipelines`."""
        self.destroying(lambda: self.device.destroy_pipelines(handles))

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        """See `Device.pipeline_keys`."""
        own = self._own(prepared)
        with self.table.announced(DriverStep.KEYS, indices):
            return self.device.pipeline_keys(own, indices)

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        step = DriverStep.LOAD if initial_data else DriverStep.CACHE
        with self._allowed(step, "vkCreatePipelineCache"):
            cache = self.device.create_pipeline_cache(
                initial_data,
                externally_synchronized=externally_synchronized,
                internally_synchronized_merge=internally_synchronized_merge,
                name=name,
            )
        cache.device = self  # what is done with it is announced too
        return cache

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """See `Device.merge_pipeline_caches`."""
        with self._allowed(DriverStep.MERGE, "vkMergePipelineCaches"):
            self.device.merge_pipeline_caches(destination, sources)

    def pipeline_cache_size(self, cache: PipelineCache) -> int:
        """See `Device.pipeline_cache_size`."""
        with self._allowed(DriverStep.READ, "vkGetPipelineCacheData"):
            return self.device.pipeline_cache_size(cache)

    def pipeline_cache_data(self, cache: PipelineCache, limit: int | None = None) -> PipelineCacheData:
        """See `Device.pipeline_cache_data`."""
        with self._allowed(DriverStep.READ, "vkGetPipelineCacheData"):
            return self.device.pipeline_cache_data(cache, limit)

    def destroy_pipeline_cache(self, cache: PipelineCache) -> None:
        """See `Device.destroy_pipeline_cache`."""
        self.destroying(lambda: self.device.destroy_pipeline_cache(cache))

    # Binaries; `create_pipelines` announces what is compiled and captured for a source of them.

    @property
    def binary_properties(self) -> BinaryProperties:
        """See `PipelineBinaries.binary_properties`."""
        return self._binaries.binary_properties

    def global_pipeline_key(self) -> bytes:
        """See `PipelineBinaries.global_pipeline_key`."""
        return self._binaries.global_pipeline_key()

    def create_binaries(self, binaries: Sequence[PipelineBinary]) -> npt.NDArray[np.uint64]:
        """See `PipelineBinaries.create_binaries`."""
        with self._allowed(DriverStep.BINARIES, "vkCreatePipelineBinariesKHR"):
            return self._binaries.create_binaries(binaries)

    def destroy_binaries(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `PipelineBinaries.destroy_binaries`."""
        self.destroying(lambda: self._binaries.destroy_binaries(handles))

    def binary_data(self, handles: npt.NDArray[np.uint64]) -> tuple[PipelineBinary, ...]:
        """See `PipelineBinaries.binary_data`."""
        with self._allowed(DriverStep.BINARIES, "vkGetPipelineBinaryDataKHR"):
            return self._binaries.binary_data(handles)

    def create_from_binaries(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        held: HeldBinaries,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """See `PipelineBinaries.create_from_binaries`."""
        own = self._own(prepared)
        trusted = np.full(len(indices), DriverStep.FROM_BINARIES not in self.given_up)
        if self.distrusted:
            trusted &= [each not in self.distrusted for each in own.image.keys[indices].tolist()]
        if trusted.all():
            with self.table.announced(DriverStep.FROM_BINARIES, indices):
                return self._binaries.create_from_binaries(own, indices, held, keep=keep)
        batch = CreationBatch.of_zeros(len(indices))
        batch.results[:] = ERROR_UNKNOWN  # as if the driver refused, so that they are compiled
        if trusted.any():
            asked = HeldBinaries(held.counts[trusted], held.handles[np.repeat(trusted, held.counts)])
            with self.table.announced(DriverStep.FROM_BINARIES, indices[trusted]):
                made = self._binaries.create_from_binaries(own, indices[trusted], asked, keep=keep)
            batch.put(np.flatnonzero(trusted), made)
        return batch

    def create_captured(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32], *, keep: bool = False
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """See `PipelineBinaries.create_captured`."""
        own = self._own(prepared)
        with self.table.announced(DriverStep.CREATE, indices):
            return self._binaries.create_captured(own, indices, keep=keep)

    def probe_internal_cache(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[npt.NDArray[np.uint64] | None]:
        """See `PipelineBinaries.probe_internal_cache`."""
        own = self._own(prepared)
        with self.table.announced(DriverStep.KEYS, indices):
            return self._binaries.probe_internal_cache(own, indices)

    # Identifiers of modules; `create_pipelines` announces what the device does with them too.

    @property
    def identifier_algorithm(self) -> bytes:
        """See `ModuleIdentification.identifier_algorithm`."""
        return self._identification.identifier_algorithm

    def module_identifiers(self, prepared: PreparedPipelines, modules: Sequence[int]) -> list[bytes]:
        """See `ModuleIdentification.module_identifiers`."""
        own = self._own(prepared)
        with self.table.announced(DriverStep.MODULE, modules):
            return self._identification.module_identifiers(own, modules)

    def code_identifier(self, prepared: PreparedPipelines, module: int) -> bytes:
        """See `ModuleIdentification.code_identifier`."""
        own = self._own(prepared)
        with self.table.announced(DriverStep.MODULE, [module]):
            return self._identification.code_identifier(own, module)

    def create_identified(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        *,
        keep: bool = False,
    ) -> CreationBatch:
        """See `ModuleIdentification.create_identified`."""
        own = self._own(prepared)
        with self.table.announced(DriverStep.CREATE, indices):
            return self._identification.create_identified(own, indices, source, keep=keep)

    def _own(self, prepared: PreparedPipelines) -> PreparedPipelines:
        """What the device itself prepared; from now on the numbers are of its image."""
        if self.table.owner is not self:
            with self.table.turn:
                if self.table.owner is not self:  # another thread of this run may have been first
                    self._begin(prepared.image)
        return prepared.prepared if isinstance(prepared, AnnouncingPipelines) else prepared

    def _begin(self, image: CreateInfoImage) -> None:
        self.on_image(image, self.table.prepare(len(image)))
        self.table.owner = self

    def destroying(self, destroy: Callable[[], None]) -> None:
        """Announce that something is destroyed, unless all stays until the process ends."""
        if DriverStep.DESTROY not in self.given_up:
            with self.table.announced(DriverStep.DESTROY):
                destroy()

    @contextmanager
    def _allowed(self, step: DriverStep, command: str) -> Iterator[None]:
        """Announce a call, unless it is given up."""
        if step in self.given_up:
            raise DriverError(command, ERROR_UNKNOWN, "VK_ERROR_UNKNOWN, for it was not asked again,")
        with self.table.announced(step):
            yield

    @property
    def _identification(self) -> ModuleIdentification:
        if not has_identification(self.device):
            raise DeviceError(f"{self.identity.device_name} has no shader-module identifiers")
        return self.device

    @property
    def _binaries(self) -> PipelineBinaries:
        if not has_binaries(self.device):
            raise DeviceError(f"{self.identity.device_name} has no pipeline binaries")
        return self.device

    def close(self) -> None:
        """See `Device.close`."""
        with self.table.turn:
            if self.table.owner is self:
                self.table.owner = None
        self.destroying(self.device.close)


@frozen(eq=False)
class _TellingOfBinaries:
    """The device itself within a call that is announced; what it makes of binaries is announced too."""

    announcing: AnnouncingDevice

    def __getattr__(self, name: str) -> Any:
        return getattr(self.announcing if name == "create_from_binaries" else self.announcing.device, name)


class AnnouncingInspector(AnnouncingDevice):
    """One that also tells about the code of pipelines."""

    def pipeline_executables(self, prepared: PreparedPipelines, index: int) -> PipelineExecutables:
        """See `ExecutableInspector.pipeline_executables`."""
        assert isinstance(self.device, ExecutableInspector)  # noqa: S101 - `announcing` asked
        own = self._own(prepared)
        with self.table.announced(DriverStep.CREATE, [index]):
            return self.device.pipeline_executables(own, index)
