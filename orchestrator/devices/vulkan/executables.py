"""Statistics of a pipeline's code from the driver (VK_KHR_pipeline_executable_properties).

The pipeline is created again, without a source and with VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR, which
vkGetPipelineExecutableStatisticsKHR requires (VUID-vkGetPipelineExecutableStatisticsKHR-pipeline-03274).
So are the libraries that it links: RADV (25.0.7) knows little of code from libraries without the flag.
Drivers may include that flag in their cache keys, so the pipelines of a run are not changed. The create info
is a copy with its own creation feedback structure, which also requests the time of each stage.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from orchestrator.devices.device import (
    FEEDBACK_VALID,
    NO_SOURCE,
    SUCCESS,
    PipelineExecutable,
    PipelineExecutables,
)
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.creation import COMMANDS, submit
from orchestrator.devices.vulkan.instance import check, new_struct, text_of

# VkPipelineExecutableStatisticFormatKHR
_BOOL, _INT64, _UINT64, _FLOAT64 = range(4)


def inspect_executables(
    context: DeviceContext,
    kind: PipelineKind,
    infos: npt.NDArray[np.uint8],
    rest: int,
    *,
    links: bool,
    code: bool,
) -> PipelineExecutables:
    """Create a pipeline, ask for its executables, and destroy it."""
    info = ffi.from_buffer(COMMANDS[kind][1], infos)[0]
    if kind is PipelineKind.COMPUTE:
        stages = [info.stage]
    else:
        # RADV (25.0.7) also writes feedback of a graphics library's stages: beyond the end of an array of
        # stageCount entries, and in its own order.
        stages = [] if links else [info.pStages[each] for each in range(info.stageCount)]
    flags = [int(each.stage) for each in stages]
    whole = ffi.new("VkPipelineCreationFeedback *")
    of_stages = ffi.new("VkPipelineCreationFeedback[]", max(1, len(flags)))
    chained = new_struct(
        "VkPipelineCreationFeedbackCreateInfo",
        pNext=ffi.cast("void *", rest),
        pPipelineCreationFeedback=whole,
        pipelineStageCreationFeedbackCount=len(flags),
        pPipelineStageCreationFeedbacks=of_stages,
    )
    info.pNext = chained if context.features.creation_feedback else ffi.cast("void *", rest)
    started = time.perf_counter_ns()
    handles = np.zeros(1, np.uint64)
    results = submit(context, kind, infos, handles, NO_SOURCE)
    wall_ns = time.perf_counter_ns() - started
    handle = int(handles[0])
    if not handle:
        return PipelineExecutables(int(results[0]), wall_ns, 0, ())
    try:
        times = [(flag, _duration(of_stages[place])) for place, flag in enumerate(flags)]
        return PipelineExecutables(
            SUCCESS, wall_ns, _duration(whole[0]), _executables(context, handle, times, code)
        )
    finally:
        context.destroy_pipelines(handles)


def _duration(feedback: Any) -> int:
    return int(feedback.duration) if feedback.flags & FEEDBACK_VALID else 0


def _executables(
    context: DeviceContext, handle: int, stage_times: list[tuple[int, int]], code: bool
) -> tuple[PipelineExecutable, ...]:
    found = context.commands.enumerate_all(
        "vkGetPipelineExecutablePropertiesKHR",
        "VkPipelineExecutablePropertiesKHR",
        context.handle,
        new_struct("VkPipelineInfoKHR", pipeline=handle),
        read=lambda each: (text_of(each.name), int(each.subgroupSize), int(each.stages)),
    )
    return tuple(
        PipelineExecutable(
            name=name,
            subgroup_size=subgroup_size,
            stage_ns=sum(duration for flag, duration in stage_times if flag & stages),
            statistics=_statistics(context, handle, place),
            representations=_representations(context, handle, place) if code else (),
        )
        for place, (name, subgroup_size, stages) in enumerate(found)
    )


def _statistics(
    context: DeviceContext, handle: int, executable: int
) -> tuple[tuple[str, bool | int | float], ...]:
    found = context.commands.enumerate_all(
        "vkGetPipelineExecutableStatisticsKHR",
        "VkPipelineExecutableStatisticKHR",
        context.handle,
        new_struct("VkPipelineExecutableInfoKHR", pipeline=handle, executableIndex=executable),
        read=lambda each: (text_of(each.name), _value(each)),
    )
    return tuple(found)


def _representations(context: DeviceContext, handle: int, executable: int) -> tuple[tuple[str, str], ...]:
    # The first two calls give sizes; the third one fills buffers of these.
    command = "vkGetPipelineExecutableInternalRepresentationsKHR"
    info = new_struct("VkPipelineExecutableInfoKHR", pipeline=handle, executableIndex=executable)
    ask, count = getattr(context.commands, command), ffi.new("uint32_t *")
    check(command, ask(context.handle, info, count, ffi.NULL))
    ctype = "VkPipelineExecutableInternalRepresentationKHR"
    found = ffi.new(f"{ctype}[]", [{"sType": new_struct(ctype).sType}] * count[0])
    check(command, ask(context.handle, info, count, found))
    buffers = [ffi.new("char[]", int(each.dataSize) + 1) for each in found]
    for each, buffer in zip(found, buffers, strict=True):
        each.pData = buffer
    check(command, ask(context.handle, info, count, found))
    return tuple(
        (text_of(each.name), text_of(buffer))
        for each, buffer in zip(found, buffers, strict=True)
        if each.isText
    )


def _value(statistic: Any) -> bool | int | float:
    if statistic.format == _BOOL:
        return bool(statistic.value.b32)
    if statistic.format == _INT64:
        return int(statistic.value.i64)
    if statistic.format == _FLOAT64:
        return float(statistic.value.f64)
    return int(statistic.value.u64)
