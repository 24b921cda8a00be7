"""The Vulkan loader, its commands, layers, instances and physical devices.

Importing this opens nothing, so it works without Vulkan; `library` opens the loader. Commands are cffi
function pointers, attributes of tables that are filled once: a call costs one attribute look-up, and cffi
releases the GIL for as long as the driver runs. A command that is not there raises DeviceError where it is
asked for, and names what provides it.

Tables are immutable and thread-safe; they own neither instance nor device. The library stays open for the
life of the process, because drivers leave threads and exit handlers behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, Self

from attrs import frozen

from orchestrator.devices.device import DeviceIdentity
from orchestrator.devices.request import ApplicationInfo
from orchestrator.devices.vulkan._generated import COMMANDS, ffi
from orchestrator.errors import DeviceError, DriverError, NoDeviceError
from orchestrator.registry.tables import registry

LIBRARY_VARIABLE = "ORCHESTRATOR_VULKAN_LIBRARY"
"""Environment variable that names the library to open instead of the usual ones."""

LIBRARY_NAMES = ("libvulkan.so.1", "vulkan-1.dll", "libvulkan.dylib")

__all__ = [
    "COMMANDS",
    "LIBRARY_NAMES",
    "LIBRARY_VARIABLE",
    "DeviceCommands",
    "GlobalCommands",
    "InstanceCommands",
    "Library",
    "check",
    "ffi",
    "library",
    "open_library",
]


@frozen(eq=False)
class Library:
    """An open Vulkan loader library.

    Attributes:
        name: The name or path under which it was opened.
        get_instance_proc_addr: Its vkGetInstanceProcAddr.
    """

    name: str
    get_instance_proc_addr: Any
    _opened: Any  # closes the library when it is collected


@lru_cache(maxsize=1)
def library() -> Library:
    """The library of this process, opened on the first call. Failures are not remembered.

    Raises:
        NoDeviceError: As `open_library`.
        DeviceError: As `open_library`.
    """
    return open_library(os.environ)


def open_library(environment: Mapping[str, str]) -> Library:
    """Open the library that the environment names, or the first of the usual names that is there.

    Args:
        environment: Where `LIBRARY_VARIABLE` may be set; it then is the only one tried.

    Raises:
        NoDeviceError: There is none; the message says what was tried and which package to install.
        DeviceError: The process is not a 64-bit little-endian one.
    """
    if ffi.sizeof("void *") != 8 or sys.byteorder != "little":
        raise DeviceError(
            "Vulkan devices need a 64-bit little-endian process: structure layouts are made for it"
        )
    chosen = environment.get(LIBRARY_VARIABLE, "")
    causes = []
    for name in (chosen,) if chosen else LIBRARY_NAMES:
        try:
            opened = ffi.dlopen(name)
            return Library(name, opened.vkGetInstanceProcAddr, opened)
        except (OSError, ffi.error) as error:  # ffi.error: a library without the command
            causes.append(f"{name}: {error}")
    advice = (
        f"correct or unset {LIBRARY_VARIABLE}"
        if chosen
        else "install the Vulkan loader and a driver (Debian: libvulkan1 and mesa-vulkan-drivers), "
        f"or set {LIBRARY_VARIABLE} to the loader's path"
    )
    raise NoDeviceError(f"no Vulkan loader library: {advice}. Tried: {'; '.join(causes)}")


class _Commands:
    """Commands by name, found once. Reading one that is not there raises DeviceError."""

    def __init__(self, level: str, get_proc_addr: Any, owner: Any) -> None:
        self._level = level
        for name, (of_level, pointer_type, names, _) in COMMANDS.items():
            if of_level == level:
                found = _find(get_proc_addr, owner, names)
                if found:
                    setattr(self, name, ffi.cast(pointer_type, found))

    def __getattr__(self, name: str) -> Any:
        # Python asks here only for what is not there.
        if not name.startswith("vk"):
            raise AttributeError(name)
        level, _, _, requires = COMMANDS.get(name, ("", "", (), ""))
        if level != self._level:
            raise AttributeError(f"{name} is no {self._level} command of these bindings")
        provider = requires.replace(",", " or ").replace("+", " with ") or "every driver"
        raise DeviceError(
            f"{name} is not available: the {self._level} does not have it ({provider} provides it)"
        )

    def has(self, name: str) -> bool:
        """Whether a command is there."""
        return name in vars(self)


def _find(get_proc_addr: Any, owner: Any, names: Iterable[str]) -> Any:
    """Address of a command under the first of its names that is there, or None."""
    for name in names:
        found = get_proc_addr(owner, name.encode())
        if found:
            return found
    return None


class GlobalCommands(_Commands):
    """Commands that need no instance: vkCreateInstance, vkEnumerateInstance*.

    Args:
        opened: The library.
    """

    def __init__(self, opened: Library) -> None:
        super().__init__("global", opened.get_instance_proc_addr, ffi.NULL)


class InstanceCommands(_Commands):
    """Commands of an instance and its physical devices, and vkGetDeviceProcAddr.

    Args:
        opened: The library.
        instance: A VkInstance, which must outlive the table.
    """

    def __init__(self, opened: Library, instance: Any) -> None:
        super().__init__("instance", opened.get_instance_proc_addr, instance)


class DeviceCommands(_Commands):
    """Commands of a device, straight from its driver without the loader's dispatch.

    Args:
        of_instance: The commands of its instance.
        device: A VkDevice, which must outlive the table.
    """

    def __init__(self, of_instance: InstanceCommands, device: Any) -> None:
        super().__init__("device", of_instance.vkGetDeviceProcAddr, device)


def check(command: str, result: int) -> int:
    """Pass a VkResult on where it is a value, raise it where it is an error.

    Args:
        command: Name of the command that returned it, for the message.
        result: The VkResult.

    Returns:
        The same result, zero or positive (VK_INCOMPLETE, VK_PIPELINE_COMPILE_REQUIRED).

    Raises:
        DriverError: It is negative.
    """
    if result < 0:
        raise DriverError(command, result, registry().result_name(result))
    return result


#: The first Vulkan with VK_KHR_pipeline_binary, and so with vkGetPipelineKeyKHR (KhronosGroup/Vulkan-Docs
#: issue 2421).
PIPELINE_BINARY_VERSION: Final = (1 << 22) | (3 << 12) | 294


@frozen
class Layer:
    """An active layer.

    Attributes:
        name: VkLayerProperties::layerName.
        spec_version: VkLayerProperties::specVersion: the Vulkan that it knows, as
            VkApplicationInfo::apiVersion is made.
    """

    name: str
    spec_version: int

    def __str__(self) -> str:
        version = self.spec_version
        return f"{self.name} {version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def active_layers(commands: InstanceCommands, physical_device: Any) -> tuple[Layer, ...]:
    """The layers of an instance, whoever asked for them.

    Device layers are no more: what the loader tells as such is the layers of the instance (specification,
    chapter "Extended Functionality", "Device Layer Deprecation"), which no other command tells. Thread-safe.

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
        f"{', '.join(older)} {'is' if len(older) == 1 else 'are'} active and older than "
        "VK_KHR_pipeline_binary (1.3.294); a layer that does not know the command may hand the driver "
        "handles of its own, which ends the process"
    )


