"""The seam between the scheduler's side of the house and whatever compiles: the `Device` Protocol.

VulkanDevice and SimulatedDevice implement it. Everything else is written against it, and never sees a `vk`
name or what a handle means. Every implementation guarantees:

- Methods are synchronous and block for as long as the driver needs; a driver call cannot be cancelled. They
  may be called from any thread, several at a time, except where `PipelineSource` and a method's own text want
  external synchronization. Breaking that raises ExternalSynchronizationError before the driver is entered; it
  never crashes.
- Positive VkResults are values. Negative ones raise DriverError, except those of single pipelines, which are
  results of `create_pipelines`.
- Once the device is closed, every method but `close` raises DeviceError, or ExternalSynchronizationError
  where it is given a source, all of which were destroyed.
- The device owns what it hands out (sources, prepared pipelines). `close` destroys what is left.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import frozen

from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.image import CreateInfoImage
from orchestrator.devices.sources import NO_SOURCE as NO_SOURCE
from orchestrator.devices.sources import PipelineCache as PipelineCache
from orchestrator.devices.sources import PipelineCacheData as PipelineCacheData
from orchestrator.devices.sources import PipelineCaches
from orchestrator.devices.sources import PipelineSource as PipelineSource
from orchestrator.errors import DeviceError, DriverError
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

    They live as long as the device, and stay whoever's they are: see `adopt_device` and `open_device`. Calls
    with them need no synchronization with this package, except where the specification wants the handle
    itself externally synchronized: queues are never used here, and the device and the instance are destroyed
    after `Device.close` only.

    Attributes:
        instance: VkInstance.
        physical_device: VkPhysicalDevice.
        device: VkDevice.
        get_instance_proc_addr: Address of the vkGetInstanceProcAddr that found the commands.
        allocation_callbacks: Address of the VkAllocationCallbacks that objects are created and destroyed
            with, 0 for none.
        queue_family: The family of the one queue that the device was created with; None where a host created
            it.
    """

    instance: int
    physical_device: int
    device: int
    get_instance_proc_addr: int = 0
    allocation_callbacks: int = 0
    queue_family: int | None = None


@frozen
class DeviceFeatures:
    """What the device offers to an orchestrator.

    Attributes:
        externally_synchronized_caches: pipelineCreationCacheControl: the flag may be set.
        creation_feedback: VkPipelineCreationFeedback is written, so hits and driver time are known.
        pipeline_binaries: VK_KHR_pipeline_binary, and with it pipeline keys; not where they are withheld.
        shader_module_identifiers: VK_EXT_shader_module_identifier.
        internally_synchronized_merge: maintenance8: a primary can be merged into while it is in use.
        compile_required: FAIL_ON_PIPELINE_COMPILE_REQUIRED may be asked for.
        driver_caches: How the driver's own caches were turned off: "disabled: <how>", or "enabled".
        layers: The layers between the program and the driver, each with the version of Vulkan that it knows.
        keys_withheld: Why a driver that has pipeline keys is asked for none; "" where nothing speaks against
            it.
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

    def check_cache_flags(self, externally_synchronized: bool, internally_merged: bool, name: str) -> None:
        """Check that a cache may have these flags.

        Raises:
            DeviceError: The device lacks one, or both are asked for.
        """
        if externally_synchronized and internally_merged:
            cause = "be externally synchronized and internally synchronized in merges at a time"
        elif externally_synchronized and not self.externally_synchronized_caches:
            cause = "be externally synchronized: the device lacks the feature pipelineCreationCacheControl"
        elif internally_merged and not self.internally_synchronized_merge:
            cause = "have the internally synchronized merge: the device lacks the feature maintenance8"
        else:
            return
        raise DeviceError(f"pipeline cache {name!r} cannot {cause}")


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


class CreationBatch(msgspec.Struct, eq=False):
    """What one call of `create_pipelines` gave, one element a pipeline, in the order asked for.

    Arrays may be read-only. Of a batch of hits they may be views of the device's own memory, so that a warm
    run needs no new memory for each call: feedback holds until the pipelines are created once more, handles
    until the thread's next call.

    Attributes:
        results: VkResult of each pipeline, int32. 0 created; 1000297000 compile required; negative failed; 1
            (VK_NOT_READY) not handed to the driver, since `CallSplit.go_on` said so.
        feedback_flags: VkPipelineCreationFeedbackFlags of each, uint32; 0 where there is no feedback.
        durations_ns: VkPipelineCreationFeedback::duration of each, uint64; 0 where there is no feedback.
        handles: Pipeline handles, uint64; 0 where not kept or not created. The caller owns those it asked to
            keep and ends them with `Device.destroy_pipelines`.
        all_created: The device knows that every result is 0, so that nobody has to look through them.
        all_hits: The device knows that the feedback of every one is valid and says that the cache had it.
        span: The pipelines as a slice of the image, where the device knows that they follow one another in
            it.
    """

    results: npt.NDArray[np.int32]
    feedback_flags: npt.NDArray[np.uint32]
    durations_ns: npt.NDArray[np.uint64]
    handles: npt.NDArray[np.uint64]
    all_created: bool = False
    all_hits: bool = False
    span: slice | None = None

    @classmethod
    def of_zeros(cls, count: int) -> CreationBatch:
        """A batch to write results into."""
        flags = np.zeros(count, np.uint32)
        return cls(np.zeros(count, np.int32), flags, np.zeros(count, np.uint64), np.zeros(count, np.uint64))

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

    Where the next one cannot be made, those before are destroyed: nobody will learn of them.
    """
    batch = CreationBatch.of_zeros(count)
    batch.results[:] = NOT_READY
    try:
        for places, part in parts:
            batch.put(places, part)
    except BaseException:
        device.destroy_pipelines(batch.handles)
        raise
    return batch


