"""VulkanDevice on real drivers."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from orchestrator.devices.device import ERROR_UNKNOWN, NO_SOURCE, DriverObserver
from orchestrator.devices.image import PipelineKind
from orchestrator.devices.opening import open_device
from orchestrator.devices.request import ApplicationInfo, DeviceRequest, OtherFeatures
from orchestrator.devices.vulkan.capabilities import ChosenCapabilities, StructChain
from orchestrator.devices.vulkan.context import DeviceContext
from orchestrator.devices.vulkan.device import VulkanDevice
from orchestrator.errors import DeviceError, ExternalSynchronizationError
from orchestrator.sets.image.builder import build_image
from orchestrator.sets.pipeline_set import PipelineSet
from tests.children.test_children import until
from tests.devices.vulkan.host_memory import HostMemory
from tests.drivers import each_driver

NAVI21 = "radv:navi21"
ROBUSTNESS_2 = "VkPhysicalDeviceRobustness2FeaturesKHR"
RECORDED = (
    ("VkPhysicalDeviceShaderObjectFeaturesEXT", "shaderObject", "VK_EXT_shader_object"),
    ("VkPhysicalDevicePipelineRobustnessFeatures", "pipelineRobustness", "VK_EXT_pipeline_robustness"),
    ("VkPhysicalDeviceMaintenance8FeaturesKHR", "maintenance8", "VK_KHR_maintenance8"),
    ("VkPhysicalDeviceMeshShaderFeaturesEXT", "meshShader", "VK_EXT_mesh_shader"),
    ("VkPhysicalDeviceDescriptorBufferFeaturesEXT", "descriptorBuffer", "VK_EXT_descriptor_buffer"),
    ("VkPhysicalDeviceImageRobustnessFeatures", "robustImageAccess", "VK_EXT_image_robustness"),
    (
        "VkPhysicalDevicePrimitivesGeneratedQueryFeaturesEXT",
        "primitivesGeneratedQuery",
        "VK_EXT_primitives_generated_query",
    ),
    (
        "VkPhysicalDeviceFragmentShadingRateFeaturesKHR",
        "pipelineFragmentShadingRate",
        "VK_KHR_fragment_shading_rate",
    ),
)


def opened(selector: str, request: DeviceRequest | None = None, **options: Any) -> VulkanDevice:
    """A device of the process's own driver."""
    device = open_device(selector, request=request, **options)
    assert isinstance(device, VulkanDevice)
    return device


def chain_of(device: VulkanDevice) -> StructChain:
    """The features that the device was created with."""
    assert isinstance(device.capabilities, ChosenCapabilities)
    return device.capabilities.features


@each_driver
def test_robustness_follows_the_archive(driver: str) -> None:
    plain = opened(driver)
    assert not plain.capabilities.has_feature("VkPhysicalDeviceFeatures", "robustBufferAccess")
    assert not plain.capabilities.has_feature(ROBUSTNESS_2, "robustBufferAccess2")
    assert plain.capabilities.has_feature("VkPhysicalDeviceFeatures", "geometryShader")
    plain.close()
    base = "VkPhysicalDeviceFeatures", "robustBufferAccess"
    request = DeviceRequest(features=frozenset({base, (ROBUSTNESS_2, "robustBufferAccess2")}))
    robust = opened(driver, request=request)
    assert robust.capabilities.has_feature("VkPhysicalDeviceFeatures", "robustBufferAccess")
    assert robust.capabilities.has_feature(ROBUSTNESS_2, "robustBufferAccess2")
    assert not robust.capabilities.has_feature(ROBUSTNESS_2, "nullDescriptor")
    robust.close()


@pytest.mark.driver(NAVI21)
def test_what_captures_record_is_on_only_where_it_is_asked_for() -> None:
    """The extension goes with the feature: drivers are known to take its name alone for a difference."""
    plain = opened(NAVI21)
    features = {(struct, member): extension for struct, member, extension in RECORDED}
    for feature, extension in features.items():
        assert not plain.capabilities.has_feature(*feature)
        assert not plain.capabilities.has_extension(extension)
        assert plain.supported.has_feature(*feature)
    plain.close()
    asked = opened(NAVI21, request=DeviceRequest(features=frozenset(features)))
    for feature, extension in features.items():
        assert asked.capabilities.has_feature(*feature)
        assert asked.capabilities.has_extension(extension)
    asked.close()


