"""What a captured structure must hold itself.

What a captured structure must hold itself, whatever the device: data that its entries point into, stages
that its groups name, state that a driver reads without asking whether it is there.

Guarantees: as in requirement_context.py; what is found is Malformed, so the pipeline fails and names it.
Each of these makes common drivers read or write outside of an array, which ends the process. Nothing is
asked for that a recorder leaves out rightly: libraries hold part of the state, discarded primitives need
none for fragments, and dynamic states may stand in for a structure (VK_EXT_extended_dynamic_state3).
"""

from __future__ import annotations

from typing import Any

from orchestrator.sets.needs.context import Context, DynamicStates, Malformed, chained, dynamic_state
from orchestrator.sets.needs.rules import DeviceAnswers

_LIBRARY = 0x800
_IN_PARTS = ("VkGraphicsPipelineLibraryCreateInfoEXT", "VkPipelineLibraryCreateInfoKHR")
_FIRST_STAGES = 0x1 | 0x80  # vertex, mesh
_UNUSED_SHADER = 0xFFFF_FFFF
_GROUP_SHADERS = ("generalShader", "closestHitShader", "anyHitShader", "intersectionShader")


def graphics_pipeline(_answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """State that a complete pipeline has.

    VUID-VkGraphicsPipelineCreateInfo-pRasterizationState-09039 and -pMultisampleState-09026 name the dynamic states
    that may replace it; one of each is looked for here.
    """
    if value.flags & _LIBRARY or any(chained(value, each) is not None for each in _IN_PARTS):
        return None
    if not any(each.stage & _FIRST_STAGES for each in value.pStages or ()):
        return None
    raster = value.pRasterizationState
    if raster is None:
        return None if dynamic_state("POLYGON_MODE_EXT") in dynamic else Malformed("no rasterizationState")
    discards = raster.rasterizerDiscardEnable and dynamic_state("RASTERIZER_DISCARD_ENABLE") not in dynamic
    if value.pMultisampleState is None and not discards:
        replaced = dynamic_state("RASTERIZATION_SAMPLES_EXT") in dynamic
        return None if replaced else Malformed("no multisampleState, although it rasterizes")
    return None


def ray_tracing_pipeline(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Stages that groups name: VUID-VkRayTracingShaderGroupCreateInfoKHR-type-03474 to -03476.

    Where libraries are linked, their stages may be meant, so nothing is said about those.
    """
    count = len(value.pStages or ())
    if value.pLibraryInfo is not None and value.pLibraryInfo.pLibraries:
        return None
    for each in value.pGroups or ():
        for name in _GROUP_SHADERS:
            index = getattr(each, name)
            if index != _UNUSED_SHADER and index >= count:
                return Malformed(f"{name} {index} of a pipeline that has {count} stages")
    return None


def specialization(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Entries within their data: VUID-VkSpecializationInfo-offset-00773 and -pMapEntries-00774."""
    size = len(value.pData or b"")
    for each in value.pMapEntries or ():
        if each.offset + each.size > size:
            end = each.offset + each.size
            return Malformed(
                f"specialization constant {each.constantID} ends at byte {end} of data that has {size}"
            )
    return None


def sample_locations(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """One location a sample: VUID-VkSampleLocationsInfoEXT-sampleLocationsCount-01527."""
    count, grid = len(value.pSampleLocations or ()), value.sampleLocationGridSize
    expected = value.sampleLocationsPerPixel * grid.width * grid.height
    if count == expected or not count:
        return None
    return Malformed(f"{count} sample locations where grid and samples make {expected}")


COMPLETENESS: dict[str, Context] = {
    "VkGraphicsPipelineCreateInfo": graphics_pipeline,
    "VkRayTracingPipelineCreateInfoKHR": ray_tracing_pipeline,
    "VkSpecializationInfo": specialization,
    "VkSampleLocationsInfoEXT": sample_locations,
}