_API_VERSION_1_0: Final = 1 << 22
_API_VERSION_1_1: Final = (1 << 22) | (1 << 12)
_API_VERSION_1_4: Final = (1 << 22) | (4 << 12)
# Device extensions that captured pipelines name depend on these: the layout for presenting is
# VK_KHR_swapchain's. An application of Vulkan 1.0 asks for features by the third.
_WANTED_EXTENSIONS: Final = (
    "VK_KHR_surface",
    "VK_KHR_get_surface_capabilities2",
    "VK_KHR_get_physical_device_properties2",
)
_ERROR_INITIALIZATION_FAILED: Final = -3
_ERROR_INCOMPATIBLE_DRIVER: Final = -9
_NOT_FOUND: Final = (
    "the Vulkan loader found no device: install mesa-vulkan-drivers (24.3 or later; on Debian 12 from "
    "bookworm-backports) and use the selector radv:navi21, which needs no GPU, or simulated, which needs no "
    "driver"
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


@frozen(eq=False)
class VulkanInstance:
    """A VkInstance. Not shared between threads while it opens or closes.

    Attributes:
        handle: VkInstance.
        commands: Instance-level commands.
        extensions: Enabled instance extensions.
        api_version: VkApplicationInfo::apiVersion that it was created with.
        physical_devices: What the loader found, in its order.
    """

    handle: Any
    commands: InstanceCommands
    extensions: frozenset[str]
    api_version: int
    physical_devices: tuple[PhysicalDevice, ...]

    @classmethod
    def create(cls, application: ApplicationInfo | None = None) -> Self:
        """Create an instance; the caller closes it.

        Args:
            application: What the driver is told about the application; None: our own name, and the newest
                version.

        Raises:
            NoDeviceError: There is no loader, no driver, or no device.
            DriverError: The loader or a driver refused.
        """
        opened = library()
        commands = GlobalCommands(opened)
        extensions = frozenset(_WANTED_EXTENSIONS) & frozenset(_instance_extensions(commands))
        told = application or ApplicationInfo("orchestrator")
        api_version = told.api_version or _newest_version(commands)
        info, texts = _application_info(told, api_version)
        create_info = ffi.new("VkInstanceCreateInfo *")
        create_info.sType = registry().struct("VkInstanceCreateInfo").s_type
        create_info.pApplicationInfo = info
        names = [ffi.new("char[]", each.encode()) for each in sorted(extensions)]
        listed = ffi.new("char *[]", names)
        create_info.enabledExtensionCount = len(names)
        create_info.ppEnabledExtensionNames = listed
        handle = ffi.new("VkInstance *")
        result = commands.vkCreateInstance(create_info, ffi.NULL, handle)
        del texts  # they had to live until here
        if result == _ERROR_INCOMPATIBLE_DRIVER:
            raise NoDeviceError(_NOT_FOUND)
        check("vkCreateInstance", result)
        of_instance = InstanceCommands(opened, handle[0])
        try:
            devices = tuple(_enumerate(of_instance, handle[0]))
        except BaseException:
            of_instance.vkDestroyInstance(handle[0], ffi.NULL)
            raise
        return cls(handle[0], of_instance, extensions, api_version, devices)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, index: int | None = None, name: str = "") -> PhysicalDevice:
        """A physical device by position, or by a part of its name or its driver's; the first without either.

        Raises:
            NoDeviceError: There is none; the message lists those there are.
        """
        devices = self.physical_devices
        if not devices:
            raise NoDeviceError(_NOT_FOUND)
        if index is not None:
            if index < len(devices):
                return devices[index]
        else:
            for each in devices:
                if name.lower() in f"{each.identity.device_name} {each.identity.driver_name}".lower():
                    return each
        found = "; ".join(f"{number}: {each.identity.device_name}" for number, each in enumerate(devices))
        asked = name if index is None else str(index)
        raise NoDeviceError(f"no device answers to {asked!r}; the loader found {found}")

    def close(self) -> None:
        """Destroy the instance, once; nothing made from it may be left."""
        self.commands.vkDestroyInstance(self.handle, ffi.NULL)


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
