"""Which members of a structure its hash takes, and in what order: the format's rules as data.

Recorders name a record by a hash over the members of its create info. The order is their own, not that of the
declaration, and it is nowhere but in their sources; so it is written down here, once, for `state_hashes`.

Each table entry is a list of steps in words:

    member          its value: a number, an array, a structure by its own entry; nothing where it is null
    member?7        the same, and the number 7 where it is null; ``member?`` is ``member?0``
    #array          how many elements the array has
    member@STATE    the number 0 instead where the dynamic state STATE (VK_DYNAMIC_STATE_*) is on
    member-STATE    nothing where the dynamic state is on
    =7              the number 7
    a.b             member b of the structure a
    !rule           what the rule of that name in `state_hashes` adds
    pNext           the chain: of each structure its sType, then its entry

Structures of pNext chains that are not listed are unknown to recorders; no key of a recorder depends on them.
"""

from __future__ import annotations

from typing import Final

_STENCIL: Final = "compareOp depthFailOp failOp passOp"
_ATTACHMENT: Final = (
    "flags initialLayout finalLayout format loadOp storeOp stencilLoadOp stencilStoreOp samples"
)
_DEPENDENCY: Final = (
    "dependencyFlags dstAccessMask srcAccessMask srcSubpass dstSubpass srcStageMask dstStageMask"
)
_SUBPASS: Final = (
    "flags #pColorAttachments #pInputAttachments #pPreserveAttachments pipelineBindPoint pPreserveAttachments "
    "pColorAttachments pInputAttachments pResolveAttachments pDepthStencilAttachment?"
)
_HEAP: Final = "heapOffset samplerHeapOffset !embedded_sampler"
_STRIDES: Final = "heapArrayStride samplerHeapArrayStride"
_INDEX: Final = "heapIndexStride samplerHeapIndexStride useCombinedImageSamplerIndex"
_PUSH: Final = "pushOffset samplerPushOffset"
_ADDRESS: Final = "addressOffset samplerAddressOffset"


def _stencil_faces() -> str:
    return " ".join(f"{face}.{name}@STENCIL_OP" for face in ("front", "back") for name in _STENCIL.split())


