# Purpose: an instance and the physical devices that it shows, with the identity of each.
#
# Guarantees: opening fails with NoDeviceError and a next step where there is no loader or no driver; close()
# destroys the instance once nothing made from it is left (the caller's duty, as in Vulkan).
"""Instances and physical devices."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import ApplicationInfo
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.loader import GlobalCommands, InstanceCommands, check, library
from orchestrator.devices.vulkan.selection import Selection, enter
from orchestrator.errors import NoDeviceError
from orchestrator.registry import registry

_API_VERSION_1_0: Final = 1 << 22
_API_VERSION_1_1: Final = (1 << 22) | (1 << 12)
_API_VERSION_1_4: Final = (1 << 22) | (4 << 12)
# Device extensions that captured pipelines name depend on these: the layout for presenting is VK_KHR_swapchain's. An
# application of Vulkan 1.0 asks for features by the third.
_WANTED_EXTENSIONS: Final = (
    "VK_KHR_surface",
    "VK_KHR_get_surface_capabilities2",
    "VK_KHR_get_physical_device_properties2",
)
_ERROR_INITIALIZATION_FAILED: Final = -3
_ERROR_INCOMPATIBLE_DRIVER: Final = -9
_NOT_FOUND: Final = (
    "the Vulkan loader found no device: install mesa-vulkan-drivers (24.3 or later; on Debian 12 from "
    "bookworm-backports) and use the selector radv:navi21, which needs no GPU, or simulated, which needs no driver"
)


@frozen(eq=False)
class PhysicalDevice:
    """A physical device of an instance.

    Attributes:
        handle: VkPhysicalDevice.
        identity: What caches made on it are valid for.
        extensions: Names of its device extensions.
    """

    handle: Any
    identity: DeviceIdentity
    extensions: frozenset[str]


class VulkanInstance:
    """A VkInstance for one target. Not shared between threads while it opens or closes.

    Attributes:
        handle: VkInstance, None once closed.
        commands: Instance-level commands.
        extensions: Enabled instance extensions.
        api_version: VkApplicationInfo::apiVersion that it was created with.
        physical_devices: What the loader found, in its order.
    """

    def __init__(
        self,
        selection: Selection,
        *,
        application: ApplicationInfo | None = None,
        driver_caches: bool = False,
    ) -> None:
        """Create an instance.

        Args:
            selection: The target.
            application: What the driver is told about the application; None: our own name, and the newest version.
            driver_caches: Leave the driver's own caches on.

        Raises:
            NoDeviceError: There is no loader, no driver of the selection, or no device.
            DriverError: The loader or a driver refused.
        """
        enter(selection, driver_caches=driver_caches)
        opened = library()
        commands = GlobalCommands(opened)
        self.extensions = frozenset(_WANTED_EXTENSIONS) & frozenset(_instance_extensions(commands))
        told = application or ApplicationInfo("orchestrator")
        self.api_version = told.api_version or _newest_version(commands)
        info, texts = _application_info(told, self.api_version)
        create_info = ffi.new("VkInstanceCreateInfo *")
        create_info.sType = registry().struct("VkInstanceCreateInfo").s_type
        create_info.pApplicationInfo = info
        names = [ffi.new("char[]", each.encode()) for each in sorted(self.extensions)]
        listed = ffi.new("char *[]", names)
        create_info.enabledExtensionCount = len(names)
        create_info.ppEnabledExtensionNames = listed
        handle = ffi.new("VkInstance *")
        result = commands.vkCreateInstance(create_info, ffi.NULL, handle)
        del texts  # they had to live until here
        if result == _ERROR_INCOMPATIBLE_DRIVER:
            raise NoDeviceError(_NOT_FOUND)
        check("vkCreateInstance", result)
        self.handle = handle[0]
        self.commands = InstanceCommands(opened, self.handle)
        try:
            self.physical_devices = tuple(_enumerate(self.commands, self.handle))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def find(self, selection: Selection) -> PhysicalDevice:
        """The physical device that a selection means.

        Raises:
            NoDeviceError: None does; the message lists those there are.
        """
        devices = self.physical_devices
        if not devices:
            raise NoDeviceError(_NOT_FOUND)
        if selection.index is not None:
            if selection.index < len(devices):
                return devices[selection.index]
        elif not selection.name:
            return devices[0]
        for each in devices:
            names = f"{each.identity.device_name} {each.identity.driver_name}".lower()
            if selection.name and selection.name in names:
                return each
        found = "; ".join(f"{index}: {each.identity.device_name}" for index, each in enumerate(devices))
        raise NoDeviceError(f"no device answers to {selection.text!r}; the loader found {found}")

    def close(self) -> None:
        """Destroy the instance. Idempotent."""
        if self.handle is not None:
            handle, self.handle = self.handle, None
            self.commands.vkDestroyInstance(handle, ffi.NULL)


def _newest_version(commands: GlobalCommands) -> int:
    """The newest version that the loader and these bindings know, without its patch."""
    if not commands.has("vkEnumerateInstanceVersion"):
        return _API_VERSION_1_0
    version = ffi.new("uint32_t *")
    check("vkEnumerateInstanceVersion", commands.vkEnumerateInstanceVersion(version))
    return min(int(version[0]) >> 12 << 12, _API_VERSION_1_4)


def _application_info(told: ApplicationInfo, api_version: int) -> tuple[Any, list[Any]]:
    """VkApplicationInfo, and the strings that it points to."""
    info = ffi.new("VkApplicationInfo *")
    info.sType = registry().struct("VkApplicationInfo").s_type
    texts = []
    for member, text in (("pApplicationName", told.application_name), ("pEngineName", told.engine_name)):
        if text is not None:
            texts.append(ffi.new("char[]", text.encode()))
            setattr(info, member, texts[-1])
    info.applicationVersion = told.application_version
    info.engineVersion = told.engine_version
    info.apiVersion = api_version
    return info, texts


def _enumerate(commands: InstanceCommands, instance: Any) -> list[PhysicalDevice]:
    count = ffi.new("uint32_t *")
    result = commands.vkEnumeratePhysicalDevices(instance, count, ffi.NULL)
    if result == _ERROR_INITIALIZATION_FAILED:
        raise NoDeviceError(_NOT_FOUND)
    check("vkEnumeratePhysicalDevices", result)
    handles = ffi.new("VkPhysicalDevice[]", count[0] or 1)
    check("vkEnumeratePhysicalDevices", commands.vkEnumeratePhysicalDevices(instance, count, handles))
    return [
        PhysicalDevice(
            handles[number],
            identity=_identity(commands, handles[number]),
            extensions=frozenset(_extensions(commands, handles[number])),
        )
        for number in range(count[0])
    ]


def _identity(commands: InstanceCommands, handle: Any) -> DeviceIdentity:
    core = ffi.new("VkPhysicalDeviceProperties *")
    commands.vkGetPhysicalDeviceProperties(handle, core)
    driver = ffi.new("VkPhysicalDeviceDriverProperties *")
    driver.sType = registry().struct("VkPhysicalDeviceDriverProperties").s_type
    if core.apiVersion >= _API_VERSION_1_1:
        properties = ffi.new("VkPhysicalDeviceProperties2 *")
        properties.sType = registry().struct("VkPhysicalDeviceProperties2").s_type
        properties.pNext = driver
        commands.vkGetPhysicalDeviceProperties2(handle, properties)
    return DeviceIdentity(
        vendor_id=core.vendorID,
        device_id=core.deviceID,
        driver_version=core.driverVersion,
        driver_id=int(driver.driverID),
        driver_abi=ffi.sizeof("void *") * 8,
        pipeline_cache_uuid=bytes(core.pipelineCacheUUID),
        api_version=core.apiVersion,
        device_name=_text(core.deviceName),
        driver_name=_text(driver.driverName),
        driver_info=_text(driver.driverInfo),
    )


def _extensions(commands: InstanceCommands, handle: Any) -> list[str]:
    def ask(count: Any, entries: Any) -> int:
        return int(commands.vkEnumerateDeviceExtensionProperties(handle, ffi.NULL, count, entries))

    return _extension_names("vkEnumerateDeviceExtensionProperties", ask)


def _instance_extensions(commands: GlobalCommands) -> list[str]:
    def ask(count: Any, entries: Any) -> int:
        return int(commands.vkEnumerateInstanceExtensionProperties(ffi.NULL, count, entries))

    return _extension_names("vkEnumerateInstanceExtensionProperties", ask)


def _extension_names(command: str, ask: Callable[[Any, Any], int]) -> list[str]:
    count = ffi.new("uint32_t *")
    check(command, ask(count, ffi.NULL))
    entries = ffi.new("VkExtensionProperties[]", count[0] or 1)
    check(command, ask(count, entries))
    return [_text(entries[number].extensionName) for number in range(count[0])]


def _text(array: Any) -> str:
    return bytes(ffi.string(array)).decode(errors="replace")
