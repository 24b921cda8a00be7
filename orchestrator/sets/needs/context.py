"""Requirements that depend on several members, or on a member and its surroundings.

They concern state that dynamic state replaces, limits on sums, formats by their use, descriptors of a
pipeline layout, and completeness: what a structure must hold on any device, because common drivers read
outside of an array without it.

Guarantees: pure functions of a decoded structure and the device's answers; each returns what is missing, or
None. An incomplete document is `Malformed`. Values are untrusted: every index is checked before it is used. A
requirement is stated only where the device cannot take the structure: what the specification forbids but no
compiler reads (a line width where no lines are drawn) is accepted, and so is what recorders may leave out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import add
from typing import Any, Final

import msgspec
from attrs import define, field

from orchestrator.devices.request import Feature
from orchestrator.registry import registry
from orchestrator.sets.needs.rules import (
    BASE,
    INDEXING,
    LIMITS,
    LINES,
    SHADING_RATE,
    DeviceAnswers,
    enum_numbers,
)

DynamicStates = frozenset[int]
Context = Callable[[DeviceAnswers, Any, DynamicStates], str | None]


class Malformed(str):
    """A fault of the captured document, and not of the device, such as a reference to something missing.

    No driver may be given such a document. Its pipeline is reported as failed, not as skipped.
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
    """The text for a feature if it is missing, or None."""
    return None if answers.feature(struct, member) else f"feature {struct}::{member}"


def boolean_property(answers: DeviceAnswers, struct: str, member: str) -> str | None:
    """The text for a property if it is false, or None."""
    return None if answers.property(struct, member) else f"property {struct}::{member}"


def limit(
    answers: DeviceAnswers, struct: str, member: str, value: float, *, below: bool = False
) -> str | None:
    """The text for a property that a value exceeds (with `below`: reaches); unknown ones bound nothing."""
    most = answers.exceeded(struct, member, value, below=below)
    return None if most is None else f"property {struct}::{member} {most} {'<=' if below else '<'} {value}"


def format_use(answers: DeviceAnswers, number: int, features: int, use: str) -> str | None:
    """The text for a format if no tiling has a feature that a use needs; VK_FORMAT_UNDEFINED needs none.

    "Potential format features" are those of linear and optimal tiling together (specification, "Format
    Properties").
    """
    if number == 0 or answers.format_has(number, image=features):
        return None
    return f"format {format_name(number)} as {use}"


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
    # VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-00749 demands a width of 1 even where no line is drawn.
    # Programs record 0 there, and nothing reads it, so this checks only pipelines that draw lines.
    draws_lines = topology in _LINES or raster.polygonMode == _POLYGON_MODE_LINE
    if draws_lines and raster.lineWidth != 1 and dynamic_state("LINE_WIDTH") not in dynamic:
        missing = feature(answers, BASE, "wideLines")
        if missing is not None:
            return missing
    conservative = chained(raster, "VkPipelineRasterizationConservativeStateCreateInfoEXT")
    if conservative is None or not conservative.conservativeRasterizationMode:
        return None
    # VUID-VkGraphicsPipelineCreateInfo-conservativePointAndLineRasterization-08892, and
    # primitiveUnderestimation.
    struct, missing = "VkPhysicalDeviceConservativeRasterizationPropertiesEXT", None
    if topology in _POINTS_AND_LINES:
        missing = boolean_property(answers, struct, "conservativePointAndLineRasterization")
    if missing is None and conservative.conservativeRasterizationMode == 2:
        missing = boolean_property(answers, struct, "primitiveUnderestimation")
    return missing


def _dynamic_rendering(answers: DeviceAnswers, value: Any) -> str | None:
    # VUID-VkGraphicsPipelineCreateInfo-dynamicRendering-06576: a library of vertex input only needs no render
    # pass, and a pipeline that links libraries takes it from them.
    if value.renderPass or chained(value, "VkPipelineLibraryCreateInfoKHR") is not None:
        return None
    library = chained(value, "VkGraphicsPipelineLibraryCreateInfoEXT")
    if library is not None and library.flags == 1:
        return None
    return feature(answers, "VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")


def multiview(answers: DeviceAnswers, pipeline: Any, view_mask: int) -> str | None:
    """What is missing for a graphics pipeline in a subpass, or in dynamic rendering, of that view mask.

    VUID-VkGraphicsPipelineCreateInfo-renderPass-06047, -06048, -07064 for render passes; -06057, -06058,
    -07720, -06578 for dynamic rendering.
    """
    if not view_mask:
        return None
    stages = 0
    for each in pipeline.pStages or ():
        stages |= each.stage
    struct, missing = "VkPhysicalDeviceMultiviewFeatures", None
    if stages & _TESSELLATION:
        missing = feature(answers, struct, "multiviewTessellationShader")
    if missing is None and stages & _GEOMETRY:
        missing = feature(answers, struct, "multiviewGeometryShader")
    if missing is None and stages & _MESH and answers.extension("VK_EXT_mesh_shader"):
        missing = feature(answers, "VkPhysicalDeviceMeshShaderFeaturesEXT", "multiviewMeshShader")
    return missing or limit(
        answers, "VkPhysicalDeviceMultiviewProperties", "maxMultiviewViewCount", view_mask.bit_length()
    )


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
        if not answers.format_has(each.format, buffer=VERTEX_BUFFER):
            return f"format {format_name(each.format)} as vertex attribute"
    return None


