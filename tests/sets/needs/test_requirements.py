"""Unit tests of what a device lacks: structures, formats, and rules over several members."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.registry import registry
from orchestrator.sets.image.documents import TABLES, WORD_ARRAYS, chain_members, struct_type
from orchestrator.sets.needs.context import dynamic_state, first, rendering_formats
from orchestrator.sets.needs.requirements import Malformed, RequirementChecker
from orchestrator.sets.needs.rules import DeviceAnswers
from tests.sets.needs.fake_capabilities import ALL_FORMAT_FEATURES, Bare, Everything, chain, make, version

BASE = "VkPhysicalDeviceFeatures"
LIMITS = "VkPhysicalDeviceLimits"
D24S8 = 129
R8 = 9


def missing(value: Any, device: Bare | None = None) -> str | None:
    return RequirementChecker(device or Bare()).structure(value)


def graphics(*dynamic: int, **members: Any) -> Any:
    state = make("VkPipelineDynamicStateCreateInfo", pDynamicStates=list(dynamic)) if dynamic else None
    return make("VkGraphicsPipelineCreateInfo", renderPass=1, pDynamicState=state, **members)


def raster(**members: Any) -> Any:
    return make("VkPipelineRasterizationStateCreateInfo", **{"lineWidth": 1.0, **members})


def without(*names: str, **members: Any) -> Everything:
    return Everything(without=frozenset(names), **members)


def test_structure_of_a_version_or_an_extension() -> None:
    value = raster(pNext=[chain("VkPipelineRasterizationLineStateCreateInfo")])
    text = missing(value)
    assert text is not None
    assert "Vulkan 1.4" in text
    assert "extension VK_EXT_line_rasterization" in text
    assert missing(value, Bare(api_version=version(1, 4))) is None
    assert missing(value, Bare(extensions=frozenset({"VK_EXT_line_rasterization"}))) is None


def test_enum_value_names_what_provides_it() -> None:
    attachment = make("VkPipelineColorBlendAttachmentState", colorBlendOp=1000148000)
    value = make("VkPipelineColorBlendStateCreateInfo", pAttachments=[attachment])
    assert missing(value) == "extension VK_EXT_blend_operation_advanced"
    assert missing(value, Bare(extensions=frozenset({"VK_EXT_blend_operation_advanced"}))) is None


def test_flag_bits_are_asked_for_one_by_one() -> None:
    value = make("VkComputePipelineCreateInfo", flags=0x1 | 0x40, layout=1)
    assert missing(value) == "extension VK_KHR_pipeline_executable_properties"
    assert missing(make("VkComputePipelineCreateInfo", flags=0x1)) is None


def test_values_that_do_not_exist_are_not_handed_on() -> None:
    assert missing(raster(polygonMode=7), Everything()) == (
        f"VkPolygonMode 7, unknown to registry {registry().version}"
    )
    text = missing(make("VkSamplerCreateInfo", flags=0x8000_0000), Everything())
    assert text == f"VkSamplerCreateFlags bit 0x80000000, unknown to registry {registry().version}"


_GARBAGE = 0xCDCDCDCD
_OFF = [
    ("pColorBlendState", {"logicOp": _GARBAGE}, "logicOpEnable", None),
    ("pDepthStencilState", {"depthCompareOp": _GARBAGE}, "depthTestEnable", "DEPTH_COMPARE_OP"),
    ("pInputAssemblyState", {"topology": _GARBAGE}, "", "PRIMITIVE_TOPOLOGY"),
    ("pRasterizationState", {"frontFace": _GARBAGE}, "", "FRONT_FACE"),
    ("pRasterizationState", {"cullMode": 0xFF}, "", "CULL_MODE"),
    ("pColorBlendState", {"pAttachments": [{"srcColorBlendFactor": _GARBAGE}]}, "blendEnable", None),
    ("pDepthStencilState", {"front": {"failOp": _GARBAGE}}, "stencilTestEnable", "STENCIL_OP"),
]


@pytest.mark.parametrize(("state", "members", "switch", "dynamic"), _OFF)
def test_what_drivers_ignore_may_hold_any_number(
    state: str, members: dict[str, Any], switch: str, dynamic: str | None
) -> None:
    """Applications leave what is off, or set while drawing, as the memory was; RADV and lavapipe take it."""
    struct = registry().struct("VkGraphicsPipelineCreateInfo").member(state).type

    def checked(*numbers: int, **on: int) -> str | None:
        inner = {"srcColorBlendFactor", "blendEnable"}
        given = {**members, **{name: value for name, value in on.items() if name not in inner}}
        if "pAttachments" in given:
            attachment = members["pAttachments"][0] | on
            given["pAttachments"] = [make("VkPipelineColorBlendAttachmentState", **attachment)]
        if "front" in given:
            given["front"] = make("VkStencilOpState", **given["front"])
        return missing(graphics(*numbers, **{state: make(struct, **given)}), Everything())

    on = {switch: 1} if switch else {}
    assert "unknown to registry" in str(checked(**on))
    if switch:
        assert checked() is None
    if dynamic is not None:
        assert checked(dynamic_state(dynamic), **on) is None


def test_a_library_has_only_the_state_of_its_part() -> None:
    garbage = make("VkPipelineInputAssemblyStateCreateInfo", topology=_GARBAGE)
    for flags, is_read in ((0x1, True), (0x2, False), (0x8, False), (0x9, True)):
        part = chain("VkGraphicsPipelineLibraryCreateInfoEXT", flags=flags)
        assert (missing(graphics(pInputAssemblyState=garbage, pNext=[part]), Everything()) is None) != is_read


def test_feature_counts_under_the_name_of_a_core_version_and_of_an_extension() -> None:
    value = make(
        "VkDescriptorSetLayoutCreateInfo",
        pBindings=[make("VkDescriptorSetLayoutBinding", descriptorType=1)],
        pNext=[chain("VkDescriptorSetLayoutBindingFlagsCreateInfo", pBindingFlags=[4])],
    )
    member = "descriptorBindingPartiallyBound"
    text = f"feature VkPhysicalDeviceDescriptorIndexingFeatures::{member}"
    assert missing(value, Bare(api_version=version(1, 2))) == text
    for struct in ("VkPhysicalDeviceVulkan12Features", "VkPhysicalDeviceDescriptorIndexingFeatures"):
        device = Bare(api_version=version(1, 2), features=frozenset({(struct, member)}))
        assert missing(value, device) is None


def test_same_member_of_two_extensions_is_two_features() -> None:
    device = Bare(
        extensions=frozenset({"VK_NV_mesh_shader"}),
        features=frozenset({("VkPhysicalDeviceMeshShaderFeaturesNV", "taskShader")}),
    )
    mesh = make("VkPipelineShaderStageCreateInfo", stage=0x80)
    task = make("VkPipelineShaderStageCreateInfo", stage=0x40)
    assert missing(task, device) is None
    assert missing(mesh, device) == (
        "feature VkPhysicalDeviceMeshShaderFeaturesEXT::meshShader"
        " or feature VkPhysicalDeviceMeshShaderFeaturesNV::meshShader"
    )


def test_dynamic_state_takes_the_place_of_a_member() -> None:
    state = raster(polygonMode=1)
    device = without("fillModeNonSolid")
    assert missing(graphics(pRasterizationState=state), device) == f"feature {BASE}::fillModeNonSolid"
    assert missing(graphics(1000455004, pRasterizationState=state), device) is None


def test_dynamic_states_need_their_own_feature_only() -> None:
    # The depth bounds test may be left dynamic on a device that cannot enable it.
    assert missing(graphics(1000267009), without("depthBounds")) is None
    assert missing(graphics(1000455004), without("extendedDynamicState3PolygonMode")) == (
        "feature VkPhysicalDeviceExtendedDynamicState3FeaturesEXT::extendedDynamicState3PolygonMode"
    )
    old = Bare(extensions=frozenset({"VK_EXT_extended_dynamic_state"}))
    assert missing(graphics(1000267000), old) == (
        "feature VkPhysicalDeviceExtendedDynamicStateFeaturesEXT::extendedDynamicState"
    )
    assert missing(graphics(1000267000), Bare(api_version=version(1, 3))) is None


def test_depth_bias_clamp_where_it_is_used() -> None:
    state = raster(depthBiasEnable=1, depthBiasClamp=0.5)
    device = without("depthBiasClamp")
    assert missing(graphics(pRasterizationState=state), device) == f"feature {BASE}::depthBiasClamp"
    assert missing(graphics(3, pRasterizationState=state), device) is None
    assert missing(graphics(pRasterizationState=raster(depthBiasClamp=0.5)), device) is None


@pytest.mark.parametrize(
    ("topology", "mode", "width", "dynamic", "lacks"),
    [
        (3, 0, 0.0, (), False),
        (1, 0, 2.0, (), True),
        (2, 0, 0.0, (), True),
        (3, 1, 2.0, (), True),
        (1, 0, 1.0, (), False),
        (1, 0, 2.0, (2,), False),
    ],
)
def test_line_width_where_lines_are_drawn(
    topology: int, mode: int, width: float, dynamic: tuple[int, ...], lacks: bool
) -> None:
    value = graphics(
        *dynamic,
        pRasterizationState=raster(polygonMode=mode, lineWidth=width),
        pInputAssemblyState=make("VkPipelineInputAssemblyStateCreateInfo", topology=topology),
    )
    assert missing(value, without("wideLines")) == (f"feature {BASE}::wideLines" if lacks else None)


def test_state_that_rasterizer_discard_ignores() -> None:
    blend = make("VkPipelineColorBlendStateCreateInfo", logicOpEnable=1)
    device = without("logicOp")
    discard = raster(rasterizerDiscardEnable=1)
    assert missing(graphics(pColorBlendState=blend, pRasterizationState=raster()), device) is not None
    assert missing(graphics(pColorBlendState=blend, pRasterizationState=discard), device) is None
    assert (
        missing(graphics(1000377001, pColorBlendState=blend, pRasterizationState=discard), device) is not None
    )


def test_vertex_state_that_mesh_stages_ignore() -> None:
    assembly = make("VkPipelineInputAssemblyStateCreateInfo", topology=10)
    device = without("tessellationShader")
    mesh = make("VkPipelineShaderStageCreateInfo", stage=0x80)
    assert missing(graphics(pInputAssemblyState=assembly), device) == f"feature {BASE}::tessellationShader"
    state = raster(rasterizerDiscardEnable=1)
    meshes = graphics(pInputAssemblyState=assembly, pStages=[mesh], pRasterizationState=state)
    assert missing(meshes, device) is None


def test_attachments_that_differ() -> None:
    one = make("VkPipelineColorBlendAttachmentState", colorWriteMask=15)
    other = make("VkPipelineColorBlendAttachmentState", colorWriteMask=7)
    same = make("VkPipelineColorBlendStateCreateInfo", pAttachments=[one, one])
    differ = make("VkPipelineColorBlendStateCreateInfo", pAttachments=[one, other])
    device = without("independentBlend")
    assert missing(same, device) is None
    assert missing(differ, device) == f"feature {BASE}::independentBlend"
    assert missing(graphics(1000455010, 1000455011, 1000455012, pColorBlendState=differ), device) is None


def test_more_than_one_viewport() -> None:
    def several(count: int) -> Any:
        arrays = {"pViewports": [make("VkViewport")] * count, "pScissors": [make("VkRect2D")] * count}
        return make("VkPipelineViewportStateCreateInfo", viewportCount=count, scissorCount=count, **arrays)

    one, two = several(1), several(2)
    device = without("multiViewport")
    assert missing(one, device) is None
    assert missing(two, device) == f"feature {BASE}::multiViewport"
    assert missing(graphics(1000267003, 1000267004, pViewportState=two), device) is None
    implied = make("VkPipelineViewportStateCreateInfo", pScissors=[make("VkRect2D"), make("VkRect2D")])
    assert missing(implied, device) == f"feature {BASE}::multiViewport"
    few = Everything(properties={("VkPhysicalDeviceLimits", "maxViewports"): 1})
    assert missing(two, few) == "property VkPhysicalDeviceLimits::maxViewports 1 < 2"


def test_primitive_restart_of_lists() -> None:
    def restart(topology: int) -> Any:
        return make("VkPipelineInputAssemblyStateCreateInfo", topology=topology, primitiveRestartEnable=1)

    struct = "VkPhysicalDevicePrimitiveTopologyListRestartFeaturesEXT"
    device = without("primitiveTopologyListRestart", "primitiveTopologyPatchListRestart")
    assert missing(restart(3), device) == f"feature {struct}::primitiveTopologyListRestart"
    assert missing(restart(10), device) == f"feature {struct}::primitiveTopologyPatchListRestart"
    assert missing(restart(4), device) is None
    assert missing(graphics(1000377004, pInputAssemblyState=restart(3)), device) is None


def test_stippled_lines_by_mode() -> None:
    def stippled(mode: int) -> Any:
        return chain(
            "VkPipelineRasterizationLineStateCreateInfo", lineRasterizationMode=mode, stippledLineEnable=1
        )

    for mode, member in (
        (1, "stippledRectangularLines"),
        (2, "stippledBresenhamLines"),
        (3, "stippledSmoothLines"),
    ):
        text = f"feature VkPhysicalDeviceLineRasterizationFeatures::{member}"
        assert missing(stippled(mode), without(member)) == text
        assert missing(stippled(mode), Everything()) is None
    assert missing(stippled(0), without("stippledRectangularLines")) is not None


def test_fragment_shading_rate() -> None:
    struct = "VkPhysicalDeviceFragmentShadingRateFeaturesKHR"

    def rate(width: int, *operators: int) -> Any:
        size = make("VkExtent2D", width=width, height=1)
        chained = chain(
            "VkPipelineFragmentShadingRateStateCreateInfoKHR", fragmentSize=size, combinerOps=list(operators)
        )
        return graphics(pNext=[chained])

    assert missing(rate(1, 0, 0), without("pipelineFragmentShadingRate")) is None
    assert missing(rate(2, 0, 0), without("pipelineFragmentShadingRate")) == (
        f"feature {struct}::pipelineFragmentShadingRate"
    )
    assert missing(rate(1, 1, 0), without("primitiveFragmentShadingRate")) == (
        f"feature {struct}::primitiveFragmentShadingRate"
    )
    assert missing(rate(1, 0, 1), without("attachmentFragmentShadingRate")) == (
        f"feature {struct}::attachmentFragmentShadingRate"
    )


def test_shading_rate_attachment() -> None:
    def attached(**members: Any) -> Any:
        reference = make("VkAttachmentReference2", **members)
        return chain("VkFragmentShadingRateAttachmentInfoKHR", pFragmentShadingRateAttachment=reference)

    device = without("attachmentFragmentShadingRate")
    text = "feature VkPhysicalDeviceFragmentShadingRateFeaturesKHR::attachmentFragmentShadingRate"
    assert missing(attached(attachment=0), device) == text
    assert missing(attached(attachment=0xFFFF_FFFF), device) is None
    assert missing(chain("VkFragmentShadingRateAttachmentInfoKHR"), device) is None


def test_dynamic_rendering_without_a_render_pass() -> None:
    device = without("dynamicRendering")
    text = "feature VkPhysicalDeviceDynamicRenderingFeatures::dynamicRendering"
    assert missing(make("VkGraphicsPipelineCreateInfo"), device) == text
    assert missing(make("VkGraphicsPipelineCreateInfo", renderPass=1), device) is None
    vertex_only = chain("VkGraphicsPipelineLibraryCreateInfoEXT", flags=1)
    fragment = chain("VkGraphicsPipelineLibraryCreateInfoEXT", flags=4)
    assert missing(make("VkGraphicsPipelineCreateInfo", pNext=[vertex_only]), device) is None
    assert missing(make("VkGraphicsPipelineCreateInfo", pNext=[fragment]), device) == text


def test_multiview_with_other_stages() -> None:
    geometry = make("VkPipelineShaderStageCreateInfo", stage=8)
    rendering = chain("VkPipelineRenderingCreateInfo", viewMask=3)
    text = "feature VkPhysicalDeviceMultiviewFeatures::multiviewGeometryShader"
    value = make("VkGraphicsPipelineCreateInfo", pNext=[rendering], pStages=[geometry])
    assert missing(value, without("multiviewGeometryShader")) == text
    few = Everything(properties={("VkPhysicalDeviceMultiviewProperties", "maxMultiviewViewCount"): 1})
    assert missing(value, few) == "property VkPhysicalDeviceMultiviewProperties::maxMultiviewViewCount 1 < 2"

    checker = RequirementChecker(without("multiviewGeometryShader"))
    pipeline = graphics(pStages=[geometry])
    second = make("VkSubpassDescription2", viewMask=1)
    assert checker.in_render_pass(pipeline, make("VkRenderPassCreateInfo2", pSubpasses=[second])) == text
    masks = chain("VkRenderPassMultiviewCreateInfo", pViewMasks=[1])
    first = make("VkRenderPassCreateInfo", pSubpasses=[make("VkSubpassDescription")], pNext=[masks])
    assert checker.in_render_pass(pipeline, first) == text
    plain = make("VkRenderPassCreateInfo", pSubpasses=[make("VkSubpassDescription")])
    assert checker.in_render_pass(pipeline, plain) is None
    none = make("VkRenderPassCreateInfo", pSubpasses=[])
    assert checker.in_render_pass(pipeline, none) == "subpass 0 of a render pass that has 0"


def subpass_with(member: str, attachment: int = 0) -> Any:
    reference = make("VkAttachmentReference", attachment=attachment, layout=1000001002)
    return make(
        "VkSubpassDescription",
        **{member: reference if member == "pDepthStencilAttachment" else [reference]},
    )


@pytest.mark.parametrize(
    ("member", "use", "needs"),
    [
        ("pColorAttachments", "color attachment", 0x80),
        ("pResolveAttachments", "resolve attachment", 0x80),
        ("pDepthStencilAttachment", "depth/stencil attachment", 0x200),
        ("pInputAttachments", "input attachment", 0x80),
        ("pInputAttachments", "input attachment", 0x200),
    ],
)
def test_attachment_formats_by_use(member: str, use: str, needs: int) -> None:
    attachment = make("VkAttachmentDescription", format=D24S8, samples=1)
    value = make("VkRenderPassCreateInfo", pAttachments=[attachment], pSubpasses=[subpass_with(member)])
    text = f"format VK_FORMAT_D24_UNORM_S8_UINT as {use}"
    lacks = Bare(formats={D24S8: (0, ~0x280 & 0xFFFF_FFFF, 0xFFFF_FFFF)})
    assert missing(value, lacks) == text
    for tilings in ((needs, 0, 0), (0, needs, 0)):
        assert missing(value, Bare(formats={D24S8: tilings})) is None


def test_attachments_that_no_subpass_uses_need_nothing() -> None:
    attachment = make("VkAttachmentDescription", format=D24S8)
    lacks = Bare(formats={D24S8: (0, 0, 0)})
    unused = make(
        "VkRenderPassCreateInfo",
        pAttachments=[attachment],
        pSubpasses=[subpass_with("pColorAttachments", 0xFFFF_FFFF)],
    )
    assert missing(unused, lacks) is None
    undefined = make(
        "VkRenderPassCreateInfo",
        pAttachments=[make("VkAttachmentDescription")],
        pSubpasses=[subpass_with("pColorAttachments")],
    )
    assert missing(undefined, lacks) is None


def test_attachment_out_of_range_is_not_handed_on() -> None:
    value = make("VkRenderPassCreateInfo", pSubpasses=[subpass_with("pColorAttachments", 3)])
    text = missing(value, Everything())
    assert text == "attachment 3 of a render pass that has 0"
    assert isinstance(text, Malformed)
    assert not isinstance(missing(raster(polygonMode=1)), Malformed)


def test_depth_resolve_format() -> None:
    reference = make("VkAttachmentReference2")
    resolve = chain("VkSubpassDescriptionDepthStencilResolve", pDepthStencilResolveAttachment=reference)
    value = make(
        "VkRenderPassCreateInfo2",
        pAttachments=[make("VkAttachmentDescription2", format=D24S8)],
        pSubpasses=[make("VkSubpassDescription2", pNext=[resolve])],
    )
    lacks = Everything(formats={D24S8: (0, 0x80, 0)})
    text = "format VK_FORMAT_D24_UNORM_S8_UINT as depth/stencil resolve attachment"
    assert missing(value, lacks) == text


def test_rendering_formats() -> None:
    value = chain(
        "VkPipelineRenderingCreateInfo", pColorAttachmentFormats=[0, R8], depthAttachmentFormat=D24S8
    )
    lacks = Everything(formats={R8: (0, 0x200, 0)})
    assert missing(value, lacks) == "format VK_FORMAT_R8_UNORM as color attachment"
    checker = RequirementChecker(Everything(formats={D24S8: (0, 0x80, 0)}))
    text = "format VK_FORMAT_D24_UNORM_S8_UINT as depth/stencil attachment"
    assert checker.structure(value) == text
    assert checker.structure(make("VkGraphicsPipelineCreateInfo", pNext=[value])) == text


def test_driver_is_asked_about_formats_that_it_may_know_only() -> None:
    asked: list[int] = []

    class Recording(Bare):
        def format_features(self, format_number: int) -> tuple[int, int, int]:
            asked.append(format_number)
            return ALL_FORMAT_FEATURES

    four_four = 1000340000
    answers = DeviceAnswers(Recording())

    def lacking(*formats: int) -> str | None:
        value = chain("VkPipelineRenderingCreateInfo", pColorAttachmentFormats=list(formats))
        return first(rendering_formats(answers, value, frozenset()))

    assert lacking(0x7FFF_FFFF, four_four, R8) == "format VkFormat 2147483647 as color attachment"
    assert lacking(four_four) == "format VK_FORMAT_A4R4G4B4_UNORM_PACK16 as color attachment"
    assert lacking(R8, R8) is None
    assert asked == [R8]


def test_formats_of_dynamic_rendering_are_ignored_in_a_render_pass() -> None:
    device = Bare(
        features=frozenset({("VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")}),
        extensions=frozenset({"VK_KHR_dynamic_rendering"}),
        formats={D24S8: (0, 0, 0)},
    )
    rendering = chain("VkPipelineRenderingCreateInfo", depthAttachmentFormat=D24S8)
    assert missing(graphics(pNext=[rendering]), device) is None
    outside = make("VkGraphicsPipelineCreateInfo", pNext=[rendering])
    assert missing(outside, device) == "format VK_FORMAT_D24_UNORM_S8_UINT as depth/stencil attachment"


def test_aspects_of_attachments_that_nothing_reads() -> None:
    assert missing(make("VkAttachmentReference2", aspectMask=0xDEAD_BEEF), Everything()) is None


def test_vertex_formats() -> None:
    attribute = make("VkVertexInputAttributeDescription", format=R8)
    value = make("VkPipelineVertexInputStateCreateInfo", pVertexAttributeDescriptions=[attribute])
    lacks = Everything(formats={R8: (0xFFFF_FFFF, 0xFFFF_FFFF, 0)})
    assert missing(value, lacks) == "format VK_FORMAT_R8_UNORM as vertex attribute"
    assert missing(graphics(1000352000, pVertexInputState=value), lacks) is None
    assert missing(value, Everything(formats={R8: (0, 0, 0x40)})) is None


def test_push_constants_to_their_end() -> None:
    limits = {("VkPhysicalDeviceLimits", "maxPushConstantsSize"): 128}
    fits = make("VkPushConstantRange", stageFlags=0x7FFF_FFFF, offset=64, size=64)
    over = make("VkPushConstantRange", offset=128, size=128)
    assert (
        missing(make("VkPipelineLayoutCreateInfo", pPushConstantRanges=[fits]), Bare(properties=limits))
        is None
    )
    assert missing(
        make("VkPipelineLayoutCreateInfo", pPushConstantRanges=[over]), Bare(properties=limits)
    ) == ("property VkPhysicalDeviceLimits::maxPushConstantsSize 128 < 256")


def test_ycbcr_formats() -> None:
    two_planes = 1000156003
    conversion = chain("VkSamplerYcbcrConversionCreateInfo", format=two_planes)
    value = make("VkSamplerCreateInfo", pNext=[conversion])
    lacks = Everything(formats={two_planes: (0, 1, 0)})
    assert missing(value, lacks) == ("format VK_FORMAT_G8_B8R8_2PLANE_420_UNORM as sampler YCbCr conversion")
    assert missing(value, Everything(formats={two_planes: (0, 0x20000, 0)})) is None


def test_update_after_bind_by_descriptor_type() -> None:
    def layout(kind: int) -> Any:
        return make(
            "VkDescriptorSetLayoutCreateInfo",
            pBindings=[make("VkDescriptorSetLayoutBinding", descriptorType=kind)],
            pNext=[chain("VkDescriptorSetLayoutBindingFlagsCreateInfo", pBindingFlags=[1])],
        )

    struct = "VkPhysicalDeviceDescriptorIndexingFeatures"
    member = "descriptorBindingStorageBufferUpdateAfterBind"
    assert missing(layout(7), without(member)) == f"feature {struct}::{member}"
    assert missing(layout(6), without(member)) is None
    member = "descriptorBindingAccelerationStructureUpdateAfterBind"
    assert missing(layout(1000150000), without(member)) == (
        f"feature VkPhysicalDeviceAccelerationStructureFeaturesKHR::{member}"
    )


def test_push_descriptors_and_inline_blocks_are_bounded() -> None:
    binding = make("VkDescriptorSetLayoutBinding", descriptorType=6, descriptorCount=33)
    push = make("VkDescriptorSetLayoutCreateInfo", flags=1, pBindings=[binding])
    few = {("VkPhysicalDevicePushDescriptorProperties", "maxPushDescriptors"): 32}
    assert missing(push, Everything(properties=few)) == (
        "property VkPhysicalDevicePushDescriptorProperties::maxPushDescriptors 32 < 33"
    )
    block = make("VkDescriptorSetLayoutBinding", descriptorType=1000138000, descriptorCount=512)
    inline = make("VkDescriptorSetLayoutCreateInfo", pBindings=[block])
    small = {("VkPhysicalDeviceVulkan13Properties", "maxInlineUniformBlockSize"): 256}
    assert missing(inline, Everything(properties=small)) == (
        "property VkPhysicalDeviceInlineUniformBlockProperties::maxInlineUniformBlockSize 256 < 512"
    )


def test_types_in_mutable_descriptor_lists() -> None:
    lists = chain("VkMutableDescriptorTypeCreateInfoEXT", pMutableDescriptorTypeLists=[[6], [7, 1000150000]])
    value = make("VkDescriptorSetLayoutCreateInfo", pNext=[lists])
    assert (
        missing(value, without("VK_KHR_acceleration_structure")) == "extension VK_KHR_acceleration_structure"
    )
    assert missing(value, Everything()) is None


def test_required_subgroup_size() -> None:
    chained = chain("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=16)
    value = make("VkPipelineShaderStageCreateInfo", stage=0x20, pNext=[chained])
    struct = "VkPhysicalDeviceSubgroupSizeControlProperties"

    def device(least: int, most: int, stages: int) -> Everything:
        names = ("minSubgroupSize", "maxSubgroupSize", "requiredSubgroupSizeStages")
        return Everything(
            properties={(struct, name): each for name, each in zip(names, (least, most, stages), strict=True)}
        )

    assert missing(value, device(8, 32, 0x20)) is None
    odd = chain("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", requiredSubgroupSize=12)
    text = missing(make("VkPipelineShaderStageCreateInfo", stage=0x20, pNext=[odd]), device(8, 32, 0x20))
    assert text == "requiredSubgroupSize 12 is no power of two"
    assert missing(value, device(32, 64, 0x20)) == f"property {struct}::minSubgroupSize 32 > 16"
    assert missing(value, device(4, 8, 0x20)) == f"property {struct}::maxSubgroupSize 8 < 16"
    assert (
        missing(value, device(8, 32, 0x10))
        == f"property {struct}::requiredSubgroupSizeStages without stage 0x20"
    )


def test_masks_that_nothing_compiles_need_nothing() -> None:
    binding = make("VkDescriptorSetLayoutBinding", stageFlags=0x100 | 0x40)
    assert missing(make("VkDescriptorSetLayoutCreateInfo", pBindings=[binding])) is None
    dependency = make("VkSubpassDependency", srcStageMask=0x0200_0000)
    attachment = make("VkAttachmentDescription", finalLayout=1000001002)
    value = make("VkRenderPassCreateInfo", pDependencies=[dependency], pAttachments=[attachment])
    assert missing(value) is None


def every_structure() -> list[tuple[str, bool]]:
    """Every structure that a document can hold, and whether it stands in a chain there."""
    pending = [(name, False) for forms in TABLES.values() for _, name in forms]
    found: dict[tuple[str, bool], None] = {}
    while pending:
        name, chained = pending.pop()
        if (name, chained) in found:
            continue
        found[name, chained] = None
        members = registry().struct(name).members
        pending += [(each.type, False) for each in members if each.category in ("struct", "union")]
        pending += [] if chained else [(each.name, True) for each in chain_members(name)]
    return sorted(found)


@pytest.mark.parametrize(("name", "chained"), every_structure())
def test_every_structure_of_a_document_can_be_checked(name: str, chained: bool) -> None:
    value = struct_type(name, chained=chained)()
    for (struct, member), words in WORD_ARRAYS.items():
        if struct == name:
            setattr(value, member, [1] * words)
    assert RequirementChecker(Everything()).structure(value) is None, "it has what any of them needs"
    text = RequirementChecker(Bare()).structure(value)
    if text is None:
        assert not chained, "Vulkan 1.0 has no structure that stands in a chain"
        return
    assert not isinstance(text, Malformed)
    extensions = re.findall(r"extension (\w+)", text)
    features = re.findall(r"feature (\w+)::(\w+)", text)
    versions = [int(minor) for minor in re.findall(r"Vulkan 1\.(\d)", text)]
    assert extensions or features or versions
    assert all(each in registry().extensions for each in extensions)
    for struct, member in features:
        assert member in {each.name for each in registry().struct(struct).members}
    # What it names helps: with it, it is not what is missing any more.
    given = Bare(
        api_version=version(1, max(versions, default=0)),
        extensions=frozenset(extensions),
        features=frozenset(features),
    )
    assert RequirementChecker(given).structure(value) != text
