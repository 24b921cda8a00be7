# Purpose: the Vulkan implementation of the Device seam.
#
# Guarantees: those of orchestrator/devices/device.py. A call into the driver releases the GIL (cffi), so workers run
# in parallel; nothing here holds a lock while the driver runs.
#
# How a batch is created: the create infos of the batch are copied into one contiguous array (their nested pointers
# are absolute, so a copy is as good as the original), handed over in one call a kind, and the result of each
# pipeline is read from its handle and its creation feedback. The specification gives one VkResult for the whole
# call (section "Multiple Pipeline Creation"), so pipelines that were not created are asked for once more, one by
# one, to learn each one's own result.
"""`VulkanDevice`: the Device seam over a real driver."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    SUCCESS,
    CapturedFeatures,
    CreationBatch,
    DeviceFeatures,
    DeviceIdentity,
    PipelineCache,
    PipelineCacheData,
    PipelineExecutables,
    PreparedPipelines,
)
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.caches import VulkanCaches
from orchestrator.devices.vulkan.capabilities import Capabilities
from orchestrator.devices.vulkan.executables import inspect_executables
from orchestrator.devices.vulkan.host_memory import HostMemory
from orchestrator.devices.vulkan.instance import PhysicalDevice, VulkanInstance
from orchestrator.devices.vulkan.loader import DeviceCommands, check
from orchestrator.devices.vulkan.prepared import VulkanPreparedPipelines, pointer_to
from orchestrator.devices.vulkan.selection import DRIVER_CACHES_OFF, Selection
from orchestrator.devices.vulkan.shader_modules import DEFAULT_LIMIT
from orchestrator.errors import DeviceError, OrchestratorError
from orchestrator.registry import registry

_COMMANDS: Final = {
    PipelineKind.GRAPHICS: ("vkCreateGraphicsPipelines", "VkGraphicsPipelineCreateInfo *"),
    PipelineKind.COMPUTE: ("vkCreateComputePipelines", "VkComputePipelineCreateInfo *"),
    PipelineKind.RAY_TRACING: ("vkCreateRayTracingPipelinesKHR", "VkRayTracingPipelineCreateInfoKHR *"),
}
_KINDS: Final = tuple(PipelineKind)
_INTERNAL_CACHE_CONTROL: Final = "VkDevicePipelineBinaryInternalCacheControlKHR"


class VulkanDevice:
    """A VkDevice with what its physical device offers to pipelines. Made by `open`; closed by its opener.

    Attributes:
        handle: VkDevice.
        commands: Its commands.
        allocator: VkAllocationCallbacks or null.
        host_memory: The counters behind the allocator, or None where memory is not counted.
    """

    def __init__(
        self,
        instance: VulkanInstance,
        physical: PhysicalDevice,
        capabilities: Capabilities,
        *,
        driver_caches: bool,
        count_host_memory: bool,
        module_limit: int,
    ) -> None:
        """Create the device; `open` is the way in."""
        self._instance = instance
        self._identity = physical.identity
        self._capabilities = capabilities
        self._module_limit = module_limit
        self._prepared: set[VulkanPreparedPipelines] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.host_memory = HostMemory() if count_host_memory else None
        self.allocator: Any = ffi.NULL if self.host_memory is None else self.host_memory.callbacks
        how = self._create(physical, driver_caches=driver_caches)
        self.commands = DeviceCommands(instance.commands, self.handle)
        self._features = _offered(capabilities, "enabled" if driver_caches else f"disabled: {how}")
        self._caches = VulkanCaches(self)

    @classmethod
    def open(
        cls,
        selector: str,
        *,
        captured: CapturedFeatures | None = None,
        driver_caches: bool = False,
        count_host_memory: bool = False,
        module_limit: int = DEFAULT_LIMIT,
    ) -> VulkanDevice:
        """Open a device; see `orchestrator.devices.open_device` for the arguments.

        Args:
            selector: Which.
            captured: Features to follow.
            driver_caches: Leave the driver's own caches on.
            count_host_memory: Count host memory.
            module_limit: Bytes of SPIR-V to keep alive as shader modules.
        """
        selection = Selection.parse(selector)
        instance = VulkanInstance(selection, driver_caches=driver_caches)
        try:
            physical = instance.find(selection)
            capabilities = Capabilities(instance, physical, captured or CapturedFeatures())
            return cls(
                instance,
                physical,
                capabilities,
                driver_caches=driver_caches,
                count_host_memory=count_host_memory,
                module_limit=module_limit,
            )
        except BaseException:
            instance.close()
            raise

    @property
    def identity(self) -> DeviceIdentity:
        """What caches of this device are valid for."""
        return self._identity

    @property
    def features(self) -> DeviceFeatures:
        """What it offers to an orchestrator."""
        return self._features

    @property
    def capabilities(self) -> Capabilities:
        """What it offers to captured pipelines."""
        return self._capabilities

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        return self._caches.create(
            initial_data,
            externally_synchronized=externally_synchronized,
            internally_synchronized_merge=internally_synchronized_merge,
            name=name,
        )

    def merge_pipeline_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """See `Device.merge_pipeline_caches`."""
        self._caches.merge(destination, sources)

    def pipeline_cache_size(self, cache: PipelineCache) -> int:
        """See `Device.pipeline_cache_size`."""
        return self._caches.size(cache)

    def pipeline_cache_data(self, cache: PipelineCache, limit: int | None = None) -> PipelineCacheData:
        """See `Device.pipeline_cache_data`."""
        return self._caches.data(cache, limit)

    def destroy_pipeline_cache(self, cache: PipelineCache) -> None:
        """See `Device.destroy_pipeline_cache`."""
        self._caches.destroy(cache)

    def prepare(self, image: CreateInfoImage) -> VulkanPreparedPipelines:
        """See `Device.prepare`."""
        self._require_open()
        prepared = VulkanPreparedPipelines(self, image, self._module_limit)
        with self._lock:
            self._prepared.add(prepared)
        return prepared

    def forget(self, prepared: VulkanPreparedPipelines) -> None:
        """Called by what was prepared, when it closes."""
        with self._lock:
            self._prepared.discard(prepared)

    def create_pipelines(
        self,
        prepared: PreparedPipelines,
        indices: npt.NDArray[np.int32],
        cache: PipelineCache | None,
        *,
        keep: bool = False,
        fail_on_compile_required: bool = False,
    ) -> CreationBatch:
        """See `Device.create_pipelines`."""
        self._require_open()
        bound = _own(prepared)
        acquired = bound.acquire_modules(indices)
        try:
            batch = self._create_batch(bound, indices, cache, fail_on_compile_required)
        finally:
            bound.release_modules(acquired)
        self._settle(bound, indices, batch, keep=keep)
        return batch

    def destroy_pipelines(self, handles: npt.NDArray[np.uint64]) -> None:
        """See `Device.destroy_pipelines`."""
        destroy, device, allocator = self.commands.vkDestroyPipeline, self.handle, self.allocator
        for handle in handles[handles != 0].tolist():
            destroy(device, handle, allocator)

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        """See `Device.pipeline_keys`."""
        if not self._features.pipeline_binaries:
            raise DeviceError(
                f"{self._identity.device_name} has no VK_KHR_pipeline_binary, so no pipeline keys"
            )
        bound = _own(prepared)
        info = ffi.new("VkPipelineCreateInfoKHR *")
        info.sType = registry().struct("VkPipelineCreateInfoKHR").s_type
        key = ffi.new("VkPipelineBinaryKeyKHR *")
        keys: list[bytes | None] = []
        for index in indices.tolist():
            own = np.array([index], np.int32)
            acquired = bound.acquire_modules(own)
            try:
                infos = bound.create_infos(bound.image.kind_of(index), own, fail_on_compile_required=False)
                info.pNext = pointer_to(infos, "void *")
                key.sType = registry().struct("VkPipelineBinaryKeyKHR").s_type
                result = self.commands.vkGetPipelineKeyKHR(self.handle, info, key)
            finally:
                bound.release_modules(acquired)
            keys.append(bytes(key.key[0 : key.keySize]) if result == SUCCESS else None)
        return keys

    def pipeline_executables(self, prepared: PreparedPipelines, index: int) -> PipelineExecutables:
        """See `ExecutableInspector.pipeline_executables`."""
        self._require_open()
        feature = "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", "pipelineExecutableInfo"
        if not self._capabilities.has_feature(*feature):
            raise DeviceError(
                f"{self._identity.device_name} has no VK_KHR_pipeline_executable_properties, so no statistics"
            )
        bound = _own(prepared)
        own = np.array([index], np.int32)
        kind = bound.image.kind_of(index)
        self._require_libraries(bound, own)
        acquired = bound.acquire_modules(own)
        try:
            infos = bound.create_infos(kind, own, fail_on_compile_required=False, capture_statistics=True)
            following = int(bound.image.feedback_next[index])
            rest = 0 if following < 0 else bound.address + following
            return inspect_executables(self, kind, infos, rest, feedback=self._features.creation_feedback)
        finally:
            bound.release_modules(acquired)

    def create_one(self, kind: PipelineKind, infos: npt.NDArray[np.uint8]) -> tuple[int, int]:
        """Create one pipeline without a cache; its VkResult and its handle, which is the caller's."""
        handles = np.zeros(1, np.uint64)
        result = self._call(kind, infos, handles, None)
        return result, int(handles[0])

    def close(self) -> None:
        """See `Device.close`."""
        if self._closed:
            return
        for prepared in list(self._prepared):
            prepared.close()
        self._caches.destroy_all()
        self._closed = True
        self.commands.vkDestroyDevice(self.handle, self.allocator)
        self._instance.close()

    def _require_open(self) -> None:
        if self._closed:
            raise DeviceError(f"{self._identity.device_name} was closed before")

    def _create(self, physical: PhysicalDevice, *, driver_caches: bool) -> str:
        """Create the VkDevice; returns how the driver's own caches were turned off."""
        tables = registry()
        priority = ffi.new("float *", 1.0)
        queue = ffi.new("VkDeviceQueueCreateInfo *")
        queue.sType = tables.struct("VkDeviceQueueCreateInfo").s_type
        queue.queueCount = 1
        queue.pQueuePriorities = priority
        names = [ffi.new("char[]", each.encode()) for each in self._capabilities.extensions]
        extensions = ffi.new("char *[]", names)
        info = ffi.new("VkDeviceCreateInfo *")
        info.sType = tables.struct("VkDeviceCreateInfo").s_type
        info.queueCreateInfoCount = 1
        info.pQueueCreateInfos = queue
        info.enabledExtensionCount = len(names)
        info.ppEnabledExtensionNames = extensions
        info.pNext = self._capabilities.features.pointer("void *")
        how = "environment " + ", ".join(f"{name}={value}" for name, value in DRIVER_CACHES_OFF.items())
        control = ffi.new(f"{_INTERNAL_CACHE_CONTROL} *")
        if not driver_caches and self._capabilities.property_value(
            "VkPhysicalDevicePipelineBinaryPropertiesKHR", "pipelineBinaryInternalCacheControl"
        ):
            control.sType = tables.struct(_INTERNAL_CACHE_CONTROL).s_type
            control.disableInternalCache = 1
            control.pNext = info.pNext
            info.pNext = control
            how = f"{_INTERNAL_CACHE_CONTROL}, {how}"
        handle = ffi.new("VkDevice *")
        create = self._instance.commands.vkCreateDevice
        check("vkCreateDevice", create(physical.handle, info, self.allocator, handle))
        self.handle = handle[0]
        return how

    def _create_batch(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        cache: PipelineCache | None,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        """Create a batch, one call a kind."""
        kinds = bound.image.kinds[indices]
        if len(indices) and (kinds == kinds[0]).all():  # what schedulers hand out
            return self._create_kind(bound, _KINDS[kinds[0]], indices, cache, fail_on_compile_required)
        count = len(indices)
        batch = CreationBatch(
            results=np.zeros(count, np.int32),
            feedback_flags=np.zeros(count, np.uint32),
            durations_ns=np.zeros(count, np.uint64),
            handles=np.zeros(count, np.uint64),
        )
        for number, kind in enumerate(_KINDS):
            chosen = np.flatnonzero(kinds == number)
            if chosen.size:
                part = self._create_kind(bound, kind, indices[chosen], cache, fail_on_compile_required)
                batch.results[chosen] = part.results
                batch.feedback_flags[chosen] = part.feedback_flags
                batch.durations_ns[chosen] = part.durations_ns
                batch.handles[chosen] = part.handles
        return batch

    def _create_kind(
        self,
        bound: VulkanPreparedPipelines,
        kind: PipelineKind,
        indices: npt.NDArray[np.int32],
        cache: PipelineCache | None,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        """Create pipelines of one kind in one call; ask again, one by one, for those that were not created."""
        self._require_libraries(bound, indices)
        infos = bound.create_infos(kind, indices, fail_on_compile_required=fail_on_compile_required)
        handles = np.zeros(len(indices), np.uint64)
        result = self._call(kind, infos, handles, cache)
        results = np.zeros(len(indices), np.int32)
        if result != SUCCESS:
            missing = np.flatnonzero(handles == 0)
            results[missing] = result
            if len(indices) > 1:
                for each in missing.tolist():
                    results[each] = self._call(kind, infos[each : each + 1], handles[each : each + 1], cache)
        flags, durations = bound.take_feedback(indices)
        return CreationBatch(results, flags, durations, handles)

    def _call(
        self,
        kind: PipelineKind,
        infos: npt.NDArray[np.uint8],
        handles: npt.NDArray[np.uint64],
        cache: PipelineCache | None,
    ) -> int:
        command, ctype = _COMMANDS[kind]
        create = getattr(self.commands, command)
        deferred = (0,) if kind is PipelineKind.RAY_TRACING else ()
        count, first = len(handles), pointer_to(infos, ctype)
        out = pointer_to(handles, "uint64_t *")
        if cache is None:
            return int(create(self.handle, *deferred, 0, count, first, self.allocator, out))
        with cache.exclusive(command):
            return int(create(self.handle, *deferred, cache.handle, count, first, self.allocator, out))

    def _require_libraries(self, bound: VulkanPreparedPipelines, indices: npt.NDArray[np.int32]) -> None:
        image = bound.image
        if not bound.has_libraries:
            return
        for index in indices.tolist():
            for library in image.libraries_of(index):
                if not bound.library_handles[library]:
                    raise MissingLibraryError(int(image.keys[index]), int(image.keys[library]))

    def _settle(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        batch: CreationBatch,
        *,
        keep: bool,
    ) -> None:
        """Keep libraries for what links them; destroy the rest unless the caller keeps it."""
        if bound.has_libraries:
            library = bound.image.is_library[indices]
            first = library & (bound.library_handles[indices] == 0)
            bound.library_handles[indices[first]] = batch.handles[first]
            batch.handles[first] = 0
        if not keep:
            self.destroy_pipelines(batch.handles)
            batch.handles[:] = 0


class MissingLibraryError(OrchestratorError):
    """A pipeline was asked for before a library that it links: the caller's order is wrong, or it failed."""

    def __init__(self, pipeline: int, library: int) -> None:
        super().__init__(
            f"pipeline {pipeline:016x} links library {library:016x}, which was not created before it"
        )


def _own(prepared: PreparedPipelines) -> VulkanPreparedPipelines:
    if not isinstance(prepared, VulkanPreparedPipelines):
        raise DeviceError("these pipelines were prepared by another device")
    return prepared


def _offered(capabilities: Capabilities, driver_caches: str) -> DeviceFeatures:
    """What the device offers to an orchestrator, from what was enabled."""
    has = capabilities.has_feature
    cache_control = has(
        "VkPhysicalDevicePipelineCreationCacheControlFeatures", "pipelineCreationCacheControl"
    )
    return DeviceFeatures(
        externally_synchronized_caches=cache_control,
        creation_feedback=capabilities.api_version >= (1 << 22 | 3 << 12)
        or capabilities.has_extension("VK_EXT_pipeline_creation_feedback"),
        pipeline_binaries=has("VkPhysicalDevicePipelineBinaryFeaturesKHR", "pipelineBinaries"),
        shader_module_identifiers=has(
            "VkPhysicalDeviceShaderModuleIdentifierFeaturesEXT", "shaderModuleIdentifier"
        ),
        internally_synchronized_merge=has("VkPhysicalDeviceMaintenance8FeaturesKHR", "maintenance8"),
        compile_required=cache_control,
        driver_caches=driver_caches,
    )
