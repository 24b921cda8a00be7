"""The creation of pipelines in batches, on a device that has bound their image.

One driver call for each kind. A call has one VkResult for all pipelines
("Multiple Pipeline Creation" in the specification), so pipelines that were not created are tried again one by
one, to learn each result. A pipeline that fails, or lacks a library, does not affect the others.
Thread-safe as `Device.create_pipelines` is.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def create(
    bound: VulkanPreparedPipelines,
    indices: Indices,
    source: PipelineSource,
    fail_on_compile_required: bool,
    *,
    identified: bool = False,
    keep_libraries: bool = True,
) -> CreationBatch:
    """Create a batch; the caller owns all handles except those of libraries that are kept.

    `identified` means that its stages have identifiers instead of modules. A pipeline whose library
    neither exists nor is created by this batch has the result VK_ERROR_UNKNOWN.
    """
    batch = CreationBatch.of_zeros(len(indices))
    for places in _waves(bound, indices, batch):
        for kind, chosen in bound.image.by_kind(indices[places], np.ones(len(places), np.bool_)):
            there = places[chosen]
            some, handles = indices[there], np.zeros(len(there), np.uint64)
            infos = bound.create_infos(kind, some, fail_on_compile_required=fail_on_compile_required)
            results = submit(bound.context, kind, infos, handles, source)
            batch.put(there, CreationBatch(results, *bound.take_feedback(some), handles))
        if bound.has_libraries and keep_libraries:
            kept = batch.handles[places]
            bound.keep_libraries(indices[places], kept, identified=identified)
            batch.handles[places] = kept
    return batch


def remake(bound: VulkanPreparedPipelines, libraries: Indices, source: PipelineSource) -> None:
    """Create libraries from code that were created from identifiers; one that fails stays as it is."""
    for index in libraries:  # one by one, because one may link another
        chosen = np.array([index], np.int32)
        with bound.modules(chosen):
            made = create(bound, chosen, source, False, keep_libraries=False)
            bound.replace_libraries(chosen, made)


def capture_libraries(bound: VulkanPreparedPipelines, index: int, capture: int) -> None:
    """Create the libraries of a pipeline again, once, with the flags that capture what is asked for.

    A driver keeps the statistics of linked code with its library. Where one fails, its pipelines link the
    library without them.
    """
    for each in bound.image.all_libraries_of([index]):
        if not bound.captured_libraries[each]:
            with bound.one_info(each, capture=capture) as infos:
                handles = bound.captured_libraries[each : each + 1]
                submit(bound.context, bound.image.kind_of(each), infos, handles, NO_SOURCE)


def submit(
    context: DeviceContext,
    kind: PipelineKind,
    infos: npt.NDArray[np.uint8],
    handles: Handles,
    source: PipelineSource,
) -> npt.NDArray[np.int32]:
    """Create pipelines by contiguous create infos into `handles`; tries failed ones again one by one."""
    command, ctype = COMMANDS[kind]
    call = getattr(context.commands, command)
    deferred = (0,) if kind is PipelineKind.RAY_TRACING else ()
    first, out = ffi.from_buffer(ctype, infos), ffi.from_buffer(_HANDLES, handles)
    count, allocator = len(handles), context.allocator
    with source.using(command):
        result = int(call(context.handle, *deferred, source.handle, count, first, allocator, out))
    results = np.where(handles == 0, np.int32(result), np.int32(SUCCESS))
    if result not in (SUCCESS, ERROR_DEVICE_LOST) and count > 1:
        for each in np.flatnonzero(results).tolist():
            one = slice(each, each + 1)
            results[one] = submit(context, kind, infos[one], handles[one], source)
    # VK_SUCCESS with VK_NULL_HANDLE: a driver that says so has made nothing.
    results[(results == SUCCESS) & (handles == 0)] = ERROR_UNKNOWN
    return results


def _waves(
    bound: VulkanPreparedPipelines, indices: Indices, batch: CreationBatch
) -> Iterator[npt.NDArray[np.intp]]:
    # Places of pipelines all of whose libraries exist by then; the rest gets VK_ERROR_UNKNOWN.
    waiting = np.arange(len(indices))
    while waiting.size:
        there = bound.are_linkable(indices[waiting])
        if not there.any():
            batch.results[waiting] = ERROR_UNKNOWN
            return
        yield waiting[there]
        waiting = waiting[~there]