class CallSplit(msgspec.Struct, frozen=True, eq=False):
    """How a batch becomes calls into the driver, one after the other.

    Between two calls of a batch nothing is looked up, kept or reported, so a thread that makes many small
    ones hardly holds the GIL.

    Attributes:
        limit: Most pipelines in a call.
        go_on: Asked before every call but the first, in the thread that makes it: where it is False, the rest
            is not handed to the driver. It must not wait.
    """

    limit: int
    go_on: Callable[[], bool]

    def parts(self, count: int) -> Iterator[slice]:
        """The places of each call of a batch, for as long as they are made."""
        for first in range(0, count, self.limit):
            if first and not self.go_on():
                return
            yield slice(first, min(first + self.limit, count))


def in_calls(
    device: Device,
    indices: npt.NDArray[np.int32],
    split: CallSplit | None,
    create: Callable[[npt.NDArray[np.int32]], CreationBatch],
) -> CreationBatch:
    """Create a batch by another way that makes one call of whatever it is given."""
    if split is None or len(indices) <= split.limit:
        return create(indices)
    return joined(
        device, len(indices), ((places, create(indices[places])) for places in split.parts(len(indices)))
    )


class PipelineExecutable(msgspec.Struct, frozen=True):
    """What the driver says about one executable of a pipeline, such as the code of a stage.

    Attributes:
        name: VkPipelineExecutablePropertiesKHR::name.
        subgroup_size: VkPipelineExecutablePropertiesKHR::subgroupSize.
        stage_ns: Creation feedback of its stages, ns, summed up; 0 where the driver gives none.
        statistics: Name and value of each VkPipelineExecutableStatisticKHR, in the driver's order.
    """

    name: str
    subgroup_size: int
    stage_ns: int
    statistics: tuple[tuple[str, bool | int | float], ...]


class PipelineExecutables(msgspec.Struct, frozen=True):
    """A pipeline that was created to be looked at.

    Attributes:
        result: VkResult of creating it.
        wall_ns: Time around the call that created it.
        driver_ns: VkPipelineCreationFeedback::duration; 0 where it is not valid.
        executables: Its executables; none where it was not created.
    """

    result: int
    wall_ns: int
    driver_ns: int
    executables: tuple[PipelineExecutable, ...]


BeforeObject = Callable[[str, int], None]
"""Called with "object" or "module", and its number in the image."""


def no_news(what: str, number: int) -> None:
    """A `BeforeObject` that does nothing."""
    del what, number


@runtime_checkable
class PreparedPipelines(Protocol):
    """An image bound to a device: its layouts and render passes exist, its pointers are real.

    Owned by whoever prepared it; `close` after the last call that uses it. Thread-safe.
    """

    @property
    def image(self) -> CreateInfoImage:
        """The image that was bound."""

    @property
    def identified(self) -> IdentifiedModules | None:
        """What is known of modules whose code is not there; None where it is."""

    @property
    def unusable(self) -> dict[int, str]:
        """Pipelines that cannot be handed to the driver, by index, with the cause."""

    def close(self) -> None:
        """Destroy the objects, modules and libraries behind it. Idempotent."""


