"""Pipeline binaries of a Vulkan device: the commands of VK_KHR_pipeline_binary.

Create infos are copied for a call and get VkPipelineBinaryInfoKHR, or VkPipelineCreateFlags2CreateInfo with
the capture flag, at the front of their chain. Neither is used together with a pipeline cache
(VUID-vkCreateGraphicsPipelines-pNext-09616 and -09617, and the same for other kinds).

Guarantees: captured data is released as soon as it was read, so that living pipelines do not keep it.
Binaries that are created here are tracked, and destroyed with the device. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.binaries import PIPELINE_BINARY_MISSING
from orchestrator.devices.binary_data import CapturedPipeline, HeldBinaries, PipelineBinary
from orchestrator.devices.device import ERROR_UNKNOWN, NO_SOURCE, SUCCESS, CreationBatch
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.creation import submit
from orchestrator.devices.vulkan.instance import check, new_struct
from orchestrator.devices.vulkan.prepared import VulkanPreparedPipelines
from orchestrator.errors import DriverError
from orchestrator.registry.tables import registry

_CREATE: Final = "vkCreatePipelineBinariesKHR"
_READ: Final = "vkGetPipelineBinaryDataKHR"
_NOT_ENOUGH_SPACE: Final = -1000483000  # VK_ERROR_NOT_ENOUGH_SPACE_KHR


class Binaries:
    """The binaries of one device. `VulkanDevice` checks that it has them."""

    def __init__(self, context: DeviceContext) -> None:
        """Work on a device whose owner outlives this."""
        self._context = context
        self._live: set[int] = set()
        self._lock = threading.Lock()

    # --- keys

    def global_key(self) -> bytes:
        """The global key, on which all keys depend."""
        key = new_struct("VkPipelineBinaryKeyKHR")
        context = self._context
        check("vkGetPipelineKeyKHR", context.commands.vkGetPipelineKeyKHR(context.handle, ffi.NULL, key))
        return bytes(key.key[0 : key.keySize])

    def pipeline_keys(self, infos: npt.NDArray[np.uint8]) -> list[bytes | None]:
        """The keys of pipelines, by their contiguous create infos; None where the driver has none."""
        info, key = new_struct("VkPipelineCreateInfoKHR"), new_struct("VkPipelineBinaryKeyKHR")
        get, device = self._context.commands.vkGetPipelineKeyKHR, self._context.handle
        address, (count, stride) = int(infos.ctypes.data), infos.shape
        keys: list[bytes | None] = []
        for each in range(address, address + count * stride, stride):
            info.pNext = ffi.cast("void *", each)
            keys.append(bytes(key.key[0 : key.keySize]) if get(device, info, key) == SUCCESS else None)
        return keys

    # --- binaries

    def of_data(self, binaries: Sequence[PipelineBinary]) -> npt.NDArray[np.uint64]:
        """Create binaries from data, in one call."""
        handles = np.zeros(len(binaries), np.uint64)
        if not binaries:
            return handles
        keys = ffi.new("VkPipelineBinaryKeyKHR[]", len(binaries))
        data = ffi.new("VkPipelineBinaryDataKHR[]", len(binaries))
        s_type = new_struct("VkPipelineBinaryKeyKHR").sType
        kept = []
        for key, of_key, each in zip(keys, data, binaries, strict=True):
            key.sType, key.keySize = s_type, len(each.key)
            ffi.memmove(key.key, each.key, len(each.key))
            memory = ffi.from_buffer(each.data)
            kept.append(memory)
            of_key.dataSize, of_key.pData = len(each.data), memory
        both = ffi.new(
            "VkPipelineBinaryKeysAndDataKHR *",
            {"binaryCount": len(binaries), "pPipelineBinaryKeys": keys, "pPipelineBinaryData": data},
        )
        info = new_struct("VkPipelineBinaryCreateInfoKHR", pKeysAndDataInfo=both)
        result = self._create(info, handles)
        if result != SUCCESS:
            self.destroy(handles)
            # VK_INCOMPLETE is an error here, because the handles match the data.
            raise DriverError(_CREATE, result, registry().result_name(result))
        return handles

    def of_internal_cache(self, infos: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64] | None:
        """The binaries of a pipeline in the driver's own cache; None where it has none."""
        pipeline = new_struct("VkPipelineCreateInfoKHR", pNext=ffi.from_buffer("uint8_t[]", infos))
        info = new_struct("VkPipelineBinaryCreateInfoKHR", pPipelineCreateInfo=pipeline)
        return self._counted(info)

    def read(self, handle: int) -> PipelineBinary:
        """Key and data of a binary."""
        context = self._context
        info = new_struct("VkPipelineBinaryDataInfoKHR", pipelineBinary=handle)
        key = new_struct("VkPipelineBinaryKeyKHR")
        size = ffi.new("size_t *")
        ask = context.commands.vkGetPipelineBinaryDataKHR
        check(_READ, ask(context.handle, info, key, size, ffi.NULL))
        while True:
            data = bytearray(int(size[0]))
            result = ask(context.handle, info, key, size, ffi.from_buffer(data))
            if result != _NOT_ENOUGH_SPACE or size[0] <= len(data):
                break
        check(_READ, result)
        return PipelineBinary(bytes(key.key[0 : key.keySize]), bytes(data[: int(size[0])]))

    def destroy(self, handles: npt.NDArray[np.uint64]) -> None:
        """Destroy binaries; zeros are skipped."""
        given = handles[handles != 0].tolist()
        if not given:  # a device without binaries lacks the command
            return
        context = self._context
        destroy = context.commands.vkDestroyPipelineBinaryKHR
        for handle in given:
            destroy(context.handle, handle, context.allocator)
        with self._lock:
            self._live.difference_update(given)

    def destroy_all(self) -> None:
        """Destroy all remaining binaries."""
        self.destroy(np.array(list(self._live), np.uint64))

    def _create(self, info: Any, handles: npt.NDArray[np.uint64]) -> int:
        context = self._context
        out = new_struct(
            "VkPipelineBinaryHandlesInfoKHR",
            pipelineBinaryCount=len(handles),
            pPipelineBinaries=ffi.from_buffer("uint64_t[]", handles),
        )
        result = int(getattr(context.commands, _CREATE)(context.handle, info, context.allocator, out))
        made = handles[handles != 0].tolist()
        with self._lock:
            self._live.update(made)
        return result

    def _counted(self, info: Any) -> npt.NDArray[np.uint64] | None:
        context = self._context
        out = new_struct("VkPipelineBinaryHandlesInfoKHR")
        result = getattr(context.commands, _CREATE)(context.handle, info, context.allocator, out)
        if check(_CREATE, result) == PIPELINE_BINARY_MISSING:
            return None
        handles = np.zeros(out.pipelineBinaryCount, np.uint64)
        if not len(handles):
            return handles
        result = self._create(info, handles)
        if result != SUCCESS:
            self.destroy(handles)
            check(_CREATE, result)
            return None  # VK_INCOMPLETE, or no longer available
        return handles

    # --- pipelines

    def create_from(
        self, bound: VulkanPreparedPipelines, indices: npt.NDArray[np.int32], held: HeldBinaries
    ) -> CreationBatch:
        """Create pipelines from binaries; the caller owns all handles."""
        counts = held.counts.astype(np.uint64)
        first = np.uint64(held.handles.ctypes.data) + np.uint64(8) * (np.cumsum(counts) - counts)
        bound.without_modules(indices)
        batch = _unlinked(bound, indices)
        for kind, places in bound.image.by_kind(indices, batch.results == SUCCESS):
            chosen = indices[places]
            infos = bound.create_infos(kind, chosen, fail_on_compile_required=False)
            words = infos.view(np.uint64)
            # VkPipelineBinaryInfoKHR: sType, pNext, binaryCount, pPipelineBinaries.
            chained = np.empty((len(chosen), 4), np.uint64)
            chained[:, 0] = new_struct("VkPipelineBinaryInfoKHR").sType
            chained[:, 1], chained[:, 2], chained[:, 3] = words[:, 1], counts[places], first[places]
            words[:, 1] = np.uint64(chained.ctypes.data) + np.arange(
                len(chosen), dtype=np.uint64
            ) * np.uint64(32)
            batch.put(places, self._submit(bound, kind, chosen, infos))
        return batch

    def create_captured(
        self, bound: VulkanPreparedPipelines, indices: npt.NDArray[np.int32]
    ) -> tuple[CreationBatch, list[CapturedPipeline]]:
        """Compile pipelines whose modules exist, and read their binaries; the caller owns all handles."""
        batch = _unlinked(bound, indices)
        for kind, places in bound.image.by_kind(indices, batch.results == SUCCESS):
            chosen = indices[places]
            infos = bound.create_infos(kind, chosen, fail_on_compile_required=False)
            with bound.capturing(infos, chosen):
                batch.put(places, self._submit(bound, kind, chosen, infos))
        captured = []
        for place in np.flatnonzero(batch.results == SUCCESS).tolist():
            binaries = self._capture(int(batch.handles[place]))
            if binaries:
                index = int(indices[place])
                key = None
                if not bound.image.libraries_of(index):  # as `VulkanDevice.pipeline_keys`
                    with bound.one_info(index) as infos:
                        (key,) = self.pipeline_keys(infos)
                captured.append(CapturedPipeline(index, key, binaries))
        return batch, captured

    def _submit(
        self,
        bound: VulkanPreparedPipelines,
        kind: PipelineKind,
        indices: npt.NDArray[np.int32],
        infos: npt.NDArray[np.uint8],
    ) -> CreationBatch:
        handles = np.zeros(len(indices), np.uint64)
        results = submit(self._context, kind, infos, handles, NO_SOURCE)
        return CreationBatch(results, *bound.take_feedback(indices), handles)

    def _capture(self, pipeline: int) -> tuple[PipelineBinary, ...]:
        context = self._context
        info = new_struct("VkPipelineBinaryCreateInfoKHR", pipeline=pipeline)
        handles = None
        try:
            handles = self._counted(info)
            return () if handles is None else tuple(map(self.read, handles.tolist()))
        except DriverError:
            return ()  # it is not stored, and another run compiles it again
        finally:
            if handles is not None:
                self.destroy(handles)
            release = new_struct("VkReleaseCapturedPipelineDataInfoKHR", pipeline=pipeline)
            context.commands.vkReleaseCapturedPipelineDataKHR(context.handle, release, context.allocator)


def _unlinked(bound: VulkanPreparedPipelines, indices: npt.NDArray[np.int32]) -> CreationBatch:
    batch = CreationBatch.of_zeros(len(indices))
    batch.results[~bound.are_linkable(indices)] = ERROR_UNKNOWN
    return batch
