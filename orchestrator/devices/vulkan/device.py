# Purpose: the Vulkan implementation of the Device seam.
#
# Guarantees: those of orchestrator/devices/device.py. A call into the driver releases the GIL (cffi), so workers run
# in parallel; nothing here holds a lock while the driver runs.
"""`VulkanDevice`: the Device seam over a real driver."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    SUCCESS,
    CreationBatch,
    DeviceFeatures,
    DeviceIdentity,
    PipelineCache,
    PipelineCacheData,
    PipelineExecutables,
    PreparedPipelines,
)
from orchestrator.devices.image import CreateInfoImage, PipelineKind
from orchestrator.devices.request import DeviceRequest
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.caches import VulkanCaches
from orchestrator.devices.vulkan.capabilities import Capabilities
from orchestrator.devices.vulkan.creation import MissingLibraryError, PipelineCreation
from orchestrator.devices.vulkan.executables import inspect_executables
from orchestrator.devices.vulkan.host_memory import HostMemory
from orchestrator.devices.vulkan.instance import PhysicalDevice, VulkanInstance
from orchestrator.devices.vulkan.layers import Layer, active_layers, keys_withheld
from orchestrator.devices.vulkan.loader import DeviceCommands, check
from orchestrator.devices.vulkan.prepared import VulkanPreparedPipelines, pointer_to
from orchestrator.devices.vulkan.selection import DRIVER_CACHES_OFF, Selection
from orchestrator.devices.vulkan.shader_modules import DEFAULT_LIMIT
from orchestrator.errors import DeviceError
from orchestrator.registry import registry

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
        layers = active_layers(instance.commands, physical.handle)
        self._features = _offered(capabilities, "enabled" if driver_caches else f"disabled: {how}", layers)
        self._caches = VulkanCaches(self)
        self._creation = PipelineCreation(self)

    @classmethod
    def open(
        cls,
        selector: str,
        *,
        request: DeviceRequest | None = None,
        driver_caches: bool = False,
        count_host_memory: bool = False,
        module_limit: int = DEFAULT_LIMIT,
    ) -> VulkanDevice:
        """Open a device; see `orchestrator.devices.open_device` for the arguments.

        Args:
            selector: Which.
            request: What to open it as.
            driver_caches: Leave the driver's own caches on.
            count_host_memory: Count host memory.
            module_limit: Bytes of SPIR-V to keep alive as shader modules.
        """
        selection = Selection.parse(selector)
        wanted = request or DeviceRequest()
        known = wanted.application if request is not None else None
        instance = VulkanInstance(selection, application=known, driver_caches=driver_caches)
        try:
            physical = instance.find(selection)
            capabilities = Capabilities(instance, physical, wanted)
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
        """What is enabled of what captured pipelines may need."""
        return self._capabilities

    @property
    def supported(self) -> Capabilities:
        """What could be enabled of it."""
        return self._capabilities.supported

    def create_pipeline_cache(
        self,
        initial_data: bytes = b"",
        *,
        externally_synchronized: bool = False,
        internally_synchronized_merge: bool = False,
        name: str = "cache",
    ) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        self._require_open()
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
            batch = self._creation.create(bound, indices, cache, fail_on_compile_required)
        finally:
            bound.release_modules(acquired)
        if not keep:
            bound.discard(batch.handles.copy() if batch.all_hits else batch.handles)
            batch = CreationBatch(
                batch.results,
                batch.feedback_flags,
                batch.durations_ns,
                np.zeros(len(indices), np.uint64),
                batch.all_created,
                batch.all_hits,
                batch.span,
            )
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
            why = (
                self._features.keys_withheld or f"{self._identity.device_name} has no VK_KHR_pipeline_binary"
            )
            raise DeviceError(f"no pipeline keys: {why}")
        bound = _own(prepared)
        info = ffi.new("VkPipelineCreateInfoKHR *")
        info.sType = registry().struct("VkPipelineCreateInfoKHR").s_type
        key = ffi.new("VkPipelineBinaryKeyKHR *")
        keys: list[bytes | None] = []
        for index in indices.tolist():
            # A key of a graphics pipeline that links libraries: Mesa 25.0.7 (RADV) ends the process, the libraries there.
            if bound.image.libraries_of(index):
                keys.append(None)
                continue
            own = np.array([index], np.int32)
            acquired = bound.acquire_modules(own)
            try:
                infos = bound.create_infos(bound.image.kind_of(index), own, fail_on_compile_required=False)
                info.pNext = pointer_to(infos, "uint8_t[]")
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
        if not bound.has_all_libraries(index):
            raise MissingLibraryError(int(bound.image.keys[index]))
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
        result = self._creation.call(kind, infos, handles, None)
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


def _own(prepared: PreparedPipelines) -> VulkanPreparedPipelines:
    if not isinstance(prepared, VulkanPreparedPipelines):
        raise DeviceError("these pipelines were prepared by another device")
    return prepared


def _offered(capabilities: Capabilities, driver_caches: str, layers: tuple[Layer, ...]) -> DeviceFeatures:
    """What the device offers to an orchestrator, from what was enabled."""
    has = capabilities.has_feature
    cache_control = has(
        "VkPhysicalDevicePipelineCreationCacheControlFeatures", "pipelineCreationCacheControl"
    )
    binaries = has("VkPhysicalDevicePipelineBinaryFeaturesKHR", "pipelineBinaries")
    withheld = keys_withheld(layers) if binaries else ""
    return DeviceFeatures(
        externally_synchronized_caches=cache_control,
        creation_feedback=capabilities.api_version >= (1 << 22 | 3 << 12)
        or capabilities.has_extension("VK_EXT_pipeline_creation_feedback"),
        pipeline_binaries=binaries and not withheld,
        shader_module_identifiers=has(
            "VkPhysicalDeviceShaderModuleIdentifierFeaturesEXT", "shaderModuleIdentifier"
        ),
        internally_synchronized_merge=has("VkPhysicalDeviceMaintenance8FeaturesKHR", "maintenance8"),
        compile_required=cache_control,
        driver_caches=driver_caches,
        layers=tuple(map(str, layers)),
        keys_withheld=withheld,
    )
