"""Tables of the features and limits that captured state needs, and `DeviceAnswers` about a device.

The tables hold what the registry's data does not: which value of which member needs which feature, and which
member a limit bounds, each row with its valid usage statement. All names are the registry's (a test proves
it). `DeviceAnswers` has the only rules about aliases and promotion.

Guarantees: answers never change. Thread-safe: dictionaries only grow, and any thread would compute the same
values.
Assumptions: absent members are zero, as in a decoded document, so a rule on zero is stated only for members
that are always recorded. DeviceCapabilities is pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

import msgspec

from orchestrator.devices.device import DeviceCapabilities
from orchestrator.devices.request import Feature
from orchestrator.registry import expressions, registry
from orchestrator.registry.tables import Enable, Enabled, same_members

BASE = "VkPhysicalDeviceFeatures"
LIMITS = "VkPhysicalDeviceLimits"
VULKAN_12 = "VkPhysicalDeviceVulkan12Features"
LINES = "VkPhysicalDeviceLineRasterizationFeatures"
INDEXING = "VkPhysicalDeviceDescriptorIndexingFeatures"
DIVISORS = "VkPhysicalDeviceVertexAttributeDivisorFeatures"
ORDER = "VkPhysicalDeviceRasterizationOrderAttachmentAccessFeaturesEXT"
ROBUSTNESS = "VkPhysicalDevicePipelineRobustnessFeatures"
RAY_TRACING = "VkPhysicalDeviceRayTracingPipelineFeaturesKHR"
DYNAMIC_3 = "VkPhysicalDeviceExtendedDynamicState3FeaturesEXT"
SHADING_RATE = "VkPhysicalDeviceFragmentShadingRateFeaturesKHR"
SHADING_RATE_ENUMS = "VkPhysicalDeviceFragmentShadingRateEnumsFeaturesNV"

_RASTER = "VkPipelineRasterizationStateCreateInfo"
_MULTISAMPLE = "VkPipelineMultisampleStateCreateInfo"
_DEPTH = "VkPipelineDepthStencilStateCreateInfo"
_BLEND = "VkPipelineColorBlendStateCreateInfo"
_BLEND_ATTACHMENT = "VkPipelineColorBlendAttachmentState"
_ASSEMBLY = "VkPipelineInputAssemblyStateCreateInfo"
_VIEWPORT = "VkPipelineViewportStateCreateInfo"
_LINE = "VkPipelineRasterizationLineStateCreateInfo"
_STAGE = "VkPipelineShaderStageCreateInfo"
_GRAPHICS = "VkGraphicsPipelineCreateInfo"
_RAYS = "VkRayTracingPipelineCreateInfoKHR"
_SAMPLER = "VkSamplerCreateInfo"
_SET = "VkDescriptorSetLayoutCreateInfo"
_BINDING = "VkDescriptorSetLayoutBinding"
_BINDING_FLAGS = "VkDescriptorSetLayoutBindingFlagsCreateInfo"
_DIVISOR = "VkVertexInputBindingDivisorDescription"
_ROBUSTNESS = "VkPipelineRobustnessCreateInfo"
_FLAGS_2 = "VkPipelineCreateFlags2CreateInfo"


class Rule(msgspec.Struct, frozen=True):
    """A value of a member that needs a feature."""

    struct: str  # the structure
    member: str  # its member; "" for any occurrence of the structure
    values: tuple[str, ...]  # enum values, or bits, of which one triggers the rule; () for any nonzero value
    features: tuple[Feature, ...]  # features of which one is needed
    # The valid usage statement, without "VUID-" and the structure's own name; or the feature in whose
    # description the specification says so.
    source: str
    otherwise: tuple[str, ...] = ()  # versions or extensions of which one replaces the feature
    dynamic: str = ""  # dynamic state under which the member is ignored, or ""
    # In place of `values`: whether a value of the member triggers the rule.
    test: Callable[[int], bool] | None = None


class Limit(msgspec.Struct, frozen=True):
    """A member that a property bounds."""

    struct: str  # the structure
    member: str  # its member; a list counts as its length
    property: Feature  # the property that holds the limit
    source: str  # as in `Rule`
    below: bool = False  # whether the value must be less, instead of at most equal
    dynamic: str = ""  # as in `Rule`


def _not_one(value: int) -> bool:
    return value != 1


def _zero(value: int) -> bool:
    return value == 0


_DUAL = (
    "VK_BLEND_FACTOR_SRC1_COLOR",
    "VK_BLEND_FACTOR_ONE_MINUS_SRC1_COLOR",
    "VK_BLEND_FACTOR_SRC1_ALPHA",
    "VK_BLEND_FACTOR_ONE_MINUS_SRC1_ALPHA",
)
_ADJACENCY = (
    "VK_PRIMITIVE_TOPOLOGY_LINE_LIST_WITH_ADJACENCY",
    "VK_PRIMITIVE_TOPOLOGY_LINE_STRIP_WITH_ADJACENCY",
    "VK_PRIMITIVE_TOPOLOGY_TRIANGLE_LIST_WITH_ADJACENCY",
    "VK_PRIMITIVE_TOPOLOGY_TRIANGLE_STRIP_WITH_ADJACENCY",
)
_TESSELLATION = ("VK_SHADER_STAGE_TESSELLATION_CONTROL_BIT", "VK_SHADER_STAGE_TESSELLATION_EVALUATION_BIT")
_RAY_STAGES = (
    "VK_SHADER_STAGE_RAYGEN_BIT_KHR",
    "VK_SHADER_STAGE_ANY_HIT_BIT_KHR",
    "VK_SHADER_STAGE_CLOSEST_HIT_BIT_KHR",
    "VK_SHADER_STAGE_MISS_BIT_KHR",
    "VK_SHADER_STAGE_INTERSECTION_BIT_KHR",
    "VK_SHADER_STAGE_CALLABLE_BIT_KHR",
)
_MESH = (
    ("VkPhysicalDeviceMeshShaderFeaturesEXT", "meshShader"),
    ("VkPhysicalDeviceMeshShaderFeaturesNV", "meshShader"),
)
_TASK = (
    ("VkPhysicalDeviceMeshShaderFeaturesEXT", "taskShader"),
    ("VkPhysicalDeviceMeshShaderFeaturesNV", "taskShader"),
)
_CUSTOM_COLORS = ("VK_BORDER_COLOR_FLOAT_CUSTOM_EXT", "VK_BORDER_COLOR_INT_CUSTOM_EXT")
_FEEDBACK_LOOP = (
    ("VkPhysicalDeviceAttachmentFeedbackLoopLayoutFeaturesEXT", "attachmentFeedbackLoopLayout"),
)
_PROTECTED = (("VkPhysicalDevicePipelineProtectedAccessFeatures", "pipelineProtectedAccess"),)
_LIBRARIES = (("VkPhysicalDeviceGraphicsPipelineLibraryFeaturesEXT", "graphicsPipelineLibrary"),)
_MUTABLE = (("VkPhysicalDeviceMutableDescriptorTypeFeaturesEXT", "mutableDescriptorType"),)
_DESCRIPTOR_BUFFER = (("VkPhysicalDeviceDescriptorBufferFeaturesEXT", "descriptorBuffer"),)
_CULLING = ((RAY_TRACING, "rayTraversalPrimitiveCulling"),)
_SUBGROUP_SIZE = (("VkPhysicalDeviceSubgroupSizeControlFeatures", "subgroupSizeControl"),)

# One rule a line, and on a second where names are long: the table is read and searched by structure.
# fmt: off
_PLAIN_RULES: tuple[Rule, ...] = (
    # Rasterization, multisampling, depth and blending.
    Rule(_RASTER, "depthClampEnable", (), ((BASE, "depthClamp"),), "depthClampEnable-00782",
        dynamic="VK_DYNAMIC_STATE_DEPTH_CLAMP_ENABLE_EXT"),
    Rule(_RASTER, "polygonMode", ("VK_POLYGON_MODE_LINE", "VK_POLYGON_MODE_POINT"),
        ((BASE, "fillModeNonSolid"),), "polygonMode-01507", dynamic="VK_DYNAMIC_STATE_POLYGON_MODE_EXT"),
    Rule(_MULTISAMPLE, "sampleShadingEnable", (), ((BASE, "sampleRateShading"),),
        "sampleShadingEnable-00784"),
    Rule(_MULTISAMPLE, "alphaToOneEnable", (), ((BASE, "alphaToOne"),), "alphaToOneEnable-00785",
        dynamic="VK_DYNAMIC_STATE_ALPHA_TO_ONE_ENABLE_EXT"),
    Rule(_DEPTH, "depthBoundsTestEnable", (), ((BASE, "depthBounds"),), "depthBoundsTestEnable-00598",
        dynamic="VK_DYNAMIC_STATE_DEPTH_BOUNDS_TEST_ENABLE"),
    Rule(_DEPTH, "flags",
        ("VK_PIPELINE_DEPTH_STENCIL_STATE_CREATE_RASTERIZATION_ORDER_ATTACHMENT_DEPTH_ACCESS_BIT_EXT",),
        ((ORDER, "rasterizationOrderDepthAttachmentAccess"),),
        "rasterizationOrderDepthAttachmentAccess-06463"),
    Rule(_DEPTH, "flags",
        ("VK_PIPELINE_DEPTH_STENCIL_STATE_CREATE_RASTERIZATION_ORDER_ATTACHMENT_STENCIL_ACCESS_BIT_EXT",),
        ((ORDER, "rasterizationOrderStencilAttachmentAccess"),),
        "rasterizationOrderStencilAttachmentAccess-06464"),
    Rule(_BLEND, "logicOpEnable", (), ((BASE, "logicOp"),), "logicOpEnable-00606",
        dynamic="VK_DYNAMIC_STATE_LOGIC_OP_ENABLE_EXT"),
    Rule(_BLEND, "flags",
        ("VK_PIPELINE_COLOR_BLEND_STATE_CREATE_RASTERIZATION_ORDER_ATTACHMENT_ACCESS_BIT_EXT",),
        ((ORDER, "rasterizationOrderColorAttachmentAccess"),),
        "rasterizationOrderColorAttachmentAccess-06465"),
    *(
        Rule(_BLEND_ATTACHMENT, member, _DUAL, ((BASE, "dualSrcBlend"),), vuid,
            dynamic="VK_DYNAMIC_STATE_COLOR_BLEND_EQUATION_EXT")
        for member, vuid in (
            ("srcColorBlendFactor", "srcColorBlendFactor-00608"),
            ("dstColorBlendFactor", "dstColorBlendFactor-00609"),
            ("srcAlphaBlendFactor", "srcAlphaBlendFactor-00610"),
            ("dstAlphaBlendFactor", "dstAlphaBlendFactor-00611"),
        )
    ),
    # Vertices and primitives.
    Rule(_ASSEMBLY, "topology", _ADJACENCY, ((BASE, "geometryShader"),), "topology-00429"),
    Rule(_ASSEMBLY, "topology", ("VK_PRIMITIVE_TOPOLOGY_PATCH_LIST",), ((BASE, "tessellationShader"),),
        "topology-00430"),
    Rule(_DIVISOR, "divisor", (), ((DIVISORS, "vertexAttributeInstanceRateZeroDivisor"),),
        "vertexAttributeInstanceRateZeroDivisor-02228", test=_zero),
    Rule(_DIVISOR, "divisor", (), ((DIVISORS, "vertexAttributeInstanceRateDivisor"),),
        "vertexAttributeInstanceRateDivisor-02229", test=_not_one),
    # Structures of a rasterization or viewport chain.
    Rule("VkPipelineRasterizationDepthClipStateCreateInfoEXT", "", (),
        (("VkPhysicalDeviceDepthClipEnableFeaturesEXT", "depthClipEnable"),),
        "VkPhysicalDeviceDepthClipEnableFeaturesEXT, depthClipEnable"),
    Rule("VkPipelineViewportDepthClipControlCreateInfoEXT", "negativeOneToOne", (),
        (("VkPhysicalDeviceDepthClipControlFeaturesEXT", "depthClipControl"),), "negativeOneToOne-06470",
        dynamic="VK_DYNAMIC_STATE_DEPTH_CLIP_NEGATIVE_ONE_TO_ONE_EXT"),
    Rule("VkPipelineRasterizationProvokingVertexStateCreateInfoEXT", "provokingVertexMode",
        ("VK_PROVOKING_VERTEX_MODE_LAST_VERTEX_EXT",),
        (("VkPhysicalDeviceProvokingVertexFeaturesEXT", "provokingVertexLast"),), "provokingVertexMode-04883",
        dynamic="VK_DYNAMIC_STATE_PROVOKING_VERTEX_MODE_EXT"),
    Rule("VkPipelineRasterizationStateStreamCreateInfoEXT", "", (),
        (("VkPhysicalDeviceTransformFeedbackFeaturesEXT", "geometryStreams"),), "geometryStreams-02324"),
    Rule(_LINE, "lineRasterizationMode", ("VK_LINE_RASTERIZATION_MODE_RECTANGULAR",),
        ((LINES, "rectangularLines"),), "lineRasterizationMode-02768",
        dynamic="VK_DYNAMIC_STATE_LINE_RASTERIZATION_MODE_EXT"),
    Rule(_LINE, "lineRasterizationMode", ("VK_LINE_RASTERIZATION_MODE_BRESENHAM",),
        ((LINES, "bresenhamLines"),), "lineRasterizationMode-02769",
        dynamic="VK_DYNAMIC_STATE_LINE_RASTERIZATION_MODE_EXT"),
    Rule(_LINE, "lineRasterizationMode", ("VK_LINE_RASTERIZATION_MODE_RECTANGULAR_SMOOTH",),
        ((LINES, "smoothLines"),), "lineRasterizationMode-02770",
        dynamic="VK_DYNAMIC_STATE_LINE_RASTERIZATION_MODE_EXT"),
    Rule("VkDepthBiasRepresentationInfoEXT", "depthBiasRepresentation",
        ("VK_DEPTH_BIAS_REPRESENTATION_LEAST_REPRESENTABLE_VALUE_FORCE_UNORM_EXT",),
        (("VkPhysicalDeviceDepthBiasControlFeaturesEXT", "leastRepresentableValueForceUnormRepresentation"),),
        "leastRepresentableValueForceUnormRepresentation-08947"),
    Rule("VkDepthBiasRepresentationInfoEXT", "depthBiasRepresentation",
        ("VK_DEPTH_BIAS_REPRESENTATION_FLOAT_EXT",),
        (("VkPhysicalDeviceDepthBiasControlFeaturesEXT", "floatRepresentation"),),
        "floatRepresentation-08948"),
    Rule("VkDepthBiasRepresentationInfoEXT", "depthBiasExact", (),
        (("VkPhysicalDeviceDepthBiasControlFeaturesEXT", "depthBiasExact"),), "depthBiasExact-08949"),
    Rule("VkPipelineFragmentShadingRateEnumStateCreateInfoNV", "shadingRateType",
        ("VK_FRAGMENT_SHADING_RATE_TYPE_ENUMS_NV",), ((SHADING_RATE_ENUMS, "fragmentShadingRateEnums"),),
        "VkGraphicsPipelineCreateInfo-pDynamicState-04569",
        dynamic="VK_DYNAMIC_STATE_FRAGMENT_SHADING_RATE_KHR"),
    # Stages.
    Rule(_STAGE, "stage", ("VK_SHADER_STAGE_GEOMETRY_BIT",), ((BASE, "geometryShader"),), "stage-00704"),
    Rule(_STAGE, "stage", _TESSELLATION, ((BASE, "tessellationShader"),), "stage-00705"),
    Rule(_STAGE, "stage", ("VK_SHADER_STAGE_MESH_BIT_EXT",), _MESH, "stage-02091"),
    Rule(_STAGE, "stage", ("VK_SHADER_STAGE_TASK_BIT_EXT",), _TASK, "stage-02092"),
    Rule(_STAGE, "stage", _RAY_STAGES, ((RAY_TRACING, "rayTracingPipeline"),),
        "vkCreateRayTracingPipelinesKHR-rayTracingPipeline-03586", otherwise=("VK_NV_ray_tracing",)),
    Rule(_STAGE, "flags", ("VK_PIPELINE_SHADER_STAGE_CREATE_ALLOW_VARYING_SUBGROUP_SIZE_BIT",),
        _SUBGROUP_SIZE, "flags-02784"),
    Rule(_STAGE, "flags", ("VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT",),
        (("VkPhysicalDeviceSubgroupSizeControlFeatures", "computeFullSubgroups"),), "flags-02785"),
    Rule("VkPipelineShaderStageRequiredSubgroupSizeCreateInfo", "", (), _SUBGROUP_SIZE,
        "VkPipelineShaderStageCreateInfo-pNext-02755"),
    *(
        Rule(_ROBUSTNESS, member, (), ((ROBUSTNESS, "pipelineRobustness"),), f"pipelineRobustness-{vuid}")
        for member, vuid in (("storageBuffers", "06926"), ("uniformBuffers", "06927"),
            ("vertexInputs", "06928"), ("images", "06929"))
    ),
    # Pipelines as a whole.
    Rule("VkGraphicsPipelineLibraryCreateInfoEXT", "", (), _LIBRARIES,
        "VkGraphicsPipelineCreateInfo-graphicsPipelineLibrary-06606"),
    Rule(_GRAPHICS, "flags", ("VK_PIPELINE_CREATE_LIBRARY_BIT_KHR",), _LIBRARIES,
        "graphicsPipelineLibrary-06606"),
    Rule(_GRAPHICS, "flags",
        ("VK_PIPELINE_CREATE_COLOR_ATTACHMENT_FEEDBACK_LOOP_BIT_EXT",
        "VK_PIPELINE_CREATE_DEPTH_STENCIL_ATTACHMENT_FEEDBACK_LOOP_BIT_EXT"), _FEEDBACK_LOOP,
        "VkPhysicalDeviceAttachmentFeedbackLoopLayoutFeaturesEXT, attachmentFeedbackLoopLayout"),
    *(
        Rule(struct, "flags", (f"VK_PIPELINE_CREATE_{'2_' * (struct == _FLAGS_2)}{bit}",), _PROTECTED,
            "pipelineProtectedAccess-07368")
        for struct in (_GRAPHICS, "VkComputePipelineCreateInfo", _RAYS, _FLAGS_2)
        for bit in ("NO_PROTECTED_ACCESS_BIT", "PROTECTED_ACCESS_ONLY_BIT")
    ),
    *(
        Rule(struct, "flags", (f"VK_PIPELINE_CREATE_{'2_' * (struct == _FLAGS_2)}DESCRIPTOR_BUFFER_BIT_EXT",),
            _DESCRIPTOR_BUFFER, "VkPhysicalDeviceDescriptorBufferFeaturesEXT, descriptorBuffer")
        for struct in (_GRAPHICS, "VkComputePipelineCreateInfo", _RAYS, _FLAGS_2)
    ),
    Rule(_FLAGS_2, "flags",
        ("VK_PIPELINE_CREATE_2_COLOR_ATTACHMENT_FEEDBACK_LOOP_BIT_EXT",
        "VK_PIPELINE_CREATE_2_DEPTH_STENCIL_ATTACHMENT_FEEDBACK_LOOP_BIT_EXT"), _FEEDBACK_LOOP,
        "VkPhysicalDeviceAttachmentFeedbackLoopLayoutFeaturesEXT, attachmentFeedbackLoopLayout"),
    Rule(_FLAGS_2, "flags", ("VK_PIPELINE_CREATE_2_ENABLE_LEGACY_DITHERING_BIT_EXT",),
        (("VkPhysicalDeviceLegacyDitheringFeaturesEXT", "legacyDithering"),),
        "VkPhysicalDeviceLegacyDitheringFeaturesEXT, legacyDithering"),
    Rule(_FLAGS_2, "flags",
        ("VK_PIPELINE_CREATE_2_RAY_TRACING_SKIP_AABBS_BIT_KHR",
        "VK_PIPELINE_CREATE_2_RAY_TRACING_SKIP_TRIANGLES_BIT_KHR"), _CULLING,
        "VkRayTracingPipelineCreateInfoKHR-rayTraversalPrimitiveCulling-03596"),
    Rule(_RAYS, "", (), ((RAY_TRACING, "rayTracingPipeline"),),
        "vkCreateRayTracingPipelinesKHR-rayTracingPipeline-03586"),
    Rule(_RAYS, "flags", ("VK_PIPELINE_CREATE_RAY_TRACING_SKIP_AABBS_BIT_KHR",), _CULLING,
        "rayTraversalPrimitiveCulling-03596"),
    Rule(_RAYS, "flags", ("VK_PIPELINE_CREATE_RAY_TRACING_SKIP_TRIANGLES_BIT_KHR",), _CULLING,
        "rayTraversalPrimitiveCulling-03597"),
    Rule(_RAYS, "flags", ("VK_PIPELINE_CREATE_RAY_TRACING_SHADER_GROUP_HANDLE_CAPTURE_REPLAY_BIT_KHR",),
        ((RAY_TRACING, "rayTracingPipelineShaderGroupHandleCaptureReplay"),), "flags-03598"),
    Rule(_RAYS, "flags", ("VK_PIPELINE_CREATE_RAY_TRACING_ALLOW_MOTION_BIT_NV",),
        (("VkPhysicalDeviceRayTracingMotionBlurFeaturesNV", "rayTracingMotionBlur"),),
        "VkPhysicalDeviceRayTracingMotionBlurFeaturesNV, rayTracingMotionBlur"),
    # Samplers and layouts.
    Rule(_SAMPLER, "anisotropyEnable", (), ((BASE, "samplerAnisotropy"),), "anisotropyEnable-01070"),
    *(
        Rule(_SAMPLER, member, ("VK_SAMPLER_ADDRESS_MODE_MIRROR_CLAMP_TO_EDGE",),
            ((VULKAN_12, "samplerMirrorClampToEdge"),), "addressModeU-01079",
            otherwise=("VK_KHR_sampler_mirror_clamp_to_edge",))
        for member in ("addressModeU", "addressModeV", "addressModeW")
    ),
    Rule(_SAMPLER, "borderColor", _CUSTOM_COLORS,
        (("VkPhysicalDeviceCustomBorderColorFeaturesEXT", "customBorderColors"),),
        "customBorderColors-04085"),
    Rule(_SAMPLER, "flags", ("VK_SAMPLER_CREATE_NON_SEAMLESS_CUBE_MAP_BIT_EXT",),
        (("VkPhysicalDeviceNonSeamlessCubeMapFeaturesEXT", "nonSeamlessCubeMap"),),
        "nonSeamlessCubeMap-06788"),
    Rule("VkSamplerCustomBorderColorCreateInfoEXT", "format", (),
        (("VkPhysicalDeviceCustomBorderColorFeaturesEXT", "customBorderColorWithoutFormat"),), "format-04014",
        test=_zero),
    Rule("VkSamplerBorderColorComponentMappingCreateInfoEXT", "", (),
        (("VkPhysicalDeviceBorderColorSwizzleFeaturesEXT", "borderColorSwizzle"),),
        "borderColorSwizzle-06437"),
    Rule("VkSamplerReductionModeCreateInfo", "reductionMode", (), ((VULKAN_12, "samplerFilterMinmax"),),
        "VkSamplerCreateInfo-pNext-06726", otherwise=("VK_EXT_sampler_filter_minmax",)),
    Rule("VkSamplerYcbcrConversionCreateInfo", "", (),
        (("VkPhysicalDeviceSamplerYcbcrConversionFeatures", "samplerYcbcrConversion"),),
        "vkCreateSamplerYcbcrConversion-None-01648"),
    Rule(_SET, "flags", ("VK_DESCRIPTOR_SET_LAYOUT_CREATE_HOST_ONLY_POOL_BIT_EXT",), _MUTABLE, "flags-04596"),
    Rule(_SET, "flags", ("VK_DESCRIPTOR_SET_LAYOUT_CREATE_DESCRIPTOR_BUFFER_BIT_EXT",), _DESCRIPTOR_BUFFER,
        "VkPhysicalDeviceDescriptorBufferFeaturesEXT, descriptorBuffer"),
    Rule(_SET, "flags", ("VK_DESCRIPTOR_SET_LAYOUT_CREATE_PUSH_DESCRIPTOR_BIT",),
        (("VkPhysicalDeviceVulkan14Features", "pushDescriptor"),), "flags-10354",
        otherwise=("VK_KHR_push_descriptor",)),
    Rule(_BINDING, "descriptorType", ("VK_DESCRIPTOR_TYPE_INLINE_UNIFORM_BLOCK",),
        (("VkPhysicalDeviceInlineUniformBlockFeatures", "inlineUniformBlock"),), "descriptorType-04604"),
    Rule(_BINDING, "descriptorType", ("VK_DESCRIPTOR_TYPE_MUTABLE_EXT",), _MUTABLE,
        "VkDescriptorSetLayoutCreateInfo-mutableDescriptorType-04595"),
    Rule(_BINDING_FLAGS, "pBindingFlags", ("VK_DESCRIPTOR_BINDING_UPDATE_UNUSED_WHILE_PENDING_BIT",),
        ((INDEXING, "descriptorBindingUpdateUnusedWhilePending"),),
        "descriptorBindingUpdateUnusedWhilePending-03012"),
    Rule(_BINDING_FLAGS, "pBindingFlags", ("VK_DESCRIPTOR_BINDING_PARTIALLY_BOUND_BIT",),
        ((INDEXING, "descriptorBindingPartiallyBound"),), "descriptorBindingPartiallyBound-03013"),
    Rule(_BINDING_FLAGS, "pBindingFlags", ("VK_DESCRIPTOR_BINDING_VARIABLE_DESCRIPTOR_COUNT_BIT",),
        ((INDEXING, "descriptorBindingVariableDescriptorCount"),),
        "descriptorBindingVariableDescriptorCount-03014"),
    # Render passes.
    Rule("VkRenderPassMultiviewCreateInfo", "pViewMasks", (),
        (("VkPhysicalDeviceMultiviewFeatures", "multiview"),), "multiview-06555"),
    Rule("VkSubpassDescription2", "viewMask", (), (("VkPhysicalDeviceMultiviewFeatures", "multiview"),),
        "multiview-06558"),
    Rule("VkPipelineRenderingCreateInfo", "viewMask", (),
        (("VkPhysicalDeviceMultiviewFeatures", "multiview"),),
        "VkGraphicsPipelineCreateInfo-multiview-06577"),
)
# fmt: on

# A pipeline may name a dynamic state only with the feature that stands beside it here. The registry's own
# table of dynamic states is not used for this: it says when a state *must be set* while drawing (depthBounds
# for VK_DYNAMIC_STATE_DEPTH_BOUNDS_TEST_ENABLE), and a pipeline may name such a state without that feature.
# fmt: off
_DYNAMIC = ("VkPhysicalDeviceExtendedDynamicStateFeaturesEXT", "extendedDynamicState")
_DYNAMIC_1 = ("CULL_MODE", "FRONT_FACE", "PRIMITIVE_TOPOLOGY", "VIEWPORT_WITH_COUNT", "SCISSOR_WITH_COUNT",
    "VERTEX_INPUT_BINDING_STRIDE", "DEPTH_TEST_ENABLE", "DEPTH_WRITE_ENABLE", "DEPTH_COMPARE_OP",
    "DEPTH_BOUNDS_TEST_ENABLE", "STENCIL_TEST_ENABLE", "STENCIL_OP")
_DYNAMIC_2 = ("RASTERIZER_DISCARD_ENABLE", "DEPTH_BIAS_ENABLE", "PRIMITIVE_RESTART_ENABLE")
_STATES_3 = {
    "TESSELLATION_DOMAIN_ORIGIN_EXT": "TessellationDomainOrigin",
        "DEPTH_CLAMP_ENABLE_EXT": "DepthClampEnable",
    "POLYGON_MODE_EXT": "PolygonMode", "RASTERIZATION_SAMPLES_EXT": "RasterizationSamples",
    "SAMPLE_MASK_EXT": "SampleMask", "ALPHA_TO_COVERAGE_ENABLE_EXT": "AlphaToCoverageEnable",
    "ALPHA_TO_ONE_ENABLE_EXT": "AlphaToOneEnable", "LOGIC_OP_ENABLE_EXT": "LogicOpEnable",
    "COLOR_BLEND_ENABLE_EXT": "ColorBlendEnable", "COLOR_BLEND_EQUATION_EXT": "ColorBlendEquation",
    "COLOR_WRITE_MASK_EXT": "ColorWriteMask", "RASTERIZATION_STREAM_EXT": "RasterizationStream",
    "CONSERVATIVE_RASTERIZATION_MODE_EXT": "ConservativeRasterizationMode",
    "EXTRA_PRIMITIVE_OVERESTIMATION_SIZE_EXT": "ExtraPrimitiveOverestimationSize",
    "DEPTH_CLIP_ENABLE_EXT": "DepthClipEnable", "SAMPLE_LOCATIONS_ENABLE_EXT": "SampleLocationsEnable",
    "COLOR_BLEND_ADVANCED_EXT": "ColorBlendAdvanced", "PROVOKING_VERTEX_MODE_EXT": "ProvokingVertexMode",
    "LINE_RASTERIZATION_MODE_EXT": "LineRasterizationMode", "LINE_STIPPLE_ENABLE_EXT": "LineStippleEnable",
    "DEPTH_CLIP_NEGATIVE_ONE_TO_ONE_EXT": "DepthClipNegativeOneToOne",
    "VIEWPORT_W_SCALING_ENABLE_NV": "ViewportWScalingEnable", "VIEWPORT_SWIZZLE_NV": "ViewportSwizzle",
    "COVERAGE_TO_COLOR_ENABLE_NV": "CoverageToColorEnable",
    "COVERAGE_TO_COLOR_LOCATION_NV": "CoverageToColorLocation",
    "COVERAGE_MODULATION_MODE_NV": "CoverageModulationMode",
    "COVERAGE_MODULATION_TABLE_ENABLE_NV": "CoverageModulationTableEnable",
    "COVERAGE_MODULATION_TABLE_NV": "CoverageModulationTable",
    "COVERAGE_REDUCTION_MODE_NV": "CoverageReductionMode",
    "REPRESENTATIVE_FRAGMENT_TEST_ENABLE_NV": "RepresentativeFragmentTestEnable",
    "SHADING_RATE_IMAGE_ENABLE_NV": "ShadingRateImageEnable",
}
# fmt: on


def _dynamic(state: str, feature: Feature, source: str, otherwise: tuple[str, ...] = ()) -> Rule:
    value = f"VK_DYNAMIC_STATE_{state}"
    source = f"VkGraphicsPipelineCreateInfo-{source}"
    return Rule("VkPipelineDynamicStateCreateInfo", "pDynamicStates", (value,), (feature,), source, otherwise)


# fmt: off
_DYNAMIC_RULES: tuple[Rule, ...] = (
    *(_dynamic(each, _DYNAMIC, "pDynamicStates-03378", ("VK_VERSION_1_3",)) for each in _DYNAMIC_1),
    *(
        _dynamic(each, ("VkPhysicalDeviceExtendedDynamicState2FeaturesEXT", "extendedDynamicState2"),
            "pDynamicStates-04868", ("VK_VERSION_1_3",))
        for each in _DYNAMIC_2
    ),
    _dynamic("LOGIC_OP_EXT",
        ("VkPhysicalDeviceExtendedDynamicState2FeaturesEXT", "extendedDynamicState2LogicOp"),
        "pDynamicStates-04869"),
    _dynamic("PATCH_CONTROL_POINTS_EXT",
        ("VkPhysicalDeviceExtendedDynamicState2FeaturesEXT", "extendedDynamicState2PatchControlPoints"),
        "pDynamicStates-04870"),
    _dynamic("VERTEX_INPUT_EXT",
        ("VkPhysicalDeviceVertexInputDynamicStateFeaturesEXT", "vertexInputDynamicState"),
        "pDynamicStates-04807"),
    _dynamic("COLOR_WRITE_ENABLE_EXT", ("VkPhysicalDeviceColorWriteEnableFeaturesEXT", "colorWriteEnable"),
        "pDynamicStates-04800"),
    # VUIDs 07370 to 07400, one a state, in this order but for the last two pairs.
    *(_dynamic(state, (DYNAMIC_3, f"extendedDynamicState3{name}"), f"extendedDynamicState3{name}") for state,
        name in _STATES_3.items()),
)
# fmt: on

RULES: tuple[Rule, ...] = _PLAIN_RULES + _DYNAMIC_RULES

_VERTEX_2 = "VkVertexInputAttributeDescription"
# fmt: off
LIMIT_RULES: tuple[Limit, ...] = (
    Limit("VkPipelineVertexInputStateCreateInfo", "pVertexBindingDescriptions",
        (LIMITS, "maxVertexInputBindings"), "vertexBindingDescriptionCount-00613"),
    Limit("VkPipelineVertexInputStateCreateInfo", "pVertexAttributeDescriptions",
        (LIMITS, "maxVertexInputAttributes"), "vertexAttributeDescriptionCount-00614"),
    Limit("VkVertexInputBindingDescription", "binding", (LIMITS, "maxVertexInputBindings"), "binding-00618",
        below=True),
    Limit("VkVertexInputBindingDescription", "stride", (LIMITS, "maxVertexInputBindingStride"),
        "stride-00619", dynamic="VK_DYNAMIC_STATE_VERTEX_INPUT_BINDING_STRIDE"),
    Limit(_VERTEX_2, "location", (LIMITS, "maxVertexInputAttributes"), "location-00620", below=True),
    Limit(_VERTEX_2, "binding", (LIMITS, "maxVertexInputBindings"), "binding-00621", below=True),
    Limit(_VERTEX_2, "offset", (LIMITS, "maxVertexInputAttributeOffset"), "offset-00622"),
    Limit(_DIVISOR, "binding", (LIMITS, "maxVertexInputBindings"), "binding-01869", below=True),
    Limit(_DIVISOR, "divisor", ("VkPhysicalDeviceVertexAttributeDivisorProperties", "maxVertexAttribDivisor"),
        "divisor-01870"),
    Limit("VkPipelineTessellationStateCreateInfo", "patchControlPoints", (LIMITS, "maxTessellationPatchSize"),
        "patchControlPoints-01214", dynamic="VK_DYNAMIC_STATE_PATCH_CONTROL_POINTS_EXT"),
    Limit(_VIEWPORT, "viewportCount", (LIMITS, "maxViewports"), "viewportCount-01218"),
    Limit(_VIEWPORT, "scissorCount", (LIMITS, "maxViewports"), "scissorCount-01219"),
    Limit("VkPipelineRenderingCreateInfo", "pColorAttachmentFormats", (LIMITS, "maxColorAttachments"),
        "colorAttachmentCount-09533"),
    Limit("VkSubpassDescription", "pColorAttachments", (LIMITS, "maxColorAttachments"),
        "colorAttachmentCount-00845"),
    Limit("VkSubpassDescription2", "pColorAttachments", (LIMITS, "maxColorAttachments"),
        "colorAttachmentCount-00845"),
    Limit(_BLEND, "pAttachments", (LIMITS, "maxColorAttachments"),
        "VkGraphicsPipelineCreateInfo-renderPass-06055"),
    Limit("VkRenderingAttachmentLocationInfo", "colorAttachmentCount", (LIMITS, "maxColorAttachments"),
        "colorAttachmentCount-09514"),
    Limit("VkRenderingAttachmentLocationInfo", "pColorAttachmentLocations", (LIMITS, "maxColorAttachments"),
        "colorAttachmentCount-09514"),
    Limit("VkRenderingInputAttachmentIndexInfo", "colorAttachmentCount", (LIMITS, "maxColorAttachments"),
        "colorAttachmentCount-09525"),
    Limit("VkRenderingInputAttachmentIndexInfo", "pColorAttachmentInputIndices",
        (LIMITS, "maxColorAttachments"), "colorAttachmentCount-09525"),
    Limit("VkPipelineLayoutCreateInfo", "pSetLayouts", (LIMITS, "maxBoundDescriptorSets"),
        "setLayoutCount-00286"),
    Limit("VkPipelineRasterizationStateStreamCreateInfoEXT", "rasterizationStream",
        ("VkPhysicalDeviceTransformFeedbackPropertiesEXT", "maxTransformFeedbackStreams"),
        "rasterizationStream-02325", below=True),
    Limit("VkPipelineDiscardRectangleStateCreateInfoEXT", "pDiscardRectangles",
        ("VkPhysicalDeviceDiscardRectanglePropertiesEXT", "maxDiscardRectangles"),
        "discardRectangleCount-00582"),
    Limit("VkPipelineRasterizationConservativeStateCreateInfoEXT", "extraPrimitiveOverestimationSize",
        ("VkPhysicalDeviceConservativeRasterizationPropertiesEXT", "maxExtraPrimitiveOverestimationSize"),
        "extraPrimitiveOverestimationSize-01769"),
    Limit(_RAYS, "maxPipelineRayRecursionDepth",
        ("VkPhysicalDeviceRayTracingPipelinePropertiesKHR", "maxRayRecursionDepth"),
        "maxPipelineRayRecursionDepth-03589"),
)
# fmt: on


_VERSION = re.compile(r"VK_(?:[A-Z]+_)?VERSION_(\d+)_(\d+)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_:]*")

PropertyValue = int | float | tuple[int, ...] | None


class DeviceAnswers:
    """Answers about one device. Thread-safe."""

    def __init__(self, capabilities: DeviceCapabilities) -> None:
        """Ask about a device."""
        self._capabilities = capabilities
        self._features: dict[Feature, bool] = {}
        self._properties: dict[Feature, PropertyValue] = {}
        self._expressions: dict[str, str | None] = {}
        self._formats: dict[int, tuple[int, int, int]] = {}
        self.features_used: Final[set[Feature]] = set()
        self.extensions_used: Final[set[str]] = set()

    def extension(self, name: str) -> bool:
        """Whether an extension is enabled."""
        enabled = self._capabilities.has_extension(name)
        if enabled:
            self.extensions_used.add(name)
        return enabled

    def version(self, name: str) -> bool:
        """Whether the device has a core version, such as "VK_VERSION_1_2"."""
        match = _VERSION.fullmatch(name)
        if match is None:
            return False
        have = self._capabilities.api_version
        return (have >> 22 & 0x7F, have >> 12 & 0x3FF) >= (int(match[1]), int(match[2]))

    def feature(self, struct: str, member: str, *, needed: bool = True) -> bool:
        """Whether a feature is enabled, by this structure or by one that a core version merged it with."""
        key = (struct, member)
        known = self._features.get(key)
        if known is None:
            known = any(self._capabilities.has_feature(*each) for each in same_members(struct, member))
            self._features[key] = known
        if known and needed:
            self.features_used.add(key)
        return known

    def one_of(self, features: Iterable[Feature], otherwise: Iterable[str]) -> bool:
        """Whether one of some features is enabled, or the device has a version or extension instead."""
        return any(self.feature(*each) for each in features) or any(
            self.version(each) or self.extension(each) for each in otherwise
        )

    def property(self, struct: str, member: str) -> PropertyValue:
        """Value of a property, by this structure or one that a core version merged it with; or None."""
        key = (struct, member)
        if key not in self._properties:
            values = (self._capabilities.property_value(*each) for each in same_members(struct, member))
            self._properties[key] = next((each for each in values if each is not None), None)
        return self._properties[key]

    def exceeded(self, struct: str, member: str, value: float, *, below: bool = False) -> int | float | None:
        """The limit that a value exceeds (with `below`: reaches), or None; an unknown one bounds nothing."""
        most = self.property(struct, member)
        if not isinstance(most, int | float) or value < most or (value == most and not below):
            return None
        return most

    def has_any(self, struct: str, member: str, bits: int) -> bool:
        """Whether a property has one of some bits; an unknown one has them."""
        have = self.property(struct, member)
        return not isinstance(have, int) or bool(have & bits)

    def format_has(self, format_number: int, *, image: int = 0, buffer: int = 0) -> bool:
        """Whether a format has one of some VkFormatFeatureFlags in any tiling of an image, or in a buffer."""
        known = self._formats.get(format_number)
        if known is None:
            named = registry().formats.get(format_number)
            known = (0, 0, 0)
            if named is not None and self.missing(named.requires) is None:
                known = self._capabilities.format_features(format_number)
            self._formats[format_number] = known
        linear, optimal, in_buffer = known
        return bool((linear | optimal) & image or in_buffer & buffer)

    def missing(self, expression: str) -> str | None:
        """What is missing for an expression of the registry on this device, or None where it holds."""
        if not expression:
            return None
        if expression not in self._expressions:
            holds = expressions.evaluate(expression, self._provides)
            self._expressions[expression] = None if holds else self._text(expression)
        return self._expressions[expression]

    def enabled(self, thing: Enabled) -> bool:
        """Whether one of the alternatives that enable a SPIR-V name holds, or there are none."""
        return not thing.enable or any(self._enable(each) for each in thing.enable)

    def _enable(self, way: Enable) -> bool:
        if self.missing(way.requires) is not None:
            return False
        if way.version:
            return self.version(way.version)
        if way.extension:
            return self.extension(way.extension)
        if way.struct:
            return self.feature(way.struct, way.feature)
        if way.property:
            return self._property_holds(way.property, way.member, way.value)
        return True

    def _property_holds(self, struct: str, member: str, value: str) -> bool:
        have = self.property(struct, member)
        if not isinstance(have, int):
            return False
        if value in ("VK_TRUE", "VK_FALSE"):
            return bool(have) == (value == "VK_TRUE")
        want = bit_number(value)
        return want is not None and have & want == want

    def _provides(self, name: str) -> bool:
        if "::" in name:
            struct, _, member = name.partition("::")
            return self.feature(struct, member)
        if _VERSION.fullmatch(name):
            return self.version(name)
        known = registry().extensions.get(name)
        promoted = known.promoted_to if known is not None else ""
        return self.extension(name) or bool(promoted and self._provides(promoted))

    def _text(self, expression: str) -> str:
        """A false expression in words; if it is a conjunction, only its false terms."""
        if "," not in expression:
            return " and ".join(map(name_text, expressions.lacking(expression, self._provides)))
        text = _NAME.sub(lambda match: name_text(match[0]), expression)
        return text.replace("+", " and ").replace(",", " or ")


def name_text(name: str) -> str:
    """A name of an expression in words, such as "extension VK_KHR_multiview" or "Vulkan 1.2"."""
    if "::" in name:
        return f"feature {name}"
    match = _VERSION.fullmatch(name)
    return f"Vulkan {match[1]}.{match[2]}" if match else f"extension {name}"


def bit_number(name: str) -> int | None:
    """Number of an enum value or bit, also by a name with another author's tag."""
    numbers = enum_numbers()
    stem = name.removesuffix("_NV").removesuffix("_EXT").removesuffix("_KHR")
    candidates = (name, stem, f"{stem}_KHR", f"{stem}_EXT")
    return next((numbers[each] for each in candidates if each in numbers), None)


@lru_cache(maxsize=1)
def enum_numbers() -> dict[str, int]:
    """Number of every enum value and bit of the registry, by name."""
    return {value.name: number for each in registry().enums.values() for number, value in each.values.items()}
