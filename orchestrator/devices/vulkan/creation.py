"""The creation of pipelines in batches, on a device that has bound their image.

One driver call for each kind, or as many as `CallSplit` says. A call has one VkResult for all pipelines
("Multiple Pipeline Creation" in the specification), so pipelines that were not created are tried again one by
one, to learn each result. A pipeline that fails, or lacks a library, does not affect the others.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    ERROR_DEVICE_LOST,
    ERROR_UNKNOWN,
    NO_SOURCE,
    NOT_READY,
    SUCCESS,
    CallSplit,
    CreationBatch,
    Handles,
    PipelineSource,
)
from orchestrator.devices.image import KINDS, Indices, PipelineKind, span_of
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.prepared import VulkanPreparedPipelines, clear
from orchestrator.errors import OrchestratorError

COMMANDS: Final = {
    PipelineKind.GRAPHICS: ("vkCreateGraphicsPipelines", ffi.typeof("VkGraphicsPipelineCreateInfo[]")),
    PipelineKind.COMPUTE: ("vkCreateComputePipelines", ffi.typeof("VkComputePipelineCreateInfo[]")),
    PipelineKind.RAY_TRACING: (
        "vkCreateRayTracingPipelinesKHR",
        ffi.typeof("VkRayTracingPipelineCreateInfoKHR[]"),
    ),
}
_USUAL: Final = 8192
_SUCCESSES: Final = np.zeros(_USUAL, np.int32)
_SUCCESSES.flags.writeable = False
_HANDLES: Final = ffi.typeof("uint64_t[]")


class MissingLibraryError(OrchestratorError):
    """A pipeline was requested before a library that it links was created."""

    def __init__(self, pipeline: int) -> None:
        super().__init__(f"pipeline {pipeline:016x} links a library that was not created before it")


class PipelineCreation:
    """Creates batches. Thread-safe as `Device.create_pipelines` is."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._local = threading.local()

    def create(
        self,
        bound: VulkanPreparedPipelines,
        indices: Indices,
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None = None,
        *,
        identified: bool = False,
    ) -> CreationBatch:
        """Create a batch; the caller owns all handles except those of libraries.

        `identified` means that its stages have identifiers instead of modules. A pipeline whose library
        neither exists nor is created by this batch has the result VK_ERROR_UNKNOWN.
        """
        if not bound.has_libraries:
            return self._wave(bound, indices, source, fail_on_compile_required, split)
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
            part = self._wave(bound, indices[chosen], source, fail_on_compile_required, split)
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
        split: CallSplit | None = None,
    ) -> tuple[npt.NDArray[np.int32], bool]:
        """Create pipelines by contiguous create infos into `handles`; tries failed ones again one by one."""
        failed = self._calls(kind, infos, handles, source, split)
        if not failed and len(handles) <= len(_SUCCESSES):
            return _SUCCESSES[: len(handles)], True
        results = np.zeros(len(handles), np.int32)
        for part, result in failed:
            missing = part.start + np.flatnonzero(handles[part] == 0)
            results[missing] = result
            if part.stop - part.start == 1 or result in (NOT_READY, ERROR_DEVICE_LOST):
                continue
            for each in missing.tolist():
                one = slice(each, each + 1)
                again = self._calls(kind, infos[one], handles[one], source, None)
                results[each] = again[0][1] if again else SUCCESS
        return results, not failed

    def _calls(
        self,
        kind: PipelineKind,
        infos: npt.NDArray[np.uint8],
        handles: Handles,
        source: PipelineSource,
        split: CallSplit | None,
    ) -> list[tuple[slice, int]]:
        # No work between two calls; returns failed parts with their VkResult.
        command, ctype = COMMANDS[kind]
        context, count = self._context, len(handles)
        create, device, allocator = getattr(context.commands, command), context.handle, context.allocator
        deferred = (0,) if kind is PipelineKind.RAY_TRACING else ()
        first, out = ffi.from_buffer(ctype, infos), ffi.from_buffer(_HANDLES, handles)
        cache = source.handle
        failed: list[tuple[slice, int]] = []
        done = 0
        source.begin_use(command)
        try:
            for part in (slice(0, count),) if split is None else split.parts(count):
                size = part.stop - done
                result = create(device, *deferred, cache, size, first + done, allocator, out + done)
                done = part.stop
                if result != SUCCESS:
                    failed.append((part, int(result)))
                    if result == ERROR_DEVICE_LOST:
                        break  # each further call would fail
        finally:
            source.end_use()
        if done < count:
            failed.append((slice(done, count), NOT_READY))
        return failed

    def _wave(
        self,
        bound: VulkanPreparedPipelines,
        indices: Indices,
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None = None,
    ) -> CreationBatch:
        # Their libraries all exist.
        if not len(indices):
            return CreationBatch.of_zeros(0)
        span = span_of(indices)
        numbers = indices.tolist() if span is None else (span.start, span.stop - 1)
        kinds = bound.image.kinds
        kind = kinds[min(numbers)]
        if kind == kinds[max(numbers)]:  # an image is ordered by kind
            return self._kind(bound, KINDS[kind], indices, source, fail_on_compile_required, split, span)
        batch = CreationBatch.of_zeros(len(indices))
        for each, chosen in bound.image.by_kind(indices, np.ones(len(indices), np.bool_)):
            part = self._kind(bound, each, indices[chosen], source, fail_on_compile_required, split)
            batch.put(chosen, part)
        return batch

    def _kind(
        self,
        bound: VulkanPreparedPipelines,
        kind: PipelineKind,
        indices: Indices,
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None = None,
        span: slice | None = None,
    ) -> CreationBatch:
        infos = bound.create_infos(
            kind, indices, fail_on_compile_required=fail_on_compile_required, span=span
        )
        handles = self._scratch(len(indices)) if span is not None else np.zeros(len(indices), np.uint64)
        results, created = self.submit(kind, infos, handles, source, split)
        flags, durations, all_hits = bound.take_feedback(indices, span)
        if span is not None and not (all_hits and created):
            handles = handles.copy()
        return CreationBatch(results, flags, durations, handles, created, all_hits, span)

    def _scratch(self, count: int) -> Handles:
        # Zeroed handles for one call, in a buffer that this thread reuses.
        mine: Handles | None = getattr(self._local, "handles", None)
        if mine is None or len(mine) < count:
            mine = self._local.handles = np.full(max(count, _USUAL), 0, np.uint64)
        handles = mine[:count]
        clear(handles.data.cast("B"))
        return handles
