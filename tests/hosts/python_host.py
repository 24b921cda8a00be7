"""A host in Python, by the PyPI package `vulkan`: it creates instance and device, and hands over integers.

It shares nothing with this project but the handles. What it enables is a value (`HostSettings`), so that a
test can open the same device by the project's own way and compare. `watched` puts functions of the host's own
before some commands, as a layer would, which count who calls them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import vulkan as vk
from attrs import define, field, frozen

ffi: Final[Any] = vk.ffi

ENDS_OR_BEGINS: Final = ("vkCreateInstance", "vkDestroyInstance", "vkCreateDevice", "vkDestroyDevice")
"""Commands that only the host may call on what is the host's."""


@frozen
class HostSettings:
    """What a host opens."""

    api_version: int = 1 << 22 | 3 << 12
    instance_extensions: tuple[str, ...] = ()
    device_extensions: tuple[str, ...] = ()
    features: Mapping[str, tuple[str, ...]] = field(factory=dict)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The features as pairs of structure and member."""
        return tuple((struct, member) for struct, members in self.features.items() for member in members)


def address(pointer: Any) -> int:
    """A pointer of cffi as a number."""
    return int(ffi.cast("uintptr_t", pointer))


@define(eq=False)
class PythonHost:
    """A host with an instance and a device; leaving the block destroys both.

    Attributes:
        settings: What it opens.
        calls: How often each of `ENDS_OR_BEGINS` was called through `watched`.
        instance: VkInstance; so for `physical_device` and `device`.
        chain: What VkDeviceCreateInfo::pNext was, as an address; 0 where null.
    """

    settings: HostSettings = HostSettings()
    calls: Counter[str] = field(factory=Counter)
    instance: Any = None
    physical_device: Any = None
    device: Any = None
    chain: int = 0
    _kept: list[Any] = field(factory=list)

    def __enter__(self) -> Self:
        settings = self.settings
        application = vk.VkApplicationInfo(
            pApplicationName="host",
            applicationVersion=1,
            pEngineName="none",
            engineVersion=1,
            apiVersion=settings.api_version,
        )
        self.instance = vk.vkCreateInstance(
            vk.VkInstanceCreateInfo(
                pApplicationInfo=application,
                ppEnabledExtensionNames=list(settings.instance_extensions),
                ppEnabledLayerNames=[],
            ),
            None,
        )
        self.physical_device = vk.vkEnumeratePhysicalDevices(self.instance)[0]
        following = None
        for struct, members in settings.features.items():
            on = dict.fromkeys(members, 1)
            if struct == "VkPhysicalDeviceFeatures":
                following = vk.VkPhysicalDeviceFeatures2(
                    pNext=following, features=vk.VkPhysicalDeviceFeatures(**on)
                )
            else:
                following = getattr(vk, struct)(pNext=following, **on)
            self._kept.append(following)
        self.chain = 0 if following is None else address(ffi.addressof(following))
        queue = vk.VkDeviceQueueCreateInfo(queueFamilyIndex=0, queueCount=1, pQueuePriorities=[1.0])
        self.device = vk.vkCreateDevice(
            self.physical_device,
            vk.VkDeviceCreateInfo(
                pNext=following,
                pQueueCreateInfos=[queue],
                ppEnabledExtensionNames=list(settings.device_extensions),
                ppEnabledLayerNames=[],
            ),
            None,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        vk.vkDestroyDevice(self.device, None)
        vk.vkDestroyInstance(self.instance, None)

    @property
    def arguments(self) -> dict[str, Any]:
        """What it says to `adopt_device`: integers and names."""
        settings = self.settings
        return {
            "instance": address(self.instance),
            "physical_device": address(self.physical_device),
            "device": address(self.device),
            "get_instance_proc_addr": address(self._found("vkGetInstanceProcAddr")),
            "api_version": settings.api_version,
            "enabled_extensions": [*settings.instance_extensions, *settings.device_extensions],
            "enabled_features": settings.pairs,
        }

    def watched(self) -> int:
        """Address of a vkGetInstanceProcAddr that counts calls of `ENDS_OR_BEGINS`, and makes none."""
        found = self._found("vkGetInstanceProcAddr")
        device_commands = self._found("vkGetDeviceProcAddr")

        def counting(name: str) -> Any:
            def called(first: Any, second: Any) -> None:
                del first, second
                self.calls[name] += 1

            counter = ffi.callback("void (*)(void *, void *)", called)
            self._kept.append(counter)
            return ffi.cast("PFN_vkVoidFunction", counter)

        counters = {name: counting(name) for name in ENDS_OR_BEGINS}

        def of_device(device: Any, name: Any) -> Any:
            text = ffi.string(name).decode()
            return counters[text] if text in counters else device_commands(device, name)

        of_device_pointer = ffi.callback("PFN_vkVoidFunction (*)(VkDevice, const char *)", of_device)

        def of_instance(instance: Any, name: Any) -> Any:
            text = ffi.string(name).decode()
            if text == "vkGetDeviceProcAddr":
                return ffi.cast("PFN_vkVoidFunction", of_device_pointer)
            return counters[text] if text in counters else found(instance, name)

        of_instance_pointer = ffi.callback("PFN_vkVoidFunction (*)(VkInstance, const char *)", of_instance)
        self._kept += [of_device_pointer, of_instance_pointer]
        return address(of_instance_pointer)

    def still_creates(self) -> bool:
        """Whether the device is alive: it creates a pipeline cache, and destroys it."""
        cache = vk.vkCreatePipelineCache(self.device, vk.VkPipelineCacheCreateInfo(initialDataSize=0), None)
        vk.vkDestroyPipelineCache(self.device, cache, None)
        return bool(cache)

    def _found(self, name: str) -> Any:
        loader = ffi.dlopen("libvulkan.so.1")
        self._kept.append(loader)
        signature = {
            "vkGetInstanceProcAddr": "PFN_vkVoidFunction (*)(VkInstance, const char *)",
            "vkGetDeviceProcAddr": "PFN_vkVoidFunction (*)(VkDevice, const char *)",
        }[name]
        return ffi.cast(signature, ffi.addressof(loader, name))
