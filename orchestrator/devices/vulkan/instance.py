"""The Vulkan loader, its commands, layers, instances and physical devices.

This module can be imported without Vulkan; `library` opens the loader. Commands are cffi function pointers,
attributes of tables that are filled once; cffi releases the GIL while the driver runs. Tables are thread-safe
and own neither instance nor device. The library stays open for the life of the process, because drivers leave
threads and exit handlers behind.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from attrs import frozen

from orchestrator.devices.device import ERROR_INITIALIZATION_FAILED, DeviceHandles, DeviceIdentity
from orchestrator.devices.device import check as check
from orchestrator.devices.request import ApplicationInfo
from orchestrator.devices.vulkan._generated import COMMANDS, ffi
from orchestrator.devices.vulkan.manifests import driver_manifests, layer_libraries, missing_libraries
from orchestrator.errors import DeviceError, DriverError, NoDeviceError
from orchestrator.registry.tables import registry

LIBRARY_VARIABLE = "ORCHESTRATOR_VULKAN_LIBRARY"
"""Environment variable with the library to open instead of `LIBRARY_NAME`."""

LIBRARY_NAME = "libvulkan.so.1"

_Entry = TypeVar("_Entry")


def new_struct(name: str, **members: Any) -> Any:
    """A Vulkan structure with its sType. The caller keeps alive the memory that its members point to."""
    return ffi.new(f"{name} *", {"sType": registry().struct(name).s_type, **members})


def text_of(array: Any) -> str:
    """A char array as text."""
    return bytes(ffi.string(array)).decode(errors="replace")


@lru_cache(maxsize=1)
def library() -> Any:
    """The Vulkan loader of this process; see `open_library`. Failures are not remembered."""
    return open_library(os.environ)


def open_library(environment: Mapping[str, str]) -> Any:
    """Open the library that `LIBRARY_VARIABLE` names, else `LIBRARY_NAME`; it has vkGetInstanceProcAddr."""
    _check_process()
    chosen = environment.get(LIBRARY_VARIABLE, "")
    name = chosen or LIBRARY_NAME
    try:
        opened = ffi.dlopen(name)
        _ = opened.vkGetInstanceProcAddr
    except (OSError, ffi.error) as error:  # ffi.error: a library without the command
        advice = (
            f"correct or unset {LIBRARY_VARIABLE}"
            if chosen
            else "install the Vulkan loader and a driver (Debian: libvulkan1 and mesa-vulkan-drivers), "
            f"or set {LIBRARY_VARIABLE} to the loader's path"
        )
        raise NoDeviceError(f"no Vulkan loader library: {advice}; {error}") from None
    return opened


def _check_process() -> None:
    if ffi.sizeof("void *") != 8 or sys.byteorder != "little":
        raise DeviceError(
            "Vulkan devices need a 64-bit little-endian process: structure layouts are made for it"
        )


class Commands:
    """Commands of a level: "global", "instance" (with those of physical devices), or "device".

    They are looked up for an owner, null for global ones, which outlives them. Those of a device call its
    driver without the loader's dispatch.
    """

    def __init__(self, level: str, get_proc_addr: Any, owner: Any) -> None:
        self._level = level
        for name, (of_level, pointer_type, names, _) in COMMANDS.items():
            if of_level == level:
                found = next(filter(None, (get_proc_addr(owner, each.encode()) for each in names)), None)
                if found is not None:
                    setattr(self, name, ffi.cast(pointer_type, found))

    def __getattr__(self, name: str) -> Any:
        # Python calls this only for missing attributes.
        if name not in COMMANDS:
            raise AttributeError(name)
        provider = COMMANDS[name][3].replace(",", " or ").replace("+", " with ") or "every driver"
        raise DeviceError(
            f"{name} is not available: the {self._level} does not have it ({provider} provides it)"
        )

    def has(self, name: str) -> bool:
        """Whether the owner has a command."""
        return name in vars(self)

    def enumerate_all(
        self, command: str, ctype: str, *arguments: Any, read: Callable[[Any], _Entry]
    ) -> list[_Entry]:
        """All entries that a command gives, which is called twice: for their number, and for them."""
        ask, count = getattr(self, command), ffi.new("uint32_t *")
        check(command, ask(*arguments, count, ffi.NULL))
        struct = registry().structs.get(ctype)
        s_type = struct.s_type if struct is not None else None
        entries = ffi.new(f"{ctype}[]", [{"sType": s_type}] * count[0] if s_type else count[0])
        check(command, ask(*arguments, count, entries))
        return [read(entries[place]) for place in range(count[0])]


def _global_commands() -> Commands:
    return Commands("global", library().vkGetInstanceProcAddr, ffi.NULL)


#: The first Vulkan with VK_KHR_pipeline_binary, and so with vkGetPipelineKeyKHR (KhronosGroup/Vulkan-Docs
#: issue 2421).
PIPELINE_BINARY_VERSION: Final = (1 << 22) | (3 << 12) | 294


@frozen
class Layer:
    """An active layer: VkLayerProperties::layerName and ::specVersion, the Vulkan that it knows."""

    name: str
    spec_version: int

    def __str__(self) -> str:
        version = self.spec_version
        return f"{self.name} {version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"


def active_layers(commands: Commands, physical_device: Any) -> tuple[Layer, ...]:
    """All active layers of an instance. Thread-safe.

    Device layers are deprecated: the loader reports the instance's layers as such (specification, chapter
    "Extended Functionality", "Device Layer Deprecation"), and no other command reports them. It also reports
    meta-layers, and those whose library it could not load or use.
    """
    reported = commands.enumerate_all(
        "vkEnumerateDeviceLayerProperties",
        "VkLayerProperties",
        physical_device,
        read=lambda each: Layer(text_of(each.layerName), int(each.specVersion)),
    )
    libraries = layer_libraries(os.environ) if reported else {}
    return tuple(
        each
        for each in reported
        if (of := libraries.get(each.name)) is None or any(_is_in_use(*library) for library in of)
    )


def _is_in_use(file: str, entries: Iterable[str]) -> bool:
    try:
        loaded = ctypes.CDLL(file, os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return any(hasattr(loaded, each) for each in entries)


def load_drivers() -> None:
    """Let the loader load its drivers, which is most of the time of opening an instance.

    Thread-safe, also while another thread creates an instance. Releases the GIL.
    """
    _extensions(_global_commands(), "vkEnumerateInstanceExtensionProperties", ffi.NULL)


def known_layers() -> tuple[str, ...]:
    """Names of the layers that the loader finds, active or not, sorted."""
    names = _global_commands().enumerate_all(
        "vkEnumerateInstanceLayerProperties", "VkLayerProperties", read=lambda each: text_of(each.layerName)
    )
    return tuple(sorted(set(names)))


def keys_withheld(layers: Iterable[Layer]) -> str:
    """Why pipeline keys may not be requested through these layers, or ""."""
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
# Device extensions of captured pipelines depend on these: the layout for presenting needs VK_KHR_swapchain.
# With Vulkan 1.0, features are queried by the third.
_PROPERTIES_2: Final = "VK_KHR_get_physical_device_properties2"
_WANTED_EXTENSIONS: Final = frozenset({"VK_KHR_surface", "VK_KHR_get_surface_capabilities2", _PROPERTIES_2})
_ERROR_INCOMPATIBLE_DRIVER: Final = -9
# VkDriverId of each driver that a selector names.
_DRIVER_IDS: Final = {"radv": 3, "lavapipe": 13, "nvidia": 4}
_NO_DRIVER: Final = (
    "the Vulkan loader found no driver: {}install mesa-vulkan-drivers (24.3 or later; on Debian 12 from "
    "bookworm-backports) and use the selector radv:navi21, which needs no GPU, or simulated, which needs no "
    "driver"
)
_NO_GPU: Final = (
    "the Vulkan loader found a driver, and no device that it is for: radv:navi21 needs no GPU where Mesa's "
    "AMD driver is installed (from 26.1 on with mesa-drm-shim of its own release), and simulated needs no "
    "driver"
)
_FILTERS: Final = "VK_LOADER_DRIVERS_SELECT", "VK_LOADER_DRIVERS_DISABLE"


def _none_found() -> NoDeviceError:
    variable = "VK_DRIVER_FILES" if os.environ.get("VK_DRIVER_FILES") else "VK_ICD_FILENAMES"
    named = os.environ.get(variable, "")
    there = any(Path(each).exists() for each in named.split(os.pathsep) if each)
    filters = " ".join(f"{each}={os.environ[each]}" for each in _FILTERS if os.environ.get(each))
    wrong = f"{variable}={named} names no file that is there: correct or unset that, or " if named else ""
    missing = missing_libraries(os.environ)
    if missing and len(missing) == len(driver_manifests(os.environ)):
        wrong = f"{', '.join(missing)}, which is not there: install it again, correct the manifest, or "
        there = False
    why = _NO_GPU if there else _NO_DRIVER.format(wrong)
    if filters:
        why = f"no device among the drivers that {filters} leaves to the Vulkan loader: correct or unset that"
    return NoDeviceError(f"{why}; with VK_LOADER_DEBUG=all the loader prints what it passes over")


@frozen(eq=False)
class PhysicalDevice:
    """A physical device of an instance, and the names of its device extensions."""

    handle: Any
    identity: DeviceIdentity
    extensions: frozenset[str]


@frozen(eq=False)
class VulkanInstance:
    """A VkInstance, with its enabled extensions and the physical devices in the loader's order.

    Not shared between threads while it opens or closes.
    """

    handle: Any
    commands: Commands
    extensions: frozenset[str]
    api_version: int
    physical_devices: tuple[PhysicalDevice, ...]

    @classmethod
    def create(cls, application: ApplicationInfo | None = None, required: Iterable[str] = ()) -> Self:
        """Create an instance; the caller closes it."""
        commands = _global_commands()
        there = _extensions(commands, "vkEnumerateInstanceExtensionProperties", ffi.NULL)
        if lacking := sorted(frozenset(required) - there):
            raise NoDeviceError(
                f"no instance extension {', '.join(lacking)} in the Vulkan loader and its drivers"
            )
        extensions = (_WANTED_EXTENSIONS & there).union(required)
        told = application or ApplicationInfo("orchestrator")
        api_version = told.api_version or min(loader_version() >> 12 << 12, _API_VERSION_1_4)
        texts = [
            ffi.NULL if each is None else ffi.new("char[]", each.encode())
            for each in (told.application_name, told.engine_name)
        ]
        info = new_struct(
            "VkApplicationInfo",
            pApplicationName=texts[0],
            applicationVersion=told.application_version,
            pEngineName=texts[1],
            engineVersion=told.engine_version,
            apiVersion=api_version,
        )
        names = [ffi.new("char[]", each.encode()) for each in sorted(extensions)]
        listed = ffi.new("char *[]", names)
        create_info = new_struct(
            "VkInstanceCreateInfo",
            pApplicationInfo=info,
            enabledExtensionCount=len(names),
            ppEnabledExtensionNames=listed,
        )
        handle = ffi.new("VkInstance *")
        result = commands.vkCreateInstance(create_info, ffi.NULL, handle)
        if result == _ERROR_INCOMPATIBLE_DRIVER:
            raise _none_found()
        check("vkCreateInstance", result)
        of_instance = Commands("instance", library().vkGetInstanceProcAddr, handle[0])
        try:
            devices = of_instance.enumerate_all(
                "vkEnumeratePhysicalDevices",
                "VkPhysicalDevice",
                handle[0],
                read=lambda each: _physical_device(of_instance, each),
            )
        except BaseException as error:
            of_instance.vkDestroyInstance(handle[0], ffi.NULL)
            if isinstance(error, DriverError) and error.result == ERROR_INITIALIZATION_FAILED:
                raise _none_found() from None
            raise
        return cls(handle[0], of_instance, extensions, api_version, tuple(devices))

    @classmethod
    def adopt(cls, handles: DeviceHandles, api_version: int, extensions: frozenset[str]) -> Self:
        """Use a host's instance with one of its physical devices; the host destroys it."""
        version = api_version or _API_VERSION_1_0
        if version < _API_VERSION_1_1 and _PROPERTIES_2 not in extensions:
            raise DeviceError(
                f"the host's instance is Vulkan 1.0 without {_PROPERTIES_2}: what the device is and has "
                "cannot be asked; create it with Vulkan 1.1 or later, or with that extension"
            )
        if handles.get_instance_proc_addr:
            _check_process()
            find = ffi.cast(
                "PFN_vkVoidFunction (*)(VkInstance, const char *)", handles.get_instance_proc_addr
            )
        else:
            find = library().vkGetInstanceProcAddr
        instance = ffi.cast("VkInstance", handles.instance)
        commands = Commands("instance", find, instance)
        physical = _physical_device(commands, ffi.cast("VkPhysicalDevice", handles.physical_device))
        return cls(instance, commands, extensions, version, (physical,))

    def find(self, text: str, index: int | None, driver: str, name: str) -> PhysicalDevice:
        """The first physical device that the parts of a selector fit."""
        devices = self.physical_devices
        if not devices:
            raise _none_found()
        for number, each in enumerate(devices):
            of = each.identity
            if (
                index in (None, number)
                and (not driver or of.driver_id == _DRIVER_IDS[driver])
                and name.lower() in f"{of.device_name} {of.driver_name}".lower()
            ):
                return each
        found = ", ".join(f"{each.identity.device_name} as device {n}" for n, each in enumerate(devices))
        files = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
        named = f"; VK_DRIVER_FILES={files} names the drivers that it asks" if files else ""
        raise NoDeviceError(f"no device answers to {text!r}; the loader found {found}{named}")

    def close(self) -> None:
        """Destroy the instance, once, after all objects made from it."""
        self.commands.vkDestroyInstance(self.handle, ffi.NULL)


