# Purpose: opens the Vulkan loader library when it is first needed and finds its commands.
# Guarantees:
# - importing this module opens nothing, so it works on a machine without Vulkan; `library` opens it.
# - commands are plain cffi function pointers, attributes of a table that is filled once: a call costs one
#   attribute look-up and no wrapper. cffi releases the GIL for as long as the driver runs.
# - a command that is not there raises DeviceError at the place that asks for it, and says what provides it.
# Thread-safety: everything here may be used from any thread; the tables are immutable once made.
# Ownership: the tables do not own their instance or device, and must not be used after it is destroyed. The
# library stays open for the life of the process (drivers leave threads and exit handlers behind).
# Assumptions: pointers have 64 bits (the structure tables are made for that); others are refused.
"""The Vulkan loader library and its commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from attrs import frozen

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
