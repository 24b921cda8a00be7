# Purpose: the one place that opens a device by what a user calls it. Nothing else above devices/vulkan imports it;
# the binding is imported only when a Vulkan device is asked for, so that the package works without libvulkan.
"""Opens devices by selector."""

from __future__ import annotations

import importlib

from orchestrator.devices.device import Device, DeviceIdentity
from orchestrator.devices.request import DeviceRequest

SIMULATED = "simulated"


def open_device(
    selector: str = "",
    *,
    request: DeviceRequest | None = None,
    driver_caches: bool = False,
    count_host_memory: bool = False,
) -> Device:
    """Open a device.

    Args:
        selector: ``radv:navi21`` (RADV on null hardware, by family), ``radv``, ``lavapipe``, ``nvidia``, the
            index that `list_devices` shows, a part of a device's or driver's name, ``simulated``, or "" for
            the first device.
        request: The application whose instance and device it is opened as. A set's groups have theirs
            (`PipelineSet.groups`). None: no application's; what captures record is off, the rest on.
        driver_caches: Leave the driver's own caches on.
        count_host_memory: Count the host memory of caches and pipelines through VkAllocationCallbacks; it
            costs a call into Python per allocation.

    Returns:
        The device; the caller closes it.

    Raises:
        NoDeviceError: Nothing answers to the selector; the message says what does, or what to install.
        DriverError: The driver refused.
    """
    if selector == SIMULATED:
        from orchestrator.devices.simulated import CpuClock, SimulatedDevice, SimulatedOptions

        # It burns processor time, so that progress, workers and the reports behave as with a driver.
        return SimulatedDevice(SimulatedOptions(clock=CpuClock(), request=request))
    from orchestrator.devices.vulkan.device import VulkanDevice

    return VulkanDevice.open(
        selector,
        request=request,
        driver_caches=driver_caches,
        count_host_memory=count_host_memory,
    )


def open_for_child(
    opener: str, selector: str, request: DeviceRequest, *, driver_caches: bool = False
) -> Device:
    """Open a device in a process that works for another one, which may have an opener of its own.

    Args:
        opener: "package.module:function" to open the device with, called with the request; "" for `open_device`.
        selector: As `open_device` takes it.
        request: What it is opened as.
        driver_caches: Leave the driver's own caches on.

    Raises:
        OrchestratorError: What the opener raises.
    """
    if opener:
        module, _, name = opener.partition(":")
        device: Device = getattr(importlib.import_module(module), name)(request)
        return device
    return open_device(selector, request=request, driver_caches=driver_caches)


def list_layers(selector: str = "") -> tuple[str, ...]:
    """Names of the layers that the Vulkan loader finds, sorted; none where there is no loader.

    Args:
        selector: As `open_device` takes it; the simulated device has no layers.
    """
    if selector == SIMULATED:
        return ()
    from orchestrator.devices.vulkan.instance import known_layers

    return known_layers()


def list_devices(selector: str = "") -> list[DeviceIdentity]:
    """Identities of the Vulkan devices that the loader finds, in its order, their index is the selector.

    Args:
        selector: A target that decides which drivers are asked (``radv:navi21``, ``lavapipe``), or "" for all.

    Raises:
        NoDeviceError: There is no Vulkan loader.
    """
    from orchestrator.devices.vulkan.instance import VulkanInstance
    from orchestrator.devices.vulkan.selection import Selection

    with VulkanInstance(Selection.parse(selector)) as instance:
        return [each.identity for each in instance.physical_devices]
