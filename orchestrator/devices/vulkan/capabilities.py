# Purpose: what a physical device has (extensions, features, properties, formats) and what of it a device is opened
# with. Driven by the registry: every feature and property structure it lists is asked for if its extension or
# version is there.
#
# What is enabled: every extension whose dependencies are met and every feature, because a captured pipeline may
# need any of them, with three exceptions:
#   - features that change the code of pipelines that do not ask for them (robustness, and the structures that
#     captures record for that reason) follow what the archive recorded: _RECORDED
#   - features that exclude each other: the older or vendor's one is left off: _EXCLUDED
#   - extensions that a compiler of pipelines never needs and that cost or conflict: _UNWANTED_EXTENSIONS
#
# Guarantees: Capabilities answers for what is *enabled*, by any of the names that a feature has (an extension's
# structure or VkPhysicalDeviceVulkanNNFeatures). Immutable after opening; thread-safe.
"""Capabilities of a physical device, and what of them is enabled."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Final

from orchestrator.devices.device import CapturedFeatures
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.chains import StructChain
from orchestrator.devices.vulkan.instance import PhysicalDevice, VulkanInstance
from orchestrator.registry import registry
from orchestrator.registry.expressions import evaluate
from orchestrator.registry.tables import Struct

_FEATURES: Final = "VkPhysicalDeviceFeatures2"
_PROPERTIES: Final = "VkPhysicalDeviceProperties2"
_VERSION: Final = re.compile(r"VK_(?:BASE_|COMPUTE_|GRAPHICS_)?VERSION_(\d+)_(\d+)")

# Structures whose features change generated code or pipeline keys, which is why captures record them: enabled
# only where the archive says that its application had them.
_RECORDED: Final = frozenset(
    {
        "VkPhysicalDeviceRobustness2FeaturesKHR",
        "VkPhysicalDeviceRobustness2FeaturesEXT",
        "VkPhysicalDeviceImageRobustnessFeatures",
        "VkPhysicalDevicePrimitivesGeneratedQueryFeaturesEXT",
        "VkPhysicalDeviceImage2DViewOf3DFeaturesEXT",
    }
)
_RECORDED_MEMBERS: Final = frozenset({"robustBufferAccess", "robustImageAccess", "meshShaderQueries"})

# Features that may not be enabled together with another that is preferred (VkDeviceCreateInfo's valid usage).
_EXCLUDED: Final = {
    "shadingRateImage": "pipelineFragmentShadingRate",
    "fragmentDensityMap": "pipelineFragmentShadingRate",
}

# What pipelines never need: video needs queues that are not asked for; the others slow a driver down, watch it, or
# exclude a core feature. (VK_KHR_swapchain is wanted: captured render passes end in the layout for presenting.)
_UNWANTED_EXTENSIONS: Final = re.compile(
    r"VK_KHR_video_.*|VK_.*_video_.*|VK_EXT_device_memory_report|VK_NV_device_diagnostic.*|VK_NV_low_latency.*"
    r"|VK_EXT_buffer_device_address|VK_AMD_negative_viewport_height|VK_NV_cuda_kernel_launch"
    r"|VK_EXT_validation_cache|VK_AMD_anti_lag|VK_NV_present_.*|VK_EXT_full_screen.*"
)


def provides(name: str, api_version: int, extensions: frozenset[str]) -> bool:
    """Whether a version or extension name of the registry's expressions is there."""
    version = _VERSION.fullmatch(name)
    if version:
        return (int(version[1]), int(version[2])) <= (api_version >> 22, api_version >> 12 & 0x3FF)
    return name in extensions