#: What the hash of a record takes, and of the structures in it.
OBJECTS: Final[dict[str, str]] = {
    "VkSamplerCreateInfo": (
        "!sampler_flags maxAnisotropy mipLodBias minLod maxLod minFilter magFilter mipmapMode compareEnable compareOp "
        "anisotropyEnable addressModeU addressModeV addressModeW borderColor unnormalizedCoordinates pNext"
    ),
    "VkDescriptorSetLayoutCreateInfo": "#pBindings flags pBindings pNext",
    "VkDescriptorSetLayoutBinding": "binding descriptorCount descriptorType stageFlags !immutable_samplers",
    "VkPipelineLayoutCreateInfo": "#pSetLayouts !set_layouts #pPushConstantRanges pPushConstantRanges flags",
    "VkPushConstantRange": "stageFlags size offset",
    "VkRenderPassCreateInfo": (
        "!render_pass_flags #pAttachments #pDependencies #pSubpasses pAttachments pDependencies pSubpasses pNext"
    ),
    "VkAttachmentDescription": _ATTACHMENT,
    "VkSubpassDependency": _DEPENDENCY,
    "VkSubpassDescription": _SUBPASS,
    "VkAttachmentReference": "attachment layout",
    "VkRenderPassCreateInfo2": (
        "flags #pAttachments #pDependencies #pSubpasses #pCorrelatedViewMasks =2 "
        "pAttachments pDependencies pSubpasses pCorrelatedViewMasks pNext"
    ),
    "VkAttachmentDescription2": f"{_ATTACHMENT} pNext",
    "VkSubpassDependency2": f"{_DEPENDENCY} viewOffset pNext",
    "VkSubpassDescription2": f"{_SUBPASS} viewMask pNext",
    "VkAttachmentReference2": "attachment layout aspectMask pNext",
    "VkComputePipelineCreateInfo": (
        "layout !flags !base_or_zero stage.module stage.pName stage.flags stage.stage stage.pSpecializationInfo? "
        "stage.pNext pNext"
    ),
    "VkRayTracingPipelineCreateInfoKHR": (
        "!flags maxPipelineRayRecursionDepth layout !base_or_zero #pStages pStages pLibraryInterface? pDynamicState? "
        "#pGroups pGroups pLibraryInfo? pNext"
    ),
    "VkRayTracingPipelineInterfaceCreateInfoKHR": (
        "maxPipelineRayHitAttributeSize maxPipelineRayPayloadSize pNext"
    ),
    "VkRayTracingShaderGroupCreateInfoKHR": (
        "type anyHitShader closestHitShader generalShader intersectionShader pNext"
    ),
    "VkGraphicsPipelineCreateInfo": "!graphics",
    "VkPipelineShaderStageCreateInfo": "flags pName stage module pSpecializationInfo? pNext",
    "VkSpecializationInfo": "pData #pData #pMapEntries pMapEntries",
    "VkSpecializationMapEntry": "offset size constantID",
    "VkPipelineDynamicStateCreateInfo": "#pDynamicStates flags pDynamicStates pNext",
    "VkPipelineDepthStencilStateCreateInfo": (
        "flags depthBoundsTestEnable@DEPTH_BOUNDS_TEST_ENABLE depthCompareOp@DEPTH_COMPARE_OP "
        "depthTestEnable@DEPTH_TEST_ENABLE depthWriteEnable@DEPTH_WRITE_ENABLE "
        f"{_stencil_faces()} stencilTestEnable@STENCIL_TEST_ENABLE !depth_bounds !stencil_values pNext"
    ),
    "VkPipelineInputAssemblyStateCreateInfo": (
        "flags primitiveRestartEnable@PRIMITIVE_RESTART_ENABLE topology pNext"
    ),
    "VkPipelineRasterizationStateCreateInfo": (
        "flags cullMode@CULL_MODE depthClampEnable@DEPTH_CLAMP_ENABLE_EXT frontFace@FRONT_FACE "
        "rasterizerDiscardEnable@RASTERIZER_DISCARD_ENABLE polygonMode@POLYGON_MODE_EXT "
        "depthBiasEnable@DEPTH_BIAS_ENABLE !depth_bias lineWidth-LINE_WIDTH pNext"
    ),
    "VkPipelineMultisampleStateCreateInfo": (
        "flags alphaToCoverageEnable@ALPHA_TO_COVERAGE_ENABLE_EXT alphaToOneEnable@ALPHA_TO_ONE_ENABLE_EXT "
        "minSampleShading rasterizationSamples@RASTERIZATION_SAMPLES_EXT sampleShadingEnable !sample_mask pNext"
    ),
    "VkPipelineViewportStateCreateInfo": (
        "flags #pScissors@SCISSOR_WITH_COUNT #pViewports@VIEWPORT_WITH_COUNT pScissors-SCISSOR pViewports-VIEWPORT "
        "pNext"
    ),
    "VkViewport": "x y width height minDepth maxDepth",
    "VkRect2D": "x y width height",
    "VkExtent2D": "width height",
    "VkPipelineVertexInputStateCreateInfo": (
        "flags #pVertexAttributeDescriptions #pVertexBindingDescriptions "
        "pVertexAttributeDescriptions pVertexBindingDescriptions pNext"
    ),
    "VkVertexInputAttributeDescription": "offset binding format location",
    "VkVertexInputBindingDescription": "binding inputRate stride@VERTEX_INPUT_BINDING_STRIDE",
    "VkPipelineColorBlendStateCreateInfo": (
        "flags #pAttachments logicOpEnable@LOGIC_OP_ENABLE_EXT !logic_op !blend_attachments pNext"
    ),
    "VkPipelineTessellationStateCreateInfo": "flags patchControlPoints@PATCH_CONTROL_POINTS_EXT pNext",
    "VkComponentMapping": "r g b a",
    "VkSampleLocationEXT": "x y",
    "VkDepthClampRangeEXT": "minDepthClamp maxDepthClamp",
    "VkVertexInputBindingDivisorDescription": "binding divisor",
    "VkInputAttachmentAspectReference": "subpass inputAttachmentIndex aspectMask",
    "VkDescriptorSetAndBindingMappingEXT": (
        "resourceMask descriptorSet firstBinding bindingCount pNext !mapping_source"
    ),
    "VkDescriptorMappingSourceConstantOffsetEXT": f"{_HEAP} {_STRIDES}",
    "VkDescriptorMappingSourcePushIndexEXT": f"{_HEAP} {_STRIDES} {_INDEX} {_PUSH}",
    "VkDescriptorMappingSourceIndirectIndexEXT": f"{_HEAP} {_STRIDES} {_INDEX} {_PUSH} {_ADDRESS}",
    "VkDescriptorMappingSourceIndirectIndexArrayEXT": (
        f"{_HEAP} {_INDEX} {_PUSH} useCombinedImageSamplerIndex {_ADDRESS}"
    ),
    "VkDescriptorMappingSourceHeapDataEXT": "heapOffset pushOffset",
    "VkDescriptorMappingSourceIndirectAddressEXT": "pushOffset addressOffset",
    "VkDescriptorMappingSourceShaderRecordIndexEXT": (
        f"{_HEAP} {_STRIDES} {_INDEX} shaderRecordOffset samplerShaderRecordOffset"
    ),
}

