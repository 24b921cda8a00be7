"""The creation of pipelines in batches, on a device that has bound their image.

One driver call for each kind. A call has one VkResult for all pipelines
("Multiple Pipeline Creation" in the specification), so pipelines that were not created are tried again one by
one, to learn each result. A pipeline that fails, or lacks a library, does not affect the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_UNKNOWN,
    NO_SOURCE,
    SUCCESS,
    CreationBatch,
    Handles,
    PipelineSource,
)
from orchestrator.devices.image import Indices, PipelineKind
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.prepared import VulkanPreparedPipelines
from orchestrator.errors import OrchestratorError

COMMANDS: Final = {
    PipelineKind.GRAPHICS: ("vkCreateGraphicsPipelines", ffi.typeof("VkGraphicsPipelineCreateInfo[]")),
    PipelineKind.COMPUTE: ("vkCreateComputePipelines", ffi.typeof("VkComputePipelineCreateInfo[]")),
    PipelineKind.RAY_TRACING: (
        "vkCreateRayTracingPipelinesKHR",
        ffi.typeof("VkRayTracingPipelineCreateInfoKHR[]"),
    ),
}
_HANDLES: Final = ffi.typeof("uint64_t[]")


class MissingLibraryError(OrchestratorError):
    """A pipeline was requested before a library that it links was created."""

    def __init__(self, pipeline: int) -> None:
        super().__init__(f"pipeline {pipeline:016x} links a library that was not created before it")


class PipelineCreation:
    """Creates batches. Thread-safe as `Device.create_pipelines` is."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context

    def create(
        self,
        bound: VulkanPreparedPipelines,
        indices: Indices,
        source: PipelineSource,
        fail_on_compile_required: bool,
        *,
        identified: bool = False,
    ) -> CreationBatch:
        """Create a batch; the caller owns all handles except those of libraries.

        `identified` means that its stages have identifiers instead of modules. A pipeline whose library
        neither exists nor is created by this batch has the result VK_ERROR_UNKNOWN.
        """
        if not bound.has_libraries:
            return self._wave(bound, indices, source, fail_on_compile_required)
        batch = CreationBatch.of_zeros(len(indices))
        waiting = np.arange(len(indices))
        while waiting.size:
            there = np.array(
                [bound.has_all_libraries(index) for index in indices[waiting].tolist()], np.bool_
            )
            if not there.any():
                batch.results[waiting] = ERROR_UNKNOWN
                break
            chosen, waiting = waiting[there], waiting[~there]
            part = self._wave(bound, indices[chosen], source, fail_on_compile_required)
            bound.keep_libraries(indices[chosen], part.handles, identified=identified)
            batch.put(chosen, part)
        return batch

    def remake(self, bound: VulkanPreparedPipelines, libraries: Indices, source: PipelineSource) -> None:
        """Create libraries from code that were created from identifiers; one that fails stays as it is."""
        for index in libraries:  # one by one, because one may link another
            chosen = np.array([index], np.int32)
            with bound.modules(chosen):
                bound.replace_libraries(chosen, self._wave(bound, chosen, source, False))

    def capture_libraries(self, bound: VulkanPreparedPipelines, index: int) -> None:
        """Create the libraries of a pipeline again, once, with the flag that captures statistics.

        A driver keeps the statistics of linked code with its library. Where one fails, its pipelines link the
        library without them.
        """
        for each in bound.all_libraries_of(np.array([index], np.int32)).tolist():
            if not bound.captured_libraries[each]:
                with bound.one_info(each, capture_statistics=True) as infos:
                    handles = bound.captured_libraries[each : each + 1]
                    self.submit(bound.image.kind_of(each), infos, handles, NO_SOURCE)

    def submit(
        self,
        kind: PipelineKind,
        infos: npt.NDArray[np.uint8],
        handles: Handles,
        source: PipelineSource,
    ) -> npt.NDArray[np.int32]:
        """Create pipelines by contiguous create infos into `handles`; tries failed ones again one by one."""
        result = self._call(kind, infos, handles, source)
        results = np.where(handles == 0, np.int32(result), np.int32(SUCCESS))
        if result not in (SUCCESS, ERROR_DEVICE_LOST) and len(handles) > 1:
            for each in np.flatnonzero(results).tolist():
                one = slice(each, each + 1)
                results[each] = self._call(kind, infos[one], handles[one], source)
        # VK_SUCCESS with VK_NULL_HANDLE: a driver that says so has made nothing.
        results[(results == SUCCESS) & (handles == 0)] = ERROR_UNKNOWN
        return results

    def _call(
        self, kind: PipelineKind, infos: npt.NDArray[np.uint8], handles: Handles, source: PipelineSource
    ) -> int:
        command, ctype = COMMANDS[kind]
        context, create = self._context, getattr(self._context.commands, command)
        deferred = (0,) if kind is PipelineKind.RAY_TRACING else ()
        first, out = ffi.from_buffer(ctype, infos), ffi.from_buffer(_HANDLES, handles)
        with source.using(command):
            return int(
                create(context.handle, *deferred, source.handle, len(handles), first, context.allocator, out)
            )

    def _wave(
        self,
        bound: VulkanPreparedPipelines,
        indices: Indices,
        source: PipelineSource,
        fail_on_compile_required: bool,
    ) -> CreationBatch:
        # Their libraries all exist.
        batch = CreationBatch.of_zeros(len(indices))
        for kind, chosen in bound.image.by_kind(indices, np.ones(len(indices), np.bool_)):
            some = indices[chosen]
            infos = bound.create_infos(kind, some, fail_on_compile_required=fail_on_compile_required)
            handles = np.zeros(len(some), np.uint64)
            results = self.submit(kind, infos, handles, source)
            batch.put(chosen, CreationBatch(results, *bound.take_feedback(some), handles))
        return batch