class Capabilities:
    """What a device is opened with. Implements `orchestrator.devices.device.DeviceCapabilities`.

    Attributes:
        extensions: Device extensions to enable, sorted.
        features: Feature chain, first VkPhysicalDeviceFeatures2, as it is handed to vkCreateDevice.
    """

    def __init__(self, instance: VulkanInstance, device: PhysicalDevice, recorded: CapturedFeatures) -> None:
        self._commands = instance.commands
        self._device = device
        self._api_version = device.identity.api_version
        self.extensions = _wanted(device.extensions, instance.extensions, self._api_version)
        enabled = frozenset(self.extensions)
        self._names = enabled | instance.extensions
        self.features = StructChain(_available(_FEATURES, self._api_version, self._names))
        self._commands.vkGetPhysicalDeviceFeatures2(device.handle, self.features.pointer(f"{_FEATURES} *"))
        self._enabled = self._choose(recorded)
        self._values = self._read_properties()
        self._formats: dict[int, tuple[int, int, int]] = {}

    @property
    def api_version(self) -> int:
        """VkPhysicalDeviceProperties::apiVersion."""
        return self._api_version

    def has_extension(self, name: str) -> bool:
        """Whether an extension is enabled."""
        return name in self._names

    def has_feature(self, struct: str, member: str) -> bool:
        """Whether a feature is enabled, under any of the structures that have it."""
        return (registry().aliases.get(struct, struct), member) in self._enabled

    def property_value(self, struct: str, member: str) -> int | float | tuple[int, ...] | None:
        """Value of a property, or None where the device does not have it."""
        return self._values.get((registry().aliases.get(struct, struct), member))

    def format_features(self, format_number: int) -> tuple[int, int, int]:
        """VkFormatProperties: (linearTiling, optimalTiling, buffer) features."""
        known = self._formats.get(format_number)
        if known is None:
            answer = ffi.new("VkFormatProperties *")
            self._commands.vkGetPhysicalDeviceFormatProperties(self._device.handle, format_number, answer)
            known = (
                int(answer.linearTilingFeatures),
                int(answer.optimalTilingFeatures),
                int(answer.bufferFeatures),
            )
            self._formats[format_number] = known
        return known

    def _choose(self, recorded: CapturedFeatures) -> frozenset[tuple[str, str]]:
        """Turn off what is not wanted, in the chain; return what stays on."""
        wanted = {(registry().aliases.get(struct, struct), member) for struct, member in recorded.features}
        if recorded.robust_buffer_access:
            wanted.add(("VkPhysicalDeviceFeatures", "robustBufferAccess"))
        wanted_members = {member for _, member in wanted}
        found = [
            (name, member.name, at)
            for struct in self.features.structs
            for name in (_core_name(struct.name),)
            for member, at in self.features.members(struct.name)
            if self.features.value(member, at)
        ]
        supported = {member for _, member, _ in found}
        enabled: set[tuple[str, str]] = set()
        for name, member, at in found:
            follows = name in _RECORDED or member in _RECORDED_MEMBERS
            if (follows and member not in wanted_members) or _EXCLUDED.get(member) in supported:
                self.features.set_bool(at, False)
            else:
                enabled.add((name, member))
        # A feature is known by its member's name in the core structure and in the extension's own.
        for struct in registry().structs.values():
            if _FEATURES in struct.extends and evaluate(struct.requires, self._provides):
                for each in struct.members:
                    if any((holder, each.name) in enabled for holder in _holders(struct.name)):
                        enabled.add((struct.name, each.name))
        return frozenset(enabled)

    def _provides(self, name: str) -> bool:
        return provides(name, self._api_version, self._names)

    def _read_properties(self) -> dict[tuple[str, str], int | float | tuple[int, ...]]:
        chain = StructChain(_available(_PROPERTIES, self._api_version, self._names, core_only=False))
        self._commands.vkGetPhysicalDeviceProperties2(self._device.handle, chain.pointer(f"{_PROPERTIES} *"))
        values: dict[tuple[str, str], int | float | tuple[int, ...]] = {}
        for struct in chain.structs:
            for member, at in chain.members(struct.name):
                values[_core_name(struct.name), member.name] = chain.value(member, at)  # type: ignore[assignment]
        limits = {each.name for each in registry().struct("VkPhysicalDeviceLimits").members}
        for (struct_name, member_name), value in list(values.items()):
            if struct_name == "VkPhysicalDeviceProperties" and member_name in limits:
                values["VkPhysicalDeviceLimits", member_name] = value
        return values


def _core_name(name: str) -> str:
    """VkPhysicalDeviceFeatures2 and VkPhysicalDeviceProperties2 hold the structure without the 2."""
    return name[:-1] if name in (_FEATURES, _PROPERTIES) else name


def _holders(name: str) -> Iterable[str]:
    """Structures that may hold the same feature: itself, and those of the versions."""
    yield name
    for version in ("11", "12", "13", "14"):
        yield f"VkPhysicalDeviceVulkan{version}Features"


def _wanted(device: frozenset[str], instance: frozenset[str], api_version: int) -> tuple[str, ...]:
    """Device extensions to enable: known to the registry, wanted, and with their dependencies there."""
    known = registry().extensions
    names = {each for each in device if each in known and not _UNWANTED_EXTENSIONS.fullmatch(each)}
    while True:
        present = functools.partial(provides, api_version=api_version, extensions=frozenset(names) | instance)
        lacking = {each for each in names if not evaluate(known[each].depends, present)}
        if not lacking:
            return tuple(sorted(names))
        names -= lacking


def _available(root: str, api_version: int, names: frozenset[str], *, core_only: bool = True) -> list[Struct]:
    """The root structure and those that extend it on this device.

    Args:
        root: VkPhysicalDeviceFeatures2 or VkPhysicalDeviceProperties2.
        api_version: Of the device.
        names: Extensions.
        core_only: Leave out structures whose members the structures of the device's version have: both in one
            chain are not valid (VUID-VkDeviceCreateInfo-pNext-02829 and after).
    """
    here = [
        each
        for each in registry().structs.values()
        if root in each.extends and evaluate(each.requires, lambda name: provides(name, api_version, names))
    ]
    if core_only:
        core = {each.name for each in here if re.fullmatch(r"VkPhysicalDeviceVulkan\d\dFeatures", each.name)}
        promoted = {member.name for each in here if each.name in core for member in each.members} - {
            "sType",
            "pNext",
        }
        here = [
            each
            for each in here
            if each.name in core
            or "VERSION" not in each.requires
            or any(member.name not in promoted | {"sType", "pNext"} for member in each.members)
        ]
    return [registry().struct(root), *here]
