"""The layers that there are or that are active between the program and a driver, and what must not be asked for through them.

A layer may give out handles of its own in place of the driver's and translate them on the way; validation layers do.
It can translate them only in commands that it knows. One that is older than a command passes its own handles on to the
driver, which takes them for addresses and ends the process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from attrs import frozen

from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.loader import GlobalCommands, InstanceCommands, check, library

#: The first Vulkan with VK_KHR_pipeline_binary, and so with vkGetPipelineKeyKHR (KhronosGroup/Vulkan-Docs issue 2421).
PIPELINE_BINARY_VERSION: Final = (1 << 22) | (3 << 12) | 294


@frozen
class Layer:
    """An active layer.

    Attributes:
        name: VkLayerProperties::layerName.
        spec_version: VkLayerProperties::specVersion: the Vulkan that it knows, as VkApplicationInfo::apiVersion is made.
    """

    name: str
    spec_version: int

    def __str__(self) -> str:
        version = self.spec_version
        return f"{self.name} {version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def active_layers(commands: InstanceCommands, physical_device: Any) -> tuple[Layer, ...]:
    """The layers of an instance, whoever asked for them: the environment, a configuration of the loader, or nobody.

    Device layers are no more: what the loader tells as such is the layers of the instance (specification, chapter
    "Extended Functionality", "Device Layer Deprecation"), which no other command tells. Thread-safe.

    Args:
        commands: Of the instance.
        physical_device: Any of its VkPhysicalDevice.

    Raises:
        DriverError: The loader refused.
    """
    count = ffi.new("uint32_t *")
    ask = commands.vkEnumerateDeviceLayerProperties
    check("vkEnumerateDeviceLayerProperties", ask(physical_device, count, ffi.NULL))
    found = ffi.new("VkLayerProperties[]", count[0] or 1)
    check("vkEnumerateDeviceLayerProperties", ask(physical_device, count, found))
    return tuple(
        Layer(ffi.string(found[number].layerName).decode(errors="replace"), int(found[number].specVersion))
        for number in range(count[0])
    )


def known_layers() -> tuple[str, ...]:
    """Names of the layers that the loader finds, active or not, sorted.

    Raises:
        NoDeviceError: There is no loader.
        DriverError: The loader refused.
    """
    commands = GlobalCommands(library())
    command = "vkEnumerateInstanceLayerProperties"
    count = ffi.new("uint32_t *")
    check(command, commands.vkEnumerateInstanceLayerProperties(count, ffi.NULL))
    found = ffi.new("VkLayerProperties[]", count[0] or 1)
    check(command, commands.vkEnumerateInstanceLayerProperties(count, found))
    return tuple(
        sorted({ffi.string(found[number].layerName).decode(errors="replace") for number in range(count[0])})
    )


def keys_withheld(layers: Iterable[Layer]) -> str:
    """Why no pipeline keys may be asked for through these layers; "" where they may."""
    older = [str(each) for each in layers if each.spec_version < PIPELINE_BINARY_VERSION]
    if not older:
        return ""
    return (
        f"{', '.join(older)} {'is' if len(older) == 1 else 'are'} active and older than VK_KHR_pipeline_binary (1.3.294); "
        "a layer that does not know the command may hand the driver handles of its own, which ends the process"
    )
