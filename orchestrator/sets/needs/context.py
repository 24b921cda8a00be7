"""Requirements that depend on several members, or on a member and its surroundings.

They concern state that dynamic state replaces, limits on sums, and formats by their use.

Guarantees: pure functions of a decoded structure and the device's answers; each returns what is missing, or
None. An incomplete document is `Malformed`. Values are untrusted: every index is checked before it is used. A
requirement is stated only where the device cannot take the structure: what the specification forbids but no
compiler reads (a line width where no lines are drawn) is accepted, and so is what recorders may leave out.
What would only crash a driver is left to supervision, which names the pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from orchestrator.registry import registry
from orchestrator.sets.image.documents import stages_of
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
Texts = Iterator[str | None]
"""What is missing, thing by thing; None for what is there."""
Context = Callable[[DeviceAnswers, Any, DynamicStates], Texts]


class Malformed(str):
    """A fault of the captured document, and not of the device, such as a reference to something missing."""

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
_PATCH_LIST = 10
_POLYGON_MODE_LINE = 1


def first(texts: Iterable[str | None]) -> str | None:
    """The first thing that is missing, or None; nothing is asked of the device after it."""
    return next((text for text in texts if text is not None), None)


@lru_cache(maxsize=64)
def dynamic_state(name: str) -> int:
    """Number of a VkDynamicState, by its name without the prefix."""
    return enum_numbers()[f"VK_DYNAMIC_STATE_{name}"]


def feature(answers: DeviceAnswers, struct: str, member: str) -> str | None:
    """The text for a feature if it is missing, or None."""
    return None if answers.feature(struct, member) else f"feature {struct}::{member}"


def limit(
    answers: DeviceAnswers, struct: str, member: str, value: float, *, below: bool = False
) -> str | None:
    """The text for a property that a value exceeds (with `below`: reaches); unknown ones bound nothing."""
    most = answers.exceeded(struct, member, value, below=below)
    return None if most is None else f"property {struct}::{member} {most} {'<=' if below else '<'} {value}"


def format_use(answers: DeviceAnswers, number: int, features: int, use: str) -> str | None:
    """The text for a format if no tiling has a feature that a use needs; VK_FORMAT_UNDEFINED needs none."""
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


def graphics_pipeline(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> Texts:
    """Requirements across the parts of a graphics pipeline."""
    yield wrong_stages(_GRAPHICS, [each.stage for each in value.pStages or ()])
    raster, assembly = value.pRasterizationState, value.pInputAssemblyState
    if raster is not None:
        # VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-00754
        biased = raster.depthBiasEnable and raster.depthBiasClamp
        if biased and dynamic_state("DEPTH_BIAS") not in dynamic:
            yield feature(answers, BASE, "depthBiasClamp")
        # VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-00749 demands a width of 1 even where no line is
        # drawn. Programs record 0 there, and nothing reads it, so this checks only pipelines that draw lines.
        draws_lines = assembly is not None and assembly.topology in _LINES
        draws_lines = draws_lines or raster.polygonMode == _POLYGON_MODE_LINE
        if draws_lines and raster.lineWidth != 1 and dynamic_state("LINE_WIDTH") not in dynamic:
            yield feature(answers, BASE, "wideLines")
    if not value.renderPass:
        # VUID-VkGraphicsPipelineCreateInfo-dynamicRendering-06576: a library of vertex input only needs no
        # render pass, and a pipeline that links libraries takes it from them.
        library = chained(value, "VkGraphicsPipelineLibraryCreateInfoEXT")
        links = chained(value, "VkPipelineLibraryCreateInfoKHR") is not None
        if not links and (library is None or library.flags != 1):
            yield feature(answers, "VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")
        if (rendering := chained(value, "VkPipelineRenderingCreateInfo")) is not None:
            yield from multiview(answers, value, rendering.viewMask)


def multiview(answers: DeviceAnswers, pipeline: Any, view_mask: int) -> Texts:
    """What is missing for a graphics pipeline in a subpass, or in dynamic rendering, of that view mask."""
    if not view_mask:
        return
    stages = 0
    for each in pipeline.pStages or ():
        stages |= each.stage
    struct = "VkPhysicalDeviceMultiviewFeatures"
    if stages & _TESSELLATION:
        yield feature(answers, struct, "multiviewTessellationShader")
    if stages & _GEOMETRY:
        yield feature(answers, struct, "multiviewGeometryShader")
    if stages & _MESH and answers.extension("VK_EXT_mesh_shader"):
        yield feature(answers, "VkPhysicalDeviceMeshShaderFeaturesEXT", "multiviewMeshShader")
    most = "VkPhysicalDeviceMultiviewProperties", "maxMultiviewViewCount"
    yield limit(answers, *most, view_mask.bit_length())


def input_assembly(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> Texts:
    """Primitive restart of lists: VUID-VkPipelineInputAssemblyStateCreateInfo-topology-06252 and -06253."""
    states = ("PRIMITIVE_RESTART_ENABLE", "PRIMITIVE_TOPOLOGY")
    is_set_later = any(dynamic_state(each) in dynamic for each in states)
    if value.primitiveRestartEnable and not is_set_later:
        struct = "VkPhysicalDevicePrimitiveTopologyListRestartFeaturesEXT"
        if value.topology in _LISTS:
            yield feature(answers, struct, "primitiveTopologyListRestart")
        elif value.topology == _PATCH_LIST:
            yield feature(answers, struct, "primitiveTopologyPatchListRestart")


def vertex_input(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """Formats of vertex attributes: VUID-VkVertexInputAttributeDescription-format-00623."""
    for each in value.pVertexAttributeDescriptions or ():
        if not answers.format_has(each.format, buffer=VERTEX_BUFFER):
            yield f"format {format_name(each.format)} as vertex attribute"


def viewports(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> Texts:
    """Counts of both: VUID-VkPipelineViewportStateCreateInfo-viewportCount-01216, -01217."""
    yield from replaced_arrays(answers, value, dynamic)
    counts = []
    if dynamic_state("VIEWPORT_WITH_COUNT") not in dynamic:
        counts.append(value.viewportCount or len(value.pViewports or ()))
    if dynamic_state("SCISSOR_WITH_COUNT") not in dynamic:
        counts.append(value.scissorCount or len(value.pScissors or ()))
    most = max(counts, default=0)
    if most > 1:
        yield feature(answers, BASE, "multiViewport")
        yield limit(answers, LIMITS, "maxViewports", most)


def color_blend(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> Texts:
    """Attachments that differ: VUID-VkPipelineColorBlendStateCreateInfo-pAttachments-00605."""
    yield from replaced_arrays(answers, value, dynamic)
    attachments: Sequence[Any] = value.pAttachments or ()
    overridden = ("COLOR_BLEND_ENABLE_EXT", "COLOR_BLEND_EQUATION_EXT", "COLOR_WRITE_MASK_EXT")
    differ = any(each != attachments[0] for each in attachments)
    if differ and not all(dynamic_state(each) in dynamic for each in overridden):
        yield feature(answers, BASE, "independentBlend")


def color_write(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> Texts:
    """Attachments not written: VUID-VkPipelineColorWriteCreateInfoEXT-pAttachments-04801."""
    yield from replaced_arrays(answers, value, dynamic)
    if not all(value.pColorWriteEnables or ()):
        yield feature(answers, "VkPhysicalDeviceColorWriteEnableFeaturesEXT", "colorWriteEnable")


_STIPPLED = (  # by VkLineRasterizationMode
    "stippledRectangularLines",
    "stippledRectangularLines",
    "stippledBresenhamLines",
    "stippledSmoothLines",
)


def line_stipple(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> Texts:
    """Stippled lines: VUID-VkPipelineRasterizationLineStateCreateInfo-stippledLineEnable-02771 to -02774."""
    states = ("LINE_STIPPLE_ENABLE_EXT", "LINE_RASTERIZATION_MODE_EXT")
    is_set_later = any(dynamic_state(each) in dynamic for each in states)
    if value.stippledLineEnable and not is_set_later and 0 <= value.lineRasterizationMode < len(_STIPPLED):
        yield feature(answers, LINES, _STIPPLED[value.lineRasterizationMode])


def fragment_shading_rate(answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> Texts:
    """VUID-VkGraphicsPipelineCreateInfo-pDynamicState-04500 to -04502 and -04506, and -04570 to -04573."""
    if dynamic_state("FRAGMENT_SHADING_RATE_KHR") in dynamic:
        return
    size = getattr(value, "fragmentSize", None)
    if max(size.width, size.height) > 1 if size is not None else value.shadingRate:
        yield feature(answers, SHADING_RATE, "pipelineFragmentShadingRate")
    of_primitive, of_attachment = value.combinerOps or (0, 0)
    if of_primitive:
        yield feature(answers, SHADING_RATE, "primitiveFragmentShadingRate")
    if of_attachment:
        yield feature(answers, SHADING_RATE, "attachmentFragmentShadingRate")


def shader_stage(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """A required subgroup size and its stage."""
    required = chained(value, "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo")
    if required is None:
        return
    struct, size = "VkPhysicalDeviceSubgroupSizeControlProperties", required.requiredSubgroupSize
    if size.bit_count() != 1:
        yield Malformed(f"requiredSubgroupSize {size} is no power of two")
    least = answers.property(struct, "minSubgroupSize")
    if isinstance(least, int) and size < least:
        yield f"property {struct}::minSubgroupSize {least} > {size}"
    if not answers.has_any(struct, "requiredSubgroupSizeStages", value.stage):
        yield f"property {struct}::requiredSubgroupSizeStages without stage {value.stage:#x}"
    yield limit(answers, struct, "maxSubgroupSize", size)


def sampler(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """VUID-VkSamplerCreateInfo-anisotropyEnable-01071 and -mipLodBias-01069."""
    yield limit(answers, LIMITS, "maxSamplerLodBias", abs(value.mipLodBias))
    if value.anisotropyEnable:
        yield limit(answers, LIMITS, "maxSamplerAnisotropy", value.maxAnisotropy)


def ycbcr_conversion(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """Formats of conversions: VUID-VkSamplerYcbcrConversionCreateInfo-format-01650."""
    chroma = COSITED_CHROMA_SAMPLES | MIDPOINT_CHROMA_SAMPLES
    yield format_use(answers, value.format, chroma, "sampler YCbCr conversion")


def push_constant_range(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """The end of a range: VUID-VkPushConstantRange-offset-00294 and -size-00298."""
    yield limit(answers, LIMITS, "maxPushConstantsSize", value.offset + value.size)


def descriptor_count(binding: Any) -> int:
    """VkDescriptorSetLayoutBinding::descriptorCount, or the number of immutable samplers if it is absent."""
    count = binding.descriptorCount
    return len(binding.pImmutableSamplers or ()) if count is None else count


_PUSH_DESCRIPTOR = 0x1
_UPDATE_AFTER_BIND = 0x1
_INLINE_UNIFORM_BLOCK = "VkPhysicalDeviceInlineUniformBlockFeatures"
_ACCELERATION_STRUCTURE = "VkPhysicalDeviceAccelerationStructureFeaturesKHR"

# VkDescriptorType, and the feature descriptorBinding*UpdateAfterBind of
# VUID-VkDescriptorSetLayoutBindingFlagsCreateInfo-descriptorBinding*UpdateAfterBind-03005 to -03010, -02211,
# -03570.
_AFTER_BIND = {
    "SAMPLER": (INDEXING, "SampledImage"),
    "COMBINED_IMAGE_SAMPLER": (INDEXING, "SampledImage"),
    "SAMPLED_IMAGE": (INDEXING, "SampledImage"),
    "STORAGE_IMAGE": (INDEXING, "StorageImage"),
    "UNIFORM_TEXEL_BUFFER": (INDEXING, "UniformTexelBuffer"),
    "STORAGE_TEXEL_BUFFER": (INDEXING, "StorageTexelBuffer"),
    "UNIFORM_BUFFER": (INDEXING, "UniformBuffer"),
    "STORAGE_BUFFER": (INDEXING, "StorageBuffer"),
    "INLINE_UNIFORM_BLOCK": (_INLINE_UNIFORM_BLOCK, "InlineUniformBlock"),
    "ACCELERATION_STRUCTURE_KHR": (_ACCELERATION_STRUCTURE, "AccelerationStructure"),
    "ACCELERATION_STRUCTURE_NV": (_ACCELERATION_STRUCTURE, "AccelerationStructure"),
}


@lru_cache(maxsize=1)
def _after_bind() -> dict[int, tuple[str, str]]:
    numbers = enum_numbers()
    return {numbers[f"VK_DESCRIPTOR_TYPE_{name}"]: each for name, each in _AFTER_BIND.items()}


def set_layout(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """Bindings updated after bind, and limits on push descriptors and inline uniform blocks."""
    bindings = value.pBindings or ()
    if value.flags & _PUSH_DESCRIPTOR:
        count = sum(map(descriptor_count, bindings))
        yield limit(answers, "VkPhysicalDevicePushDescriptorProperties", "maxPushDescriptors", count)
    inline = enum_numbers()["VK_DESCRIPTOR_TYPE_INLINE_UNIFORM_BLOCK"]
    for each in bindings:
        if each.descriptorType == inline:
            most = "VkPhysicalDeviceInlineUniformBlockProperties", "maxInlineUniformBlockSize"
            yield limit(answers, *most, descriptor_count(each))
    chain = chained(value, "VkDescriptorSetLayoutBindingFlagsCreateInfo")
    flags = chain.pBindingFlags or () if chain is not None else ()
    for binding, bits in zip(bindings, flags, strict=False):
        if bits & _UPDATE_AFTER_BIND and binding.descriptorType in _after_bind():
            struct, what = _after_bind()[binding.descriptorType]
            yield feature(answers, struct, f"descriptorBinding{what}UpdateAfterBind")


def render_pass(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """Formats of the attachments of a render pass, by their use in subpasses."""
    attachments = value.pAttachments or ()
    for subpass in value.pSubpasses or ():
        for index, features, use in _uses(subpass):
            if index == ATTACHMENT_UNUSED:
                continue
            if index >= len(attachments):
                # The document is broken, and a driver would read past its array.
                yield Malformed(f"attachment {index} of a render pass that has {len(attachments)}")
                return
            yield format_use(answers, attachments[index].format, features, use)


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


def rendering_formats(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """Attachment formats of dynamic rendering."""
    for each in value.pColorAttachmentFormats or ():
        yield format_use(answers, each, COLOR_ATTACHMENT, "color attachment")
    for each in (value.depthAttachmentFormat, value.stencilAttachmentFormat):
        yield format_use(answers, each, DEPTH_STENCIL_ATTACHMENT, "depth/stencil attachment")


def shading_rate_attachment(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """An attachment with shading rates: description of VkPhysicalDeviceFragmentShadingRateFeaturesKHR."""
    reference = value.pFragmentShadingRateAttachment
    if reference is not None and reference.attachment != ATTACHMENT_UNUSED:
        yield feature(answers, SHADING_RATE, "attachmentFragmentShadingRate")


_GRAPHICS = "VkGraphicsPipelineCreateInfo"
_COMPUTE, _RAY_TRACING = "VkComputePipelineCreateInfo", "VkRayTracingPipelineCreateInfoKHR"
# The stages that each kind of pipeline may have; cluster culling is one of the graphics stages.
_STAGES_OF_KIND = {
    _GRAPHICS: 0x1F | 0x40 | 0x80 | 0x8_0000,
    _COMPUTE: 0x20,
    _RAY_TRACING: 0x100 | 0x200 | 0x400 | 0x800 | 0x1000 | 0x2000,
}
# Those of any of them. A stage that is not known here is left to the registry, which names what it needs.
_STAGES_OF_KINDS = sum(_STAGES_OF_KIND.values())
_MESH_STAGES, _PRIMITIVE_STAGES = 0x40 | 0x80, 0x1 | 0x2 | 0x4 | 0x8


def wrong_stages(structure: str, stages: Sequence[int]) -> Malformed | None:
    """What is wrong with the stages of a pipeline; drivers index tables by them without a check."""
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


def discards(raster: Any | None, dynamic: DynamicStates) -> bool:
    """Whether a rasterization state lets no fragment through, whatever is set while drawing."""
    if raster is None or not raster.rasterizerDiscardEnable:
        return False
    return dynamic_state("RASTERIZER_DISCARD_ENABLE") not in dynamic


def specialization(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """Map entries lie within their data: VUID-VkSpecializationInfo-offset-00773 and -pMapEntries-00774."""
    size = len(value.pData or b"")
    for each in value.pMapEntries or ():
        if (end := each.offset + each.size) > size:
            yield Malformed(
                f"specialization constant {each.constantID} ends at byte {end} of data that has {size}"
            )


def pipeline_stages(_answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> Texts:
    """The stages of a compute or ray-tracing pipeline."""
    yield wrong_stages(type(value).__name__, [each.stage for each in stages_of(value)])


# Arrays that may be null with a nonzero count only where dynamic states replace them: the array, its count,
# and groups of dynamic states, one of each of which must be on.
# VUID-VkGraphicsPipelineCreateInfo-pDynamicStates-04130, -04131 and -01715,
# VUID-VkPipelineColorBlendStateCreateInfo-pAttachments-07353,
# VUID-VkPipelineColorWriteCreateInfoEXT-pColorWriteEnables-parameter,
# VUID-VkPipelineCoverageModulationStateCreateInfoNV-coverageModulationTableEnable-01405.
_REPLACED_ARRAYS: dict[str, tuple[tuple[str, str, tuple[str, ...]], ...]] = {
    "VkPipelineViewportStateCreateInfo": (
        ("pViewports", "viewportCount", ("VIEWPORT VIEWPORT_WITH_COUNT",)),
        ("pScissors", "scissorCount", ("SCISSOR SCISSOR_WITH_COUNT",)),
    ),
    "VkPipelineViewportWScalingStateCreateInfoNV": (
        ("pViewportWScalings", "viewportCount", ("VIEWPORT_W_SCALING_NV",)),
    ),
    "VkPipelineColorBlendStateCreateInfo": (
        (
            "pAttachments",
            "attachmentCount",
            ("COLOR_BLEND_ENABLE_EXT", "COLOR_BLEND_EQUATION_EXT", "COLOR_WRITE_MASK_EXT"),
        ),
    ),
    "VkPipelineColorWriteCreateInfoEXT": (
        ("pColorWriteEnables", "attachmentCount", ("COLOR_WRITE_ENABLE_EXT",)),
    ),
    "VkPipelineDiscardRectangleStateCreateInfoEXT": (
        ("pDiscardRectangles", "discardRectangleCount", ("DISCARD_RECTANGLE_EXT",)),
    ),
    "VkPipelineCoverageModulationStateCreateInfoNV": (
        ("pCoverageModulationTable", "coverageModulationTableCount", ("COVERAGE_MODULATION_TABLE_NV",)),
    ),
}


def replaced_arrays(_answers: DeviceAnswers, value: Any, dynamic: DynamicStates) -> Texts:
    """Null arrays of `_REPLACED_ARRAYS` that no dynamic state replaces."""
    if not getattr(value, "coverageModulationTableEnable", True):
        return
    for array, count, groups in _REPLACED_ARRAYS[type(value).__name__]:
        if not getattr(value, count) or getattr(value, array) is not None:
            continue
        if not all(any(dynamic_state(each) in dynamic for each in group.split()) for group in groups):
            yield Malformed(
                f"{type(value).__name__}::{count} is {getattr(value, count)}, but {array} is missing, "
                "and no dynamic state replaces it"
            )


CONTEXTS: dict[str, Context] = {
    **dict.fromkeys(_REPLACED_ARRAYS, replaced_arrays),
    _GRAPHICS: graphics_pipeline,
    _COMPUTE: pipeline_stages,
    _RAY_TRACING: pipeline_stages,
    "VkSpecializationInfo": specialization,
    "VkPipelineInputAssemblyStateCreateInfo": input_assembly,
    "VkPipelineVertexInputStateCreateInfo": vertex_input,
    "VkPipelineViewportStateCreateInfo": viewports,
    "VkPipelineColorBlendStateCreateInfo": color_blend,
    "VkPipelineColorWriteCreateInfoEXT": color_write,
    "VkPipelineRasterizationLineStateCreateInfo": line_stipple,
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
