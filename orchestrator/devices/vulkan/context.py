"""An open VkDevice: the handles that every call needs, its features, and its owner."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from orchestrator.devices.device import DeviceFeatures, DeviceHandles, DeviceIdentity
from orchestrator.devices.modes import DRIVER_CACHES_OFF
from orchestrator.devices.request import (
    CACHE_CONTROL,
    MODULE_IDENTIFIER,
    NO_WISHES,
    PIPELINE_BINARIES,
    DeviceRequest,
    Feature,
    HostWishes,
    names_of,
)
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.capabilities import (
    Capabilities,
    ChosenCapabilities,
    HostCapabilities,
    features_of_chain,
)
from orchestrator.devices.vulkan.instance import (
    Commands,
    Layer,
    PhysicalDevice,
    VulkanInstance,
    active_layers,
    check,
    keys_withheld,
    library,
    new_struct,
)
from orchestrator.errors import NoDeviceError
from orchestrator.registry import registry

_INTERNAL_CACHE_CONTROL: Final = "VkDevicePipelineBinaryInternalCacheControlKHR"
_ADDRESSES: Final = (
    "instance",
    "physical_device",
    "device",
    "get_instance_proc_addr",
    "allocation_callbacks",
)
_NVIDIA_PROPRIETARY: Final = 4  # VkDriverId


@frozen(eq=False)
class DeviceContext:
    """A VkDevice with its commands. Immutable and thread-safe."""

    instance: VulkanInstance
    handle: Any
    commands: Commands
    allocator: Any
    identity: DeviceIdentity
    capabilities: Capabilities
    features: DeviceFeatures
    handles: DeviceHandles
    # whether `close` destroys device and instance; False for a host's, who does it after that
    owned: bool = True
    # whether the driver's own cache was turned off when the device was opened
    # (VkDevicePipelineBinaryInternalCacheControlKHR)
    internal_cache_off: bool = False

    @classmethod
    def open(
        cls,
        text: str = "",
        index: int | None = None,
        driver: str = "",
        name: str = "",
        *,
        request: DeviceRequest | None = None,
        driver_caches: bool = False,
        allocator: Any = ffi.NULL,
        wishes: HostWishes = NO_WISHES,
    ) -> Self:
        """Create instance and device; see `open_device`. `allocator`: VkAllocationCallbacks *, or null."""
        wanted = request or DeviceRequest()
        instance = VulkanInstance.create(
            wanted.application if request is not None else None, wishes.instance_extensions
        )
        try:
            physical = instance.find(text, index, driver, name)
            capabilities = ChosenCapabilities(
                instance, physical, evolve(wanted, extensions=wanted.extensions | wishes.device_extensions)
            )
            _check_extensions(capabilities, physical, wishes)
            cache_control = not driver_caches and bool(
                capabilities.property_value(
                    "VkPhysicalDevicePipelineBinaryPropertiesKHR", "pipelineBinaryInternalCacheControl"
                )
            )
            family = _queue_family(instance, physical, wishes.queue_family)
            layers = active_layers(instance.commands, physical.handle)  # before there is a device to destroy
            handle = _create(
                instance, physical, capabilities, allocator, queue_family=family, cache_control=cache_control
            )
            return cls(
                instance,
                handle,
                Commands("device", instance.commands.vkGetDeviceProcAddr, handle),
                allocator,
                physical.identity,
                capabilities,
                _offered(capabilities, _driver_caches(physical.identity, cache_control), layers),
                DeviceHandles(
                    _address(instance.handle),
                    _address(physical.handle),
                    _address(handle),
                    _address(library().vkGetInstanceProcAddr),
                    _address(allocator),
                    family,
                ),
                internal_cache_off=cache_control,
            )
        except BaseException:
            instance.close()
            raise

    @classmethod
    def adopt(
        cls,
        handles: DeviceHandles,
        api_version: int,
        extensions: Iterable[str],
        features: Iterable[Feature] | int,
    ) -> Self:
        """Use a host's device; see `orchestrator.devices.adopt_device`."""
        for name in _ADDRESSES:
            if not 0 <= operator.index(getattr(handles, name)) < 1 << 64:
                raise ValueError(f"{name} is no address: {getattr(handles, name)}")
        for name in _ADDRESSES[:3]:
            if not getattr(handles, name):
                raise ValueError(f"{name} is a null handle")
        if isinstance(features, int) and not 0 <= features < 1 << 64:
            raise ValueError(f"enabled_features is no address: {features}")
        known = registry().extensions
        named = {each for each in names_of(extensions) if each in known}
        of_device = {each for each in named if known[each].device}
        instance = VulkanInstance.adopt(handles, api_version, frozenset(named - of_device))
        (physical,) = instance.physical_devices
        enabled = features_of_chain(features) if isinstance(features, int) else features
        capabilities = HostCapabilities(instance, physical, of_device, enabled)
        device = ffi.cast("VkDevice", handles.device)
        layers = active_layers(instance.commands, physical.handle)
        return cls(
            instance,
            device,
            Commands("device", instance.commands.vkGetDeviceProcAddr, device),
            ffi.cast("VkAllocationCallbacks *", handles.allocation_callbacks),
            physical.identity,
            capabilities,
            _offered(capabilities, _driver_caches(physical.identity, cache_control=False), layers),
            handles,
            owned=False,
        )

    def create(self, command: str, info: Any) -> int:
        """Create an object by a command that takes only a create info; returns its handle."""
        handle = ffi.new("uint64_t *")
        create = getattr(self.commands, command)
        check(command, create(self.handle, info, self.allocator, handle))
        return int(handle[0])

    def destroy_pipelines(self, handles: npt.NDArray[np.uint64]) -> None:
        """Destroy pipelines; zeros are skipped."""
        destroy, device, allocator = self.commands.vkDestroyPipeline, self.handle, self.allocator
        for handle in handles[handles != 0].tolist():
            destroy(device, handle, allocator)

    def close(self) -> None:
        """Destroy device and instance if they are owned; call it once, after their last use."""
        if self.owned:
            self.commands.vkDestroyDevice(self.handle, self.allocator)
            self.instance.close()


