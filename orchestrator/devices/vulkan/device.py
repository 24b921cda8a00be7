"""`VulkanDevice`: a `Device` over an open VkDevice.

A driver call releases the GIL (cffi), so workers run in parallel. The context owns the VkDevice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from orchestrator.devices.binary_data import (
    BinaryProperties,
    CapturedPipeline,
    HeldBinaries,
    PipelineBinary,
)
from orchestrator.devices.device import (
    INCOMPLETE,
    NO_SOURCE,
    CreationBatch,
    Device,
    Handles,
    PipelineCache,
    PipelineCacheData,
    PipelineExecutables,
    PipelineSource,
)
from orchestrator.devices.identified import IdentifiedModules
from orchestrator.devices.image import KINDS, CreateInfoImage, Indices, PipelineKind
from orchestrator.devices.request import EXECUTABLE_INFO
from orchestrator.devices.vulkan import creation
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.binaries import Binaries
from orchestrator.devices.vulkan.capabilities import Capabilities
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.executables import inspect_executables
from orchestrator.devices.vulkan.instance import check, new_struct
from orchestrator.devices.vulkan.prepared import (
    CAPTURE_CODE,
    CAPTURE_STATISTICS,
    VulkanPreparedPipelines,
)
from orchestrator.errors import DeviceError

#: VkDriverId of drivers that neither cache nor capture a stage which the new pipeline shares with a living
#: one: NVIDIA's own (580.159), for ray tracing. Of the 84 pipelines of sascha_rt, 28 were missing in every
#: cache, and 79 of 88 were refused from their binaries; none is, if each is destroyed before the next is
#: created. Pipelines with `keep` are not destroyed. Other workers wait where pipelines are captured.
SHARES_LIVING_STAGES: Final = frozenset({4})
_ALONE_S: Final = 5.0
_EXTERNALLY_SYNCHRONIZED: Final = 0x1
_INTERNALLY_SYNCHRONIZED_MERGE: Final = 0x8
# A cache that other workers fill grows between the size query and the read; each round queries again, and
# has twice the room, because a driver may say success and no size: the last one has 1 GiB.
_READ_ROUNDS: Final = 16
_GROWTH_ROOM: Final = 64 * 1024
_RAY_TRACING: Final = KINDS.index(PipelineKind.RAY_TRACING)


class VulkanDevice(Device):
    """A device over an open VkDevice. Made by `open_device`; closed by its opener.

    Attributes:
        context: The device itself; `close` closes it.
    """

    inspects = True

    def __init__(self, context: DeviceContext) -> None:
        super().__init__()
        self.context: Final = context
        self.identity = context.identity
        self.features = context.features
        self.capabilities: Capabilities = context.capabilities
        self.handles = context.handles
        self._capturing = threading.Lock()
        self._binaries = Binaries(context)

    @property
    def supported(self) -> Capabilities:
        """See `Device.supported`."""
        return self.capabilities.supported

    @property
    def identifier_algorithm(self) -> bytes:
        """See `Device.identifier_algorithm`."""
        struct = "VkPhysicalDeviceShaderModuleIdentifierPropertiesEXT"
        value = self.capabilities.property_value(struct, "shaderModuleIdentifierAlgorithmUUID")
        is_told = self.features.shader_module_identifiers
        return bytes(value) if is_told and isinstance(value, tuple) else b""

    @property
    def binary_properties(self) -> BinaryProperties:
        """See `Device.binary_properties`."""
        struct = "VkPhysicalDevicePipelineBinaryPropertiesKHR"
        members = "InternalCache", "PrefersInternalCache", "PrecompiledInternalCache", "CompressedData"
        value = self.capabilities.property_value
        return BinaryProperties(*(bool(value(struct, f"pipelineBinary{each}")) for each in members))

    # --- caches

    def _create_cache(self, data: bytes, external: bool, merged_internally: bool, name: str) -> int:
        del name
        info = new_struct(
            "VkPipelineCacheCreateInfo",
            flags=_EXTERNALLY_SYNCHRONIZED * external | _INTERNALLY_SYNCHRONIZED_MERGE * merged_internally,
            initialDataSize=len(data),
            # Some drivers fail on size 0 with a pointer that is not null.
            pInitialData=ffi.from_buffer("uint8_t[]", data) if data else ffi.NULL,
        )
        return self.context.create("vkCreatePipelineCache", info)

    def _merge_caches(self, destination: PipelineCache, sources: Sequence[PipelineCache]) -> None:
        context, what = self.context, "vkMergePipelineCaches"
        handles = ffi.new("uint64_t[]", [each.handle for each in sources])
        merge = context.commands.vkMergePipelineCaches
        check(what, merge(context.handle, destination.handle, len(sources), handles))

    def _cache_size(self, cache: PipelineCache) -> int:
        size = ffi.new("size_t *")
        self._get(cache, size, ffi.NULL)
        return int(size[0])

    def _cache_data(self, cache: PipelineCache) -> PipelineCacheData:
        size, room = ffi.new("size_t *"), 0
        for _ in range(_READ_ROUNDS):
            self._get(cache, size, ffi.NULL)
            size[0] += room
            buffer = ffi.new("uint8_t[]", max(int(size[0]), 1))
            result = self._get(cache, size, buffer)
            written = bytes(ffi.buffer(buffer, int(size[0])))
            if result != INCOMPLETE:
                break
            room = room * 2 or _GROWTH_ROOM  # it grew meanwhile: try again with more room
        return PipelineCacheData(written, complete=result != INCOMPLETE)

    def _get(self, cache: PipelineCache, size: object, data: object) -> int:
        context = self.context
        result = context.commands.vkGetPipelineCacheData(context.handle, cache.handle, size, data)
        return check("vkGetPipelineCacheData", result)

    def _destroy_cache(self, cache: PipelineCache) -> None:
        context = self.context
        context.commands.vkDestroyPipelineCache(context.handle, cache.handle, context.allocator)

    # --- pipelines

    def _bind(self, given: CreateInfoImage | IdentifiedModules, on_demand: bool) -> VulkanPreparedPipelines:
        return VulkanPreparedPipelines(self, self.context, given, on_demand)

    def _create(
        self,
        bound: VulkanPreparedPipelines,
        indices: Indices,
        source: PipelineSource,
        fail_on_compile_required: bool,
        *,
        keep: bool,
        identified: bool = False,
    ) -> CreationBatch:
        one_lives = not keep and self._shares_living_stages(bound, indices)
        if one_lives and len(indices) > 1:
            batch = CreationBatch.of_zeros(len(indices))
            create = partial(self._create, keep=False, identified=identified)
            for place in range(len(indices)):
                here = slice(place, place + 1)
                batch.put(here, create(bound, indices[here], source, fail_on_compile_required))
            return batch
        if identified:
            bound.use_identifiers(indices)
            batch = creation.create(bound, indices, source, True, identified=True)
        else:
            if not fail_on_compile_required:
                self._remake_libraries(bound, indices, source)
            with bound.modules(indices):
                batch = creation.create(bound, indices, source, fail_on_compile_required)
        batch = _kept(bound, batch, keep=keep)
        if one_lives:
            bound.destroy_discarded()
        return batch

    def _shares_living_stages(self, bound: VulkanPreparedPipelines, indices: Indices) -> bool:
        return (
            self.identity.driver_id in SHARES_LIVING_STAGES
            and bound.image.counts[PipelineKind.RAY_TRACING] > 0
            and bool((bound.image.kinds[indices] == _RAY_TRACING).any())
        )

    def _remake_libraries(
        self, bound: VulkanPreparedPipelines, indices: Indices, source: PipelineSource
    ) -> None:
        # From code, what was created from identifiers: linking those forbids compiling.
        if not bound.has_libraries or not len(bound.libraries_of_identifiers(indices)):
            return
        with bound.remaking:  # two workers may link one library
            creation.remake(bound, bound.libraries_of_identifiers(indices), source)

    def _destroy_pipelines(self, handles: Handles) -> None:
        self.context.destroy_pipelines(handles)

    def _executables(self, bound: VulkanPreparedPipelines, index: int, code: bool) -> PipelineExecutables:
        if not self.capabilities.has_feature(*EXECUTABLE_INFO):
            return super()._executables(bound, index, code)
        if not bound.are_linkable(np.array([index])).all():
            raise creation.MissingLibraryError(int(bound.image.keys[index]))
        following = int(bound.image.feedback_next[index])
        rest = 0 if following < 0 else bound.address + following
        capture = CAPTURE_STATISTICS | CAPTURE_CODE * code
        with bound.remaking:  # two calls may link one library
            creation.capture_libraries(bound, index, capture)
        with bound.one_info(index, capture=capture) as infos:
            kind = bound.image.kind_of(index)
            links = bool(bound.image.libraries_of(index))
            return inspect_executables(self.context, kind, infos, rest, links=links, code=code)

    # --- identifiers of modules

    def _code_identifier(self, bound: VulkanPreparedPipelines, module: int) -> bytes:
        return bound.identifier_of_code(module)

    # --- keys and binaries

    def _pipeline_keys(self, bound: VulkanPreparedPipelines, indices: Indices) -> list[bytes | None]:
        image, binaries = bound.image, self._binaries
        # RADV of Mesa 25.0.7 crashes when asked for the key of a graphics pipeline that links libraries.
        links = image.library_slot_start[indices + 1] > image.library_slot_start[indices]
        keys: list[bytes | None] = [None] * len(indices)
        lacking = np.zeros_like(links) if bound.identified is None else bound.identified.lacking[indices]
        for place in np.flatnonzero(lacking & ~links).tolist():
            with self._info(bound, int(indices[place])) as infos:
                keys[place] = None if infos is None else binaries.pipeline_keys(infos)[0]
        for kind, places in image.by_kind(indices, ~lacking & ~links):
            some = indices[places]
            with bound.modules(some):
                infos = bound.create_infos(kind, some, fail_on_compile_required=False)
                for place, key in zip(places.tolist(), binaries.pipeline_keys(infos), strict=True):
                    keys[place] = key
        return keys

    @contextmanager
    def _info(self, bound: VulkanPreparedPipelines, index: int) -> Iterator[npt.NDArray[np.uint8] | None]:
        # With identifiers where code is missing; None where one of them is not known.
        if bound.identified is None or not bound.identified.lacking[index]:
            with bound.one_info(index) as infos:
                yield infos
            return
        own = np.array([index], np.int32)
        if not bound.identified.known(own).all():
            yield None
            return
        bound.use_identifiers(own)
        yield bound.create_infos(bound.image.kind_of(index), own, fail_on_compile_required=True)

    def _global_key(self) -> bytes:
        return self._binaries.global_key()

    def _create_binaries(self, binaries: Sequence[PipelineBinary]) -> Handles:
        return self._binaries.of_data(binaries)

    def _destroy_binaries(self, handles: Handles) -> None:
        self._binaries.destroy(handles)

    def _create_from_binaries(
        self, bound: VulkanPreparedPipelines, indices: Indices, held: HeldBinaries, *, keep: bool
    ) -> CreationBatch:
        batch = self._binaries.create_from(bound, indices, held)
        bound.keep_libraries(indices, batch.handles)
        return _kept(bound, batch, keep=keep)

    def _create_captured(
        self,
        bound: VulkanPreparedPipelines,
        indices: Indices,
        captured: list[CapturedPipeline],
        *,
        keep: bool,
    ) -> CreationBatch:
        self._remake_libraries(bound, indices, NO_SOURCE)
        if keep or not self._shares_living_stages(bound, indices):
            return self._capture(bound, indices, captured, keep=keep)
        batch = CreationBatch.of_zeros(len(indices))
        for place in range(len(indices)):
            here = slice(place, place + 1)
            # One worker at a time has such a pipeline alive. The wait is short, because it counts towards the
            # time limit of its call: after it the binaries may lack stages, and the next run compiles again.
            is_alone = self._capturing.acquire(timeout=_ALONE_S)
            try:
                batch.put(here, self._capture(bound, indices[here], captured, keep=False))
                bound.destroy_discarded()
            finally:
                if is_alone:
                    self._capturing.release()
        return batch

    def _capture(
        self,
        bound: VulkanPreparedPipelines,
        indices: Indices,
        captured: list[CapturedPipeline],
        *,
        keep: bool,
    ) -> CreationBatch:
        with bound.modules(indices):
            batch, found = self._binaries.create_captured(bound, indices)
            for each in found:
                named = bound.stage_identifiers(each.index) if self.features.shader_module_identifiers else ()
                captured.append(msgspec.structs.replace(each, identifiers=named))
        bound.keep_libraries(indices, batch.handles)
        return _kept(bound, batch, keep=keep)

    def _probe_internal_cache(self, bound: VulkanPreparedPipelines, indices: Indices) -> list[Handles | None]:
        if self.context.internal_cache_off:
            raise DeviceError("the driver's internal cache was turned off when the device was opened")
        found = []
        for index in indices.tolist():
            with self._info(bound, index) as infos:
                found.append(None if infos is None else self._binaries.of_internal_cache(infos))
        return found

    def _destroy_rest(self) -> None:
        self._binaries.destroy_all()
        self.context.close()


def _kept(bound: VulkanPreparedPipelines, batch: CreationBatch, *, keep: bool) -> CreationBatch:
    if not keep:
        bound.discard(batch.handles)
        batch.handles = np.zeros(len(batch.results), np.uint64)
    return batch