@pytest.mark.driver(NAVI21)
def test_nothing_but_what_is_asked_for() -> None:
    geometry = "VkPhysicalDeviceFeatures", "geometryShader"
    request = DeviceRequest(
        features=frozenset({geometry}), others=OtherFeatures.NONE, orchestrator_features=False
    )
    device = opened(NAVI21, request=request)
    assert device.capabilities.has_feature(*geometry)
    chain = chain_of(device)
    assert [each.name for each in chain.structs] == ["VkPhysicalDeviceFeatures2"]
    on = [member.name for _, member, at in chain.members() if chain.value(member, at)]
    assert on == ["geometryShader"]
    assert device.capabilities.extensions == ()
    assert not device.features.externally_synchronized_caches
    device.close()


@pytest.mark.driver(NAVI21)
def test_a_feature_that_a_version_left_to_its_extension_can_be_asked_for() -> None:
    feature = "VkPhysicalDevice4444FormatsFeaturesEXT", "formatA4R4G4B4"
    request = DeviceRequest(
        features=frozenset({feature}), others=OtherFeatures.NONE, orchestrator_features=False
    )
    device = opened(NAVI21, request=request)
    assert device.capabilities.api_version >= 1 << 22 | 3 << 12  # which took VK_EXT_4444_formats over
    assert device.capabilities.has_feature(*feature)
    assert device.capabilities.extensions == ("VK_EXT_4444_formats",)
    device.close()


@pytest.mark.driver(NAVI21)
def test_the_version_is_the_applications() -> None:
    told = ApplicationInfo("game", 3, "engine", 4, 1 << 22 | 2 << 12 | 7)
    device = opened(NAVI21, request=DeviceRequest(told))
    assert device.capabilities.api_version == told.api_version
    assert not any("Vulkan13" in each.name for each in chain_of(device).structs)
    # What Vulkan 1.3 has is there as an extension.
    assert device.capabilities.has_feature("VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")
    device.close()
    oldest = opened(NAVI21, request=DeviceRequest(ApplicationInfo(api_version=1 << 22)))
    assert oldest.capabilities.has_feature("VkPhysicalDeviceFeatures", "geometryShader")
    assert not any("Vulkan1" in each.name for each in chain_of(oldest).structs)
    oldest.close()


@pytest.mark.driver(NAVI21)
def test_what_excludes_each_other_is_not_enabled_together() -> None:
    """VUID-VkDeviceCreateInfo-None-08095, -shadingRateImage-04478, and what is built on another feature."""
    buffer = "VkPhysicalDeviceDescriptorBufferFeaturesEXT", "descriptorBuffer"
    device = opened(NAVI21, request=DeviceRequest(features=frozenset({buffer})))
    assert device.capabilities.has_feature(*buffer)
    assert not device.capabilities.has_extension("VK_AMD_shader_fragment_mask")
    device.close()
    plain = opened(NAVI21)
    assert plain.capabilities.has_extension("VK_AMD_shader_fragment_mask")
    plain.close()
    robust = ROBUSTNESS_2, "robustBufferAccess2"
    device = opened(NAVI21, request=DeviceRequest(features=frozenset({robust})))
    assert device.capabilities.has_feature(*robust)
    assert device.capabilities.has_feature("VkPhysicalDeviceFeatures", "robustBufferAccess")
    device.close()


@each_driver
def test_a_structure_of_a_version_stands_for_those_that_it_took_over(driver: str) -> None:
    """VUID-VkDeviceCreateInfo-pNext-02829 and -02830; some features have no other structure."""
    device = opened(driver)
    names = {each.name for each in chain_of(device).structs}
    assert {"VkPhysicalDeviceVulkan11Features", "VkPhysicalDeviceVulkan12Features"} <= names
    taken_over = {"VkPhysicalDevice16BitStorageFeatures", "VkPhysicalDeviceTimelineSemaphoreFeatures"}
    assert names.isdisjoint(taken_over)
    assert device.capabilities.has_feature("VkPhysicalDeviceVulkan12Features", "samplerMirrorClampToEdge")
    device.close()


