"""Asks RADV which GPU families its null hardware supports, in one fork for each name.

The driver reads RADV_FORCE_FAMILY when an instance is created, and again when physical devices are
enumerated, where it aborts at an unknown name. So one instance is created, and each name is tried in a fork
of this process.

Assumptions: all other threads of this process wait, and it does nothing else, because the forks copy the
driver's state.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from typing import Any, Final, Self

from attrs import frozen

from orchestrator.devices.device import check
from orchestrator.devices.vulkan._generated import ffi
from orchestrator.devices.vulkan.instance import GlobalCommands, InstanceCommands, library, new_struct

_VARIABLE: Final = "RADV_FORCE_FAMILY"
_LIMIT_S: Final = 20
_PR_SET_DUMPABLE: Final = 4  # <sys/prctl.h>
_ID: Final = struct.Struct("<I")


@frozen(eq=False)
class NullHardware:
    """An instance of RADV without a chosen family. Its context closes it."""

    _handle: Any
    _commands: InstanceCommands

    @classmethod
    def open(cls) -> Self:
        """Open the driver that the environment names.

        Raises:
            NoDeviceError: There is no loader.
            DriverError: The loader or the driver refused.
        """
        os.environ[_VARIABLE] = "any"
        opened = library()
        commands = GlobalCommands(opened)
        handle = ffi.new("VkInstance *")
        check(
            "vkCreateInstance",
            commands.vkCreateInstance(new_struct("VkInstanceCreateInfo"), ffi.NULL, handle),
        )
        return cls(handle[0], InstanceCommands(opened, handle[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._commands.vkDestroyInstance(self._handle, ffi.NULL)

    def device_id(self, family: str) -> int | None:
        """VkPhysicalDeviceProperties::deviceID of this family's device; None where the driver has none."""
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            os._exit(self._tell(family, write))
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            told = pipe.read(_ID.size)
        worked = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        return _ID.unpack(told)[0] if worked else None

    def _tell(self, family: str, write: int) -> int:
        """In the fork: write the device's id and return 0; at an unknown name the driver aborts."""
        try:
            signal.alarm(_LIMIT_S)
            # No core dump, even where a program collects dumps without a size limit.
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            os.environ[_VARIABLE] = family
            ids = self._commands.enumerate_all(
                "vkEnumeratePhysicalDevices", "VkPhysicalDevice", self._handle, read=self._device_id
            )
            os.write(write, _ID.pack(ids[0]))
        except BaseException:  # noqa: BLE001 - a fork must not go on in its parent's code
            return 1
        return 0

    def _device_id(self, physical_device: Any) -> int:
        properties = new_struct("VkPhysicalDeviceProperties2")
        self._commands.vkGetPhysicalDeviceProperties2(physical_device, properties)
        return int(properties.properties.deviceID)
