# Purpose: the requirements of descriptor set layouts and render passes that take several members to decide.
# Guarantees and assumptions: as in requirement_context.py.
"""Requirements of descriptor set layouts and render passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.sets.requirement_answers import DeviceAnswers, enum_numbers
from orchestrator.sets.requirement_context import (
    ATTACHMENT_UNUSED,
    COLOR_ATTACHMENT,
    DEPTH_STENCIL_ATTACHMENT,
    FRAGMENT_SHADING_RATE_ATTACHMENT,
    Context,
    DynamicStates,
    Malformed,
    chained,
    feature,
    format_use,
    limit,
)
from orchestrator.sets.requirement_rules import INDEXING, SHADING_RATE

_PUSH_DESCRIPTOR = 0x1
_UPDATE_AFTER_BIND = 0x1
_INLINE_UNIFORM_BLOCK = "VkPhysicalDeviceInlineUniformBlockFeatures"
_ACCELERATION_STRUCTURE = "VkPhysicalDeviceAccelerationStructureFeaturesKHR"

# VUID-VkDescriptorSetLayoutBindingFlagsCreateInfo-descriptorBinding*UpdateAfterBind-03005 to -03010, -02211, -03570.
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
    "ACCELERATION_STRUCTURE_KHR": (_ACCELERATION_STRUCTURE, "descriptorBindingAccelerationStructureUpdateAfterBind"),
    "ACCELERATION_STRUCTURE_NV": (_ACCELERATION_STRUCTURE, "descriptorBindingAccelerationStructureUpdateAfterBind"),
}  # fmt: skip


def set_layout(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates) -> str | None:
    """Bindings updated after bind, and limits on push descriptors and inline uniform blocks.

    VUID-VkDescriptorSetLayoutCreateInfo-flags-00281 and VUID-VkDescriptorSetLayoutBinding-descriptorType-08004.
    """
    bindings = value.pBindings or ()
    if value.flags & _PUSH_DESCRIPTOR:
        count = sum(each.descriptorCount for each in bindings)
        missing = limit(answers, "VkPhysicalDevicePushDescriptorProperties", "maxPushDescriptors", count)
        if missing is not None:
            return missing
    inline = enum_numbers()["VK_DESCRIPTOR_TYPE_INLINE_UNIFORM_BLOCK"]
    for each in bindings:
        if each.descriptorType == inline:
            struct = "VkPhysicalDeviceInlineUniformBlockProperties"
            missing = limit(answers, struct, "maxInlineUniformBlockSize", each.descriptorCount)
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


def render_pass(answers: DeviceAnswers, value: Any, _dynamic: DynamicStates = frozenset()) -> str | None:
    """Formats of the attachments of a render pass, by the use that its subpasses make of them.

    VUID-VkSubpassDescription-pInputAttachments-02647, -pColorAttachments-02648, -pResolveAttachments-02649,
    -pDepthStencilAttachment-02650; VUID-VkSubpassDescription2-pInputAttachments-02897 and those beside it.
    """
    attachments = value.pAttachments or ()
    for subpass in value.pSubpasses or ():
        for index, features, use in _uses(subpass):
            if index == ATTACHMENT_UNUSED:
                continue
            if index >= len(attachments):
                # Broken rather than beyond the device, and a driver would read past its array.
                return Malformed(f"attachment {index} of a render pass that has {len(attachments)}")
            missing = format_use(answers, attachments[index].format, features, use)
            if missing is not None:
                return missing
    return None


def _uses(subpass: Any) -> Iterator[tuple[int, int, str]]:
    """Every reference of a subpass: attachment, format features any one of which is enough, and the use."""
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


def rendering_formats(
    answers: DeviceAnswers, value: Any, _dynamic: DynamicStates = frozenset()
) -> str | None:
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
    """An attachment that holds shading rates: VkPhysicalDeviceFragmentShadingRateFeaturesKHR's description."""
    reference = value.pFragmentShadingRateAttachment
    if reference is None or reference.attachment == ATTACHMENT_UNUSED:
        return None
    return feature(answers, SHADING_RATE, "attachmentFragmentShadingRate")


LAYOUT_CONTEXTS: dict[str, Context] = {
    "VkDescriptorSetLayoutCreateInfo": set_layout,
    "VkRenderPassCreateInfo": render_pass,
    "VkRenderPassCreateInfo2": render_pass,
    "VkPipelineRenderingCreateInfo": rendering_formats,
    "VkFragmentShadingRateAttachmentInfoKHR": shading_rate_attachment,
}
