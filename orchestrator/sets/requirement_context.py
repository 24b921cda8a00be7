# Purpose: the requirements that take several members, or a member and its surroundings, to decide: what is
# ignored under dynamic state, limits on sums, formats by the use that is made of them.
#
# Guarantees: pure functions of a decoded structure and the device's answers; each returns what is missing,
# or None. Absent pointers are None and absent scalars zero, as in a decoded document; nothing else is assumed
# of untrusted values: every index is checked before it is used.
# Rule of thumb: a requirement is stated only where the device then really cannot take the structure. What the
# specification forbids but no compiler looks at (a line width where no lines are drawn) is left alone.
"""Requirements that take more than one member to decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from orchestrator.registry import registry
from orchestrator.sets.requirement_answers import DeviceAnswers, enum_numbers
from orchestrator.sets.requirement_rules import BASE, LIMITS, LINES, SHADING_RATE

DynamicStates = frozenset[int]
Context = Callable[[DeviceAnswers, Any, DynamicStates], str | None]


class Malformed(str):
    """A reason that is the captured document's own fault, not the device's: it refers to what is not there.

    It is found where requirements are, and no driver may be given such a document, but the pipeline has failed
    rather than been skipped.
    """

    __slots__ = ()


VERTEX_BUFFER = 0x40
COLOR_ATTACHMENT = 0x80
DEPTH_STENCIL_ATTACHMENT = 0x200
COSITED_CHROMA_SAMPLES = 0x80_0000
MIDPOINT_CHROMA_SAMPLES = 0x2_0000
FRAGMENT_SHADING_RATE_ATTACHMENT = 0x4000_0000
ATTACHMENT_UNUSED = 0xFFFF_FFFF

_GEOMETRY, _TESSELLATION, _MESH = 0x8, 0x6, 0x80
_LINES = (1, 2, 6, 7)  # VkPrimitiveTopology: line list and strip, with and without adjacency
_LISTS = (0, 1, 3, 6, 8)
_POINTS_AND_LINES = (0, *_LINES)
_PATCH_LIST = 10
_POLYGON_MODE_LINE = 1
_SAMPLE_COUNTS = (
    "framebufferColorSampleCounts",
    "framebufferDepthSampleCounts",
    "framebufferStencilSampleCounts",
    "framebufferNoAttachmentsSampleCounts",
)


@lru_cache(maxsize=64)
def dynamic_state(name: str) -> int:
    """Number of a VkDynamicState, by its name without the prefix."""
    return enum_numbers()[f"VK_DYNAMIC_STATE_{name}"]


def feature(answers: DeviceAnswers, struct: str, member: str) -> str | None:
    """A feature, where it is missing."""
    return None if answers.feature(struct, member) else f"feature {struct}::{member}"


def limit(
    answers: DeviceAnswers, struct: str, member: str, value: float, *, below: bool = False
) -> str | None:
    """A property, where a value is greater (or, with `below`, not less); unknown properties bound nothing."""
    most = answers.property(struct, member)
    if not isinstance(most, int | float) or value < most or (value == most and not below):
        return None
    return f"property {struct}::{member} {most} {'<=' if below else '<'} {value}"


def format_use(answers: DeviceAnswers, number: int, features: int, use: str) -> str | None:
    """A format, where no tiling has one of the features that a use needs; the undefined format needs none.

    "Potential format features" are those of linear and optimal tiling together (specification, "Format
    Properties").
    """
    if number == 0:
        return None
    linear, optimal, _ = answers.format_features(number)
    return None if (linear | optimal) & features else f"format {format_name(number)} as {use}"


def format_name(number: int) -> str:
    """Name of a VkFormat, or its number where the registry does not know it."""
    known = registry().formats.get(number)
    return known.name if known is not None else f"VkFormat {number}"


def chained(value: Any, name: str) -> Any | None:
    """The structure of that name in a pNext chain, or None."""
    for each in getattr(value, "pNext", None) or ():
        if type(each).__name__ == name:
            return each
    return None


def graphics_pipeline(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Requirements across the parts of a graphics pipeline."""
    rendering = chained(value, "VkPipelineRenderingCreateInfo")
    return (
        _depth_bias(answers, value.pRasterizationState, dynamic)
        or _lines(answers, value, dynamic)
        or _dynamic_rendering(answers, value)
        or (None if rendering is None or value.renderPass else multiview(answers, value, rendering.viewMask))
    )


def _depth_bias(answers: DeviceAnswers, raster: Any | None, dynamic: DynamicStates) -> str | None:
    # VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-00754
    if raster is None or not raster.depthBiasEnable or not raster.depthBiasClamp:
        return None
    return None if dynamic_state("DEPTH_BIAS") in dynamic else feature(answers, BASE, "depthBiasClamp")


def _lines(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    raster, assembly = value.pRasterizationState, value.pInputAssemblyState
    if raster is None:
        return None
    topology = assembly.topology if assembly is not None else None
    # VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-00749 asks for a width of 1 even where no line is ever
    # drawn, where programs record 0 and nothing reads it; here the pipeline must be known to draw lines.
    draws_lines = topology in _LINES or raster.polygonMode == _POLYGON_MODE_LINE
    if draws_lines and raster.lineWidth != 1 and dynamic_state("LINE_WIDTH") not in dynamic:
        missing = feature(answers, BASE, "wideLines")
        if missing is not None:
            return missing
    conservative = chained(raster, "VkPipelineRasterizationConservativeStateCreateInfoEXT")
    if conservative is None or not conservative.conservativeRasterizationMode:
        return None
    # VUID-VkGraphicsPipelineCreateInfo-conservativePointAndLineRasterization-08892, and primitiveUnderestimation.
    struct = "VkPhysicalDeviceConservativeRasterizationPropertiesEXT"
    if topology in _POINTS_AND_LINES and not answers.property(
        struct, "conservativePointAndLineRasterization"
    ):
        return f"property {struct}::conservativePointAndLineRasterization"
    if conservative.conservativeRasterizationMode == 2 and not answers.property(
        struct, "primitiveUnderestimation"
    ):
        return f"property {struct}::primitiveUnderestimation"
    return None


def _dynamic_rendering(answers: DeviceAnswers, value: Any) -> str | None:
    # VUID-VkGraphicsPipelineCreateInfo-dynamicRendering-06576: libraries that hold vertex input only need no
    # render pass, and what links libraries takes the rest from them.
    if value.renderPass or chained(value, "VkPipelineLibraryCreateInfoKHR") is not None:
        return None
    library = chained(value, "VkGraphicsPipelineLibraryCreateInfoEXT")
    if library is not None and library.flags == 1:
        return None
    return feature(answers, "VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")


def multiview(answers: DeviceAnswers, pipeline: Any, view_mask: int) -> str | None:
    """What a graphics pipeline lacks in a subpass, or in dynamic rendering, of that view mask.

    VUID-VkGraphicsPipelineCreateInfo-renderPass-06047, -06048, -07064 for render passes; -06057, -06058,
    -07720, -06578 for dynamic rendering.
    """
    if not view_mask:
        return None
    stages = 0
    for each in pipeline.pStages or ():
        stages |= each.stage
    struct = "VkPhysicalDeviceMultiviewFeatures"
    if stages & _TESSELLATION and not answers.feature(struct, "multiviewTessellationShader"):
        return f"feature {struct}::multiviewTessellationShader"
    if stages & _GEOMETRY and not answers.feature(struct, "multiviewGeometryShader"):
        return f"feature {struct}::multiviewGeometryShader"
    if stages & _MESH and answers.extension("VK_EXT_mesh_shader"):
        missing = feature(answers, "VkPhysicalDeviceMeshShaderFeaturesEXT", "multiviewMeshShader")
        if missing is not None:
            return missing
    return _view_count(answers, view_mask)


def _view_count(answers: DeviceAnswers, view_mask: int) -> str | None:
    struct = "VkPhysicalDeviceMultiviewProperties"
    return limit(answers, struct, "maxMultiviewViewCount", view_mask.bit_length())


def input_assembly(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Primitive restart of lists: VUID-VkPipelineInputAssemblyStateCreateInfo-topology-06252 and -06253."""
    if not value.primitiveRestartEnable or {
        dynamic_state("PRIMITIVE_RESTART_ENABLE"),
        dynamic_state("PRIMITIVE_TOPOLOGY"),
    }.intersection(dynamic):
        return None
    struct = "VkPhysicalDevicePrimitiveTopologyListRestartFeaturesEXT"
    if value.topology in _LISTS:
        return feature(answers, struct, "primitiveTopologyListRestart")
    if value.topology == _PATCH_LIST:
        return feature(answers, struct, "primitiveTopologyPatchListRestart")
    return None


def vertex_input(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Formats of vertex attributes: VUID-VkVertexInputAttributeDescription-format-00623."""
    for each in value.pVertexAttributeDescriptions or ():
        if not answers.format_features(each.format)[2] & VERTEX_BUFFER:
            return f"format {format_name(each.format)} as vertex attribute"
    return None


def viewports(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Counts of viewports and scissors: VUID-VkPipelineViewportStateCreateInfo-viewportCount-01216, -01217."""
    counts = []
    if dynamic_state("VIEWPORT_WITH_COUNT") not in dynamic:
        counts.append(value.viewportCount or len(value.pViewports or ()))
    if dynamic_state("SCISSOR_WITH_COUNT") not in dynamic:
        counts.append(value.scissorCount or len(value.pScissors or ()))
    most = max(counts, default=0)
    if most <= 1:
        return None
    return feature(answers, BASE, "multiViewport") or limit(answers, LIMITS, "maxViewports", most)


def color_blend(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Attachments that differ: VUID-VkPipelineColorBlendStateCreateInfo-pAttachments-00605."""
    attachments: Sequence[Any] = value.pAttachments or ()
    if len(attachments) < 2 or all(each == attachments[0] for each in attachments):
        return None
    overridden = ("COLOR_BLEND_ENABLE_EXT", "COLOR_BLEND_EQUATION_EXT", "COLOR_WRITE_MASK_EXT")
    if all(dynamic_state(each) in dynamic for each in overridden):
        return None
    return feature(answers, BASE, "independentBlend")


def color_write(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Attachments not written: VUID-VkPipelineColorWriteCreateInfoEXT-pAttachments-04801."""
    if all(value.pColorWriteEnables or ()):
        return None
    return feature(answers, "VkPhysicalDeviceColorWriteEnableFeaturesEXT", "colorWriteEnable")


def line_stipple(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Stippled lines: VUID-VkPipelineRasterizationLineStateCreateInfo-stippledLineEnable-02771 to -02774."""
    if not value.stippledLineEnable or {
        dynamic_state("LINE_STIPPLE_ENABLE_EXT"),
        dynamic_state("LINE_RASTERIZATION_MODE_EXT"),
    }.intersection(dynamic):
        return None
    members = (
        "stippledRectangularLines",
        "stippledRectangularLines",
        "stippledBresenhamLines",
        "stippledSmoothLines",
    )
    mode = value.lineRasterizationMode
    if not 0 <= mode < len(members):
        return None
    missing = feature(answers, LINES, members[mode])
    if missing is None and mode == 0 and not answers.property(LIMITS, "strictLines"):
        return f"property {LIMITS}::strictLines"
    return missing


def rasterization_stream(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """VUID-VkPipelineRasterizationStateStreamCreateInfoEXT-rasterizationStream-02326."""
    struct, member = (
        "VkPhysicalDeviceTransformFeedbackPropertiesEXT",
        "transformFeedbackRasterizationStreamSelect",
    )
    if not value.rasterizationStream or answers.property(struct, member):
        return None
    return f"property {struct}::{member}"


def sample_count(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Samples that no framebuffer of the device can have: VkPhysicalDeviceLimits::framebuffer*SampleCounts.

    Drivers size their tables of sample locations by the greatest count and do not check it.
    """
    if dynamic_state("RASTERIZATION_SAMPLES_EXT") in dynamic:
        return None
    counts = [answers.property(LIMITS, each) for each in _SAMPLE_COUNTS]
    most = max((each.bit_length() for each in counts if isinstance(each, int)), default=0)
    if not most or value.rasterizationSamples.bit_length() <= most:
        return None
    return f"property {LIMITS}::{_SAMPLE_COUNTS[0]} up to {1 << most - 1} < {value.rasterizationSamples}"


def sample_locations(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Sample counts with locations: VUID-VkSampleLocationsInfoEXT-sampleLocationsPerPixel-01526."""
    info = value.sampleLocationsInfo
    if not value.sampleLocationsEnable or info is None or not info.sampleLocationsPerPixel:
        return None
    struct, member = "VkPhysicalDeviceSampleLocationsPropertiesEXT", "sampleLocationSampleCounts"
    have = answers.property(struct, member)
    if not isinstance(have, int) or have & info.sampleLocationsPerPixel:
        return None
    return f"property {struct}::{member} without {info.sampleLocationsPerPixel} samples"


def fragment_shading_rate(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """VUID-VkGraphicsPipelineCreateInfo-pDynamicState-04500 to -04502 and -04506, and -04570 to -04573."""
    if dynamic_state("FRAGMENT_SHADING_RATE_KHR") in dynamic:
        return None
    size = getattr(value, "fragmentSize", None)
    single = max(size.width, size.height) <= 1 if size is not None else not value.shadingRate
    if not single and (missing := feature(answers, SHADING_RATE, "pipelineFragmentShadingRate")):
        return missing
    operators = value.combinerOps or (0, 0)
    if operators[0] and (missing := feature(answers, SHADING_RATE, "primitiveFragmentShadingRate")):
        return missing
    if operators[1] and (missing := feature(answers, SHADING_RATE, "attachmentFragmentShadingRate")):
        return missing
    struct, member = (
        "VkPhysicalDeviceFragmentShadingRatePropertiesKHR",
        "fragmentShadingRateNonTrivialCombinerOps",
    )
    if max(operators) > 1 and not answers.property(struct, member):
        return f"property {struct}::{member}"
    return None


def shader_stage(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """A required subgroup size and its stage.

    VUID-VkPipelineShaderStageCreateInfo-pNext-02755 and
    VUID-VkPipelineShaderStageRequiredSubgroupSizeCreateInfo-requiredSubgroupSize-02761, -02762.
    """
    required = chained(value, "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo")
    if required is None:
        return None
    struct, size = "VkPhysicalDeviceSubgroupSizeControlProperties", required.requiredSubgroupSize
    least = answers.property(struct, "minSubgroupSize")
    if isinstance(least, int) and size < least:
        return f"property {struct}::minSubgroupSize {least} > {size}"
    stages = answers.property(struct, "requiredSubgroupSizeStages")
    if isinstance(stages, int) and not stages & value.stage:
        return f"property {struct}::requiredSubgroupSizeStages without stage {value.stage:#x}"
    return limit(answers, struct, "maxSubgroupSize", size)


def sampler(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """VUID-VkSamplerCreateInfo-anisotropyEnable-01071 and -mipLodBias-01069."""
    missing = limit(answers, LIMITS, "maxSamplerLodBias", abs(value.mipLodBias))
    if missing is None and value.anisotropyEnable:
        missing = limit(answers, LIMITS, "maxSamplerAnisotropy", value.maxAnisotropy)
    return missing


def ycbcr_conversion(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Formats of conversions: VUID-VkSamplerYcbcrConversionCreateInfo-format-01650."""
    chroma = COSITED_CHROMA_SAMPLES | MIDPOINT_CHROMA_SAMPLES
    return format_use(answers, value.format, chroma, "sampler YCbCr conversion")


def push_constant_range(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """The end of a range: VUID-VkPushConstantRange-offset-00294 and -size-00298."""
    return limit(answers, LIMITS, "maxPushConstantsSize", value.offset + value.size)


CONTEXTS: dict[str, Context] = {
    "VkGraphicsPipelineCreateInfo": graphics_pipeline,
    "VkPipelineInputAssemblyStateCreateInfo": input_assembly,
    "VkPipelineVertexInputStateCreateInfo": vertex_input,
    "VkPipelineViewportStateCreateInfo": viewports,
    "VkPipelineMultisampleStateCreateInfo": sample_count,
    "VkPipelineColorBlendStateCreateInfo": color_blend,
    "VkPipelineColorWriteCreateInfoEXT": color_write,
    "VkPipelineRasterizationLineStateCreateInfo": line_stipple,
    "VkPipelineRasterizationStateStreamCreateInfoEXT": rasterization_stream,
    "VkPipelineSampleLocationsStateCreateInfoEXT": sample_locations,
    "VkPipelineFragmentShadingRateStateCreateInfoKHR": fragment_shading_rate,
    "VkPipelineFragmentShadingRateEnumStateCreateInfoNV": fragment_shading_rate,
    "VkPipelineShaderStageCreateInfo": shader_stage,
    "VkSamplerCreateInfo": sampler,
    "VkSamplerYcbcrConversionCreateInfo": ycbcr_conversion,
    "VkPushConstantRange": push_constant_range,
}
