# Purpose: the Vulkan implementation of the Device seam.
#
# Guarantees: those of orchestrator/devices/device.py. A call into the driver releases the GIL (cffi), so workers run
# in parallel; nothing here holds a lock while the driver runs.
"""`VulkanDevice`: the Device seam over a real driver."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

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
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.caches import VulkanCaches
from orchestrator.devices.vulkan.capabilities import Capabilities
from orchestrator.devices.vulkan.context import DeviceContext, HostMemory
from orchestrator.devices.vulkan.creation import MissingLibraryError, PipelineCreation
from orchestrator.devices.vulkan.executables import inspect_executables
from orchestrator.devices.vulkan.prepared import DEFAULT_LIMIT, VulkanPreparedPipelines, pointer_to
from orchestrator.errors import DeviceError
from orchestrator.registry import registry

#: VkDriverId of drivers that put no stage into a cache which a pipeline that still lives shares with the one that is created:
#: NVIDIA's own (580.159), for ray tracing. Of sascha_rt 28 of 84 pipelines were missing in every cache, and none where each
#: was destroyed before the next was created. Pipelines that their owner keeps live all the same.
SHARES_LIVING_STAGES: Final = frozenset({4})
_RAY_TRACING: Final = list(PipelineKind).index(PipelineKind.RAY_TRACING)


class VulkanDevice:
    """The Device seam over an open VkDevice. Made by `open_device`; closed by its opener."""

    def __init__(self, context: DeviceContext, *, module_limit: int = DEFAULT_LIMIT) -> None:
        """Work on a device.

        Args:
            context: The device; `close` closes it.
            module_limit: Bytes of SPIR-V to keep alive as shader modules.
        """
        self._context = context
        self._module_limit = module_limit
        self._prepared: set[VulkanPreparedPipelines] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._caches = VulkanCaches(context)
        self._creation = PipelineCreation(context)

    @property
    def context(self) -> DeviceContext:
        """The device itself; it stays this object's to close."""
        return self._context

    @property
    def host_memory(self) -> HostMemory | None:
        """The counters of host memory, or None where it is not counted."""
        return self._context.host_memory

    @property
    def identity(self) -> DeviceIdentity:
        """What caches of this device are valid for."""
        return self._context.identity

    @property
    def features(self) -> DeviceFeatures:
        """What it offers to an orchestrator."""
        return self._context.features

    @property
    def capabilities(self) -> Capabilities:
        """What is enabled of what captured pipelines may need."""
        return self._context.capabilities

    @property
    def supported(self) -> Capabilities:
        """What could be enabled of it."""
        return self._context.capabilities.supported

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
        prepared = VulkanPreparedPipelines(self._context, image, self._module_limit, self._forget)
        with self._lock:
            self._prepared.add(prepared)
        return prepared

    def _forget(self, prepared: VulkanPreparedPipelines) -> None:
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
        alone = (
            not keep
            and self._context.identity.driver_id in SHARES_LIVING_STAGES
            and bool((bound.image.kinds[indices] == _RAY_TRACING).any())
        )
        if alone and len(indices) > 1:
            return self._one_by_one(bound, indices, cache, fail_on_compile_required)
        batch = self._create(bound, indices, cache, fail_on_compile_required, keep=keep)
        if alone:
            bound.destroy_discarded()
        return batch

    def _one_by_one(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        cache: PipelineCache | None,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        """Create each pipeline in a call of its own, so that none of them lives while the next is created."""
        results = np.zeros(len(indices), np.int32)
        flags, durations = np.zeros(len(indices), np.uint32), np.zeros(len(indices), np.uint64)
        for place in range(len(indices)):
            one = self.create_pipelines(
                bound,
                indices[place : place + 1],
                cache,
                fail_on_compile_required=fail_on_compile_required,
            )
            results[place] = one.results[0]
            flags[place], durations[place] = one.feedback_flags[0], one.durations_ns[0]
        return CreationBatch(results, flags, durations, np.zeros(len(indices), np.uint64))

    def _create(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        cache: PipelineCache | None,
        fail_on_compile_required: bool,
        *,
        keep: bool,
    ) -> CreationBatch:
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
        self._context.destroy_pipelines(handles)

    def pipeline_keys(
        self, prepared: PreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> list[bytes | None]:
        """See `Device.pipeline_keys`."""
        if not self._context.features.pipeline_binaries:
            why = (
                self._context.features.keys_withheld
                or f"{self._context.identity.device_name} has no VK_KHR_pipeline_binary"
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
                result = self._context.commands.vkGetPipelineKeyKHR(self._context.handle, info, key)
            finally:
                bound.release_modules(acquired)
            keys.append(bytes(key.key[0 : key.keySize]) if result == SUCCESS else None)
        return keys

    def pipeline_executables(self, prepared: PreparedPipelines, index: int) -> PipelineExecutables:
        """See `ExecutableInspector.pipeline_executables`."""
        self._require_open()
        feature = "VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR", "pipelineExecutableInfo"
        if not self._context.capabilities.has_feature(*feature):
            raise DeviceError(
                f"{self._context.identity.device_name} has no VK_KHR_pipeline_executable_properties, so no statistics"
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
            return inspect_executables(self._context, self._creation, kind, infos, rest)
        finally:
            bound.release_modules(acquired)

    def close(self) -> None:
        """See `Device.close`."""
        if self._closed:
            return
        for prepared in list(self._prepared):
            prepared.close()
        self._caches.destroy_all()
        self._closed = True
        self._context.close()

    def _require_open(self) -> None:
        if self._closed:
            raise DeviceError(f"{self._context.identity.device_name} was closed before")


def _own(prepared: PreparedPipelines) -> VulkanPreparedPipelines:
    if not isinstance(prepared, VulkanPreparedPipelines):
        raise DeviceError("these pipelines were prepared by another device")
    return prepared