#: What the hash takes of the structures that recorders know in pNext chains, after the sType.
CHAINED: Final[dict[str, str]] = {
    "VkAttachmentDescriptionStencilLayout": "stencilInitialLayout stencilFinalLayout",
    "VkAttachmentReferenceStencilLayout": "stencilLayout",
    "VkCustomResolveCreateInfoEXT": "customResolve !custom_resolve_formats",
    "VkDepthBiasRepresentationInfoEXT": "!depth_bias_representation",
    "VkDescriptorSetLayoutBindingFlagsCreateInfo": "#pBindingFlags pBindingFlags",
    "VkFragmentShadingRateAttachmentInfoKHR": "!shading_rate_attachment",
    "VkGraphicsPipelineLibraryCreateInfoEXT": "flags",
    "VkMemoryBarrier2": "!barrier",
    "VkMultisampledRenderToSingleSampledInfoEXT": (
        "multisampledRenderToSingleSampledEnable rasterizationSamples"
    ),
    "VkMutableDescriptorTypeCreateInfoEXT": "#pMutableDescriptorTypeLists pMutableDescriptorTypeLists",
    "VkPipelineColorBlendAdvancedStateCreateInfoEXT": "!advanced_blend",
    "VkPipelineColorWriteCreateInfoEXT": "#pColorWriteEnables pColorWriteEnables-COLOR_WRITE_ENABLE_EXT",
    "VkPipelineCreateFlags2CreateInfo": "!flags_2",
    "VkPipelineDiscardRectangleStateCreateInfoEXT": (
        "flags discardRectangleMode@DISCARD_RECTANGLE_MODE_EXT #pDiscardRectangles "
        "pDiscardRectangles-DISCARD_RECTANGLE_EXT"
    ),
    "VkPipelineFragmentDensityMapLayeredCreateInfoVALVE": "maxFragmentDensityMapLayers",
    "VkPipelineFragmentShadingRateStateCreateInfoKHR": (
        "fragmentSize-FRAGMENT_SHADING_RATE_KHR combinerOps-FRAGMENT_SHADING_RATE_KHR"
    ),
    "VkPipelineLibraryCreateInfoKHR": "#pLibraries pLibraries pNext",
    "VkPipelineRasterizationConservativeStateCreateInfoEXT": (
        "flags conservativeRasterizationMode@CONSERVATIVE_RASTERIZATION_MODE_EXT "
        "extraPrimitiveOverestimationSize@EXTRA_PRIMITIVE_OVERESTIMATION_SIZE_EXT"
    ),
    "VkPipelineRasterizationDepthClipStateCreateInfoEXT": "flags depthClipEnable@DEPTH_CLIP_ENABLE_EXT",
    "VkPipelineRasterizationLineStateCreateInfo": (
        "lineRasterizationMode@LINE_RASTERIZATION_MODE_EXT stippledLineEnable@LINE_STIPPLE_ENABLE_EXT !stipple"
    ),
    "VkPipelineRasterizationProvokingVertexStateCreateInfoEXT": (
        "provokingVertexMode@PROVOKING_VERTEX_MODE_EXT"
    ),
    "VkPipelineRasterizationStateStreamCreateInfoEXT": "flags rasterizationStream@RASTERIZATION_STREAM_EXT",
    "VkPipelineRenderingCreateInfo": "!rendering_formats",
    "VkPipelineRobustnessCreateInfo": "images vertexInputs uniformBuffers storageBuffers",
    "VkPipelineSampleLocationsStateCreateInfoEXT": (
        "sampleLocationsEnable@SAMPLE_LOCATIONS_ENABLE_EXT !sample_locations"
    ),
    "VkPipelineShaderStageRequiredSubgroupSizeCreateInfo": "requiredSubgroupSize",
    "VkPipelineTessellationDomainOriginStateCreateInfo": "domainOrigin@TESSELLATION_DOMAIN_ORIGIN_EXT",
    "VkPipelineVertexInputDivisorStateCreateInfo": "#pVertexBindingDivisors pVertexBindingDivisors",
    "VkPipelineViewportDepthClampControlCreateInfoEXT": "!depth_clamp_range",
    "VkPipelineViewportDepthClipControlCreateInfoEXT": "negativeOneToOne@DEPTH_CLIP_NEGATIVE_ONE_TO_ONE_EXT",
    "VkRayTracingPipelineClusterAccelerationStructureCreateInfoNV": "allowClusterAccelerationStructure",
    "VkRenderPassCreationControlEXT": "disallowMerging",
    "VkRenderPassFragmentDensityMapCreateInfoEXT": "fragmentDensityMapAttachment",
    "VkRenderPassInputAttachmentAspectCreateInfo": "#pAspectReferences pAspectReferences",
    "VkRenderPassMultiviewCreateInfo": (
        "#pViewMasks pViewMasks #pViewOffsets pViewOffsets #pCorrelationMasks pCorrelationMasks"
    ),
    "VkRenderingAttachmentLocationInfo": "#pColorAttachmentLocations pColorAttachmentLocations?",
    "VkRenderingInputAttachmentIndexInfo": (
        "#pColorAttachmentInputIndices pColorAttachmentInputIndices? "
        "pDepthInputAttachmentIndex?65535 pStencilInputAttachmentIndex?65535"
    ),
    "VkSampleLocationsInfoEXT": (
        "#pSampleLocations sampleLocationGridSize sampleLocationsPerPixel pSampleLocations"
    ),
    "VkSamplerBorderColorComponentMappingCreateInfoEXT": "srgb components",
    "VkSamplerCustomBorderColorCreateInfoEXT": "customBorderColor format",
    "VkSamplerReductionModeCreateInfo": "reductionMode",
    "VkSamplerYcbcrConversionCreateInfo": (
        "format ycbcrModel ycbcrRange components xChromaOffset yChromaOffset chromaFilter forceExplicitReconstruction"
    ),
    "VkShaderDescriptorSetAndBindingMappingInfoEXT": "#pMappings !mapping_kinds pMappings",
    "VkSubpassDescriptionDepthStencilResolve": "!depth_stencil_resolve",
}