@each_driver
def test_a_feature_answers_by_every_name_it_has(driver: str) -> None:
    device = opened(driver)
    has = device.capabilities.has_feature
    assert has("VkPhysicalDeviceVulkan13Features", "dynamicRendering")
    assert has("VkPhysicalDeviceDynamicRenderingFeatures", "dynamicRendering")
    assert has("VkPhysicalDeviceDynamicRenderingFeaturesKHR", "dynamicRendering")
    limit = device.capabilities.property_value("VkPhysicalDeviceLimits", "maxPushConstantsSize")
    assert isinstance(limit, int)
    assert limit >= 128  # the least that the specification allows
    assert device.capabilities.property_value("VkPhysicalDeviceNoSuchProperties", "x") is None
    device.close()


@pytest.mark.driver(NAVI21)
def test_all_host_memory_is_given_back(sample: PipelineSet) -> None:
    opened(NAVI21).close()  # takes the process's environment
    memory = HostMemory()
    device = VulkanDevice(DeviceContext.open(driver="radv", allocator=memory.callbacks))
    image = build_image(sample, sample.pipelines[:20], device.capabilities).image
    prepared = device.prepare(image)
    cache = device.create_pipeline_cache()
    before = memory.live_bytes
    device.create_pipelines(prepared, np.arange(len(image), dtype=np.int32), cache)
    filled = memory.live_bytes
    assert filled > before + device.pipeline_cache_size(cache) // 2
    device.destroy_pipeline_cache(cache)
    prepared.close()
    assert memory.live_bytes < filled
    device.close()
    assert memory.live_bytes == 0


@pytest.mark.driver(NAVI21)
def test_a_pipeline_before_its_libraries_fails_alone(sample: PipelineSet) -> None:
    device = opened(NAVI21)
    image = build_image(sample, sample.pipelines, device.capabilities).image
    linking = [index for index in range(len(image)) if image.libraries_of(index)]
    assert linking, "the sample set links libraries"
    alone = next(index for index in range(len(image)) if not image.libraries_of(index))
    prepared = device.prepare(image)
    batch = device.create_pipelines(prepared, np.array([linking[0], alone], np.int32), NO_SOURCE)
    assert batch.results.tolist() == [ERROR_UNKNOWN, 0]
    assert device.pipeline_keys(prepared, np.array(linking[:1], np.int32)) == [None]
    libraries = image.libraries_of(linking[0])
    # In one batch, in the wrong order: what links is created after what it links.
    batch = device.create_pipelines(prepared, np.array([linking[0], *libraries], np.int32), NO_SOURCE)
    assert not batch.results.any()
    assert not device.create_pipelines(prepared, np.array(linking[:1], np.int32), NO_SOURCE).results.any()
    prepared.close()
    prepared.close()
    device.close()


def is_closed(device: VulkanDevice) -> bool:
    try:
        device.destroy_pipelines(np.zeros(0, np.uint64))
    except DeviceError:
        return True
    return False


@each_driver
def test_what_is_in_use_is_not_destroyed(driver: str, sample: PipelineSet) -> None:
    device = opened(driver)
    image = build_image(sample, sample.pipelines, device.capabilities).image
    prepared = device.prepare(image)
    closing = threading.Thread(target=device.close)
    refused: list[str] = []

    class Closing(DriverObserver):
        def entering(self, *_: object) -> int:
            device.observer = DriverObserver()
            with pytest.raises(ExternalSynchronizationError) as told:
                prepared.close()
            refused.append(str(told.value))
            with pytest.raises(ExternalSynchronizationError, match=rf"pipelines \[{chosen[0]}\] are being"):
                device.create_pipelines(prepared, chosen[:1], NO_SOURCE)
            closing.start()
            until(lambda: is_closed(device))
            return 0

    chosen = np.arange(4, dtype=np.int32) + image.first_of(PipelineKind.COMPUTE)
    device.observer = Closing()
    batch = device.create_pipelines(prepared, chosen, NO_SOURCE)
    # The device was being closed, and its driver calls ended well all the same.
    assert batch.results.tolist() == [0] * 4
    assert len(refused) == 1
    assert "in use by another thread" in refused[0]
    closing.join()
    prepared.close()
    with pytest.raises(DeviceError, match="was closed before"):
        device.create_pipelines(prepared, chosen, NO_SOURCE)
