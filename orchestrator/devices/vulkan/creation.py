"""Creation of pipelines in batches, one driver call a kind, or as many as are asked for.

The create infos of a batch lie in one contiguous array: in place, if the pipelines follow one another, or
else copied (their nested pointers are absolute, so a copy is as good as the original). The specification
gives one VkResult for the whole call ("Multiple Pipeline Creation"), so pipelines that were not created are
asked for once more, one by one, to learn each one's own result.

A pipeline that fails, or whose library is not there, does not take the others with it. Libraries stay with
what was prepared, since what links them needs them alive.
"""

from __future__ import annotations

import threading
from typing import Final

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    ERROR_UNKNOWN,
    NOT_READY,
    SUCCESS,
    CallSplit,
    CreationBatch,
    PipelineSource,
)
from orchestrator.devices.image import PipelineKind, span_of
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.prepared import VulkanPreparedPipelines, clear, pointer_to
from orchestrator.errors import OrchestratorError

_KINDS: Final = tuple(PipelineKind)
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
    """A pipeline was asked about before a library that it links was created: the caller's order is wrong."""

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
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None = None,
        *,
        identified: bool = False,
    ) -> CreationBatch:
        """Create a batch; the caller owns all handles but those of libraries.

        `identified` says that its stages carry identifiers.

        A pipeline whose library does not exist, and is not created by this batch either, has the result
        VK_ERROR_UNKNOWN.
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

    def remake(
        self, bound: VulkanPreparedPipelines, libraries: npt.NDArray[np.int32], source: PipelineSource
    ) -> None:
        """Make libraries of code that were made of identifiers; one that fails stays as it is."""
        for index in libraries:  # one may link another
            chosen = np.array([index], np.int32)
            acquired = bound.acquire_modules(chosen)
            try:
                bound.replace_libraries(chosen, self._wave(bound, chosen, source, False))
            finally:
                bound.release_modules(acquired)

    def submit(
        self,
        kind: PipelineKind,
        infos: npt.NDArray[np.uint8],
        handles: npt.NDArray[np.uint64],
        source: PipelineSource,
        split: CallSplit | None = None,
    ) -> tuple[npt.NDArray[np.int32], bool]:
        """Hand pipelines to the driver: contiguous create infos in, handles out.

        What a call did not create is asked for once more, one by one. Each VkResult, and whether all were
        created at the first try.
        """
        failed = self._calls(kind, infos, handles, source, split)
        if not failed and len(handles) <= len(_SUCCESSES):
            return _SUCCESSES[: len(handles)], True
        results = np.zeros(len(handles), np.int32)
        for part, result in failed:
            missing = part.start + np.flatnonzero(handles[part] == 0)
            results[missing] = result
            if part.stop - part.start == 1 or result == NOT_READY:
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
        handles: npt.NDArray[np.uint64],
        source: PipelineSource,
        split: CallSplit | None,
    ) -> list[tuple[slice, int]]:
        """Call the driver, with nothing between two calls; what did not succeed, with its VkResult."""
        command, ctype = COMMANDS[kind]
        context, count = self._context, len(handles)
        create, device, allocator = getattr(context.commands, command), context.handle, context.allocator
        deferred = (0,) if kind is PipelineKind.RAY_TRACING else ()
        first, out, cache = pointer_to(infos, ctype), pointer_to(handles, _HANDLES), source.handle
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
        finally:
            source.end_use()
        if done < count:
            failed.append((slice(done, count), NOT_READY))
        return failed

    def _wave(
        self,
        bound: VulkanPreparedPipelines,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None = None,
    ) -> CreationBatch:
        """Create pipelines whose libraries all exist, kind by kind."""
        if not len(indices):
            return CreationBatch.of_zeros(0)
        span = span_of(indices)
        of_each = bound.image.kinds
        if span is not None and of_each[span.start] == of_each[span.stop - 1]:  # an image is ordered by kind
            kind = _KINDS[of_each[span.start]]
            return self._kind(bound, kind, indices, source, fail_on_compile_required, split, span)
        kinds = of_each[indices]
        if (kinds == kinds[0]).all():  # what schedulers hand out
            return self._kind(bound, _KINDS[kinds[0]], indices, source, fail_on_compile_required, split)
        batch = CreationBatch.of_zeros(len(indices))
        for number, kind in enumerate(_KINDS):
            chosen = np.flatnonzero(kinds == number)
            if chosen.size:
                part = self._kind(bound, kind, indices[chosen], source, fail_on_compile_required, split)
                batch.put(chosen, part)
        return batch

    def _kind(
        self,
        bound: VulkanPreparedPipelines,
        kind: PipelineKind,
        indices: npt.NDArray[np.int32],
        source: PipelineSource,
        fail_on_compile_required: bool,
        split: CallSplit | None = None,
        span: slice | None = None,
    ) -> CreationBatch:
        """Create pipelines of one kind."""
        infos = bound.create_infos(
            kind, indices, fail_on_compile_required=fail_on_compile_required, span=span
        )
        handles = self._scratch(len(indices)) if span is not None else np.zeros(len(indices), np.uint64)
        results, created = self.submit(kind, infos, handles, source, split)
        flags, durations, all_hits = bound.take_feedback(indices, span)
        if span is not None and not (all_hits and created):
            handles = handles.copy()
        return CreationBatch(results, flags, durations, handles, created, all_hits, span)

    def _scratch(self, count: int) -> npt.NDArray[np.uint64]:
        """Zeros for the handles of one call, in memory of this thread that it always uses."""
        mine: npt.NDArray[np.uint64] | None = getattr(self._local, "handles", None)
        if mine is None or len(mine) < count:
            mine = self._local.handles = np.full(max(count, _USUAL), 0, np.uint64)
        handles = mine[:count]
        clear(handles.data.cast("B"))
        return handles