def viewports(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Counts of both: VUID-VkPipelineViewportStateCreateInfo-viewportCount-01216, -01217."""
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
    if missing is None and mode == 0:
        return boolean_property(answers, LIMITS, "strictLines")
    return missing


def rasterization_stream(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """VUID-VkPipelineRasterizationStateStreamCreateInfoEXT-rasterizationStream-02326."""
    if not value.rasterizationStream:
        return None
    struct = "VkPhysicalDeviceTransformFeedbackPropertiesEXT"
    return boolean_property(answers, struct, "transformFeedbackRasterizationStreamSelect")


def sample_count(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """A sample count above all of VkPhysicalDeviceLimits::framebuffer*SampleCounts.

    Drivers size their tables of sample locations by the greatest count, without a check.
    """
    if dynamic_state("RASTERIZATION_SAMPLES_EXT") in dynamic:
        return None
    # Flags that hold its bit, or a greater one, are at least as great as the bit.
    bit = 1 << value.rasterizationSamples.bit_length() >> 1
    known = [each for each in _SAMPLE_COUNTS if answers.unjudged(LIMITS, each)]
    found = [answers.exceeded(LIMITS, each, bit) for each in known]
    counts = [int(each) for each in found if each is not None]
    if not counts or len(counts) < len(found):
        return None
    most = 1 << max(counts).bit_length() - 1
    return f"property {LIMITS}::{_SAMPLE_COUNTS[0]} up to {most} < {value.rasterizationSamples}"


def sample_locations(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Sample counts with locations: VUID-VkSampleLocationsInfoEXT-sampleLocationsPerPixel-01526."""
    info = value.sampleLocationsInfo
    if not value.sampleLocationsEnable or info is None or not info.sampleLocationsPerPixel:
        return None
    struct, member = "VkPhysicalDeviceSampleLocationsPropertiesEXT", "sampleLocationSampleCounts"
    if answers.has_any(struct, member, info.sampleLocationsPerPixel):
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
    if max(operators) <= 1:
        return None
    struct = "VkPhysicalDeviceFragmentShadingRatePropertiesKHR"
    return boolean_property(answers, struct, "fragmentShadingRateNonTrivialCombinerOps")


def shader_stage(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """A required subgroup size and its stage.

    VUID-VkPipelineShaderStageCreateInfo-pNext-02755 and
    VUID-VkPipelineShaderStageRequiredSubgroupSizeCreateInfo-requiredSubgroupSize-02760, -02761, -02762.
    """
    required = chained(value, "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo")
    if required is None:
        return None
    struct, size = "VkPhysicalDeviceSubgroupSizeControlProperties", required.requiredSubgroupSize
    if size.bit_count() != 1:
        return Malformed(f"requiredSubgroupSize {size} is no power of two")
    least = answers.undercut(struct, "minSubgroupSize", size)
    if least is not None:
        return f"property {struct}::minSubgroupSize {least} > {size}"
    if not answers.has_any(struct, "requiredSubgroupSizeStages", value.stage):
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


_PUSH_DESCRIPTOR = 0x1
_UPDATE_AFTER_BIND = 0x1
_INLINE_UNIFORM_BLOCK = "VkPhysicalDeviceInlineUniformBlockFeatures"
_ACCELERATION_STRUCTURE = "VkPhysicalDeviceAccelerationStructureFeaturesKHR"

# VUID-VkDescriptorSetLayoutBindingFlagsCreateInfo-descriptorBinding*UpdateAfterBind-03005 to -03010, -02211,
# -03570.
_AFTER_BIND = {
    "SAMPLER": (INDEXING, "descriptorBindingSampledImageUpdateAfterBind"),
    "COMBINED_IMAGE_SAMPLER": (INDEXING, "descriptorBindingSampledImageUpdateAfterBind"),
    "SAMPLED_IMAGE": (INDEXING, "descriptorBindingSampledImageUpdateAfterBind"),
    "STORAGE_IMAGE": (INDEXING, "descriptorBindingStorageImageUpdateAfterBind"),
    "UNIFORM_TEXEL_BUFFER": (INDEXING, "descriptorBindingUniformTexelBufferUpdateAfterBind"),
    "STORAGE_TEXEL_BUFFER": (INDEXING, "descriptorBindingStorageTexelBufferUpdateAfterBind"),
    "UNIFORM_BUFFER": (INDEXING, "descriptorBindingUniformBufferUpdateAfterBind"),
    "STORAGE_BUFFER": (INDEXING, "descriptorBindingStorageBufferUpdateAfterBind"),
    "INLINE_UNIFORM_BLOCK": (_INLINE_UNIFORM_BLOCK, "descriptorBindingInlineUniformBlockUpdateAfterBind"),
    "ACCELERATION_STRUCTURE_KHR": (_ACCELERATION_STRUCTURE,
        "descriptorBindingAccelerationStructureUpdateAfterBind"),
    "ACCELERATION_STRUCTURE_NV": (_ACCELERATION_STRUCTURE,
        "descriptorBindingAccelerationStructureUpdateAfterBind"),
}  # fmt: skip


def set_layout(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Bindings updated after bind, and limits on push descriptors and inline uniform blocks.

    VUID-VkDescriptorSetLayoutCreateInfo-flags-00281 and
    VUID-VkDescriptorSetLayoutBinding-descriptorType-08004.
    """
    bindings = value.pBindings or ()
    if value.flags & _PUSH_DESCRIPTOR:
        count = sum(map(descriptor_count, bindings))
        missing = limit(answers, "VkPhysicalDevicePushDescriptorProperties", "maxPushDescriptors", count)
        if missing is not None:
            return missing
    inline = enum_numbers()["VK_DESCRIPTOR_TYPE_INLINE_UNIFORM_BLOCK"]
    for each in bindings:
        if each.descriptorType == inline:
            struct = "VkPhysicalDeviceInlineUniformBlockProperties"
            missing = limit(answers, struct, "maxInlineUniformBlockSize", descriptor_count(each))
            if missing is not None:
                return missing
    chain = chained(value, "VkDescriptorSetLayoutBindingFlagsCreateInfo")
    return _after_bind(answers, bindings, chain.pBindingFlags or ()) if chain is not None else None


def _after_bind(answers: DeviceAnswers, bindings: Any, flags: Any) -> str | None:
    numbers = enum_numbers()
    for binding, bits in zip(bindings, flags, strict=False):
        if not bits & _UPDATE_AFTER_BIND:
            continue
        for name, (struct, member) in _AFTER_BIND.items():
            if binding.descriptorType == numbers[f"VK_DESCRIPTOR_TYPE_{name}"]:
                missing = feature(answers, struct, member)
                if missing is not None:
                    return missing
    return None


def render_pass(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Formats of the attachments of a render pass, by their use in subpasses.

    VUID-VkSubpassDescription-pInputAttachments-02647, -pColorAttachments-02648, -pResolveAttachments-02649,
    -pDepthStencilAttachment-02650; VUID-VkSubpassDescription2-pInputAttachments-02897 and those beside it.
    """
    attachments = value.pAttachments or ()
    for subpass in value.pSubpasses or ():
        for index, features, use in _uses(subpass):
            if index == ATTACHMENT_UNUSED:
                continue
            if index >= len(attachments):
                # The document is broken, and a driver would read past its array.
                return Malformed(f"attachment {index} of a render pass that has {len(attachments)}")
            missing = format_use(answers, attachments[index].format, features, use)
            if missing is not None:
                return missing
    return None


def _uses(subpass: Any) -> Iterator[tuple[int, int, str]]:
    """Every reference of a subpass: attachment, format features of which one is needed, and the use."""
    for each in subpass.pColorAttachments or ():
        yield each.attachment, COLOR_ATTACHMENT, "color attachment"
    for each in subpass.pResolveAttachments or ():
        yield each.attachment, COLOR_ATTACHMENT, "resolve attachment"
    for each in subpass.pInputAttachments or ():
        yield each.attachment, COLOR_ATTACHMENT | DEPTH_STENCIL_ATTACHMENT, "input attachment"
    if subpass.pDepthStencilAttachment is not None:
        yield subpass.pDepthStencilAttachment.attachment, DEPTH_STENCIL_ATTACHMENT, "depth/stencil attachment"
    # VUID-VkSubpassDescriptionDepthStencilResolve-pDepthStencilResolveAttachment-02651
    resolve = chained(subpass, "VkSubpassDescriptionDepthStencilResolve")
    if resolve is not None and resolve.pDepthStencilResolveAttachment is not None:
        reference = resolve.pDepthStencilResolveAttachment
        yield reference.attachment, DEPTH_STENCIL_ATTACHMENT, "depth/stencil resolve attachment"
    # VUID-VkRenderPassCreateInfo2-pAttachments-04586
    rate = chained(subpass, "VkFragmentShadingRateAttachmentInfoKHR")
    if rate is not None and rate.pFragmentShadingRateAttachment is not None:
        reference = rate.pFragmentShadingRateAttachment
        yield reference.attachment, FRAGMENT_SHADING_RATE_ATTACHMENT, "fragment shading rate attachment"


def rendering_formats(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Attachment formats of dynamic rendering.

    VUID-VkGraphicsPipelineCreateInfo-renderPass-06582, -06585 and -06586.
    """
    for each in value.pColorAttachmentFormats or ():
        missing = format_use(answers, each, COLOR_ATTACHMENT, "color attachment")
        if missing is not None:
            return missing
    return format_use(
        answers, value.depthAttachmentFormat, DEPTH_STENCIL_ATTACHMENT, "depth/stencil attachment"
    ) or format_use(
        answers, value.stencilAttachmentFormat, DEPTH_STENCIL_ATTACHMENT, "depth/stencil attachment"
    )


def shading_rate_attachment(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """An attachment with shading rates: description of VkPhysicalDeviceFragmentShadingRateFeaturesKHR."""
    reference = value.pFragmentShadingRateAttachment
    if reference is None or reference.attachment == ATTACHMENT_UNUSED:
        return None
    return feature(answers, SHADING_RATE, "attachmentFragmentShadingRate")


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
    "VkDescriptorSetLayoutCreateInfo": set_layout,
    "VkRenderPassCreateInfo": render_pass,
    "VkRenderPassCreateInfo2": render_pass,
    "VkPipelineRenderingCreateInfo": rendering_formats,
    "VkFragmentShadingRateAttachmentInfoKHR": shading_rate_attachment,
}


_INDEXING = "VkPhysicalDeviceDescriptorIndexingProperties"
_INLINE = "VkPhysicalDeviceInlineUniformBlockProperties"
_STRUCTURES = "VkPhysicalDeviceAccelerationStructurePropertiesKHR"
_MAINTENANCE_7 = "VkPhysicalDeviceMaintenance7PropertiesKHR"
_TENSORS = "VkPhysicalDeviceTensorPropertiesARM"
_MAINTENANCE_7_FEATURE = ("VkPhysicalDeviceMaintenance7FeaturesKHR", "maintenance7")

# VK_DESCRIPTOR_SET_LAYOUT_CREATE_UPDATE_AFTER_BIND_POOL_BIT and _DESCRIPTOR_BUFFER_BIT_EXT.
_AFTER_BIND_FLAGS = 0x2 | 0x10

_SAMPLER = ("SAMPLER", "COMBINED_IMAGE_SAMPLER")
_SAMPLED = ("COMBINED_IMAGE_SAMPLER", "SAMPLED_IMAGE", "UNIFORM_TEXEL_BUFFER")
_PROCESSED = ("SAMPLE_WEIGHT_IMAGE_QCOM", "BLOCK_MATCH_IMAGE_QCOM")
_STORAGE_IMAGE = ("STORAGE_IMAGE", "STORAGE_TEXEL_BUFFER")
_UNIFORM, _UNIFORM_DYNAMIC = "UNIFORM_BUFFER", "UNIFORM_BUFFER_DYNAMIC"
_STORAGE, _STORAGE_DYNAMIC = "STORAGE_BUFFER", "STORAGE_BUFFER_DYNAMIC"
_INPUT = ("INPUT_ATTACHMENT",)
_BLOCK = ("INLINE_UNIFORM_BLOCK",)
_STRUCTURE = ("ACCELERATION_STRUCTURE_KHR",)
_TENSOR = ("TENSOR_ARM",)


class DescriptorLimit(msgspec.Struct, frozen=True):
    """A limit on the descriptors of the sets of a pipeline layout.

    Attributes:
        types: VkDescriptorType names that count, without VK_DESCRIPTOR_TYPE_.
        property: The property that holds the limit.
        source: Valid usage statement, without "VUID-VkPipelineLayoutCreateInfo-".
        per_stage: Whether each stage is counted separately.
        all_sets: Whether sets that are updated after bind count too.
        or_property: Another property, which replaces the first where it is greater.
        bindings: Whether bindings are counted instead of descriptors.
        maintenance_7: Whether the limit holds with or without the feature maintenance7; None for both.
    """

    types: tuple[str, ...]
    property: Feature
    source: str
    per_stage: bool = False
    all_sets: bool = False
    or_property: Feature | None = None
    bindings: bool = False
    maintenance_7: bool | None = None


def _pair(
    types: tuple[str, ...],
    plain: tuple[Feature, str],
    after_bind: tuple[Feature, str],
    *,
    bindings: bool = False,
    maintenance_7: bool | None = None,
) -> tuple[DescriptorLimit, DescriptorLimit]:
    """A limit on sets that are not updated after bind, and the one on all sets."""
    (property_, source), (second, second_source) = plain, after_bind
    per_stage = "PerStage" in property_[1]
    return (
        DescriptorLimit(types, property_, source, per_stage, False, None, bindings, maintenance_7),
        DescriptorLimit(types, property_, second_source, per_stage, True, second, bindings, maintenance_7),
    )


# One limit or pair a line, and on a second where names are long: the table is read by type of descriptor.
# fmt: off
DESCRIPTOR_LIMITS: tuple[DescriptorLimit, ...] = (
    *_pair(_SAMPLER, ((LIMITS, "maxPerStageDescriptorSamplers"), "descriptorType-03016"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindSamplers"), "descriptorType-03022")),
    *_pair((_UNIFORM, _UNIFORM_DYNAMIC),
        ((LIMITS, "maxPerStageDescriptorUniformBuffers"), "descriptorType-03017"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindUniformBuffers"), "descriptorType-03023")),
    *_pair((_STORAGE, _STORAGE_DYNAMIC),
        ((LIMITS, "maxPerStageDescriptorStorageBuffers"), "descriptorType-03018"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindStorageBuffers"), "descriptorType-03024")),
    # The images of VK_QCOM_image_processing are named by the first of these statements only.
    DescriptorLimit((*_SAMPLED, *_PROCESSED), (LIMITS, "maxPerStageDescriptorSampledImages"),
        "descriptorType-06939", per_stage=True),
    DescriptorLimit(_SAMPLED, (LIMITS, "maxPerStageDescriptorSampledImages"), "descriptorType-03025",
        per_stage=True, all_sets=True,
        or_property=(_INDEXING, "maxPerStageDescriptorUpdateAfterBindSampledImages")),
    *_pair(_STORAGE_IMAGE, ((LIMITS, "maxPerStageDescriptorStorageImages"), "descriptorType-03020"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindStorageImages"), "descriptorType-03026")),
    *_pair(_INPUT, ((LIMITS, "maxPerStageDescriptorInputAttachments"), "descriptorType-03021"),
        ((_INDEXING, "maxPerStageDescriptorUpdateAfterBindInputAttachments"), "descriptorType-03027")),
    *_pair(_BLOCK, ((_INLINE, "maxPerStageDescriptorInlineUniformBlocks"), "descriptorType-02214"),
        ((_INLINE, "maxPerStageDescriptorUpdateAfterBindInlineUniformBlocks"), "descriptorType-02215"),
        bindings=True),
    *_pair(_STRUCTURE, ((_STRUCTURES, "maxPerStageDescriptorAccelerationStructures"), "descriptorType-03571"),
        ((_STRUCTURES, "maxPerStageDescriptorUpdateAfterBindAccelerationStructures"), "descriptorType-03572"),
        bindings=True),
    *_pair(_TENSOR, ((_TENSORS, "maxPerStageDescriptorSetStorageTensors"), "pSetLayouts-09698"),
        ((_TENSORS, "maxPerStageDescriptorUpdateAfterBindStorageTensors"), "descriptorType-09879")),
    *_pair(_SAMPLER, ((LIMITS, "maxDescriptorSetSamplers"), "descriptorType-03028"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindSamplers"), "pSetLayouts-03036")),
    *_pair((_UNIFORM,), ((LIMITS, "maxDescriptorSetUniformBuffers"), "descriptorType-03029"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindUniformBuffers"), "pSetLayouts-03037")),
    *_pair((_UNIFORM_DYNAMIC,), ((LIMITS, "maxDescriptorSetUniformBuffersDynamic"), "descriptorType-03030"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindUniformBuffersDynamic"), "pSetLayouts-03038"),
        maintenance_7=False),
    *_pair((_UNIFORM_DYNAMIC,),
        ((_MAINTENANCE_7, "maxDescriptorSetTotalUniformBuffersDynamic"), "maintenance7-10003"),
        ((_MAINTENANCE_7, "maxDescriptorSetUpdateAfterBindTotalUniformBuffersDynamic"), "maintenance7-10007"),
        maintenance_7=True),
    *_pair((_STORAGE,), ((LIMITS, "maxDescriptorSetStorageBuffers"), "descriptorType-03031"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindStorageBuffers"), "pSetLayouts-03039")),
    *_pair((_STORAGE_DYNAMIC,), ((LIMITS, "maxDescriptorSetStorageBuffersDynamic"), "descriptorType-03032"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindStorageBuffersDynamic"), "pSetLayouts-03040"),
        maintenance_7=False),
    *_pair((_STORAGE_DYNAMIC,),
        ((_MAINTENANCE_7, "maxDescriptorSetTotalStorageBuffersDynamic"), "maintenance7-10004"),
        ((_MAINTENANCE_7, "maxDescriptorSetUpdateAfterBindTotalStorageBuffersDynamic"), "maintenance7-10008"),
        maintenance_7=True),
    *_pair((_UNIFORM_DYNAMIC, _STORAGE_DYNAMIC),
        ((_MAINTENANCE_7, "maxDescriptorSetTotalBuffersDynamic"), "None-10005"),
        ((_MAINTENANCE_7, "maxDescriptorSetUpdateAfterBindTotalBuffersDynamic"), "pSetLayouts-10006")),
    *_pair(_SAMPLED, ((LIMITS, "maxDescriptorSetSampledImages"), "descriptorType-03033"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindSampledImages"), "pSetLayouts-03041")),
    *_pair(_STORAGE_IMAGE, ((LIMITS, "maxDescriptorSetStorageImages"), "descriptorType-03034"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindStorageImages"), "pSetLayouts-03042")),
    *_pair(_INPUT, ((LIMITS, "maxDescriptorSetInputAttachments"), "descriptorType-03035"),
        ((_INDEXING, "maxDescriptorSetUpdateAfterBindInputAttachments"), "pSetLayouts-03043")),
    *_pair(_BLOCK, ((_INLINE, "maxDescriptorSetInlineUniformBlocks"), "descriptorType-02216"),
        ((_INLINE, "maxDescriptorSetUpdateAfterBindInlineUniformBlocks"), "descriptorType-02217"),
        bindings=True),
    # A descriptor of an inline uniform block is a byte of it.
    DescriptorLimit(_BLOCK, ("VkPhysicalDeviceVulkan13Properties", "maxInlineUniformTotalSize"),
        "descriptorType-06531", all_sets=True),
    *_pair(_STRUCTURE, ((_STRUCTURES, "maxDescriptorSetAccelerationStructures"), "descriptorType-03573"),
        ((_STRUCTURES, "maxDescriptorSetUpdateAfterBindAccelerationStructures"), "descriptorType-03574"),
        bindings=True),
    DescriptorLimit(("ACCELERATION_STRUCTURE_NV",),
        ("VkPhysicalDeviceRayTracingPropertiesNV", "maxDescriptorSetAccelerationStructures"),
        "descriptorType-02381", all_sets=True, bindings=True),
    *_pair(_TENSOR, ((_TENSORS, "maxDescriptorSetStorageTensors"), "pSetLayouts-09699"),
        ((_TENSORS, "maxDescriptorSetUpdateAfterBindStorageTensors"), "pSetLayouts-09878")),
)
# fmt: on

_Key = tuple[int, bool]
_Counts = dict[_Key, list[int]]


@define(eq=False)
class DescriptorCounts:
    """The descriptors of one set layout. Thread-safe: any thread would compute the same values.

    Attributes:
        after_bind: Whether only limits on all sets count them.
        total: Number of all descriptors, an upper bound of each count.
        types: VkDescriptorType of each binding that has descriptors.
        groups: Counts by type, whether bindings instead of descriptors are counted, and stages.
    """

    after_bind: bool
    total: int
    types: frozenset[int]
    groups: Mapping[tuple[int, bool, int], int] = field(repr=False)
    _by_key: _Counts | None = field(init=False, default=None, repr=False)

    def by_key(self) -> Mapping[_Key, list[int]]:
        """Counts by type and `bindings`: for any stage, then for each of `stage_bits`."""
        if self._by_key is None:
            by_key: _Counts = {}
            bits = stage_bits()
            for (kind, bindings, stages), count in self.groups.items():
                accessible = [count if stages & bit else 0 for bit in bits]
                if any(accessible):
                    _add(by_key, (kind, bindings), [count, *accessible])
            self._by_key = by_key
        return self._by_key


def _add(counts: _Counts, key: _Key, row: list[int]) -> None:
    known = counts.get(key)
    counts[key] = row if known is None else list(map(add, known, row))


@lru_cache(maxsize=1)
def stage_bits() -> tuple[int, ...]:
    """Every VkShaderStageFlagBits, lowest first."""
    numbers = registry().enums["VkShaderStageFlagBits"].values
    return tuple(sorted(each for each in numbers if each.bit_count() == 1))


@lru_cache(maxsize=1)
def _counted_by_binding() -> frozenset[int]:
    return frozenset(number for each in DESCRIPTOR_LIMITS if each.bindings for number, _ in _keys(each))


def _properties(row: DescriptorLimit) -> tuple[Feature, ...]:
    """The property that holds a limit, and the one that may replace it."""
    return (row.property,) if row.or_property is None else (row.property, row.or_property)


def _keys(row: DescriptorLimit) -> tuple[_Key, ...]:
    return tuple((enum_numbers()[f"VK_DESCRIPTOR_TYPE_{each}"], row.bindings) for each in row.types)


def descriptor_count(binding: Any) -> int:
    """VkDescriptorSetLayoutBinding::descriptorCount, or the number of immutable samplers if it is absent."""
    count = binding.descriptorCount
    return len(binding.pImmutableSamplers or ()) if count is None else count


def count_descriptors(value: Any) -> DescriptorCounts:
    """Count the descriptors of a set layout."""
    groups: dict[tuple[int, bool, int], int] = {}
    types: set[int] = set()
    by_binding, total = _counted_by_binding(), 0
    for each in value.pBindings or ():
        count, kind = descriptor_count(each), each.descriptorType
        if count:
            total += count
            types.add(kind)
            key = (kind, False, each.stageFlags)
            groups[key] = groups.get(key, 0) + count
            if kind in by_binding:
                key = (kind, True, each.stageFlags)
                groups[key] = groups.get(key, 0) + 1
    return DescriptorCounts(bool(value.flags & _AFTER_BIND_FLAGS), total, frozenset(types), groups)


class _Bound(msgspec.Struct, frozen=True, eq=False):
    """A limit on one device: what it counts, and its value."""

    row: DescriptorLimit
    keys: tuple[_Key, ...]
    property: Feature
    most: int

    def of(self, counts: _Counts) -> list[int]:
        """Counts for any stage, then for each stage."""
        found = [counts[key] for key in self.keys if key in counts]
        return [sum(each) for each in zip(*found, strict=True)] if found else [0]


_TAKEN_BY_ALL: Final = 4
"""Descriptors: the least that the specification requires of any of these limits ("Limits")."""


class DescriptorLimits:
    """Checks pipeline layouts against the limits of one device. Thread-safe.

    Some limits hold with the feature maintenance7, and others without. Most layouts are within all of them,
    so the device is asked for the feature only where that matters.
    """

    def __init__(self, answers: DeviceAnswers) -> None:
        """Check against a device."""
        self._answers = answers
        self._bounds = [bound for each in DESCRIPTOR_LIMITS if (bound := self._bound(each)) is not None]
        # The smallest limit on each type: a layout whose total does not exceed it is within all limits.
        self._least: dict[int, int] = {}
        for bound in self._bounds:
            for kind, _ in bound.keys:
                self._least[kind] = min(bound.most, self._least.get(kind, bound.most))
        # The largest total of such a layout so far, by type, and what is missing for others.
        self._largest: dict[int, int] = {}
        self._others: dict[frozenset[tuple[DescriptorCounts, int]], str | None] = {}

    def missing(self, sets: Sequence[DescriptorCounts]) -> str | None:
        """The first limit that the sets of a pipeline layout exceed, with both numbers; or None."""
        total = sum([each.total for each in sets])
        if not total:
            return None
        if total > _TAKEN_BY_ALL or any(
            total > self._least.get(kind, total) for each in sets for kind in each.types
        ):
            several = Counter(sets)
            key = frozenset(several.items())
            if key not in self._others:
                self._others[key] = self._exceeded(several)
            return self._others[key]
        new = {kind for each in sets for kind in each.types if total > self._largest.get(kind, 0)}
        self._largest |= dict.fromkeys(new, total)
        for bound in self._bounds if new else ():
            if any(kind in new for kind, _ in bound.keys):
                limit(self._answers, *bound.property, total)  # which it is within; others hear of that
        return None

    def _exceeded(self, several: Counter[DescriptorCounts]) -> str | None:
        plain, every = _sum(several, after_bind=False), _sum(several, after_bind=True)
        counted: list[tuple[_Bound, int]] = []
        for bound in self._bounds:
            counts = bound.of(every if bound.row.all_sets else plain)
            counted.append((bound, max(counts[1:], default=0) if bound.row.per_stage else counts[0]))
        if any(count > bound.most for bound, count in counted):
            holds = None, self._answers.feature(*_MAINTENANCE_7_FEATURE, needed=False)
            counted = [each for each in counted if each[0].row.maintenance_7 in holds]
        for bound, count in counted:
            text = limit(self._answers, *bound.property, count)
            if text is not None:
                for each in _properties(bound.row):
                    self._answers.property(*each)  # either may allow it where it is greater
                return text
        return None

    def _bound(self, row: DescriptorLimit) -> _Bound | None:
        """The limit on this device; None where the device does not have the property."""
        found = [(self._answers.unjudged(*each), each) for each in _properties(row)]
        known = [(most, each) for most, each in found if isinstance(most, int)]
        if len(known) < len(found):
            return None
        most, name = max(known, key=lambda each: each[0])
        return _Bound(row, _keys(row), name, most)


def _sum(several: Counter[DescriptorCounts], *, after_bind: bool) -> _Counts:
    """Sum of the counts of several sets, with or without those that are updated after bind."""
    counts: _Counts = {}
    for each, times in several.items():
        if after_bind or not each.after_bind:
            for key, row in each.by_key().items():
                _add(counts, key, [count * times for count in row])
    return counts


# Completeness: what a structure must hold on any device.

_LIBRARY = 0x800
_FLAGS_2 = "VkPipelineCreateFlags2CreateInfo"
_GRAPHICS = "VkGraphicsPipelineCreateInfo"
_COMPUTE, _RAY_TRACING = "VkComputePipelineCreateInfo", "VkRayTracingPipelineCreateInfoKHR"
_FIRST_STAGES = 0x1 | 0x80  # vertex, mesh
_UNUSED_SHADER = 0xFFFF_FFFF
# Members of a group, and the stages that they may name: ray generation, miss and callable, then hit shaders.
_GROUP_SHADERS = {
    "generalShader": 0x100 | 0x800 | 0x2000,
    "closestHitShader": 0x400,
    "anyHitShader": 0x200,
    "intersectionShader": 0x1000,
}


# The stages that each kind of pipeline may have; cluster culling is one of the graphics stages.
_STAGES_OF_KIND = {
    _GRAPHICS: 0x1F | 0x40 | 0x80 | 0x8_0000,
    _COMPUTE: 0x20,
    _RAY_TRACING: 0x100 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000,
}
# Those of any of them. A stage that is not known here is left to the registry, which names what it needs.
_STAGES_OF_KINDS = sum(_STAGES_OF_KIND.values())
_MESH_STAGES, _PRIMITIVE_STAGES = 0x40 | 0x80, 0x1 | 0x2 | 0x4 | 0x8

# The shader that a group of a VkRayTracingShaderGroupTypeKHR must have: general, procedural hit.
_GROUP_NEEDS = {0: "generalShader", 2: "intersectionShader"}

_VERTEX_INPUT_PART, _PRE_RASTERIZATION_PART, _FRAGMENT_SHADER_PART, _OUTPUT_PART = 0x1, 0x2, 0x4, 0x8
_ALL_PARTS = 0xF
_LINK_TIME_OPTIMIZATION, _RETAIN_LINK_TIME_OPTIMIZATION_INFO = 0x400, 0x80_0000


def wrong_stages(structure: str, stages: Sequence[int]) -> Malformed | None:
    """What is wrong with the stages of a pipeline of any kind; drivers index tables by them without a check.

    VUID-VkGraphicsPipelineCreateInfo-pStages-06896, -stage-06897, -pStages-02095, -00729 and -00730;
    VUID-VkComputePipelineCreateInfo-stage-00701; VUID-VkRayTracingPipelineCreateInfoKHR-stage-06899.

    Args:
        structure: The create info of its kind.
        stages: VkShaderStageFlagBits of each of its stages.
    """
    foreign = _STAGES_OF_KINDS & ~_STAGES_OF_KIND[structure]
    for each in stages:
        if each & foreign:
            return Malformed(f"{_stage_name(each)} is no stage of a {structure}")
    if structure != _GRAPHICS:
        return None
    together = 0
    for each in stages:
        if each & together:
            return Malformed(f"pStages: {_stage_name(each)} is there twice")
        together |= each
    if together & _MESH_STAGES and together & _PRIMITIVE_STAGES:
        return Malformed("pStages: a task or mesh stage beside one for vertices")
    if together & _TESSELLATION and together & _TESSELLATION != _TESSELLATION:
        return Malformed("pStages: one tessellation stage without the other")
    return None


def _stage_name(stage: int) -> str:
    known = registry().enums["VkShaderStageFlagBits"].values.get(stage)
    return known.name if known is not None else f"stage {stage:#x}"


def complete_graphics(_answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Stages and state that belong to the pipeline's own parts.

    VUID-VkGraphicsPipelineCreateInfo-pRasterizationState-09039 and -pMultisampleState-09026 name the dynamic
    states that may replace it; this looks for one of each.
    VUID-VkGraphicsPipelineCreateInfo-pStages-00731 for tessellation; `wrong_stages` for the stages;
    VUID-VkPipelineMultisampleStateCreateInfo-rasterizationSamples-parameter.
    """
    parts, listed, stages = own_parts(value), [each.stage for each in value.pStages or ()], 0
    wrong = wrong_stages(_GRAPHICS, listed)
    if wrong is not None:
        return wrong
    for each in listed:
        stages |= each
    if parts == _ALL_PARTS and not stages & _FIRST_STAGES:
        return None  # `incomplete_pipeline` reports it
    raster = value.pRasterizationState
    if parts & _PRE_RASTERIZATION_PART:
        if stages & _TESSELLATION and value.pTessellationState is None:
            replaced = dynamic_state("PATCH_CONTROL_POINTS_EXT") in dynamic
            return (
                None if replaced else Malformed("no tessellationState, although it has tessellation stages")
            )
        if raster is None:
            replaced = dynamic_state("POLYGON_MODE_EXT") in dynamic
            return None if replaced else Malformed("no rasterizationState")
    samples_are_dynamic = dynamic_state("RASTERIZATION_SAMPLES_EXT") in dynamic
    if parts & _OUTPUT_PART and not samples_are_dynamic and not discards(raster, dynamic):
        if value.pMultisampleState is None:
            return Malformed("no multisampleState, although it rasterizes")
        samples = value.pMultisampleState.rasterizationSamples
        if samples.bit_count() != 1:
            return Malformed(f"rasterizationSamples {samples} is no number of samples")
    return None


def discards(raster: Any | None, dynamic: DynamicStates) -> bool:
    """Whether a rasterization state lets no fragment through, whatever is set while drawing."""
    if raster is None or not raster.rasterizerDiscardEnable:
        return False
    return dynamic_state("RASTERIZER_DISCARD_ENABLE") not in dynamic


def own_parts(value: Any) -> int:
    """VkGraphicsPipelineLibraryFlagBitsEXT of a graphics pipeline without its libraries."""
    if not getattr(value, "pNext", None):
        return _ALL_PARTS
    info = chained(value, "VkGraphicsPipelineLibraryCreateInfoEXT")
    if info is not None:
        return int(info.flags)
    links = chained(value, "VkPipelineLibraryCreateInfoKHR")
    return 0 if links is not None and links.pLibraries else _ALL_PARTS


class GraphicsParts(msgspec.Struct, frozen=True):
    """Properties of a pipeline together with the libraries that it links.

    Attributes:
        parts: VkGraphicsPipelineLibraryFlagBitsEXT of a graphics pipeline.
        mesh: Whether it has a mesh shader, which reads no vertex input.
        discards: Whether it rasterizes nothing.
        retains: Whether it can be linked with link-time optimization.
        stages: Number of all stages, which ray-tracing groups index.
    """

    parts: int
    mesh: bool
    discards: bool
    retains: bool
    stages: int

    @classmethod
    def of(cls, value: Any, linked: Sequence[GraphicsParts]) -> GraphicsParts:
        """Those of a decoded pipeline."""
        raster = getattr(value, "pRasterizationState", None)
        parts = own_parts(value)
        for each in linked:
            parts |= each.parts
        return cls(
            parts,
            mesh=any(each.stage & _MESH for each in getattr(value, "pStages", None) or ())
            or any(each.mesh for each in linked),
            discards=(raster is not None and bool(raster.rasterizerDiscardEnable))
            or any(each.discards for each in linked),
            retains=bool(create_flags(value) & _RETAIN_LINK_TIME_OPTIMIZATION_INFO),
            stages=len(getattr(value, "pStages", None) or ()) + sum(each.stages for each in linked),
        )


def incomplete_pipeline(value: Any, linked: Sequence[GraphicsParts]) -> str | None:
    """What is missing in a pipeline of any kind with its libraries; drivers read it without a check.

    VUID-VkGraphicsPipelineCreateInfo-layout-06602, -pStages-06895, -flags-06609 and -06610, "Complete
    Graphics Pipelines"; VUID-VkComputePipelineCreateInfo-layout-parameter and its like for ray tracing.
    """
    graphics = type(value).__name__ == _GRAPHICS
    own = own_parts(value) if graphics else _ALL_PARTS
    shaders = own & (_PRE_RASTERIZATION_PART | _FRAGMENT_SHADER_PART) and not (graphics and linked)
    if not value.layout and shaders:
        heap = enum_numbers()["VK_PIPELINE_CREATE_2_DESCRIPTOR_HEAP_BIT_EXT"]
        if not create_flags(value) & heap:
            return Malformed("layout is a null handle")
    if not graphics:
        return _group_shaders(value, GraphicsParts.of(value, linked).stages) if linked else None
    if own & _PRE_RASTERIZATION_PART:
        for each in value.pStages or ():
            if each.stage & _FIRST_STAGES:
                break
        else:
            return Malformed("pStages: no vertex or mesh shader")
    if own == _ALL_PARTS:
        return None
    flags = create_flags(value)
    if not all(each.retains for each in linked):
        if flags & _LINK_TIME_OPTIMIZATION:
            return Malformed(
                "pLibraries: links with link-time optimization a library that retains nothing for it"
            )
        if flags & _RETAIN_LINK_TIME_OPTIMIZATION_INFO:
            return Malformed("pLibraries: retains what link-time optimization needs, and a library does not")
    if flags & _LIBRARY:
        return None
    whole = GraphicsParts.of(value, linked)
    for part, name, needed in (
        (_PRE_RASTERIZATION_PART, "pre-rasterization shaders", True),
        (_VERTEX_INPUT_PART, "vertex input", not whole.mesh),
        (_FRAGMENT_SHADER_PART, "fragment shaders", not whole.discards),
        (_OUTPUT_PART, "fragment output", not whole.discards),
    ):
        if needed and not whole.parts & part:
            return Malformed(f"pLibraries: the pipeline and what it links have no {name}")
    return None


def create_flags(value: Any) -> int:
    """The flags of a pipeline: those of VkPipelineCreateFlags2CreateInfo replace its own."""
    wide = chained(value, _FLAGS_2)
    return int(value.flags if wide is None else wide.flags)


def complete_compute(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """The stage of a compute pipeline, see `wrong_stages`."""
    return wrong_stages(_COMPUTE, [value.stage.stage])


def complete_ray_tracing(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Stages, and those that groups name, unless a library is linked, which may have them."""
    wrong = wrong_stages(_RAY_TRACING, [each.stage for each in value.pStages or ()])
    if wrong is not None:
        return wrong
    if value.pLibraryInfo is not None and value.pLibraryInfo.pLibraries:
        return None
    return _group_shaders(value, len(value.pStages or ()))


def _group_shaders(value: Any, count: int) -> Malformed | None:
    """Stages that groups name: VUID-VkRayTracingShaderGroupCreateInfoKHR-type-03474 to -03476.

    The last of `count` stages are those of libraries, whose kind is not known here.
    """
    stages = [each.stage for each in getattr(value, "pStages", None) or ()]
    for each in getattr(value, "pGroups", None) or ():
        for name, kinds in _GROUP_SHADERS.items():
            index = getattr(each, name)
            if index == _UNUSED_SHADER:
                continue
            if index >= count:
                return Malformed(f"{name} {index} of a pipeline that has {count} stages")
            if count == len(stages) and not stages[index] & kinds:
                return Malformed(f"{name} {index} names a stage of another kind, {stages[index]:#x}")
        needed = _GROUP_NEEDS.get(each.type)
        if needed is not None and getattr(each, needed) == _UNUSED_SHADER:
            return Malformed(f"{needed} is not used in a group that consists of it")
    return None


def complete_specialization(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Map entries lie within their data, have a valid size, and name each constant once.

    VUID-VkSpecializationInfo-offset-00773, -pMapEntries-00774, -constantID-04911,
    VUID-VkSpecializationMapEntry-constantID-00776.
    """
    size, entries = len(value.pData or b""), value.pMapEntries or ()
    if len(entries) > 1 and len({each.constantID for each in entries}) < len(entries):
        twice, _ = Counter(each.constantID for each in entries).most_common(1)[0]
        return Malformed(f"specialization constant {twice} is given twice")
    for each in entries:
        if each.size not in (1, 2, 4, 8):
            return Malformed(f"specialization constant {each.constantID} has {each.size} bytes")
        if each.offset + each.size > size:
            end = each.offset + each.size
            return Malformed(
                f"specialization constant {each.constantID} ends at byte {end} of data that has {size}"
            )
    return None


def complete_sample_locations(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """One location a sample: VUID-VkSampleLocationsInfoEXT-sampleLocationsCount-01527."""
    count, grid = len(value.pSampleLocations or ()), value.sampleLocationGridSize
    expected = value.sampleLocationsPerPixel * grid.width * grid.height
    if count == expected or not count:
        return None
    return Malformed(f"{count} sample locations where grid and samples make {expected}")


# The greatest accepted binding number. Drivers allocate a table up to the greatest number of a layout, so the
# specification advises to keep it low (VkDescriptorSetLayoutBinding); captures stay below some thousands.
_LAST_BINDING = (1 << 20) - 1
_PER_STAGE = 0x40  # VK_DESCRIPTOR_SET_LAYOUT_CREATE_PER_STAGE_BIT_NV
_MUTABLE_TYPES = "VkMutableDescriptorTypeCreateInfoEXT"


def complete_set_layout(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Binding numbers, types of mutable bindings, and flags for all bindings or none.

    VUID-VkDescriptorSetLayoutCreateInfo-binding-00279 and -pBindings-07303,
    VUID-VkMutableDescriptorTypeListEXT-descriptorTypeCount-04597,
    VUID-VkDescriptorSetLayoutBindingFlagsCreateInfo-bindingCount-03002.
    """
    bindings = value.pBindings or ()
    numbers = {each.binding for each in bindings}
    greatest = max(numbers, default=0)
    if greatest > _LAST_BINDING:
        return Malformed(f"binding {greatest}, where tables up to {_LAST_BINDING} are taken")
    if len(numbers) < len(bindings) and not value.flags & _PER_STAGE:
        twice, _ = Counter(each.binding for each in bindings).most_common(1)[0]
        return Malformed(f"binding {twice} is there twice")
    mutable = enum_numbers()["VK_DESCRIPTOR_TYPE_MUTABLE_EXT"]
    lists = getattr(chained(value, _MUTABLE_TYPES), "pMutableDescriptorTypeLists", None) or ()
    for index, each in enumerate(bindings):
        if each.descriptorType == mutable and not (index < len(lists) and lists[index]):
            return Malformed(f"binding {each.binding} is mutable, and {_MUTABLE_TYPES} has no types for it")
    return _as_long(value, "VkDescriptorSetLayoutBindingFlagsCreateInfo", "pBindingFlags", "pBindings")


def complete_pipeline_layout(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Null set layouts: VUID-VkPipelineLayoutCreateInfo-graphicsPipelineLibrary-06753."""
    if all(value.pSetLayouts or ()):
        return None
    struct = "VkPhysicalDeviceGraphicsPipelineLibraryFeaturesEXT"
    return feature(answers, struct, "graphicsPipelineLibrary")


def complete_render_pass(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """View masks and offsets for all subpasses and dependencies, or none.

    VUID-VkRenderPassCreateInfo-pNext-01928 and -01929.
    """
    multiview_info = "VkRenderPassMultiviewCreateInfo"
    return _as_long(value, multiview_info, "pViewMasks", "pSubpasses") or _as_long(
        value, multiview_info, "pViewOffsets", "pDependencies"
    )


def _as_long(value: Any, chained_struct: str, array: str, own: str) -> str | None:
    """A chained array that is read by the indices of the structure's own array must be as long."""
    found, expected = chained(value, chained_struct), len(getattr(value, own) or ())
    length = len(getattr(found, array, None) or ())
    if not length or length == expected:
        return None
    return Malformed(f"{chained_struct}::{array} has {length} elements where {own} has {expected}")


class ReplacedArray(msgspec.Struct, frozen=True):
    """An array that may be null with a nonzero count only where dynamic states replace it.

    Attributes:
        array: The member.
        count: The member that counts it.
        states: Groups of dynamic states: one state of each group must be on.
        source: The valid usage statement.
        enable: The member that says whether the array is read, or "" where it always is.
    """

    array: str
    count: str
    states: tuple[tuple[str, ...], ...]
    source: str
    enable: str = ""


# fmt: off
REPLACED_ARRAYS: dict[str, tuple[ReplacedArray, ...]] = {
    "VkPipelineViewportStateCreateInfo": (
        ReplacedArray("pViewports", "viewportCount", (("VIEWPORT", "VIEWPORT_WITH_COUNT"),),
            "VkGraphicsPipelineCreateInfo-pDynamicStates-04130"),
        ReplacedArray("pScissors", "scissorCount", (("SCISSOR", "SCISSOR_WITH_COUNT"),),
            "VkGraphicsPipelineCreateInfo-pDynamicStates-04131"),
    ),
    "VkPipelineViewportWScalingStateCreateInfoNV": (
        ReplacedArray("pViewportWScalings", "viewportCount", (("VIEWPORT_W_SCALING_NV",),),
            "VkGraphicsPipelineCreateInfo-pDynamicStates-01715"),
    ),
    "VkPipelineColorBlendStateCreateInfo": (
        ReplacedArray("pAttachments", "attachmentCount",
            (("COLOR_BLEND_ENABLE_EXT",), ("COLOR_BLEND_EQUATION_EXT",), ("COLOR_WRITE_MASK_EXT",)),
            "VkPipelineColorBlendStateCreateInfo-pAttachments-07353"),
    ),
    "VkPipelineColorWriteCreateInfoEXT": (
        ReplacedArray("pColorWriteEnables", "attachmentCount", (("COLOR_WRITE_ENABLE_EXT",),),
            "VkPipelineColorWriteCreateInfoEXT-pColorWriteEnables-parameter"),
    ),
    "VkPipelineDiscardRectangleStateCreateInfoEXT": (
        ReplacedArray("pDiscardRectangles", "discardRectangleCount", (("DISCARD_RECTANGLE_EXT",),),
            "VkPipelineDiscardRectangleStateCreateInfoEXT, pDiscardRectangles"),
    ),
    "VkPipelineCoverageModulationStateCreateInfoNV": (
        ReplacedArray("pCoverageModulationTable", "coverageModulationTableCount",
            (("COVERAGE_MODULATION_TABLE_NV",),),
            "VkPipelineCoverageModulationStateCreateInfoNV-coverageModulationTableEnable-01405",
            enable="coverageModulationTableEnable"),
    ),
}
# fmt: on


def complete_arrays(_answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> str | None:
    """Null arrays of `REPLACED_ARRAYS` that no dynamic state replaces."""
    for row in REPLACED_ARRAYS[type(value).__name__]:
        count = getattr(value, row.count)
        if not count or getattr(value, row.array) is not None:
            continue
        if row.enable and not getattr(value, row.enable):
            continue
        if all(any(dynamic_state(each) in dynamic for each in group) for group in row.states):
            continue
        return Malformed(
            f"{type(value).__name__}::{row.count} is {count}, but {row.array} is missing, "
            "and no dynamic state replaces it"
        )
    return None


COMPLETENESS: dict[str, Context] = {
    _GRAPHICS: complete_graphics,
    _COMPUTE: complete_compute,
    _RAY_TRACING: complete_ray_tracing,
    "VkDescriptorSetLayoutCreateInfo": complete_set_layout,
    "VkPipelineLayoutCreateInfo": complete_pipeline_layout,
    "VkRenderPassCreateInfo": complete_render_pass,
    "VkRenderPassCreateInfo2": complete_render_pass,
    "VkSpecializationInfo": complete_specialization,
    "VkSampleLocationsInfoEXT": complete_sample_locations,
    **dict.fromkeys(REPLACED_ARRAYS, complete_arrays),
}
