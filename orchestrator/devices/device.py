"""The seam between the scheduler's side of the house and whatever compiles: the class `Device`.

Everything else is written against it, and never sees a `vk` name or what a handle means. `Device` does what
comes before a driver is entered: it refuses what was closed, what belongs to another device, and uses that
break the rules of host synchronization, and tells the observer of each driver call. A driver behind it
implements the methods at its end. Every device guarantees:

- Methods are synchronous and block for as long as the driver needs; a driver call cannot be cancelled. They
  may be called from any thread, several at a time, except where `PipelineSource` and a method's own text want
  external synchronization. Breaking that raises ExternalSynchronizationError before the driver is entered.
- Positive VkResults are values. Negative ones raise DriverError, except those of single pipelines, which are
  results of `create_pipelines`.
- Once the device is closed, every method but `close` raises DeviceError, or ExternalSynchronizationError
  where it is given a source, all of which were destroyed.
- The device owns what it hands out (sources, prepared pipelines, binaries). `close` destroys what is left.
- In a child of `os.fork` the device is closed: nothing is destroyed there, and closing does nothing.
"""

from __future__ import annotations

import enum
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, ClassVar, Final, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

from orchestrator.devices.binary_data import (
    BinaryProperties,
    CapturedPipeline,
    HeldBinaries,
    PipelineBinary,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.image import CreateInfoImage, Indices
from orchestrator.errors import DeviceError, DriverError, ExternalSynchronizationError
from orchestrator.registry.tables import registry

SUCCESS = 0
NOT_READY = 1
INCOMPLETE = 5
PIPELINE_COMPILE_REQUIRED = 1000297000
ERROR_OUT_OF_HOST_MEMORY = -1
ERROR_OUT_OF_DEVICE_MEMORY = -2
ERROR_INITIALIZATION_FAILED = -3
ERROR_DEVICE_LOST = -4
ERROR_UNKNOWN = -13

FEEDBACK_VALID = 1
FEEDBACK_APPLICATION_CACHE_HIT = 2
_HIT: Final = FEEDBACK_VALID | FEEDBACK_APPLICATION_CACHE_HIT

Handles = npt.NDArray[np.uint64]
_NONE: Final = np.empty(0, np.int32)


def check(command: str, result: int) -> int:
    """Pass the VkResult of a command on where it is zero or positive (VK_INCOMPLETE).

    Raises:
        DriverError: It is negative.
    """
    if result < 0:
        raise DriverError(command, result, registry().result_name(result))
    return result


@frozen
class DeviceIdentity:
    """What a cache of this device is valid for. Fields without a text are VkPhysicalDeviceProperties' own.

    Attributes:
        driver_version: VkPhysicalDeviceProperties::driverVersion, in the vendor's own encoding.
        driver_id: VkDriverId, 0 where the driver does not say.
        driver_abi: Bits of a pointer in the process that uses the driver.
        pipeline_cache_uuid: VkPhysicalDeviceProperties::pipelineCacheUUID, 16 bytes.
        device_name: For people, as are VkPhysicalDeviceDriverProperties' `driver_name` and `driver_info`.
    """

    vendor_id: int
    device_id: int
    driver_version: int
    driver_id: int
    driver_abi: int
    pipeline_cache_uuid: bytes
    api_version: int
    device_name: str
    driver_name: str
    driver_info: str


@frozen
class DeviceHandles:
    """Handles of Vulkan behind a device, as plain integers, for who calls Vulkan beside it.

    They live as long as the device. Calls with them need no synchronization with this package, except where
    the specification wants the handle itself externally synchronized: queues are never used here, and the
    device and the instance are destroyed after `Device.close` only. `queue_family` is that of the one queue
    that the device was created with; None where a host created it.
    """

    instance: int
    physical_device: int
    device: int
    get_instance_proc_addr: int = 0
    allocation_callbacks: int = 0
    queue_family: int | None = None


@frozen
class DeviceFeatures:
    """The features of a device that matter here.

    Attributes:
        externally_synchronized_caches: Caches may be externally synchronized (pipelineCreationCacheControl).
        creation_feedback: VkPipelineCreationFeedback is written, so that hits and driver time are known.
        pipeline_binaries: VK_KHR_pipeline_binary, with pipeline keys; false if these are withheld.
        shader_module_identifiers: VK_EXT_shader_module_identifier.
        internally_synchronized_merge: Caches can be merged into a primary that is in use (maintenance8).
        compile_required: A call can forbid compiling (FAIL_ON_PIPELINE_COMPILE_REQUIRED).
        driver_caches: How the driver's own caches were disabled: "disabled: <how>", or "enabled".
        layers: The layers between the program and the driver, each with the Vulkan version that it supports.
        keys_withheld: Why a driver with pipeline keys is not asked for them; "" if it is.
    """

    externally_synchronized_caches: bool
    creation_feedback: bool
    pipeline_binaries: bool
    shader_module_identifiers: bool
    internally_synchronized_merge: bool
    compile_required: bool
    driver_caches: str
    layers: tuple[str, ...] = ()
    keys_withheld: str = ""

    @property
    def layer_names(self) -> frozenset[str]:
        """The names of the layers."""
        return frozenset(name for each in self.layers for name in each.split()[:1])


class DeviceCapabilities(Protocol):
    """Answers what a captured pipeline may need of a device. Names are the registry's own."""

    @property
    def api_version(self) -> int:
        """The version to use: the smaller of the application's and VkPhysicalDeviceProperties::apiVersion."""

    def has_extension(self, name: str) -> bool:
        """Whether a device extension is enabled, or an instance extension is available."""

    def has_feature(self, struct: str, member: str) -> bool:
        """Whether a feature is enabled, such as ("VkPhysicalDeviceFeatures", "geometryShader")."""

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        """Value of a property, or None where the device does not have its structure."""

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """VkFormatProperties of a VkFormat: (linearTiling, optimalTiling, buffer) feature flags."""


CACHE_HEADER_SIZE: Final = 32
"""Bytes of VkPipelineCacheHeaderVersionOne (specification, "Pipeline Cache Header"): no pipeline is in it."""

# Behind the header: less than any driver needs for the key of a pipeline and what it finds by it.
_NO_PIPELINE_BYTES: Final = 32


def is_empty_cache(content: bytes | int) -> bool:
    """Whether a cache holds no pipeline, by its data, or by its size where the data was not read.

    For an empty cache some drivers return the header alone, RADV 36 bytes (the header and a count of zero),
    others more zeros. Zeros can only be told from the data: of a size alone, what may hold a pipeline counts
    as if it did.
    """
    if isinstance(content, int):
        return content <= CACHE_HEADER_SIZE + _NO_PIPELINE_BYTES
    if is_empty_cache(len(content)):
        return True
    size = int.from_bytes(content[:4], "little")  # headerSize, which may say that the header is longer
    start = size if CACHE_HEADER_SIZE <= size <= len(content) else CACHE_HEADER_SIZE
    # Compiled code is told from zeros by its first bytes, nearly always; the rest is counted only after that.
    return not any(content[start : start + 64]) and content.count(0, start) == len(content) - start


class PipelineCacheData(msgspec.Struct, frozen=True):
    """What a read gave: the driver's bytes, valid as initial data; not `complete` on VK_INCOMPLETE."""

    data: bytes
    complete: bool


class PipelineSource:
    """What `Device.create_pipelines` takes pipelines from and adds them to. Belongs to one device.

    A pipeline cache, nothing (`NoSource`), or a source of binaries. Whoever uses one never asks for the
    kind. Every use by a device is between `begin_use` and `end_use`, which check the rules of host
    synchronization: those of VK_PIPELINE_CACHE_CREATE_EXTERNALLY_SYNCHRONIZED_BIT, and of
    vkMergePipelineCaches and vkDestroyPipelineCache, which need a cache alone whatever its flags are.

    Operations block for as long as the driver needs, and raise DriverError and ExternalSynchronizationError.

    Attributes:
        name: For messages and reports, such as "worker 3".
        handle: VkPipelineCache, as the device's own handle; 0 for VK_NULL_HANDLE.
        externally_synchronized: Whether one call at a time may use it.
        internally_synchronized_merge: Whether it can be merged into while other calls use it.
        keeps: Whether it keeps what is compiled, so that merging, reading and saving it have a meaning.
        header_bytes: What `size` counts beside pipelines, in bytes.
        empty_bytes: The largest `size` of a source that holds no pipeline, in bytes.
        creates: Whether it creates pipelines itself, by `create`.
    """

    name: str
    handle: int = 0
    externally_synchronized: bool = False
    internally_synchronized_merge: bool = True
    keeps: ClassVar[bool] = False
    header_bytes: ClassVar[int] = 0
    empty_bytes: ClassVar[int] = 0
    creates: ClassVar[bool] = False

    def create(
        self,
        device: Device,
        prepared: PreparedPipelines,
        indices: Indices,
        *,
        keep: bool,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        """`Device.create_pipelines` for a source that `creates`.

        Raises:
            NotImplementedError: This source does not.
        """
        raise NotImplementedError

    def begin_use(self, what: str, *, alone: bool = False) -> None:
        """Begin a use by a driver call, which the error text names; `end_use` ends it.

        Raises:
            ExternalSynchronizationError: It was destroyed, or this call or another one needs it alone.
        """

    def end_use(self) -> None:
        """End a use; once for each `begin_use` that returned."""

    @contextmanager
    def using(self, what: str, *, alone: bool = False) -> Iterator[None]:
        """`begin_use` and `end_use` around a block."""
        self.begin_use(what, alone=alone)
        try:
            yield
        finally:
            self.end_use()

    def size(self) -> int:
        """Bytes that `data` would give now."""
        return len(self.data())

    def data(self) -> bytes:
        """All of it as bytes, to begin another source of the kind with."""
        return b""

    def for_worker(self, data: bytes, name: str, *, externally_synchronized: bool) -> PipelineSource:
        """Make a source that a worker fills, beginning with data, to be merged into this one later.

        The caller destroys it. A source that all workers share is its own.
        """
        del data, name, externally_synchronized
        return self

    def merge(self, sources: Sequence[PipelineSource]) -> None:
        """Take in what others of the kind hold, who keep it too; DeviceError if it is among them."""

    def destroy(self) -> None:
        """Destroy it, when it is not in use. Idempotent."""


@define(eq=False)
class PipelineCache(PipelineSource):
    """A VkPipelineCache. Made by `Device.create_pipeline_cache`. For any thread."""

    keeps = True
    header_bytes = CACHE_HEADER_SIZE
    empty_bytes = CACHE_HEADER_SIZE + _NO_PIPELINE_BYTES  # as `is_empty_cache` of a size

    handle: int
    externally_synchronized: bool
    internally_synchronized_merge: bool
    name: str
    device: Device = field(repr=False)
    destroyed: bool = field(default=False, init=False)
    _users: int = field(default=0, init=False, repr=False)
    _alone: bool = field(default=False, init=False, repr=False)
    _mutex: threading.Lock = field(factory=threading.Lock, init=False, repr=False)

    def begin_use(self, what: str, *, alone: bool = False) -> None:
        """See `PipelineSource.begin_use`."""
        with self._mutex:
            if self.destroyed:
                raise ExternalSynchronizationError(
                    f"{what}: pipeline cache {self.name!r} was destroyed before"
                )
            if self._alone or (self._users and (alone or self.externally_synchronized)):
                raise ExternalSynchronizationError(f"{what}: pipeline cache {self.name!r} is {self._in_use}")
            self._users += 1
            self._alone = alone

    @property
    def _in_use(self) -> str:
        if self.externally_synchronized:
            return (
                "externally synchronized and in use by another thread; give each worker its own cache, and "
                "merge only after the barrier"
            )
        if self._alone:
            return "being merged into or destroyed by another thread"
        return (
            "in use by another thread; the specification requires external synchronization here, whatever "
            "the cache's flags are"
        )

    def end_use(self) -> None:
        """See `PipelineSource.end_use`."""
        with self._mutex:
            self._users -= 1
            self._alone = False

    def size(self) -> int:
        """See `Device.pipeline_cache_size`."""
        return self.device.pipeline_cache_size(self)

    def data(self) -> bytes:
        """See `Device.pipeline_cache_data`."""
        return self.device.pipeline_cache_data(self).data

    def for_worker(self, data: bytes, name: str, *, externally_synchronized: bool) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        return self.device.create_pipeline_cache(
            data, externally_synchronized=externally_synchronized, name=name
        )

    def merge(self, sources: Sequence[PipelineSource]) -> None:
        """See `Device.merge_pipeline_caches`."""
        caches = [each for each in sources if isinstance(each, PipelineCache)]
        if len(caches) != len(sources):
            raise DeviceError(f"pipeline cache {self.name!r} takes in pipeline caches only")
        self.device.merge_pipeline_caches(self, caches)

    def destroy(self) -> None:
        """See `Device.destroy_pipeline_cache`."""
        self.device.destroy_pipeline_cache(self)


class NoSource(PipelineSource):
    """No source: VK_NULL_HANDLE. Everything is compiled, nothing is kept. For any thread and device."""

    name = "no source"

    def __repr__(self) -> str:
        return "NO_SOURCE"


NO_SOURCE: Final = NoSource()
"""The one `NoSource`."""


class CreationBatch(msgspec.Struct, eq=False):
    """What one call of `create_pipelines` gave, one element a pipeline, in the order asked for.

    Attributes:
        results: VkResult of each, int32: 0 created, 1000297000 compile required, negative failed, 1
            (VK_NOT_READY) not handed to the driver.
        feedback_flags: VkPipelineCreationFeedbackFlags of each, uint32; 0 where there is no feedback.
        durations_ns: VkPipelineCreationFeedback::duration of each, uint64; 0 where there is no feedback.
        handles: Pipeline handles, uint64, of those that the caller asked to keep, and owns; else 0.
    """

    results: npt.NDArray[np.int32]
    feedback_flags: npt.NDArray[np.uint32]
    durations_ns: npt.NDArray[np.uint64]
    handles: Handles

    @property
    def all_created(self) -> bool:
        """Whether every result is VK_SUCCESS."""
        return not self.results.any()

    @property
    def all_hits(self) -> bool:
        """Whether the feedback of every one is valid and says that the cache had it."""
        return bool((self.feedback_flags & _HIT == _HIT).all())

    @classmethod
    def of_zeros(cls, count: int) -> CreationBatch:
        """A batch to write results into."""
        flags = np.zeros(count, np.uint32)
        return cls(np.zeros(count, np.int32), flags, np.zeros(count, np.uint64), np.zeros(count, np.uint64))

    @classmethod
    def compile_required(cls, count: int) -> CreationBatch:
        """A batch of pipelines that the driver was not asked for, since it would have to compile them."""
        batch = cls.of_zeros(count)
        batch.results[:] = PIPELINE_COMPILE_REQUIRED
        return batch

    def only(self, places: npt.NDArray[np.intp]) -> CreationBatch:
        """The results of some of its pipelines."""
        return CreationBatch(
            self.results[places], self.feedback_flags[places], self.durations_ns[places], self.handles[places]
        )

    def put(self, places: npt.NDArray[np.intp] | slice, part: CreationBatch) -> None:
        """Write the results of some of its pipelines into it."""
        self.results[places] = part.results
        self.feedback_flags[places] = part.feedback_flags
        self.durations_ns[places] = part.durations_ns
        self.handles[places] = part.handles


def joined(
    device: Device, count: int, parts: Iterable[tuple[npt.NDArray[np.intp] | slice, CreationBatch]]
) -> CreationBatch:
    """One batch of several, as they are made; what is in none of them has the result VK_NOT_READY.

    Where the next one cannot be made, those before are destroyed. After a lost device no other is made.
    """
    batch = CreationBatch.of_zeros(count)
    batch.results[:] = NOT_READY
    with destroyed_on_failure(device, batch):
        for places, part in parts:
            batch.put(places, part)
            if (part.results == ERROR_DEVICE_LOST).any():
                break  # each further call would fail
    return batch


@contextmanager
def destroyed_on_failure(device: Device, batch: CreationBatch) -> Iterator[None]:
    """Destroy the pipelines that a batch has by the time the block raises: nobody will learn of them."""
    try:
        yield
    except BaseException:
        device.destroy_pipelines(batch.handles)
        raise


class PipelineExecutable(msgspec.Struct, frozen=True):
    """The driver's information about one executable of a pipeline, such as the code of a stage."""

    name: str  # VkPipelineExecutablePropertiesKHR::name
    subgroup_size: int  # VkPipelineExecutablePropertiesKHR::subgroupSize
    stage_ns: int  # sum of the creation feedback of its stages, ns; 0 if the driver gives none
    # name and value of each VkPipelineExecutableStatisticKHR, in the driver's order
    statistics: tuple[tuple[str, bool | int | float], ...]
    # name and text of each VkPipelineExecutableInternalRepresentationKHR, if asked for
    representations: tuple[tuple[str, str], ...] = ()


class PipelineExecutables(msgspec.Struct, frozen=True):
    """A pipeline that was created for its statistics."""

    result: int  # VkResult of its creation
    wall_ns: int  # elapsed time of the call
    driver_ns: int  # driver time by creation feedback; 0 without
    executables: tuple[PipelineExecutable, ...]  # what the driver says of each of its executables


class DriverStep(enum.IntEnum):
    """What a device does in its driver, with its `words`."""

    words: str

    def __new__(cls, number: int, words: str = "") -> Self:
        """A step by its number."""
        step = int.__new__(cls, number)
        step._value_, step.words = number, words
        return step

    CREATE = 1, "creating pipelines"
    KEYS = 2, "asking for keys of pipelines"
    OBJECT = 3, "creating a layout, render pass or sampler"
    MODULE = 4, "creating a shader module"
    LOAD = 5, "creating a pipeline cache from data"
    CACHE = 6, "creating a pipeline cache"
    MERGE = 7, "merging pipeline caches"
    READ = 8, "reading a pipeline cache"
    BINARIES = 9, "handling pipeline binaries"
    DESTROY = 10, "destroying objects"
    OPEN = 11, "opening the device"
    FROM_BINARIES = 12, "creating pipelines from binaries"


class DriverObserver:
    """Learns what a device gives to its driver, before the driver has it. This one does not care.

    Called from every thread that uses the device.
    """

    keeps_all: bool = False  # whether nothing is to be destroyed, and the device not closed

    def entering(
        self,
        step: DriverStep,
        image: CreateInfoImage | None = None,
        numbers: Indices = _NONE,
    ) -> int:
        """The driver is called now; `left` takes what this returns.

        Args:
            step: What it is asked for.
            image: The image that the numbers are of; of DESTROY the image that is closed.
            numbers: Of the pipelines, the object or the module.

        Raises:
            DriverError: The driver must not be asked for that.
        """
        del step, image, numbers
        return 0

    def left(self, call: int, numbers: Indices = _NONE, batch: CreationBatch | None = None) -> None:
        """The driver has returned or refused; `batch` has what it found or compiled of these."""

    def distrusts_binaries(self, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        """Which pipelines must not be created from binaries, by key, shape (n,); None for none."""

    @contextmanager
    def calling(
        self,
        step: DriverStep,
        image: CreateInfoImage | None = None,
        numbers: Indices = _NONE,
    ) -> Iterator[None]:
        """Tell of a driver call that the block makes."""
        call = self.entering(step, image, numbers)
        try:
            yield
        finally:
            self.left(call)

    def creating(
        self,
        step: DriverStep,
        image: CreateInfoImage,
        numbers: Indices,
        create: Callable[[], CreationBatch],
    ) -> CreationBatch:
        """Tell of a driver call that creates pipelines, and what it created."""
        call, batch = self.entering(step, image, numbers), None
        try:
            batch = create()
            return batch
        finally:
            self.left(call, numbers, None if step is DriverStep.FROM_BINARIES else batch)


class PreparedPipelines(ABC):
    """An image bound to a device: its layouts and render passes exist, its pointers are real.

    Owned by whoever prepared it; `close` after the last call that uses it. Thread-safe.

    Attributes:
        identified: What is known of modules whose code is not there; None where it is.
        unusable: Pipelines that cannot be handed to the driver, by index, with the cause.
        busy: Pipelines that a call is creating; the device's, as `calls`, which counts those that use any.
    """

    unusable: dict[int, str]

    def __init__(self, device: Device, given: CreateInfoImage | IdentifiedModules) -> None:
        self.identified: Final = given if isinstance(given, IdentifiedModules) else None
        self.image: Final = given.image
        self.busy: Final = np.zeros(len(self.image), np.bool_)
        self.calls = 0
        self._device = device

    def close(self) -> None:
        """Destroy what is behind it, when no call uses its pipelines. Idempotent."""
        self._device.close_prepared(self)

    @abstractmethod
    def destroy(self) -> None:
        """Destroy what is behind it: its device does, once, when no call uses it."""


class Device(ABC):
    """What compiles. The top of the module says what every device guarantees.

    Attributes:
        identity: What caches of this device are valid for.
        features: What it offers to an orchestrator.
        capabilities: What is enabled of what captured pipelines may need.
        handles: Handles of Vulkan, for who draws with what was created; None where there is no Vulkan.
        observer: Learns of all driver calls but the opening; set before anything is asked of the device.
        inspects: Whether it can tell about the code of pipelines, by `pipeline_executables`.
    """

    inspects: ClassVar[bool] = False
    identity: DeviceIdentity
    features: DeviceFeatures
    capabilities: DeviceCapabilities
    handles: DeviceHandles | None

    def __init__(self) -> None:
        self.observer = DriverObserver()
        self._process = os.getpid()
        # Under this: what there is, and the calls in flight.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._calls = 0
        self._closed = False
        self._caches: set[PipelineCache] = set()
        self._prepared: set[PreparedPipelines] = set()

    @property
    @abstractmethod
    def supported(self) -> DeviceCapabilities:
        """What could be enabled of it, by another `DeviceRequest` for the same application."""

    # --- caches

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """Create a cache; the caller destroys it. Empty initial data is passed as a null pointer.

        Where the driver refuses the cache with a flag and not without, it is one without.

        Raises:
            DriverError: The driver refused.
            DeviceError: A flag is asked for that the device does not have, or both are.
        """
        flags = externally_synchronized, internally_synchronized_merge
        _check_cache_flags(self.features, *flags, name)
        with self._call():
            with self.observer.calling(DriverStep.LOAD if initial_data else DriverStep.CACHE):
                try:
                    handle = self._create_cache(initial_data, *flags, name)
                except DriverError:
                    if not any(flags):
                        raise
                    flags = False, False
                    handle = self._create_cache(initial_data, *flags, name)
            cache = PipelineCache(handle, *flags, name, self)
            with self._lock:
                self._caches.add(cache)
        return cache

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """Merge sources into the destination, which is not among them.

        Raises:
            DriverError: The driver refused.
            DeviceError: The destination is among the sources (VUID-vkMergePipelineCaches-dstCache-00770).
            ExternalSynchronizationError: One of them is in use.
        """
        what = "vkMergePipelineCaches"
        if destination in sources:
            raise DeviceError(f"pipeline cache {destination.name!r} cannot be merged into itself")
        with self._call(destination, *sources), ExitStack() as held:
            if not sources:
                return
            alone = not destination.internally_synchronized_merge
            held.enter_context(destination.using(what, alone=alone))
            for each in sources:
                held.enter_context(each.using(what))
            held.enter_context(self.observer.calling(DriverStep.MERGE))
            self._merge_caches(destination, sources)

    def pipeline_cache_size(self, cache: PipelineCache) -> int:
        """Bytes that a read would give now; raises what a read does."""
        with self._reading(cache):
            # A driver that says success and no size is read: what it gives has at least a header.
            return self._cache_size(cache) or len(self._cache_data(cache).data)

    def pipeline_cache_data(self, cache: PipelineCache) -> PipelineCacheData:
        """Read a cache back; again while it grows between the size query and the read.

        Raises:
            DriverError: The driver refused.
            ExternalSynchronizationError: The cache is externally synchronized and in use, or was destroyed.
        """
        with self._reading(cache):
            return self._cache_data(cache)

    def destroy_pipeline_cache(self, cache: PipelineCache) -> None:
        """Destroy a cache that is not in use. Idempotent."""
        if cache.destroyed or self.observer.keeps_all:
            return
        with self._call(cache):
            self._destroy(cache)

    # --- pipelines

    def prepare(
        self, image: CreateInfoImage | IdentifiedModules, *, modules_on_demand: bool = False
    ) -> PreparedPipelines:
        """Bind an image: create its objects and modules, fill its pointers and handles. The caller closes it.

        What the driver refuses, and SPIR-V that cannot be read, make the pipelines that need them
        `unusable`, and are not raised. With `modules_on_demand` each shader module is made when the first
        call needs it, which raises what is wrong with it: where most pipelines are created from binaries,
        most are never read. So are those of an image of which only identifiers are known.
        """
        with self._call():
            prepared = self._bind(image, modules_on_demand)
            with self._lock:
                self._prepared.add(prepared)
        return prepared

    def close_prepared(self, prepared: PreparedPipelines) -> None:
        """`PreparedPipelines.close`."""
        if not self._is_own:
            return
        with self._lock:
            if prepared not in self._prepared or self.observer.keeps_all:
                return
            if prepared.calls:
                raise ExternalSynchronizationError(
                    "close: the prepared pipelines are in use by another thread; end the session or run first"
                )
            self._prepared.discard(prepared)
            self._calls += 1
        try:
            with self.observer.calling(DriverStep.DESTROY, prepared.image):
                prepared.destroy()
        finally:
            with self._lock:
                self._ended()

    def create_pipelines(
        self,
        prepared: PreparedPipelines,
        indices: Indices,
        source: PipelineSource,
        *,
        keep: bool = False,
        fail_on_compile_required: bool = False,
    ) -> CreationBatch:
        """Create a batch of pipelines, one driver call a kind.

        A pipeline that fails does not take the others with it. A pipeline that links libraries needs them
        created before, in this device, by an earlier call or earlier in the same batch; else its result is
        VK_ERROR_UNKNOWN.

        Args:
            prepared: What `prepare` returned.
            indices: Pipelines to create, shape (n,), none twice, none in use by another thread.
            source: Where they are looked up, and kept; `NO_SOURCE` for nowhere.
            keep: Return the pipelines; otherwise the device destroys them, at the latest in `prepared.close`
                (libraries are kept until then).
            fail_on_compile_required: Set VK_PIPELINE_CREATE_FAIL_ON_PIPELINE_COMPILE_REQUIRED_BIT. The device
                has `DeviceFeatures.compile_required`.

        Raises:
            ExternalSynchronizationError: The source or one of the pipelines is in use.
            DeviceError: `prepared` or the source is another device's, or was closed; an index is out of range
                or occurs twice.
            OrchestratorError: A module that is made when it is needed could not be read or made.
        """
        if fail_on_compile_required and not self.features.compile_required:
            raise DeviceError(f"{self._name} has no FAIL_ON_PIPELINE_COMPILE_REQUIRED")
        identified = prepared.identified
        if identified is not None or source.creates:
            _require_pipelines(prepared, indices)  # `_bound` does it where nothing is looked up before
        if source.creates:
            create = partial(source.create, self, prepared)
        elif identified is not None and identified.lacking[indices].any():
            create = partial(self._create_speculatively, prepared, source, identified)
        else:
            with self._bound(prepared, source, indices) as bound:
                made = partial(self._create, bound, indices, source, fail_on_compile_required, keep=keep)
                return self.observer.creating(DriverStep.CREATE, bound.image, indices, made)
        return create(indices, keep=keep, fail_on_compile_required=fail_on_compile_required)

    def destroy_pipelines(self, handles: Handles) -> None:
        """Destroy pipelines that were kept and are in use nowhere; zeros are skipped."""
        if self.observer.keeps_all:
            return
        with self._call(), self.observer.calling(DriverStep.DESTROY):
            self._destroy_pipelines(np.asarray(handles, np.uint64))

    def pipeline_keys(self, prepared: PreparedPipelines, indices: Indices) -> list[bytes | None]:
        """vkGetPipelineKeyKHR of each pipeline; None for one that links libraries, or where there is none.

        Of one whose code is lacking, by the identifiers of its modules; None where one is not known. No
        other thread may use one of them.
        """
        self._require_binaries("no pipeline keys")
        _require_pipelines(prepared, indices)
        with self._bound(prepared) as bound, self.observer.calling(DriverStep.KEYS, bound.image, indices):
            return self._pipeline_keys(bound, indices)

    def pipeline_executables(
        self, prepared: PreparedPipelines, index: int, *, code: bool = False
    ) -> PipelineExecutables:
        """Create a pipeline without a cache, with its statistics captured, look at it, and destroy it.

        With `code` its internal representations are captured too.

        No other thread may use it, and the libraries that it links exist. DeviceError where the device has
        no VK_KHR_pipeline_executable_properties.
        """
        number, batch = np.array([index], np.int32), None
        with self._bound(prepared) as bound:
            call = self.observer.entering(DriverStep.CREATE, bound.image, number)
            try:
                found = self._executables(bound, index, code)
                batch = CreationBatch.of_zeros(1)
                batch.results[0], batch.durations_ns[0] = found.result, found.driver_ns
            finally:
                self.observer.left(call, number, batch)
        return found

    def _create_speculatively(
        self,
        prepared: PreparedPipelines,
        source: PipelineSource,
        identified: IdentifiedModules,
        indices: Indices,
        *,
        keep: bool,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        # What lacks code is made from identifiers, which forbids compiling, the rest from code. What links a
        # library that was made of identifiers either forbids compiling too, or gets a library made of code
        # (VUID-VkPipelineLibraryCreateInfoKHR-pLibraries-06855).
        lacking = identified.lacking[indices]

        def from_identifiers(indices: Indices) -> CreationBatch:
            batch = CreationBatch.compile_required(len(indices))
            known = np.flatnonzero(identified.known(indices))  # the driver is asked for no other
            if known.size:
                self._require_identifiers()
                some = indices[known]
                with self._bound(prepared, source, some) as bound:
                    create = partial(self._create, bound, some, source, True, keep=keep, identified=True)
                    batch.put(known, self.observer.creating(DriverStep.CREATE, bound.image, some, create))
            return batch

        def created(places: npt.NDArray[np.intp]) -> CreationBatch:
            some = indices[places]
            if lacking[places[0]]:
                return from_identifiers(some)
            return self.create_pipelines(
                prepared, some, source, keep=keep, fail_on_compile_required=fail_on_compile_required
            )

        parts = [
            places
            for level in prepared.image.levels(indices)
            for places in (level[lacking[level]], level[~lacking[level]])
            if places.size
        ]
        if len(parts) == 1:
            return created(parts[0])
        return joined(self, len(indices), ((places, created(places)) for places in parts))

    # --- identifiers of modules (identified.py); without them each of these raises DeviceError

    @property
    @abstractmethod
    def identifier_algorithm(self) -> bytes:
        """shaderModuleIdentifierAlgorithmUUID, 16 bytes; empty where the device has no identifiers."""

    def code_identifier(self, prepared: PreparedPipelines, module: int) -> bytes:
        """vkGetShaderModuleCreateInfoIdentifierEXT of a module: by its code, without making it."""
        self._require_identifiers()
        number = np.array([module], np.int32)
        with self._bound(prepared) as bound, self.observer.calling(DriverStep.MODULE, bound.image, number):
            return self._code_identifier(bound, module)

    # --- binaries (binaries.py); without them each of these raises DeviceError

    @property
    @abstractmethod
    def binary_properties(self) -> BinaryProperties:
        """What the driver says of its binaries."""

    def global_pipeline_key(self) -> bytes:
        """vkGetPipelineKeyKHR without a create info: keys hold as long as this is the same."""
        self._require_binaries("no global pipeline key")
        with self._call():
            return self._global_key()

    def create_binaries(self, binaries: Sequence[PipelineBinary]) -> Handles:
        """Make binaries of data, which is copied, in one driver call; all of them or DriverError."""
        self._require_binaries()
        with self._call(), self.observer.calling(DriverStep.BINARIES):
            return self._create_binaries(binaries)

    def destroy_binaries(self, handles: Handles) -> None:
        """Destroy binaries that nothing uses; zeros are skipped."""
        if self.observer.keeps_all:
            return
        with self._call(), self.observer.calling(DriverStep.DESTROY):
            self._destroy_binaries(handles)

    def create_from_binaries(
        self, prepared: PreparedPipelines, indices: Indices, held: HeldBinaries, *, keep: bool = False
    ) -> CreationBatch:
        """Create pipelines from their binaries, without any shader module.

        What they link exists. What was created counts as found in the application's cache.
        """
        self._require_binaries()
        with self._bound(prepared, creating=indices) as bound:
            create = partial(self._create_from_binaries, bound, indices, held, keep=keep)
            return self.observer.creating(DriverStep.FROM_BINARIES, bound.image, indices, create)

    def create_captured(
        self, prepared: PreparedPipelines, indices: Indices, *, keep: bool = False
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """Compile pipelines, and read their binaries and keys; what the driver captured is released.

        What they link exists. A pipeline whose data the driver would not give is not among what was captured,
        and one that has no code of its own.
        """
        captured: list[CapturedPipeline] = []
        self._require_binaries()
        with self._bound(prepared, creating=indices) as bound:
            create = partial(self._create_captured, bound, indices, captured, keep=keep)
            return self.observer.creating(DriverStep.CREATE, bound.image, indices, create), captured

    def probe_internal_cache(self, prepared: PreparedPipelines, indices: Indices) -> list[Handles | None]:
        """Ask the driver's own cache for the binaries of pipelines; None where it does not hold them.

        Of those whose code is lacking by the identifiers of their modules; None too where one is not known.
        None of them links libraries. The caller destroys the handles. DeviceError where there is no such
        cache, or it was turned off (VkDevicePipelineBinaryInternalCacheControlKHR).
        """
        self._require_binaries()
        if not self.binary_properties.internal_cache:
            raise DeviceError(f"{self._name} has no internal cache to ask for binaries")
        _require_pipelines(prepared, indices)
        with self._bound(prepared) as bound, self.observer.calling(DriverStep.KEYS, bound.image, indices):
            return self._probe_internal_cache(bound, indices)

    def close(self) -> None:
        """Destroy what is left, and the device where it is owned; waits for calls in flight. Idempotent."""
        if not self._is_own or self.observer.keeps_all:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._closing()
        with self._changed:
            self._changed.wait_for(lambda: not self._calls)
        for prepared in list(self._prepared):
            self.close_prepared(prepared)
        with self._changed:  # another thread may be closing one
            self._changed.wait_for(lambda: not self._calls)
        for cache in list(self._caches):
            self._destroy(cache)
        with self.observer.calling(DriverStep.DESTROY):
            self._destroy_rest()

    # --- checks

    @property
    def _name(self) -> str:
        return self.identity.device_name

    @property
    def _is_own(self) -> bool:
        return self._process == os.getpid()

    def _require_open(self) -> None:
        if not self._is_own:
            raise DeviceError(f"{self._name} is a device of the process that was forked")
        if self._closed:
            raise DeviceError(f"{self._name} was closed before")

    def _require_own(self, source: PipelineSource) -> None:
        if isinstance(source, PipelineCache) and not source.destroyed and source not in self._caches:
            raise DeviceError(f"pipeline cache {source.name!r} belongs to another device")

    def _require_identifiers(self) -> None:
        self._require_open()
        if not self.features.shader_module_identifiers:
            raise DeviceError(f"{self._name} has no VK_EXT_shader_module_identifier")

    def _require_binaries(self, lack: str = "no binaries") -> None:
        self._require_open()
        if not self.features.pipeline_binaries:
            why = self.features.keys_withheld or f"{self._name} has no VK_KHR_pipeline_binary"
            raise DeviceError(f"{lack}: {why}")

    @contextmanager
    def _call(self, *sources: PipelineSource) -> Iterator[None]:
        self._require_open()
        for each in sources:
            self._require_own(each)
        with self._lock:
            self._require_open()
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._ended()

    def _ended(self) -> None:
        self._calls -= 1
        if self._closed:
            self._changed.notify_all()

    @contextmanager
    def _bound(
        self,
        prepared: PreparedPipelines,
        source: PipelineSource = NO_SOURCE,
        creating: Indices = _NONE,
    ) -> Iterator[PreparedPipelines]:
        self._require_open()
        self._require_own(source)
        _require_pipelines(prepared, creating)
        with self._lock:
            self._require_open()
            if prepared not in self._prepared:
                raise DeviceError("the prepared pipelines are closed, or another device's")
            if prepared.busy[creating].any():
                busy = creating[prepared.busy[creating]][:8].tolist()
                raise ExternalSynchronizationError(
                    f"pipelines {busy} are being created by another thread; prepare the image once for "
                    "each session or run"
                )
            prepared.busy[creating] = True
            prepared.calls += 1
            self._calls += 1
        try:
            yield prepared
        finally:
            with self._lock:
                prepared.busy[creating] = False
                prepared.calls -= 1
                self._ended()

    @contextmanager
    def _reading(self, cache: PipelineCache) -> Iterator[None]:
        with self._call(cache), cache.using("vkGetPipelineCacheData"), self.observer.calling(DriverStep.READ):
            yield

    def _destroy(self, cache: PipelineCache) -> None:
        with cache.using("vkDestroyPipelineCache", alone=True), self.observer.calling(DriverStep.DESTROY):
            cache.destroyed = True
            self._destroy_cache(cache)
        with self._lock:
            self._caches.discard(cache)

    # --- the driver; `bound` is what its `_bind` returned, and is in use by this call alone

    @abstractmethod
    def _create_cache(self, data: bytes, external: bool, merged_internally: bool, name: str) -> int: ...
    @abstractmethod
    def _merge_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None: ...
    @abstractmethod
    def _cache_size(self, cache: PipelineCache) -> int: ...
    @abstractmethod
    def _cache_data(self, cache: PipelineCache) -> PipelineCacheData: ...
    @abstractmethod
    def _destroy_cache(self, cache: PipelineCache) -> None: ...
    @abstractmethod
    def _bind(self, given: CreateInfoImage | IdentifiedModules, on_demand: bool) -> PreparedPipelines: ...
    @abstractmethod
    def _create(
        self,
        bound: Any,
        indices: Indices,
        source: PipelineSource,
        fail_on_compile_required: bool,
        *,
        keep: bool,
        identified: bool = False,
    ) -> CreationBatch: ...
    @abstractmethod
    def _destroy_pipelines(self, handles: Handles) -> None: ...
    @abstractmethod
    def _pipeline_keys(self, bound: Any, indices: Indices) -> list[bytes | None]: ...
    @abstractmethod
    def _code_identifier(self, bound: Any, module: int) -> bytes: ...
    @abstractmethod
    def _global_key(self) -> bytes: ...
    @abstractmethod
    def _create_binaries(self, binaries: Sequence[PipelineBinary]) -> Handles: ...
    @abstractmethod
    def _destroy_binaries(self, handles: Handles) -> None: ...
    @abstractmethod
    def _create_from_binaries(
        self, bound: Any, indices: Indices, held: HeldBinaries, *, keep: bool
    ) -> CreationBatch: ...
    @abstractmethod
    def _create_captured(
        self, bound: Any, indices: Indices, captured: list[CapturedPipeline], *, keep: bool
    ) -> CreationBatch: ...
    @abstractmethod
    def _probe_internal_cache(self, bound: Any, indices: Indices) -> list[Handles | None]: ...
    @abstractmethod
    def _destroy_rest(self) -> None: ...

    def _executables(self, bound: Any, index: int, code: bool) -> PipelineExecutables:
        del bound, index, code
        raise DeviceError(f"{self._name} has no VK_KHR_pipeline_executable_properties, so no statistics")

    def _closing(self) -> None:  # noqa: B027 - only some have to let calls in flight return
        pass


def _check_cache_flags(features: DeviceFeatures, external: bool, merged_internally: bool, name: str) -> None:
    if external and merged_internally:
        cause = "be externally synchronized and internally synchronized in merges at a time"
    elif external and not features.externally_synchronized_caches:
        cause = "be externally synchronized: the device lacks the feature pipelineCreationCacheControl"
    elif merged_internally and not features.internally_synchronized_merge:
        cause = "have the internally synchronized merge: the device lacks the feature maintenance8"
    else:
        return
    raise DeviceError(f"pipeline cache {name!r} cannot {cause}")


def _require_pipelines(prepared: PreparedPipelines, indices: Indices) -> None:
    # A driver reads what is at an index out of range, and numpy counts negative ones from the end.
    count = len(prepared.image)
    wrong = indices[(indices < 0) | (indices >= count)]
    if wrong.size:
        raise DeviceError(
            f"pipelines {wrong[:8].tolist()} are out of range: {count} are prepared, numbered from 0; name "
            "places in the image that was prepared"
        )
    if len(np.unique(indices)) < len(indices):
        raise DeviceError("an index of a pipeline is given twice")