@runtime_checkable
class Device(PipelineCaches, Protocol):
    """What compiles. The top of the module says what every implementation guarantees."""

    @property
    def identity(self) -> DeviceIdentity:
        """What caches of this device are valid for."""

    @property
    def features(self) -> DeviceFeatures:
        """What it offers to an orchestrator."""

    @property
    def capabilities(self) -> DeviceCapabilities:
        """What is enabled of what captured pipelines may need."""

    @property
    def supported(self) -> DeviceCapabilities:
        """What could be enabled of it, by another `DeviceRequest` for the same application."""

    @property
    def handles(self) -> DeviceHandles | None:
        """Handles of Vulkan, for who draws with what was created; None where there is no Vulkan behind it."""

    def prepare(
        self,
        image: CreateInfoImage | IdentifiedModules,
        before: BeforeObject = no_news,
        *,
        modules_on_demand: bool = False,
    ) -> PreparedPipelines:
        """Bind an image: create its objects and modules, fill its pointers and handles. The caller closes it.

        Makes as many driver calls as the image has objects and modules. What the driver refuses, and SPIR-V
        that cannot be read, make the pipelines that need them `unusable`, and are not raised.

        Args:
            image: The image; or what is known of its modules, which are then made on demand, and whose
                pipelines are created from identifiers while their code is lacking.
            before: Called before each object, and each module that is made now, goes to the driver.
            modules_on_demand: Make each shader module when the first call needs it, and not now: where most
                pipelines are created from binaries, most are never read. One that cannot be made is then
                raised by that call.

        Raises:
            DeviceError: The device was closed.
        """

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
        """Create a batch of pipelines, one driver call a kind, or as many as `split` says.

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
            split: How many are in one call, and whether the next one is made; None: all are, of a kind.

        Raises:
            ExternalSynchronizationError: The source is externally synchronized and in use, or was destroyed.
            DeviceError: `prepared` is another device's.
            OrchestratorError: A module that is made when it is needed could not be read or made.
        """

    def destroy_pipelines(self, handles: npt.NDArray[np.uint64]) -> None:
        """Destroy pipelines that were kept and are in use nowhere; zeros are skipped."""

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        """vkGetPipelineKeyKHR of each pipeline; None for one that links libraries, or where there is none.

        Of one whose code is lacking, by the identifiers of its modules; None where one is not known. No other
        thread may use one of them.

        Raises:
            DeviceError: The device has no pipeline binaries, or `prepared` is another device's.
            OrchestratorError: A module that is made when it is needed could not be read or made.
        """

    def close(self) -> None:
        """Destroy what is left, and the device where it is owned. Idempotent; after the last other call."""


@runtime_checkable
class ExecutableInspector(Protocol):
    """What a device offers beside `Device` where it can tell about the code of pipelines."""

    def pipeline_executables(self, prepared: PreparedPipelines, index: int) -> PipelineExecutables:
        """Create a pipeline without a cache, with its statistics captured, look at it, and destroy it.

        No other thread may use it, and the libraries that it links exist.

        Raises:
            DeviceError: The device has no VK_KHR_pipeline_executable_properties.
            DriverError: The driver refused a query.
            OrchestratorError: A library does not exist, or a module could not be made.
        """


class CacheMode(enum.StrEnum):
    """The cache topology of a run.

    SHARED: all workers use one internally synchronized cache.
    PER_WORKER: each worker has its own, externally synchronized; merged into the primary at the barrier.
    PER_WORKER_INTERNAL: the control: each its own, without the flag. Splits locking from contention.
    TWO_LEVEL: workers look a pipeline up in the primary first, forbidding it to compile, and compile what it
        does not hold in an externally synchronized cache of their own, which migrates into the primary.
    BINARIES: no cache of the driver's: the application holds the binaries of each pipeline and hands them
        over again (VK_KHR_pipeline_binary).
    NONE: no cache.
    """

    SHARED = "shared"
    PER_WORKER = "per-worker"
    PER_WORKER_INTERNAL = "per-worker-internal"
    TWO_LEVEL = "two-level"
    BINARIES = "binaries"
    NONE = "none"
