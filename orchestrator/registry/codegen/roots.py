"""The structures that the package gives to a driver or reads, where the walk through the registry begins.

build.py adds the structures of their members and those that may extend them.
"""

from __future__ import annotations

STRUCT_ROOTS = (
    # objects that pipelines refer to
    "VkSamplerCreateInfo",
    "VkSamplerYcbcrConversionCreateInfo",
    "VkDescriptorSetLayoutCreateInfo",
    "VkPipelineLayoutCreateInfo",
    "VkRenderPassCreateInfo",
    "VkRenderPassCreateInfo2",
    "VkShaderModuleCreateInfo",
    # pipelines
    "VkGraphicsPipelineCreateInfo",
    "VkComputePipelineCreateInfo",
    "VkRayTracingPipelineCreateInfoKHR",
    "VkPipelineCreationFeedback",
    "VkPipelineCreationFeedbackCreateInfo",
    "VkPipelineShaderStageModuleIdentifierCreateInfoEXT",
    "VkShaderModuleIdentifierEXT",
    # caches and binaries
    "VkPipelineCacheCreateInfo",
    "VkPipelineCacheHeaderVersionOne",
    "VkPipelineCreateInfoKHR",
    "VkPipelineBinaryCreateInfoKHR",
    "VkPipelineBinaryDataInfoKHR",
    "VkPipelineBinaryDataKHR",
    "VkPipelineBinaryHandlesInfoKHR",
    "VkPipelineBinaryInfoKHR",
    "VkPipelineBinaryKeyKHR",
    "VkPipelineBinaryKeysAndDataKHR",
    "VkReleaseCapturedPipelineDataInfoKHR",
    # what a driver tells about a pipeline
    "VkPipelineInfoKHR",
    "VkPipelineExecutablePropertiesKHR",
    "VkPipelineExecutableInfoKHR",
    "VkPipelineExecutableStatisticKHR",
    "VkPipelineExecutableInternalRepresentationKHR",
    # instances and devices
    "VkApplicationInfo",
    "VkInstanceCreateInfo",
    "VkExtensionProperties",
    "VkLayerProperties",
    "VkDeviceCreateInfo",
    "VkDeviceQueueCreateInfo",
    "VkQueueFamilyProperties",
    "VkQueueFamilyProperties2",
    "VkPhysicalDeviceFeatures",
    "VkPhysicalDeviceFeatures2",
    "VkPhysicalDeviceProperties",
    "VkPhysicalDeviceProperties2",
    "VkPhysicalDeviceMemoryProperties",
    "VkFormatProperties",
    "VkFormatProperties2",
    "VkFormatProperties3",
    "VkAllocationCallbacks",
    # what every chained structure begins with
    "VkBaseInStructure",
    "VkBaseOutStructure",
)
"""From these, every structure that a command of the bindings takes is reached."""

ENUM_ROOTS = ("VkResult", "VkStructureType", "VkFormat", "VkDynamicState", "VkSystemAllocationScope")
"""Enums that are included even if no member has their type."""