def loader_version() -> int:
    """Vulkan version of the loader."""
    commands = _global_commands()
    if not commands.has("vkEnumerateInstanceVersion"):
        return _API_VERSION_1_0
    version = ffi.new("uint32_t *")
    check("vkEnumerateInstanceVersion", commands.vkEnumerateInstanceVersion(version))
    return int(version[0])


def _physical_device(commands: Commands, handle: Any) -> PhysicalDevice:
    return PhysicalDevice(
        handle,
        _identity(commands, handle),
        _extensions(commands, "vkEnumerateDeviceExtensionProperties", handle, ffi.NULL),
    )


def _identity(commands: Commands, handle: Any) -> DeviceIdentity:
    core = ffi.new("VkPhysicalDeviceProperties *")
    commands.vkGetPhysicalDeviceProperties(handle, core)
    driver = new_struct("VkPhysicalDeviceDriverProperties")
    if core.apiVersion >= _API_VERSION_1_1:
        commands.vkGetPhysicalDeviceProperties2(
            handle, new_struct("VkPhysicalDeviceProperties2", pNext=driver)
        )
    return DeviceIdentity(
        vendor_id=core.vendorID,
        device_id=core.deviceID,
        driver_version=core.driverVersion,
        driver_id=int(driver.driverID),
        driver_abi=ffi.sizeof("void *") * 8,
        pipeline_cache_uuid=bytes(core.pipelineCacheUUID),
        api_version=core.apiVersion,
        device_name=text_of(core.deviceName),
        driver_name=text_of(driver.driverName),
        driver_info=text_of(driver.driverInfo),
    )


def _extensions(commands: Commands, command: str, *of: Any) -> frozenset[str]:
    return frozenset(
        commands.enumerate_all(
            command, "VkExtensionProperties", *of, read=lambda each: text_of(each.extensionName)
        )
    )
