"""Opening the loader library, finding commands, and what is said where one is not there."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.devices.vulkan._generated import COMMANDS, ffi
from orchestrator.devices.vulkan.instance import (
    LIBRARY_NAME,
    LIBRARY_VARIABLE,
    DeviceCommands,
    GlobalCommands,
    InstanceCommands,
    Library,
    check,
    open_library,
)
from orchestrator.errors import DeviceError, DriverError, NoDeviceError
from tests.drivers import each_driver, run_on_device


@pytest.mark.parametrize("path", ["/nowhere/libvulkan.so.1", "libc.so.6"])
def test_a_library_that_is_none(path: str) -> None:
    with pytest.raises(NoDeviceError, match=LIBRARY_VARIABLE) as caught:
        open_library({LIBRARY_VARIABLE: path})
    assert path in str(caught.value)
    assert "libvulkan1" not in str(caught.value)  # another path is the cure, not a package


def test_no_library_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"/nowhere/{LIBRARY_NAME}"
    monkeypatch.setattr("orchestrator.devices.vulkan.instance.LIBRARY_NAME", name)
    with pytest.raises(NoDeviceError) as caught:
        open_library({})
    for part in ("libvulkan1", "mesa-vulkan-drivers", name):
        assert part in str(caught.value)


class FakeProcAddr:
    """Stands in for vk*ProcAddr: knows some commands."""

    def __init__(self, *known: str) -> None:
        self.known = known
        self.asked: list[str] = []
        self._callback = ffi.callback("PFN_vkVoidFunction", lambda: None)

    def __call__(self, owner: Any, name: bytes) -> Any:
        self.asked.append(name.decode())
        return self._callback if name.decode() in self.known else ffi.NULL


def of_device(*known: str) -> DeviceCommands:
    proc_addr = FakeProcAddr("vkGetDeviceProcAddr")
    instance = InstanceCommands(Library("fake", proc_addr, None), ffi.NULL)
    vars(instance)["vkGetDeviceProcAddr"] = FakeProcAddr(*known)
    return DeviceCommands(instance, ffi.NULL)


def test_commands_are_plain_function_pointers() -> None:
    commands = of_device("vkCreatePipelineCache")
    assert ffi.typeof(commands.vkCreatePipelineCache) is ffi.typeof("PFN_vkCreatePipelineCache")
    assert commands.vkCreatePipelineCache is commands.vkCreatePipelineCache
    assert commands.has("vkCreatePipelineCache")
    assert not commands.has("vkGetPipelineKeyKHR")


def test_a_missing_command_names_its_extension() -> None:
    commands = of_device()
    with pytest.raises(DeviceError, match=r"vkGetPipelineKeyKHR .*\(VK_KHR_pipeline_binary provides it"):
        commands.vkGetPipelineKeyKHR  # noqa: B018
    with pytest.raises(DeviceError, match="VK_VERSION_1_2 or VK_KHR_create_renderpass2"):
        commands.vkCreateRenderPass2  # noqa: B018


def test_a_command_of_another_level_is_a_mistake_of_the_caller() -> None:
    commands = of_device()
    with pytest.raises(AttributeError, match="vkCreateInstance"):
        commands.vkCreateInstance  # noqa: B018
    with pytest.raises(AttributeError, match="vkNoSuchCommand"):
        commands.vkNoSuchCommand  # noqa: B018
    assert not hasattr(commands, "other")


def test_a_command_is_found_under_the_name_of_its_extension() -> None:
    assert of_device("vkCreateRenderPass2KHR").has("vkCreateRenderPass2")


def test_levels_are_asked_for_their_own_commands_only() -> None:
    proc_addr = FakeProcAddr()
    GlobalCommands(Library("fake", proc_addr, None))
    assert proc_addr.asked == [
        name for _, (level, _, names, _) in COMMANDS.items() if level == "global" for name in names
    ]


def test_results() -> None:
    assert check("vkGetPipelineCacheData", 0) == 0
    assert check("vkGetPipelineCacheData", 5) == 5
    with pytest.raises(DriverError, match=r"vkCreateDevice returned VK_ERROR_DEVICE_LOST \(-4\)") as caught:
        check("vkCreateDevice", -4)
    assert (caught.value.command, caught.value.result) == ("vkCreateDevice", -4)


def use_the_driver() -> dict[str, Any]:
    """Runs in a process of its own: opens the library, an instance and a device, and makes a cache."""
    opened = open_library({})
    everywhere = GlobalCommands(opened)
    version = ffi.new("uint32_t *")
    check("vkEnumerateInstanceVersion", everywhere.vkEnumerateInstanceVersion(version))
    application = ffi.new("VkApplicationInfo *", {"sType": 0, "apiVersion": 1 << 22 | 3 << 12})
    create_instance = ffi.new("VkInstanceCreateInfo *", {"sType": 1, "pApplicationInfo": application})
    instance = ffi.new("VkInstance *")
    check("vkCreateInstance", everywhere.vkCreateInstance(create_instance, ffi.NULL, instance))
    of_instance = InstanceCommands(opened, instance[0])
    count = ffi.new("uint32_t *", 1)
    physical = ffi.new("VkPhysicalDevice *")
    of_instance.vkEnumeratePhysicalDevices(instance[0], count, physical)
    properties = ffi.new("VkPhysicalDeviceProperties2 *", {"sType": 1000059001})
    of_instance.vkGetPhysicalDeviceProperties2(physical[0], properties)
    priority = ffi.new("float *", 1.0)
    queue = ffi.new("VkDeviceQueueCreateInfo *", {"sType": 2, "queueCount": 1, "pQueuePriorities": priority})
    create_device = ffi.new(
        "VkDeviceCreateInfo *", {"sType": 3, "queueCreateInfoCount": 1, "pQueueCreateInfos": queue}
    )
    device = ffi.new("VkDevice *")
    check("vkCreateDevice", of_instance.vkCreateDevice(physical[0], create_device, ffi.NULL, device))
    commands = DeviceCommands(of_instance, device[0])
    create_cache = ffi.new("VkPipelineCacheCreateInfo *", {"sType": 17})
    cache = ffi.new("VkPipelineCache *")
    check("vkCreatePipelineCache", commands.vkCreatePipelineCache(device[0], create_cache, ffi.NULL, cache))
    size = ffi.new("size_t *")
    check("vkGetPipelineCacheData", commands.vkGetPipelineCacheData(device[0], cache[0], size, ffi.NULL))
    data = ffi.new("uint8_t[]", size[0])
    size[0] = 16  # less than the header: nothing is written, and that is a value
    partial = check(
        "vkGetPipelineCacheData", commands.vkGetPipelineCacheData(device[0], cache[0], size, data)
    )
    commands.vkDestroyPipelineCache(device[0], cache[0], ffi.NULL)
    commands.vkDestroyDevice(device[0], ffi.NULL)
    of_instance.vkDestroyInstance(instance[0], ffi.NULL)
    return {
        "device": ffi.string(properties.properties.deviceName).decode(),
        "partial": partial,
        "size": len(data),
        "keys": commands.has("vkGetPipelineKeyKHR"),
    }


@pytest.mark.driver
@each_driver
def test_a_driver_answers(driver: str) -> None:
    result = run_on_device(driver, "tests.devices.vulkan.test_loader:use_the_driver")
    name = driver.partition(":")[2].upper() or "llvmpipe"
    assert name in result["device"]
    assert result["partial"] == 5  # VK_INCOMPLETE
    assert result["size"] >= 32  # VkPipelineCacheHeaderVersionOne
    assert result["keys"] is False