def _address(pointer: Any) -> int:
    return int(ffi.cast("uintptr_t", pointer))


def _check_extensions(capabilities: Capabilities, physical: PhysicalDevice, wishes: HostWishes) -> None:
    lacking = sorted(wishes.device_extensions.difference(capabilities.extensions))
    if lacking:
        raise NoDeviceError(f"{physical.identity.device_name} does not offer {', '.join(lacking)}")


def _queue_family(instance: VulkanInstance, physical: PhysicalDevice, wanted: int | None) -> int:
    count = ffi.new("uint32_t *")
    instance.commands.vkGetPhysicalDeviceQueueFamilyProperties(physical.handle, count, ffi.NULL)
    if wanted is not None and not 0 <= wanted < count[0]:
        raise NoDeviceError(
            f"{physical.identity.device_name} has no queue family {wanted}: its families are 0 to "
            f"{count[0] - 1}"
        )
    return wanted or 0


def _create(
    instance: VulkanInstance,
    physical: PhysicalDevice,
    capabilities: ChosenCapabilities,
    allocator: Any,
    *,
    queue_family: int,
    cache_control: bool,
) -> Any:
    priority = ffi.new("float *", 1.0)
    queue = new_struct(
        "VkDeviceQueueCreateInfo", queueFamilyIndex=queue_family, queueCount=1, pQueuePriorities=priority
    )
    names = [ffi.new("char[]", each.encode()) for each in capabilities.extensions]
    extensions = ffi.new("char *[]", names)
    following = capabilities.features.pointer("void *")
    if cache_control:
        following = new_struct(_INTERNAL_CACHE_CONTROL, disableInternalCache=1, pNext=following)
    info = new_struct(
        "VkDeviceCreateInfo",
        pNext=following,
        queueCreateInfoCount=1,
        pQueueCreateInfos=queue,
        enabledExtensionCount=len(names),
        ppEnabledExtensionNames=extensions,
    )
    handle = ffi.new("VkDevice *")
    create = instance.commands.vkCreateDevice
    check("vkCreateDevice", create(physical.handle, info, allocator, handle))
    return handle[0]


def _driver_caches(identity: DeviceIdentity, cache_control: bool) -> str:
    mesa, nvidia = DRIVER_CACHES_OFF.items()
    name, off = nvidia if identity.driver_id == _NVIDIA_PROPRIETARY else mesa
    ways = [_INTERNAL_CACHE_CONTROL] if cache_control else []
    if os.environ.get(name) == off:
        ways.append(f"environment {name}={off}")
    return f"disabled: {', '.join(ways)}" if ways else "enabled"


def _offered(capabilities: Capabilities, driver_caches: str, layers: tuple[Layer, ...]) -> DeviceFeatures:
    has = capabilities.has_feature
    cache_control = has(*CACHE_CONTROL)
    binaries = has(*PIPELINE_BINARIES)
    withheld = keys_withheld(layers) if binaries else ""
    return DeviceFeatures(
        externally_synchronized_caches=cache_control,
        creation_feedback=capabilities.api_version >= (1 << 22 | 3 << 12)
        or capabilities.has_extension("VK_EXT_pipeline_creation_feedback"),
        pipeline_binaries=binaries and not withheld,
        shader_module_identifiers=has(*MODULE_IDENTIFIER),
        internally_synchronized_merge=has("VkPhysicalDeviceMaintenance8FeaturesKHR", "maintenance8"),
        compile_required=cache_control,
        driver_caches=driver_caches,
        layers=tuple(map(str, layers)),
        keys_withheld=withheld,
    )
