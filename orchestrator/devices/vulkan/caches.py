# Purpose: pipeline caches of a Vulkan device.
#
# Guarantees: those of the Device seam. Every use goes through PipelineCache.exclusive, so a flagged cache in two
# threads is an error here and not in the driver. Empty initial data is a null pointer: some drivers fail on size 0
# with another one.
"""Pipeline caches of a Vulkan device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from orchestrator.devices.device import INCOMPLETE, PipelineCache, PipelineCacheData
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.instance import check
from orchestrator.errors import DeviceError
from orchestrator.registry import registry

_EXTERNALLY_SYNCHRONIZED: Final = 0x1
_INTERNALLY_SYNCHRONIZED_MERGE: Final = 0x8
# A cache that others fill grows between the size query and the read; each round asks for the size again.
_READ_ROUNDS: Final = 8
_GROWTH_ROOM: Final = 64 * 1024


class VulkanCaches:
    """Creates, merges, reads and destroys caches. Thread-safe but for what `PipelineCache` says."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._live: set[PipelineCache] = set()
        self._lock = threading.Lock()

    def create(
        self,
        initial_data: bytes,
        *,
        externally_synchronized: bool,
        internally_synchronized_merge: bool,
        name: str,
    ) -> PipelineCache:
        """See `Device.create_pipeline_cache`."""
        features = self._context.features
        if externally_synchronized and internally_synchronized_merge:
            raise DeviceError(
                "a cache is externally synchronized or internally synchronized in merges, not both"
            )
        if externally_synchronized and not features.externally_synchronized_caches:
            raise DeviceError("the device lacks the feature pipelineCreationCacheControl")
        if internally_synchronized_merge and not features.internally_synchronized_merge:
            raise DeviceError("the device lacks the feature maintenance8")
        info = ffi.new("VkPipelineCacheCreateInfo *")
        info.sType = registry().struct("VkPipelineCacheCreateInfo").s_type
        info.flags = (_EXTERNALLY_SYNCHRONIZED if externally_synchronized else 0) | (
            _INTERNALLY_SYNCHRONIZED_MERGE if internally_synchronized_merge else 0
        )
        data = ffi.from_buffer("uint8_t[]", initial_data) if initial_data else ffi.NULL
        info.initialDataSize = len(initial_data)
        info.pInitialData = data
        handle = ffi.new("uint64_t *")
        context = self._context
        result = context.commands.vkCreatePipelineCache(context.handle, info, context.allocator, handle)
        check("vkCreatePipelineCache", result)
        cache = PipelineCache(
            int(handle[0]),
            externally_synchronized=externally_synchronized,
            internally_synchronized_merge=internally_synchronized_merge,
            name=name,
        )
        with self._lock:
            self._live.add(cache)
        return cache

    def merge(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        """See `Device.merge_pipeline_caches`."""
        if destination in sources:
            raise DeviceError(f"pipeline cache {destination.name!r} cannot be merged into itself")
        if not sources:
            return
        what = "vkMergePipelineCaches"
        context = self._context
        with ExitStack() as held:
            for each in (destination, *sources):
                held.enter_context(each.exclusive(what))
            handles = ffi.new("uint64_t[]", [each.handle for each in sources])
            merge = context.commands.vkMergePipelineCaches
            check(what, merge(context.handle, destination.handle, len(sources), handles))

    def size(self, cache: PipelineCache) -> int:
        """See `Device.pipeline_cache_size`."""
        size = ffi.new("size_t *")
        with cache.exclusive("vkGetPipelineCacheData"):
            self._get(cache, size, ffi.NULL)
        return int(size[0])

    def data(self, cache: PipelineCache, limit: int | None) -> PipelineCacheData:
        """See `Device.pipeline_cache_data`."""
        size = ffi.new("size_t *")
        with cache.exclusive("vkGetPipelineCacheData"):
            room = 0
            for _ in range(_READ_ROUNDS):
                self._get(cache, size, ffi.NULL)
                wanted = int(size[0]) + room
                size[0] = wanted if limit is None else min(limit, wanted)
                buffer = ffi.new("uint8_t[]", max(int(size[0]), 1))
                result = self._get(cache, size, buffer)
                written = bytes(ffi.buffer(buffer, int(size[0])))
                if result != INCOMPLETE or limit is not None:
                    break
                room = room * 2 or _GROWTH_ROOM  # it grew meanwhile: ask again, with room
        return PipelineCacheData(written, complete=result != INCOMPLETE)

    def destroy(self, cache: PipelineCache) -> None:
        """See `Device.destroy_pipeline_cache`."""
        if cache.destroyed:
            return
        with cache.exclusive("vkDestroyPipelineCache"):
            cache.destroyed = True
            self._context.commands.vkDestroyPipelineCache(
                self._context.handle, cache.handle, self._context.allocator
            )
        with self._lock:
            self._live.discard(cache)

    def destroy_all(self) -> None:
        """Destroy what is left."""
        for cache in list(self._live):
            self.destroy(cache)

    def _get(self, cache: PipelineCache, size: object, data: object) -> int:
        context = self._context
        result = context.commands.vkGetPipelineCacheData(context.handle, cache.handle, size, data)
        return check("vkGetPipelineCacheData", result)
